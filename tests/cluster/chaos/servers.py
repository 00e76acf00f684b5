"""All that the groups stand on: nodes of Kafka, servers of ZooKeeper if there are any, coordinators."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import ExitStack

from kohort import Admin
from kohort.errors import KafkaError
from kohort.zookeeper import free_ports
from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_cluster import KafkaNode
from tests.support.zookeeper_ensemble import Ensemble

SESSION_MS, HEARTBEAT_MS, REBALANCE_MS = 6_000, 1_000, 20_000
PLACEMENT_MS = 6_000
"""A coordinator that stands still for longer has lost its shards."""
FIRST_ID = 901
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": SESSION_MS,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
    "journal.partitions": 4,
    "placement.session.timeout.ms": PLACEMENT_MS,
}


class Servers:
    """See the module's text.

    Attributes:
        kafka: one node or three.
        zookeepers: None: coordinators find each other through a group on Kafka.
        coordinators: the processes, by number; each keeps its address and its id.
        logs: what earlier processes of each coordinator said.
    """

    def __init__(
        self,
        stack: ExitStack,
        kafka: list[ApacheKafka],
        count: int,
        zookeepers: Ensemble | None = None,
        coordinator: type[CoordinatorProcess] = CoordinatorProcess,
    ) -> None:
        self._coordinator = coordinator
        self._stack, self.kafka, self.zookeepers = stack, kafka, zookeepers
        self.name = uuid.uuid4().hex[:8]
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.logs = [""] * count
        self.coordinators = [self._begin(number) for number in range(count)]
        for coordinator in self.coordinators:
            coordinator.wait_ready()

    @property
    def brokers(self) -> str:
        """Where Kafka's nodes are."""
        return ",".join(node.bootstrap_servers for node in self.kafka)

    @property
    def servers(self) -> str:
        """Where the coordinators are."""
        return ",".join(self.addresses)

    def _begin(self, number: int) -> CoordinatorProcess:
        own = {**SETTINGS, "journal.topic": f"__groups-{self.name}", "placement.group": f"__coordinators-{self.name}"}
        args = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
        if self.zookeepers is not None:
            args += ["--zookeeper", f"{self.zookeepers.address}/{self.name}"]
        args += ["--id", str(FIRST_ID + number)]
        started = self._coordinator(self.brokers, *args, listen=self.addresses[number], wait=False)
        return self._stack.enter_context(started)

    def kill_coordinator(self, number: int) -> None:
        self.coordinators[number].kill()

    def stop_coordinator(self, number: int) -> None:
        """End it cleanly; one that was begun a moment ago, and has not come to its first word, ends as any process."""
        code, log = self.coordinators[number].stop(), self.coordinators[number].log
        assert code == 0 or (code == -signal.SIGTERM and not log), f"coordinator {number} ended with {code}:\n{log}"

    def restart_coordinator(self, number: int) -> None:
        """A process of the same address and id, which is not waited for."""
        self.logs[number] += self.coordinators[number].log
        self.coordinators[number].close()
        self.coordinators[number] = self._begin(number)

    def log_of(self, number: int) -> str:
        """All that a coordinator has said, in each of its lives."""
        return self.logs[number] + self.coordinators[number].log

    def has(self, group: str) -> int | None:
        """The number of the coordinator that has a group; None: nobody says."""
        try:
            with Admin(self.servers, default_api_timeout_ms=5_000) as admin:
                node = admin.describe_consumer_groups([group]).result(group).coordinator
        except KafkaError:
            return None
        return node - FIRST_ID if node is not None and 0 <= node - FIRST_ID < len(self.addresses) else None

    def restart_kafka(self, number: int) -> None:
        """Start a killed node, and wait until it takes clients."""
        node = self.kafka[number]
        node.start()
        if isinstance(node, KafkaNode):
            node.wait()

    def restart_zookeeper(self, number: int) -> None:
        """Start a killed server, and wait until it serves."""
        assert self.zookeepers is not None
        self.zookeepers.restart(number)
        self.zookeepers.wait()

    def check(self) -> None:
        """Fail when a coordinator has ended by itself."""
        for number, coordinator in enumerate(self.coordinators):
            code = coordinator.process.poll()
            assert code in (None, 0, -signal.SIGKILL), f"coordinator {number} ended with {code}:\n{coordinator.log}"


def stop(pid: int) -> None:
    """Stop the process (SIGSTOP); its connections stay open."""
    os.kill(pid, signal.SIGSTOP)


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
