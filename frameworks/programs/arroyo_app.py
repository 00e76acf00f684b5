"""Arroyo: a processor whose strategy publishes each record on. Arguments: servers, input, output, a folder."""

from __future__ import annotations

import signal
import sys

from arroyo.backends.kafka import KafkaConsumer, KafkaProducer
from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration, build_kafka_producer_configuration
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import CommitOffsets, ProcessingStrategyFactory, Produce
from arroyo.types import Topic

servers, source, target, _ = sys.argv[1:]
shared = {"reconnect.backoff.max.ms": 1000}
producer = KafkaProducer(
    build_kafka_producer_configuration(shared, [servers], {"enable.idempotence": True, "partitioner": "murmur2_random"})
)
consumer = KafkaConsumer(
    build_kafka_consumer_configuration(
        shared,
        bootstrap_servers=[servers],
        group_id="frameworks-arroyo",
        auto_offset_reset="earliest",
        override_params={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1500},
    )
)


class Forward(ProcessingStrategyFactory):
    def create_with_partitions(self, commit, partitions):
        return Produce(producer, Topic(target), CommitOffsets(commit))


processor = StreamProcessor(consumer, Topic(source), Forward())
signal.signal(signal.SIGTERM, lambda *_: processor.signal_shutdown())
processor.run()
