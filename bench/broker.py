"""The broker alone, with Java's own tools as clients: produce into and consume from ours beside Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, java_consumer, java_producer, kafka_tools
from bench.produce import on_fresh_topic

_SIZE = 100
_PRODUCED = 4_000_000
_CONSUMED = 8_000_000


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Produce and fetch, ours related to Apache Kafka."""
    with kafka_tools() as tools, brokers() as places:
        baseline = places[-1].name

        def produce(place: Place) -> Callable[[str], Sample]:
            return lambda topic: java_producer(tools, place, topic, options.records(_PRODUCED), _SIZE)

        def consume(place: Place, topic: str) -> Callable[[], Sample]:
            return lambda: java_consumer(tools, place, topic, options.records(_CONSUMED))

        title = f"Java ProducerPerformance, {_SIZE} B, by broker"
        if options.only in title:
            contenders = [
                Contender(place.name, on_fresh_topic(place, produce(place)), place.warm_s) for place in places
            ]
            yield compare(title, contenders, rounds=options.rounds, baseline=baseline, console=console)

        title = f"Java ConsumerPerformance, {_SIZE} B, by broker"
        if options.only in title:
            topics = {place.name: filled_topic(place, options.records(_CONSUMED), _SIZE) for place in places}
            contenders = [Contender(place.name, consume(place, topics[place.name]), place.warm_s) for place in places]
            yield compare(title, contenders, rounds=options.rounds, baseline=baseline, console=console)
            for place in places:
                drop_topic(place, topics[place.name])
