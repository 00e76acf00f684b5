"""An application with queries of a region in a process of its own, for tests that kill it.

`python -m tests.spark.region.query_process JSON`, see `Options`. It says a line for each query that is there, and ends
cleanly with SIGTERM. A sink that fails, a batch that takes long and a death at a certain step are patched in here.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from kohort.region.sinks import Sink
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey

COLUMNS = ["partition", "offset", "CAST(value AS STRING) AS value"]


@dataclass(frozen=True)
class Options:
    """The application's input.

    Attributes:
        queries: their names.
        folder: of all: `parquet`, `delta`, `flights.db`, `checkpoints`.
        machine: in `folder`, the temporary files of the machine on which it runs, without a folder of checkpoints that
            other machines see; empty: it has one.
        keeps: whether its queries keep state.
        per_batch: records, at most.
        fails: how likely a task's staging fails, 0 to 1.
        batch_s: so long each task takes at least.
        sinks: by query, `sqlite` or `delta`; else the folder `parquet`.
        dies_at: the step at which it kills itself, see `STEPS`; and the how manieth time that it comes by there.
    """

    servers: str
    region: str
    topic: str
    folder: str
    queries: list[str]
    protocol: str = "classic"
    machine: str = ""
    keeps: bool = False
    per_batch: int = 300
    fails: float = 0.0
    batch_s: float = 0.0
    sinks: dict[str, str] = field(default_factory=dict)
    dies_at: str = ""
    dies_nth: int = 1
    checkpoint_every: str = "500ms"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Folder(ParquetFolder):
    """A folder that fails at random, or takes its time; in Spark's tasks."""

    fails = batch_s = 0.0

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        time.sleep(self.batch_s)
        if random.random() < self.fails:
            raise PermissionError("the device of this test takes nothing more")
        super().stage(key, table)

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        PUBLISHING()
        super().publish(sequence, keys)
        PUBLISHED()


def _nothing() -> None: ...


PUBLISHING: Callable[[], None] = _nothing
PUBLISHED: Callable[[], None] = _nothing


def _dies(nth: int) -> Callable[[], None]:
    """A step at which the process is gone the nth time."""
    left = [nth]

    def come_by() -> None:
        left[0] -= 1
        if left[0] == 0:
            logging.getLogger("kohort.test").warning("dies here")
            os.killpg(0, signal.SIGKILL)

    return come_by


def _around(owner: Any, name: str, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(*given: Any, **named: Any) -> Any:
        before()
        result = inner(*given, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def _in_the_transaction(pen: Any, dies: Callable[[], None]) -> None:
    """All of a sequence is sent, and the end of its transaction is not."""
    commit, end = pen.commit, pen._commit

    def committing(*given: Any) -> Any:
        def ending(producer: Any) -> None:
            dies()
            end(producer)

        pen._commit = staticmethod(ending)
        try:
            return commit(*given)
        finally:
            pen._commit = staticmethod(end)

    pen.commit = committing


STEPS = ["half derived", "derived", "staged", "contributes", "contributed", "commits", "committing", "committed"]
STEPS += ["publishing", "published"]


def patch(step: str, nth: int) -> None:
    """Have the process die at a step."""
    from kohort.region.region_log import RegionLogWriter
    from kohort.spark.region import folders, query_run
    from kohort.spark.region.staging import StagedBatches

    global PUBLISHING, PUBLISHED
    dies = _dies(nth)
    match step:
        case "":
            pass
        case "half derived":
            _around(folders, "_check_whole", before=dies)
        case "derived":
            _around(query_run, "clone_checkpoint", after=dies)
        case "staged":
            _around(StagedBatches, "add_batch", after=dies)
        case "contributes":
            _around(query_run.RegionQuery, "contribute", before=dies)
        case "contributed":
            _around(query_run.RegionQuery, "contribute", after=dies)
        case "commits":
            _around(RegionLogWriter, "commit", before=dies)
        case "committing":
            _in_the_transaction(RegionLogWriter, dies)
        case "committed":
            _around(RegionLogWriter, "commit", after=dies)
        case "publishing":
            PUBLISHING = dies
        case "published":
            PUBLISHED = dies
        case _:
            raise ValueError(step)


def sink_of(options: Options, query: str) -> Sink:
    """Where a query writes to."""
    match options.sinks.get(query):
        case "sqlite":
            return SqlTable(f"sqlite:///{options.folder}/flights.db", "flights")
        case "delta":
            return DeltaTable(f"{options.folder}/delta")
        case _:
            into = Folder(Path(options.folder) / "parquet")
            into.fails, into.batch_s = options.fails, options.batch_s
            return into


def query_of(options: Options) -> Callable[[Any], Any]:
    """The query's plan, which gives each record once, with state or without."""
    if options.keeps:
        return lambda rows: rows.selectExpr(*COLUMNS).dropDuplicates(["partition", "offset"])
    return lambda rows: rows.selectExpr(*COLUMNS)


def session() -> Any:
    """A small Spark."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def main() -> None:
    """Run the application."""
    from kohort.spark.region.spark_region import SparkRegion

    options = Options(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    patch(options.dies_at, options.dies_nth)
    region = SparkRegion(
        session(),
        options.region,
        options.servers,
        folder=None if options.machine else Path(options.folder) / "checkpoints",
        checkpoint_every=options.checkpoint_every,
    )
    source = {
        "subscribe": options.topic,
        "group.id": options.region,
        "group.protocol": options.protocol,
        "maxOffsetsPerTrigger": str(options.per_batch),
        "kafka.metadata.max.age.ms": "5000",  # so soon partitions that are added are seen
    }
    if options.protocol == "classic":
        source |= {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
    for name in options.queries:
        into = sink_of(options, name)
        region.query(name, query_of(options), source=source, into=into, start="beginning")

    region.start()
    print("ready", flush=True)
    while not ends.wait(0.1) and not region._are_over():
        pass
    region.close()
    print("ended", flush=True)


if __name__ == "__main__":
    from tests.spark.region import query_process  # under its name: what is pickled and patched is that module's

    query_process.main()
