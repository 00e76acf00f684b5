"""A quick look over a record set's batch headers: where the next fetch begins, without decoding."""

from __future__ import annotations

import struct
from typing import NamedTuple

_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")
_OVERHEAD = 12
_SMALLEST = 61
_COUNT_AT = 57


class Extent(NamedTuple):
    """What the headers of a record set say.

    Attributes:
        next_offset: After the last whole batch; -1 when there is none.
        records: In whole batches, those before the wanted offset and control records too.
        leader_epoch: Of the last whole batch; -1 unknown.
    """

    next_offset: int
    records: int
    leader_epoch: int = -1


def extent(buffer: memoryview) -> Extent:
    """Walk the headers; stops at the first that makes no sense, which decoding will name."""
    at, end, next_offset, records, last = 0, len(buffer), -1, 0, -1
    while at + _SMALLEST <= end:
        base, length = _LENGTH.unpack_from(buffer, at)
        if length < _SMALLEST - _OVERHEAD or at + _OVERHEAD + length > end:
            break
        (delta,) = _INT32.unpack_from(buffer, at + 23)
        (count,) = _INT32.unpack_from(buffer, at + _COUNT_AT)
        if delta < 0 or count < 0:
            break
        next_offset = base + delta + 1
        records += count
        last = at
        at += _OVERHEAD + length
    return Extent(next_offset, records, _INT32.unpack_from(buffer, last + 12)[0] if last >= 0 else -1)
