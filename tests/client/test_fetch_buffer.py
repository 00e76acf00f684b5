"""Fairness and positions of what is returned, for any sequence of fetches, polls, seeks, pauses and revocations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kohort.client.consumer.fetch_buffer import FetchBuffer, RowSlice
from kohort.client.consumer.subscription import FetchPosition, Partitions
from kohort.columns import Record, RowRange
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition

TOPIC = "t"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(4)]


@dataclass(eq=False)
class Block:
    """A decode of whole runs of offsets, as kohort.columns gives it."""

    runs: list[tuple[TopicPartition, int, int]]
    gap: int = 0
    damaged: bool = False
    mixed: bool = False

    @property
    def ranges(self) -> list[RowRange]:
        rows, at = [], 0
        for _, start, stop in self.runs:
            rows.append(RowRange(at, at + stop - start, stop + self.gap, leader_epoch=7, one_epoch=not self.mixed))
            at += stop - start
        return rows

    @property
    def nbytes(self) -> int:
        return 10 * sum(stop - start for _, start, stop in self.runs)

    def next_offset_at(self, index: int, row: int) -> int:
        rows = self.ranges[index]
        return rows.next_offset if row >= rows.stop else self.runs[index][1] + row - rows.start

    def damage_of(self, index: int) -> CorruptDataError | None:
        return CorruptDataError("damaged") if self.damaged else None

    def records(self, start: int, stop: int) -> list[Record]:
        every = [
            Record(part.topic, part.partition, offset, 0)
            for part, first, end in self.runs
            for offset in range(first, end)
        ]
        return every[start:stop]

    def iter_records(self, start: int, stop: int) -> Iterator[Record]:
        return iter(self.records(start, stop))

    def to_arrow(self, start: int, stop: int) -> None:
        raise NotImplementedError


def fill(buffer: FetchBuffer, partitions: Partitions, *runs: tuple[TopicPartition, int, int], **facts: object) -> Block:
    block = Block(list(runs), **facts)  # type: ignore[arg-type]
    for index, (partition, _, _) in enumerate(runs):
        buffer.add(partition, block, index, partitions.state_of(partition).position_version)
    return block


def start(count: int = 4) -> tuple[Partitions, FetchBuffer]:
    partitions = Partitions()
    partitions.set_assigned(PARTITIONS[:count])
    for partition in PARTITIONS[:count]:
        partitions.set_position(partition, FetchPosition(0))
    return partitions, FetchBuffer(partitions)


def sizes(slices: list[RowSlice]) -> list[tuple[int, int]]:
    return [(part.partition.partition, len(part)) for part in slices]


def test_greedy_takes_one_partition_after_the_other_and_continues_where_it_left_off() -> None:
    partitions, buffer = start(3)
    fill(buffer, partitions, (PARTITIONS[0], 0, 700), (PARTITIONS[1], 0, 200), (PARTITIONS[2], 0, 200))
    assert sizes(buffer.take_records(300)) == [(0, 300)]
    assert sizes(buffer.take_records(300)) == [(0, 300)]
    assert sizes(buffer.take_records(300)) == [(0, 100), (1, 200)]
    assert sizes(buffer.take_records(300)) == [(2, 200)]
    assert buffer.take_records(300) == []


def test_a_partition_that_is_refilled_while_it_is_drained_lets_the_others_pass() -> None:
    partitions, buffer = start(2)
    fill(buffer, partitions, (PARTITIONS[0], 0, 500), (PARTITIONS[1], 0, 100))
    assert sizes(buffer.take_records(300)) == [(0, 300)]
    fill(buffer, partitions, (PARTITIONS[0], 500, 1000))
    assert sizes(buffer.take_records(300)) == [(0, 200), (1, 100)]
    assert sizes(buffer.take_records(300)) == [(0, 300)]


def test_proportional_shares_are_equal_while_all_have_records() -> None:
    partitions, buffer = start(3)
    fill(buffer, partitions, (PARTITIONS[0], 0, 700), (PARTITIONS[1], 0, 200), (PARTITIONS[2], 0, 50))
    taken = defaultdict(int)
    for part in buffer.take_records(300, proportional=True):
        taken[part.partition.partition] += len(part)
    assert dict(taken) == {0: 125, 1: 125, 2: 50}


def test_without_a_limit_one_decode_is_returned_whole_and_not_mixed_with_the_next() -> None:
    partitions, buffer = start(2)
    first = fill(buffer, partitions, (PARTITIONS[0], 0, 10), (PARTITIONS[1], 0, 5))
    fill(buffer, partitions, (PARTITIONS[0], 10, 30))
    assert [part.block for part in buffer.take_records(None)] == [first, first]
    assert sizes(buffer.take_records(None)) == [(0, 20)]


def test_offsets_without_records_are_passed_over() -> None:
    partitions, buffer = start(1)
    fill(buffer, partitions, (PARTITIONS[0], 0, 0), gap=8)
    assert buffer.take_records(100) == []
    assert partitions.state_of(PARTITIONS[0]).position == FetchPosition(8, 7)


def test_a_position_where_the_leader_epoch_changes_on_the_way_claims_none() -> None:
    partitions, buffer = start(1)
    fill(buffer, partitions, (PARTITIONS[0], 0, 10), mixed=True)
    buffer.take_records(4)
    assert partitions.state_of(PARTITIONS[0]).position == FetchPosition(4, -1)
    buffer.take_records(6)
    assert partitions.state_of(PARTITIONS[0]).position == FetchPosition(10, 7)


def test_damage_is_reported_after_the_rows_before_it_and_keeps_the_position() -> None:
    partitions, buffer = start(1)
    fill(buffer, partitions, (PARTITIONS[0], 0, 5), damaged=True)
    fill(buffer, partitions, (PARTITIONS[0], 5, 9))
    assert sizes(buffer.take_records(100)) == [(0, 5)]
    state = partitions.state_of(PARTITIONS[0])
    assert isinstance(state.broken, CorruptDataError)
    assert state.position == FetchPosition(5, 7) == state.fetch_position
    assert buffer.take_records(100) == [] and buffer.records == 0


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    limit=st.integers(1, 30),
    proportional=st.booleans(),
)
def test_no_partition_waits_longer_than_the_others_need(counts: list[int], limit: int, proportional: bool) -> None:
    partitions, buffer = start(len(counts))
    fill(buffer, partitions, *((PARTITIONS[i], 0, count) for i, count in enumerate(counts)))
    waited = dict.fromkeys(range(len(counts)), 0)
    for _ in range(sum(counts) + 1):
        taken = buffer.take_records(limit, proportional=proportional)
        assert sum(map(len, taken)) == min(limit, sum(map(len, taken)) + buffer.records)
        for number in waited:
            present = any(part.partition.partition == number for part in taken)
            waited[number] = 0 if present or buffer.buffered_records(PARTITIONS[number]) == 0 else waited[number] + 1
            assert waited[number] <= -(-sum(counts) // limit)
    assert buffer.records == 0


class Polling(RuleBasedStateMachine):
    """The log of each partition is 0, 1, 2 …; the application must see exactly its part of it, in order."""

    @initialize(proportional=st.booleans())
    def begin(self, proportional: bool) -> None:
        self.proportional = proportional
        self.partitions, self.buffer = start()
        self.expected = dict.fromkeys(PARTITIONS, 0)
        self.assigned = set(PARTITIONS)

    @rule(
        wanted=st.lists(
            st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 20)), max_size=4, unique_by=lambda run: run[0]
        )
    )
    def fetch(self, wanted: list[tuple[TopicPartition, int]]) -> None:
        runs = []
        for partition, count in wanted:
            state = self.partitions.get(partition)
            if state is None or state.fetch_position is None:
                continue
            at = state.fetch_position.offset
            runs.append((partition, at, at + count))
            state.fetch_position = FetchPosition(at + count, 7)
        fill(self.buffer, self.partitions, *runs)

    @rule(limit=st.one_of(st.none(), st.integers(1, 25)))
    def poll(self, limit: int | None) -> None:
        taken = self.buffer.take_records(limit, proportional=self.proportional)
        assert limit is None or sum(map(len, taken)) <= limit
        for part in taken:
            state = self.partitions.state_of(part.partition)
            assert not state.paused
            for record in part.block.records(part.start, part.stop):
                assert record.offset == self.expected[part.partition]
                self.expected[part.partition] += 1

    @precondition(lambda self: self.assigned)
    @rule(data=st.data(), offset=st.integers(0, 100))
    def seek(self, data: st.DataObject, offset: int) -> None:
        partition = data.draw(st.sampled_from(sorted(self.assigned)))
        self.partitions.set_position(partition, FetchPosition(offset))
        self.expected[partition] = offset

    @precondition(lambda self: self.assigned)
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.assigned)))
        if self.partitions.state_of(partition).paused:
            self.partitions.resume(partition)
        else:
            self.partitions.pause(partition)

    @rule(kept=st.sets(st.sampled_from(PARTITIONS)))
    def rebalance(self, kept: set[TopicPartition]) -> None:
        added, _ = self.partitions.set_assigned(kept)
        for partition in added:
            self.partitions.set_position(partition, FetchPosition(1000))
            self.expected[partition] = 1000
        self.assigned = kept

    @invariant()
    def positions_follow_what_was_returned(self) -> None:
        if hasattr(self, "partitions"):
            for partition, state in self.partitions.items():
                assert state.position is not None
                assert state.position.offset == self.expected[partition]

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "buffer"):
            going = [partition for partition, state in self.partitions.items() if not state.paused]
            assert self.buffer.unpaused_records() == sum(map(self.buffer.buffered_records, going))
            assert self.partitions.paused == set(self.partitions) - set(going)
            assert self.buffer.records == sum(self.buffer.buffered_records(partition) for partition in self.partitions)
            assert self.buffer.records >= 0
            held = {chunk.block for queue in self.buffer._queues.values() for chunk in queue}
            assert self.buffer.nbytes == sum(block.nbytes for block in held)


TestPolling = Polling.TestCase
TestPolling.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_was_fetched_before_a_partition_went_and_came_back_is_void() -> None:
    partitions, buffer = start(1)
    fill(buffer, partitions, (PARTITIONS[0], 0, 5))
    partitions.set_assigned([])
    partitions.set_assigned([PARTITIONS[0]])
    partitions.set_position(PARTITIONS[0], FetchPosition(100))
    assert buffer.take_records(10) == []
    assert buffer.buffered_records(PARTITIONS[0]) == buffer.records == 0


def test_a_partition_that_is_not_assigned_is_refused() -> None:
    partitions, _ = start(1)
    with pytest.raises(Exception, match="t-3 is not assigned"):
        partitions.state_of(PARTITIONS[3])
