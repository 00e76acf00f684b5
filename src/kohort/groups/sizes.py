"""What fits into the records of a group: a request whose record can't be written is refused before it counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Final

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.events import JoinGroup, OffsetToCommit
from kohort.groups.records import OffsetCommitted, Record

NAME_BYTES_MAX: Final = 32_767
"""Kafka's records tell a name's length in 16 bits."""
_ALWAYS_FITS: Final = NAME_BYTES_MAX // 4
"""So many characters fit, whatever they are."""
_RECORD_BYTES: Final = 64
"""What the record of a position takes beside its names and its metadata at most."""
_POSITION_BYTES_MAX: Final = _RECORD_BYTES + 3 * NAME_BYTES_MAX
"""No position takes more, whatever it says: most commits need no closer look."""


def fits(*names: str | None) -> bool:
    """Whether a record can hold each of these names."""
    return all(name is None or len(name) <= _ALWAYS_FITS or len(name.encode()) <= NAME_BYTES_MAX for name in names)


def check_join(config: GroupConfig, event: JoinGroup) -> ErrorCode:
    """What a JoinGroup itself may get wrong, whatever the group: names no record holds, a session out of bounds."""
    if not event.group_id or not fits(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not fits(event.new_member_id, event.instance_id, event.protocol_type, *(each.name for each in event.protocols)):
        return ErrorCode.INVALID_REQUEST
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def metadata_bound(limit: int) -> int:
    """How many characters of metadata need no closer look."""
    return min(limit, _ALWAYS_FITS)


def metadata_fits(metadata: str, limit: int) -> bool:
    """Whether a position's metadata is within the limit (characters, as Kafka counts), and fits into its record."""
    return len(metadata) <= limit and fits(metadata)


def commit_fits(config: GroupConfig, group_id: str, offsets: Sequence[OffsetToCommit]) -> bool:
    """Whether the records of a commit can be written in one append."""
    limit = config.commit_bytes_max
    if len(offsets) * _POSITION_BYTES_MAX <= limit:
        return True
    each = _bytes_of((group_id,)) + _RECORD_BYTES
    return len(offsets) * each + sum(_bytes_of((one.topic, one.metadata)) for one in offsets) <= limit


def _bytes_of(names: Iterable[str]) -> int:
    return sum(len(name) if name.isascii() else len(name.encode()) for name in names)


_NUMBER: Final = 16
"""What a number, an id, or a length takes at most."""
_COMMITTED: Final = _RECORD_BYTES + _NUMBER * len(OffsetCommitted._fields)


def record_bytes(record: Record) -> int:
    """About how many bytes a record takes in a journal: not fewer than it does, as far as its texts and bytes go."""
    if type(record) is OffsetCommitted:  # most are: a commit of many partitions must not be held up by this
        texts = record.group_id + record.topic + record.metadata
        return _COMMITTED + (len(texts) if texts.isascii() else len(texts.encode()))
    values = record if isinstance(record, tuple) else [getattr(record, field.name) for field in fields(record)]
    return _RECORD_BYTES + _weight(values)


def _weight(values: Iterable[object]) -> int:
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, bytes):
            total += len(value)
        elif isinstance(value, tuple):
            total += _weight(value)
        elif is_dataclass(value) and not isinstance(value, type):
            total += _weight(getattr(value, field.name) for field in fields(value))
        total += _NUMBER
    return total
