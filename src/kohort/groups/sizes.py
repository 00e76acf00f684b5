"""Size limits of records: a request whose record cannot be written is refused before it takes effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from kohort.groups.config import GroupConfig
from kohort.groups.events import OffsetToCommit
from kohort.groups.records import OffsetCommitted, Record

NAME_BYTES_MAX: Final = 32_767
"""Kafka's records encode a name's length in 16 bits."""
_ALWAYS_FITS: Final = NAME_BYTES_MAX // 4
"""This many characters fit in any encoding."""
_RECORD_BYTES: Final = 64
"""The most that a position's record takes beside its names and its metadata."""
_POSITION_BYTES_MAX: Final = _RECORD_BYTES + 3 * NAME_BYTES_MAX
"""The most that any position takes: most commits need no exact count."""


def names_fit_record(*names: str | None) -> bool:
    """Return whether a record can hold each of these names."""
    return all(name is None or len(name) <= _ALWAYS_FITS or len(name.encode()) <= NAME_BYTES_MAX for name in names)


def always_fitting_chars(limit: int) -> int:
    """Return the length up to which metadata is accepted without counting its encoded bytes, in characters."""
    return min(limit, _ALWAYS_FITS)


def metadata_fits(metadata: str, limit: int) -> bool:
    """Return whether a commit's metadata is within the limit (characters, as Kafka counts) and fits its record."""
    return len(metadata) <= limit and names_fit_record(metadata)


def commit_fits(config: GroupConfig, group_id: str, offsets: Sequence[OffsetToCommit]) -> bool:
    """Return whether the records of a commit can be written in one append."""
    limit = config.commit_bytes_max
    if len(offsets) * _POSITION_BYTES_MAX <= limit:
        return True
    base = names_bytes((group_id,)) + _RECORD_BYTES
    return len(offsets) * base + sum(names_bytes((offset.topic, offset.metadata)) for offset in offsets) <= limit


def names_bytes(names: Iterable[str]) -> int:
    """Return how many bytes these names take in UTF-8."""
    return sum(len(name) if name.isascii() else len(name.encode()) for name in names)


_NUMBER: Final = 16
"""The most that a number, an id, or a length takes."""
_COMMITTED: Final = _RECORD_BYTES + _NUMBER * len(OffsetCommitted._fields)


def record_bytes(record: Record) -> int:
    """Estimate a record's size in a journal in bytes: never too low as far as its texts and bytes go."""
    if type(record) is OffsetCommitted:  # the common case, which must be fast for commits of many partitions
        texts = record.group_id + record.topic + record.metadata
        return _COMMITTED + (len(texts) if texts.isascii() else len(texts.encode()))
    return _RECORD_BYTES + _weight(record if isinstance(record, tuple) else astuple(record))


def _weight(values: Iterable[object]) -> int:
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, bytes):
            total += len(value)
        elif isinstance(value, tuple):
            total += _weight(value)
        elif isinstance(value, Struct):
            total += _weight(astuple(value))
        total += _NUMBER
    return total
