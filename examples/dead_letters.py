r"""Adds up orders, and moves those that it can't read to a topic of their own: `python dead_letters.py SERVERS`.

Results, dead letters and the group's offsets are one transaction. After a crash the program continues where the last
transaction ended, so that each order has one result or one dead letter. It ends after 3 s without an order.

Orders for it: `printf '{"id": 1, "price": 2, "count": 3}\nno order\n' | kohort produce orders`.
"""

import json
import sys

from kohort import Consumer, OffsetAndMetadata, Producer, Record, TopicPartition

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"


def handle(producer: Producer, record: Record) -> None:
    """Sends an order's result, or the order as a dead letter with the reason and its place."""
    try:
        order = json.loads(record.value)
        producer.send("totals", json.dumps({"order": order["id"], "total": order["price"] * order["count"]}))
    except (ValueError, KeyError, TypeError) as error:
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        headers = [("error", repr(error).encode()), ("place", place.encode())]
        producer.send("orders-dead-letters", record.value, key=record.key, headers=headers)


with (
    Producer(servers, transactional_id="order-totals") as producer,
    Consumer(servers, group_id="order-totals", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
):
    producer.init_transactions()
    consumer.subscribe(["orders"])
    while records := consumer.poll(timeout_ms=3000):
        producer.begin_transaction()
        offsets = {}
        for record in records:
            handle(producer, record)
            offsets[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset + 1)
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        print(f"{len(offsets)} partitions: {sum(1 for _ in records)} orders", flush=True)
