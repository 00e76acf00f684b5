"""Record batches: all codecs, damaged input, patching, and agreement with kio's reader."""

from __future__ import annotations

import random
import struct
import tracemalloc

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError
from kohort.wire.batch import (
    HEADER_SIZE,
    BatchRecord,
    build_batch,
    has_valid_crc,
    iter_headers,
    parse_header,
    patch_header,
)
from kohort.wire.codec import uvarint_bytes
from kohort.wire.compression import CODECS, TooLargeError, compress, decompress
from kohort.wire.records import read_records
from tests.support.long_runs import examples

_BLOB = st.none() | st.binary(max_size=60)
_RECORD = st.builds(
    BatchRecord,
    st.just(0),
    st.integers(0, 2**45),
    _BLOB,
    _BLOB,
    st.lists(st.tuples(st.text(max_size=5), _BLOB), max_size=3),
)


def _without_offset(record: BatchRecord) -> tuple[object, ...]:
    return tuple(record)[1:]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_RECORD, min_size=1, max_size=30), st.sampled_from(list(CODECS)), st.integers(0, 2**62))
def test_records_survive(records: list[BatchRecord], codec: str, base_offset: int) -> None:
    batch = build_batch(records, compression=codec, base_offset=base_offset)
    header = parse_header(batch)
    assert has_valid_crc(batch, header)
    assert header.size == len(batch)
    assert header.records_count == len(records) == header.last_offset_delta + 1
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.compression == CODECS[codec]
    read = read_records(batch)
    assert [_without_offset(record) for record in read] == [_without_offset(record) for record in records]
    assert [record.offset for record in read] == list(range(base_offset, base_offset + len(records)))


def test_header_whose_name_is_no_utf8_damages_no_batch() -> None:
    """Brokers and some producers take any bytes there; lag in time and a group's clone read such batches."""
    batch = bytearray(
        build_batch([BatchRecord(0, 1_000, b"k", b"v", [("name", b"x")]), BatchRecord(1, 2_000, b"l", None)])
    )
    at = batch.index(b"name")
    batch[at : at + 4] = b"n\xff\xfee"
    first, second = read_records(bytes(batch))
    assert (first.headers, second.key) == ([("n??e", b"x")], b"l")


@settings(max_examples=examples(80), deadline=None)
@given(st.sampled_from(list(CODECS)), st.data())
def test_damage_ends_in_corrupt_data(codec: str, data: st.DataObject) -> None:
    records = [BatchRecord(0, 1000 + i, b"key%d" % i, b"value" * i, [("h", b"x")]) for i in range(20)]
    batch = bytearray(build_batch(records, compression=codec))
    pick = random.Random(data.draw(st.integers()))
    for _ in range(pick.choice((1, 3, 10))):
        batch[pick.randrange(16, len(batch))] = pick.randrange(256)
    cut = pick.choice((len(batch), pick.randrange(len(batch))))
    try:
        header = parse_header(batch[:cut])
        intact = has_valid_crc(batch[:cut], header)
        read = read_records(batch[:cut], limit=1 << 20)
    except CorruptDataError:
        return
    if intact:
        assert [_without_offset(record) for record in read] == [_without_offset(record) for record in records]


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_batch_or_a_whole_one(data: bytes) -> None:
    try:
        for position, header in iter_headers(data):
            assert position + header.size <= len(data)
            read_records(memoryview(data)[position:], limit=1 << 16)
    except CorruptDataError:
        return


def test_headers_of_several_batches_without_copying() -> None:
    sizes = (1, 5, 2)
    one = [build_batch([BatchRecord(0, 5, None, b"v")] * n, base_offset=10 * n) for n in sizes]
    whole = b"".join(one)
    found = list(iter_headers(memoryview(whole)))
    assert [header.records_count for _, header in found] == list(sizes)
    assert [position for position, _ in found] == [0, len(one[0]), len(one[0]) + len(one[1])]
    assert all(has_valid_crc(whole, header, position) for position, header in found)
    with pytest.raises(CorruptDataError):
        list(iter_headers(whole[:-1]))


