"""The options of writing with `format("kohort")`, under the names of Spark's Kafka sink where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohort.client.producer.core import producer_config
from kohort.client.producer.settings import ProducerConfig
from kohort.errors import InvalidInputError
from kohort.settings.config import declare_setting, from_properties
from kohort.spark.java_settings import client_settings_from_options, name_settings_as_options
from kohort.spark.option_names import classify_options, refuse_ignored_options
from kohort.spark.options import ClientOptions, kafka_client_settings

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

UNACKNOWLEDGED = "kafka.acks=0 (a task has to know that its records have arrived: it is as kafka.acks=1)"


@dataclass(frozen=True, slots=True)
class KafkaSinkOptions(ClientOptions):
    """The options of writing a DataFrame to Kafka topics. A region's lakehouse sinks have none of these."""

    topic: str | None = declare_setting(
        "topic", None, why="where all records go; without it a column `topic` says it for each"
    )
    delivery: str = declare_setting(
        "delivery",
        "at-least-once",
        choices=("at-least-once", "exactly-once"),
        why="what a task that is tried again may do: at-least-once may write its records again",
    )
    value_format: str | None = declare_setting(
        "valueFormat",
        None,
        choices=("avro", "json", "protobuf"),
        why="writes the column value, of any type, with the id of its schema before it; None: it is text or binary",
    )
    value_schema: str | None = declare_setting(
        "valueSchema",
        None,
        why="the Avro schema, JSON Schema or .proto file to write values with; not given: the schema of Spark's "
        "to_avro, the JSON Schema of the column, or with protobuf the newest of <topic>-value",
    )
    value_message: str | None = declare_setting(
        "valueMessage", None, why="the message of a .proto file that values are; the first when not given"
    )
    schema_registry_url: str | None = declare_setting(
        "schemaRegistryUrl", None, why="the schema registry that keeps the schema, under the subject <topic>-value"
    )
    transactional_id_prefix: str | None = declare_setting(
        "transactionalIdPrefix", None, why="with delivery=exactly-once: how its transactional ids begin"
    )

    def producer_settings(self) -> dict[str, Any]:
        """Return the `kafka.*` options as producer settings, without the bootstrap servers."""
        return kafka_client_settings(self.kafka)


def parse_sink_options(raw: Mapping[str, str]) -> KafkaSinkOptions:
    """Parse the options of one write.

    Args:
        raw: the options as Spark passes them; case does not matter.

    Raises:
        InvalidInputError: a misspelt option (naming the one meant), a value out of range, no bootstrap servers, an
            unsupported delivery, or invalid producer settings.
    """
    given = classify_options(raw, KafkaSinkOptions, OF_SPARK)
    options = from_properties(KafkaSinkOptions, given.own)
    client = client_settings_from_options(given.kafka, ProducerConfig, "sink")
    options.kafka.update(client.taken)
    if not given.own.get("topic", "a").strip():
        raise InvalidInputError("the option topic is empty: name the topic, or leave the option out and have a column")
    _check_values(options)
    if options.delivery != "at-least-once" or options.transactional_id_prefix is not None:
        raise InvalidInputError(
            "delivery=exactly-once and transactionalIdPrefix are not there yet: a sink is at-least-once, and a reader "
            "that must not count twice needs a key of its own in the records"
        )
    unacknowledged = options.kafka.get("acks", "").strip() == "0"
    if unacknowledged:
        options.kafka["acks"] = "1"
    try:
        producer_config(options.bootstrap_servers, options.producer_settings())
    except InvalidInputError as error:
        raise InvalidInputError(name_settings_as_options(error.message, ProducerConfig), error.code) from None
    ignored_options = [
        UNACKNOWLEDGED if unacknowledged else None,
        *client.ignored,
        *given.ignored_options("Spark's Kafka sink"),
    ]
    options.ignored.extend(text for text in ignored_options if text)
    refuse_ignored_options(options.ignored, options.strict_options)
    return options


def _check_values(options: KafkaSinkOptions) -> None:
    """Check the options of typed values.

    Raises:
        InvalidInputError: one of them is missing, or the registry's URL is invalid.
    """
    if options.value_format is None:
        for name, value in (
            ("valueSchema", options.value_schema),
            ("valueMessage", options.value_message),
            ("schemaRegistryUrl", options.schema_registry_url),
        ):
            if value is not None:
                raise InvalidInputError(f"the option {name} needs valueFormat=avro, json or protobuf")
        return
    form = options.value_format
    if options.schema_registry_url is None:
        raise InvalidInputError(f"valueFormat={form} needs schemaRegistryUrl: the registry that keeps the schema")
    if options.topic is None:
        raise InvalidInputError(f"valueFormat={form} needs the option topic: the schema's subject is <topic>-value")
    if options.value_message is not None and form != "protobuf":
        raise InvalidInputError(f"the option valueMessage belongs to valueFormat=protobuf, and valueFormat is {form}")
    from kohort.schema_registry.registry import SchemaRegistry

    SchemaRegistry(options.schema_registry_url)
