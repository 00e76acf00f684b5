"""Faults of region queries without a kill, with Spark: two applications in one process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.spark.conftest import SESSION_MS, Stage
from tests.spark.region.gated import Gated
from tests.support.waiting import LAST_RESORT

from kohort.spark.region.checkpoint_files import last_completed_batch
from kohort.spark.region.query_thread import AHEAD
from kohort.spark.region.spark_region import SparkRegion

pytestmark = [LAST_RESORT, pytest.mark.filterwarnings("ignore")]


class Applications:
    """Regions of one name, each as an application has it."""

    def __init__(self, spark: Any, stage: Stage) -> None:
        self.spark, self.stage = spark, stage
        self.name = f"r-{stage.topic}"
        self.regions: list[SparkRegion] = []
        self.out = stage.folder / "out"
        self.out.mkdir()
        stage.signs["rows"] = lambda: self.rows().total()

    def start(self, *queries: str, every: str | None = "300ms", **source: str) -> SparkRegion:
        region = SparkRegion(
            self.spark, self.name, self.stage.servers, folder=self.stage.folder / "checkpoints", checkpoint_every=every
        )
        self.regions.append(region)
        for query in queries:
            into = Gated(self.out)
            into.gate = str(self.stage.folder)
            options = {"subscribe": self.stage.topic, "group.id": self.stage.group} | source
            options["kafka.session.timeout.ms"] = str(SESSION_MS)
            region.query(query, _values, source=options, into=into, start="beginning")
        region.start()
        return region

    def set(self, name: str, *, there: bool = True) -> None:
        path = self.stage.folder / name
        path.touch() if there else path.unlink()

    def rows(self) -> Counter[int]:
        files = list(self.out.glob("sequence=*/*.parquet"))
        return Counter(
            int(value) for file in files for value in pq.ParquetFile(file).read(["value"]).column(0).to_pylist()
        )

    def are_exact(self) -> None:
        self.stage.until(lambda: self.rows().total() >= self.stage.sent, "all is published")
        assert self.rows() == Counter(range(self.stage.sent))

    def resets(self) -> int:
        return sum(
            member.metrics.resets
            for region in self.regions
            for started in region._running.values()
            for member in started.members
        )

    def running(self, query: str) -> Any:
        return next(region._running[query] for region in self.regions if query in region._running)

    def parts(self, query: str) -> int:
        seen = self.regions[0].describe()
        return sum(len(member.parts) for member in seen.members if member.name == query)

    def close(self) -> None:
        for name in ("closed", "full", "fails"):
            (self.stage.folder / name).unlink(missing_ok=True)
        for region in self.regions:
            region.close()


def _values(rows: Any) -> Any:
    return rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")


@pytest.fixture
def apps(spark: Any, stage: Stage) -> Iterator[Applications]:
    running = Applications(spark, stage)
    yield running
    running.close()


def _in_batch(apps: Applications, query: str) -> Callable[[], bool]:
    return lambda: apps.running(query).members[0].assignments.running_batch() is not None


def test_partitions_move_during_a_long_batch_and_return_and_nobody_resets(apps: Applications, stage: Stage) -> None:
    """A member asked for partitions finishes its batch, a checkpoint follows, then they move. Later they return."""
    stage.produce(400)
    apps.set("closed")
    apps.start("a")
    stage.until(_in_batch(apps, "a"), "a batch is under way")
    second = apps.start("b")
    stage.until(lambda: apps.running("a").members[0]._asked_back, "partitions are wanted back")
    assert apps.parts("b") == 0 and apps.parts("a") == 4, "they went in the middle of the batch"
    apps.set("closed", there=False)
    stage.until(lambda: apps.parts("b") == 2, "the second has its share")
    stage.produce(400)
    apps.are_exact()
    stage.produce(100, [0, 1, 2, 3])
    second.close()  # with a last sequence; a's last batch has named what it is now given anew
    stage.until(lambda: apps.parts("a") == 4, "they came back")
    stage.produce(400)
    apps.are_exact()
    assert apps.resets() == 0


def test_a_query_goes_back_in_a_batch_twice_at_once_and_when_it_fails(apps: Applications, stage: Stage) -> None:
    stage.produce(400)
    region = apps.start("a", "b")
    apps.are_exact()
    apps.set("closed")
    stage.produce(400)
    stage.until(_in_batch(apps, "a"), "a batch is under way")
    region.reset("in a batch")
    region.reset("and again at once")
    stage.until(lambda: apps.resets() >= 2, "both went back")
    apps.set("closed", there=False)
    stage.produce(400)
    apps.are_exact()
    before = apps.resets()
    apps.set("fails")
    stage.produce(400)
    apps.are_exact()
    assert apps.resets() > before, "it did not fail"


def test_who_runs_ahead_asks_for_a_sequence_and_is_held_until_there_is_one(
    spark: Any, apps: Applications, stage: Stage
) -> None:
    """Nobody else asks; and then the sink can't be published to. Spark would forget where the last sequence ended."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "12")
    try:
        apps.start("a", every=None, maxOffsetsPerTrigger="20")
        stage.produce(200)
        stage.until(lambda: apps.regions[0].describe().sequence > 0, "it has asked for a sequence")
        apps.set("full")
        stage.produce(800)
        session = apps.running("a").members[0].assignments
        stage.until(lambda: AHEAD in session._holds and session.running_batch() is None, "it is held")
        run = apps.running("a").query._run
        held_at = last_completed_batch(run.folder)
        assert run.staged.ahead(held_at) < 12
        time.sleep(1.0)
        assert last_completed_batch(run.folder) == held_at, "it runs on although it is held"
        apps.set("full", there=False)

        def asks_for_the_rest() -> bool:
            apps.regions[0].checkpoint()
            return apps.rows().total() >= stage.sent

        stage.until(asks_for_the_rest, "all is published")
        apps.are_exact()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
