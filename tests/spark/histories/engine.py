"""Spark's micro-batch execution of one run of a query, without Spark: its calls in its order, its two logs on disk.

The order is what traces of PySpark 4.2 and 4.3 show. The data source and the reader travel as pickles, and offsets as
text. Spark does the same to the process that drives a query, to the planning process and to the workers.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.python_streaming_source_runner import READ_LIMIT_REGISTRY
from tests.spark.histories.settings import Trigger

from kohort.ids import TopicPartition
from kohort.spark.data_source import KohortDataSource
from kohort.spark.options import parse_options
from kohort.spark.schema import arrow_schema, column_names_of

UNSETTLED_MS = 50
"""A query that ends in a rebalance that has lasted for longer has not looked at its group before it ended."""


class Log:
    """One of a checkpoint's two logs: a file for each batch, whole or not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, batch: int, text: str) -> None:
        unfinished = self._folder / f".{batch}.tmp"
        unfinished.write_text(text)
        unfinished.rename(self._folder / str(batch))

    def read(self, batch: int) -> str | None:
        file = self._folder / str(batch)
        return file.read_text() if file.exists() else None

    def latest(self) -> int | None:
        return max(self.written(), default=None)

    def written(self) -> dict[int, int]:
        """When each batch was written, in ns since the epoch."""
        return {int(file.name): file.stat().st_mtime_ns for file in self._folder.glob("[0-9]*")}


class Sink(Protocol):
    """Takes a batch's tables; raises when it fails."""

    def __call__(self, batch: int, rows: list[pa.RecordBatch]) -> None: ...


