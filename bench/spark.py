"""Spark rows per second, local[2], values of 100 bytes: the kohort source beside Spark's own, batch and stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console
from tests.support import maven

from bench.harness import Contender, Figure, NotHere, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, runner

_SIZE = 100
_RECORDS = 4_000_000
_JOBS = {"sum": "batch, sum of lengths", "stream": "availableNow to noop"}


def figures(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each job and broker, related to Spark's own source."""
    with brokers() as places:
        for place in places:
            wanted = {job: f"Spark from {place.name}: {title}" for job, title in _JOBS.items()}
            wanted = {job: title for job, title in wanted.items() if options.only in title}
            if not wanted:
                continue
            records = options.records(_RECORDS)
            topic = filled_topic(place, records, _SIZE)
            for job, title in wanted.items():
                contenders = [
                    Contender("Spark's Kafka source", _spark("kafka", job, place, topic, records)),
                    Contender("kohort", _spark("kohort", job, place, topic, records)),
                ]
                yield compare(title, contenders, rounds=options.rounds, unit="rows/s", console=console)
            drop_topic(place, topic)


def _spark(kind: str, job: str, place: Place, topic: str, records: int) -> Callable[[], Sample]:
    return partial(_run, kind, job, place, topic, records)


def _run(kind: str, job: str, place: Place, topic: str, records: int) -> Sample:
    jars = jars_of_sparks_source() if kind == "kafka" else ""
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
