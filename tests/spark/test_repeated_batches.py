"""A batch that was planned and not finished is read again whole, and a checkpoint counts for its own topics alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Place, Run, own_signals
from tests.spark.test_who_wins import commit, filled, halfway, place, servers, stamped, unfinished
from tests.support.waiting import STILL_S, until

from kohort.client.consumer.range_reader import RangeReader, When
from kohort.client.offsets import OffsetAndMetadata, OffsetAndTimestamp

__all__ = ["filled", "halfway", "own_signals", "place", "servers"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals")]


def ranges_of(tasks: list[Any]) -> list[tuple[int, int, int, int | None]]:
    return sorted(
        (part.partition.partition, part.span.start, part.span.end, part.generation)
        for task in tasks
        for part in task.slices
    )


@pytest.mark.parametrize("planned", ["all", "owned"])
def test_both_sides_of_a_union_with_itself_read_the_same_of_a_repeated_batch(
    filled: Place, halfway: Checkpoint, planned: str
) -> None:
    unfinished(filled.options(maxOffsetsPerTrigger=6), halfway)
    if planned == "all":
        commit(filled, 3, 10)
    with Run(filled.options(plannedRanges=planned), halfway) as run:
        start, end = (json.loads(halfway.end_of(number)) for number in (halfway.finished - 1, halfway.finished))
        first, second = (ranges_of(run.reader.partitions(start, end)) for _ in range(2))
        assert first == second


def test_batch_that_was_abandoned_is_read_when_the_same_assignment_comes_again(
    filled: Place, halfway: Checkpoint
) -> None:
    with Run(filled.options(maxOffsetsPerTrigger=6), halfway) as run:
        start = json.loads(halfway.end_of(halfway.finished - 1))
        ends: list[Any] = []

        def has_planned() -> bool:
            end = run.reader.latestOffset(start, run.reader.getDefaultReadLimit())
            ends.append(end)
            return bool(end != start)

        until(has_planned, "a batch is planned", STILL_S)
        group = run.reader._query._coordinator._group
        with group._lock:
            group._busy = group._unread = False  # what a lost connection does to a batch that no task has read
        assert ranges_of(run.reader.partitions(start, ends[-1]))


@pytest.mark.parametrize("in_group", [True, False], ids=["in a group", "without a group"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_leader_that_has_not_caught_up_cuts_nothing_off_a_repeated_batch(
    filled: Place, monkeypatch: pytest.MonkeyPatch, strict: bool, in_group: bool
) -> None:
    more = {"failOnDataLoss": str(strict).lower()} | ({} if in_group else {"group.id": None})
    log = Checkpoint()
    unfinished(filled.options(**more), log)
    outdated, real = iter(range(2)), RangeReader.current_offsets

    def from_an_outdated_leader(self: RangeReader, wanted: Mapping[Any, When]) -> dict[Any, OffsetAndTimestamp]:
        found = real(self, wanted)
        if set(wanted.values()) == {"latest"} and next(outdated, None) is not None:
            found = {partition: replace(at, offset=3) for partition, at in found.items()}
        return found

    monkeypatch.setattr(RangeReader, "current_offsets", from_an_outdated_leader)
    with Run(filled.options(**more), log) as run:
        planned = run.plan()
        assert planned is not None
        assert run.finish(planned) == list(range(20))


def test_positions_of_a_topic_that_was_made_again_are_not_those_of_a_changed_group(
    filled: Place, halfway: Checkpoint
) -> None:
    filled.delete()
    filled.make()
    stamped(filled, range(60))
    other = f"{filled.group}-b"
    filled.admin.alter_consumer_group_offsets(other, {tp: OffsetAndMetadata(20) for tp in filled.partitions()}).all()
    with Run(filled.options(**{"group.id": other, "failOnDataLoss": "false"}), halfway) as run:
        assert run.read(20) == list(range(40, 60))


@pytest.mark.parametrize("is_ahead", [True, False], ids=["the new group is ahead", "the new group has no offset"])
def test_topic_that_a_query_reads_no_more_counts_for_nothing_in_its_new_group(
    filled: Place, halfway: Checkpoint, is_ahead: bool
) -> None:
    filled.make("b")
    filled.produce([7], "b")
    other = f"{filled.group}-b"
    if is_ahead:
        ahead = {tp: OffsetAndMetadata(15) for tp in filled.partitions()}
        filled.admin.alter_consumer_group_offsets(other, ahead).all()
    with Run(filled.options(**{"group.id": other, "subscribe": filled.topic("b")}), halfway) as run:
        assert run.read(1) == [7]
    found = filled.admin.list_consumer_group_offsets(other, filled.partitions()).all()
    assert [at.offset for at in found.values() if at is not None] == ([15] * len(found) if is_ahead else [])


def test_records_that_survive_a_cut_inside_a_repeated_batch_are_read(
    filled: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of partition 0 is cut inside the batch; the sink has the repeated batch, and the application dies."""
    more = {"failOnDataLoss": "false"}
    log = Checkpoint()
    unfinished(filled.options(**more), log)
    real = RangeReader.current_offsets

    def cut(self: RangeReader, wanted: Mapping[Any, When]) -> dict[Any, OffsetAndTimestamp]:
        return {
            tp: replace(at, offset=min(at.offset, 6)) if tp.partition == 0 and wanted[tp] == "latest" else at
            for tp, at in real(self, wanted).items()
        }

    monkeypatch.setattr(RangeReader, "current_offsets", cut)
    monkeypatch.setattr("kohort.spark.source.catalog.CONFIRM_MS", 100)
    values: list[int] = []
    with Run(filled.options(**more), log) as run:
        planned = run.plan()
        assert planned is not None
        values += run.finish(planned)
        run.reader._query._coordinator.finish_batch(run.reader._query._running)
    with Run(filled.options(**more), log) as run:
        for _ in range(5):
            planned = run.plan()
            if planned is not None:
                values += run.finish(planned)
    assert sorted(values) == sorted([*range(1, 20, 2), *range(0, 12, 2)])
