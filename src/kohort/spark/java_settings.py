"""The settings of Java's Kafka clients among the `kafka.` options: honoured, without effect, or refused.

The names are those of ConsumerConfig and ProducerConfig of Apache Kafka 4.4. A setting that kohort's client has too is
honoured. A setting that tunes something only Java's clients have causes a warning with the reason. A setting is refused
if ignoring it would weaken security or change what is read or written. Settings that Spark's own source refuses are
refused too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kohort.client.net.security import sasl_mechanism
from kohort.client.producer.settings import ProducerConfig
from kohort.client.settings import ConnectionConfig, ConsumerConfig
from kohort.errors import InvalidInputError
from kohort.settings.config import from_properties, nearest_key, settings
from kohort.spark.option_names import KAFKA_PREFIX, nearest_known_name

Side = Literal["source", "sink", "table"]

_METRICS = "there are no metrics of Java's here"
_ADDRESSES = "every address that a name has is tried"
_FINDING = "a client here goes back to the bootstrap addresses by itself"
_SHARE = "share groups are not read"
_OAUTH = "it belongs to a part of OAUTHBEARER that is not there"
_KERBEROS = "it belongs to Kerberos, which a query can't log in by"
_PLACING = "records go by the hash of their key, and keyless ones by batches"
_NONE_OF_JAVA = "it names Java's part of TLS, which Python's takes the place of"
_COMMITS = "offsets are committed when a batch is done"
_BROKERS = "it is a setting of brokers"
_NO_LOGIN = "there is no login unless kafka.security.protocol is SASL_SSL or SASL_PLAINTEXT"

WITHOUT_EFFECT: Mapping[str, str] = {
    "auto.commit.interval.ms": _COMMITS,
    "bootstrap.controllers": "a query talks to brokers",
    "bootstrap.resolve.timeout.ms": "kafka.socket.connection.setup.timeout.ms bounds the look-up of names",
    "buffer.memory.allocation.strategy": "kafka.buffer.memory bounds what waits to be sent",
    "client.dns.lookup": _ADDRESSES,
    "enable.metrics.push": _METRICS,
    "exclude.internal.topics": "a pattern never finds Kafka's own topics; name them in subscribe",
    "internal.throw.on.fetch.stable.offset.unsupported": "it is internal to Java's clients",
    "max.poll.records": "there are no polls: maxOffsetsPerTrigger bounds a batch, maxRecordsPerPartition a task",
    "metadata.cluster.check.enable": _FINDING,
    "metadata.max.idle.ms": "a producer here knows the topics that it writes to",
    "metadata.recovery.rebootstrap.trigger.ms": _FINDING,
    "metadata.recovery.strategy": _FINDING,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "partition.discovery.interval.ms": "kafka.metadata.max.age.ms says how soon new partitions are found",
    "partitioner.adaptive.partitioning.enable": _PLACING,
    "partitioner.availability.timeout.ms": _PLACING,
    "partitioner.rack.aware": _PLACING,
    "sasl.enabled.mechanisms": _BROKERS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.principal.to.local.rules": _BROKERS,
    "sasl.kerberos.service.name": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.login.connect.timeout.ms": _OAUTH,
    "sasl.login.read.timeout.ms": _OAUTH,
    "sasl.login.refresh.buffer.seconds": _OAUTH,
    "sasl.login.refresh.min.period.seconds": _OAUTH,
    "sasl.login.refresh.window.factor": _OAUTH,
    "sasl.login.refresh.window.jitter": _OAUTH,
    "sasl.login.retry.backoff.max.ms": _OAUTH,
    "sasl.login.retry.backoff.ms": _OAUTH,
    "sasl.mechanism.controller.protocol": _BROKERS,
    "sasl.mechanism.inter.broker.protocol": _BROKERS,
    "sasl.server.callback.handler.class": _BROKERS,
    "sasl.server.max.receive.size": _BROKERS,
    "schema.registry.url": "a registry is named by the option schemaRegistryUrl, with valueFormat",
    "security.inter.broker.protocol": _BROKERS,
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
    "socket.connection.setup.timeout.max.ms": "kafka.socket.connection.setup.timeout.ms bounds every attempt",
    "ssl.allow.dn.changes": _BROKERS,
    "ssl.allow.san.changes": _BROKERS,
    "ssl.client.auth": _BROKERS,
    "ssl.keymanager.algorithm": _NONE_OF_JAVA,
    "ssl.principal.mapping.rules": _BROKERS,
    "ssl.protocol": "the highest version that both ends speak is taken; kafka.ssl.enabled.protocols bounds it",
    "ssl.secure.random.implementation": _NONE_OF_JAVA,
    "ssl.trustmanager.algorithm": _NONE_OF_JAVA,
    "transaction.timeout.ms": "a sink has no transactions",
    "transaction.two.phase.commit.enable": "a sink has no transactions",
}
"""Settings that have no effect here, with the reason."""

_CLASSES = "it names a class of Java's, and there is no JVM in the client: leave it out"
REFUSED: Mapping[str, str] = {
    "config.providers": "what it stands for would not be looked up: write the values themselves",
    "sasl.client.callback.handler.class": _CLASSES
    + ", and give kafka.sasl.username and kafka.sasl.password; for AWS_MSK_IAM those of MSK's SCRAM-SHA-512",
    "sasl.login.callback.handler.class": _CLASSES + ", and give kafka.sasl.username and kafka.sasl.password",
    "sasl.login.class": _CLASSES + ", and give kafka.sasl.username and kafka.sasl.password",
    "security.providers": _CLASSES,
    "ssl.cipher.suites": "suites can't be chosen here, and others than these would be used: leave it out to take the "
    "ones that Python's TLS allows; kafka.ssl.enabled.protocols=TLSv1.3 leaves weak ones out",
    "ssl.engine.factory.class": _CLASSES,
    "ssl.provider": _CLASSES,
}
"""Settings that would weaken security if they were ignored, each with what to do instead."""
_BYTES = "keys and values are handed over as binary: cast them, or declare values by valueFormat"
_INTERCEPTORS = "interceptors are classes of Java's, and may change records: change them by DataFrame operations"
REFUSED_OF_SOURCE: Mapping[str, str] = {
    "columns": "write it without the prefix: columns",
    "enable.auto.commit": "a query commits to its group when a batch is done: name the group by group.id to have that",
    "interceptor.classes": _INTERCEPTORS,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
}
"""Settings that a source refuses, as Spark's own does, each with what to do instead."""
_SENT = "keys and values are sent as they are: cast them to string or binary"
REFUSED_OF_SINK: Mapping[str, str] = {
    "interceptor.classes": _INTERCEPTORS,
    "key.serializer": _SENT,
    "partitioner": "name each record's partition in a column `partition` instead",
    "partitioner.class": "name each record's partition in a column `partition` instead",
    "partitioner.ignore.keys": "leave the column `key` out, or name each record's partition in a column `partition`",
    "transactional.id": "delivery=exactly-once will choose it, and is not there yet",
    "value.serializer": _SENT,
}
"""Settings that a sink refuses, each with what to do instead."""
ASSIGNORS = {
    f"org.apache.kafka.clients.consumer.{name}": word
    for name, word in (
        ("RangeAssignor", "range"),
        ("RoundRobinAssignor", "roundrobin"),
        ("StickyAssignor", "sticky"),
        ("CooperativeStickyAssignor", "cooperative-sticky"),
    )
}
"""The classes of Java's assignors, and their names here."""
_LOGIN_HANDLER = "sasl.login.callback.handler.class"
_OAUTH_HANDLERS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{name}OAuthBearerLoginCallbackHandler" for name in ("", "secured.")
)
"""Java's class that gets tokens of `sasl.oauthbearer.token.endpoint.url`, which the client here does by itself."""
_AS_HERE: Mapping[str, tuple[str, ...]] = {
    "config.providers": ("",),
    "partitioner.class": ("org.apache.kafka.clients.producer.internals.DefaultPartitioner",),
    "partitioner.ignore.keys": ("false",),
    "security.providers": ("",),
    "ssl.cipher.suites": ("",),
    "ssl.provider": ("",),
}
"""Values of refused settings that ask for what the client here does by itself."""
_IN_UPPER_CASE = ("security.protocol", "ssl.keystore.type", "ssl.truststore.type")
_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
"""Settings whose words Java's clients take in any case."""
_SHADED = re.compile(r"^[a-z]*shaded[.]")
"""The prefix of Kafka's classes where a platform has moved them, as Databricks has to `kafkashaded`."""
OF_CONSUMERS = frozenset(settings(ConsumerConfig)) - frozenset(settings(ConnectionConfig))
OF_PRODUCERS = frozenset(settings(ProducerConfig)) - frozenset(settings(ConnectionConfig)) | {
    "key.serializer",
    "value.serializer",
}
_LEVELS = {f"compression.{codec}.level": codec for codec in ("gzip", "lz4", "zstd")}
_SECURITY = ("ssl.", "sasl.", "security.", "config.providers.")


