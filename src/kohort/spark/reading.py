"""What a Spark task does: read its slices as Arrow batches. Runs in Spark's Python workers, so imports stay few."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kohort.errors import NotFoundError, OffsetError
from kohort.spark.schema import BAD_REASON, BAD_VALUE, SPAN_COLUMNS, arrow_schema
from kohort.spark.tasks import ReadTask, Slice

if TYPE_CHECKING:
    from kohort.client.consumer.range_reader import RangeReader
    from kohort.spark.values.columns import Column
    from kohort.spark.values.decoding import Values

log = logging.getLogger("kohort.spark")
FETCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """How tasks read: plain values, which travel to the workers.

    Attributes:
        settings: of the client, as pairs.
        columns: to hand over, in order.
        values: the declared type of values; None: they stay bytes.
    """

    bootstrap_servers: str
    settings: tuple[tuple[str, Any], ...]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    values: Values | None = None

    @classmethod
    def of(
        cls,
        servers: str,
        settings: Mapping[str, Any],
        columns: Sequence[str],
        fail_on_data_loss: bool,
        values: Values | None = None,
    ) -> Reading:
        return cls(servers, tuple(sorted(settings.items())), tuple(columns), fail_on_data_loss, values)

    def _fetched(self) -> tuple[str, ...]:
        """The columns to decode; with typed values also the offsets, for errors."""
        made = (*SPAN_COLUMNS, BAD_VALUE, BAD_REASON)
        found = tuple(name for name in self.columns if name not in made)
        return (*found, "offset") if "offset" not in found and (self.values is not None or not found) else found

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The records of a task, with one connection per worker process that outlives the task."""
        wanted = self._fetched()
        reader = _reader(self, wanted)
        whole = False
        try:
            for one in task.slices:
                for batch in self._batches(reader, one):
                    yield _dressed(batch, self, one)
            whole = True
        except OffsetError as error:
            text = f"{error.message}; failOnDataLoss=false passes over what is gone"
            raise OffsetError(text, error.code, error.partition) from error
        finally:
            if not whole:  # its state is unknown: the next task connects again
                _readers.pop((os.getpid(), self, wanted), None)
                reader.close()

    def _batches(self, reader: RangeReader, one: Slice) -> Iterator[pa.RecordBatch]:
        """The records of a slice; none, with a warning, if its topic is gone and that is no error."""
        span, strict = one.span, self.fail_on_data_loss
        try:
            yield from reader.read(one.partition, span.start, span.end, fail_on_data_loss=strict, topic_id=one.topic_id)
        except NotFoundError as error:
            text = f"{error.message}: what was left of offsets {span.start} to {span.end} of {one.partition} is lost"
            if strict:
                raise OffsetError(text, error.code, one.partition) from error
            log.warning("%s", text)


_readers: dict[tuple[int, Reading, tuple[str, ...]], RangeReader] = {}
"""One reader per query in this process; the process id keeps a fork from using its parent's sockets."""


def _reader(reading: Reading, wanted: tuple[str, ...]) -> RangeReader:
    key = (os.getpid(), reading, wanted)
    found = _readers.get(key)
    if found is None:
        from kohort.client.consumer.range_reader import RangeReader

        found = RangeReader(
            reading.bootstrap_servers, columns=wanted, fetch_bytes=FETCH_BYTES, **dict(reading.settings)
        )
        _readers[key] = found
    return found


def _dressed(batch: pa.RecordBatch, reading: Reading, one: Slice) -> pa.RecordBatch:
    """The batch with the exact columns and types that Spark was told."""
    typed: dict[str, Column] = {}
    if reading.values is None:
        schema = arrow_schema(reading.columns)
        if batch.schema.equals(schema):
            return batch
    else:
        schema = arrow_schema(reading.columns, reading.values.kind)
        offsets = batch.column("offset")
        typed["value"], typed[BAD_VALUE], typed[BAD_REASON] = reading.values.typed(
            batch.column("value"), lambda row: f"{one.partition} at offset {offsets[row].as_py()}"
        )
    facts = {"generation": one.generation, "rangeStart": one.whole.start, "rangeEnd": one.whole.end}
    arrays = []
    for name, field in zip(reading.columns, schema, strict=True):
        if name in facts:
            arrays.append(pa.repeat(pa.scalar(facts[name], field.type), batch.num_rows))
        else:
            column = typed[name] if name in typed else batch.column(name)
            arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
