"""Settings as DescribeConfigs shows them: of topics, this broker and groups, each with the source of its value.

Kafka settings without a meaning here (controllers, replicas and so on) are not listed. Of TLS and logins only those are
that were given or that a request has changed, and secrets without their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from kohort.broker.config.live_settings import ALL, OF_TOPICS_ONLY, alterable_settings
from kohort.broker.config.settings import BROKER_NAMES, BrokerConfig
from kohort.broker.node import Node
from kohort.broker.security.addresses import bracketed_host
from kohort.broker.security.settings import SECRET, SecurityConfig, reloadable_tls_setting, security_name
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.log import FLUSH_NEVER_MS, LogConfig
from kohort.settings.config import Setting, format_value, parse_value, settings


class ConfigValueSource(IntEnum):
    """The source of a configuration value, such as a dynamic broker config; `config_source` in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class ConfigDataType(IntEnum):
    """The data type of a configuration value; `config_type` in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


LONGS = frozenset(
    {
        "connections.max.idle.ms", "connections.max.reauth.ms", "delete.retention.ms", "file.delete.delay.ms",
        "flush.messages", "flush.ms",
        "local.retention.bytes", "local.retention.ms", "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size", "log.retention.check.interval.ms", "max.compaction.lag.ms",
        "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "min.compaction.lag.ms",
        "offsets.retention.check.interval.ms", "retention.bytes", "retention.ms",
        "sasl.kerberos.min.time.before.relogin", "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "segment.jitter.ms", "segment.ms",
    }
)  # fmt: skip
"""Settings of 64 bits in Kafka. Other integers have 32."""
UNSET = {
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms", str(FLUSH_NEVER_MS)),
    "log.retention.ms": ("log.retention.hours", "168"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours", "0"),
    "log.roll.ms": ("log.roll.hours", "168"),
}
"""Settings without a default value of their own, with the setting and value that Kafka derives it from."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One level of a setting in DescribeConfigs, such as the dynamic broker config, with its value and source."""

    name: str
    value: str | None
    source: ConfigValueSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One setting of a resource for DescribeConfigs. The first of `synonyms`, if there are any, is in effect."""

    name: str
    value: str | None
    source: ConfigValueSource
    type: ConfigDataType
    why: str = ""
    read_only: bool = True
    synonyms: tuple[ConfigSynonym, ...] = ()
    is_sensitive: bool = False


def config_type_of(name: str, setting: Setting) -> ConfigDataType:
    """Return the type that Kafka documents for a setting."""
    kinds = {
        bool: ConfigDataType.BOOLEAN,
        float: ConfigDataType.DOUBLE,
        int: ConfigDataType.LONG if name in LONGS else ConfigDataType.INT,
    }
    if "tuple" in str(setting.type):
        return ConfigDataType.LIST
    return next(
        (kind for python, kind in kinds.items() if setting.type in (python, python | None)), ConfigDataType.STRING
    )


def normalized_value(setting: Setting, text: str) -> str:
    """Return a setting's value in Kafka's normal form: ` 05 ` becomes `5`, `TRUE` `true`, and `a, b, b` `a,b`."""
    value = parse_value(setting, text)
    if value is None:
        return text
    return format_value(tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value)


def check_config_spelling(configs: Mapping[str, str]) -> None:
    """Check the spelling of a topic's new settings, more strictly than that of stored ones.

    Raises:
        InvalidInputError: INVALID_CONFIG: a list has an empty word, as in `delete,`, or a number has an underscore.
    """
    known = settings(LogConfig)
    for key, text in configs.items():
        if key.endswith(".throttled.replicas"):
            continue  # Kafka takes empty words there
        kind = config_type_of(key, known[key]) if key in known else ConfigDataType.STRING
        if kind == ConfigDataType.LIST and text.strip() and not all(word.strip() for word in text.split(",")):
            raise InvalidInputError(f"{key} has an empty word: {text!r}", ErrorCode.INVALID_CONFIG)
        if (
            kind in (ConfigDataType.INT, ConfigDataType.LONG, ConfigDataType.DOUBLE) and "_" in text
        ):  # a number for Python alone
            raise InvalidInputError(f"{key} must be a number, not {text!r}", ErrorCode.INVALID_CONFIG)


def topic_config_entries(node: Node, name: str, explicit: Mapping[str, str] | None = None) -> list[DescribedConfig]:
    """Return a topic's settings in effect. `explicit` are those set on it; None: those of the existing topic."""
    if explicit is None:
        explicit = node.store.topics[name].configs
    entries = []
    _, _, given = node.live.given
    for key, setting in settings(LogConfig).items():
        layers = _layers(node, BROKER_NAMES.get(key, key), setting, given)
        if key in explicit:
            layers.insert(
                0, ConfigSynonym(key, normalized_value(setting, explicit[key]), ConfigValueSource.DYNAMIC_TOPIC)
            )
        first = layers[0] if layers else ConfigSynonym(key, format_value(setting.default), ConfigValueSource.DEFAULT)
        kind = config_type_of(key, setting)
        entries.append(
            DescribedConfig(key, first.value, first.source, kind, setting.declaration.why, False, tuple(layers))
        )
    return entries