@dataclass(slots=True)
class TranslatedSettings:
    """The outcome for the options with the prefix `kafka.`.

    Attributes:
        taken: settings that kohort's client has, by name.
        ignored: the others, each with the reason.
    """

    taken: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def client_settings_from_options(kafka: Mapping[str, str], config: type, side: Side) -> TranslatedSettings:
    """Return a client's settings from the options with the prefix `kafka.`.

    Args:
        kafka: the options without the prefix.
        config: the class of the client's settings.
        side: the kind of client; a source refuses other settings than a sink.

    Raises:
        InvalidInputError: a setting must not be ignored, or its name is probably misspelt.
    """
    known = {
        name
        for setting in settings(config).values()
        for name in (setting.declaration.name, *setting.declaration.aliases)
    }
    refused = {**REFUSED, **({"source": REFUSED_OF_SOURCE, "sink": REFUSED_OF_SINK}.get(side, {}))}
    found = TranslatedSettings()
    by_reason: dict[str, list[str]] = {}
    logs_in = _logs_in(kafka)
    for name, value in kafka.items():
        if name == _LOGIN_HANDLER and _SHADED.sub("", value.strip()) in _OAUTH_HANDLERS and _TOKEN_URL in kafka:
            continue
        if _SHADED.sub("", value.strip()) in _AS_HERE.get(name, ()):
            continue
        reason = refused.get(name)
        if reason is not None:
            raise InvalidInputError(f"the option {KAFKA_PREFIX}{name} can't be set for a {side}: {reason}")
        if name in _LEVELS and side == "sink":
            if kafka.get("compression.type") == _LEVELS[name]:
                found.taken["compression.level"] = value
            else:
                by_reason.setdefault("of another codec than compression.type", []).append(KAFKA_PREFIX + name)
            continue
        reason = WITHOUT_EFFECT.get(name)
        if name == "sasl.mechanism" and not logs_in:  # templates leave it empty, or name Kerberos' mechanism
            reason = _NO_LOGIN
        if reason is None and name in known:
            found.taken[name] = _as_named_here(name, value)
            continue
        by_reason.setdefault(reason or _why_ignored(name, config, known), []).append(KAFKA_PREFIX + name)
    found.ignored += [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
    _check_login(found.taken)
    return found


def _as_named_here(name: str, value: str) -> str:
    """Translate a setting's value from Java's clients, such as a class name, to the value of kohort's client.

    Raises:
        InvalidInputError: a Java class has no equivalent here.
    """
    if name == "partition.assignment.strategy":
        return _assignors(value)
    if name in _IN_UPPER_CASE:
        return value.strip().upper()
    return value.strip().lower() if name == _IDENTIFICATION else value


def _assignors(classes: str) -> str:
    """Translate a list of Java's assignor classes to the names of kohort's assignors.

    Raises:
        InvalidInputError: a Java class has no equivalent here.
    """
    named = [_SHADED.sub("", word.strip()) for word in classes.split(",")]
    words = [ASSIGNORS.get(name, name) for name in named]
    others = [word for word in words if "." in word]
    if others:
        raise InvalidInputError(
            f"the option {KAFKA_PREFIX}partition.assignment.strategy names {others[0]}, a class of Java's; there are "
            f"{', '.join(ASSIGNORS.values())}"
        )
    return ",".join(words)


def _why_ignored(name: str, config: type, known: set[str]) -> str:
    """Return why a setting that kohort's client does not have is ignored, for a warning.

    Raises:
        InvalidInputError: the name is probably misspelt, or the setting may concern security.
    """
    if name in OF_CONSUMERS:
        return "settings of a consumer"
    if name in OF_PRODUCERS:
        return "settings of a producer"
    meant = nearest_known_name(name, [*known, *WITHOUT_EFFECT, *REFUSED])
    if meant is None and name.startswith(_SECURITY) and not name.startswith("sasl.oauthbearer."):
        near = nearest_key(name, settings(config))
        hint = f"; did you mean {KAFKA_PREFIX}{near}?" if near is not None else ""
        raise InvalidInputError(
            f"the option {KAFKA_PREFIX}{name} is not known here, and security may depend on it{hint}"
        )
    if meant is not None:
        raise InvalidInputError(f"unknown option {KAFKA_PREFIX}{name}; did you mean {KAFKA_PREFIX}{meant}?")
    if name.startswith("sasl.oauthbearer."):
        return _OAUTH
    return "Java's clients pass over settings that they do not have, too"


_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


def _logs_in(kafka: Mapping[str, str]) -> bool:
    return kafka.get("security.protocol", "").strip().upper().startswith("SASL")


def _check_login(taken: Mapping[str, str]) -> None:
    """Check that a query can log in with its settings.

    Raises:
        InvalidInputError: it can't.
    """
    if not _logs_in(taken):
        return
    if taken.get("sasl.mechanism", "").strip() == "OAUTHBEARER" and _TOKEN_URL not in taken:
        raise InvalidInputError(
            f"kafka.sasl.mechanism=OAUTHBEARER needs kafka.{_TOKEN_URL}; a function that returns tokens can't be an "
            "option. Or use SCRAM-SHA-512 or PLAIN over TLS, or a client certificate"
        )


def checked_config(config: type, bootstrap_servers: str, taken: Mapping[str, Any]) -> Any:
    """Build a client's configuration from `kafka.*` options; errors show the names as options.

    Raises:
        InvalidInputError: a value is invalid.
    """
    try:
        made: Any = from_properties(config, {**taken, "bootstrap.servers": bootstrap_servers})
        if hasattr(made, "check"):
            made.check()
        if made.uses_sasl:
            sasl_mechanism(made)
    except InvalidInputError as error:
        raise InvalidInputError(name_settings_as_options(error.message, config), error.code) from None
    return made


def name_settings_as_options(text: str, config: type) -> str:
    """Replace names of settings in an error text by names of options, as `acks` by `kafka.acks`."""
    options = {setting.field: name for name, setting in settings(config).items() if "_" in setting.field}
    options |= {name: name for name in settings(config) if "." in name or name == "acks"}
    words = "|".join(map(re.escape, sorted(options, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.])({words})(?!\.?\w)", lambda found: KAFKA_PREFIX + options[found[1]], text)
