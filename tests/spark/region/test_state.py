"""State stays with its query while partitions move: results that are right, and the faults that make them wrong.

Long ones: make spark-region. A test of several sources is in `test_sources`.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.spark.region.in_process import Application, application, lines
from tests.spark.region.test_face import once, without_repeats
from tests.support.waiting import LAST_RESORT

from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.spark import SparkRegion
from kohort.spark.region.spark_region import pinned_query_of

__all__ = ["application"]
pytestmark = [
    LAST_RESORT,
    pytest.mark.skipif("KOHORT_SPARK_REGION" not in os.environ, reason="a long one: make spark-region"),
]

NAMES = ("a", "b")


def owners(app: Application) -> dict[str, list[int]]:
    """Which partitions each query reads for ever."""
    return {
        name: [number for number in range(4) if pinned_query_of(app.stage.topic, number, NAMES) == name]
        for name in NAMES
    }


def pinned(app: Application, *names: str) -> SparkRegion:
    region = app.region()
    for name in names:
        app.query(region, name, without_repeats, f"out-{name}", state="pinned", queries=NAMES)
    region.start()
    return region


def published(app: Application, *names: str) -> Counter[str]:
    return sum((app.lines(f"out-{name}") for name in names), Counter())


def send_by_partition(app: Application, numbers: range) -> None:
    """A value has one partition for ever."""
    for partition in range(4):
        app.send(app.stage.topic, *(str(number) for number in numbers if number % 4 == partition), partition=partition)


def test_pinned_queries_and_one_that_is_away(application: Application) -> None:
    app = application
    send_by_partition(app, range(40))
    both = pinned(app, "a", "b")
    app.until(lambda: published(app, *NAMES) == once(range(40)), "both have read theirs")
    both.close()

    send_by_partition(app, range(60))
    alone = pinned(app, "a")
    mine = {str(number) for number in range(60) if number % 4 in owners(app)["a"]}
    app.until(lambda: set(app.lines("out-a")) == mine, "one has read what is its own")
    at = alone.complete()
    app.until(lambda: alone.complete() > at + 3, "sequences go by")
    assert published(app, "a") == Counter(mine), "and no partition of the other's"
    alone.close()

    again = pinned(app, "a", "b")
    app.until(lambda: published(app, *NAMES) == once(range(60)), "what waited is read, and repeats are known")
    send_by_partition(app, range(80))
    app.until(lambda: set(published(app, *NAMES)) == set(once(range(80))), "all is read")
    at = again.complete()
    app.until(lambda: again.complete() > at + 1, "nothing follows")
    assert published(app, *NAMES) == once(range(80))
    again.close()


def test_without_repeats_is_wrong_where_a_partition_moves_and_the_fault_is_allowed(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries share an ordinary group: its assignor moves partitions, and no state with them."""
    monkeypatch.setattr("kohort.spark.region.spark_region.check_can_share_group", lambda declared, built: True)
    app = application
    send_by_partition(app, range(40))
    first, second = app.region(), app.region()
    app.query(first, "a", without_repeats, "out-a")
    app.query(second, "b", without_repeats, "out-b")
    first.start()
    app.until(lambda: published(app, "a") == once(range(40)), "the first has read all")
    second.start()
    app.until(lambda: len(app.stage.members()) == 2 and all(app.stage.members().values()), "partitions have moved")
    send_by_partition(app, range(60))
    app.until(lambda: set(published(app, *NAMES)) == set(once(range(60))), "all is read")
    assert max(published(app, *NAMES).values()) > 1, "a repeat was taken for news"


def test_parts_of_an_aggregation_are_added_up(application: Application) -> None:
    """Results of two queries, of which each has a part, after partitions have moved between them."""
    app = application

    def counted(frame: DataFrame) -> DataFrame:
        return lines(frame).selectExpr("CAST(line AS INT) % 3 AS kind").groupBy("kind").count()

    def replacing(name: str) -> ParquetFolder:
        sink: Any = ParquetFolder(app.stage.folder / f"out-{name}")
        sink.mode, sink.keys = "update", ("kind",)  # its rows are replaced by who reads: counts only grow
        return sink  # type: ignore[no-any-return]

    def added_up() -> Counter[int]:
        found: Counter[int] = Counter()
        for name in NAMES:
            latest: Counter[int] = Counter()
            for row in app.rows(f"out-{name}"):
                latest[row["kind"]] = max(latest[row["kind"]], row["count"])
            found += latest
        return found

    def wanted() -> Counter[int]:
        return Counter(number % 3 for number in range(app.stage.sent))

    first, second = app.region(), app.region()
    for region, name in ((first, "a"), (second, "b")):
        app.query(region, name, counted, replacing(name), output_mode="update", state="partial")
    app.stage.produce(50)
    first.start()
    app.until(lambda: added_up() == wanted(), "the first has counted all")
    second.start()
    app.until(lambda: len(app.stage.members()) == 2 and all(app.stage.members().values()), "partitions have moved")
    app.stage.produce(50)
    app.until(lambda: added_up() == wanted(), "both have counted their parts")
    first.reset("a trial")
    app.stage.produce(20)
    app.until(lambda: added_up() == wanted(), "also after a reset")
    assert app.rows("out-b")
