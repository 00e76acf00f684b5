"""confluent-kafka: publishes records on in transactions. Arguments: servers, input, output, a folder.

The program ends on any error, as most do, and a supervisor starts it again. It also ends when a transaction takes
too long. After a restart of the broker librdkafka may wait in `send_offsets_to_transaction` for ever, beyond the
timeout that was given (its issue 5456).
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer

servers, source, target, folder = sys.argv[1:]
TRANSACTION_S = 20
consumer = Consumer(
    {
        "bootstrap.servers": servers,
        "group.id": "frameworks-confluent",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1500,
        "reconnect.backoff.max.ms": 1000,
    }
)
producer = Producer(
    {
        "bootstrap.servers": servers,
        "transactional.id": f"frameworks-confluent-{Path(folder).name}",
        "transaction.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 1000,
    }
)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
producer.init_transactions(60)
consumer.subscribe([source])
while True:
    records = [record for record in consumer.consume(50, timeout=0.5) if record.error() is None]
    if not records:
        continue
    signal.alarm(TRANSACTION_S)
    producer.begin_transaction()
    for record in records:
        producer.produce(target, value=record.value(), key=record.key())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
    )
    producer.commit_transaction(30)
    signal.alarm(0)
