"""The data source that Spark knows as "kohort", and its two readers.

Spark builds these objects in several processes: options are parsed wherever that happens, and nothing connects before
the first method is called in the process that drives the query.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

import uuid
from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
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
from kohort.spark.batch_offset import BatchOffset, Span
from kohort.spark.catalog import Catalog, client_settings, ending_bound, starting_bound
from kohort.spark.options import SourceOptions, parse_options
from kohort.spark.process import ParentWatch, end_on_sigterm
from kohort.spark.query import Query
from kohort.spark.reading import Reading
from kohort.spark.schema import columns_of, spark_schema
from kohort.spark.tasks import ReadTask, cut
from kohort.spark.values.declared import declare
from kohort.spark.values.decoding import Values


class KohortDataSource(DataSource):
    """`format("kohort")`: Kafka topics, read as a member of a consumer group."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options; nothing is connected.

        Raises:
            InvalidInputError: an option that can't be.
        """
        super().__init__(options)
        self._raw = dict(options)
        parsed = parse_options(self._raw)
        self._columns = columns_of(parsed)
        self._declared = declare(parsed)
        client_config(ConsumerConfig, parsed.bootstrap_servers, client_settings(parsed))

    @classmethod
    def name(cls) -> str:
        return "kohort"

    def schema(self) -> str:
        return spark_schema(self._columns, "binary" if self._declared is None else self._declared.ddl)

    def _values(self, schema: StructType) -> Values | None:
        return None if self._declared is None else self._declared.values(schema, self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KohortReader(parse_options(self._raw, streaming=False), self._columns, self._values(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return KohortStreamReader(parse_options(self._raw, streaming=True), self._columns, self._values(schema))


def _reading(options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> Reading:
    settings = client_settings(options)
    return Reading.of(options.bootstrap_servers, settings, columns, options.fail_on_data_loss, values)


class KohortStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query, as Spark asks for it; `Query` holds what it knows."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> None:
        starting_bound(options, streaming=True)
        self._options = options
        self._reading = _reading(options, columns, values)
        self._identity = ""
        self._query: Query | None = None
        self._watch: ParentWatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None, "_watch": None}

    def _driver(self, identity: str | None = None) -> Query:
        """The query's state, made with the first call: only one of the processes that build this object drives."""
        if self._query is None:
            end_on_sigterm()
            self._watch = ParentWatch()
            self._watch.start()
            self._query = Query(self._options, identity or self._identity)
        if identity is not None:
            self._query.identity = identity
        return self._query

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
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return self._reading.read(partition)

    def stop(self) -> None:
        """Leave the group; Spark calls this only because `end_on_sigterm` lets its runner end in order."""
        query, self._query = self._query, None
        if query is not None:
            query.close()
        if self._watch is not None:
            self._watch.end()


class KohortReader(DataSourceReader):
    """One batch read: no membership, nothing committed."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> None:
        self._options = options
        self._starting = starting_bound(options, streaming=False)
        self._ending = ending_bound(options)
        self._reading = _reading(options, columns, values)

    def partitions(self) -> list[InputPartition]:
        """Tasks for everything between the two bounds."""
        catalog = Catalog(self._options)
        try:
            every = catalog.partitions()
            starts, ends = catalog.resolve(self._starting, every), catalog.resolve(self._ending, every)
        finally:
            catalog.close()
        spans = [(tp, Span(starts[tp], max(starts[tp], ends[tp]))) for tp in every]
        return list(
            cut(
                spans,
                -1,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """An empty read comes as a partition without slices."""
        return self._reading.read(partition if isinstance(partition, ReadTask) else ReadTask(()))
