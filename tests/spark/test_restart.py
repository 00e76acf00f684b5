"""A query that comes back to an unfinished batch, to other partitions than it was planned with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Sink, Stage
from tests.support.waiting import until

from kohort.client.group.member import GroupMember
from kohort.ids import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1_200)]

NOW = {"availableNow": True}
GROWN = PARTITIONS + 2
EACH = 50
"""Records in each partition; the unfinished batch has half of them, of the partitions that there were."""
WAIT_S = 240


def settled(member: GroupMember, query: Any, share: int) -> bool:
    """Whether a member has its share of what it has in common with a query; what the group wants back is given."""
    assert query is None or query.isActive, query.exception()
    if member.revocation() is not None:
        member.release()
    return len(member.assignment().partitions) == share and member.revocation() is None


@pytest.mark.parametrize("planned", ["owned", "all", "none"])
def test_scenario_19_an_unfinished_batch_is_replayed_or_released_after_partitions_changed(
    run: Callable[..., Any], stage: Stage, planned: str
) -> None:
    """While the query was down its topic grew and another member joined, which keeps a half of the partitions."""
    stage.produce(EACH * PARTITIONS)
    sink = Sink()

    def fail(number: int, rows: int) -> None:
        if rows:
            raise RuntimeError("the sink failed on purpose")

    sink.before = fail
    query = run(sink, maxOffsetsPerTrigger=EACH * PARTITIONS // 2, trigger=NOW)
    with pytest.raises(Exception, match="failed on purpose"):
        query.awaitTermination(WAIT_S)
    until(lambda: not stage.members(), "the member leaves", WAIT_S)
    number, failed = sink.every[-1]
    assert len(failed) == EACH * PARTITIONS // 2
    sink.before = None

    stage.admin.create_partitions({stage.topic: GROWN}).all()
    stage.produce(EACH * 2, range(PARTITIONS, GROWN))
    everywhere = {TopicPartition(stage.topic, partition) for partition in range(GROWN)}
    with GroupMember(stage.servers, stage.group, topics=[stage.topic], metadata_max_age_ms=500) as other:
        until(lambda: settled(other, None, GROWN), "the other member has all", WAIT_S)
        query = run(sink, plannedRanges=planned, **{"kafka.metadata.max.age.ms": 500})
        until(lambda: settled(other, query, GROWN // 2), "they share", WAIT_S)
        mine = {tp.partition for tp in everywhere - set(other.assignment().partitions)}

        def read() -> dict[int, set[int]]:
            """Return the sink's rows of each partition of the query."""
            with sink.lock:
                rows = [row for rows in sink.batches.values() for row in rows]
            return {partition: {row[2] for row in rows if row[1] == partition} for partition in mine}

        until(
            lambda: all(len(read()[partition]) == EACH for partition in mine), "all that is the query's is read", WAIT_S
        )
        assert query.isActive, query.exception()
        query.stop()
        again = {"owned": [row for row in failed if row[1] in mine], "all": failed, "none": []}
        assert [row[:3] for row in sink.batches[number]] == [row[:3] for row in again[planned]]
        committed = {
            tp.partition: position
            for tp, position in other.committed(sorted(everywhere)).items()
            if position is not None
        }
        left = {partition: position.offset for partition, position in committed.items() if partition not in mine}
        assert not any(left.values()), "what it left to the group was not read there, and is all there to be read"
