"""Consuming 100-byte records: to Arrow and to records beside other clients, from our broker and from Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from tests.support.apache_kafka import KafkaTools

from bench.harness import Contender, Figure, Options
from bench.peers import Place, at_each_broker, drop_topic, filled_topic, java_consumer, python_client

_SIZE = 100
_RECORDS = {
    "kohort-arrow": 8_000_000,
    "kohort-records": 4_000_000,
    "confluent-kafka": 2_000_000,
    "aiokafka": 2_000_000,
    "kafka-python": 500_000,
}
_JAVA_RECORDS = 8_000_000
_TITLES = {"kohort-arrow": "kohort poll_arrow", "kohort-records": "kohort poll, .value"}


def figures(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each broker, related to confluent-kafka."""

    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        topic = filled_topic(place, options.records(_JAVA_RECORDS), _SIZE)
        java = partial(java_consumer, tools, place, topic, options.records(_JAVA_RECORDS))
        yield [*_python(options, place, topic), Contender("Java ConsumerPerformance", java)]
        drop_topic(place, topic)

    yield from at_each_broker(f"consume {_SIZE} B from", contenders, options, console)


def _python(options: Options, place: Place, topic: str) -> list[Contender]:
    return [
        Contender(
            _TITLES.get(client, client),
            partial(python_client, "consume", client, place, topic, options.records(records)),
        )
        for client, records in _RECORDS.items()
    ]