def test_patching_keeps_the_checksum() -> None:
    batch = bytearray(
        build_batch([BatchRecord(0, 5, b"k", b"v")] * 3, producer_id=9, producer_epoch=1, base_sequence=4)
    )
    before = parse_header(batch)
    patch_header(batch, 1234, 7)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (1234, 1236, 7)
    assert header.crc == before.crc
    assert has_valid_crc(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 1, 4, 6)


def test_log_append_time_renews_the_checksum_and_covers_every_record() -> None:
    batch = bytearray(build_batch([BatchRecord(0, 5 + i, b"k", b"v") for i in range(3)]))
    patch_header(memoryview(batch), 50, 0, max_timestamp=99_000)
    header = parse_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == 99_000
    assert has_valid_crc(batch, header)
    assert header.crc == crc32c.crc32c(bytes(batch[21:]))
    assert {record.timestamp for record in read_records(batch)} == {99_000}


def test_flags() -> None:
    header = parse_header(
        build_batch([BatchRecord(0, 0, b"k", b"v")], transactional=True, control=True, timestamp_type=1)
    )
    assert header.is_transactional
    assert header.is_control
    assert header.is_log_append_time
    assert not parse_header(build_batch([BatchRecord(0, 0, b"k", b"v")])).is_control


def test_offsets_of_a_compacted_batch_are_kept() -> None:
    records = [BatchRecord(offset, 0, b"k", b"v") for offset in (100, 103, 110)]
    batch = build_batch(records, keep_offsets=True)
    assert [record.offset for record in read_records(batch)] == [100, 103, 110]
    assert parse_header(batch).last_offset == 110
    with pytest.raises(InvalidInputError):
        build_batch(reversed(records), keep_offsets=True)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_are_refused_by_name(magic: int) -> None:
    message = struct.pack(">qiIbb", 0, 30, 0, magic, 0) + b"\0" * 24
    for read in (parse_header, read_records, lambda buf: list(iter_headers(buf))):
        with pytest.raises(CorruptDataError) as caught:
            read(message)
        assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_what_can_not_be_built() -> None:
    with pytest.raises(InvalidInputError):
        build_batch([])
    with pytest.raises(InvalidInputError, match="brotli"):
        build_batch([BatchRecord(0, 0, None, None)], compression="brotli")


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_bomb_is_stopped_at_the_limit(codec: str) -> None:
    bomb = compress(CODECS[codec], bytes(8 << 20))
    with pytest.raises(TooLargeError):
        decompress(CODECS[codec], bomb, 1 << 20)
    assert len(decompress(CODECS[codec], bomb, 8 << 20)) == 8 << 20
    with pytest.raises(CorruptDataError):
        decompress(CODECS[codec], b"no such thing at all", 1 << 20)


def test_snappy_is_framed_as_java_frames_it_and_read_without_a_frame() -> None:
    import cramjam

    data = random.Random(1).randbytes(100_000)
    framed = bytes(compress(CODECS["snappy"], data))
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert bytes(decompress(2, framed, 1 << 20)) == data
    assert bytes(decompress(2, bytes(cramjam.snappy.compress_raw(data)), 1 << 20)) == data


@pytest.mark.parametrize("stated", [200, 200 << 20, 2**32 - 1])
def test_snappy_that_states_more_than_it_can_hold_takes_no_memory(stated: int) -> None:
    block = uvarint_bytes(stated) + b"\0a"
    framed = bytes(compress(CODECS["snappy"], b"a"))[:16] + struct.pack(">i", len(block)) + block
    tracemalloc.start()
    try:
        for data in (block, framed):
            with pytest.raises(CorruptDataError, match="can't hold"):
                decompress(CODECS["snappy"], data, 2**31 - 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_snappy_of_many_empty_blocks_takes_no_memory_for_each() -> None:
    """Each has five bytes, and a response of a hostile broker may have 50 MiB of them."""
    framed = bytes(compress(CODECS["snappy"], b"a"))[:16] + 20_000 * (struct.pack(">i", 1) + b"\0")
    tracemalloc.start()
    try:
        assert len(decompress(CODECS["snappy"], framed, 1 << 20)) == 0
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_header_is_61_bytes() -> None:
    batch = build_batch([BatchRecord(0, 0, None, b"")])
    assert len(batch) == HEADER_SIZE + 7
    with pytest.raises(CorruptDataError):
        parse_header(batch[: HEADER_SIZE - 1])
