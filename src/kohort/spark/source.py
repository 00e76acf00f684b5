"""The data source that Spark knows as "kohort", and its two readers; `sink.py` has the writers.

Spark builds these objects in several processes: options are parsed wherever that happens, and nothing connects before
the first method is called in the process that drives the query.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, MutableMapping
from typing import Any, ClassVar, SupportsIndex

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import InvalidInputError, KafkaError
from kohort.spark.batch_offset import BatchOffset
from kohort.spark.batch_spans import batch_spans
from kohort.spark.catalog import Catalog, client_settings, ending_bound, starting_bound
from kohort.spark.channel import Contact
from kohort.spark.hearing import Hearing
from kohort.spark.options import SourceOptions, parse_options
from kohort.spark.process import Ending, ParentWatch
from kohort.spark.query import Query
from kohort.spark.reading import Reading
from kohort.spark.refused import RefusedReader
from kohort.spark.schema import arrow_schema, columns_of, refuse_other, spark_schema
from kohort.spark.sink import TopicStreamWriter, TopicWriter
from kohort.spark.sink_options import parse_sink_options
from kohort.spark.sole import Load, SoleReader
from kohort.spark.tables import TABLES, TableReader, is_table, parse_table_options, table_schema
from kohort.spark.tasks import ReadTask, cut
from kohort.spark.values.declared import check_function, declare
from kohort.spark.values.decoding import Values
from kohort.spark.writing import Writing

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

    def schema(self) -> str:
        """The columns of a read.

        Raises:
            InvalidInputError: an option of the read that can't be; nothing is connected to find out.
        """
        if is_table(self._raw):
            return table_schema(parse_table_options(self._raw))
        options = self._options()
        declared = declare(options)
        check_function(options)
        return spark_schema(columns_of(options), "binary" if declared is None else declared.ddl)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch read or of a table.

        Raises:
            InvalidInputError: options that can't be, or a schema by hand that is another.
        """
        self._used = True
        if is_table(self._raw):
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

    def _stream_reader(self, schema: StructType) -> KohortStreamReader:
        if is_table(self._raw):
            raise InvalidInputError("a table is read by spark.read, each time anew; a stream of it is not there")
        options = self._options(streaming=True)
        columns = columns_of(options)
        values = _values(options, schema, columns)
        return KohortStreamReader(options, columns, self.contact, values, load=self._load)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of `df.write`.

        Raises:
            InvalidInputError: options, columns or the save mode can't be.
        """
        self._used = True
        if overwrite:
            raise InvalidInputError("records are added to a topic, never replaced: write with mode('append')")
        return TopicWriter(Writing.of(parse_sink_options(self._raw), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of `df.writeStream`; the output mode "complete" sends the whole result each time.

        Raises:
            InvalidInputError: options or columns can't be.
        """
        self._used = True
        return TopicStreamWriter(Writing.of(parse_sink_options(self._raw), schema))

    def _options(self, *, streaming: bool | None = None) -> SourceOptions:
        parsed = parse_options(self._raw, streaming=streaming)
        client_config(ConsumerConfig, parsed.bootstrap_servers, client_settings(parsed))
        return parsed


def _values(options: SourceOptions, schema: StructType, columns: tuple[str, ...]) -> Values | None:
    """The declared type of values; the schema is checked.

    Raises:
        InvalidInputError: a schema by hand that is another than the read's own.
    """
    declared = declare(options)
    values = None if declared is None else declared.values(schema, columns)
    refuse_other(schema, arrow_schema(columns), ANOTHER_SCHEMA, () if declared is None else ("value",))
    return values


