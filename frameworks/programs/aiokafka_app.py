"""aiokafka: publishes records on, then commits their offsets. Arguments: servers, input, output, a folder."""

from __future__ import annotations

import asyncio
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import CommitFailedError, IllegalStateError

servers, source, target, _ = sys.argv[1:]


async def forward() -> None:
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=servers,
        group_id="frameworks-aiokafka",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1500,
    )
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    async with consumer, producer:
        while True:
            batches = await consumer.getmany(timeout_ms=500, max_records=50)
            sent = [
                await producer.send(target, value=record.value, key=record.key)
                for records in batches.values()
                for record in records
            ]
            await asyncio.gather(*sent)
            try:
                if sent:
                    await consumer.commit({tp: records[-1].offset + 1 for tp, records in batches.items()})
            except (CommitFailedError, IllegalStateError):
                print("the partitions have moved: another member reads these records again", flush=True)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
asyncio.run(forward())
