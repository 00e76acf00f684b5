"""Ready-made deserializers."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from kohort.client.consumer import deserializers
from kohort.client.consumer.deserializers import ARROW_VALUES_MAX, arrow_rows, json, text
from kohort.client.consumer.fetch_buffer import RowSlice
from kohort.client.consumer.records import Records
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from tests.client.test_fetch_buffer import Block


def test_what_they_read() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch({"n": [1, 2]}))
    assert text("grün".encode()) == "grün"
    assert json(b'{"a": [1, null]}') == {"a": [1, None]}
    assert arrow_rows(sink.getvalue().to_pybytes()) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("function", [text, json, arrow_rows])
def test_what_they_refuse(function: object) -> None:
    with pytest.raises(CorruptDataError):
        function(b"\xff\xfe{")  # type: ignore[operator]


def test_json_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="no JSON"):
        json(b"[" * 100_000)


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def with_offset(last: int) -> bytes:
    """A stream of two texts of ten bytes, of which the second claims to end at `last`."""
    data = stream_of(pa.table({"a": ["x" * 10, "y" * 10]}))
    offsets = struct.pack("<iii", 0, 10, 20)
    assert data.count(offsets) == 1
    return data.replace(offsets, struct.pack("<iii", 0, 10, last))


def with_texts(data: bytes) -> pa.Table:
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(data)))
    return pa.table({"a": pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])})


def with_number_of_rows(rows: int) -> bytes:
    """A stream without columns that claims to have this number of rows."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": pa.nulls(1_234_567)}).select([])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data, number = sink.getvalue().to_pybytes(), struct.pack("<q", 1_234_567)
    assert data.count(number) == 1
    return data.replace(number, struct.pack("<q", rows))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: with_offset(2_000_000_000), id="an offset that ended the process"),
        pytest.param(lambda: with_offset(24), id="an offset that shows other memory"),
        pytest.param(lambda: stream_of(with_texts(b"\xff\xfe")), id="text that is not UTF-8"),
        pytest.param(lambda: stream_of(pa.table({"a": pa.array([2**62], pa.timestamp("s"))})), id="a distant time"),
        pytest.param(lambda: stream_of(pa.table({"a": pa.array([1], pa.timestamp("s", "no zone"))})), id="a zone"),
        pytest.param(lambda: stream_of(pa.table({"a": ["x"]}))[:-40], id="a stream that is cut off"),
        pytest.param(lambda: stream_of(pa.table({"a": pa.nulls(ARROW_VALUES_MAX + 1)})), id="nulls without bytes"),
        pytest.param(lambda: with_number_of_rows(1 << 40), id="rows without columns"),
    ],
)
def test_arrow_stream_of_a_stranger_is_refused(made: Callable[[], bytes]) -> None:
    with pytest.raises(CorruptDataError, match="Arrow stream"):
        arrow_rows(made())


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array(["x" * (1 << 20)]), id="compressed"),
        pytest.param(pa.DictionaryArray.from_arrays([0] * 1_000, ["x" * 2_000]), id="dictionary"),
        pytest.param(pa.array([[0] * 10_000]).cast(pa.list_(pa.int32())), id="list"),
        pytest.param(pa.RunEndEncodedArray.from_arrays([1_000], ["x" * 2_000]), id="runs"),
        pytest.param(pa.array(["x" * 2_000] * 1_000, pa.string_view()), id="views"),
        pytest.param(
            pa.ListArray.from_arrays([0, 1_000], pa.DictionaryArray.from_arrays([0] * 1_000, ["x" * 2_000])),
            id="dictionary within a list",
        ),
    ],
)
def test_arrow_stream_that_becomes_too_large_is_refused(column: pa.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stream_of(pa.table({"a": column}), "zstd")
    assert len(arrow_rows(data)) == len(column)
    monkeypatch.setattr(deserializers, "ARROW_BYTES_MAX", 5_000)
    assert len(data) < 5_000
    with pytest.raises(CorruptDataError, match="more than 5000"):
        arrow_rows(data)


def test_arrow_stream_of_every_kind_of_column_is_read() -> None:
    columns = {
        "dictionary": pa.array(["q", "r", None]).dictionary_encode(),
        "view": pa.array(["abc", "d" * 40, None], pa.string_view()),
        "struct": pa.array([{"x": 1}, None, {"x": 2}]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "list": pa.array([[1, 2], [3], None]),
        "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2)),
        "large": pa.array([["x"], None, []], pa.large_list(pa.large_string())),
        "union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["s"])]
        ),
        "null": pa.nulls(3),
    }
    table = pa.table(columns)
    for compression in (None, "lz4", "zstd"):
        assert arrow_rows(stream_of(table, compression)) == table.to_pylist()


def test_records_go_through_them_but_not_where_there_is_nothing() -> None:
    partition = TopicPartition("t", 0)
    block = Block([(partition, 0, 3)])
    made = block.records(0, 3)
    made[1].value = b"17"
    block.records = lambda start, stop: made[start:stop]  # type: ignore[method-assign]
    records = Records([RowSlice(partition, block, 0, 0, 3)], value_deserializer=json)
    assert [record.value for record in records] == [None, 17, None]
    assert len(records) == 3 and bool(records) and records.partitions() == [partition]


def test_key_that_can_not_be_deserialized_is_named() -> None:
    partition = TopicPartition("t", 3)
    block = Block([(partition, 40, 42)])
    made = block.records(0, 2)
    made[1].key = b"{"
    block.records = lambda start, stop: made[start:stop]  # type: ignore[method-assign]
    with pytest.raises(CorruptDataError) as raised:
        list(Records([RowSlice(partition, block, 0, 0, 2)], key_deserializer=json))
    assert "The key of the record at offset 41 of t-3 can't be deserialized" in raised.value.__notes__[0]


def test_records_have_places_as_a_list_has() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    block = Block([(first, 0, 3), (second, 7, 9)])
    records = Records([RowSlice(first, block, 0, 1, 3), RowSlice(second, block, 1, 3, 5)], value_deserializer=json)
    places = [(record.partition, record.offset) for record in records]
    assert places == [(0, 1), (0, 2), (1, 7), (1, 8)]
    for place in range(-4, 4):
        assert (records[place].partition, records[place].offset) == places[place]
    assert [record.offset for record in records[1:3]] == [2, 7]
    for place in (4, -5):
        with pytest.raises(IndexError, match=f"there is no record {place} among 4"):
            records[place]