class Execution:
    """One run of a query.

    Args:
        options: of the source.
        checkpoint: its folder.
        sink: takes each batch.
        reach: called at each point of the run with its name, before or after a call; what ends or pauses a run does
            it there.
        tell: notes a fact.
    """

    def __init__(
        self,
        options: dict[str, str],
        checkpoint: Path,
        sink: Sink,
        reach: Callable[[str], None],
        report: Callable[..., None],
    ) -> None:
        self.offsets, self.commits = Log(checkpoint / "offsets"), Log(checkpoint / "commits")
        self._sink, self._reach, self._record = sink, reach, report
        declared = KohortDataSource(options)
        self._schema = arrow_schema(column_names_of(parse_options(options)))
        self._source = dumps(declared)
        self.reader = loads(self._source).streamReader(from_arrow_schema(self._schema))
        self._workers: Any = None
        self._limit: Any = None
        self._batch = self._answered = 0
        self._finished: str | None = None
        """The end of the last batch whose sink was done: Spark's committed offset."""
        self._available: str | None = None
        """The end of the last batch that was planned."""
        self._held: set[TopicPartition] = set()
        self._left: set[TopicPartition] = set()
        """The partitions of the query's member in the last trigger, and when its last call was answered."""

    def run(self, trigger: Trigger, interval_ms: int, twice: bool = False) -> None:
        """From start to end; an interval goes on until something ends the process."""
        self._twice = twice
        limit = self.call("getDefaultReadLimit")
        self._limit = READ_LIMIT_REGISTRY.get(dataclasses.asdict(limit) | {"_type": type(limit).__name__})
        if trigger == "availableNow":
            self._record("aim", ends=self._watch_looks())
            self.call("prepareForTriggerAvailableNow")
        if trigger == "once":
            self._limit = ReadAllAvailable()
        self._resume()
        while True:
            moved = self._trigger()
            if trigger == "once" or (trigger == "availableNow" and not moved):
                if trigger == "availableNow":
                    self._record("read", since=self._called, held=sorted(self._held & self._left))
                return
            if not moved:
                time.sleep(interval_ms / 1000)

    def call(self, name: str, *arguments: Any) -> Any:
        self._reach(f"before {name}")
        answer = getattr(self.reader, name)(*arguments)
        self._answered, self._left = time.time_ns(), self._holds()  # a pause comes after it
        self._reach(f"after {name}")
        return answer

    def _resume(self) -> None:
        """Resume from the checkpoint; a batch without an entry in the commit log runs again."""
        latest = self.offsets.latest()
        if latest is None:
            return
        self._batch, self._available = latest, self.offsets.read(latest)
        if self.commits.read(latest) is not None:
            self._batch, self._finished = latest + 1, self._available
            return
        self._finished = self.offsets.read(latest - 1) if latest else None
        self._run_batch(time.time_ns())

    def _watch_looks(self) -> list[tuple[str, int, int]]:
        """Note what the query looks at from now on; give topic, partition and end of all that it may be given."""
        catalog = self.reader._driver()._catalog
        ends = catalog.end_offsets

        def noted(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            wanted = list(partitions)
            self._held |= set(wanted)
            found: dict[TopicPartition, int] = ends(wanted)
            return found

        every = ends(catalog.partitions(known=None))
        catalog.end_offsets = noted
        return [(*tp, end) for tp, end in every.items()]

    def _holds(self) -> set[TopicPartition]:
        """Return the partitions of the query's member, whatever the query makes of them; none if it is no member.

        In a rebalance that takes long, this includes its earlier partitions that no member has yet.
        """
        group = getattr(getattr(self.reader._query, "_coordinator", None), "_group", None)
        member = getattr(group, "_member", None)
        if member is None:
            return set()
        membership = member._membership
        since_ms, before = membership._unsettled or (float("inf"), ())
        lasts = membership.cluster.runtime.now_ms - since_ms > UNSETTLED_MS
        return set(member.assignment().partitions) | set(before if lasts else ())

    def _trigger(self) -> bool:
        """One trigger; whether there was a batch."""
        start = self._finished or json.dumps(self.call("initialOffset"))
        self._held, self._called = self._holds(), time.time_ns()
        called = self._called
        end = json.dumps(self.call("latestOffset", json.loads(start), self._limit))
        json.dumps(self.call("reportLatestOffset"))
        if end == start:
            return False
        self._available = end
        self._record("plan", batch=self._batch, called=called, answered=self._answered, end=json.loads(end))
        self._reach("before the offset log")
        self.offsets.add(self._batch, end)
        self._reach("after the offset log")
        before = self.offsets.read(self._batch - 1) if self._batch else None
        if before is not None:
            self.call("commit", json.loads(before))
        self._run_batch(called)
        return True

    def _run_batch(self, called: int) -> None:
        start = self._finished or json.dumps(self.call("initialOffset"))
        end = str(self._available)
        made = self.call("partitions", json.loads(start), json.loads(end))
        reads = sorted({tuple(part.partition) for task in made for part in task.slices})
        tasks = [dumps(task) for task in made]
        self._record("tasks", batch=self._batch, called=called, end=json.loads(end), reads=reads)
        if self._workers is None:  # the planning process builds a reader of its own, and workers get a copy of that
            self._workers = dumps(loads(self._source).streamReader(from_arrow_schema(self._schema)))
        reader = loads(self._workers)
        rows = [batch for task in tasks for batch in self._read(reader, loads(task))]
        self._reach("before the sink")
        self._sink(self._batch, rows)
        self._reach("after the sink")
        self.commits.add(self._batch, "{}")
        self._reach("after the commit log")
        self._finished = end
        self._notice(end)
        self._batch += 1

    def _notice(self, end: str) -> None:
        """A batch is finished: the application's listener hears of it, and may tell the source's process."""
        reported = getattr(self.reader, "sink_done", None)
        if reported is not None:
            reported(end)

    def _read(self, reader: Any, task: InputPartition) -> Iterator[pa.RecordBatch]:
        first = list(self._attempt(reader, task))
        if self._twice:
            again = list(self._attempt(reader, task))
            had = [row for batch in first for row in batch.to_pylist()]
            assert all(row in had for batch in again for row in batch.to_pylist()), "two attempts of one task differ"
        return iter(first)

    def _attempt(self, reader: Any, task: InputPartition) -> Iterator[pa.RecordBatch]:
        self._reach("before read")
        for batch in reader.read(task):
            assert batch.schema.equals(self._schema), f"Spark refuses {batch.schema}"
            yield batch
            self._reach("in read")
        self._reach("after read")
