"""Iteration over a consumer: records one by one, with positions that follow each. Pure.

Source: spec 2.5, 2.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kohort.client.consumer.fetch_buffer import Slice, position_at
from kohort.client.consumer.records import apply_deserializers
from kohort.client.consumer.subscription import Partitions, Position
from kohort.client.offsets import OffsetAndMetadata
from kohort.client.settings import ConsumerConfig
from kohort.columns import Record
from kohort.ids import TopicPartition


class RecordIterator:
    """The records of one poll that a loop over the consumer has not reached yet.

    Attributes:
        open: The partitions of the poll, with the version of their position.
        giving: Whether a loop has a current record.
        halted: Whether other members may own the partitions by now: the iteration ends; its rest is fetched again.
    """

    def __init__(self, partitions: Partitions, config: ConsumerConfig) -> None:
        self.open: dict[TopicPartition, int] = {}
        self.giving = False
        self._record: Record | None = None
        self._record_of: TopicPartition | None = None
        self._returned: dict[TopicPartition, Position] = {}
        self.halted = False
        self._partitions = partitions
        self._config = config

    def give(self, slices: Sequence[Slice]) -> Iterator[Record]:
        """Yield records one by one; the position follows each.

        A partition ends early when the application seeks or pauses it meanwhile, and all end when it polls. The records
        that were not yielded are fetched again.
        """
        self.open, self._returned, self._record = {}, {}, None
        for part in slices:
            state = self._partitions.get(part.partition)
            if state is not None and state.position is not None and part.partition not in self.open:
                self.open[part.partition] = state.position_version
                state.position = _position_in(part, part.start)
        try:
            for part in slices:
                yield from self._yield_records(part)
        finally:
            self.giving = False
        self.open = {}

    def returned(self, slices: Sequence[Slice]) -> None:
        """Record the slices that a poll returns; none: a new poll begins, and the records before count as processed."""
        self._record, self._returned = None, {}
        for part in slices:
            if part.partition not in self._returned:
                self._returned[part.partition] = _position_in(part, part.start)

    def step_back(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set positions back to the loop's current record, or to the start of the last poll.

        Positions that the application itself has committed beyond that stay.
        """
        unfinished = self._returned
        if self._record is not None and self._record_of is not None:
            unfinished = {self._record_of: Position(self._record.offset)}
        for partition, position in unfinished.items():
            state, known = self._partitions.get(partition), committed.get(partition)
            if state is None or state.position is None or state.position.offset <= position.offset:
                continue
            if known is None or known.offset < position.offset:
                state.position = position

    def _yield_records(self, part: Slice) -> Iterator[Record]:
        partition = part.partition
        position_version = self.open.get(partition)
        if position_version is None:
            return
        rows = part.block.ranges[part.index]
        epoch = rows.leader_epoch if rows.one_epoch else -1
        self._record_of = partition
        for record in part.block.records(part.start, part.stop):
            state = self._partitions.get(partition)
            if state is None or state.position_version != position_version:
                self.open.pop(partition, None)
                return
            if state.paused or self.halted:
                self._take_back(partition, position_version)
                return
            self._record, self.giving = (
                record,
                True,
            )  # before anything that may raise: the application has not got it yet
            state.position = Position(record.offset + 1, epoch)
            apply_deserializers(record, self._config.key_deserializer, self._config.value_deserializer)
            yield record
            self._record = None
        self.giving = False
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version:
            state.position = _position_in(part, part.stop)

    def _take_back(self, partition: TopicPartition, position_version: int) -> None:
        """Fetch the records of a partition again that were not yielded."""
        self.open.pop(partition, None)
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version and state.position is not None:
            self._partitions.place(partition, state.position)

    def take_back(self) -> None:
        """End the iteration; the records that were not yielded are fetched again."""
        for partition, position_version in list(self.open.items()):
            self._take_back(partition, position_version)


def _position_in(part: Slice, row: int) -> Position:
    return position_at(part.block, part.index, row)
