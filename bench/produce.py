"""Producing 100-byte records: ours beside other clients, into our broker and into Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from tests.support.apache_kafka import KafkaTools

from bench.harness import Contender, Figure, Options, Sample
from bench.peers import Place, at_each_broker, drop_topic, java_producer, new_topic, python_client

_SIZE = 100
_RECORDS = {
    "kohort-send": 1_000_000,
    "kohort-async-send": 500_000,
    "kohort-send-arrow": 8_000_000,
    "kohort-send-arrow-1": 8_000_000,
    "confluent-kafka": 1_000_000,
    "aiokafka": 200_000,
    "kafka-python": 200_000,
}
_JAVA_RECORDS = 4_000_000
_TITLES = {
    "kohort-send": "kohort send",
    "kohort-async-send": "kohort send, asyncio",
    "kohort-send-arrow": "kohort send_arrow",
    "kohort-send-arrow-1": "kohort send_arrow, 1 connection",
}


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each broker, related to confluent-kafka."""

    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        def java(topic: str) -> Sample:
            return java_producer(tools, place, topic, options.records(_JAVA_RECORDS), _SIZE)

        on_fresh_topic(place, lambda topic: _warm_up(options, place, topic))()
        yield [*_python(options, place), Contender("Java ProducerPerformance", on_fresh_topic(place, java))]

    yield from at_each_broker(f"produce {_SIZE} B into", contenders, options, console)


def _warm_up(options: Options, place: Place, topic: str) -> Sample:
    """A run that is not counted: it has Java compile, and the system find the memory that later runs use again."""
    client = "kohort-send-arrow"
    return python_client("produce", client, place, topic, options.records(_RECORDS[client]), str(_SIZE))


def on_fresh_topic(place: Place, job: Callable[[str], Sample]) -> Callable[[], Sample]:
    """The job on a topic of its own, which is deleted after it: disks fill, and old data would slow later rounds."""

    def run() -> Sample:
        topic = new_topic(place)
        try:
            return job(topic)
        finally:
            drop_topic(place, topic)

    return run


def _python(options: Options, place: Place) -> list[Contender]:
    def job(client: str, records: int) -> Callable[[str], Sample]:
        return lambda topic: python_client("produce", client, place, topic, options.records(records), str(_SIZE))

    return [
        Contender(_TITLES.get(client, client), on_fresh_topic(place, job(client, records)))
        for client, records in _RECORDS.items()
    ]