def broker_config_entries(node: Node) -> list[DescribedConfig]:
    """Return this broker's settings: its own, the groups', and the topic defaults under the broker's names."""
    entries = []
    for cls, given in zip((BrokerConfig, GroupConfig, LogConfig), node.live.given, strict=True):
        for key, setting in settings(cls).items():
            if key in OF_TOPICS_ONLY:
                continue
            name = BROKER_NAMES.get(key, key)
            layers = _layers(node, name, setting, given)
            first = layers[0] if layers else ConfigSynonym(name, None, ConfigValueSource.DEFAULT)
            why, fixed = setting.declaration.why, name not in alterable_settings()
            value = None if first.value is None else normalized_value(setting, first.value)
            entries.append(
                DescribedConfig(name, value, first.source, config_type_of(key, setting), why, fixed, tuple(layers))
            )
    return [*entries, *_facts(node), *_security(node)]


def _security(node: Node) -> list[DescribedConfig]:
    """Return the settings of listeners' security that were given, or changed by requests; secrets without values."""
    altered = {
        name: text for name, text in node.live.altered_settings(str(node.id)).items() if reloadable_tls_setting(name)
    }
    sources = ((altered, ConfigValueSource.DYNAMIC_BROKER), (node.live.security, ConfigValueSource.STATIC_BROKER))
    entries = []
    for name in sorted({*altered, *node.live.security}):
        base = str(security_name(name))
        setting = settings(SecurityConfig).get(base)
        kind = ConfigDataType.BOOLEAN if setting is None else config_type_of(base, setting)
        is_secret = base in SECRET
        layers = tuple(
            ConfigSynonym(name, None if is_secret else _text_of(setting, values[name]), source)
            for values, source in sources
            if name in values
        )
        entries.append(
            DescribedConfig(
                name, layers[0].value, layers[0].source, ConfigDataType.PASSWORD if is_secret else kind,
                "" if setting is None else setting.declaration.why, reloadable_tls_setting(name) is None, layers,
                is_secret,
            )
        )  # fmt: skip
    return entries


def _text_of(setting: Setting | None, text: str) -> str:
    try:
        return text.strip().lower() if setting is None else normalized_value(setting, text)
    except InvalidInputError:  # of a listener that does not exist, so that nothing has checked it
        return text


def _layers(node: Node, name: str, setting: Setting, given: object) -> list[ConfigSynonym]:
    """Return the values of a broker setting at each level (dynamic, static, default), the one in effect first."""
    layers = []
    for altered, source in (
        (str(node.id), ConfigValueSource.DYNAMIC_BROKER),
        (ALL, ConfigValueSource.DYNAMIC_DEFAULT_BROKER),
    ):
        values = node.live.altered_settings(altered)
        if name in values:
            layers.append(ConfigSynonym(name, values[name], source))
    chosen = getattr(given, setting.field)
    if chosen != setting.default:
        layers.append(ConfigSynonym(name, format_value(chosen), ConfigValueSource.STATIC_BROKER))
    if name in UNSET:
        layers += [ConfigSynonym(*UNSET[name], ConfigValueSource.DEFAULT)] if layers else []
    elif setting.default is not None and name not in OF_TOPICS_ONLY:
        layers.append(ConfigSynonym(name, format_value(setting.default), ConfigValueSource.DEFAULT))
    return layers


