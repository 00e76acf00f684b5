"""The options of `format("kohort")`, under the names of Spark's Kafka source where it has them.

Spark passes option names in lower case, so names are matched without case; errors show the proper spelling. Nothing
here talks to a broker: options are checked when the query is declared, before anything is started.
"""

from __future__ import annotations

import json  # not msgspec: Spark has imported it already, and a task starts sooner
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohort.client.settings import ConsumerConfig
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.settings.config import declare_setting, from_properties
from kohort.spark.java_settings import checked_config, client_settings_from_options
from kohort.spark.option_names import (
    STRICT,
    classify_options,
    ignored_options_note,
    pronoun_for,
    refuse_ignored_options,
)
from kohort.spark.topic_pattern import parse_topic_pattern

SPARKS_SOURCE = "Spark's Kafka source"
STREAM_ONLY = ("maxBytesPerTrigger", "regionSeat")
IGNORED_BY_A_BATCH = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Streaming options that Spark's own source ignores in a batch read, with a warning."""
WORDS_IN_ANY_CASE = ("startingOffsetsByTimestampStrategy", "group.protocol", "kafka.group.protocol")
"""Options whose words Spark's source or Java's client takes in any case."""
NUMBERS_OF_SPARK = (
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "startingTimestamp",
    "endingTimestamp",
)
"""Options that Spark's source reads as Java's whole numbers, which have no underscores; times alone may be padded."""
FLAGS_OF_SPARK = ("includeHeaders", "failOnDataLoss")
"""Options that Spark's source reads as Java's booleans: true or false in any case, without blanks around them."""
OFFSETS_OF_SPARK = ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
"""Options that Spark's source reads as words or JSON: an empty text is neither."""
NOT_IN_REGION = {
    "assign": "the region's groups share partitions out: subscribe instead",
    "plannedRanges": "a region takes its queries back to finished batches, so that none is read again",
    "onRevocationTimeout": "a partition that is taken from a region's query takes the whole region back",
}
"""Options that a source in a region can't have, with the reason."""
OF_SPARKS_OWN = {
    name.lower(): name
    for name in (
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    )
}
"""Options that tune Spark's own Kafka source, by their names in lower case.

They are accepted and have no effect, so that a query can be moved here unchanged. Source: Spark's guide to its Kafka
integration.
"""
NOT_OF_A_GROUP = {name.lower(): name for name in ("groupIdPrefix", "groupId", "group_id")}
"""Options that name no group, by their names in lower case.

The first is one of Spark's own Kafka source. The others are frequent in jobs, and that source ignores them. A job that
moves here must not become a member of a group by them.
"""
_NUMBER = re.compile(r"[+-]?\d+")
_SIZE = re.compile(r"\s*(\d+)([bkmgtp])b?\s*", re.ASCII | re.IGNORECASE)
BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp")
IGNORED_BY_A_STREAM = ("endingTimestamp",)
"""Options of a batch read that Spark's own source ignores in a stream; it refuses the other ends there."""

EARLIEST = -2
"""Stands for the earliest offset in the JSON forms, as in Spark's Kafka source."""
LATEST = -1
"""Stands for the latest offset in the JSON forms, as in Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options that source, sink and tables share.

    Attributes:
        kafka: the `kafka.*` options without their prefix.
        ignored: options that have no effect, each with the reason.
    """

    strict_options: bool = declare_setting(
        STRICT, False, why="whether an option that has no effect is an error instead of a warning"
    )
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    ignored: list[str] = field(default_factory=list, compare=False)

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka["bootstrap.servers"]