def _reading(options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> Reading:
    settings = client_settings(options)
    return Reading.of(options.bootstrap_servers, settings, columns, options.fail_on_data_loss, values)


class KohortStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query, as Spark asks for it; `Query` holds what it knows.

    Spark's calls come from one thread. What the application says of the query comes from another: `sink_done`.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        contact: Contact | None = None,
        values: Values | None = None,
        *,
        load: Load,
    ) -> None:
        """Nothing is connected.

        Args:
            options: of the query.
            columns: to hand over.
            contact: of the application; None where it can't be reached.
            values: the declared type of values; None: they stay bytes.
            load: the `load()` that the query reads.
        """
        starting_bound(options, streaming=True)
        self._options = options
        self._load = load
        self._sole: SoleReader | None = None
        self._reading = _reading(options, columns, values)
        self._identity = ""
        self._query: Query | None = None
        self._watch: ParentWatch | None = None
        self._ending: Ending | None = None
        self._contact = contact
        self._hearing: Hearing | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = ("_query", "_watch", "_ending", "_contact", "_hearing", "_sole")
        return {**self.__dict__, **dict.fromkeys(own)}

    def _driver(self, identity: str | None = None) -> Query:
        """The query's state, made with the first call: only one of the processes that build this object drives."""
        if self._query is None:
            self._ending = Ending()
            self._ending.install()
            self._watch = ParentWatch()
            self._watch.start()
            self._claim()
            if self._contact is not None:
                self._hearing = Hearing(self._contact, self.sink_done)
            hearing = self._hearing
            self._query = Query(
                self._options, identity or self._identity, lambda: hearing is not None and hearing.connected
            )
        if identity is not None:
            self._query.identity = identity
            if self._hearing is not None:
                self._hearing.drives(identity)
        return self._query

    def _claim(self) -> None:
        """Be the only reader of this `load()`.

        Raises:
            InvalidInputError: another query is.
        """
        group = self._options.group_id
        if group is not None:
            self._sole = self._sole or SoleReader()
            self._sole.claim(self._load, group, ids_tell=self._contact is not None)

    def initialOffset(self) -> dict[str, Any]:
        """A query's first offset carries nothing but its identity: where it starts depends on what it will hold."""
        self._identity = self._identity or uuid.uuid4().hex
        return BatchOffset(self._identity).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are bounded; `latestOffset` combines the options itself."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver().aim_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commits what is done, answers the group, plans the next batch; `start` itself means nothing new."""
        done = BatchOffset.from_json(start)
        query = self._driver(done.query)
        query.finish(done)
        planned = query.plan(done, limited=not isinstance(limit, ReadAllAvailable))
        return start if planned is None else planned.to_json()

    def sink_done(self, end: str) -> bool:
        """The sink has taken a batch, and the checkpoint's commit log says so: commit it now. From any thread.

        Args:
            end: the batch's end offset, as the checkpoint and the query's progress have it.

        Returns:
            Whether that was the batch that is running; another is none of this run's, or is done already.
        """
        query = self._query
        return query is not None and query.sink_done(BatchOffset.from_json(json.loads(end)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._query.report() if self._query is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks for the spans that `end` names; after a restart this is the first call for an unfinished batch."""
        planned = BatchOffset.from_json(end)
        if start == end:
            return []
        batch = self._driver(planned.query).replay(BatchOffset.from_json(start), planned)
        return list(
            cut(
                sorted(batch.spans.items()),
                batch.generation,
                ids=batch.ids,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return self._reading.read(partition)

    def stop(self) -> None:
        """Leave the group; Spark calls this only because `Ending` lets its runner end in order."""
        if self._ending is not None:
            self._ending.begin()
        query = self._query
        if self._hearing is not None:
            if query is not None and self._watch is not None and not self._watch.orphaned:
                self._hearing.last_words(query.is_running)
            self._hearing.close()
        self._query = None
        if query is not None:
            query.close()
        if self._sole is not None:
            self._sole.release()
        if self._watch is not None:
            self._watch.end()
        if self._ending is not None:
            self._ending.end()


class KohortReader(DataSourceReader):
    """One batch read: no membership, nothing committed."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> None:
        self._options = options
        self._starting = starting_bound(options, streaming=False)
        self._ending = ending_bound(options)
        self._reading = _reading(options, columns, values)

    def partitions(self) -> list[InputPartition]:
        """Tasks for everything between the two bounds."""
        catalog = Catalog(self._options, streaming=False)
        try:
            batch = batch_spans(catalog, self._starting, self._ending, strict=self._options.fail_on_data_loss)
        finally:
            catalog.close()
        return list(
            cut(
                sorted(batch.spans.items()),
                batch.generation,
                ids=batch.ids,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """An empty read comes as a partition without slices."""
        return self._reading.read(partition if isinstance(partition, ReadTask) else ReadTask(()))
