"""Three nodes of Apache Kafka on loopback, each broker and controller, that can be killed and started again."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kohort.io.java import JavaServer
from kohort.zookeeper import free_ports
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

COUNT = 3
_START_TIMEOUT_S = 180
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaNode(ApacheKafka):
    """One of the three, each in a rack of its own.

    Topics have three replicas, two of which must have a record before it counts.
    """

    def __init__(self, number: int, controllers: list[int], cluster: str) -> None:
        self.number = number
        self._controllers = controllers
        self._cluster = cluster
        super().__init__(options=_OPTIONS)

    def _format(self) -> None:
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(self._controllers))
        changed = {
            "node.id": str(self.number + 1),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controllers[self.number]}",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "transaction.state.log.num.partitions": "3",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "5000",
            "group.initial.rebalance.delay.ms": "100",
            "broker.rack": f"rack-{self.number}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        }
        lines = [line for line in self._properties.read_text().splitlines() if line.split("=")[0] not in changed]
        self._properties.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in changed.items())]) + "\n")
        self._format_for(self._cluster)

    def start(self) -> None:
        """Starts without waiting: it takes two to form a quorum."""
        program = self._program("kafka.Kafka", str(self._properties))
        self._server = JavaServer(program, self.folder / "server.log", "Apache Kafka")

    def wait(self) -> None:
        """Until it takes clients."""
        until(self._answers, f"node {self.number + 1} answers", _START_TIMEOUT_S)


@contextmanager
def three_nodes() -> Iterator[list[KafkaNode]]:
    """The nodes, all of which take clients.

    Raises:
        MavenUnavailable: they can't be run on this machine.
    """
    controllers = free_ports(COUNT)
    cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
    nodes: list[KafkaNode] = []
    try:
        for number in range(COUNT):
            nodes.append(KafkaNode(number, controllers, cluster))  # noqa: PERF401 - those there are must be closed
        for node in nodes:
            node.wait()
        yield nodes
    finally:
        for node in nodes:
            node.close()
