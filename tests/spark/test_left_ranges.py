"""Ranges that a repeated batch leaves to the group are read, whatever later runs know by a checkpoint.

Spark's calls are made without Spark (`histories.engine`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.histories.engine import Execution
from tests.spark.histories.life import COLUMNS
from tests.support.waiting import STILL_S

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.ids import TopicPartition
from kohort.spark.source.group_offsets import GroupOffsets

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.parametrize("protocol", ["classic", "push"]),
]
EACH = 10
"""Records in each partition."""


class Failed(Exception):
    """The sink's, on purpose."""


class Query:
    """A query with one checkpoint: `run` starts it, and it reads what there is."""

    def __init__(self, servers: str, folder: Path, partitions: int, protocol: str) -> None:
        self.topic = self.group = f"t-{uuid.uuid4().hex[:8]}"
        self.partitions = [TopicPartition(self.topic, number) for number in range(partitions)]
        self.read: list[tuple[int, int]] = []
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.committed_at_sink: list[dict[int, int]] = []
        self.admin, self._servers, self._folder, self.protocol = Admin(servers), servers, folder, protocol
        self.admin.create_topics([NewTopic(self.topic, partitions)]).all()
        with Producer(servers) as producer:
            for number in range(EACH * partitions):
                producer.send(self.topic, b"%d" % number, partition=number % partitions)

    def committed(self) -> dict[int, int]:
        found = self.admin.list_consumer_group_offsets(self.group, self.partitions).all()
        return {tp.partition: position.offset for tp, position in found.items() if position is not None}

    def member(self) -> GroupMember:
        """Another one of its group."""
        return GroupMember(
            self._servers,
            self.group,
            topics=[self.topic],
            group_protocol=self.protocol,
            heartbeat_interval_ms=100,
            auto_offset_reset="earliest",
        )

    def run(self, planned: str, *, fails_at: int = 0, meanwhile: Callable[[], None] = lambda: None) -> None:
        """One run, on a thread of its own: it installs no signal handler there."""
        writes = 0

        def sink(batch: int, tables: list[pa.RecordBatch]) -> None:
            nonlocal writes
            rows = [(row["partition"], row["offset"]) for table in tables for row in table.to_pylist()]
            writes += bool(rows)
            self.committed_at_sink.append(self.committed())
            if rows and writes == fails_at:
                raise Failed
            self.read += rows
            self.batches[batch] = rows

        def whole() -> None:
            options = {
                "kafka.bootstrap.servers": self._servers,
                "subscribe": self.topic,
                "group.id": self.group,
                "group.protocol": self.protocol,
                "startingOffsets": "earliest",
                "plannedRanges": planned,
                "kafka.heartbeat.interval.ms": "100",
                "columns": COLUMNS,
            }
            execution = Execution(options, self._folder, sink, lambda _: None, lambda *_, **__: None)
            try:
                execution.run("availableNow", 10)
            finally:
                execution.reader.stop()

        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(whole)
            while not running.done():
                meanwhile()
            if fails_at:
                with pytest.raises(Failed):
                    running.result()
            else:
                running.result()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


def test_what_no_run_reads_again_is_not_passed_over_by_the_next(servers: str, tmp_path: Path, protocol: str) -> None:
    """plannedRanges=none: the checkpoint says that the first batch reached its end, which nobody has read."""
    query = Query(servers, tmp_path, 1, protocol)
    query.run("none", fails_at=1)
    query.run("none", fails_at=1)
    query.run("none")
    assert sorted(query.read) == [(0, offset) for offset in range(EACH)]


def test_a_range_left_to_another_member_is_not_committed_before_it_is_read(
    servers: str, tmp_path: Path, protocol: str
) -> None:
    query = Query(servers, tmp_path, 1, protocol)
    query.run("owned", fails_at=1)
    with query.member() as other:
        other.wait_assignment(STILL_S * 1000)
        other.commit({query.partitions[0]: 4})
    query.run("owned", fails_at=1)
    query.run("owned")
    assert sorted(query.read) == [(0, offset) for offset in range(4, EACH)]
    assert query.committed_at_sink[-1] == {0: 4}, "what is committed has been in a sink"


def run_beside_one_that_only_holds(query: Query) -> None:
    """The query runs again, and leaves a partition to another member, which commits nothing and ends."""
    with query.member() as other:
        other.wait_assignment(STILL_S * 1000)

        def share() -> None:
            other.wait_change(20)
            if other.revocation() is not None:
                other.release()

        query.run("owned", meanwhile=share)
    assert len(query.read) == EACH


@pytest.mark.parametrize("deleted", [False, True], ids=["committed", "deleted"])
def test_a_range_left_to_a_member_that_ends_without_a_commit_is_read(
    servers: str, tmp_path: Path, protocol: str, deleted: bool
) -> None:
    """Also where the group's offsets are gone; a push group's coordinator has found another one for the member then."""
    query = Query(servers, tmp_path, 2, protocol)
    query.run("owned", fails_at=1)
    if deleted:
        query.admin.delete_consumer_group_offsets(query.group, query.partitions).all()
    run_beside_one_that_only_holds(query)
    query.run("owned")
    assert sorted(query.read) == [(number, offset) for number in (0, 1) for offset in range(EACH)]


@pytest.mark.parametrize("then", ["ends", "rebalances"])
def test_a_claim_does_not_hide_that_another_member_had_the_partition(
    servers: str, tmp_path: Path, protocol: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that takes each batch once may have it without the partition, which the batch must not have later."""
    query = Query(servers, tmp_path, 1, protocol)
    query.run("owned", fails_at=1)
    with query.member() as other:
        other.wait_assignment(STILL_S * 1000)
        other.commit({query.partitions[0]: 0})
    real = GroupOffsets._mark_left

    def interrupted(offsets: GroupOffsets, *_: object) -> bool:
        """The run ends, or the group rebalances, after the claim and before what is left is marked."""
        monkeypatch.setattr(GroupOffsets, "_mark_left", real)
        if then == "ends":
            raise Failed
        offsets._taken = None  # as after a rebalance
        return False

    monkeypatch.setattr(GroupOffsets, "_mark_left", interrupted)
    if then == "ends":
        query.run("owned", fails_at=1)
    query.run("owned")
    assert query.batches[0] == [] and sorted(query.read) == [(0, offset) for offset in range(EACH)]