@dataclass(frozen=True, slots=True)
class SourceOptions(ClientOptions):
    """The options of a source."""

    subscribe: tuple[str, ...] | None = declare_setting("subscribe", None, why="topics to read, by name")
    subscribe_pattern: str | None = declare_setting(
        "subscribePattern", None, why="topics to read: those whose names contain a match of this expression of Java's"
    )
    assign: str | None = declare_setting(
        "assign", None, why="partitions to read, as JSON, without sharing them in a group"
    )
    group_id: str | None = declare_setting(
        "group.id",
        None,
        aliases=("kafka.group.id",),
        why="the group the query is a member of; without one it reads every partition and commits nothing",
    )
    group_protocol: str = declare_setting(
        "group.protocol",
        "classic",
        aliases=("kafka.group.protocol",),
        choices=("classic", "consumer", "push"),
        why="how the member and the coordinator talk",
    )
    starting_offsets: str | None = declare_setting(
        "startingOffsets", None, why="where a partition starts that the group has no offset for"
    )
    starting_timestamp: int | None = declare_setting(
        "startingTimestamp", None, low=0, unit="ms", why="the same, by time"
    )
    starting_offsets_by_timestamp: str | None = declare_setting(
        "startingOffsetsByTimestamp", None, why="the same, by time for each partition"
    )
    starting_strategy: str = declare_setting(
        "startingOffsetsByTimestampStrategy",
        "error",
        choices=("error", "latest"),
        why="what to do where no record is as young as the timestamp",
    )
    ending_offsets: str | None = declare_setting("endingOffsets", None, why="where a batch read ends")
    ending_timestamp: int | None = declare_setting("endingTimestamp", None, low=0, unit="ms", why="the same, by time")
    ending_offsets_by_timestamp: str | None = declare_setting(
        "endingOffsetsByTimestamp", None, why="the same, by time for each partition"
    )
    max_offsets_per_trigger: int | None = declare_setting(
        "maxOffsetsPerTrigger", None, low=1, unit="offsets", why="bounds a micro-batch"
    )
    min_offsets_per_trigger: int | None = declare_setting(
        "minOffsetsPerTrigger",
        None,
        low=1,
        unit="offsets",
        why="keeps micro-batches from being tiny",
    )
    max_trigger_delay: str = declare_setting(
        "maxTriggerDelay",
        "15m",
        why="the longest time that minOffsetsPerTrigger may hold records back",
    )
    max_bytes_per_trigger: int | None = declare_setting(
        "maxBytesPerTrigger",
        None,
        low=1,
        unit="bytes",
        why="bounds a micro-batch's memory; an estimate by the bytes per record seen lately; 10m is 10 MiB",
    )
    min_partitions: int | None = declare_setting(
        "minPartitions",
        None,
        low=1,
        why="the least number of Spark tasks when there are enough records",
    )
    max_records_per_partition: int | None = declare_setting(
        "maxRecordsPerPartition",
        None,
        low=1,
        unit="offsets",
        why="the most records of one Spark task",
    )
    include_headers: bool = declare_setting("includeHeaders", False, why="adds the headers column, which costs time")
    columns: tuple[str, ...] | None = declare_setting(
        "columns", None, why="the columns to hand over; every one left out is time saved"
    )
    fail_on_data_loss: bool = declare_setting(
        "failOnDataLoss",
        True,
        why="whether records that retention took before they were read, or that went with their topic, end the query",
    )
    planned_ranges: str = declare_setting(
        "plannedRanges",
        "owned",
        choices=("owned", "all", "none"),
        why="which ranges of an unfinished batch are read again after a restart: those of partitions still owned, "
        "all, or none",
    )
    on_revocation_timeout: str = declare_setting(
        "onRevocationTimeout",
        "fail",
        choices=("fail", "release"),
        why="what a query does whose batch outlived the rebalance timeout: fail, or go on without the partitions",
    )
    join_timeout_ms: int | None = declare_setting(
        "joinTimeoutMs",
        None,
        low=1,
        unit="ms",
        why="bounds the wait for partitions; when not given, a minute more than a rebalance waits for other members' "
        "batches (kafka.max.poll.interval.ms, with group.protocol=push kafka.session.timeout.ms)",
    )
    value_format: str | None = declare_setting(
        "valueFormat",
        None,
        choices=("string", "json", "avro", "protobuf"),
        why="makes value a column of its own type instead of bytes",
    )
    value_schema: str | None = declare_setting(
        "valueSchema",
        None,
        why="the type of values, as DDL, an Avro schema or a .proto file; not given with schemaRegistryUrl: the newest "
        "schema of <topic>-value",
    )
    value_message: str | None = declare_setting(
        "valueMessage", None, why="the message of a .proto file that values are; the first when not given"
    )
    on_bad_record: str = declare_setting(
        "onBadRecord",
        "fail",
        choices=("fail", "null", "column"),
        why="what a value does that is not of the type: ends the query, is null, or is null with its bytes in badValue",
    )
    value_time_zone: str | None = declare_setting(
        "valueTimeZone", None, why="the zone of times in JSON that name none; UTC when not given"
    )
    value_writer_schemas: str | None = declare_setting(
        "valueWriterSchemas",
        None,
        why="module:function, which gives the Avro schema that a value was written with by the id before it",
    )
    schema_registry_url: str | None = declare_setting(
        "schemaRegistryUrl",
        None,
        why="the schema registry that has the schema of each value by the id before it",
    )
    region_session: str | None = declare_setting(
        "regionSeat",
        None,
        why="set by SparkRegion alone: the seat in the application that says what the source reads and from where, so "
        "that startingOffsets and its like count for nothing",
    )

    def declares_typed_values(self) -> bool:
        """Return whether any option about typed values is given, such as `valueFormat` or `onBadRecord`."""
        given = (
            self.value_format,
            self.value_schema,
            self.value_time_zone,
            self.value_writer_schemas,
            self.value_message,
            self.schema_registry_url,
        )
        return any(value is not None for value in given) or self.on_bad_record != "fail"

    def translated_pattern(self) -> str | None:
        """Return `subscribePattern`, translated from Java's regular expressions for the group; None if not given."""
        return None if self.subscribe_pattern is None else parse_topic_pattern(self.subscribe_pattern).text

    def assigned_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of `assign`, in order."""
        return parse_partition_lists("assign", self.assign) if self.assign is not None else ()

    def topic_choice_text(self) -> str:
        """Return the choice of topics in the words of Spark's own source, such as Subscribe[a, b] or Assign[a-0]."""
        if self.subscribe_pattern is not None:
            return f"SubscribePattern[{self.subscribe_pattern}]"
        if self.assign is not None:
            return f"Assign[{', '.join(map(str, self.assigned_partitions()))}]"
        return f"Subscribe[{', '.join(self.subscribe or ())}]"


