"""The data source that Spark knows as "kohort".

Spark builds it in several processes. Options are parsed in each of them. Nothing connects before the first call of a
reader's method in the process that drives the query. Each method imports only what it needs. So a process that only
asks for the columns, or only reads, starts a quarter of a second sooner.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

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
from kohort.spark.option_names import ignored_options_warning
from kohort.spark.options import SourceOptions, asks_for_table, parse_options
from kohort.spark.schema import arrow_schema, column_names_of, refuse_other_schema, spark_schema
from kohort.spark.source.bounds import check_bound_options
from kohort.spark.source.error_frames import show_reason_first
from kohort.spark.source.single_reader_lock import LoadCall

if TYPE_CHECKING:
    import pyarrow as pa

    from kohort.spark.driver_channel import ChannelAddress
    from kohort.spark.tasks.write import TaskWriter
    from kohort.spark.values.decoding import Values


# -- The error of an invalid query, raised where Spark passes it on
#
# Spark's runner replaces an error of `DataSource.streamReader` by an UnboundLocalError of its own. An error of a
# reader's method reaches the application unchanged.

# ruff: noqa: N802 (the methods' names are Spark's)


class InvalidQueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of an invalid query: whichever method Spark calls first raises the error."""

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
"""Most warnings that a process remembers; after that, warnings are repeated."""
_warned: set[tuple[int, str | None]] = set()

ANOTHER_SCHEMA = ", choose columns by the option columns, and cast what you need otherwise"
"""Advice for a user who gives a schema by hand."""


class KohortDataSource(DataSource):
    """`format("kohort")`: Kafka topics, read as a member of a consumer group, and written.

    Attributes:
        address: the driver program's address, set in a subclass that `register` passes to Spark as a pickle.
    """

    address: ClassVar[ChannelAddress | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keep the options; only the next call tells whether they are a read's or a write's."""
        super().__init__(options)
        self._raw = dict(options)
        self._load = LoadCall.from_options(self._raw)
        self._made_by = os.getpid()
        self._used = False

    @classmethod
    def with_channel_address(cls, address: ChannelAddress | None) -> type[KohortDataSource]:
        """Return a subclass whose sources connect to this driver program's address; pickled by value."""
        return type(cls.__name__, (cls,), {"address": address, "__module__": cls.__module__, "__doc__": cls.__doc__})

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle without the address after a reader or writer was made: Spark's workers have no use for it."""
        if self._used:
            return object.__new__, (KohortDataSource,), self.__dict__
        reduced: str | tuple[Any, ...] = super().__reduce_ex__(protocol)
        return reduced

    @classmethod
    def name(cls) -> str:
        return "kohort"

    @show_reason_first
    def schema(self) -> str:
        """Return the columns of a read.

        Raises:
            InvalidInputError: an option of the read is invalid; nothing is connected to check.
        """
        if asks_for_table(self._raw):
            from kohort.spark.tables import group_table_ddl, parse_table_options

            table = parse_table_options(self._raw)
            self._warn(table.ignored)
            return group_table_ddl(table)
        options = self._options()
        check_bound_options(options)
        self._warn(options.ignored)  # every load() calls this method once
        found = _schema_from_registry(options)
        if found is not None:  # kept in the read, which Spark pickles after this call: the subject may get a newer one
            self._raw["valueSchema"] = found
            options = self._options()
        return spark_schema(column_names_of(options), _type_of_values(options))

    @show_reason_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read or of a table.

        Raises:
            InvalidInputError: an option is invalid, or a schema given by hand differs.
        """
        self._used = True
        from kohort.spark.source.readers import KohortReader

        if asks_for_table(self._raw):
            from kohort.spark.tables import TABLES, TableReader, parse_table_options

            table = parse_table_options(self._raw)
            refuse_other_schema(schema, TABLES[table.table].arrow, "")
            return TableReader(table)
        options = self._options_of_a_read(streaming=False)
        columns = column_names_of(options)
        return KohortReader(options, columns, _values(options, schema, columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a query; the reader of an invalid query raises its error when Spark first calls it."""
        self._used = True
        try:
            return self._stream_reader(schema)
        except KafkaError as error:
            return InvalidQueryReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from kohort.spark.source.readers import KohortStreamReader

        if asks_for_table(self._raw):
            raise InvalidInputError("tables can't be streamed: use spark.read, which reads them anew each time")
        options = self._options_of_a_read(streaming=True)
        columns = column_names_of(options)
        values = _values(options, schema, columns)
        return KohortStreamReader(options, columns, self.address, values, load=self._load)

    @show_reason_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink of `df.write`.

        Raises:
            InvalidInputError: an option, a column or the save mode is invalid.
        """
        from kohort.spark.sink import TopicWriter

        self._used = True
        if overwrite:
            raise InvalidInputError("records are added to a topic, never replaced: write with mode('append')")
        return TopicWriter(self._writing(schema))

    @show_reason_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the sink of `df.writeStream`; the output mode "complete" sends the whole result each time.

        Raises:
            InvalidInputError: an option or a column is invalid.
        """
        from kohort.spark.sink import TopicStreamWriter

        self._used = True
        return TopicStreamWriter(self._writing(schema))

    def _writing(self, schema: StructType) -> TaskWriter:
        from kohort.spark.sink_options import parse_sink_options
        from kohort.spark.tasks.write import TaskWriter

        options = parse_sink_options(self._raw)
        writing = TaskWriter.from_options(options, schema)
        if (
            self._made_by == os.getpid()
        ):  # Spark makes two writers for each batch of a stream, one of them in this process
            self._warn(options.ignored)
        return writing

    def _options(self, *, streaming: bool | None = None) -> SourceOptions:
        return parse_options(self._raw, streaming=streaming)

    def _options_of_a_read(self, *, streaming: bool) -> SourceOptions:
        """Parse the options, and warn of those that this kind of read ignores: `schema` does not know the kind."""
        options, of_any = self._options(streaming=streaming), self._options().ignored
        self._warn(note for note in options.ignored if note not in of_any)
        return options

    def _warn(self, ignored_options: Iterable[str]) -> None:
        """Log options without effect once for each `load()`, write or query, though each batch has a new sink."""
        text = ignored_options_warning(ignored_options)
        warning = (hash(frozenset(self._raw.items())), text)
        if text is None or warning in _warned:
            return
        if len(_warned) >= WARNED_MAX:
            _warned.clear()
        _warned.add(warning)
        log.warning("options that have no effect here: %s", text)


def _schema_from_registry(options: SourceOptions) -> str | None:
    if options.schema_registry_url is None:
        return None
    from kohort.spark.values.declared import schema_from_registry

    return schema_from_registry(options)


def _type_of_values(options: SourceOptions) -> str:
    if not options.declares_typed_values():
        return "binary"
    from kohort.spark.values.declared import check_writer_schema_function, parse_declared_values

    declared = parse_declared_values(options)
    check_writer_schema_function(options)
    return declared.ddl


def _values(options: SourceOptions, schema: StructType, columns: tuple[str, ...]) -> Values | None:
    """Return the declared type of values, after checking the schema.

    Raises:
        InvalidInputError: a schema given by hand differs from the read's own.
    """
    if not options.declares_typed_values():
        refuse_other_schema(schema, arrow_schema(columns), ANOTHER_SCHEMA)
        return None
    from kohort.spark.values.declared import parse_declared_values

    values = parse_declared_values(options).values(schema, columns)
    refuse_other_schema(schema, arrow_schema(columns), ANOTHER_SCHEMA, ("value",))
    return values
