"""Three real brokers, one of which is killed while our consumers and a producer run."""

from __future__ import annotations

import base64
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from kohort import Admin, Consumer, Producer
from kohort.client.admin.values import NewTopic
from kohort.errors import KafkaError
from kohort.java import JavaServer
from kohort.zookeeper import free_port
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable
from tests.support.waiting import until

COUNT = 3


class Member(ApacheKafka):
    """One of three nodes, each broker and controller."""

    def __init__(self, number: int, controllers: list[int], cluster: str) -> None:
        self._number = number
        self._controllers = controllers
        self._cluster = cluster
        super().__init__(options=("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"))

    def _format(self) -> None:
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(self._controllers))
        changed = {
            "node.id": str(self._number + 1),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controllers[self._number]}",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "100",
        }
        lines = [line for line in self._properties.read_text().splitlines() if line.split("=")[0] not in changed]
        self._properties.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in changed.items())]) + "\n")
        program = self._program("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(self._properties))
        subprocess.run(program.command(), capture_output=True, check=True)

    def start(self) -> None:
        """Starts without waiting: it takes two to form a quorum."""
        program = self._program("kafka.Kafka", str(self._properties))
        self._server = JavaServer(program, self.folder / "server.log", "Apache Kafka")


@pytest.fixture
def three() -> Iterator[list[Member]]:
    controllers = [free_port() for _ in range(COUNT)]
    cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
    nodes: list[Member] = []
    try:
        nodes += (Member(number, controllers, cluster) for number in range(COUNT))
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    until(lambda: all(node._answers() for node in nodes), "three brokers answer", 90)
    yield nodes
    for node in nodes:
        node.close()


class Reading(threading.Thread):
    """A member of the group that notes what it reads and commits it."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(
            servers,
            group_id=topic,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            auto_commit_interval_ms=200,
        )
        self.consumer.subscribe([topic])
        self.seen: list[int] = []
        self.error: KafkaError | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.seen += [int(record.value) for record in self.consumer.poll(200)]
            self.consumer.close()
        except KafkaError as error:
            self.error = error


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_costs_no_record(three: list[Member]) -> None:
    servers = ",".join(node.bootstrap_servers for node in three)
    topic = "survivor"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 6, 3)]).all()
    readers = [Reading(servers, topic) for _ in range(2)]
    for reader in readers:
        reader.start()
    total = 3000
    with Producer(servers, acks="all", linger_ms=5, delivery_timeout_ms=120_000) as producer:
        for number in range(total):
            producer.send(topic, str(number), key=str(number))
            if number == 1000:
                producer.flush(60)
                three[0].kill()
            if number % 100 == 0:
                time.sleep(0.05)  # the load, not a wait
        producer.flush(100)
    deadline = time.monotonic() + 100
    while len({value for reader in readers for value in reader.seen}) < total and time.monotonic() < deadline:
        assert [reader.error for reader in readers] == [None, None]
        time.sleep(0.1)
    for reader in readers:
        reader.ending.set()
    for reader in readers:
        reader.join(30)
    assert {value for reader in readers for value in reader.seen} == set(range(total))