def parse_options(raw: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse the options of one read.

    Args:
        raw: the options as Spark passes them; case does not matter.
        streaming: the kind of read, whose options must not belong to the other kind; None: not checked.

    Raises:
        InvalidInputError: an unknown name that resembles an option, a value out of range, no bootstrap servers, or not
            exactly one way to choose topics.
    """
    if any(name.lower() == "region" for name in raw):
        raise InvalidInputError(
            "the option region can't be set for a source: queries of a region are started by SparkRegion, which also "
            "restarts them; leave the option out"
        )
    given = classify_options(raw, SourceOptions, {*OF_SPARKS_OWN, *NOT_OF_A_GROUP})
    own = given.own
    own.update({name: own[name].lower() for name in WORDS_IN_ANY_CASE if name in own})
    if "maxBytesPerTrigger" in own:
        own["maxBytesPerTrigger"] = _without_unit(own["maxBytesPerTrigger"])
    _check_spelling(own)
    options = from_properties(SourceOptions, own)
    _check_reset(options, given.kafka)
    client = client_settings_from_options(given.kafka, ConsumerConfig, "source")
    options.kafka.update(client.taken)
    _check_options(options, own, streaming)
    checked_config(ConsumerConfig, options.bootstrap_servers, client_settings(options))
    lower = {name.lower() for name in raw}
    tuning = [name for known, name in OF_SPARKS_OWN.items() if known in lower]
    of_groups = [name for known, name in NOT_OF_A_GROUP.items() if known in lower]
    ignored_options = [
        ignored_options_note(tuning, f"{'it tunes' if len(tuning) == 1 else 'they tune'} {SPARKS_SOURCE}"),
        ignored_options_note(of_groups, "a query is in the group of group.id, or in none"),
        *client.ignored,
        *given.ignored_options(SPARKS_SOURCE),
    ]
    if streaming is not None:
        kind, passed_over = ("a stream", IGNORED_BY_A_STREAM) if streaming else ("a batch read", IGNORED_BY_A_BATCH)
        of_others = [name for name in passed_over if name in own]
        ignored_options.append(
            ignored_options_note(of_others, f"{kind} of {SPARKS_SOURCE} ignores {pronoun_for(of_others)} too")
        )
    options.ignored.extend(text for text in ignored_options if text)
    refuse_ignored_options(options.ignored, options.strict_options)
    return options


def _without_unit(size: str) -> str:
    """Return a size such as 10m or 64kb in bytes, as Spark's own sources take it; another text stays as it is."""
    found = _SIZE.fullmatch(size)
    return size if found is None else str(int(found[1]) << 10 * "bkmgtp".index(found[2].lower()))


def _check_spelling(own: Mapping[str, str]) -> None:
    """Refuse values that Spark's own source refuses, and that settings otherwise take in more than one spelling.

    Raises:
        InvalidInputError: a number has underscores, or is empty or padded; a flag is empty or padded; or offsets are
            empty.
    """
    for name in NUMBERS_OF_SPARK:
        text = own.get(name, "0")
        if not _NUMBER.fullmatch(text.strip() if name.endswith("Timestamp") else text):
            raise InvalidInputError(f"{name} must be a whole number, not {text!r}")
    for name in FLAGS_OF_SPARK:
        if own.get(name, "true").lower() not in ("true", "false"):
            raise InvalidInputError(f"{name} must be true or false, not {own[name]!r}")
    for name in OFFSETS_OF_SPARK:
        if not own.get(name, "latest").strip():
            raise InvalidInputError(f"{name} is empty: leave the option out, or say where the read starts or ends")


def _check_reset(options: SourceOptions, kafka: Mapping[str, str]) -> None:
    """Refuse `kafka.auto.offset.reset` unless the query starts or ends at committed offsets.

    Raises:
        InvalidInputError: the setting is given otherwise, which Spark's own source refuses too.
    """
    committed = "committed" in (
        str(bound).strip().lower() for bound in (options.starting_offsets, options.ending_offsets)
    )
    if "auto.offset.reset" in kafka and not committed:
        raise InvalidInputError(
            "the option kafka.auto.offset.reset can't be set for a source: startingOffsets says where a query starts, "
            "as earliest, latest, or offsets in JSON; the setting counts with startingOffsets=committed alone, for "
            "partitions that the group has no offset for"
        )


def asks_for_table(raw: Mapping[str, str]) -> bool:
    """Return whether the options of a read ask for a table."""
    return any(name.lower() == "table" for name in raw)


def client_settings(options: SourceOptions) -> dict[str, Any]:
    """Return the `kafka.*` options of a read as client settings, without the bootstrap servers."""
    return kafka_client_settings(options.kafka, "group.id", "group.protocol")


def kafka_client_settings(kafka: Mapping[str, str], *own: str) -> dict[str, Any]:
    """Return the `kafka.*` options as settings of a client, without `bootstrap.servers`.

    Args:
        kafka: the options without their prefix.
        own: further names to leave out, because kohort sets them by options of its own.
    """
    return {"client.id": "kohort-spark"} | {k: v for k, v in kafka.items() if k not in ("bootstrap.servers", *own)}


def _check_options(options: SourceOptions, given: Mapping[str, str], streaming: bool | None) -> None:
    if options.region_session is not None:
        _check_in_region(options, given)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name, "").strip()]
    if len(chosen) != 1:
        found = "none is given" if not chosen else f"{' and '.join(chosen)} are given"
        raise InvalidInputError(f"exactly one of subscribe, subscribePattern and assign chooses the topics; {found}")
    if options.subscribe_pattern is None and not (options.subscribe or options.assigned_partitions()):
        raise InvalidInputError(f"the option {chosen[0]} names nothing to read: {given[chosen[0]]!r}")
    for name in BATCH_ONLY if streaming else STREAM_ONLY if streaming is False else ():
        if name in given:
            kind = "a batch read" if streaming else "a streaming read"
            raise InvalidInputError(f"the option {name} belongs to {kind}")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidInputError(
            f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}: a batch can't have as many; lower it"
        )
    if options.subscribe_pattern is not None:
        only_here = parse_topic_pattern(options.subscribe_pattern).only_here
        if only_here and options.group_id is not None and options.group_protocol != "classic":
            raise InvalidInputError(
                f"subscribePattern has {', '.join(only_here)}, which the coordinator of a group can't look for: use "
                "group.protocol=classic, whose members look for topics themselves, or name the topics by subscribe"
            )


