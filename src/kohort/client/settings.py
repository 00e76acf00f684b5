"""Settings of the client: Kafka's names, with `_` for `.` as keyword arguments."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kohort.columns.shapes import BATCH_BYTES, BATCH_BYTES_NAME, COLUMNS
from kohort.errors import InvalidInputError
from kohort.settings.config import declare_setting, from_properties, nearest_key
from kohort.settings.config import settings as config_settings
from kohort.settings.validation import ValidationError, hides_value, validator_for, value_text

C = TypeVar("C", bound="ConnectionConfig")
log = logging.getLogger("kohort.client")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


def check_offset_reset(value: str) -> None:
    """Raise ValueError unless `value` is a reset policy."""
    if value in ("earliest", "latest", "none"):
        return
    if value.startswith("by_duration:"):
        duration_ms(value.removeprefix("by_duration:"))
        return
    raise ValueError(f"must be earliest, latest, none or by_duration:PT…, not {value!r}")


def check_extensions(pairs: tuple[str, ...]) -> None:
    """Raise ValueError unless each pair can go to a broker with a bearer token.

    Source: RFC 7628, section 3.1; KIP-342.
    """
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise ValueError(f"must be NAME=VALUE in letters and printable ASCII, not {pair!r}")
        if name.lower() == "auth":
            raise ValueError("the name auth is the token's own")


def check_poll_records(value: int) -> None:
    """Raise ValueError for 0 as `max.poll.records`, with which no poll would return a record."""
    if value == 0:
        raise ValueError("it must be at least 1, or -1 for no bound, not 0")


def check_idle_time(value: int) -> None:
    """Raise ValueError for 0 to 999 ms: connections would be closed between two requests of one client."""
    if 0 <= value < 1_000:
        raise ValueError(f"must be at least 1000 ms, or -1 for never, not {value}")


def duration_ms(text: str) -> int:
    """Convert an ISO 8601 duration of days, hours, minutes and seconds (`P1DT2H`, `PT90S`) to milliseconds.

    Raises:
        ValueError: The text is not such a duration.
    """
    match = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no duration like P1DT12H or PT30M")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    length_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    if not math.isfinite(length_ms):
        raise ValueError(f"{text[:40]!r}… is longer than any duration")
    return round(length_ms)


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Settings for connections, common to consumer, producer, admin and group member."""

    bootstrap_servers: tuple[str, ...] = declare_setting(
        "bootstrap.servers",
        ("127.0.0.1:9092",),
        elsewhere=("metadata.broker.list",),
        why="the brokers asked first, as HOST:PORT with commas between",
    )
    client_id: str = declare_setting(
        "client.id", "kohort", why="names this client in the broker's logs, quotas and groups"
    )
    client_rack: str = declare_setting(
        "client.rack", "", why="lets brokers name a nearer replica, and rack-aware assignors place members"
    )
    request_timeout_ms: int = declare_setting(
        "request.timeout.ms", 30_000, low=1, unit="ms", why="a request unanswered this long has failed"
    )
    default_api_timeout_ms: int = declare_setting(
        "default.api.timeout.ms",
        60_000,
        low=1,
        unit="ms",
        why="bounds a call with its retries when the call names no timeout",
    )
    retry_backoff_ms: int = declare_setting(
        "retry.backoff.ms", 100, low=0, unit="ms", why="the first wait before a failed request is tried again"
    )
    retry_backoff_max_ms: int = declare_setting(
        "retry.backoff.max.ms", 1_000, low=0, unit="ms", why="the longest wait before a retry; waits double until then"
    )
    reconnect_backoff_ms: int = declare_setting(
        "reconnect.backoff.ms", 50, low=0, unit="ms", why="the first wait before a broker is connected again"
    )
    reconnect_backoff_max_ms: int = declare_setting(
        "reconnect.backoff.max.ms",
        1_000,
        low=0,
        unit="ms",
        why="the longest wait before a reconnection; waits grow by a quarter",
    )
    socket_connection_setup_timeout_ms: int = declare_setting(
        "socket.connection.setup.timeout.ms",
        10_000,
        low=1,
        unit="ms",
        why="bounds name look-up, connect and handshakes",
    )
    connections_max_idle_ms: int = declare_setting(
        "connections.max.idle.ms",
        540_000,
        low=-1,
        unit="ms",
        check=check_idle_time,
        why="closes connections before a broker or a firewall does; -1: never",
    )
    metadata_max_age_ms: int = declare_setting(
        "metadata.max.age.ms",
        300_000,
        low=1,
        unit="ms",
        why="the longest time until new topics, partitions and leaders are noticed",
    )
    receive_buffer_bytes: int = declare_setting(
        "receive.buffer.bytes", -1, low=-1, unit="bytes", why="the socket's receive buffer; -1 leaves it to the system"
    )
    send_buffer_bytes: int = declare_setting(
        "send.buffer.bytes", -1, low=-1, unit="bytes", why="the socket's send buffer; -1 leaves it to the system"
    )
    response_max_bytes: int = declare_setting(
        "response.max.bytes",
        256 * 1024 * 1024,
        low=1024,
        unit="bytes",
        why="a longer response counts as corrupt, and the connection is closed",
    )
    security_protocol: str = declare_setting(
        "security.protocol",
        "PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        why="encryption and authentication",
    )
    coordinators_security_protocol: str = declare_setting(
        "coordinators.security.protocol",
        "",
        choices=("", "PLAINTEXT"),
        why="PLAINTEXT: bootstrap.servers are coordinators over a Kafka cluster, reached without TLS and login, "
        "whatever its brokers require",
    )
    ssl_ca_location: str | None = declare_setting(
        "ssl.ca.location",
        None,
        aliases=("ssl.truststore.location",),
        elsewhere=("ssl_cafile",),
        why="file of the authorities trusted: PEM, or a JKS or PKCS12 trust store; None: the system's",
    )
    ssl_truststore_password: str | None = declare_setting(
        "ssl.truststore.password", None, why="password of a JKS (None: no check for changes) or PKCS12 trust store"
    )
    ssl_truststore_type: str | None = declare_setting(
        "ssl.truststore.type",
        None,
        choices=("PEM", "JKS", "PKCS12"),
        why="a setting of Java's clients; a file's own first bytes tell what it is",
    )
    ssl_certificate_location: str | None = declare_setting(
        "ssl.certificate.location",
        None,
        aliases=("ssl.keystore.location",),
        elsewhere=("ssl_certfile",),
        why="file of the client's certificate, for mutual TLS: PEM, or a JKS or PKCS12 key store",
    )
    ssl_keystore_password: str | None = declare_setting(
        "ssl.keystore.password", None, why="password of a JKS or PKCS12 key store"
    )
    ssl_keystore_type: str | None = declare_setting(
        "ssl.keystore.type",
        None,
        choices=("PEM", "JKS", "PKCS12"),
        why="a setting of Java's clients; a file's own first bytes tell what it is",
    )
    ssl_keystore_key: str | None = declare_setting(
        "ssl.keystore.key", None, why="the client's private key itself, as PEM, with ssl.keystore.certificate.chain"
    )
    ssl_keystore_certificate_chain: str | None = declare_setting(
        "ssl.keystore.certificate.chain",
        None,
        why="the client's certificate itself and those of its authorities, as PEM",
    )
    ssl_truststore_certificates: str | None = declare_setting(
        "ssl.truststore.certificates", None, why="the authorities trusted themselves, as PEM, instead of a file"
    )
    ssl_enabled_protocols: tuple[str, ...] = declare_setting(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        choices=("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
        why="the versions of TLS that may be spoken; TLSv1 and TLSv1.1 never are",
    )
    ssl_key_location: str | None = declare_setting(
        "ssl.key.location", None, elsewhere=("ssl_keyfile",), why="PEM file of the client's private key"
    )
    ssl_key_password: str | None = declare_setting(
        "ssl.key.password", None, elsewhere=("ssl_password",), why="decrypts the private key"
    )
    ssl_endpoint_identification_algorithm: str = declare_setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        choices=("https", "none", ""),
        elsewhere=("ssl_check_hostname",),
        why="https checks the broker's name; none does not",
    )
    sasl_mechanism: str = declare_setting(
        "sasl.mechanism",
        "PLAIN",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        why="how the client proves who it is",
    )
    sasl_username: str | None = declare_setting(
        "sasl.username", None, elsewhere=("sasl_plain_username",), why="for PLAIN and SCRAM"
    )
    sasl_password: str | None = declare_setting(
        "sasl.password", None, elsewhere=("sasl_plain_password",), why="for PLAIN and SCRAM"
    )
    sasl_jaas_config: str | None = declare_setting(
        "sasl.jaas.config", None, why="Java's way to write user name and password; they are read from it"
    )
    sasl_oauth_token: Callable[[], str] | None = declare_setting(  # noqa: RUF009
        "sasl.oauth.token", None, why="called for a bearer token at every login (OAUTHBEARER)"
    )
    sasl_oauthbearer_token_url: str | None = declare_setting(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        why="https: URL that is asked for bearer tokens by the grant of client credentials, or a file: URL of a token",
    )
    sasl_oauthbearer_client_id: str | None = declare_setting(
        "sasl.oauthbearer.client.credentials.client.id", None, why="the client's name at the token endpoint"
    )
    sasl_oauthbearer_client_secret: str | None = declare_setting(
        "sasl.oauthbearer.client.credentials.client.secret", None, why="the client's secret at the token endpoint"
    )
    sasl_oauthbearer_scope: str | None = declare_setting(
        "sasl.oauthbearer.scope", None, why="the scope that the token endpoint is asked for"
    )
    sasl_oauthbearer_extensions: tuple[str, ...] = declare_setting(
        "sasl.oauthbearer.extensions",
        (),
        why="NAME=VALUE pairs that go to the broker with the token, with commas between; Java writes them as "
        "extension_NAME in sasl.jaas.config",
        check=check_extensions,
    )

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.repr}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


