"""Settings as DescribeConfigs shows them: of topics, of this broker, of groups, each with where its value comes from.

A broker's settings are given at its start. Those of Kafka's that mean nothing here (controllers, replicas, TLS …) are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from kohort.broker.node import MAINTAIN_S, Node
from kohort.broker.settings import LOG_NAMES, BrokerConfig
from kohort.config import Setting, format_value, settings
from kohort.groups.config import GroupConfig
from kohort.log import LogConfig


class Source(IntEnum):
    """Where a value comes from, by the numbers of the protocol."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Type(IntEnum):
    """Of what kind a value is, by the numbers of the protocol."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


LONGS = frozenset(
    {
        "connections.max.idle.ms", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms",
        "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms", "min.compaction.lag.ms", "offsets.retention.check.interval.ms",
        "retention.bytes", "retention.ms", "segment.jitter.ms", "segment.ms",
    }
)  # fmt: skip
"""Settings that Kafka holds in 64 bits; other whole numbers have 32."""
BROKER_NAMES = {topic: broker for broker, topic in LOG_NAMES.items()}
"""What the broker calls the default of a topic's setting, where that is another name."""
CLUSTER_WIDE = "min.insync.replicas"
"""What Kafka keeps as a default of all brokers since a new cluster has it."""
UNSET = frozenset(
    {
        "flush.ms", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas", "retention.ms",
        "segment.jitter.ms", "segment.ms",
    }
)  # fmt: skip
"""The broker has no default of these under one name: Kafka derives times from settings in hours."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """One of the settings that a value could come from."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource as it is described; `synonyms` with the one in effect first."""

    name: str
    value: str | None
    source: Source
    type: Type
    why: str = ""
    read_only: bool = True
    synonyms: tuple[Synonym, ...] = ()


def type_of(name: str, setting: Setting) -> Type:
    """The kind of value that Kafka says a setting has."""
    kinds = {bool: Type.BOOLEAN, float: Type.DOUBLE, int: Type.LONG if name in LONGS else Type.INT}
    if "tuple" in str(setting.type):
        return Type.LIST
    return next((kind for python, kind in kinds.items() if setting.type in (python, python | None)), Type.STRING)


def topic_entries(node: Node, name: str, explicit: Mapping[str, str] | None = None) -> list[Entry]:
    """A topic's settings in effect; `explicit` are the ones set on it (those it has, when it exists)."""
    if explicit is None:
        explicit = node.store.topics[name].configs
    entries = []
    for key, setting in settings(LogConfig).items():
        chosen = getattr(node.log_config, setting.field)
        known_as = BROKER_NAMES.get(key, key)
        synonyms = []
        if key in explicit:
            synonyms.append(Synonym(key, explicit[key], Source.DYNAMIC_TOPIC))
        if chosen != setting.default:
            synonyms.append(Synonym(known_as, format_value(chosen), Source.STATIC_BROKER))
        if key == CLUSTER_WIDE:
            synonyms.append(Synonym(key, format_value(chosen), Source.DYNAMIC_DEFAULT_BROKER))
        default = Synonym(known_as, format_value(setting.default), Source.DEFAULT)
        first = synonyms[0] if synonyms else default
        if key not in UNSET:
            synonyms.append(default)
        entries.append(
            Entry(key, first.value, first.source, type_of(key, setting), setting.knob.why, False, tuple(synonyms))
        )
    return entries


