"""Quix Streams: counts by key, exactly once, and writes NUMBER:COUNT. Arguments: servers, input, output, a folder."""

from __future__ import annotations

import sys

from quixstreams import Application, State

servers, source, target, folder = sys.argv[1:]
application = Application(
    broker_address=servers,
    consumer_group="frameworks-quix",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.5,
    state_dir=folder,
    auto_create_topics=True,
    consumer_extra_config={
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1500,
        "reconnect.backoff.max.ms": 1000,
    },
)


def count(number: str, state: State) -> str:
    total = state.get("count", 0) + 1
    state.set("count", total)
    return f"{number}:{total}"


frame = application.dataframe(application.topic(source, key_deserializer="str", value_deserializer="str"))
frame = frame.apply(count, stateful=True)
frame.to_topic(application.topic(target, key_serializer="str", value_serializer="str"))
application.run()
