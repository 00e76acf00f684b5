"""Consuming 100-byte records: to Arrow and to records beside other clients, from our broker and from Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import Console

from bench.harness import Contender, Figure, Options, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, java_consumer, kafka_tools, python_client

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
    with kafka_tools() as tools, brokers() as places:
        for place in places:
            title = f"consume {_SIZE} B from {place.name}"
            if options.only not in title:
                continue
            topic = filled_topic(place, options.records(_JAVA_RECORDS), _SIZE)
            contenders = _python(options, place, topic)
            java = partial(java_consumer, tools, place, topic, options.records(_JAVA_RECORDS))
            contenders.append(Contender("Java ConsumerPerformance", java))
            yield compare(title, contenders, rounds=options.rounds, baseline="confluent-kafka", console=console)
            drop_topic(place, topic)


def _python(options: Options, place: Place, topic: str) -> list[Contender]:
    return [
        Contender(
            _TITLES.get(client, client),
            partial(python_client, "consume", client, place, topic, options.records(records)),
        )
        for client, records in _RECORDS.items()
    ]
