"""Runs of stateful queries in checkpoint folders, each ended in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.region.oracle import Operator, Output, Timeline, expected
from tests.support.waiting import ATTEMPTS, STILL_S, TOO_SLOW, until

from kohort.spark.region import folders
from kohort.spark.region.checkpoint_files import parse_state_file_name

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_STORE = "spark.sql.streaming.stateStore."
HDFS = {f"{_STORE}providerClass": f"{_PROVIDERS}HDFSBackedStateStoreProvider"}


def _rocksdb(changelog: bool, version: int) -> dict[str, str]:
    return {
        f"{_STORE}providerClass": f"{_PROVIDERS}RocksDBStateStoreProvider",
        f"{_STORE}rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
        f"{_STORE}checkpointFormatVersion": str(version),
    }


STORES = {
    "hdfs": HDFS,
    "rocksdb": _rocksdb(False, 1),
    "rocksdb-changelog": _rocksdb(True, 1),
    "rocksdb-2": _rocksdb(False, 2),
    "rocksdb-2-changelog": _rocksdb(True, 2),
}
OFTEN, NEVER = "2", "1000"
"""`minDeltasForSnapshot`: snapshots behind every few batches; none, so that nothing hides an old one."""


class Ended(Exception):
    """The query dies here, with state written for a batch that is not in `commits/`."""


@contextmanager
def settings(spark: Any, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@contextmanager
def busy_maintenance(spark: Any, partitions: int) -> Iterator[None]:
    """State stores that are looked after ten times a second, whoever started the thread that does it before."""

    def stop() -> None:
        stores = spark._jvm.org.apache.spark.sql.execution.streaming.state
        getattr(getattr(stores, "StateStore$"), "MODULE$").stop()

    stop()
    with settings(spark, {f"{_STORE}maintenanceInterval": "100ms", "spark.sql.shuffle.partitions": str(partitions)}):
        yield
    stop()


@dataclass
class Run:
    """One query in one checkpoint folder."""

    spark: Any
    operator: Operator
    timeline: Timeline
    checkpoint: Path
    rows: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def until_batch(self, last: int, ready: Callable[[], bool] = lambda: True) -> None:
        """Run up to a batch, which does its work and waits until something holds; then the query dies in it."""

        def each(frame: Any, number: int) -> None:
            self.rows[number] = sorted(tuple(int(value) for value in row) for row in frame.collect())
            if number == last:
                until(ready, "what the batch waits for", STILL_S)
                raise Ended

        writer = (
            self.operator.build(lambda: self.timeline.rows(self.spark))
            .writeStream.outputMode(self.operator.mode)
            .foreachBatch(each)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(processingTime="0 seconds")
        )
        for _ in range(ATTEMPTS):
            query = writer.start()
            try:
                self._until_ended(query, last)
            finally:
                query.stop()
            if last in self.rows:
                return
            if TOO_SLOW not in str(query.exception()):
                query.awaitTermination()
        raise AssertionError(f"Spark's Python processes did not come up in {ATTEMPTS} attempts of ten seconds")

    def _until_ended(self, query: Any, last: int) -> None:
        def moves() -> dict[str, Any]:
            return {"status": query.status["message"], "batches": len(self.rows)}

        until(lambda: not query.isActive, f"the query dies in batch {last}", STILL_S, moves)

    def snapshots(self) -> set[int]:
        """Versions of the state that are there as a whole, in each store of the first operator."""
        found: dict[Path, set[int]] = {}
        for path in (self.checkpoint / "state" / "0").rglob("*"):
            kept = parse_state_file_name(path.name)
            if kept is not None:
                found.setdefault(path.parent, set()).update([kept.version] if kept.is_snapshot else ())
        return set.intersection(*found.values()) if found else set()


@dataclass(frozen=True)
class Plan:
    """A query that is taken back twice, each time to before a snapshot of what is given up.

    Attributes:
        back: the batch that it goes back to first.
        given_up: the last one of the first run, which has work done for one more.
        again: the batch that it goes back to then: beyond all that the first run ever wrote.
        last: of the second run.
        last_of_all: of the third.
    """

    back: int = 3
    given_up: int = 7
    again: int = 8
    last: int = 9
    last_of_all: int = 10


PLAN = Plan()


def taken_back_twice(
    spark: Any, operator: Operator, folder: Path, later_snapshots: str = OFTEN
) -> tuple[Output, Output]:
    """Return the results of three runs of a query and the expected results, by batch and run."""
    plan, place = PLAN, [str(folder / f"e{epoch}") for epoch in (1, 2, 3)]
    timelines = [Timeline(), Timeline((plan.back,)), Timeline((plan.back, plan.again))]
    runs = [Run(spark, operator, timeline, Path(entry)) for timeline, entry in zip(timelines, place, strict=True)]
    with settings(spark, {f"{_STORE}minDeltasForSnapshot": OFTEN}):
        runs[0].until_batch(plan.given_up, lambda: max(runs[0].snapshots(), default=0) > plan.back + 2)
    assert folders.last_completed_batch(place[0]) == plan.given_up - 1
    before = contents(Path(place[0]))
    folders.clone_checkpoint(place[0], place[1], plan.back)
    with settings(spark, {f"{_STORE}minDeltasForSnapshot": later_snapshots}):
        runs[1].until_batch(plan.last)
        folders.clone_checkpoint(place[1], place[2], plan.again)
        runs[2].until_batch(plan.last_of_all)
    after = contents(Path(place[0]))
    changed = [path for path, data in before.items() if after.get(path, data) != data]
    assert not changed, "the old folder stays as it is"
    assert list(runs[1].rows) == list(range(plan.back + 1, plan.last + 1))
    assert list(runs[2].rows) == list(range(plan.again + 1, plan.last_of_all + 1))
    got = [rows for run in runs for rows in run.rows.values()]
    wanted = [expected(operator, run.timeline, max(run.rows) + 1)[min(run.rows) :] for run in runs]
    return got, [rows for batch in wanted for rows in batch]


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but for the parts of snapshots, which Spark may be writing in the background."""
    found = {}
    for path in folder.rglob("*"):
        if path.parent.name == "SSTs":
            continue
        try:
            found[str(path.relative_to(folder))] = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            continue
    return found
