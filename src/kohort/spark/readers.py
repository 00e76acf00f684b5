"""The two readers that Spark asks: of a streaming query, and of a batch read.

Both are pickled to the workers, which only read: what drives a query is imported where that begins.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kohort.errors import InvalidInputError
from kohort.spark.batch_offset import BatchOffset
from kohort.spark.bounds import ending_bound, starting_bound
from kohort.spark.error_frames import reason_first, reason_first_each
from kohort.spark.kafka_offsets import is_kafka_offset, positions_of, taken_over, unfinished
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.reading import Reading
from kohort.spark.tasks import ReadTask, cut

if TYPE_CHECKING:
    from kohort.spark.catalog import Catalog
    from kohort.spark.channel import Contact
    from kohort.spark.hearing import Hearing
    from kohort.spark.place import Place
    from kohort.spark.process import Ending, ParentWatch
    from kohort.spark.query import Query
    from kohort.spark.sole import Load, SoleReader
    from kohort.spark.values.decoding import Values


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
            from kohort.spark.hearing import Hearing
            from kohort.spark.process import Ending, ParentWatch
            from kohort.spark.query import Query

            self._ending = Ending()
            self._ending.install()
            self._watch = ParentWatch()
            self._watch.start()
            self._claim()
            if self._contact is not None:
                self._hearing = Hearing(self._contact, self.sink_done)
            self._query = Query(self._options, identity or self._identity, self._place)
        if identity is not None:
            self._query.identity = identity
            if self._hearing is not None:
                self._hearing.drives(identity)
        return self._query

    def _place(self, options: SourceOptions, catalog: Catalog) -> Place:
        """The query's place: in its group, or in its region.

        Raises:
            InvalidInputError: the application of a region can't be reached from here.
        """
        hearing = self._hearing
        if options.region_seat is None:
            from kohort.spark.group_place import GroupPlace

            return GroupPlace(options, catalog, lambda: hearing is not None and hearing.connected)
        if hearing is None:
            raise InvalidInputError(
                "a region's query asks its application what to read, and can't reach it from here: on Spark Connect "
                "there are no regions"
            )
        from kohort.spark.region_place import RegionPlace

        return RegionPlace(options, catalog, hearing.line, options.region_seat)

    def _claim(self) -> None:
        """Be the only reader of this `load()`, and of its topics in this query and group.

        Raises:
            InvalidInputError: another query reads the `load()`, or this query reads a topic twice.
        """
        from kohort.spark.read_twice import refuse_read_twice
        from kohort.spark.sole import SoleReader

        group = self._options.group_id
        if group is not None:
            with contextlib.suppress(OSError):  # files can't be locked here, which SoleReader warns of
                refuse_read_twice(self._load, self._options)
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

    @reason_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Aims at what there is now.

        Raises:
            InvalidInputError: the query is in a region.
        """
        if self._options.region_seat is not None:
            raise InvalidInputError(
                "a query in a region runs without a trigger: AvailableNow would end it with batches in no sequence; "
                'run the region until="caught-up" instead'
            )
        self._driver().aim_at_present()

    @reason_first
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commits what is done, answers the group, plans the next batch; `start` itself means nothing new."""
        done = self._finished(start)
        query = self._driver(done.query)
        query.finish(done)
        planned = query.plan(done, limited=not isinstance(limit, ReadAllAvailable))
        return start if planned is None else planned.to_json()

    def _finished(self, offset: dict[str, Any]) -> BatchOffset:
        """Read the end of a finished batch, which Spark's own Kafka source may have written."""
        if not is_kafka_offset(offset):
            return BatchOffset.from_json(offset)
        self._identity = self._identity or uuid.uuid4().hex
        return taken_over(offset, self._identity)

    def _planned(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[BatchOffset, BatchOffset]:
        """Read the two ends of a planned batch; one that Spark's own Kafka source has planned keeps its ranges."""
        if not is_kafka_offset(end):
            return self._finished(start), BatchOffset.from_json(end)
        self._identity = self._identity or uuid.uuid4().hex
        if is_kafka_offset(start):
            return unfinished(positions_of(start), end, self._identity)
        self._driver(self._identity)
        from kohort.spark.first_batch import initial_positions

        return unfinished(initial_positions(self._hearing, end), end, self._identity)

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

    @reason_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks for the spans that `end` names; after a restart this is the first call for an unfinished batch."""
        if start == end:
            return []
        before, planned = self._planned(start, end)
        batch = self._driver(planned.query).replay(before, planned)
        return list(
            cut(
                sorted(batch.spans.items()),
                batch.generation,
                ids=batch.ids,
                min_partitions=self._options.min_partitions,
                max_records=self._options.max_records_per_partition,
            )
        )

    @reason_first_each
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

    @reason_first
    def partitions(self) -> list[InputPartition]:
        """Tasks for everything between the two bounds."""
        from kohort.spark.batch_spans import batch_spans
        from kohort.spark.catalog import Catalog

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

    @reason_first_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """An empty read comes as a partition without slices."""
        return self._reading.read(partition if isinstance(partition, ReadTask) else ReadTask(()))