def _check_in_region(options: SourceOptions, given: Mapping[str, str]) -> None:
    for name, reason in NOT_IN_REGION.items():
        if name in given:
            raise InvalidInputError(f"the option {name} has no place in a region: {reason}")
    if options.group_id is None:
        raise InvalidInputError("a source in a region is a member of a group: name it by group.id")


def parse_partition_lists(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from `{"topic": [0, 1]}`.

    Raises:
        InvalidInputError: the text has another form.
    """
    found = _json_object(name, text, '{"topic": [0, 1]}')
    try:
        return tuple(sorted(TopicPartition(t, _whole(n)) for t, numbers in found.items() for n in _listed(numbers)))
    except (TypeError, ValueError):
        raise InvalidInputError(f'{name} must be JSON like {{"topic": [0, 1]}}, not {text!r}') from None


def parse_partition_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    """Parse one offset or timestamp for each partition from JSON such as `{"topic": {"0": 23}}`.

    Raises:
        InvalidInputError: the text has another form.
    """
    form = '{"topic": {"0": 23}}'
    found = _json_object(name, text, form)
    try:
        return {TopicPartition(t, int(p)): _whole(n) for t, numbers in found.items() for p, n in numbers.items()}
    except (AttributeError, TypeError, ValueError):
        raise InvalidInputError(f"{name} must be JSON like {form}, not {text!r}") from None


def _listed(numbers: object) -> list[Any]:
    """Return a JSON value that is a list, and refuse a string, whose characters would pass as numbers."""
    if not isinstance(numbers, list):
        raise TypeError(numbers)
    return numbers


def _whole(number: Any) -> int:
    """Return a JSON number without a fraction; refuse text and true, which `int` would take."""
    if isinstance(number, bool | str) or (isinstance(number, float) and not number.is_integer()):
        raise ValueError(number)
    return int(number)


def _json_object(name: str, text: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{name} must be JSON like {form}, not {text!r}")
    return found
