"""A process that runs one query once: forked by the nursery, ended as its settings say or by a signal.

What it does it notes in its application's story, a line of JSON each, whole or not there.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.spark.histories.engine import Execution
from tests.spark.histories.mutants import plant
from tests.spark.histories.settings import Life

from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.spark.source.catalog import TopicCatalog

STORY = "story.jsonl"
PAUSED, ENDING = "paused", "ending"


class SinkFailed(Exception):
    """The sink failed on purpose."""


class Run:
    """One life: what happens at its calls, its sink, and what it tells."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._calls = self._writes = 0
        Path(life.folder).mkdir(parents=True, exist_ok=True)
        self._story = os.open(Path(life.folder) / STORY, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def report(self, event: str, **facts: Any) -> None:
        """Note a fact; it is there when this returns, whatever ends the process afterwards."""
        life = self._life
        reported = {"e": event, "at": time.time_ns(), "life": life.number, "checkpoint": life.checkpoint, **facts}
        os.write(self._story, json.dumps(reported).encode() + b"\n")

    def listen(self) -> None:
        """Add the source's log lines to the story."""
        heard = logging.Handler(logging.WARNING)
        heard.emit = lambda record: self.report("log", text=record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("kohort").addHandler(heard)

    def reach(self, point: str) -> None:
        """A point of the run: where it is ended, or paused."""
        self._calls += 1
        if self._calls == self._life.ends_at:
            self.report(ENDING, point=point, how=self._life.ends_how)
            os.kill(os.getpid(), signal.SIGKILL if self._life.ends_how == "kill" else signal.SIGTERM)
        if self._calls in self._life.pauses:
            self.report(PAUSED, point=point)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.report("woke", point=point)

    def sink(self, batch: int, tables: list[pa.RecordBatch]) -> None:
        """Writes what it gets, or a part of it, and fails when it is told to."""
        life = self._life
        self._writes += 1
        rows = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        ms = life.slow_ms if self._writes == life.slow_at else life.sink_ms
        if self._writes == life.fails_at:
            rows = rows[: round(len(rows) * life.fails_with)]
        time.sleep(ms / 1000)
        ranges: dict[tuple[str, int, int, int, int], list[list[int]]] = defaultdict(list)
        for value, topic, partition, offset, generation, start, end in rows:
            ranges[topic, partition, generation, start, end].append([offset, int(value)])
        self.report("write", batch=batch, rows=[[*key, found] for key, found in sorted(ranges.items())])
        if self._writes == life.fails_at:
            raise SinkFailed

    def play(self) -> int:
        """Until it ends; 0 when it was stopped or had nothing more to do."""
        life = self._life
        self.report("begin", trigger=life.trigger, planned_ranges=life.options.get("plannedRanges", "owned"))
        checkpoint = Path(life.folder) / f"checkpoint-{life.checkpoint}"
        execution = None
        try:
            execution = Execution(life.options, checkpoint, self.sink, self.reach, self.report)
            try:
                execution.run(life.trigger, life.interval_ms, life.twice)
            finally:
                execution.reader.stop()
        except SinkFailed:
            self.report("failed", error="", of="SinkFailed")
            return 1
        except SystemExit:
            self.report("stopped")
            return 0
        except Exception as error:  # noqa: BLE001 - whatever it is, the history's checker judges it
            reported = f"{type(error).__name__}: {error}"
            self.report("failed", error=reported, of="known" if isinstance(error, KafkaError) else "unknown")
            return 1
        self.report("done")
        return 0


def slow_looks(ms: int) -> None:
    """Have each look at partitions' ends take its time."""
    ends = TopicCatalog.end_offsets

    def slowly(self: TopicCatalog, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = ends(self, partitions)
        time.sleep(ms / 1000)
        return found

    TopicCatalog.end_offsets = slowly  # type: ignore[method-assign]


COLUMNS = "value,topic,partition,offset,generation,rangeStart,rangeEnd"


def play(text: str) -> int:
    """The process's whole work."""
    life = Life.from_json(text)
    plant(life.mutant)
    if life.look_ms:
        slow_looks(life.look_ms)
    run = Run(life)
    run.listen()
    return run.play()