def broker_entries(node: Node) -> list[Entry]:
    """This broker's settings: its own, the groups', and the topics' defaults under the broker's names."""
    entries = []
    for config in (node.config, node.group_config):
        cls: type = BrokerConfig if config is node.config else GroupConfig
        for key, setting in settings(cls).items():
            chosen = getattr(config, setting.field)
            entries.append(_static(key, chosen, setting.default, type_of(key, setting), setting.knob.why))
    for key, setting in settings(LogConfig).items():
        chosen, default = getattr(node.log_config, setting.field), setting.default
        if key in UNSET:
            chosen, default = (None if chosen == default else chosen), None
        entries.append(_static(BROKER_NAMES.get(key, key), chosen, default, type_of(key, setting), setting.knob.why))
    (wide,) = cluster_entries(node)
    default = Synonym(CLUSTER_WIDE, format_value(settings(LogConfig)[CLUSTER_WIDE].default), Source.DEFAULT)
    wide = replace(wide, synonyms=(*wide.synonyms, default))
    return [entry for entry in entries if entry.name != CLUSTER_WIDE] + [wide, *_facts(node)]


def _static(name: str, chosen: object, default: object, kind: Type, why: str) -> Entry:
    value = None if chosen is None else format_value(chosen)
    synonyms = []
    if chosen != default:
        synonyms.append(Synonym(name, value, Source.STATIC_BROKER))
    if default is not None:
        synonyms.append(Synonym(name, format_value(default), Source.DEFAULT))
    source = Source.DEFAULT if chosen == default else Source.STATIC_BROKER
    return Entry(name, value, source, kind, why, synonyms=tuple(synonyms))


def _facts(node: Node) -> list[Entry]:
    """What is so in this broker, under the names of Kafka's settings that would say it."""
    listener = f"PLAINTEXT://{node.host}:{node.port}"
    advertised = f"PLAINTEXT://{node.config.advertised_host or node.host}:{node.config.advertised_port or node.port}"
    pause_ms = str(int(MAINTAIN_S * 1000))
    facts = (
        ("listeners", listener, Type.LIST),
        ("advertised.listeners", advertised, Type.LIST),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT", Type.STRING),
        ("log.dirs", str(node.data_dir), Type.LIST),
        ("broker.id", str(node.id), Type.INT),
        ("log.cleaner.enable", "true", Type.BOOLEAN),
        ("log.cleaner.threads", "1", Type.INT),
        ("log.cleaner.backoff.ms", pause_ms, Type.LONG),
        ("log.retention.check.interval.ms", pause_ms, Type.LONG),
        ("log.retention.hours", "168", Type.INT),
        ("log.roll.hours", "168", Type.INT),
        ("offsets.topic.replication.factor", "1", Type.SHORT),
        ("transaction.state.log.replication.factor", "1", Type.SHORT),
        ("transaction.state.log.min.isr", "1", Type.INT),
        ("authorizer.class.name", "", Type.STRING),
    )
    return [
        Entry(name, value, Source.STATIC_BROKER, kind, synonyms=(Synonym(name, value, Source.STATIC_BROKER),))
        for name, value, kind in facts
    ]


def cluster_entries(node: Node) -> list[Entry]:
    """What Kafka shows as the default of all brokers: the in-sync replicas that a new cluster is made with."""
    name, value = CLUSTER_WIDE, format_value(node.log_config.min_insync_replicas)
    source = Source.DYNAMIC_DEFAULT_BROKER
    return [Entry(name, value, source, Type.INT, read_only=False, synonyms=(Synonym(name, value, source),))]


def group_entries(node: Node, group: str) -> list[Entry]:
    """A group's settings, its own or the broker's."""
    explicit = node.group_settings.explicit(group)
    entries = []
    for key, setting in node.group_settings.known().items():
        chosen = getattr(node.group_config, setting.field)
        synonyms = []
        if key in explicit:
            synonyms.append(Synonym(key, explicit[key], Source.DYNAMIC_GROUP))
        if chosen != setting.default:
            synonyms.append(Synonym("group." + key, format_value(chosen), Source.STATIC_BROKER))
        synonyms.append(Synonym("group." + key, format_value(setting.default), Source.DEFAULT))
        first = synonyms[0]
        entries.append(
            Entry(key, first.value, first.source, type_of(key, setting), setting.knob.why, False, tuple(synonyms))
        )
    return entries
