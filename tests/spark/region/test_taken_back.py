"""Real queries are taken back, read other rows than before, and give what they would have given without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.spark.region.oracle import OPERATORS
from tests.spark.region.runs import NEVER, OFTEN, STORES, busy_maintenance, settings, taken_back_twice
from tests.support.waiting import LAST_RESORT

from kohort.spark.region import folders

pytestmark = [pytest.mark.spark, LAST_RESORT]
WHOLE = "KOHORT_EVERYWHERE" in os.environ
"""Every operator on every store, with snapshots after going back and without; else some of each."""
SOME = [
    ("hdfs", "aggregation", NEVER),
    ("hdfs", "join", OFTEN),
    ("rocksdb", "window", OFTEN),
    ("rocksdb-changelog", "transform", OFTEN),
    ("rocksdb-2", "in-pandas", OFTEN),
    ("rocksdb-2-changelog", "dedup", NEVER),
]
ALL = [
    (store, operator, snapshots)
    for store in STORES
    for operator in OPERATORS
    for snapshots in (OFTEN, NEVER)
    if not (store == "hdfs" and OPERATORS[operator].rocksdb_alone)
]
STALE = [("hdfs", "aggregation"), ("rocksdb-changelog", "dedup")]
STALE += [(store, operator) for store, operator, snapshots in ALL if store in dict(STALE) and snapshots == NEVER]
"""Where snapshots of the time that was given up would be loaded."""


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    with busy_maintenance(spark, partitions=2 if WHOLE else 1):
        yield spark


@pytest.mark.parametrize(("store", "operator", "snapshots"), ALL if WHOLE else SOME)
def test_the_results_are_those_of_the_rows_that_counted(
    session: Any, tmp_path: Path, store: str, operator: str, snapshots: str
) -> None:
    with settings(session, STORES[store]):
        got, wanted = taken_back_twice(session, OPERATORS[operator], tmp_path / "a b%20c", snapshots)
    assert got == wanted


@pytest.mark.parametrize(("store", "operator"), STALE if WHOLE else STALE[:2])
def test_state_of_the_time_given_up_would_be_noticed(session: Any, tmp_path: Path, store: str, operator: str) -> None:
    """The planted fault: logs are taken up to the batch, state as it lies there."""
    with (
        mock.patch.object(folders, "_belongs", return_value=True),
        settings(session, STORES[store]),
    ):
        got, wanted = taken_back_twice(session, OPERATORS[operator], tmp_path, NEVER)
    assert got != wanted
