"""Faust: publishes each record on. Arguments: servers, input topic, output topic, a folder."""

from __future__ import annotations

import sys

import faust

servers, source, target, folder = sys.argv[1:]
app = faust.App(
    "frameworks-faust",
    broker=f"kafka://{servers}",
    datadir=folder,
    web_enabled=False,
    topic_partitions=4,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.5,
    broker_commit_interval=0.5,
    producer_request_timeout=30.0,
    value_serializer="raw",
)
numbers = app.topic(source, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
forwarded = app.topic(target, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")


@app.agent(numbers)
async def forward(stream) -> None:
    async for key, value in stream.items():
        await (await forwarded.send(key=key, value=value))


sys.argv = ["faust", "worker", "-l", "warn", "--without-web"]
app.main()
