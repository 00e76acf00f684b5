"""Fetched records that were not returned yet, and the fair choice of the next ones. Pure.

Each partition has a queue of chunks, one per fetch. The rotation holds the partitions that have chunks. A call to
`take_records` begins with the partition where the last call ended. A partition goes to the end of the rotation when
its chunk is used up. Between two chunks of one partition every other partition therefore has its turn, however fast
the one is refilled. Source: spec 2.1–2.3, 2.5, 2.7.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kohort.client.consumer.subscription import FetchPosition, Partitions, PartitionState
from kohort.columns import Record
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class RowRangeLike(Protocol):
    """An interface: the attributes of `kohort.columns.RowRange` that the buffer reads."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def one_epoch(self) -> bool: ...


class DecodedRows(Protocol):
    """An interface: the methods of `kohort.columns.Decoded` that the buffer calls."""

    @property
    def ranges(self) -> Sequence[RowRangeLike]: ...

    @property
    def nbytes(self) -> int: ...

    def records(self, start: int, stop: int) -> Sequence[Record]: ...

    def iter_records(self, start: int, stop: int) -> Iterator[Record]: ...

    def to_arrow(self, start: int, stop: int) -> pa.RecordBatch: ...

    def next_offset_at(self, index: int, row: int) -> int: ...

    def damage_of(self, index: int) -> CorruptDataError | None: ...


