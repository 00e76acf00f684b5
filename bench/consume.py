"""Consuming records beside other clients: whole batches, 1 KiB, small ones, many partitions; from both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from tests.support.apache_kafka import KafkaTools

from bench.harness import Contender, Figure, Options
from bench.peers import Place, Prepare, at_each_broker, drop_topic, filled_topic, java_consumer, python_client

_SIZE = 100
_JAVA_RECORDS = 8_000_000
_RECORDS = {
    "raw-receive": 8_000_000,
    "kohort-arrow": 8_000_000,
    "kohort-arrow-4": 8_000_000,
    "kohort-records": 4_000_000,
    "confluent-kafka": 2_000_000,
    "aiokafka": 2_000_000,
    "kafka-python": 500_000,
}
_KIB_RECORDS = 1_000_000
_SMALL_RECORDS = 300_000
_MANY = 1000
_TITLES = {
    "raw-receive": "receiving without decoding",
    "kohort-arrow": "kohort poll_arrow, all columns",
    "kohort-arrow-4": "kohort poll_arrow, 4 columns",
    "kohort-records": "kohort poll, .value",
}
_QUICK = ("kohort-arrow", "kohort-records", "confluent-kafka")


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Figures for each broker, related to confluent-kafka."""
    for what, prepare in (
        (f"consume {_SIZE} B from", _whole(options)),
        ("consume 1 KiB from", _large(options)),
        (f"consume {_SIZE} B in batches of up to 10 from", _small(options)),
        (f"consume {_SIZE} B of {_MANY} partitions and of four from", _many(options)),
    ):
        yield from at_each_broker(what, prepare, options, console)


def _whole(options: Options) -> Prepare:
    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        topic = filled_topic(place, options.records(_JAVA_RECORDS), _SIZE)
        java = partial(java_consumer, tools, place, topic, options.records(_JAVA_RECORDS))
        ours = [_contender(client, place, topic, options.records(count)) for client, count in _RECORDS.items()]
        yield [*ours, Contender("Java ConsumerPerformance", java)]
        drop_topic(place, topic)

    return contenders


def _large(options: Options) -> Prepare:
    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        count = options.records(_KIB_RECORDS)
        topic = filled_topic(place, count, 1024)
        yield [_contender(client, place, topic, count) for client in _QUICK]
        drop_topic(place, topic)

    return contenders


def _small(options: Options) -> Prepare:
    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        count = options.records(_SMALL_RECORDS)
        topic = filled_topic(place, count, _SIZE, client="kohort-small-batches")
        yield [_contender(client, place, topic, count) for client in _QUICK]
        drop_topic(place, topic)

    return contenders


def _many(options: Options) -> Prepare:
    @contextmanager
    def contenders(place: Place, tools: KafkaTools | None) -> Iterator[list[Contender]]:
        topics = {
            partitions: filled_topic(place, options.records(_JAVA_RECORDS), _SIZE, partitions)
            for partitions in (_MANY, 4)
        }
        yield [
            _contender(client, place, topic, options.records(_RECORDS[client]), f", {partitions} partitions")
            for client in _QUICK
            for partitions, topic in topics.items()
            if client != "confluent-kafka" or partitions == _MANY
        ]
        for topic in topics.values():
            drop_topic(place, topic)

    return contenders


def _contender(client: str, place: Place, topic: str, count: int, more: str = "") -> Contender:
    name = client if client == "confluent-kafka" else _TITLES.get(client, client) + more
    return Contender(name, partial(python_client, "consume", client, place, topic, count))
