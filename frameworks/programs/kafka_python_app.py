"""kafka-python: publishes records on in transactions. Arguments: servers, input, output, a folder.

The program ends on any error, as most do, and a supervisor starts it again.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

servers, source, target, folder = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
consumer = KafkaConsumer(
    source,
    bootstrap_servers=servers,
    group_id="frameworks-kafka-python",
    enable_auto_commit=False,
    auto_offset_reset="earliest",
    isolation_level="read_committed",
    session_timeout_ms=6000,
    heartbeat_interval_ms=1500,
)
producer = KafkaProducer(
    bootstrap_servers=servers,
    transactional_id=f"frameworks-kafka-python-{Path(folder).name}",
    transaction_timeout_ms=10_000,
)
producer.init_transactions()
while True:
    batches = consumer.poll(timeout_ms=500, max_records=50)
    if not batches:
        continue
    producer.begin_transaction()
    for records in batches.values():
        for record in records:
            producer.send(target, value=record.value, key=record.key)
    offsets = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in batches.items()}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    producer.commit_transaction()
