"""The surroundings of a job of the list: brokers, topics that it fills, a folder, and ways to look at its rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from kohort import Admin, Producer
from kohort.client.admin.values import NewTopic

FIRST_MS = 1_700_000_000_000
"""Time of the first record of a topic; each of the next is a second later."""
Rows = Any
"""Any iterable of tuples or of Spark's rows."""
Run = Callable[[SparkSession, str, "JobSite"], Rows]


@dataclass
class Job:
    """A job of the list: as its author wrote it, and mended where Spark refuses that or hands over other rows."""

    run: Run
    chapter: str
    refused: str | None = None
    """Spark's words of refusal."""
    mended: Run | None = None
    differs: bool = False
    """Whether it ends with other rows as it is written."""

    @property
    def kind(self) -> str:
        return (self.run.__doc__ or "").splitlines()[0]


JOBS: dict[str, Job] = {}


def job(refused: str | None = None, mended: Run | None = None, differs: bool = False) -> Callable[[Run], Run]:
    """Put a function on the list; `mended` is what its author writes when Spark refuses it, or its rows differ."""

    def listed(run: Run) -> Run:
        JOBS[run.__name__] = Job(run, run.__module__.rsplit(".", 1)[-1], refused, mended, differs)
        return run

    return listed


@dataclass
class JobSite:
    """A job's surroundings in one run under one format; all names of topics begin with `prefix`."""

    spark: SparkSession
    servers: str
    folder: Path
    prefix: str

    def topic(self, name: str, partitions: int = 2) -> str:
        """Make a topic."""
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(self.prefix + name, partitions)]).all()
        return self.prefix + name

    def fill(self, name: str, values: Iterable[Any], key: str | None = None, partitions: int = 2) -> str:
        """Make a topic with these values, dealt to the partitions in turn; `key` is a field of dictionaries."""
        topic = self.topic(name, partitions)
        self.send(topic, values, key, partitions)
        return topic

    def send(self, topic: str, values: Iterable[Any], key: str | None = None, partitions: int = 2) -> None:
        """Send dictionaries as JSON, text, bytes, tombstones, or (key, value, headers)."""
        with Producer(self.servers) as producer:
            for number, value in enumerate(values):
                headers: list[tuple[str, bytes]] = []
                name = str(value[key]) if key is not None and isinstance(value, dict) else None
                if isinstance(value, tuple):
                    name, value, headers = value
                producer.send(
                    topic,
                    encoded(value),
                    key=None if name is None else name.encode(),
                    partition=number % partitions,
                    timestamp_ms=FIRST_MS + number * 1_000,
                    headers=headers,
                )

    def stream(self, source: str, **options: object) -> DataFrame:
        """A stream from the earliest offsets unless the options say otherwise; a name's `__` is a dot."""
        return self._reader(self.spark.readStream.format(source), options)

    def batch(self, source: str, **options: object) -> DataFrame:
        """A batch read."""
        return self._reader(self.spark.read.format(source), options)

    def _reader(self, reader: Any, options: dict[str, object]) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.servers, "startingOffsets": "earliest"} | options
        return reader.options(**{name.replace("__", "."): value for name, value in given.items()}).load()

    def drain(self, writer: DataStreamWriter, checkpoint: str = "checkpoint") -> None:
        """Run a query over all that is there, then end it."""
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def written(self, topic: str, *columns: str) -> Any:
        """Rows of a topic as Spark's own source reads them: key and value unless expressions are given."""
        read = self.batch("kafka", subscribe=topic, includeHeaders="true")
        return read.selectExpr(*(columns or ("CAST(key AS STRING)", "CAST(value AS STRING)"))).collect()


def encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (json.dumps(value) if isinstance(value, dict) else value).encode()


def text_of(row: Any, prefix: str) -> str:
    """A row to compare: its values as text, names of topics without the prefix of the run."""
    return str([str(value).replace(prefix, "") for value in row])
