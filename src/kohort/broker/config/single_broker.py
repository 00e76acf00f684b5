"""Apache Kafka's `server.properties` for this broker, which is a single node without replication.

A setting that matches this broker is accepted. A setting that requires something else is rejected, with advice.
Settings that tune parts which only Kafka has are accepted and listed in the log (`IDLE`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kohort.broker.security.addresses import (
    ADVERTISED,
    ANY_HOST,
    advertised_addresses,
    bracketed_host,
    client_listeners,
    split_comma_list,
)
from kohort.broker.security.settings import is_security_setting, security_names
from kohort.errors import InvalidInputError

# -- Kafka's broker settings without effect here: files that contain them are accepted
#
# Each tunes a part of Kafka that kohort lacks. A setting whose absence would matter (a limit) is not
# listed here: `_CHECKS` rejects it. Source: the broker configuration of Kafka 4.4.0, by `KafkaConfig.configDef`. For
# ZooKeeper and older settings: that of Kafka 3.9.

IDLE = frozenset(
    [
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.leader.rebalance.enable",
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controlled.shutdown.enable",
        "cordoned.log.dirs",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "initial.broker.registration.timeout.ms",
        "inter.broker.listener.name",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "leader.imbalance.check.interval.seconds",
        "log.dir.failure.timeout.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.initial.task.delay.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.replica.alter.log.dirs.threads",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "principal.builder.class",
        "producer.purgatory.purge.interval.requests",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "request.timeout.ms",
        "security.inter.broker.protocol",
        "security.providers",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "telemetry.max.bytes",
        "transaction.state.log.load.buffer.size",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "controller.quorum.append.linger.ms",
        "controller.quorum.auto.join.enable",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.socket.timeout.ms",
        "delegation.token.expiry.check.interval.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.max.lifetime.ms",
        "delegation.token.secret.key",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads",
        "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.threads",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "group.consumer.assignor.offload.enable",
        "group.share.assignor.offload.enable",
        "group.share.dlq.manager.class.name",
        "group.streams.acceptable.recovery.lag",
        "group.streams.assignor.offload.enable",
        "group.streams.assignors",
        "group.streams.max.warmup.replicas",
        "group.streams.min.task.offset.interval.ms",
        "group.streams.num.warmup.replicas",
        "group.streams.rack.aware.assignment.tags",
        "group.streams.task.offset.interval.ms",
        "group.streams.topology.description.plugin.class",
        "log.remote.copy.lag.bytes",
        "log.remote.copy.lag.ms",
        "group.share.assignment.interval.ms",
        "group.share.assignors",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.initialize.retry.interval.ms",
        "group.share.max.assignment.interval.ms",
        "group.share.max.delivery.count.limit",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.partition.max.record.locks",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.min.assignment.interval.ms",
        "group.share.min.delivery.count.limit",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.partition.max.record.locks",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.persister.class.name",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "group.streams.assignment.interval.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.assignment.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.max.size",
        "group.streams.max.standby.replicas",
        "group.streams.min.assignment.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.num.standby.replicas",
        "group.streams.session.timeout.ms",
        "metadata.log.dir",
        "metadata.log.max.record.bytes.between.snapshots",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes",
        "metadata.log.segment.ms",
        "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name",
        "remote.log.reader.max.pending.tasks",
        "remote.log.reader.threads",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "replica.fetch.backoff.ms",
        "replica.fetch.max.bytes",
        "replica.fetch.min.bytes",
        "replica.fetch.response.max.bytes",
        "replica.fetch.wait.max.ms",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
        "replica.selector.class",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "sasl.client.callback.handler.class",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.callback.handler.class",
        "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.load.buffer.size",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.compression.codec",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.prune.interval.ms",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.threads",
        "share.coordinator.write.timeout.ms",
        "share.fetch.purgatory.purge.interval.requests",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "zookeeper.clientCnxnSocket",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
        "zookeeper.metadata.migration.enable",
        "zookeeper.session.timeout.ms",
        "zookeeper.set.acl",
        "zookeeper.ssl.cipher.suites",
        "zookeeper.ssl.client.enable",
        "zookeeper.ssl.crl.enable",
        "zookeeper.ssl.enabled.protocols",
        "zookeeper.ssl.endpoint.identification.algorithm",
        "zookeeper.ssl.keystore.location",
        "zookeeper.ssl.keystore.password",
        "zookeeper.ssl.keystore.type",
        "zookeeper.ssl.ocsp.enable",
        "zookeeper.ssl.protocol",
        "zookeeper.ssl.truststore.location",
        "zookeeper.ssl.truststore.password",
        "zookeeper.ssl.truststore.type",
        "zookeeper.sync.time.ms",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "delegation.token.master.key",
        "eligible.leader.replicas.enable",
        "group.coordinator.new.enable",
        "group.share.enable",
        "inter.broker.protocol.version",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.commit.required.acks",
        "password.encoder.cipher.algorithm",
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "password.encoder.old.secret",
        "password.encoder.secret",
        "reserved.broker.max.id",
    ]
)
IDLE_PREFIXES = ("confluent.", "listener.name.", "rlmm.config.", "rsm.config.")
"""Prefixes of settings of plug-ins, listeners and vendors, of which there is no complete list."""


_PLACES = ("listeners", "port", "host.name", "log.dirs", "log.dir")
_UNLIMITED = 2**31 - 1


class BrokerLocation(NamedTuple):
    """The listening address and data folder in a properties file.

    Attributes:
        listen: HOST:PORT of the listener for clients; None: not given.
        folder: the data folder; None: not given.
    """

    listen: str | None
    folder: str | None


def split_location(properties: Mapping[str, Any]) -> tuple[BrokerLocation, dict[str, Any]]:
    """Split a `server.properties` into the listening address and data folder, and all other entries.

    Raises:
        InvalidInputError: there are several folders, or an invalid address.
    """
    rest = {key: value for key, value in properties.items() if key not in _PLACES}
    listen = None
    if properties.get("listeners"):
        listeners = client_listeners("listeners", properties)
        listen = ",".join(str(listener._replace(host=listener.host or ANY_HOST)) for listener in listeners)
    elif "port" in properties:
        listen = f"{bracketed_host(str(properties.get('host.name') or ANY_HOST))}:{properties['port']}"
    name = "log.dirs" if properties.get("log.dirs") else "log.dir"
    folders = split_comma_list(properties.get(name))
    if len(folders) > 1:
        raise InvalidInputError(f"{name}: kohort keeps its data in one folder, not in {len(folders)}; name one of them")
    return BrokerLocation(listen, folders[0] if folders else None), rest


def checked_broker_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Check the entries of a `server.properties`, and return those that are settings of kohort's broker.

    Entries that are only checked, have no effect, or belong to the security of listeners are left out.

    Raises:
        InvalidInputError: a property requires something that this broker can't offer; the text says what to do.
    """
    for key in _PLACES:
        if key in properties:
            raise InvalidInputError(f"{key} is for the file of kohort broker --config: give address and folder apart")
    for key, check in (_CHECKS | _CHECKS_OF_OURS).items():
        if properties.get(key) is not None:
            problem = check(str(properties[key]).strip())
            if problem:
                raise InvalidInputError(f"{key}={properties[key]}: {problem}")
    if properties.get(ADVERTISED):
        advertised_addresses(client_listeners(ADVERTISED, properties), properties)
    return {
        key: value
        for key, value in properties.items()
        if key not in _CHECKS and not has_no_effect(key) and not is_security_setting(key)
    }


