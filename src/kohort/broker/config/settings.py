"""The broker's own settings, under Kafka's property names.

Settings of the group coordinator are in `kohort.groups.config`, settings of topics in `kohort.log`. The broker takes
the properties of all three in one mapping (`broker_configs`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kohort.broker.config.single_broker import (
    accepted_property_names,
    checked_broker_properties,
    ignored_properties_text,
)
from kohort.errors import InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.journal.checked import ON_CORRUPTION
from kohort.log import DECOMPRESSED_RATIO, RATIO_NAME, LogConfig, check_config_combination
from kohort.settings.config import declare_setting, from_properties_many, parse_listen_address, settings, unknown_key
from kohort.settings.server_access import METRICS_PROPERTIES, READS_METRICS, ServerAccess

MIB = 1 << 20
DAY_MS = 86_400_000
WITHOUT_EFFECT = "taken as it is: "
"""How the description of a setting begins that only Kafka's parts use."""
_ONE_LOOP = "taken as it is: one thread serves all"
_CLEANER = "taken as it is: compaction reads a segment at a time"
_KERBEROS = "taken as it is: there are no logins by Kerberos"


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def super_users(text: str) -> tuple[str, ...]:
    """Return the principals of `super.users`.

    Raises:
        ValueError: one of them has no type.
    """
    users = tuple(user.strip() for user in text.split(";") if user.strip())
    for user in users:
        if not all(user.partition(":")):
            raise ValueError(f"principals are written as User:admin, separated by semicolons, not {user!r}")
    return users


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a broker. Names and defaults are Kafka's, except where `why` says otherwise."""

    node_id: int = declare_setting(
        "node.id", 1, low=0, high=2**31 - 1, aliases=("broker.id",), why="this broker's id in metadata"
    )
    rack: str | None = declare_setting("broker.rack", None, why="given to clients that fetch or assign by rack")
    cluster_id: str | None = declare_setting(
        "cluster.id", None, why="fixes the cluster id; made up and kept when not given"
    )
    advertised_host: str | None = declare_setting(
        "advertised.host.name", None, why="the host that metadata names; the address a client reached us at otherwise"
    )
    advertised_port: int | None = declare_setting(
        "advertised.port", None, low=1, high=65535, why="the port that metadata names; the listening one otherwise"
    )

    num_partitions: int = declare_setting(
        "num.partitions", 1, low=1, high=10_000, why="partitions of a topic made without a count"
    )
    auto_create_topics: bool = declare_setting(
        "auto.create.topics.enable", True, why="a metadata request may create a topic"
    )
    default_replication_factor: int = declare_setting(
        "default.replication.factor", 1, low=1, high=1, why="there is one broker, so one replica"
    )
    delete_topics: bool = declare_setting("delete.topic.enable", True, why="off: topics can't be deleted by clients")
    max_partitions: int = declare_setting(
        "max.partitions",
        100_000,
        low=1,
        unit="partitions",
        why="each costs about 3 KB of memory, and a folder and files once it is written to (Kafka: no limit)",
    )

    authorizer_class: str = declare_setting(
        "authorizer.class.name",
        "",
        choices=("", STANDARD_AUTHORIZER),
        why="who decides what clients may do: Kafka's authorizer by ACLs, or nobody, and everything is allowed",
    )
    super_users: str = declare_setting(
        "super.users",
        "",
        check=super_users,
        why="principals that may do everything, such as User:admin, separated by semicolons; with an authorizer",
    )
    allow_if_no_acl: bool = declare_setting(
        "allow.everyone.if.no.acl.found",
        False,
        why="with an authorizer: a resource that no ACL names is open to everyone",
    )

    audit: str = declare_setting(
        "audit.log",
        "auto",
        choices=("auto", "on", "off"),
        why="a file audit.log in the data folder: logins, refusals and changes, a line of JSON each; auto: with an "
        "authorizer or logins, because without them all clients are the same",
    )
    audit_file_bytes: int = declare_setting(
        "audit.log.file.bytes", 16 * MIB, low=4096, unit="bytes", why="a full file of the audit log is renamed"
    )
    audit_files: int = declare_setting(
        "audit.log.files", 10, low=1, high=1000, unit="files", why="older files of the audit log are deleted"
    )

    request_bytes_max: int = declare_setting(
        "socket.request.max.bytes", 100 * MIB, low=1024, high=2**31 - 1, unit="bytes", why="bounds one request's memory"
    )
    decompressed_ratio: int = declare_setting(
        RATIO_NAME,
        DECOMPRESSED_RATIO,
        low=1,
        high=2**31 - 1,
        why="a produced batch may decompress to so many times max.message.bytes, at least 1 MiB and at most 256 MiB: "
        "a few kilobytes can stand for gigabytes, and their check costs memory and time (Kafka: no limit)",
    )
    fetch_bytes_max: int = declare_setting(
        "fetch.max.bytes", 55 * MIB, low=1024, high=2**31 - 1, unit="bytes", why="the largest answer to one fetch"
    )
    connections_max: int = declare_setting(
        "max.connections", 20_000, low=1, unit="connections", why="bounds sockets and their buffers (Kafka: no limit)"
    )
    connections_max_per_ip: int = declare_setting(
        "max.connections.per.ip",
        2**31 - 1,
        low=0,
        unit="connections",
        why="one address can't take all: whatever is given, a tenth of max.connections and of the file descriptors for "
        "connections is left to other addresses, unless the client is on loopback (Kafka: no such share)",
    )
    connection_idle_ms: int = declare_setting(
        "connections.max.idle.ms", 600_000, low=1_000, unit="ms", why="a connection that says nothing is closed"
    )
    send_buffer_bytes: int = declare_setting(
        "socket.send.buffer.bytes",
        102_400,
        low=-1,
        high=2**31 - 1,
        unit="bytes",
        why="what lies in a short buffer is still in the processor's cache when its reader copies it; "
        "-1: the system's choice",
    )
    receive_buffer_bytes: int = declare_setting(
        "socket.receive.buffer.bytes",
        -1,
        low=-1,
        high=2**31 - 1,
        unit="bytes",
        why="-1: the system's choice, since large requests arrive in fewer pieces (Kafka: 102,400)",
    )
    listen_backlog: int = declare_setting(
        "socket.listen.backlog.size",
        4096,
        low=1,
        high=65535,
        unit="connections",
        why="thousands of members that come back at once must not be dropped (Kafka: 50)",
    )
    queued_requests_max: int = declare_setting(
        "queued.max.requests",
        500,
        low=1,
        unit="requests",
        why="requests of one connection that may wait for an answer; reading stops beyond it",
    )
    queued_bytes_max: int = declare_setting(
        "queued.max.response.bytes",
        64 * MIB,
        low=MIB,
        unit="bytes",
        why="answers of one connection that its client has not taken; reading stops beyond it. All connections may "
        "have 16 times as much in memory; beyond it, the one that has taken nothing for longest is closed",
    )
    queued_request_bytes_max: int = declare_setting(
        "queued.max.request.bytes",
        512 * MIB,
        low=-1,
        unit="bytes",
        why="unfinished requests of all connections, five of the largest, never less than socket.request.max.bytes; "
        "beyond it, the connection whose request is unfinished for longest is closed, because honest ones finish in "
        "milliseconds. -1: no limit, which is Kafka's default",
    )
    fetch_sessions_max: int = declare_setting(
        "max.incremental.fetch.session.cache.slots",
        1000,
        low=0,
        unit="sessions",
        why="bounds the memory of incremental fetch sessions; clients beyond it send whole requests",
    )

    quota_windows: int = declare_setting(
        "quota.window.num", 11, low=1, unit="windows", why="rates of quotas are averages over these windows"
    )
    quota_window_s: int = declare_setting(
        "quota.window.size.seconds",
        1,
        low=1,
        unit="seconds",
        why="length of such a window, and the longest throttle time of a request percentage",
    )
    mutation_windows: int = declare_setting(
        "controller.quota.window.num",
        11,
        low=1,
        unit="windows",
        why="so many windows of controller_mutation_rate may come at once",
    )
    mutation_window_s: int = declare_setting(
        "controller.quota.window.size.seconds", 1, low=1, unit="seconds", why="length of such a window"
    )

    offsets_partitions: int = declare_setting(
        "offsets.topic.num.partitions",
        8,
        low=1,
        high=1000,
        unit="partitions",
        why="group shards of a new data folder (Kafka: 50; one process gains nothing from more)",
    )
    offsets_segment_bytes: int = declare_setting(
        "offsets.topic.segment.bytes",
        4 * MIB,
        low=1,
        unit="bytes",
        why="of __consumer_offsets in a new data folder: closed segments are compacted, a restart reads the rest whole "
        "(Kafka: 100 MiB)",
    )
    offsets_load_on_corruption: str = declare_setting(
        ON_CORRUPTION,
        "refuse",
        choices=("refuse", "older"),
        why="what becomes of a partition of __consumer_offsets or __transaction_state that is damaged: its groups or "
        "transactional ids are not served (UNKNOWN_SERVER_ERROR), or what can be read of it is, "
        "older values where newer ones are lost; the log says which (Kafka: not served)",
    )
    transaction_partitions: int = declare_setting(
        "transaction.state.log.num.partitions",
        4,
        low=1,
        high=1000,
        unit="partitions",
        why="transaction shards of a new data folder (Kafka: 50)",
    )
    transaction_segment_bytes: int = declare_setting(
        "transaction.state.log.segment.bytes",
        100 * MIB,
        low=1,
        unit="bytes",
        why="of __transaction_state, once the first transaction has made it: closed segments are compacted",
    )
    transaction_timeout_max_ms: int = declare_setting(
        "transaction.max.timeout.ms", 900_000, low=1, unit="ms", why="the longest timeout a producer may ask for"
    )
    transactional_id_expiration_ms: int = declare_setting(
        "transactional.id.expiration.ms", 7 * DAY_MS, low=1, unit="ms", why="unused transactional ids are forgotten"
    )
    transaction_abort_interval_ms: int = declare_setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        1_000,
        low=10,
        unit="ms",
        why="how often transactions past their timeout are looked for (Kafka: 10 s)",
    )
    transactional_id_check_ms: int = declare_setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        60_000,
        low=1,
        unit="ms",
        why="how often unused transactional ids are looked for (Kafka: 1 h)",
    )
    retention_check_ms: int = declare_setting(
        "log.retention.check.interval.ms",
        300_000,
        low=1,
        unit="ms",
        why="how often records are looked for that are older, or more, than their topic keeps",
    )
    producer_check_ms: int = declare_setting(
        "producer.id.expiration.check.interval.ms",
        5_000,
        low=1,
        unit="ms",
        why="how often producers that have been silent for too long are looked for (Kafka: 10 min)",
    )
    described_partitions_max: int = declare_setting(
        "max.request.partition.size.limit",
        2_000,
        low=1,
        why="partitions that one answer describes; clients ask for the rest",
    )
    metrics_listen: str | None = declare_setting(
        "metrics.listen",
        None,
        why="HOST:PORT where Prometheus reads the broker's metrics; nowhere when not given. An address beyond loopback "
        "needs client certificates, or allow.insecure.metrics",
    )
    metrics_tls: str | None = declare_setting(
        "metrics.tls.location",
        None,
        why="a PEM file of a private key and certificates: metrics are encrypted. A renewed file is used without a "
        "restart",
    )
    metrics_client_ca: str | None = declare_setting(
        "metrics.client.ca.location",
        None,
        why="a PEM file of authorities: who reads metrics must show a certificate of theirs",
    )
    metrics_insecure: bool = declare_setting(
        "allow.insecure.metrics", False, why="everyone may read metrics, also at an address beyond loopback"
    )
    shutdown_ms: int = declare_setting(
        "shutdown.grace.ms", 5_000, low=0, unit="ms", why="answers under way get this long when the broker ends"
    )
    producer_id_expiration_ms: int = declare_setting(
        "producer.id.expiration.ms",
        DAY_MS,
        low=1,
        high=2**31 - 1,
        unit="ms",
        why="the sequences of a producer that has been silent for so long are forgotten",
    )

    background_threads: int = declare_setting("background.threads", 10, low=1, why=_ONE_LOOP)
    io_threads: int = declare_setting("num.io.threads", 8, low=1, why=_ONE_LOOP)
    network_threads: int = declare_setting("num.network.threads", 3, low=1, why=_ONE_LOOP)
    recovery_threads: int = declare_setting(
        "num.recovery.threads.per.data.dir", 2, low=1, why="taken as it is: logs are opened one after the other"
    )
    replica_fetchers: int = declare_setting(
        "num.replica.fetchers", 1, low=1, why="taken as it is: there is one replica"
    )
    cleaner_threads: int = declare_setting("log.cleaner.threads", 1, low=0, why=_ONE_LOOP)
    cleaner_backoff_ms: int = declare_setting(
        "log.cleaner.backoff.ms", 15_000, low=0, unit="ms", why="taken as it is: the logs are looked at every 5 s"
    )
    cleaner_rate: float = declare_setting(
        "log.cleaner.io.max.bytes.per.second", sys.float_info.max, unit="bytes", why="taken as it is: by slices of time"
    )
    cleaner_dedupe_bytes: int = declare_setting(
        "log.cleaner.dedupe.buffer.size", 128 * MIB, low=1, unit="bytes", why=_CLEANER
    )
    cleaner_load_factor: float = declare_setting("log.cleaner.io.buffer.load.factor", 0.9, low=0.0, why=_CLEANER)
    cleaner_io_bytes: int = declare_setting("log.cleaner.io.buffer.size", 512 << 10, low=0, unit="bytes", why=_CLEANER)
    assignment_interval_ms: int = declare_setting(
        "group.consumer.assignment.interval.ms",
        1_000,
        low=0,
        high=15_000,
        unit="ms",
        why="taken as it is: a target is made when it is needed",
    )
    verify_transactions: bool = declare_setting(
        "transaction.partition.verification.enable", True, why="taken as it is: the coordinator is in the same process"
    )
    kerberos_command: str = declare_setting("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", why=_KERBEROS)
    kerberos_login_pause_ms: int = declare_setting(
        "sasl.kerberos.min.time.before.relogin", 60_000, unit="ms", why=_KERBEROS
    )
    kerberos_renewal_jitter: float = declare_setting("sasl.kerberos.ticket.renew.jitter", 0.05, why=_KERBEROS)
    kerberos_renewal_window: float = declare_setting("sasl.kerberos.ticket.renew.window.factor", 0.8, why=_KERBEROS)

    def __post_init__(self) -> None:
        """Check that other machines can read metrics only if the operator has said so.

        Raises:
            InvalidInputError: they can, or the address or a combination of settings is invalid.
        """
        if self.metrics_listen is None:
            return
        tls, client_ca = (None if path is None else Path(path) for path in (self.metrics_tls, self.metrics_client_ca))
        access = ServerAccess(tls, client_ca, self.metrics_insecure)
        access.check(*parse_listen_address(self.metrics_listen), "metrics listener", READS_METRICS, METRICS_PROPERTIES)

    @property
    def unfinished_bytes_max(self) -> int:
        """The most bytes of unfinished requests of all connections."""
        most = self.queued_request_bytes_max
        return sys.maxsize if most < 0 else max(most, self.request_bytes_max)

    @property
    def is_audited(self) -> bool:
        """Whether the broker writes an audit log, even if no listener has logins."""
        return self.audit == "on" or (self.audit == "auto" and bool(self.authorizer_class))

    @property
    def serves_older_values(self) -> bool:
        """Whether coordinators load a damaged journal without its unreadable part, and may serve older values."""
        return self.offsets_load_on_corruption == "older"


