"""Checkpoints that real queries left, each of which died in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.region.oracle import OPERATORS, Timeline
from tests.spark.region.runs import STORES, Run, busy_maintenance, settings

DIED_IN = 5
_STREAMING = "spark.sql.streaming."


@pytest.fixture(scope="package")
def checkpoints(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a join: on `rocksdb`, with schemas as transformWithState has them, and on `hdfs`; batch 4 is their last."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {}
    with busy_maintenance(spark, partitions=2):
        for name, store, form in (("rocksdb", "rocksdb-changelog", "3"), ("hdfs", "hdfs", "2")):
            made[name] = folder / name
            more = {f"{_STREAMING}stateStore.minDeltasForSnapshot": "2", f"{_STREAMING}join.stateFormatVersion": form}
            with settings(spark, STORES[store] | more):
                Run(spark, OPERATORS["join"], Timeline(), made[name]).until_batch(DIED_IN)
    return made
