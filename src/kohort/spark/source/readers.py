"""The readers that Spark calls, for a streaming query and for a batch read, and the tasks that they plan.

Both are pickled to the workers, which only read. Modules for driving a query are imported where that begins.
"""

from __future__ import annotations

import contextlib
import json  # not msgspec: Spark has imported it already, and a task starts sooner
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

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

from kohort.errors import InvalidInputError, NotFoundError, OffsetError
from kohort.ids import TopicId, TopicPartition
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.schema import BAD_REASON, BAD_VALUE, SPAN_COLUMNS, arrow_schema
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.bounds import ReadBound, ending_bound, refuse_partitions_not_read, starting_bound
from kohort.spark.source.error_frames import show_reason_first, show_reason_first_each
from kohort.spark.source.kafka_offsets import (
    finished_kafka_batch,
    is_kafka_offset,
    parse_kafka_offset,
    unfinished_kafka_batch,
)

if TYPE_CHECKING:
    from kohort.client.consumer.range_reader import RangeReader
    from kohort.spark.driver_channel import ChannelAddress, SinkDoneReceiver
    from kohort.spark.source.catalog import TopicCatalog
    from kohort.spark.source.offset_coordinator import OffsetCoordinator
    from kohort.spark.source.query import SourceQuery
    from kohort.spark.source.single_reader_lock import LoadCall, LoadLocks
    from kohort.spark.values.decoding import Values
    from kohort.spark.values.types import Column


# -- The division of a batch into Spark tasks

SMALL_TASK = 5_000
"""Partitions with fewer records share a task: starting a task costs about 20 ms, and reading these costs less."""


@dataclass(frozen=True, slots=True)
class TaskRange:
    """A part of a partition's range, which one task reads.

    Attributes:
        partition: the partition.
        span: the offsets to read.
        whole: the offsets that the batch covers of the partition.
        generation: the group's generation when the batch was planned.
        topic_id: the id of the topic that the offsets belong to; None if unknown.
    """

    partition: TopicPartition
    span: OffsetRange
    whole: OffsetRange
    generation: int
    topic_id: TopicId | None = None


@dataclass(eq=True, repr=True)
class ReadTask(InputPartition):
    """The ranges that one Spark task reads, in order."""

    slices: tuple[TaskRange, ...]


