"""Ready-made deserializers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kohort.client.consumer.deserializers import arrow_rows, json, text
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
