"""How a batch's rows come into the sink's staging: each Spark task stages its own, the driver learns the keys alone.

One action for each batch: two would run a stateful operator twice, and one that does not reach every partition would
leave its state uncommitted. Attempts of tasks that did not count (retries, speculation) leave files that no key names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from kohort.errors import CorruptDataError
from kohort.region.consuming.staging import AWAY, is_away, sink_wait
from kohort.region.sinks import Sink
from kohort.region.staged import StagedKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT_BYTES = 64 * 1024 * 1024
"""A unit is staged when it has come to so much."""
UNITS_OF_ATTEMPT = 1 << 20
"""Units are numbered by the attempt of the task, of which no two in an application are alike, and then in order."""


@dataclass(frozen=True, slots=True)
class StagingTask:
    """What a Spark task does with its rows. Pickled to the workers.

    Attributes:
        schema: of what the sink takes, as it was checked.
    """

    sink: Sink
    schema: pa.Schema
    region_id: UUID
    epoch: int
    member: str
    unit_bytes: int = UNIT_BYTES

    def keys_of(self, batches: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        """Stage rows as they come; gives the keys, one column of text."""
        unit, held, size = attempt * UNITS_OF_ATTEMPT, list[pa.RecordBatch](), 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                size += batch.nbytes
            if size >= self.unit_bytes:
                unit, key = self._stage(unit, held)
                yield key
                held, size = [], 0
        if held:
            yield self._stage(unit, held)[1]

    def _stage(self, unit: int, batches: list[pa.RecordBatch]) -> tuple[int, pa.RecordBatch]:
        """Stage a unit, as often as it takes while the sink is away; gives the next one's number, and the key.

        Only this batch waits; checkpoints continue without it. Each attempt has a key of its own,
        for something of one that failed may be there.
        """
        table, wait = pa.Table.from_batches(batches).cast(self.schema), sink_wait(self.member)
        while True:
            key = StagedKey(self.region_id, self.epoch, self.member, unit)
            unit += 1
            try:
                self.sink.stage(key, table)
            except AWAY as error:
                if not is_away(error):
                    raise
                wait.failed(error)
                time.sleep(max(0.0, wait.again_s - time.monotonic()))
            else:
                wait.ended()
                return unit, pa.RecordBatch.from_arrays([_column(key.text())], names=["key"])


def _column(text: str) -> pa.Array[Any]:
    """One row. Not `pa.array`, which imports pandas where it is installed: a second in each worker that is new."""
    data = text.encode()
    ends = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


class StagedBatches:
    """What the batches of one run have staged and no complete sequence has yet. Any thread may call."""

    def __init__(self, after: int | None) -> None:
        """`after`: the last batch of the checkpoint that the run began with; None: it begins anew."""
        self._lock = threading.Lock()
        self._after = -1 if after is None else after
        self._given = self._after
        self._batches: dict[int, tuple[StagedKey, ...]] = {}

    def add(self, batch: int, keys: tuple[StagedKey, ...]) -> None:
        """A batch is staged, also one without rows: lost output must not look like none."""
        with self._lock:
            self._batches[batch] = keys

    def give(self, last: int | None) -> tuple[StagedKey, ...]:
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
            return tuple(key for number in wanted for key in self._batches[number])

    def counted(self) -> None:
        """What was given last is in a complete sequence."""
        with self._lock:
            for number in [number for number in self._batches if number <= self._given]:
                del self._batches[number]
            self._after = self._given

    def after(self) -> int:
        """The last batch that a complete sequence has; -1: none."""
        with self._lock:
            return self._after

    def ahead(self, last: int | None) -> int:
        """How many batches the last one is ahead of the last complete sequence."""
        with self._lock:
            return 0 if last is None else max(0, last - self._after)


def stage_batch(task: StagingTask) -> Callable[[DataFrame], tuple[StagedKey, ...]]:
    """The one action of a batch: its tasks stage, and what comes back are the keys of the attempts that counted."""

    def in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return task.keys_of(batches, context.taskAttemptId())

    def stage(rows: DataFrame) -> tuple[StagedKey, ...]:
        return tuple(_key(row.key) for row in rows.mapInArrow(in_worker, "key string").collect())

    return stage


def _key(text: str) -> StagedKey:
    key = StagedKey.parse(text)
    if key is None:
        raise CorruptDataError(f"a task has staged under {text!r}, which is no key")
    return key