def _facts(node: Node) -> list[DescribedConfig]:
    """Return this broker's fixed settings as DescribeConfigs entries, such as `offsets.topic.replication.factor`."""
    listeners, advertised, protocols = listener_property_values(node)
    facts = (
        ("listeners", listeners, ConfigDataType.LIST),
        ("advertised.listeners", advertised, ConfigDataType.LIST),
        ("listener.security.protocol.map", protocols, ConfigDataType.STRING),
        ("log.dirs", str(node.data_dir), ConfigDataType.LIST),
        ("broker.id", str(node.id), ConfigDataType.INT),
        ("log.cleaner.enable", "true", ConfigDataType.BOOLEAN),
        ("log.retention.hours", "168", ConfigDataType.INT),
        ("log.roll.hours", "168", ConfigDataType.INT),
        ("offsets.topic.replication.factor", "1", ConfigDataType.SHORT),
        ("transaction.state.log.replication.factor", "1", ConfigDataType.SHORT),
        ("transaction.state.log.min.isr", "1", ConfigDataType.INT),
    )
    return [
        DescribedConfig(
            name,
            value,
            ConfigValueSource.STATIC_BROKER,
            kind,
            synonyms=(ConfigSynonym(name, value, ConfigValueSource.STATIC_BROKER),),
        )
        for name, value, kind in facts
    ]


def listener_property_values(node: Node) -> tuple[str, str, str]:
    """Return the values of `listeners`, `advertised.listeners` and `listener.security.protocol.map` for this broker."""
    config = node.config
    listeners, advertised, protocols = [], [], []
    for listener in node.listeners:
        host = listener.advertised_host or config.advertised_host or listener.host
        port = listener.advertised_port or config.advertised_port or listener.port
        listeners.append(f"{listener.name}://{bracketed_host(listener.host)}:{listener.port}")
        advertised.append(f"{listener.name}://{bracketed_host(host)}:{port}")
        protocols.append(f"{listener.name}:{listener.protocol}")
    return ",".join(listeners), ",".join(advertised), ",".join(protocols)


def cluster_config_entries(node: Node) -> list[DescribedConfig]:
    """Return the settings that requests have changed for all brokers (resource type BROKER, empty name)."""
    source, entries = ConfigValueSource.DYNAMIC_DEFAULT_BROKER, []
    for name, value in sorted(node.live.altered_settings(ALL).items()):
        setting, synonyms = alterable_settings()[name], (ConfigSynonym(name, value, source),)
        kind = config_type_of(setting.declaration.name, setting)
        entries.append(DescribedConfig(name, value, source, kind, setting.declaration.why, False, synonyms))
    return entries


def group_config_entries(node: Node, group: str) -> list[DescribedConfig]:
    """Return a group's settings, with the broker's as defaults."""
    explicit = node.group_settings.settings_of_group(group)
    entries = []
    for key, setting in node.group_settings.allowed_settings().items():
        chosen = getattr(node.group_config, setting.field)
        synonyms = []
        if key in explicit:
            synonyms.append(
                ConfigSynonym(key, normalized_value(setting, explicit[key]), ConfigValueSource.DYNAMIC_GROUP)
            )
        if chosen != setting.default:
            synonyms.append(ConfigSynonym("group." + key, format_value(chosen), ConfigValueSource.STATIC_BROKER))
        synonyms.append(ConfigSynonym("group." + key, format_value(setting.default), ConfigValueSource.DEFAULT))
        first = synonyms[0]
        entries.append(
            DescribedConfig(
                key,
                first.value,
                first.source,
                config_type_of(key, setting),
                setting.declaration.why,
                False,
                tuple(synonyms),
            )
        )
    return entries
