"""The staging of a batch's rows in the sink: each Spark task stages its own rows, and the driver gets only their keys.

There is one Spark action for each batch. Two would run a stateful operator twice, and one that does not reach every
partition would leave its state uncommitted. Attempts of tasks that did not count (retries, speculation) leave files
that no key names.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from kohort.errors import CorruptDataError
from kohort.region.consuming.staging import UNIT_BYTES, sink_retry_wait
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.availability import AWAY, is_temporary_error
from kohort.region.sinks.dead_letters import make_dead_letters, make_undecoded_dead_letters, split_refused_rows
from kohort.region.staged import Staged, StagedKey, merge_staged
from kohort.spark.region.query_factory import LETTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = "key string, letters bigint"
"""The columns of a task's result: the text of a key, and the number of dead letters under it; 0: it has rows."""
UNITS_OF_ATTEMPT = 1 << 20
"""Units per task attempt; a unit's number is the attempt's id, which is unique in an application, times this, and a
count.
"""


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """The sinks of a query, to which the region writes.

    Attributes:
        sink: the sink of the query's rows.
        letters: the sink of the dead letters; None: there are none.
        divides: whether rows that the sink can't take become dead letters; otherwise they fail the task.
    """

    sink: Sink
    letters: Sink | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class StagingTask:
    """The function of a Spark task in a region's query: it stages rows in the sinks. Pickled to the workers.

    Attributes:
        output: the sinks.
        schema: the Arrow schema of the sink's rows, as it was checked.
        region_id: the region's id.
        epoch: the epoch of the run.
        member: the member's name.
        unit_bytes: the size of rows that are staged together under one key.
    """

    output: QueryOutput
    schema: pa.Schema
    region_id: UUID
    epoch: int
    member: str
    unit_bytes: int = UNIT_BYTES

    def stage_batches(self, batches: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        """Stage rows as they come; yield the keys, with the columns of `KEYS`."""
        units, held, size = itertools.count(attempt * UNITS_OF_ATTEMPT), list[pa.RecordBatch](), 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                size += batch.nbytes
            if size >= self.unit_bytes:
                yield from self._stage(units, held)
                held, size = [], 0
        if held:
            yield from self._stage(units, held)

    def _stage(self, units: Iterator[int], batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage some rows under one key, and their dead letters, if any, under another; yield a row for each key."""
        table, output = pa.Table.from_batches(batches), self.output
        undecoded = None
        if LETTER in table.column_names:
            undecoded = make_undecoded_dead_letters(table.column(LETTER), self.member)
            table = table.filter(table.column(LETTER).is_null()).drop_columns([LETTER])
        table, letters = table.cast(self.schema), [] if undecoded is None else [undecoded]
        if output.divides:
            good, reasons = split_refused_rows(output.sink, table)
            if reasons:
                letters.append(make_dead_letters(table, reasons, self.member))
            table = good
        yield _key_row(self._put(output.sink, units, table), 0)
        bad = pa.concat_tables(letters) if letters else None
        if bad is not None and bad.num_rows:
            assert output.letters is not None
            check_rows(output.letters, bad)
            yield _key_row(self._put(output.letters, units, bad), bad.num_rows)

    def _put(self, sink: Sink, units: Iterator[int], table: pa.Table) -> StagedKey:
        """Stage a table, and retry while the sink is unavailable.

        Only this batch waits; checkpoints continue without it. Each attempt has a new key, because a failed one may
        have left something behind.
        """
        wait = sink_retry_wait(self.member)
        while True:
            key = StagedKey(self.region_id, self.epoch, self.member, next(units))
            try:
                sink.stage(key, table)
            except AWAY as error:
                if not is_temporary_error(error):
                    raise
                wait.record_failure(error)
                time.sleep(max(0.0, wait.again_s - time.monotonic()))
            else:
                wait.end_wait()
                return key


def _key_row(key: StagedKey, letters: int) -> pa.RecordBatch:
    """Return a row of a task's result: the key under which rows are staged, and how many of them are dead letters.

    Built without `pa.array`, which imports pandas: that takes a second in each new worker.
    """
    data = key.file_stem().encode()
    ends = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    count = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(letters.to_bytes(8, "little"))])
    return pa.RecordBatch.from_arrays([text, count], names=["key", "letters"])


class StagedBatches:
    """The keys that the batches of one run have staged since the last complete checkpoint. Any thread may call."""

    def __init__(self, after: int | None) -> None:
        """Start a run's record after the last batch of the checkpoint that it began with; None: it was empty."""
        self._lock = threading.Lock()
        self._after = -1 if after is None else after
        self._given = self._after
        self._batches: dict[int, Staged] = {}

    def add_batch(self, batch: int, staged: Staged) -> None:
        """Record the staged keys of a batch, also if it staged nothing: a batch without a record counts as lost."""
        with self._lock:
            self._batches[batch] = staged

    def unacknowledged_keys(self, last: int | None) -> Staged:
        """Return the keys of all batches up to `last` that no complete checkpoint includes.

        Raises:
            CorruptDataError: the output of a batch is missing, even as an empty one.
        """
        with self._lock:
            self._given = self._after if last is None else max(self._after, last)
            wanted = range(self._after + 1, self._given + 1)
            missing = [number for number in wanted if number not in self._batches]
            if missing:
                raise CorruptDataError(f"batch {missing[0]} is in the checkpoint's log, and nothing of it is staged")
            return merge_staged(self._batches[number] for number in wanted)

    def forget_contribution(self) -> int:
        """Forget the keys of the last contribution to a checkpoint, because a complete one includes them.

        Return the number of dead letters in it.
        """
        with self._lock:
            done = [self._batches.pop(number) for number in sorted(self._batches) if number <= self._given]
            self._after = self._given
            return merge_staged(done).dead_letters

    def last_included_batch(self) -> int:
        """Return the last batch that a complete checkpoint includes; -1 if none does."""
        with self._lock:
            return self._after

    def batches_ahead(self, last: int | None) -> int:
        """Return the number of batches up to `last` that no complete region checkpoint includes."""
        with self._lock:
            return 0 if last is None else max(0, last - self._after)


def make_batch_stager(task: StagingTask) -> Callable[[DataFrame], Staged]:
    """Return a function that stages the rows of a micro-batch by one Spark job, and returns the staged keys.

    The keys are those of the task attempts whose results Spark accepted.
    """

    def stage_in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return task.stage_batches(batches, context.taskAttemptId())

    def stage_rows(rows: DataFrame) -> Staged:
        keys = [(_key(row.key), row.letters) for row in rows.mapInArrow(stage_in_worker, KEYS).collect()]
        return Staged(
            tuple(key for key, letters in keys if not letters),
            tuple(key for key, letters in keys if letters),
            sum(letters for _, letters in keys),
        )

    return stage_rows


def _key(text: str) -> StagedKey:
    key = StagedKey.parse(text)
    if key is None:
        raise CorruptDataError(f"a task has staged under {text!r}, which is no key")
    return key
