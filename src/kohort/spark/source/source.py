"""The data source that Spark knows as "kohort".

Spark builds it in several processes: options are parsed wherever that happens, and nothing connects before the first
method of a reader is called in the process that drives the query. Each method imports what it alone needs: a process
that is only asked for the columns, or that only reads, starts a quarter of a second sooner.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kohort.errors import InvalidInputError, KafkaError
from kohort.spark.option_names import ignored_warning
from kohort.spark.options import SourceOptions, is_table, parse_options
from kohort.spark.schema import arrow_schema, columns_of, refuse_other, spark_schema
from kohort.spark.source.error_frames import reason_first
from kohort.spark.source.single_reader_lock import Load

if TYPE_CHECKING:
    from kohort.spark.driver_channel import Contact
    from kohort.spark.tasks.write import Writing
    from kohort.spark.values.decoding import Values


# -- A query that can't be: what it is refused with, said where Spark passes it on
#
# Spark's runner answers what `DataSource.streamReader` raises with an UnboundLocalError of its own; what a reader's
# method raises reaches the application as it is.

# ruff: noqa: N802 (the methods' names are Spark's)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what the query is refused with, whichever of its methods Spark calls first."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self.error.with_traceback(None) from None


# ruff: noqa: N802 (the methods' names are Spark's)


log = logging.getLogger("kohort.spark")

WARNED_MAX = 1_000
"""Warnings that a process remembers to have said; one that forgets says them again."""
_warned: set[tuple[int, str | None]] = set()

ANOTHER_SCHEMA = ", choose columns by the option columns, and cast what you need otherwise"
"""What to do in place of a schema by hand."""


class KohortDataSource(DataSource):
    """`format("kohort")`: Kafka topics, read as a member of a consumer group, and written.

    Attributes:
        contact: of the application, of a class that `register` hands over; Spark knows it only as the bytes of a
            pickle.
    """

    contact: ClassVar[Contact | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keep the options: only what is asked for next tells whether they are a read's or a write's."""
        super().__init__(options)
        self._raw = dict(options)
        self._load = Load.of(self._raw)
        self._made_by = os.getpid()
        self._used = False

    @classmethod
    def reaching(cls, contact: Contact | None) -> type[KohortDataSource]:
        """This class with a contact of its own: being no module's, it is pickled as a whole."""
        return type(cls.__name__, (cls,), {"contact": contact, "__module__": cls.__module__, "__doc__": cls.__doc__})

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """What has made a reader or a writer goes on to Spark's workers, which have no use for the contact."""
        if self._used:
            return object.__new__, (KohortDataSource,), self.__dict__
        reduced: str | tuple[Any, ...] = super().__reduce_ex__(protocol)
        return reduced

    @classmethod
    def name(cls) -> str:
        return "kohort"

    @reason_first
    def schema(self) -> str:
        """The columns of a read.

        Raises:
            InvalidInputError: an option of the read that can't be; nothing is connected to find out.
        """
        if is_table(self._raw):
            from kohort.spark.tables import parse_table_options, table_schema

            table = parse_table_options(self._raw)
            self._warn(table.ignored)
            return table_schema(table)
        options = self._options()
        self._warn(options.ignored)  # here, which every load() comes by once
        return spark_schema(columns_of(options), _type_of_values(options))

    @reason_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch read or of a table.

        Raises:
            InvalidInputError: options that can't be, or a schema by hand that is another.
        """
        self._used = True
        from kohort.spark.source.readers import KohortReader

        if is_table(self._raw):
            from kohort.spark.tables import TABLES, TableReader, parse_table_options

            table = parse_table_options(self._raw)
            refuse_other(schema, TABLES[table.table].arrow, "")
            return TableReader(table)
        options = self._options(streaming=False)
        columns = columns_of(options)
        return KohortReader(options, columns, _values(options, schema, columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a query; one that can't be says why when Spark first calls it."""
        self._used = True
        try:
            return self._stream_reader(schema)
        except KafkaError as error:
            return RefusedReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from kohort.spark.source.readers import KohortStreamReader

        if is_table(self._raw):
            raise InvalidInputError("tables can't be streamed: use spark.read, which reads them anew each time")
        options = self._options(streaming=True)
        columns = columns_of(options)
        values = _values(options, schema, columns)
        return KohortStreamReader(options, columns, self.contact, values, load=self._load)

    @reason_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of `df.write`.

        Raises:
            InvalidInputError: options, columns or the save mode can't be.
        """
        from kohort.spark.sink import TopicWriter

        self._used = True
        if overwrite:
            raise InvalidInputError("records are added to a topic, never replaced: write with mode('append')")
        return TopicWriter(self._writing(schema))

    @reason_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of `df.writeStream`; the output mode "complete" sends the whole result each time.

        Raises:
            InvalidInputError: options or columns can't be.
        """
        from kohort.spark.sink import TopicStreamWriter

        self._used = True
        return TopicStreamWriter(self._writing(schema))

    def _writing(self, schema: StructType) -> Writing:
        from kohort.spark.sink_options import parse_sink_options
        from kohort.spark.tasks.write import Writing

        options = parse_sink_options(self._raw)
        if self._made_by == os.getpid():  # Spark makes a stream's writer twice for each batch, once where it made this
            self._warn(options.ignored)
        return Writing.of(options, schema)

    def _options(self, *, streaming: bool | None = None) -> SourceOptions:
        return parse_options(self._raw, streaming=streaming)

    def _warn(self, ignored_options: Iterable[str]) -> None:
        """Say what has no effect, once for each `load()`, write or query, though Spark makes a sink for each batch."""
        text = ignored_warning(ignored_options)
        said = (hash(frozenset(self._raw.items())), text)
        if text is None or said in _warned:
            return
        if len(_warned) >= WARNED_MAX:
            _warned.clear()
        _warned.add(said)
        log.warning("%s", text)


def _type_of_values(options: SourceOptions) -> str:
    if not options.says_of_values():
        return "binary"
    from kohort.spark.values.declared import check_function, declare

    declared = declare(options)
    check_function(options)
    return declared.ddl


def _values(options: SourceOptions, schema: StructType, columns: tuple[str, ...]) -> Values | None:
    """The declared type of values; the schema is checked.

    Raises:
        InvalidInputError: a schema by hand that is another than the read's own.
    """
    if not options.says_of_values():
        refuse_other(schema, arrow_schema(columns), ANOTHER_SCHEMA)
        return None
    from kohort.spark.values.declared import declare

    values = declare(options).values(schema, columns)
    refuse_other(schema, arrow_schema(columns), ANOTHER_SCHEMA, ("value",))
    return values