def has_no_effect(key: str) -> bool:
    """Return whether this name is a setting of Kafka's that has no effect on kohort's broker."""
    return key in IDLE or (key.startswith(IDLE_PREFIXES) and not is_security_setting(key))


def ignored_properties_text(properties: Mapping[str, Any], declared: Collection[str] = ()) -> str:
    """Return the warning that lists ignored properties of Kafka's; empty if there are none.

    Args:
        properties: what the user gave.
        declared: names of settings that the broker describes, and that have no effect either.
    """
    idle = sorted(
        key for key, value in properties.items() if value is not None and (has_no_effect(key) or key in declared)
    )
    return f"settings of Kafka's that kohort's broker ignores: {', '.join(idle)}" if idle else ""


def accepted_property_names() -> tuple[str, ...]:
    """Return the names of `server.properties` entries that are accepted but are no settings of kohort's broker.

    Those are addresses and folders, values that are only checked, security settings, and settings without effect.
    """
    return (*_PLACES, *_CHECKS, *security_names(), *IDLE)


_Check = Callable[[str], str | None]
"""A function that checks a property's value: it returns what is wrong and what to do, or None if all is well."""


def _one_copy(value: str) -> str | None:
    if value == "1":
        return None
    return f"kohort is one broker without replication, {value} can't be had; remove it or set 1"


def _roles(value: str) -> str | None:
    if set(split_comma_list(value)) in ({"broker"}, {"broker", "controller"}):
        return None
    return "kohort broker is a broker, with nothing to control; remove it or set broker"


def _alone(value: str) -> str | None:
    if len(split_comma_list(value)) < 2:
        return None
    return "kohort is one node without a quorum; remove it, or name this node alone"


def _nothing(why: str) -> _Check:
    def check_property_value(value: str) -> str | None:
        return f"{why}; remove it" if value else None

    return check_property_value


def _only(word: str, why: str) -> _Check:
    def check_property_value(value: str) -> str | None:
        return None if value.lower() == word else f"{why}; remove it or set {word}"

    return check_property_value


def _taken(_value: str) -> str | None:
    """Accept any value of a property: `client_listeners` checks it later, together with the listeners."""
    return None


_JAVA = _nothing("kohort loads no Java classes, so what this would allow or forbid is not looked at")
_CHECKS: dict[str, _Check] = {
    "offsets.topic.replication.factor": _one_copy,
    "transaction.state.log.replication.factor": _one_copy,
    "transaction.state.log.min.isr": _one_copy,
    "share.coordinator.state.topic.replication.factor": _one_copy,
    "share.coordinator.state.topic.min.isr": _one_copy,
    "process.roles": _roles,
    "controller.quorum.voters": _alone,
    "controller.quorum.bootstrap.servers": _alone,
    "controller.listener.names": _taken,
    "listener.security.protocol.map": _taken,
    ADVERTISED: _taken,
    "alter.config.policy.class.name": _JAVA,
    "create.topic.policy.class.name": _JAVA,
    "client.quota.callback.class": _JAVA,
    "config.providers": _nothing("kohort takes values as they stand, and no ${…}"),
    "log.cleaner.enable": _only("true", "kohort always compacts topics that are to be compacted"),
    "remote.log.storage.system.enable": _only("false", "kohort has no tiered storage"),
    "transaction.two.phase.commit.enable": _only("false", "kohort has no transactions of two phases"),
    "max.connection.creation.rate": _only(str(_UNLIMITED), "kohort has no limit of new connections by time"),
    "max.connections.per.ip.overrides": _nothing("kohort has one limit for all hosts, max.connections.per.ip"),
}
_CHECKS_OF_OURS: dict[str, _Check] = {"default.replication.factor": _one_copy, "min.insync.replicas": _one_copy}
"""Checks of the broker's own settings whose values no start can provide."""
