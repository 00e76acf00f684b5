"""kafka-python as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer
from speak import AssignmentWatch, listen, say, stopping


def produce(servers: str, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, compression_type="gzip")
    sent = [producer.send(topic, f"value-{number}".encode(), f"key-{number}".encode()) for number in range(count)]
    producer.flush(30)
    for future in sent:
        future.get(30)
    producer.close()
    say("produced", count=count)


def consume(servers: str, topic: str, group: str) -> None:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10000,
        heartbeat_interval_ms=500,
    )
    watch = AssignmentWatch()
    listen()
    while not stopping.is_set():
        batches = consumer.poll(timeout_ms=100, max_records=100)
        watch.see(partition.partition for partition in consumer.assignment())
        for records in batches.values():
            for record in records:
                say("record", partition=record.partition, offset=record.offset, value=record.value.decode())
        if batches:
            consumer.commit()
            say("committed")
    consumer.close()
    say("closed")


if __name__ == "__main__":
    mode, servers, topic, last = sys.argv[1:]
    produce(servers, topic, int(last)) if mode == "produce" else consume(servers, topic, last)
