"""The options of writing with `format("kohort")`, under the names of Spark's Kafka sink where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohort.client.producer.core import producer_config
from kohort.config import from_properties, knob
from kohort.errors import InvalidInputError
from kohort.spark.options import by_kind, passed_on

OF_SPARK = frozenset(
    ("checkpointlocation", "path", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms")
)
"""Options of Spark's own writers, which it hands to every sink, in lower case."""
_OURS = {
    "key.serializer": "keys and values are sent as they are: cast them to string or binary",
    "value.serializer": "keys and values are sent as they are: cast them to string or binary",
    "partitioner": "name each record's partition in a column `partition` instead",
    "transactional.id": "delivery=exactly-once will choose it, and is not there yet",
}
"""Settings of a producer that a sink has no use for, each with what to do."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What may be said about a sink."""

    topic: str | None = knob("topic", None, why="where all records go; without it a column `topic` says it for each")
    delivery: str = knob(
        "delivery",
        "at-least-once",
        choices=("at-least-once", "exactly-once"),
        why="what a task that is tried again may do: at-least-once may write its records again",
    )
    transactional_id_prefix: str | None = knob(
        "transactionalIdPrefix", None, why="with delivery=exactly-once: how its transactional ids begin"
    )
    kafka: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka["bootstrap.servers"]

    def producer_settings(self) -> dict[str, Any]:
        """The `kafka.*` options without the addresses, for the producer."""
        return passed_on(self.kafka)


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """The options of one write.

    Args:
        raw: as Spark hands them over; case does not matter.

    Raises:
        InvalidInputError: a name that no option has (naming the nearest), a value out of range, no bootstrap servers,
            a delivery that is not there, or producer settings that can't be.
    """
    own, kafka = by_kind(raw, SinkOptions, OF_SPARK)
    options = from_properties(SinkOptions, own)
    options.kafka.update(kafka)
    if options.topic is not None and not options.topic.strip():
        raise InvalidInputError("the option topic is empty: name the topic, or leave the option out and have a column")
    if options.delivery != "at-least-once" or options.transactional_id_prefix is not None:
        raise InvalidInputError(
            "delivery=exactly-once and transactionalIdPrefix are not there yet: a sink is at-least-once, and a reader "
            "that must not count twice needs a key of its own in the records"
        )
    for name, remedy in _OURS.items():
        if name in kafka:
            raise InvalidInputError(f"the option kafka.{name} can't be set for a sink: {remedy}")
    if kafka.get("acks") == "0":
        raise InvalidInputError(
            "kafka.acks=0 acknowledges nothing, so no task could know that it is done: use all or 1"
        )
    producer_config(options.bootstrap_servers, options.producer_settings())
    return options