@dataclass(slots=True)
class FetchedChunk:
    """Decoded rows of one partition.

    `row` is the next row to return; `position_version` is the partition's at the time of the fetch.
    """

    block: DecodedRows
    index: int
    row: int
    stop: int
    position_version: int


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows of one partition for a poll to return: from `start` to before `stop` in a decoded block."""

    partition: TopicPartition
    block: DecodedRows
    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def position_before_row(block: DecodedRows, index: int, row: int) -> FetchPosition:
    """Return the position of a consumer that has read a decoded record set up to before row `row`.

    Its leader epoch is -1 in the middle of rows that have different leader epochs.
    """
    rows = block.ranges[index]
    epoch = rows.leader_epoch if rows.one_epoch or row >= rows.stop else -1
    return FetchPosition(block.next_offset_at(index, row), epoch)


class FetchBuffer:
    """The fetched records of all partitions, and their fair rotation.

    Attributes:
        records: Number of records kept, those of paused partitions included.
        nbytes: Memory of the decoded blocks; a block counts in full until its last row is returned.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._queues: dict[TopicPartition, deque[FetchedChunk]] = {}
        self._rotation: deque[TopicPartition] = deque()
        self._counts: Counter[TopicPartition] = Counter()
        self._voided_seen = -1
        self.records = self.nbytes = 0
        self._chunks_of: Counter[DecodedRows] = Counter()

    def add(self, partition: TopicPartition, block: DecodedRows, index: int, position_version: int) -> None:
        """Buffer the rows of one record set of a decoded block."""
        rows = block.ranges[index]
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
            self._rotation.append(partition)
        queue.append(FetchedChunk(block, index, rows.start, rows.stop, position_version))
        if block not in self._chunks_of:
            self.nbytes += block.nbytes
        self._chunks_of[block] += 1
        self._count(partition, rows.stop - rows.start)
        state = self._partitions.get(partition)
        if state is None or state.position_version != position_version:
            self._voided_seen = -1

    def take_records(self, limit: int | None, *, proportional: bool = False) -> list[RowSlice]:
        """Remove records from the buffer and return them; the partitions' positions move past them.

        Args:
            limit: The number of records at most; None: all of the oldest decoded block.
            proportional: Give each partition a share by its number of buffered records, instead of serving partitions
                in turn.
        """
        self.drop_invalid_records()
        if limit is None:
            return self._take_block()
        if proportional:
            return self._take_shares(limit)
        return list(self._take_greedy(limit))

    def buffered_records(self, partition: TopicPartition) -> int:
        """Return the number of records kept of one partition."""
        return self._counts[partition]

    def unpaused_records(self) -> int:
        """Return the number of records kept of partitions that are not paused."""
        self.drop_invalid_records()
        return self.records - sum(self._counts[partition] for partition in self._partitions.paused)

    def has_ready_records(self) -> bool:
        """Return whether `take_records` would return records or move a position."""
        return any(self._ready(partition) is not None for partition in self._rotation)

    def drop_invalid_records(self) -> None:
        """Drop the buffered records of partitions that were revoked, or whose position was changed since the fetch."""
        if self._voided_seen == self._partitions.voided:
            return
        self._voided_seen = self._partitions.voided
        for partition in list(self._rotation):
            state = self._partitions.get(partition)
            queue = self._queues[partition]
            while queue and (state is None or queue[0].position_version != state.position_version):
                self._drop_chunk(partition)
            if not queue:
                self._remove_queue(partition)

    def clear(self) -> None:
        for partition in list(self._rotation):
            while self._queues[partition]:
                self._drop_chunk(partition)
            self._remove_queue(partition)

    # Internals.

    def _ready(self, partition: TopicPartition) -> PartitionState | None:
        state = self._partitions.get(partition)
        return state if state is not None and not state.paused and self._queues[partition] else None

    def _take_greedy(self, limit: int) -> Iterator[RowSlice]:
        left, waiting = limit, 0
        while left > 0 and self._rotation and waiting < len(self._rotation):
            partition = self._rotation[0]
            state = self._ready(partition)
            if state is None:
                self._rotation.rotate(-1)
                waiting += 1
                continue
            waiting = 0
            part = self._cut(partition, state, left)
            if len(part):
                left -= len(part)
                yield part

    def _take_shares(self, limit: int) -> list[RowSlice]:
        taken: list[RowSlice] = []
        left = limit
        while left > 0:
            ready = [partition for partition in self._rotation if self._ready(partition) is not None]
            if not ready:
                break
            share = max(1, left // len(ready))
            for partition in ready:
                part = self._take_upto(partition, min(share, left))
                left -= sum(map(len, part))
                taken += part
        return taken

    def _take_upto(self, partition: TopicPartition, count: int) -> list[RowSlice]:
        """Remove rows of one partition from its chunks, and move the partition to the end of the rotation."""
        taken = []
        while count > 0 and partition in self._queues and (state := self._ready(partition)) is not None:
            part = self._cut(partition, state, count)
            if len(part):
                count -= len(part)
                taken.append(part)
        if partition in self._queues:
            self._rotation.remove(partition)
            self._rotation.append(partition)
        return taken

    def _take_block(self) -> list[RowSlice]:
        block: DecodedRows | None = None
        taken = []
        for partition in list(self._rotation):
            while partition in self._queues and (state := self._ready(partition)) is not None:
                head = self._queues[partition][0]
                if block is not None and head.block is not block:
                    break
                part = self._cut(partition, state, head.stop - head.row)
                if len(part):
                    block = head.block
                    taken.append(part)
        return taken

    def _cut(self, partition: TopicPartition, state: PartitionState, count: int) -> RowSlice:
        """Take up to `count` rows from a partition's first chunk, and move the position past them.

        If the chunk is used up, drop it and move the partition to the end of the rotation.
        """
        queue = self._queues[partition]
        chunk = queue[0]
        start, stop = chunk.row, min(chunk.stop, chunk.row + count)
        chunk.row = stop
        self._count(partition, start - stop)
        state.position = position_before_row(chunk.block, chunk.index, stop)
        if stop == chunk.stop:
            self._drop_chunk(partition)
            self._used_up(partition, chunk)
        return RowSlice(partition, chunk.block, chunk.index, start, stop)

    def _used_up(self, partition: TopicPartition, chunk: FetchedChunk) -> None:
        error = chunk.block.damage_of(chunk.index)
        if error is not None:
            self._partitions.mark_unreadable(partition, error, void=True)
            self.drop_invalid_records()
            return
        self._rotation.remove(partition)
        if self._queues[partition]:
            self._rotation.append(partition)
        else:
            del self._queues[partition]

    def _drop_chunk(self, partition: TopicPartition) -> None:
        """Drop the first chunk of a partition with its remaining rows, and its block with the block's last chunk."""
        chunk = self._queues[partition].popleft()
        self._count(partition, chunk.row - chunk.stop)
        self._chunks_of[chunk.block] -= 1
        if not self._chunks_of[chunk.block]:
            del self._chunks_of[chunk.block]
            self.nbytes -= chunk.block.nbytes

    def _remove_queue(self, partition: TopicPartition) -> None:
        del self._queues[partition]
        self._rotation.remove(partition)

    def _count(self, partition: TopicPartition, change: int) -> None:
        self.records += change
        self._counts[partition] += change
