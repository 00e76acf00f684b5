"""Small micro-batches of Spark, local[2]: the kohort source as a group's member beside Spark's own.

Tiny batches one after another. The time from a query's start to the end of its first batch. The time from a record's
send to the end of the sink that has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, new_topic, runner
from bench.runners.spark_small import ROWS, WARM_BATCHES
from bench.spark import jars_of_sparks_source

_BATCHES = 60
_STARTS = 8
_RECORDS = 500
_CONTENDERS = {"kafka": "Spark's Kafka source", "kohort": "kohort, in a group"}


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Three figures for each broker, related to Spark's own source."""
    with brokers() as places:
        for place in places:
            yield from _tiny(place, options, console)
            yield from _start(place, options, console)
            yield from _latency(place, options, console)


def _tiny(place: Place, options: Options, console: Console) -> Iterator[Figure]:
    title = f"Spark from {place.name}: batches of {ROWS} rows"
    if options.only not in title:
        return
    batches = max(10, int(_BATCHES * options.scale))
    topic = filled_topic(place, (batches + WARM_BATCHES) * ROWS, 100)
    contenders = [
        Contender(name, partial(_run, kind, "tiny", place, topic, batches)) for kind, name in _CONTENDERS.items()
    ]
    yield compare(title, contenders, rounds=options.rounds, unit="batches/s", console=console)
    drop_topic(place, topic)


def _start(place: Place, options: Options, console: Console) -> Iterator[Figure]:
    title = f"Spark from {place.name}: start of a query to its first batch"
    if options.only not in title:
        return
    topic = filled_topic(place, ROWS, 100)
    starts = max(3, int(_STARTS * options.scale))
    contenders = [
        Contender(name, partial(_run, kind, "start", place, topic, starts)) for kind, name in _CONTENDERS.items()
    ]
    yield compare(title, contenders, rounds=options.rounds, unit="starts/s", console=console)
    drop_topic(place, topic)


def _latency(place: Place, options: Options, console: Console) -> Iterator[Figure]:
    title = f"Spark from {place.name}: from send to the sink"
    if options.only not in title:
        return
    records = max(100, int(_RECORDS * options.scale))
    contenders = [
        Contender(name, partial(_run, kind, "latency", place, None, records)) for kind, name in _CONTENDERS.items()
    ]
    yield compare(title, contenders, rounds=options.rounds, unit="records/s", console=console)


def _run(kind: str, job: str, place: Place, topic: str | None, count: int) -> Sample:
    jars = "" if kind == "kohort" else jars_of_sparks_source()
    return runner("spark_small", [kind, job, place.servers, topic or new_topic(place), str(count), jars], 1)
