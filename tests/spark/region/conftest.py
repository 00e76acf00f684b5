"""Checkpoints that real queries left, each of which died in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.region.oracle import OPERATORS, Timeline
from tests.spark.region.runs import STORES, Run, busy_maintenance, settings

DIED_IN = 5


@pytest.fixture(scope="package")
def checkpoints(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By operator: `transform` on RocksDB with a changelog, `join` on the HDFS-backed store; batch 4 is their last."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {}
    with busy_maintenance(spark, partitions=2):
        for name, store in (("transform", "rocksdb-changelog"), ("join", "hdfs")):
            made[name] = folder / name
            with settings(spark, STORES[store] | {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "2"}):
                Run(spark, OPERATORS[name], Timeline(), made[name]).until_batch(DIED_IN)
    return made
