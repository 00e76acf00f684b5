"""Which operators keep state, by plans of Spark itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, window

from kohort.errors import InvalidInputError
from kohort.spark.region.query_factory import has_watermark, refuse_unreplayable_sources, stateful_operators

Build = Callable[[DataFrame], DataFrame]


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("value").count()


def late(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("timestamp", "1 minute")


def distinct_by_sql(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("rates")
    return frame.sparkSession.sql("SELECT DISTINCT value FROM rates")


CASES: dict[str, tuple[Build, tuple[str, ...]]] = {
    "a projection": (lambda frame: frame.select("value").where("value > 3"), ()),
    "an aggregation": (counted, ("aggregation",)),
    "a window": (lambda frame: late(frame).groupBy(window("timestamp", "1 minute")).count(), ("aggregation",)),
    "distinct": (lambda frame: frame.select("value").distinct(), ("dropDuplicates",)),
    "distinct in SQL": (distinct_by_sql, ("distinct",)),
    "dropDuplicates": (lambda frame: late(frame).dropDuplicates(["value", "timestamp"]), ("dropDuplicates",)),
    "within a watermark": (
        lambda frame: late(frame).dropDuplicatesWithinWatermark(["value"]),
        ("dropDuplicatesWithinWatermark",),
    ),
    "a join of streams": (lambda frame: late(frame).join(late(frame), ["value", "timestamp"]), ("join of streams",)),
    "a join with a table": (lambda frame: frame.join(frame.sparkSession.range(9), col("value") == col("id")), ()),
    "a join with an aggregated table": (
        lambda frame: frame.join(frame.sparkSession.range(9).groupBy("id").count(), col("value") == col("id")),
        (),
    ),
    "a limit": (lambda frame: frame.limit(5), ("limit",)),
    "applyInPandasWithState": (
        lambda frame: frame.groupBy("value").applyInPandasWithState(
            lambda key, frames, state: frames, "value long", "n long", "update", "NoTimeout"
        ),
        ("applyInPandasWithState",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_names_operators_that_keep_state(spark: SparkSession, name: str) -> None:
    build, wanted = CASES[name]
    frame = build(spark.readStream.format("rate").load())
    assert stateful_operators(frame) == wanted
    assert has_watermark(frame) is (name in ("a window", "dropDuplicates", "within a watermark", "a join of streams"))


def test_a_source_that_cant_go_back_is_refused(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    refuse_unreplayable_sources(rates)
    text = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    with pytest.raises(InvalidInputError, match="can't go back"):
        refuse_unreplayable_sources(rates.join(text, rates.value == text.value))


def test_files_that_stay_are_a_source_that_can_go_back(spark: SparkSession, tmp_path: Path) -> None:
    for reported in ({}, {"cleanSource": "OFF"}):
        refuse_unreplayable_sources(spark.readStream.options(**reported).text(str(tmp_path)))
    with pytest.raises(InvalidInputError, match="cleanSource=delete"):
        refuse_unreplayable_sources(spark.readStream.option("cleanSource", "delete").text(str(tmp_path)))
