"""kohort's own client as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP"""

from __future__ import annotations

import sys

from speak import AssignmentWatch, listen, say, stopping

from kohort import Consumer, Producer


def produce(servers: str, topic: str, count: int) -> None:
    with Producer(servers, enable_idempotence=True, compression_type="zstd") as producer:
        sent = [
            producer.send(topic, f"value-{number}".encode(), key=f"key-{number}".encode()) for number in range(count)
        ]
        producer.flush()
        for future in sent:
            future.result(timeout_ms=30_000)
    say("produced", count=count)


def consume(servers: str, topic: str, group: str) -> None:
    watch = AssignmentWatch()
    with Consumer(
        servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10000,
        heartbeat_interval_ms=500,
        max_poll_records=100,
    ) as consumer:
        consumer.subscribe([topic])
        listen()
        while not stopping.is_set():
            records = consumer.poll(timeout_ms=100)
            watch.see(partition.partition for partition in consumer.assignment())
            for record in records:
                value = bytes(record.value).decode()
                say("record", partition=record.partition, offset=record.offset, value=value)
            if records:
                consumer.commit()
                say("committed")
    say("closed")


if __name__ == "__main__":
    mode, servers, topic, last = sys.argv[1:]
    produce(servers, topic, int(last)) if mode == "produce" else consume(servers, topic, last)
