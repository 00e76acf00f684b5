"""The encoders: compiled and plain make the same batches, and what they make decodes to what went in."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.columns import COMPILED, DecodeOptions, RecordSet, decode, reference_encode
from kohort.columns.encode import ColumnNames, encode_arrow, murmur2, partition_for_key, restamp
from kohort.errors import InvalidInputError
from kohort.wire.batch import has_valid_crc, parse_header
from kohort.wire.compression import CODECS
from tests.support.long_runs import examples

if COMPILED:
    from kohort.columns import _encode

    CHUNKS = [_encode.Chunk, reference_encode.Chunk]
else:
    CHUNKS = [reference_encode.Chunk]

contents = st.none() | st.binary(max_size=300)
names = st.text(max_size=8)
header_lists = st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=3)
records = st.tuples(st.integers(0, 2**41), contents, contents, header_lists)


@given(st.lists(records, min_size=1, max_size=30), st.integers(100, 2000), st.sampled_from(sorted(CODECS)))
@settings(max_examples=examples(150), deadline=None)
def test_records_one_by_one(
    rows: list[tuple[int, bytes | None, bytes | None, list[Any]]], limit: int, codec: str
) -> None:
    sealed = []
    for make in CHUNKS:
        chunk = make(limit)
        taken = []
        for row in rows:
            if not chunk.append(*row):
                break
            taken.append(row)
        assert chunk.size <= limit or chunk.count == 1
        sealed.append((taken, bytes(chunk.seal(CODECS[codec], None, 5, 2, 77, True))))
    assert all(entry == sealed[0] for entry in sealed)
    taken, batch = sealed[0]
    header = parse_header(batch)
    assert has_valid_crc(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (
        5,
        2,
        77,
        True,
    )
    assert header.max_timestamp == max(row[0] for row in taken)
    got = decode([RecordSet("t", 0, batch, 0)], DecodeOptions(timestamp_unit="ms"))
    assert [(record.timestamp, record.key, record.value, list(record.headers)) for record in got.records()] == taken


@given(st.lists(records, max_size=40), st.integers(100, 1500), st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_columns(rows: list[Any], limit: int, count: int, placed: bool, data: st.DataObject) -> None:
    sticky = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
    partitions = [data.draw(st.integers(0, count - 1)) for _ in rows]
    batch = pa.record_batch(
        {
            "key": pa.array([row[1] for row in rows], pa.large_binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
            "at": pa.array([row[0] for row in rows], pa.timestamp("ms")),
            "p": pa.array(partitions, pa.int16()),
            "h": pa.array(
                [[{"key": name, "value": content} for name, content in row[3]] for row in rows],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    start = data.draw(st.integers(0, len(rows)))
    batch = batch.slice(start)
    names = ColumnNames("key", "value", "p" if placed else None, "at", "h")
    lists = {
        "key": [row[1] for row in rows[start:]],
        "value": [row[2] for row in rows[start:]],
        "timestamp": [row[0] for row in rows[start:]],
        "headers": [row[3] for row in rows[start:]],
        **({"partition": partitions[start:]} if placed else {}),
    }
    made = encode_arrow(batch, names, count, itertools.cycle(sticky).__next__, 9, limit)
    expected = reference_encode.encode_rows(lists, count, itertools.cycle(sticky).__next__, 9, limit)
    assert [(p, bytes(c.seal(0, None, -1, -1, -1, False))) for p, c in made] == [
        (p, bytes(c.seal(0, None, -1, -1, -1, False))) for p, c in expected
    ]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(3), pa.dictionary(pa.int8(), pa.string()), pa.null()]
)
def test_other_layouts(kind: pa.DataType) -> None:
    cells = [None, None] if kind == pa.null() else ["abc", None] if "string" in str(kind) else [b"abc", None]
    batch = pa.record_batch({"value": pa.array(cells, kind)})
    ((partition, chunk),) = encode_arrow(batch, ColumnNames(key=None), 1, lambda: 0, 1, 1000)
    got = decode([RecordSet("t", partition, chunk.seal(0, None, -1, -1, -1, False), 0)]).records()
    assert [record.value for record in got] == [None if cell is None else b"abc" for cell in cells]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (ColumnNames(key="nope"), "no column 'nope'"),
        (ColumnNames(key=None, value="p"), "is of type int64"),
        (ColumnNames(key=None, partition="p"), "row 1: no such partition"),
        (ColumnNames(key=None, partition="holes"), "has nulls"),
        (ColumnNames(key=None, headers="p"), "headers are list"),
    ],
)
def test_what_cannot_be_sent(names: ColumnNames, text: str) -> None:
    batch = pa.record_batch({"value": ["a", "b"], "p": [0, 7], "holes": pa.array([0, None], pa.int32())})
    with pytest.raises(InvalidInputError, match=text):
        encode_arrow(batch, names, 3, lambda: 0, 1, 1000)


def test_keys_land_where_kafka_puts_them() -> None:
    """Values that Kafka's own producer computes."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, signed in known.items():
        assert murmur2(key) == reference_encode.murmur2(key) == signed % 2**32
    assert partition_for_key(memoryview(b"foobar"), 6) == (-790332482 & 0x7FFFFFFF) % 6


def test_restamp() -> None:
    chunk = CHUNKS[0](1000)
    chunk.append(1, None, b"x", ())
    batch = chunk.seal(0, None, 1, 0, 5, False)
    restamp(batch, 8, 3, 0)
    header = parse_header(batch)
    assert has_valid_crc(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, 0)


HEADER_LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            pa.array([[], None, [{"key": "a", "value": None}, {"key": None, "value": b"x"}]], HEADER_LIST),
            "row 2.*no key",
        ),
        (pa.array([None, [None], []], HEADER_LIST), "row 1.*no key"),
        (pa.array([0, 5, -1], pa.int64()), "row 2.*-1 is before 1970"),
        (pa.array([0, -1, 7], pa.timestamp("us", "UTC")), "row 1.*before 1970"),
        (pa.array([-1, 0, 7], pa.timestamp("s")), "row 0.*before 1970"),
    ],
    ids=["a header without a key", "no header at all", "milliseconds", "microseconds", "seconds"],
)
@pytest.mark.parametrize("sliced", [False, True])
def test_columns_hold_what_send_takes(column: pa.Array, words: str, sliced: bool) -> None:
    """One check for `Producer.send_arrow` and the sink; rows outside of a slice do not count."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b", "c"]), "c": column})
    is_time = not pa.types.is_list(column.type)
    names = ColumnNames(None, "value", None, "c" if is_time else None, None if is_time else "c")
    if sliced:
        (bad,) = (at for at in range(3) if f"row {at}" in words)
        for part in (batch.slice(0, bad), batch.slice(bad + 1)):
            encode_arrow(part, names, 1, lambda: 0, 1, 1000)
        return
    with pytest.raises(InvalidInputError, match=words):
        encode_arrow(batch, names, 1, lambda: 0, 1, 1000)
