"""FastStream on confluent-kafka: publishes each record on. Arguments: servers, input topic, output topic, a folder."""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage

servers, source, target, _ = sys.argv[1:]
broker = KafkaBroker(servers, config={"enable.idempotence": True, "reconnect.backoff.max.ms": 1000})
publisher = broker.publisher(target)


@broker.subscriber(
    source,
    group_id="frameworks-faststream-confluent",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    session_timeout_ms=6000,
    heartbeat_interval_ms=1500,
)
async def forward(number: int, message: KafkaMessage) -> None:
    await publisher.publish(str(number), key=message.raw_message.key())


asyncio.run(FastStream(broker).run())
