"""How a batch's rows come into the sink's staging: each Spark task stages its own, the driver learns the keys alone.

One action for each batch: two would run a stateful operator twice, and one that does not reach every partition would
leave its state uncommitted. Attempts of tasks that did not count (retries, speculation) leave files that no key names.
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
from kohort.region.consuming.staging import AWAY, is_away, sink_wait
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.dead_letters import divide, letters_of, letters_of_records
from kohort.region.staged import Staged, StagedKey, together
from kohort.spark.region.query_factory import LETTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT_BYTES = 64 * 1024 * 1024
"""A unit is staged when it has come to so much."""
KEYS = "key string, letters bigint"
"""The rows that a task gives: the text of a key, and how many dead letters are under it; 0: rows are."""
UNITS_OF_ATTEMPT = 1 << 20
"""Units are numbered by the attempt of the task, of which no two in an application are alike, and then in order."""


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """Where a query's rows go, as the region writes there.

    Attributes:
        letters: the sink of the dead letters.
        divides: rows that the sink can't take become dead letters; else they fail the task.
    """

    sink: Sink
    letters: Sink | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class StagingTask:
    """What a Spark task does with its rows. Pickled to the workers.

    Attributes:
        schema: of what the sink takes, as it was checked.
    """

    output: QueryOutput
    schema: pa.Schema
    region_id: UUID
    epoch: int
    member: str
    unit_bytes: int = UNIT_BYTES

    def keys_of(self, batches: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        """Stage rows as they come; gives the keys, as `KEYS` says."""
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
        """Stage a unit of rows, and one of their dead letters if there are any."""
        table, output = pa.Table.from_batches(batches), self.output
        undecoded = None
        if LETTER in table.column_names:
            undecoded = letters_of_records(table.column(LETTER), self.member)
            table = table.filter(table.column(LETTER).is_null()).drop_columns([LETTER])
        table, letters = table.cast(self.schema), [] if undecoded is None else [undecoded]
        if output.divides:
            good, reasons = divide(output.sink, table)
            if reasons:
                letters.append(letters_of(table, reasons, self.member))
            table = good
        yield _key_row(self._put(output.sink, units, table), 0)
        bad = pa.concat_tables(letters) if letters else None
        if bad is not None and bad.num_rows:
            assert output.letters is not None
            check_rows(output.letters, bad)
            yield _key_row(self._put(output.letters, units, bad), bad.num_rows)

    def _put(self, sink: Sink, units: Iterator[int], table: pa.Table) -> StagedKey:
        """Stage a table, as often as it takes while the sink is away.

        Only this batch waits; checkpoints continue without it. Each attempt has a key of its own,
        for something of one that failed may be there.
        """
        wait = sink_wait(self.member)
        while True:
            key = StagedKey(self.region_id, self.epoch, self.member, next(units))
            try:
                sink.stage(key, table)
            except AWAY as error:
                if not is_away(error):
                    raise
                wait.failed(error)
                time.sleep(max(0.0, wait.again_s - time.monotonic()))
            else:
                wait.ended()
                return key


def _key_row(key: StagedKey, letters: int) -> pa.RecordBatch:
    """One row. Not `pa.array`, which imports pandas where it is installed: a second in each worker that is new."""
    data = key.text().encode()
    ends = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    count = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(letters.to_bytes(8, "little"))])
    return pa.RecordBatch.from_arrays([text, count], names=["key", "letters"])


class StagedBatches:
    """What the batches of one run have staged and no complete sequence has yet. Any thread may call."""

    def __init__(self, after: int | None) -> None:
        """`after`: the last batch of the checkpoint that the run began with; None: it begins anew."""
        self._lock = threading.Lock()
        self._after = -1 if after is None else after
        self._given = self._after
        self._batches: dict[int, Staged] = {}

    def add(self, batch: int, staged: Staged) -> None:
        """A batch is staged, also one without rows: lost output must not look like none."""
        with self._lock:
            self._batches[batch] = staged

    def give(self, last: int | None) -> Staged:
        """The keys of all batches up to `last` that no complete sequence has.

        Raises:
            CorruptDataError: a batch has staged nothing, not even nothing.
        """
        with self._lock:
            self._given = self._after if last is None else max(self._after, last)
            wanted = range(self._after + 1, self._given + 1)
            missing = [number for number in wanted if number not in self._batches]
            if missing:
                raise CorruptDataError(f"batch {missing[0]} is in the checkpoint's log, and nothing of it is staged")
            return together(self._batches[number] for number in wanted)

    def counted(self) -> int:
        """Forget what was given last, which a complete sequence has; gives how many dead letters that has."""
        with self._lock:
            done = [self._batches.pop(number) for number in sorted(self._batches) if number <= self._given]
            self._after = self._given
            return together(done).dead_letters

    def after(self) -> int:
        """The last batch that a complete sequence has; -1: none."""
        with self._lock:
            return self._after

    def ahead(self, last: int | None) -> int:
        """How many batches the last one is ahead of the last complete sequence."""
        with self._lock:
            return 0 if last is None else max(0, last - self._after)


def stage_batch(task: StagingTask) -> Callable[[DataFrame], Staged]:
    """The one action of a batch: its tasks stage, and what comes back are the keys of the attempts that counted."""

    def in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return task.keys_of(batches, context.taskAttemptId())

    def stage(rows: DataFrame) -> Staged:
        told = [(_key(row.key), row.letters) for row in rows.mapInArrow(in_worker, KEYS).collect()]
        return Staged(
            tuple(key for key, letters in told if not letters),
            tuple(key for key, letters in told if letters),
            sum(letters for _, letters in told),
        )

    return stage


def _key(text: str) -> StagedKey:
    key = StagedKey.parse(text)
    if key is None:
        raise CorruptDataError(f"a task has staged under {text!r}, which is no key")
    return key
