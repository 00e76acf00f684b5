"""The work of a Spark task that writes: sending its rows from Arrow. Runs in Spark's workers, so imports stay few."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from kohort.client.producer.batches import TableDelivery
from kohort.client.producer.producer import Producer
from kohort.columns.encode import ColumnNames
from kohort.errors import InvalidInputError
from kohort.spark.option_names import refuse_ignored_options
from kohort.spark.sink_options import KafkaSinkOptions

if TYPE_CHECKING:
    from kohort.spark.tasks.encoding import ValueEncoding

UNSETTLED_BATCHES_MAX = 1_000
"""Most sent batches whose outcome a task has not checked. The producer's memory bounds the batches in flight; this
bounds the acknowledged ones.
"""
PRODUCERS_MAX = 4
"""Most producers that a worker process keeps for its next tasks; few of its queries differ in their settings."""

_TEXT = (StringType, BinaryType, CharType, VarcharType)
_KINDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_TEXT, "string or binary"),
    "value": (_TEXT, "string or binary; make other values text first, as with to_json"),
    "topic": ((StringType, CharType, VarcharType), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType, LongType), "timestamp, or bigint in milliseconds"),
}
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """The settings of writing tasks, as plain values that are pickled to the workers.

    Attributes:
        bootstrap_servers: the brokers.
        settings: the producer's settings, as pairs.
        topic: the topic of all records; None: each record has a column for it.
        columns: the columns to send; other columns of the rows are ignored.
        encoding: makes bytes of the column `value`; None: it is text or binary already.
    """

    bootstrap_servers: str
    settings: tuple[tuple[str, Any], ...] = field(repr=False)
    topic: str | None
    columns: frozenset[str]
    encoding: ValueEncoding | None = None

    @classmethod
    def from_options(cls, options: KafkaSinkOptions, schema: StructType) -> TaskWriter:
        """Make the settings from the sink's options and the schema of its rows.

        A column `timestamp` of another type than a time is not sent, and is added to `options.ignored`. Spark's own
        sink has no such column.

        Raises:
            InvalidInputError: there is no value, or no topic, or a column has a type that can't be sent.
            RetriableError: the schema registry can't be reached.
        """
        found = {column.name: column.dataType for column in schema.fields if column.name in (*_KINDS, "headers")}
        times, words = _KINDS["timestamp"]
        if "timestamp" in found and not isinstance(found["timestamp"], times):
            kind = found.pop("timestamp").simpleString()
            options.ignored.append(
                f"the column timestamp of type {kind} (a record's time is a {words}; it has the time of the write)"
            )
            refuse_ignored_options(options.ignored, options.strict_options)
        if options.topic is not None:
            found.pop("topic", None)
        for name, kind in found.items():
            if name != "value" or options.value_format is None:
                _check_type(name, kind)
        names = schema.fieldNames()
        there = ", ".join(names)
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise InvalidInputError(
                f"several columns are named {' and '.join(twice)}, and Spark hands no such rows to a Python sink: "
                f"select one of each; there are {there}"
            )
        if "value" not in found:
            raise InvalidInputError(f"a sink needs a column `value`; there are {there}: df.selectExpr('... AS value')")
        if options.topic is None and "topic" not in found:
            raise InvalidInputError(f"a sink needs the option topic, or a column `topic`; there are {there}")
        settings = tuple(sorted(options.producer_settings().items()))
        encoding = None
        if options.value_format is not None:
            from kohort.spark.tasks.encoding import ValueEncoding

            encoding = ValueEncoding.register_schema(options, found["value"])
        return cls(options.bootstrap_servers, settings, options.topic, frozenset(found), encoding)

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Send the rows, and wait until every one is acknowledged; return their number.

        The producer is kept for the worker's next task, unless something failed.

        Raises:
            KafkaError: a record was not delivered; others may have been.
            InvalidInputError: a row has no topic.
        """
        producer = _producer(self)
        complete = False
        try:
            rows = self._send_rows(producer, batches)
            complete = True
            return rows
        finally:
            if not complete:  # the producer's state is unknown: the next task makes another
                _producers.pop(_key(self), None)
                producer.close(timeout_ms=0)

    def _send_rows(self, producer: Producer, batches: Iterator[pa.RecordBatch]) -> int:
        rows = 0
        unsettled: deque[TableDelivery] = deque()
        for batch in batches:
            rows += batch.num_rows
            if self.encoding is not None:
                batch = self.encoding.encode_values(batch)
            for topic, part in self._by_topic(batch):
                for piece, names in self._rows_by_partition(part):
                    unsettled.append(_sent(producer, topic, piece, names))
            while unsettled and (unsettled[0].done() or len(unsettled) > UNSETTLED_BATCHES_MAX):
                unsettled.popleft().result()
        producer.flush()
        for delivery in unsettled:
            delivery.result()
        return rows

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each topic, in their order."""
        if not batch.num_rows:
            return
        if self.topic is not None:
            yield self.topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise InvalidInputError("a row has no topic: its column `topic` is null, and the option topic is not set")
        topics = pc.unique(column)
        for topic in topics:
            yield str(topic), batch if len(topics) == 1 else batch.filter(pc.equal(column, topic))

    def _rows_by_partition(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, ColumnNames]]:
        """Yield the rows in their order, in slices of which all rows name a partition, or none does."""
        has = self.columns
        if "timestamp" in has and batch.column("timestamp").null_count:
            batch = _with_times(batch)
        timestamp, headers = ("timestamp" if "timestamp" in has else None), ("headers" if "headers" in has else None)
        key = "key" if "key" in has else None
        placed = ColumnNames(key, "value", "partition", timestamp, headers)
        free = ColumnNames(key, "value", None, timestamp, headers)
        nulls = batch.column("partition").null_count if "partition" in has else batch.num_rows
        if nulls in (0, batch.num_rows):
            yield batch, placed if nulls == 0 and "partition" in has else free
            return
        missing = pc.is_null(batch.column("partition")).to_pylist()
        start = 0
        for at in range(1, len(missing) + 1):
            if at == len(missing) or missing[at] != missing[start]:
                yield batch.slice(start, at - start), free if missing[start] else placed
                start = at


def _sent(producer: Producer, topic: str, piece: pa.RecordBatch, names: ColumnNames) -> TableDelivery:
    """Send the rows of one topic by the producer.

    Raises:
        InvalidInputError: a row can't be sent; the text names the topic, and the partitions that the rows name.
    """
    try:
        return producer.send_arrow(topic, piece, columns=names)
    except InvalidInputError as error:
        rows = ""
        if names.partition is not None and piece.column(names.partition).null_count < piece.num_rows:
            numbers = piece.column(names.partition)
            rows = f", of rows whose column `partition` says {pc.min(numbers)} to {pc.max(numbers)}"
        raise InvalidInputError(f"topic {topic}{rows}: {error.message}", error.code) from None


def _check_type(name: str, kind: DataType) -> None:
    if name == "headers":
        fields = (
            kind.elementType.fields if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType) else []
        )
        if [field.name for field in fields] != ["key", "value"] or not (
            isinstance(fields[0].dataType, StringType) and isinstance(fields[1].dataType, BinaryType)
        ):
            raise InvalidInputError(f"the column `headers` is of type {kind.simpleString()}; headers are {_HEADERS}")
        return
    kinds, words = _KINDS[name]
    if not isinstance(kind, kinds):
        raise InvalidInputError(f"the column `{name}` is of type {kind.simpleString()}; it must be {words}")


def _with_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the current time where a row has no timestamp."""
    at = batch.schema.get_field_index("timestamp")
    column = batch.column(at)
    now_ms = time.time_ns() // 1_000_000
    if pa.types.is_timestamp(column.type):
        now = pa.scalar(now_ms, pa.timestamp("ms", column.type.tz)).cast(column.type)
    else:
        now = pa.scalar(now_ms, column.type)
    return batch.set_column(at, batch.schema.field(at), column.fill_null(now))


_Key = tuple[int, str, tuple[tuple[str, Any], ...]]
_producers: dict[_Key, Producer] = {}
"""The producers of this process; the process id keeps a fork from using its parent's sockets."""


def _key(writing: TaskWriter) -> _Key:
    return (os.getpid(), writing.bootstrap_servers, writing.settings)


def _producer(writing: TaskWriter) -> Producer:
    key = _key(writing)
    found = _producers.pop(key, None)
    if found is None:
        while len(_producers) >= PRODUCERS_MAX:
            _producers.pop(next(iter(_producers))).close()
        found = Producer(writing.bootstrap_servers, **dict(writing.settings))
    _producers[key] = found  # most recently used last
    return found
