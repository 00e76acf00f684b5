"""The cost of a region for Spark queries: rows a second with and without sequences, cuts, resets, joins, publishing."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, runner
from bench.spark import jars_of_sparks_source
from kohort.region import ParquetFolder
from kohort.region.staged import StagedKey

_RECORDS, _SIZE, _CUTS, _RESETS, _FILES = 4_000_000, 100, 50, 3, 50
_NAMES = {
    "never": "a query of a region without sequences",
    "5s": "a sequence every 5 s",
    "1s": "a sequence every second",
    "beside": "every 5 s, beside a query that waits",
    "spark": "Spark's Kafka source into its file sink",
}


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """For each broker: throughput, beside a region without sequences; a cut, a reset, a join; then publishing."""
    with brokers() as places:
        for place in places:
            title = f"Spark queries of a region, {place.name}: rows into Parquet files"
            if options.only in title:
                topic = filled_topic(place, options.records(_RECORDS), _SIZE)
                yield compare(
                    title, _writers(place, topic, options), rounds=options.rounds, unit="rows/s", console=console
                )
                drop_topic(place, topic)
            for what, hows, count, unit in _ACTS:
                title = f"Spark queries of a region, {place.name}: {what}"
                if options.only in title:
                    topic = filled_topic(place, 20_000, _SIZE)
                    contenders = [
                        Contender(how, partial(runner, "region_spark", [how, place.servers, topic, str(count)], 1))
                        for how in hows
                    ]
                    yield compare(title, contenders, rounds=options.rounds, unit=unit, console=console)
                    drop_topic(place, topic)
    title = f"publishing {_FILES} files"
    if options.only in title:
        contenders = [Contender("links and fsyncs alone", _links), Contender("ParquetFolder", _publish)]
        yield compare(title, contenders, rounds=options.rounds, unit="files/s", console=console)


_ACTS = (
    ("a sequence, two queries at half their rate", ["cuts"], _CUTS, "sequences/s"),
    ("three queries are reset, or stopped and started by hand", ["by-hand", "reset"], _RESETS, "times/s"),
    ("a second query joins the group", ["join-reset", "join-checkpoint"], 1, "joins/s"),
)


def _writers(place: Place, topic: str, options: Options) -> list[Contender]:
    count = options.records(_RECORDS)
    return [Contender(name, partial(_write, how, place, topic, count)) for how, name in _NAMES.items()]


def _write(how: str, place: Place, topic: str, count: int) -> Sample:
    jars = jars_of_sparks_source() if how == "spark" else ""
    return runner("region_spark", [how, place.servers, topic, str(count), jars], count)


def _staged(folder: Path) -> tuple[ParquetFolder, list[StagedKey]]:
    region_id = uuid.uuid4()
    sink = ParquetFolder(folder / "out").bind("bench", region_id)
    table = pa.table({"line": [f"line {number}" for number in range(1000)]})
    sink.check(table.schema)
    keys = [StagedKey(region_id, 1, "m", unit) for unit in range(_FILES)]
    for key in keys:
        sink.stage(key, table)
    return sink, keys


def _publish() -> Sample:
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as name:
        sink, keys = _staged(Path(name))
        began_s = time.perf_counter()
        sink.publish(1, keys)
        return Sample(_FILES, time.perf_counter() - began_s)


def _links() -> Sample:
    """Measure the minimum work of a sequence: a link for each file, the folders on the disk."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as name:
        folder = Path(name)
        _staged(folder)
        staged = sorted((folder / "out" / "_staging").glob("*.staged"))
        (folder / "way").mkdir()
        began_s = time.perf_counter()
        for number, path in enumerate(staged):
            os.link(path, folder / "way" / f"{number}.parquet")
        _sync(folder / "way")
        (folder / "way").rename(folder / "sequence=1")
        _sync(folder)
        return Sample(_FILES, time.perf_counter() - began_s)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
