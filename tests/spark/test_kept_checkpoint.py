"""A Spark query starts again from a checkpoint that a released version wrote, and reads only what is new."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import LAST_RESORT
from tests.test_kept_folders import ARCHIVES
from tools.kept_folder import CONFIG

from kohort import Broker, Producer


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_query_continues_from_a_kept_checkpoint(archive: Path, spark: Any, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    read: list[str] = []
    with Broker(tmp_path / "data", CONFIG) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("records", "new").result()
        stream = spark.readStream.format("kohort").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        stream = stream.option("subscribe", "records").option("group.id", "of-spark")
        query = (
            stream.option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value").writeStream
            .foreachBatch(lambda rows, _: read.extend(row.value for row in rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
    assert read == ["new"]
