"""Records one by one, with positions that follow each: what iteration over a consumer is made of. Pure.

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


class HandingOut:
    """What one poll took and the application has not seen all of.

    Attributes:
        open: Partitions being handed out, with the version of their position.
        giving: Whether a loop has a record in hand.
        halted: They may be others' by now: what is being handed out ends, and comes again if they are not.
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
        """Records one by one; the position follows each as it is given out.

        Ends a partition early when the application seeks or pauses it meanwhile, and everything when it polls: what it
        has not seen then comes again.
        """
        self.open, self._returned, self._record = {}, {}, None
        for part in slices:
            state = self._partitions.get(part.partition)
            if state is not None and state.position is not None and part.partition not in self.open:
                self.open[part.partition] = state.position_version
                state.position = _position_in(part, part.start)
        try:
            for part in slices:
                yield from self._each(part)
        finally:
            self.giving = False
        self.open = {}

    def returned(self, slices: Sequence[Slice]) -> None:
        """A poll returns these; nothing: the next one begins, and what was returned before is finished."""
        self._record, self._returned = None, {}
        for part in slices:
            if part.partition not in self._returned:
                self._returned[part.partition] = _position_in(part, part.start)

    def step_back(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set positions back to the record that a loop has in hand, or to what the last poll returned.

        Not where the application has committed more by itself.
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

    def _each(self, part: Slice) -> Iterator[Record]:
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
            self._record, self.giving = record, True  # before anything that may raise: nobody has seen it yet
            state.position = Position(record.offset + 1, epoch)
            apply_deserializers(record, self._config.key_deserializer, self._config.value_deserializer)
            yield record
            self._record = None
        self.giving = False
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version:
            state.position = _position_in(part, part.stop)

    def _take_back(self, partition: TopicPartition, position_version: int) -> None:
        """What was taken out of a partition and not handed out is fetched again."""
        self.open.pop(partition, None)
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version and state.position is not None:
            self._partitions.place(partition, state.position)

    def take_back(self) -> None:
        """End what is being handed out; what nobody has seen comes again."""
        for partition, position_version in list(self.open.items()):
            self._take_back(partition, position_version)


def _position_in(part: Slice, row: int) -> Position:
    return position_at(part.block, part.index, row)
