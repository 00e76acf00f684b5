"""Kafka consumer groups, whole, in one Python package.

The public names are imported when they are first used, so that `import kohort` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.broker import Broker
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.async_admin import AsyncAdmin
    from kohort.client.consumer.async_consumer import AsyncConsumer
    from kohort.client.consumer.consumer import Consumer
    from kohort.client.producer.async_producer import AsyncProducer
    from kohort.client.producer.producer import Producer
    from kohort.columns import Record
    from kohort.ids import TopicPartition

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Broker",
    "Consumer",
    "Producer",
    "Record",
    "TopicPartition",
]

_HOMES = {
    "Admin": "kohort.client.admin.admin",
    "AsyncAdmin": "kohort.client.admin.async_admin",
    "AsyncConsumer": "kohort.client.consumer.async_consumer",
    "AsyncProducer": "kohort.client.producer.async_producer",
    "Broker": "kohort.broker",
    "Consumer": "kohort.client.consumer.consumer",
    "Producer": "kohort.client.producer.producer",
    "Record": "kohort.columns",
    "TopicPartition": "kohort.ids",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
