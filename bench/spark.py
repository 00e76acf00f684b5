"""Spark rows per second, local[2], values of 100 bytes: the kohort source beside Spark's own, default and tuned.

Batch and stream of bytes, from few and many partitions, and JSON values to structs: by from_json after either source,
and typed by ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from rich.console import Console
from tests.support import maven

from bench.harness import Contender, Figure, NotHere, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, new_topic, runner
from kohort import Producer

_SIZE = 100
_RECORDS = 4_000_000
_JSON_RECORDS = 2_000_000
_BATCH = 50_000
_JOBS = {
    "sum": "batch, sum of lengths",
    "pair": "batch, key and value to noop",
    "stream": "availableNow to noop",
}
_PARTITIONS = {1: ("sum", "stream"), 4: tuple(_JOBS), 100: ("sum", "stream")}
"""The jobs for each number of partitions."""


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each job and broker, related to Spark's own source."""
    with brokers() as places:
        for place in places:
            yield from _json_to_struct(place, options, console)
            for partitions, jobs in _PARTITIONS.items():
                yield from _bytes(place, partitions, jobs, options, console)


def _bytes(place: Place, partitions: int, jobs: Iterable[str], options: Options, console: Console) -> Iterator[Figure]:
    titles = {job: f"Spark from {place.name}: {_JOBS[job]}, {partitions} partitions" for job in jobs}
    wanted = {job: title for job, title in titles.items() if options.only in title}
    if not wanted:
        return
    records = options.records(_RECORDS)
    topic = filled_topic(place, records, _SIZE, partitions)
    for job, title in wanted.items():
        contenders = [
            Contender("Spark's Kafka source", _spark("kafka", job, place, topic, records)),
            Contender("Spark's, tuned", _spark("tuned", job, place, topic, records)),
            Contender("kohort", _spark("kohort", job, place, topic, records)),
        ]
        yield compare(title, contenders, rounds=options.rounds, unit="rows/s", console=console)
    drop_topic(place, topic)


def _json_to_struct(place: Place, options: Options, console: Console) -> Iterator[Figure]:
    title = f"Spark from {place.name}: batch, JSON to structs"
    if options.only not in title:
        return
    records = options.records(_JSON_RECORDS)
    topic = _json_topic(place, records)
    contenders = [
        Contender("Spark's Kafka source, from_json", _spark("kafka", "json", place, topic, records)),
        Contender("Spark's, tuned, from_json", _spark("tuned", "json", place, topic, records)),
        Contender("kohort, from_json", _spark("kohort", "json", place, topic, records)),
        Contender("kohort, valueFormat=json", _spark("kohort", "typed", place, topic, records)),
    ]
    yield compare(title, contenders, rounds=options.rounds, unit="rows/s", console=console)
    drop_topic(place, topic)


def _json_topic(place: Place, records: int) -> str:
    """A topic of objects with six fields, about 100 bytes each."""
    topic = new_topic(place)
    with Producer(place.servers) as producer:
        for start in range(0, records, _BATCH):
            values = [
                b'{"id":%d,"name":"name-%d","score":%d.%d,"ok":%s,"at":"2024-02-29T01:02:03.%03dZ","tags":["a","b"]}'
                % (number, number, number % 1000, number % 10, (b"true", b"false")[number % 2], number % 1000)
                for number in range(start, min(start + _BATCH, records))
            ]
            producer.send_arrow(topic, pa.record_batch({"value": pa.array(values, pa.binary())}))
    return topic


def _spark(kind: str, job: str, place: Place, topic: str, records: int) -> Callable[[], Sample]:
    return partial(_run, kind, job, place, topic, records)


def _run(kind: str, job: str, place: Place, topic: str, records: int) -> Sample:
    jars = "" if kind == "kohort" else jars_of_sparks_source()
    return runner("spark", [kind, job, place.servers, topic, str(records), jars], records)


def jars_of_sparks_source() -> str:
    """The jars of Spark's own source and sink, joined by commas.

    Raises:
        NotHere: Maven can't resolve them.
    """
    try:
        folder = maven.jars("spark-kafka", maven.SPARK_KAFKA_SOURCE, transitive=False)
    except maven.MavenUnavailable as error:
        raise NotHere(str(error)) from error
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))
