"""The compiled decoder against the plain one: the same rows and the same findings, on honest and on damaged input."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.columns import COMPILED, Decoded, DecodeOptions, RecordSet, reference
from kohort.columns.encode import Chunk
from kohort.columns.record import Record
from kohort.wire.batch import BatchRecord, build_batch
from tests.columns.strategies import options, record_sets

if not COMPILED:
    pytest.skip("the kernel is not built", allow_module_level=True)

from kohort.columns import _kernel
from tests.support.long_runs import examples

EXAMPLES = int(os.environ.get("KOHORT_EXAMPLES", examples(120)))
"""Of each property; the sanitizer run asks for more."""


def decoded(decode_block, sets: list[RecordSet], chosen: DecodeOptions) -> Decoded:  # type: ignore[no-untyped-def]
    ranges, block = decode_block(sets, chosen)
    return Decoded(sets, chosen, ranges, block)


def plain(record: object) -> tuple[object, ...]:
    return tuple(getattr(record, name) for name in Record.__slots__)


def assert_same(sets: list[RecordSet], chosen: DecodeOptions) -> None:
    fast = decoded(_kernel.decode_block, sets, chosen)
    slow = decoded(reference.decode_block, sets, chosen)
    assert fast.ranges == slow.ranges
    assert fast.nbytes == slow.nbytes
    assert [_kernel.extent(records.buffer) for records in sets] == [
        reference.extent(records.buffer) for records in sets
    ]
    batch = fast.to_arrow()
    batch.validate(full=True)
    assert batch.equals(slow.to_arrow())
    rows = [plain(record) for record in slow.records()]
    for part in (fast, slow):
        assert [plain(record) for record in part.records()] == rows
        for start, stop in ((0, None), (len(rows) // 3, len(rows) - len(rows) // 3), (1, 0)):
            assert [plain(record) for record in part.iter_records(start, stop)] == rows[start:stop]
    for index, part in enumerate(slow.ranges):
        for row in (part.start, (part.start + part.stop) // 2, part.stop):
            assert fast.next_offset_at(index, row) == slow.next_offset_at(index, row)


@given(st.lists(record_sets(), max_size=4), options)
@settings(max_examples=EXAMPLES, deadline=None)
def test_same_rows(sets: list[RecordSet], chosen: DecodeOptions) -> None:
    assert_same(sets, chosen)


@given(st.lists(record_sets(), min_size=1, max_size=2), options, st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_same_findings_in_damaged_bytes(sets: list[RecordSet], chosen: DecodeOptions, data: st.DataObject) -> None:
    assert_same([damage(records, data) for records in sets], chosen)


def damage(given_set: RecordSet, data: st.DataObject) -> RecordSet:
    """The set with some bytes changed, and the checksum of its first batch made right again or not."""
    raw = bytearray(given_set.buffer)
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.sampled_from((raw[at] ^ 1, raw[at] ^ 0x80, 0, 0xFF, 0x7F)))
    if len(raw) > 61 and data.draw(st.booleans()):
        (length,) = struct.unpack_from(">i", raw, 8)
        struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21 : 12 + max(0, length)])))
    return RecordSet(
        given_set.topic,
        given_set.partition,
        bytes(raw),
        given_set.first_offset,
        given_set.end_offset,
        given_set.aborted,
    )


@given(st.binary(max_size=300), options)
@settings(max_examples=EXAMPLES, deadline=None)
def test_same_findings_in_garbage(raw: bytes, chosen: DecodeOptions) -> None:
    assert_same([RecordSet("t", 0, raw, 0)], chosen)


@given(st.lists(record_sets(), max_size=3), st.integers(1, 20), st.integers(1, 800))
@settings(max_examples=EXAMPLES, deadline=None)
def test_limits_lose_nothing(sets: list[RecordSet], max_records: int, max_bytes: int) -> None:
    """Decoding part by part gives what decoding at once gives."""
    whole = decoded(_kernel.decode_block, sets, DecodeOptions(read_committed=True))
    chosen = DecodeOptions(read_committed=True, max_records=max_records, max_bytes=max_bytes)
    rows = []
    left = sets
    while left:
        part = decoded(_kernel.decode_block, left, chosen)
        assert len(part) <= max_records
        rows += [plain(record) for record in part.records()]
        left = part.remaining()
    assert rows == [plain(record) for record in whole.records()]


def test_loop_over_records_holds_one_at_a_time() -> None:
    chunk = Chunk(8 << 20)
    while chunk.append(1, b"key", b"v" * 4096, ()):
        pass
    found = decoded(
        _kernel.decode_block, [RecordSet("t", 0, chunk.seal(0, None, -1, -1, -1, False), 0)], DecodeOptions()
    )
    assert len(found) > 2_000
    tracemalloc.start()
    for record in found.iter_records():
        assert len(record.value) == 4096
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_rows_that_are_not_there_are_refused() -> None:
    _, block = _kernel.decode_block([], DecodeOptions())
    for start, stop in ((0, 1), (-1, 0), (1, 0)):
        with pytest.raises(IndexError):
            block.iter_records(start, stop)


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what is freed for a while")
def test_nothing_is_left_behind() -> None:
    """Of every column, whether it has bytes or not."""
    batch = build_batch([BatchRecord(at, 0, None, b"x" * 1000) for at in range(1000)], base_offset=0)
    sets = [RecordSet("t", 0, batch, 0)]
    for _ in range(20):
        decoded(_kernel.decode_block, sets, DecodeOptions()).to_arrow()
    before = _address_space_mb()
    for _ in range(300):
        decoded(_kernel.decode_block, sets, DecodeOptions()).to_arrow()
    assert _address_space_mb() - before < 100


def _address_space_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096 / 1e6


@given(st.binary(max_size=9000))
@settings(max_examples=EXAMPLES, deadline=None)
def test_checksum(raw: bytes) -> None:
    raw *= 3
    assert _kernel.crc32c(raw) == crc32c(raw) == _kernel.crc32c(raw, software=True)
