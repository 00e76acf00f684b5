"""Spark as a reader of a folder with partitions that a region has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.region.test_hive_partitions import REGION, SCHEMA, key, published, table


def test_spark_sees_the_partitions_of_a_local_folder(spark: Any, tmp_path: Path) -> None:
    from kohort.region import ParquetFolder

    sink = ParquetFolder(tmp_path / "out", partition_by=["name"]).bind("flights", REGION)
    sink.check(SCHEMA)
    wanted = published(sink)
    sink.stage(key(3), table("next", start=200))
    frame = spark.read.parquet(sink.path)
    assert {row["id"]: row["name"] for row in frame.collect()} == wanted
    assert set(frame.columns) == {"id", "day", "good", "sequence", "name"}
    sink.publish(2, [key(3)])
    found = {(row["id"], row["sequence"]) for row in spark.read.parquet(sink.path).where("name = 'next'").collect()}
    assert found == {(200, 2)}
    listed = spark.read.option("basePath", sink.path).parquet(*[file.path for file in sink.published_files()])
    assert {row["id"]: row["name"] for row in listed.collect()} == wanted | {200: "next"}