def plan_tasks(
    spans: Iterable[tuple[TopicPartition, OffsetRange]],
    generation: int,
    *,
    ids: Mapping[str, TopicId] = MappingProxyType({}),
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[ReadTask]:
    """Split a batch's offset ranges into tasks; an empty range gets none.

    With `min_partitions` there are at least so many tasks, if there are enough records; with `max_records` no task has
    more records. Without these options ranges are not split, and small ones share a task.
    """
    full = [(tp, span) for tp, span in spans if span.offset_count > 0]
    total = sum(span.offset_count for _, span in full)
    piece = max_records or total
    if min_partitions is not None and total:
        piece = min(piece, max(1, total // min_partitions))
    slices = [
        TaskRange(tp, part, span, generation, ids.get(tp.topic)) for tp, span in full for part in _pieces(span, piece)
    ]
    if min_partitions is not None or max_records is not None:
        return [ReadTask((part,)) for part in slices]
    return _shared(slices)


def _pieces(span: OffsetRange, piece: int) -> list[OffsetRange]:
    count = -(-span.offset_count // piece)
    edges = [span.start + span.offset_count * index // count for index in range(count + 1)]
    return [OffsetRange(low, high) for low, high in pairwise(edges)]


def _shared(slices: list[TaskRange]) -> list[ReadTask]:
    tasks: list[list[TaskRange]] = []
    size = SMALL_TASK
    for part in slices:
        if size + part.span.offset_count > SMALL_TASK or not tasks:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.span.offset_count
    return [ReadTask(tuple(task)) for task in tasks]


# -- The work of a Spark task: reading its ranges as Arrow batches. Runs in Spark's Python workers, so imports stay few

log = logging.getLogger("kohort.spark")
FETCH_BYTES = 8 * 1024 * 1024
"""Bytes per fetch of a task, unless the query sets `kafka.max.partition.fetch.bytes`."""
READERS_MAX = 4
"""Most readers that a worker process keeps for its next tasks; few of its queries differ in their settings."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """The settings of the Spark tasks that read ranges, as plain values that are pickled to the workers.

    Attributes:
        bootstrap_servers: the brokers.
        settings: the client's settings, as pairs.
        columns: the columns to deliver, in order.
        fail_on_data_loss: whether lost records are an error.
        values: the declared type of values; None: they stay bytes.
    """

    bootstrap_servers: str
    settings: tuple[tuple[str, Any], ...] = field(repr=False)
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    values: Values | None = None

    @classmethod
    def from_settings(
        cls,
        servers: str,
        settings: Mapping[str, Any],
        columns: Sequence[str],
        fail_on_data_loss: bool,
        values: Values | None = None,
    ) -> TaskReader:
        return cls(servers, tuple(sorted(settings.items())), tuple(columns), fail_on_data_loss, values)

    def _fetched(self) -> tuple[str, ...]:
        """Return the columns to decode; with typed values also the offsets, for errors."""
        made = (*SPAN_COLUMNS, BAD_VALUE, BAD_REASON)
        found = tuple(name for name in self.columns if name not in made)
        return (*found, "offset") if "offset" not in found and (self.values is not None or not found) else found

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task, over a connection that the worker process keeps for later tasks."""
        key = (os.getpid(), self, self._fetched())
        reader = _take_reader(key)
        complete = False
        try:
            for part in task.slices:
                for batch in self._batches(reader, part):
                    yield _with_columns(batch, self, part)
            complete = True
        except OffsetError as error:
            text = f"{error.message}; failOnDataLoss=false skips the lost records"
            raise OffsetError(text, error.code, error.partition) from error
        finally:
            if complete:
                _keep_reader(key, reader)
            else:  # the reader's state is unknown: the next task connects again
                reader.close()

    def _batches(self, reader: RangeReader, part: TaskRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range; if its topic is gone and that is no error, log a warning."""
        span, strict = part.span, self.fail_on_data_loss
        try:
            yield from reader.read(
                part.partition, span.start, span.end, fail_on_data_loss=strict, topic_id=part.topic_id
            )
        except NotFoundError as error:
            text = f"{error.message}: what was left of offsets {span.start} to {span.end} of {part.partition} is lost"
            if strict:
                raise OffsetError(text, error.code, part.partition) from error
            log.warning("records lost: %s", text)


_ReaderKey: TypeAlias = tuple[int, TaskReader, tuple[str, ...]]
_readers: dict[_ReaderKey, RangeReader] = {}
"""The readers of this process that no task uses now; the process id keeps a fork from using its parent's sockets."""


def _take_reader(key: _ReaderKey) -> RangeReader:
    """Return a reader for one task, kept by the worker from an earlier task or newly made."""
    reader = _readers.pop(key, None)
    if reader is None:
        from kohort.client.consumer.range_reader import RangeReader

        _, reading, wanted = key
        settings = dict(reading.settings)
        reader = RangeReader(reading.bootstrap_servers, columns=wanted, fetch_bytes=_fetch_bytes(settings), **settings)
    return reader


def _keep_reader(key: _ReaderKey, reader: RangeReader) -> None:
    """Keep a reader for the next task; close the one that was used longest ago if they are too many."""
    replaced = _readers.pop(key, None)
    if replaced is not None:  # two tasks have read at once
        replaced.close()
    _readers[key] = reader
    while len(_readers) > READERS_MAX:
        oldest = next(iter(_readers))
        forgotten = _readers.pop(oldest)
        if oldest[0] == os.getpid():  # the parent process closes its own
            forgotten.close()


def _fetch_bytes(settings: Mapping[str, Any]) -> int:
    """Return the maximum bytes of a fetch of one partition, at most what the client's settings allow."""
    share = int(settings.get("max.partition.fetch.bytes", FETCH_BYTES))
    return min(share, int(settings.get("fetch.max.bytes", share)))


def _with_columns(batch: pa.RecordBatch, reading: TaskReader, part: TaskRange) -> pa.RecordBatch:
    """Return a batch with the exact columns and types that Spark expects."""
    typed: dict[str, Column] = {}
    if reading.values is None:
        schema = arrow_schema(reading.columns)
        if batch.schema.equals(schema):
            return batch
    else:
        schema = arrow_schema(reading.columns, reading.values.kind)
        offsets = batch.column("offset")
        typed["value"], typed[BAD_VALUE], typed[BAD_REASON] = reading.values.decode_values(
            batch.column("value"), lambda row: f"{part.partition} at offset {offsets[row].as_py()}"
        )
    facts = {"generation": part.generation, "rangeStart": part.whole.start, "rangeEnd": part.whole.end}
    arrays = []
    for name, target in zip(reading.columns, schema, strict=True):
        if name in facts:
            arrays.append(pa.repeat(pa.scalar(facts[name], target.type), batch.num_rows))
        else:
            column = typed[name] if name in typed else batch.column(name)
            arrays.append(column if column.type.equals(target.type) else column.cast(target.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- The end of a query's driver-side process
#
# Spark starts one Python process per query, as a child of the JVM, and ends it with SIGTERM without waiting. When the
# JVM is killed, the process gets no signal at all. The member must leave its group in both cases. Otherwise nobody
# reads its partitions until the session times out.

PARENT_CHECK_S = 0.25
"""Interval of the check whether the parent process is still there."""
ORPHAN_EXIT_TIMEOUT_S = 3.0
"""Seconds that the process may take to leave the group after its parent has ended."""


AGAIN_S = 1.0
"""Interval after SIGTERM at which the signal is repeated until the process begins to end.

Code that runs for the garbage collector swallows SystemExit. The process would then stay in its group without an owner.
"""
SIGNAL_REPEATS = 3
"""Repetitions of the signal before the process ends at once."""
LEAVING_S = 10.0
"""Longest time for the reader's `stop` and the interpreter's exit, which should take two seconds at most."""


class SigtermHandler:
    """The SIGTERM handler of a source's process: it raises SystemExit, so that Spark's runner calls `stop`."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._raises = True
        self._logged = False

    def install_handler(self) -> None:
        """Install the handler of SIGTERM; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._exit)

    def begin_stop(self) -> None:
        """Record that the reader's `stop` runs now: SIGTERM must not interrupt it any more."""
        self._begun.set()

    def end_stop(self) -> None:
        """End the process after the reader's `stop`, if Spark has ended the query.

        Otherwise the log would have a traceback: Spark's runner would report the SystemExit to the JVM, or write to a
        closed connection. Do nothing if an error is being raised to the query.
        """
        if not self._logged and sys.exc_info()[0] is not EOFError:  # neither SIGTERM nor the end of the connection
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _exit(self, _number: int, _frame: FrameType | None) -> None:
        """Exit on the first SIGTERM; Spark may send a second one, which must not interrupt the exit."""
        if self._begun.is_set() or not self._raises:
            return
        self._raises, self._logged = False, True
        threading.Thread(target=self._insist, name="kohort-ending", daemon=True).start()
        sys.exit(0)

    def _insist(self) -> None:
        for _ in range(SIGNAL_REPEATS):
            if self._begun.wait(AGAIN_S):
                break
            self._raises = True
            os.kill(os.getpid(), signal.SIGTERM)
        if self._begun.wait(AGAIN_S):
            time.sleep(LEAVING_S)
        os._exit(1)


class ParentWatch:
    """A thread that ends this process after its parent has ended.

    It sends SIGTERM, and calls `os._exit` if the process still runs after `ORPHAN_EXIT_TIMEOUT_S`.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kohort-parent-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_orphaned(self) -> bool:
        """Whether the parent has ended, and no more messages about the query will come."""
        return os.getppid() != self._parent

    def stop_watching(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(PARENT_CHECK_S):
            if self.is_orphaned:
                os.kill(os.getpid(), signal.SIGTERM)
                self._ended.wait(ORPHAN_EXIT_TIMEOUT_S)
                os._exit(1)


# -- The range of a batch read in each partition, checked against the log


def batch_read_ranges(catalog: TopicCatalog, starting: ReadBound, ending: ReadBound, *, strict: bool) -> BatchOffset:
    """Return the offset ranges of a batch read between two bounds, with the ids of the topics.

    Args:
        catalog: looks up the read's partitions and offsets.
        starting: where the read starts.
        ending: where the read ends.
        strict: whether lost records are an error.

    Raises:
        InvalidInputError: requested offsets end before they start; or they lie beyond the end, and lost records are an
            error.
        OffsetError: the group's offset lies beyond the end; or requested records are lost, and that is an error.
        NotFoundError: a topic was deleted meanwhile.
    """
    from kohort.spark.source.catalog import report_lost_records

    every = catalog.partitions()
    refuse_partitions_not_read("startingOffsets", starting, every)
    refuse_partitions_not_read("endingOffsets", ending, every)
    ids = catalog.describe_existing({tp.topic for tp in every}).ids
    starts, ends = catalog.resolve_bound(starting, every), catalog.resolve_bound(ending, every)
    first, last = catalog.beginning_offsets(every), catalog.end_offsets(every)
    spans: dict[TopicPartition, OffsetRange] = {}
    for tp in every:
        if not all(tp in found for found in (starts, ends, first, last)):
            raise NotFoundError(f"{tp} was deleted while the read was planned")
        start, end, held = starts[tp], ends[tp], f"{tp}, which holds offsets {first[tp]} to {last[tp]}"
        for name, bound, at in (("startingOffsets", starting, start), ("endingOffsets", ending, end)):
            if at > last[tp] and bound.kind == "committed":
                raise OffsetError(f"{name}: the group's offset {at} lies beyond the end of {held}")
            if at > last[tp] and strict:
                raise InvalidInputError(
                    f"{name} asks for offset {at} of {held}; failOnDataLoss=false reads what is there"
                )
            if at > last[tp]:
                report_lost_records(f"{name} asks for offset {at} of {held}", "reads what is there", strict=False)
        if starting.is_explicit_for(tp) and ending.is_explicit_for(tp) and start > end:
            raise InvalidInputError(
                f"the start of the read is behind its end: {starting.option_name('starting')} asks for offset {start} "
                f"of {tp}, {ending.option_name('ending')} for {end}, which is less"
            )
        start, end = min(start, last[tp]), min(end, last[tp])
        if start < min(first[tp], end):
            report_lost_records(
                f"offset {start} was asked for of {held}: records are gone", "passes over them", strict=strict
            )
        spans[tp] = OffsetRange(max(start, first[tp]), max(start, first[tp], end))
    return BatchOffset("", spans=spans, ids=ids)


# ruff: noqa: N802 (the methods' names are Spark's)


def _tasks_of(batch: BatchOffset, options: SourceOptions) -> list[InputPartition]:
    """Return the tasks for a batch's ranges, as many as the options ask for."""
    return list(
        plan_tasks(
            sorted(batch.spans.items()),
            batch.generation,
            ids=batch.ids,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    )


def _reading(options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> TaskReader:
    settings = client_settings(options)
    return TaskReader.from_settings(options.bootstrap_servers, settings, columns, options.fail_on_data_loss, values)


class KohortStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query; `SourceQuery` holds its state.

    Spark's calls come from one thread. The driver program's messages about the query come from another: `sink_done`.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        address: ChannelAddress | None = None,
        values: Values | None = None,
        *,
        load: LoadCall,
    ) -> None:
        """Set up the reader; nothing is connected.

        Args:
            options: the options of the query.
            columns: the columns to deliver.
            address: the driver program's address; None if it can't be reached.
            values: the declared type of values; None: they stay bytes.
            load: the `load()` that the query reads.
        """
        starting_bound(options, streaming=True)
        self._options = options
        self._load = load
        self._load_lock: LoadLocks | None = None
        self._reading = _reading(options, columns, values)
        self._identity = ""
        self._query: SourceQuery | None = None
        self._watch: ParentWatch | None = None
        self._ending: SigtermHandler | None = None
        self._address = address
        self._receiver: SinkDoneReceiver | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = ("_query", "_watch", "_ending", "_address", "_receiver", "_load_lock")
        return {**self.__dict__, **dict.fromkeys(own)}

    def _driver(self, identity: str | None = None) -> SourceQuery:
        """Return the query's state, made at the first call.

        Spark copies this reader to several processes, and calls the methods that need the state in one of them.
        """
        if self._query is None:
            from kohort.spark.driver_channel import SinkDoneReceiver
            from kohort.spark.source.query import SourceQuery

            self._ending = SigtermHandler()
            self._ending.install_handler()
            self._watch = ParentWatch()
            self._watch.start()
            self._claim_query()
            if self._address is not None:
                self._receiver = SinkDoneReceiver(self._address, self.sink_done)
            self._query = SourceQuery(self._options, identity or self._identity, self._make_coordinator)
        if identity is not None:
            self._query.identity = identity
            if self._receiver is not None:
                self._receiver.announce_query(identity)
        return self._query

    def _make_coordinator(self, options: SourceOptions, catalog: TopicCatalog) -> OffsetCoordinator:
        """Make the query's offset coordinator: its group's, or its region's.

        Raises:
            InvalidInputError: the driver program of a region can't be reached from here.
        """
        receiver = self._receiver
        if options.region_session is None:
            from kohort.spark.source.group_offsets import GroupOffsets

            return GroupOffsets(options, catalog, lambda: receiver is not None and receiver.connected)
        if receiver is None:
            raise InvalidInputError(
                "a region's query asks its application what to read, and can't reach it from here: on Spark Connect "
                "there are no regions"
            )
        from kohort.spark.source.region_offsets import RegionOffsets

        return RegionOffsets(options, catalog, receiver.line, options.region_session)

    def _claim_query(self) -> None:
        """Lock this `load()` for this query, and check that the query reads no topic twice in its group.

        Raises:
            InvalidInputError: another query reads the `load()`, or this query reads a topic twice.
        """
        from kohort.spark.source.read_twice import refuse_read_twice
        from kohort.spark.source.single_reader_lock import LoadLocks

        group = self._options.group_id
        if group is not None:
            with contextlib.suppress(OSError):  # files can't be locked here; LoadLocks logs a warning
                refuse_read_twice(self._load, self._options)
            self._load_lock = self._load_lock or LoadLocks()
            self._load_lock.lock_load(self._load, group, id_is_stable=self._address is not None)

    def initialOffset(self) -> dict[str, Any]:
        """Return a query's first offset, which has only its identity: its start depends on its later assignment."""
        self._identity = self._identity or uuid.uuid4().hex
        return BatchOffset(self._identity).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit, so that Spark passes one to `latestOffset`, which combines the options itself."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @show_reason_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Implement `Trigger.AvailableNow`: read up to the partitions' current end offsets, and no further.

        Raises:
            InvalidInputError: the query is in a region.
        """
        if self._options.region_session is not None:
            raise InvalidInputError(
                "a query in a region runs without a trigger: AvailableNow would end it with batches in no sequence; "
                'run the region until="caught-up" instead'
            )
        self._driver().fix_end_offsets()

    @show_reason_first
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit the previous batch, release revoked partitions, and plan the next batch.

        Return `start` if there is nothing new.
        """
        done = self._finished(start)
        query = self._driver(done.query)
        query.commit_completed_batch(done)
        planned = query.plan_batch(done, limited=not isinstance(limit, ReadAllAvailable))
        return start if planned is None else planned.to_json()

    def _finished(self, offset: dict[str, Any]) -> BatchOffset:
        """Decode the end of a finished batch, which Spark's own Kafka source may have written."""
        if not is_kafka_offset(offset):
            return BatchOffset.from_json(offset)
        self._identity = self._identity or uuid.uuid4().hex
        return finished_kafka_batch(offset, self._identity)

    def _planned(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[BatchOffset, BatchOffset]:
        """Decode the start and end of a planned batch, which Spark's own Kafka source may have planned."""
        if not is_kafka_offset(end):
            return self._finished(start), BatchOffset.from_json(end)
        self._identity = self._identity or uuid.uuid4().hex
        if is_kafka_offset(start):
            return unfinished_kafka_batch(parse_kafka_offset(start), end, self._identity)
        self._driver(self._identity)
        from kohort.spark.source.first_batch import ask_first_batch_start

        return unfinished_kafka_batch(ask_first_batch_start(self._receiver, end), end, self._identity)

    def sink_done(self, end: str, stateful: bool = False) -> bool:
        """Commit a batch now that its sink and the checkpoint's commit log have it. From any thread.

        Args:
            end: the batch's end offset, as in the checkpoint and the query's progress.
            stateful: whether the query keeps state: only for a warning that state does not move with partitions.

        Returns:
            Whether that was the running batch; any other is another run's, or is done already.
        """
        query = self._query
        if query is not None and stateful:
            query.record_stateful()
        return query is not None and query.sink_done(BatchOffset.from_json(json.loads(end)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._query.progress_report() if self._query is not None else None

    @show_reason_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks for the ranges of `end`; after a restart this is the first call for an unfinished batch."""
        if start == end:
            return []
        before, planned = self._planned(start, end)
        batch = self._driver(planned.query).ranges_to_replay(before, planned)
        return _tasks_of(batch, self._options)

    @show_reason_first_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return self._reading.read(partition)

    def stop(self) -> None:
        """Leave the group; Spark calls this only because `SigtermHandler` lets its runner end in order."""
        if self._ending is not None:
            self._ending.begin_stop()
        query = self._query
        if self._receiver is not None:
            if query is not None and self._watch is not None and not self._watch.is_orphaned:
                self._receiver.await_last_reports(query.is_running)
            self._receiver.close()
        self._query = None
        if query is not None:
            query.close()
        if self._load_lock is not None:
            self._load_lock.release()
        if self._watch is not None:
            self._watch.stop_watching()
        if self._ending is not None:
            self._ending.end_stop()


class KohortReader(DataSourceReader):
    """The reader of one batch read: no membership, and no commits."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], values: Values | None) -> None:
        self._options = options
        self._starting = starting_bound(options, streaming=False)
        self._ending = ending_bound(options)
        self._reading = _reading(options, columns, values)

    @show_reason_first
    def partitions(self) -> list[InputPartition]:
        """Return the tasks for everything between the two bounds."""
        from kohort.spark.source.catalog import TopicCatalog

        catalog = TopicCatalog(self._options, streaming=False)
        try:
            batch = batch_read_ranges(catalog, self._starting, self._ending, strict=self._options.fail_on_data_loss)
        finally:
            catalog.close()
        return _tasks_of(batch, self._options)

    @show_reason_first_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition; an empty read has a partition without ranges."""
        return self._reading.read(partition if isinstance(partition, ReadTask) else ReadTask(()))
