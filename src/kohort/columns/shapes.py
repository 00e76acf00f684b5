"""The input and the results of a decode, besides the columns themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kohort.errors import InvalidInputError

BytesLike: TypeAlias = bytes | bytearray | memoryview

COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
"""Every column, in the order and under the names of Spark's Kafka source."""

INT64_MAX = 2**63 - 1
DECODED_BYTES = 2**30
"""The default limit of decompressed bytes of one decode."""
BYTES_MAX = 2**31 - 1
"""Arrow's plain binary columns index their bytes with int32."""
BATCH_BYTES = 2**28
"""The default limit of decompressed bytes of one batch: a few kilobytes can stand for gigabytes."""
BATCH_BYTES_NAME = "max.decompressed.batch.bytes"
"""The client's setting of that limit."""
_ROW_COLUMNS_BYTES = 2**29
_ROW_BYTES = 40
"""Numbers and ends of one row in all columns."""


class AbortedTransaction(NamedTuple):
    """One entry of a fetch response's list of aborted transactions."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The record batches that a fetch returned for one partition.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        buffer: The bytes as fetched; may end within a batch.
        first_offset: The first offset to deliver; records below are left out.
        end_offset: Exclusive end; records at or above are left out. None: no end.
        aborted: Aborted transactions as (producer id, first offset), for `read_committed`.
    """

    topic: str
    partition: int
    buffer: BytesLike
    first_offset: int
    end_offset: int | None = None
    aborted: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The options of a decode: columns, isolation level and limits.

    Attributes:
        columns: Names out of `COLUMNS`, in the order of the result.
        read_committed: Leave out records of aborted transactions. The broker itself withholds records of open
            transactions if the fetch asked for read_committed.
        check_crcs: Check every batch's CRC-32C.
        timestamp_unit: Unit of the timestamp column, "us" (Spark's) or "ms" (Kafka's own).
        timestamp_zone: Zone of the timestamp column; None makes it a timestamp without zone.
        max_records: Stop after this number of rows. None: no limit.
        max_bytes: Stop before a batch with which the decompressed bytes would exceed this. The first batch to deliver
            is decoded whatever its size. At most `BYTES_MAX`, which Arrow's int32 offsets can reach.
        max_batch_bytes: Refuse a compressed batch that decompresses to more than this (`DamageKind.TOO_LARGE`).
    """

    columns: tuple[str, ...] = COLUMNS
    read_committed: bool = False
    check_crcs: bool = True
    timestamp_unit: str = "us"
    timestamp_zone: str | None = "UTC"
    max_records: int | None = None
    max_bytes: int = DECODED_BYTES
    max_batch_bytes: int = BATCH_BYTES

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown:
            raise InvalidInputError(f"unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        if len(set(self.columns)) != len(self.columns):
            raise InvalidInputError("a column is named twice")
        if self.timestamp_unit not in ("us", "ms"):
            raise InvalidInputError(f"timestamp_unit is 'us' or 'ms', not {self.timestamp_unit!r}")
        if not 0 < self.max_bytes <= BYTES_MAX:
            raise InvalidInputError(f"max_bytes lies between 1 and {BYTES_MAX}")
        if not 0 < self.max_batch_bytes <= BYTES_MAX:
            raise InvalidInputError(f"max_batch_bytes lies between 1 and {BYTES_MAX}")
        if self.max_records is not None and self.max_records < 1:
            raise InvalidInputError("max_records is at least 1, or None")


class DamageKind(IntEnum):
    """Why a batch could not be decoded."""

    CRC = 1
    """The checksum does not fit the bytes."""
    HEADER = 2
    """The batch header contradicts itself."""
    OLD_FORMAT = 3
    """A message set of format 0 or 1 (before Kafka 0.11)."""
    CODEC = 4
    """The compressed part does not decompress, or its codec is unknown."""
    RECORD = 5
    """A record runs past its batch, or the batch past its records, or offsets do not rise."""
    TOO_LARGE = 6
    """The batch decompresses to more than `DecodeOptions.max_batch_bytes`."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A batch that could not be decoded; the rows before it are delivered.

    Attributes:
        kind: The kind of damage.
        offset: Base offset of the batch if its header is credible that far, else the reader's position.
        skip_offset: The offset to seek to in order to skip the batch.
    """

    kind: DamageKind
    offset: int
    skip_offset: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """The result of decoding one record set of a fetch: its rows, and where to continue.

    Attributes:
        start: First row of this record set.
        stop: Row after its last one.
        next_offset: The offset to fetch from once these rows are consumed. It lies after the compacted, control and
            aborted records that the decode skipped.
        leader_epoch: Leader epoch of the last batch examined; -1: unknown.
        finished: False when a limit of `DecodeOptions` was reached in this record set or an earlier one: decode again
            from `next_offset`, or fetch again.
        incomplete: The buffer ends within a batch. Together with no rows and an unchanged offset: fetch again with a
            higher limit.
        damage: The batch that ended the decode of this record set early, if one did.
        one_epoch: Whether all examined batches have the leader epoch `leader_epoch`.
    """

    start: int
    stop: int
    next_offset: int
    leader_epoch: int = -1
    finished: bool = True
    incomplete: bool = False
    damage: Damage | None = None
    one_epoch: bool = True

    def __len__(self) -> int:
        return self.stop - self.start


class Extent(NamedTuple):
    """The number of records in a record set, and where it ends, from its batch headers alone.

    Attributes:
        next_offset: After the last complete batch; -1 when there is none.
        records: In complete batches, including control records and those before the first offset to deliver.
        leader_epoch: Of the last complete batch; -1 unknown.
    """

    next_offset: int
    records: int
    leader_epoch: int = -1


def row_limit(sets: Sequence[RecordSet], options: DecodeOptions) -> int:
    """Return the maximum number of rows of one decode: `max_records`, but no more than `_ROW_COLUMNS_BYTES` can hold.

    A compressed batch may contain tens of millions of empty records, each of which takes a topic's name and numbers.
    """
    longest = max((len(given.topic.encode()) for given in sets), default=1)
    reachable = _ROW_COLUMNS_BYTES // (longest + _ROW_BYTES)
    return reachable if options.max_records is None else min(reachable, options.max_records)


Header: TypeAlias = tuple[str, bytes | None]
HeadersLike: TypeAlias = Sequence[tuple[str, bytes | None]]
