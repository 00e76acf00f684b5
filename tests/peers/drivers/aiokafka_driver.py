"""aiokafka as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from speak import AssignmentWatch, listen, say, stopping


async def produce(servers: str, topic: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        sent = [
            await producer.send(topic, f"value-{number}".encode(), f"key-{number}".encode()) for number in range(count)
        ]
        await asyncio.gather(*sent)
    say("produced", count=count)


async def consume(servers: str, topic: str, group: str) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10000,
        heartbeat_interval_ms=500,
    )
    await consumer.start()
    watch = AssignmentWatch()
    listen()
    while not stopping.is_set():
        batches = await consumer.getmany(timeout_ms=100, max_records=100)
        watch.see(partition.partition for partition in consumer.assignment())
        for records in batches.values():
            for record in records:
                say("record", partition=record.partition, offset=record.offset, value=record.value.decode())
        if batches:
            await consumer.commit()
            say("committed")
    await consumer.stop()
    say("closed")


if __name__ == "__main__":
    mode, servers, topic, last = sys.argv[1:]
    asyncio.run(produce(servers, topic, int(last)) if mode == "produce" else consume(servers, topic, last))
