"""The options of writing with `format("kohort")`, under the names of Spark's Kafka sink where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohort.client.producer.core import producer_config
from kohort.client.producer.settings import ProducerConfig
from kohort.errors import InvalidInputError
from kohort.settings.config import from_properties, knob
from kohort.spark.java_settings import client_settings_of, with_prefix
from kohort.spark.option_names import ignored, refuse_ignored, sort_options
from kohort.spark.options import ClientOptions, passed_on

OF_SPARK = frozenset(
    (
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "checkpointlocation",
        "path",
        "queryname",
    )
)
"""Options, in lower case, that Spark's own writers add or read, and pass to every sink.

They are the name of a query (`queryName`), its checkpoint, and the argument of `save` or `start`.
"""


@dataclass(frozen=True, slots=True)
class SinkOptions(ClientOptions):
    """The options of a sink."""

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

    def producer_settings(self) -> dict[str, Any]:
        """Return the `kafka.*` options as producer settings, without the bootstrap servers."""
        return passed_on(self.kafka)


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options of one write.

    Args:
        raw: the options as Spark passes them; case does not matter.

    Raises:
        InvalidInputError: a misspelt option (naming the one meant), a value out of range, no bootstrap servers, an
            unsupported delivery, or invalid producer settings.
    """
    given = sort_options(raw, SinkOptions, OF_SPARK)
    options = from_properties(SinkOptions, given.own)
    client = client_settings_of(given.kafka, ProducerConfig, "sink")
    options.kafka.update(client.taken)
    if options.topic is not None and not options.topic.strip():
        raise InvalidInputError("the option topic is empty: name the topic, or leave the option out and have a column")
    if options.delivery != "at-least-once" or options.transactional_id_prefix is not None:
        raise InvalidInputError(
            "delivery=exactly-once and transactionalIdPrefix are not there yet: a sink is at-least-once, and a reader "
            "that must not count twice needs a key of its own in the records"
        )
    if options.kafka.get("acks") == "0":
        raise InvalidInputError(
            "kafka.acks=0 acknowledges nothing, so no task could know that it is done: use all or 1"
        )
    try:
        producer_config(options.bootstrap_servers, options.producer_settings())
    except InvalidInputError as error:
        raise InvalidInputError(with_prefix(error.message, ProducerConfig), error.code) from None
    ignored_options = [*client.ignored, ignored(given.unknown, "Spark's Kafka sink ignores these too")]
    options.ignored.extend(text for text in ignored_options if text)
    refuse_ignored(options.ignored, options.strict_options)
    return options
