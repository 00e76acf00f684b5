"""Spark rows written per second, local[2], values of 100 bytes: the kohort sink beside Spark's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from bench.peers import Place, brokers, runner
from bench.produce import on_fresh_topic
from bench.spark import jars_of_sparks_source

_RECORDS = 2_000_000


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each broker, related to Spark's own sink."""
    with brokers() as places:
        for place in places:
            title = f"df.write from Spark into {place.name}"
            if options.only in title:
                records = options.records(_RECORDS)
                contenders = [
                    Contender("Spark's Kafka sink", on_fresh_topic(place, _job("kafka", place, records))),
                    Contender("kohort", on_fresh_topic(place, _job("kohort", place, records))),
                ]
                yield compare(title, contenders, rounds=options.rounds, unit="rows/s", console=console)


def _job(kind: str, place: Place, records: int) -> Callable[[str], Sample]:
    def run(topic: str) -> Sample:
        jars = jars_of_sparks_source() if kind == "kafka" else ""
        return runner("spark_write", [kind, place.servers, topic, str(records), jars], records)

    return run
