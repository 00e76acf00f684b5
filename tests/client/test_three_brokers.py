"""Three real brokers, killed one after the other while our producers and consumers run.

`KOHORT_CLUSTER_KILLS` says how many are killed: one in `make test`, more in `make test-cluster`.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import FencedError, KafkaError
from tests.support.kafka_cluster import KafkaNode, three_nodes
from tests.support.maven import MavenUnavailable
from tests.support.waiting import until

KILLS = int(os.environ.get("KOHORT_CLUSTER_KILLS", "1"))
PARTITIONS = 6
BETWEEN = 400
"""Records that go through, all the way, between two things that happen to the cluster."""
QUICK = {"heartbeat_interval_ms": 300, "auto_offset_reset": "earliest"}
PATIENCE_S = 120


@pytest.fixture
def three() -> Iterator[list[KafkaNode]]:
    try:
        with three_nodes() as nodes:
            yield nodes
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


class Running(threading.Thread):
    """Does its work again and again until it is told to end; an error ends it too, and fails the test."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.turn()
            self.close()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def turn(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self.error is not None:
            raise AssertionError(f"{type(self).__name__}: {self.error!r}") from self.error


class Writing(Running):
    """An idempotent producer of 0, 1, 2 … by key, some hundred a second."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.producer = Producer(servers, acks="all")
        self.sent = 0
        self.delivered = 0

    def turn(self) -> None:
        for _ in range(10):
            self.producer.send(self.topic, str(self.sent), key=str(self.sent % 50), on_delivery=self.reported)
            self.sent += 1
        self.ending.wait(0.03)  # the load, not a wait

    def reported(self, error: KafkaError | None, _: object) -> None:
        self.error = self.error or error
        self.delivered += error is None

    def close(self) -> None:
        self.producer.close(timeout_ms=PATIENCE_S * 1000)


class Reading(Running):
    """A member of a group that notes what it reads."""

    def __init__(self, servers: str, topic: str, protocol: str) -> None:
        super().__init__()
        self.group = f"{topic}-{protocol}"
        self.consumer = Consumer(
            servers, group_id=self.group, group_protocol=protocol, auto_commit_interval_ms=200, **QUICK
        )
        self.consumer.subscribe([topic])
        self.seen: list[tuple[TopicPartition, int, int]] = []

    def turn(self) -> None:
        for record in self.consumer.poll(200):
            self.seen.append((TopicPartition(record.topic, record.partition), record.offset, int(record.value)))

    def close(self) -> None:
        self.consumer.close()


class Copying(Running):
    """Reads a topic, and writes it to another in transactions that hold the offsets too."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self.to = f"{topic}-copy"
        self.consumer = Consumer(servers, group_id=self.to, enable_auto_commit=False, **QUICK)
        self.consumer.subscribe([topic])
        self.producer = Producer(servers, transactional_id=self.to)
        self.producer.init_transactions()
        self.copied = 0

    def turn(self) -> None:
        records = list(self.consumer.poll(200))
        if not records:
            return
        ends = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        self.producer.begin_transaction()
        try:
            for record in records:
                self.producer.send(self.to, record.value, key=record.key)
            self.producer.send_offsets_to_transaction(ends, self.consumer.group_metadata())
            self.producer.commit_transaction()
        except FencedError:
            raise
        except KafkaError:
            self.producer.abort_transaction()
            for partition, offset in self.consumer.committed(self.consumer.assignment()).items():
                self.consumer.seek(partition, 0 if offset is None else offset.offset)
        else:
            self.copied += len(records)

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()


def values_of(servers: str, topic: str) -> dict[TopicPartition, list[int]]:
    """Return the values of a topic that count, by partition, in order."""
    found = defaultdict(list)
    with RangeReader(servers, columns=("value",), isolation_level="read_committed") as reader:
        for partition in [TopicPartition(topic, number) for number in range(PARTITIONS)]:
            end = reader.end_offsets([partition])[partition]
            for batch in reader.read(partition, 0, end):
                found[partition] += [int(value) for value in batch.column(0).to_pylist()]
    return found


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300 + 180 * KILLS)
def test_brokers_that_are_killed_cost_no_record(three: list[KafkaNode]) -> None:
    servers = ",".join(node.bootstrap_servers for node in three)
    topic = "survivor"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 3), NewTopic(f"{topic}-copy", PARTITIONS, 3)]).all()
        writing, copying = Writing(servers, topic), Copying(servers, topic)
        groups = {kind: [Reading(servers, topic, kind) for _ in range(2)] for kind in ("classic", "consumer")}
        everyone: list[Running] = [writing, copying, *(reader for group in groups.values() for reader in group)]

        def everything_flows(count: int, what: str) -> None:
            """Until so many more records are written, copied and read by each group."""
            start = writing.delivered
            marks = {kind: sum(len(reader.seen) for reader in group) for kind, group in groups.items()}
            copied = copying.copied

            def done() -> bool:
                for worker in everyone:
                    worker.check()
                return (
                    writing.delivered >= start + count
                    and copying.copied >= copied + count
                    and all(
                        sum(len(reader.seen) for reader in group) >= marks[kind] + count
                        for kind, group in groups.items()
                    )
                )

            until(done, what, PATIENCE_S)

        for worker in everyone:
            worker.start()
        everything_flows(BETWEEN, "records flow with three brokers")
        for kill in range(KILLS):
            victim = three[kill % len(three)]
            victim.kill()
            everything_flows(BETWEEN, f"records flow after the death of broker {victim.number + 1}")
            if kill + 1 < KILLS:
                victim.start()
                victim.wait()
                until(lambda: all_in_sync(admin, topic), "all replicas are in sync again", PATIENCE_S)
        writing.ending.set()
        writing.join(PATIENCE_S)
        writing.check()
        total = set(range(writing.sent))
        for kind, group in groups.items():
            until(
                lambda group=group: (  # type: ignore[misc]
                    {value for reader in group for _, _, value in reader.seen} >= total
                ),
                f"the {kind} group has read everything",
                PATIENCE_S,
            )
        until(lambda: copying.copied >= len(total), "everything is copied", PATIENCE_S)
        for worker in everyone:
            worker.ending.set()
        for worker in everyone:
            worker.join(PATIENCE_S)
            worker.check()

        written, copy = values_of(servers, topic), values_of(servers, f"{topic}-copy")
        for log in (written, copy):
            values = [value for partition in log.values() for value in partition]
            assert sorted(values) == sorted(total), "each record is there once"
            assert all(partition == sorted(partition) for partition in log.values()), "in the order sent"
        for group in groups.values():
            for reader in group:
                assert all(written[partition][offset] == value for partition, offset, value in reader.seen)
            committed = admin.list_consumer_group_offsets(group[0].group).all()
            assert {place: offset.offset for place, offset in committed.items() if offset} == {
                place: len(values) for place, values in written.items()
            }


def all_in_sync(admin: Admin, topic: str) -> bool:
    partitions = admin.describe_topics([topic]).result(topic).partitions.values()
    return all(len(partition.isr) == 3 for partition in partitions)
