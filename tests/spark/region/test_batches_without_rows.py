"""Queries over files, whose source keeps a log of its own, and batches that Spark runs when nothing is to be read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.region.runs import settings
from tests.support.waiting import LAST_RESORT

from kohort.spark.region.folders import clone_checkpoint, last_completed_batch

pytestmark = [pytest.mark.spark, LAST_RESORT]
MADE = 1_700_000_000
"""When the first file was made, in seconds: Spark reads the oldest first."""


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    """The log of a file source is compacted at every other entry, and what is compacted is removed at once."""
    log = "spark.sql.streaming.fileSource.log."
    wanted = {f"{log}compactInterval": "2", f"{log}cleanupDelay": "0", "spark.sql.shuffle.partitions": "1"}
    with settings(spark, wanted):
        yield spark


def put(folder: Path, number: int, *seconds: int) -> None:
    """A file with a row for each second; the files are read in the order of their numbers."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"at": second, "file": number}) + "\n" for second in seconds)
    (folder / f".{number}").write_text(text)
    os.utime(folder / f".{number}", (MADE + number, MADE + number))
    (folder / f".{number}").rename(folder / f"{number}.json")


def lines(session: Any, folder: Path) -> Any:
    source = session.readStream.schema("at long, file long").option("maxFilesPerTrigger", 1)
    return source.json(str(folder))


def run(stream: Any, checkpoint: Path, mode: str = "append") -> dict[int, list[tuple[int, ...]]]:
    """The rows of each batch, until there is nothing more to read."""
    found: dict[int, list[tuple[int, ...]]] = {}

    def each(frame: Any, number: int) -> None:
        found[number] = sorted(tuple(row) for row in frame.collect())

    writer = stream.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).foreachBatch(each)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return found


def test_files_are_read_again_from_where_the_query_continues(session: Any, tmp_path: Path) -> None:
    """Also those that the source's log, which comes whole, had noted for batches that were given up."""
    for number in range(7):
        put(tmp_path / "in", number, number)
    first = run(lines(session, tmp_path / "in"), tmp_path / "e1")
    assert sorted(first) == list(range(7)) and any((tmp_path / "e1/sources/0").glob("*.compact"))
    clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/e2", 2)
    put(tmp_path / "in", 7, 7)
    again = run(lines(session, tmp_path / "in"), tmp_path / "e2")
    assert min(again) == 3
    kept = [row for number in (0, 1, 2) for row in first[number]]
    assert sorted(kept + [row for rows in again.values() for row in rows]) == [(number, number) for number in range(8)]


def windows(session: Any, folder: Path) -> Any:
    from pyspark.sql import functions as f

    rows = lines(session, folder).withColumn("at", f.expr("timestamp_seconds(at)")).withWatermark("at", "1 second")
    counted = rows.groupBy(f.window("at", "10 seconds")).agg(f.count("*").alias("count"))
    return counted.selectExpr("unix_seconds(window.start)", "count")


def test_a_batch_without_rows_counts_as_any_other(session: Any, tmp_path: Path) -> None:
    """Gone back to before it, the query gives its rows again; gone back to it, it does not."""
    put(tmp_path / "in", 0, 1, 2)
    put(tmp_path / "in", 1, 12)
    first = run(windows(session, tmp_path / "in"), tmp_path / "e1")
    assert first == {0: [], 1: [], 2: [(0, 2)]} and last_completed_batch(f"{tmp_path}/e1") == 2
    clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/e2", 1)
    clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/e3", 2)
    put(tmp_path / "in", 2, 13, 25)
    assert run(windows(session, tmp_path / "in"), tmp_path / "e2")[2] == [(0, 2)]
    third = run(windows(session, tmp_path / "in"), tmp_path / "e3")
    assert [row for rows in third.values() for row in rows] == [(10, 2)]