@dataclass(frozen=True, slots=True, repr=False)
class ConsumerConfig(ConnectionConfig):
    """Settings of a consumer."""

    group_id: str | None = declare_setting(
        "group.id", None, why="the group this consumer is a member of; None: no group, no commits"
    )
    group_protocol: str = declare_setting(
        "group.protocol",
        "classic",
        choices=("classic", "consumer", "push"),
        why="classic: members assign; consumer: the coordinator assigns (KIP-848); push: the coordinator "
        "sends the requests (kohort's brokers only)",
    )
    group_instance_id: str | None = declare_setting(
        "group.instance.id",
        None,
        why="a name that outlives restarts, so that a quick restart moves no partition (static membership)",
    )
    group_remote_assignor: str | None = declare_setting(
        "group.remote.assignor", None, why="the coordinator's assignor by name, for group.protocol=consumer"
    )
    partition_assignment_strategy: tuple[Any, ...] = declare_setting(
        "partition.assignment.strategy",
        ("range", "cooperative-sticky"),
        why="classic assignors by preference: names, or assignor objects of your own; the group uses the first that "
        "all members list",
    )
    session_timeout_ms: int = declare_setting(
        "session.timeout.ms",
        45_000,
        low=1,
        unit="ms",
        why="a member without a heartbeat for this long is evicted from the group",
    )
    heartbeat_interval_ms: int = declare_setting(
        "heartbeat.interval.ms",
        3_000,
        low=1,
        unit="ms",
        why="the interval of heartbeats, by which the member also learns of rebalances",
    )
    max_poll_interval_ms: int = declare_setting(
        "max.poll.interval.ms",
        300_000,
        low=1,
        unit="ms",
        why="a consumer that does not poll for this long gives its partitions up",
    )
    max_poll_records: int = declare_setting(
        "max.poll.records",
        500,
        low=-1,
        check=check_poll_records,
        why="bounds what one poll returns, and so the work between polls; -1: no bound",
    )
    poll_share: str = declare_setting(
        "poll.share",
        "greedy",
        choices=("greedy", "proportional"),
        why="greedy empties one partition after the other, proportional deals equal shares",
    )
    prefetch: str = declare_setting(
        "prefetch",
        "total",
        choices=("total", "share"),
        why="fetch ahead while fewer than max.poll.records records are kept in total, or per partition fewer than its "
        "share of them",
    )
    queued_max_bytes: int = declare_setting(
        "queued.max.bytes",
        128 * 1024 * 1024,
        low=1,
        unit="bytes",
        why="no fetch is sent while this much is fetched or decoded and not returned; a decode and a poll end at it "
        "too",
    )
    enable_auto_commit: bool = declare_setting(
        "enable.auto.commit", True, why="commit what poll returned before, in the background and at close"
    )
    auto_commit_interval_ms: int = declare_setting(
        "auto.commit.interval.ms", 5_000, low=1, unit="ms", why="the shortest time between automatic commits"
    )
    auto_offset_reset: str = declare_setting(
        "auto.offset.reset",
        "latest",
        why="where to start without a committed offset: earliest, latest, none (an error), by_duration:PT1H; "
        "with latest, partitions added after this consumer subscribed are read from their start",
        check=check_offset_reset,
    )
    fetch_min_bytes: int = declare_setting(
        "fetch.min.bytes", 1, low=0, unit="bytes", why="a broker responds to a fetch when it has this much"
    )
    fetch_max_wait_ms: int = declare_setting(
        "fetch.max.wait.ms", 500, low=0, unit="ms", why="a broker responds to a fetch after at most this long"
    )
    fetch_max_bytes: int = declare_setting(
        "fetch.max.bytes",
        16 * 1024 * 1024,
        low=1,
        high=2**31 - 1,
        unit="bytes",
        why="bounds one answer to a fetch; of each broker about four are in memory at once, as bytes or as columns",
    )
    max_partition_fetch_bytes: int = declare_setting(
        "max.partition.fetch.bytes",
        1024 * 1024,
        low=1,
        high=2**31 - 1,
        unit="bytes",
        why="bounds one partition's share of a fetch response",
    )
    isolation_level: str = declare_setting(
        "isolation.level",
        "read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        why="read_committed leaves out records of transactions that are open or aborted",
    )
    columns: tuple[str, ...] = declare_setting(
        "columns", COLUMNS, choices=COLUMNS, why="the columns that are decoded; a record's other fields stay empty"
    )
    max_decompressed_batch_bytes: int = declare_setting(
        BATCH_BYTES_NAME,
        BATCH_BYTES,
        low=1,
        high=2**31 - 1,
        unit="bytes",
        why="a compressed batch that holds more is refused: a few kilobytes can stand for gigabytes (Java: no limit)",
    )
    check_crcs: bool = declare_setting("check.crcs", True, why="finds damage between the producer and here")
    allow_auto_create_topics: bool = declare_setting(
        "allow.auto.create.topics",
        True,
        why="whether a metadata request for an unknown topic may create it; never with a pattern",
    )
    exclude_internal_topics: bool = declare_setting(
        "exclude.internal.topics", True, why="patterns do not match Kafka's own topics"
    )
    rebalance_batch_ms: int = declare_setting(
        "rebalance.batch.ms",
        0,
        low=0,
        unit="ms",
        why="the leader gathers metadata changes this long before it rebalances for them",
    )
    key_deserializer: Callable[[bytes], Any] | None = declare_setting(  # noqa: RUF009
        "key.deserializer", None, elsewhere=("key_serializer",), why="called with each key; None: bytes"
    )
    value_deserializer: Callable[[bytes], Any] | None = declare_setting(  # noqa: RUF009
        "value.deserializer", None, elsewhere=("value_serializer",), why="called with each value; None: bytes"
    )
    schema_registry_url: str | None = declare_setting(
        "schema.registry.url",
        None,
        why="deserializes values by the schemas of this registry, in place of value.deserializer; several with commas "
        "between, a user and password may stand before a host",
    )


