"""The memory that a decoded table of few records holds: thousands of them may wait in a queue."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest

from kohort.columns import COMPILED, RecordSet, decode
from kohort.wire.batch import BatchRecord, build_batch

_TABLES = 500
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Allocations(ctypes.Structure):
    """The result of `mallinfo2` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def bytes_in_use() -> int:
    """Return the bytes that the C library has given out."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("the C library does not tell what is in use")
    library.mallinfo2.restype = _Allocations
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd)


@pytest.mark.skipif(not COMPILED, reason="the kernel is not built")
def test_a_table_of_one_record_holds_little_memory() -> None:
    raw = build_batch([BatchRecord(0, 1, b"key", b"value")])

    def table() -> pa.Table:
        return pa.Table.from_batches([decode([RecordSet("orders", 0, raw, 0)]).to_arrow()])

    held = [table()]
    before = bytes_in_use()
    held += [table() for _ in range(_TABLES)]
    assert (bytes_in_use() - before) / _TABLES < 16_384, "with 14 allocations of 4 KiB it was 57,700"
    assert len(held) == _TABLES + 1
