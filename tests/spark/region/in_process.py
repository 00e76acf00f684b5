"""Regions of Spark queries in the test's process, and what their sinks show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Stage

from kohort import Producer
from kohort.region.sinks import Sink
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.spark import SparkRegion


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows that are published, in the order of their sequences."""
    files = sorted(
        folder.glob("sequence=*/*.parquet"), key=lambda path: int(path.parent.name.removeprefix("sequence="))
    )
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def lines(frame: DataFrame) -> DataFrame:
    """Where a record was, and its value."""
    return frame.selectExpr("CAST(value AS STRING) AS line", "partition", "offset")


@dataclass
class Application:
    """Makes regions of one name; each is an application of it."""

    spark: SparkSession
    stage: Stage
    name: str
    made: list[SparkRegion] = field(default_factory=list)

    def region(self, **settings: Any) -> SparkRegion:
        settings.setdefault("checkpoint_every", "500ms")
        settings.setdefault("folder", self.stage.folder / "regions")
        self.made.append(SparkRegion(self.spark, self.name, self.stage.servers, **settings))
        return self.made[-1]

    def source(self, topic: str = "", group: str = "", **more: Any) -> dict[str, str]:
        source = {"subscribe": topic or self.stage.topic, "group.id": group or self.stage.group}
        return source | {"kafka.session.timeout.ms": "60000"} | more

    def query(
        self, region: SparkRegion, name: str, build: Callable[..., DataFrame], into: str | Sink, **options: Any
    ) -> None:
        options = {"source": self.source(), "start": "beginning"} | options
        sink = ParquetFolder(self.stage.folder / into) if isinstance(into, str) else into
        region.query(name, build, into=sink, **options)

    def rows(self, into: str) -> list[dict[str, Any]]:
        return rows_of(self.stage.folder / into)

    def lines(self, into: str) -> Counter[str]:
        """How often each line was published."""
        return Counter(str(row["line"]) for row in self.rows(into))

    def until(self, holds: Callable[[], object], what: str) -> None:
        self.stage.signs["published"] = lambda: sorted(
            str(path.relative_to(self.stage.folder)) for path in self.stage.folder.glob("*/sequence=*")
        )
        self.stage.signs["runs"] = lambda: sorted(
            (str(path.relative_to(self.stage.folder)), path.stat().st_mtime_ns)
            for path in self.stage.folder.glob("regions/*/*/*/*")
            if path.exists()
        )
        self.stage.signs["slow starts"] = lambda: [
            query.query._slow
            for region in self.made
            for query in list(region._running.values())
            if query.query is not None
        ]
        self.stage.until(holds, what)

    def send(self, topic: str, *values: str, partition: int | None = None) -> None:
        with Producer(self.stage.servers) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value, partition=number % 4 if partition is None else partition)


@pytest.fixture
def application(spark: SparkSession, stage: Stage) -> Iterator[Application]:
    made = Application(spark, stage, f"r-{stage.topic}")
    yield made
    for region in reversed(made.made):
        region.close(gently=False)
