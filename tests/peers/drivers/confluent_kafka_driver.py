"""confluent-kafka (librdkafka) as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer
from speak import AssignmentWatch, listen, say, stopping


def produce(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": "lz4"})
    failed = []
    for number in range(count):
        producer.produce(
            topic, f"value-{number}", f"key-{number}", on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.poll(0)
    producer.flush(30)
    if failed:
        raise SystemExit(f"not delivered: {failed[0]}")
    say("produced", count=count)


def consume(servers: str, topic: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10000,
            "heartbeat.interval.ms": 500,
        }
    )
    watch = AssignmentWatch()
    consumer.subscribe([topic])
    listen()
    while not stopping.is_set():
        messages = consumer.consume(100, 0.1)
        watch.see(partition.partition for partition in consumer.assignment())
        for message in messages:
            if message.error():
                raise SystemExit(f"consume: {message.error()}")
            say("record", partition=message.partition(), offset=message.offset(), value=message.value().decode())
        if messages:
            consumer.commit(asynchronous=False)
            say("committed")
    consumer.close()
    say("closed")


if __name__ == "__main__":
    mode, servers, topic, last = sys.argv[1:]
    produce(servers, topic, int(last)) if mode == "produce" else consume(servers, topic, last)