Servers: TypeAlias = str | Sequence[str] | None
"""Bootstrap servers: HOST:PORT, several with commas between or as a list; None: 127.0.0.1:9092."""


def client_config(cls: type[C], bootstrap_servers: Servers, settings: Mapping[str, Any]) -> C:
    """Make a configuration from keyword arguments (`fetch_max_bytes=…`) or Kafka's names (`{"fetch.max.bytes": …}`).

    Raises:
        InvalidInputError: An unknown setting (naming the nearest), or an invalid value.
    """
    given = dict(settings)
    if isinstance(bootstrap_servers, Mapping):
        raise InvalidInputError(f"settings are given by name, not as a dict; write {_by_name(cls, bootstrap_servers)}")
    try:
        validator_for(Servers).take(bootstrap_servers)
    except ValidationError as error:
        raise InvalidInputError(error.message_for("bootstrap_servers")) from None
    if bootstrap_servers is not None:
        given["bootstrap_servers"] = bootstrap_servers
    config = from_properties(cls, given, field_names=True)
    if not config.uses_sasl and any((config.sasl_username, config.sasl_password, config.sasl_jaas_config)):
        _warn_of_unused_login(config.security_protocol)
    return config


@functools.cache
def _warn_of_unused_login(protocol: str) -> None:
    """Warn, once in this process for each `security.protocol` without a login, that login settings are not used."""
    log.warning(
        "a login is set (sasl.username, sasl.password or sasl.jaas.config) and not used, because security.protocol is "
        "%s: set it to SASL_SSL, or to SASL_PLAINTEXT in a network that you trust",
        protocol,
    )


def _by_name(cls: type, given: Mapping[str, Any]) -> str:
    """Format a dict of settings as keyword arguments, for an error."""
    known = config_settings(cls)
    words = []
    for key, value in given.items():
        near = key if key in known else nearest_key(key, known)
        name = str(key) if near is None else known[near].field
        words.append(f"{name}={'…' if hides_value(name) else value_text(value)}")
    return ", ".join(sorted(words, key=lambda word: not word.startswith("bootstrap_servers=")))
