"""Queries with state: windows, sessions, duplicates, joins, and a count that goes on from run to run."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, expr, from_json, session_window, window
from pyspark.sql.functions import sum as total
from tests.spark.ports.job_site import JobSite, Rows, job

READING = "sensor STRING, celsius DOUBLE, at TIMESTAMP"


def at(second: int) -> str:
    return f"2024-05-01T10:{second // 60:02}:{second % 60:02}Z"


def readings(source: str, site: JobSite, seconds: tuple[int, ...]) -> DataFrame:
    """A stream of sensors' readings, one at each of these seconds."""
    values = [{"sensor": f"s{second % 2}", "celsius": second / 10, "at": at(second)} for second in seconds]
    frame = site.stream(source, subscribe=site.fill("readings", values, key="sensor"))
    return frame.select(from_json(col("value").cast("string"), READING).alias("reading")).select("reading.*")


@job()
def averages_by_minute(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Sensors' averages of tumbling windows behind a watermark: append mode writes what is closed alone."""
    frame = readings(source, site, (0, 10, 21, 59, 60, 75, 130, 299, 600))
    windows = frame.withWatermark("at", "1 minute").groupBy(window("at", "1 minute"), "sensor")
    averages = windows.agg(avg("celsius").alias("mean"), count("*").alias("count"))
    flat = averages.selectExpr("window.start", "window.end", "sensor", "mean", "count")
    out = str(site.folder / "averages")
    site.drain(flat.writeStream.outputMode("append").format("parquet").option("path", out))
    return spark.read.parquet(out).collect()


@job()
def sliding_windows_in_update_mode(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Trends over sliding windows by update mode, each change handed to `foreachBatch`."""
    frame = readings(source, site, (0, 20, 40, 61, 90, 125))
    counts = frame.withWatermark("at", "5 minutes").groupBy(window("at", "1 minute", "30 seconds")).count()
    seen: list[Any] = []
    site.drain(
        counts.writeStream.outputMode("update").foreachBatch(
            lambda batch, _: seen.extend(batch.selectExpr("window.start", "count").collect())
        )
    )
    return seen


@job()
def sessions_of_users(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Visits by `session_window` with a gap of half a minute."""
    frame = readings(source, site, (0, 2, 4, 5, 28, 80, 82, 91, 400, 401))
    visits = (
        frame.withWatermark("at", "10 seconds").groupBy(session_window("at", "30 seconds"), "sensor").agg(count("*"))
    )
    name = f"sessions_{source}"
    site.drain(visits.writeStream.outputMode("append").format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def duplicates_left_out(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Orders sent twice by their producer are counted once: `dropDuplicates` behind a watermark."""
    orders = [{"id": number % 5, "amount": 10 * (number % 5), "at": at(number % 5)} for number in range(13)]
    frame = site.stream(source, subscribe=site.fill("orders", orders, key="id"))
    parsed = frame.select(from_json(col("value").cast("string"), "id INT, amount INT, at TIMESTAMP").alias("o"))
    once = parsed.select("o.*").withWatermark("at", "10 minutes").dropDuplicates(["id", "at"])
    name = f"once_{source}"
    site.drain(once.writeStream.format("memory").queryName(name))
    return spark.table(name).agg(count("*"), total("amount")).collect()


@job()
def clicks_joined_with_impressions(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """Two streams joined by an advertisement's id and an interval of time, both behind watermarks."""
    shown = [{"ad": number, "at": at(number * 10)} for number in range(8)]
    clicked = [{"ad": number, "at": at(number * 10 + number)} for number in (1, 3, 5, 7, 7, 99)]
    sides: dict[str, DataFrame] = {}
    for side, values in (("shown", shown), ("clicked", clicked)):
        frame = site.stream(source, subscribe=site.fill(side, values, key="ad"))
        parsed = frame.select(from_json(col("value").cast("string"), "ad INT, at TIMESTAMP").alias("v"))
        sides[side] = parsed.selectExpr(f"v.ad AS {side}_ad", f"v.at AS {side}_at").withWatermark(
            f"{side}_at", "1 minute"
        )
    within = "shown_ad = clicked_ad AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 6 SECONDS"
    name = f"clicks_{source}"
    site.drain(sides["shown"].join(sides["clicked"], expr(within)).writeStream.format("memory").queryName(name))
    return spark.table(name).collect()


@job()
def a_count_that_continues(spark: SparkSession, source: str, site: JobSite) -> Rows:
    """A scheduled job: `availableNow` every hour with the same checkpoint, its state and offsets kept between runs."""
    seen: list[Any] = []
    topic = site.topic("visits")
    frame = site.stream(source, subscribe=topic, maxOffsetsPerTrigger=4)
    counts = frame.selectExpr("CAST(value AS STRING) AS page").groupBy("page").count()
    for run in range(2):
        site.send(topic, [f"page{number % 3}" for number in range(5 + run)])
        latest: dict[str, Any] = {}
        site.drain(
            counts.writeStream.outputMode("update").foreachBatch(
                lambda batch, _, latest=latest: latest.update({row["page"]: row for row in batch.collect()})
            )
        )
        seen += [(run, *row) for row in latest.values()]
    return seen