HOUR_MS = 3_600_000
LOG_NAMES = {
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
}
"""Kafka's broker names for the defaults of topic settings."""
BROKER_NAMES = {topic: broker for broker, topic in LOG_NAMES.items()}
"""The broker names for the defaults of topic settings, where they differ from the topic names."""
LOG_UNITS = {
    "log.retention.minutes": ("retention.ms", 60_000),
    "log.retention.hours": ("retention.ms", HOUR_MS),
    "log.roll.hours": ("segment.ms", HOUR_MS),
    "log.roll.jitter.hours": ("segment.jitter.ms", HOUR_MS),
    "log.flush.scheduler.interval.ms": ("flush.ms", 1),
}
"""Kafka's names for the same settings in other units. The first of several given names counts, `LOG_NAMES` before all.
"""


def broker_configs(properties: Mapping[str, Any]) -> tuple[BrokerConfig, GroupConfig, LogConfig]:
    """Parse one mapping of properties into the configurations of broker, groups and topics (their defaults).

    Raises:
        InvalidInputError: a key is unknown (the nearest is named), a value is invalid, or one of Kafka's settings
            requires more than a single broker can offer.
    """
    given = checked_broker_properties({key: value for key, value in properties.items() if value is not None})
    plain = {key: value for key, value in given.items() if key not in LOG_NAMES and key not in LOG_UNITS}
    for key, name in LOG_NAMES.items():
        if key in given:
            plain.setdefault(name, given[key])
    for key, (name, factor) in LOG_UNITS.items():
        if key in given:
            plain.setdefault(name, _scaled(key, given[key], factor))
    unknown = [key for key in plain if key not in known_setting_names() and not _is_alias(key)]
    if unknown:
        raise unknown_key(unknown[0], known_setting_names())
    broker, groups, log = from_properties_many((BrokerConfig, GroupConfig, LogConfig), plain)
    check_config_combination(log)
    return broker, groups, log


def ignored_settings_warning(properties: Mapping[str, Any]) -> str:
    """Return the warning for settings of Kafka's that have no effect here; empty if there are none."""
    declared = {**settings(BrokerConfig), **settings(GroupConfig), **settings(LogConfig)}
    unused = {name for name, setting in declared.items() if setting.declaration.why.startswith(WITHOUT_EFFECT)}
    return ignored_properties_text(properties, unused | {BROKER_NAMES[name] for name in unused if name in BROKER_NAMES})


@cache
def known_setting_names() -> tuple[str, ...]:
    """Return the names of all properties that a broker can be started with; aliases are left out."""
    own = (*settings(BrokerConfig), *settings(GroupConfig), *settings(LogConfig), *LOG_NAMES, *LOG_UNITS)
    return (*own, *accepted_property_names())


def _is_alias(key: str) -> bool:
    return any(key in setting.declaration.aliases for setting in settings(BrokerConfig).values())


def _scaled(key: str, value: Any, factor: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{key} must be a whole number, not {value!r}") from None
    return number * factor if number >= 0 else number
