"""FastStream on aiokafka: publishes each record on. Arguments: servers, input topic, output topic, a folder."""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage

servers, source, target, _ = sys.argv[1:]
broker = KafkaBroker(servers, enable_idempotence=True, request_timeout_ms=10_000)
publisher = broker.publisher(target)


@broker.subscriber(
    source,
    group_id="frameworks-faststream",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    session_timeout_ms=6000,
    heartbeat_interval_ms=1500,
)
async def forward(number: int, message: KafkaMessage) -> None:
    await publisher.publish(str(number), key=message.raw_message.key)


asyncio.run(FastStream(broker).run())
