"""The clients' settings as type checkers and editors know them: `**settings: Unpack[ConsumerSettings]`.

Written by tools/setting_types.py (`make docs`) from the configuration classes, which hold what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict


class ConnectionSettings(TypedDict, total=False):
    """Admin's settings, which all clients have."""

    client_id: str
    """Names this client in the broker's logs, quotas and groups. Default: 'kohort'."""

    client_rack: str
    """Lets brokers name a nearer replica, and rack-aware assignors place members. Default: ''."""

    request_timeout_ms: int
    """A request unanswered this long has failed. Default: 30000 ms (at least 1 ms)."""

    default_api_timeout_ms: int
    """Bounds a call with its retries when the call names no timeout. Default: 60000 ms (at least 1 ms)."""

    retry_backoff_ms: int
    """The first wait before a failed request is tried again. Default: 100 ms (at least 0 ms)."""

    retry_backoff_max_ms: int
    """The longest wait before a retry; waits double until then. Default: 1000 ms (at least 0 ms)."""

    reconnect_backoff_ms: int
    """The first wait before a broker is connected again. Default: 50 ms (at least 0 ms)."""

    reconnect_backoff_max_ms: int
    """The longest wait before a reconnection; waits grow by a quarter. Default: 1000 ms (at least 0 ms)."""

    socket_connection_setup_timeout_ms: int
    """Bounds name look-up, connect and handshakes. Default: 10000 ms (at least 1 ms)."""

    connections_max_idle_ms: int
    """Closes connections before a broker or a firewall does; -1: never. Default: 540000 ms (at least -1 ms)."""

    metadata_max_age_ms: int
    """The longest time until new topics, partitions and leaders are noticed. Default: 300000 ms (at least 1 ms)."""

    receive_buffer_bytes: int
    """The socket's receive buffer; -1 leaves it to the system. Default: -1 bytes (at least -1 bytes)."""

    send_buffer_bytes: int
    """The socket's send buffer; -1 leaves it to the system. Default: -1 bytes (at least -1 bytes)."""

    response_max_bytes: int
    """A longer response counts as corrupt, and the connection is closed. Default: 268435456 bytes (at least 1024
    bytes)."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """Encryption and authentication. Default: 'PLAINTEXT' (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)."""

    coordinators_security_protocol: Literal["", "PLAINTEXT"]
    """PLAINTEXT: bootstrap.servers are coordinators over a Kafka cluster, reached without TLS and login, whatever its
    brokers require. Default: '' (PLAINTEXT)."""

    ssl_ca_location: str | None
    """File of the authorities trusted: PEM, or a JKS or PKCS12 trust store; None: the system's. Default: None."""

    ssl_truststore_password: str | None
    """Password of a JKS (None: no check for changes) or PKCS12 trust store. Default: None."""

    ssl_truststore_type: str | None
    """A setting of Java's clients; a file's own first bytes tell what it is. Default: None (PEM, JKS, PKCS12)."""

    ssl_certificate_location: str | None
    """File of the client's certificate, for mutual TLS: PEM, or a JKS or PKCS12 key store. Default: None."""

    ssl_keystore_password: str | None
    """Password of a JKS or PKCS12 key store. Default: None."""

    ssl_keystore_type: str | None
    """A setting of Java's clients; a file's own first bytes tell what it is. Default: None (PEM, JKS, PKCS12)."""

    ssl_keystore_key: str | None
    """The client's private key itself, as PEM, with ssl.keystore.certificate.chain. Default: None."""

    ssl_keystore_certificate_chain: str | None
    """The client's certificate itself and those of its authorities, as PEM. Default: None."""

    ssl_truststore_certificates: str | None
    """The authorities trusted themselves, as PEM, instead of a file. Default: None."""

    ssl_enabled_protocols: Sequence[str]
    """The versions of TLS that may be spoken; TLSv1 and TLSv1.1 never are. Default: 'TLSv1.2,TLSv1.3' (TLSv1, TLSv1.1,
    TLSv1.2, TLSv1.3)."""

    ssl_key_location: str | None
    """PEM file of the client's private key. Default: None."""

    ssl_key_password: str | None
    """Decrypts the private key. Default: None."""

    ssl_endpoint_identification_algorithm: Literal["https", "none", ""]
    """Https checks the broker's name; none does not. Default: 'https' (https, none)."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """How the client proves who it is. Default: 'PLAIN' (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER)."""

    sasl_username: str | None
    """For PLAIN and SCRAM. Default: None."""

    sasl_password: str | None
    """For PLAIN and SCRAM. Default: None."""

    sasl_jaas_config: str | None
    """Java's way to write user name and password; they are read from it. Default: None."""

    sasl_oauth_token: Callable[[], str] | None
    """Called for a bearer token at every login (OAUTHBEARER). Default: None."""

    sasl_oauthbearer_token_url: str | None
    """Https: URL that is asked for bearer tokens by the grant of client credentials, or a file: URL of a token.
    Default: None."""

    sasl_oauthbearer_client_id: str | None
    """The client's name at the token endpoint. Default: None."""

    sasl_oauthbearer_client_secret: str | None
    """The client's secret at the token endpoint. Default: None."""

    sasl_oauthbearer_scope: str | None
    """The scope that the token endpoint is asked for. Default: None."""

    sasl_oauthbearer_extensions: Sequence[str]
    """NAME=VALUE pairs that go to the broker with the token, with commas between; Java writes them as extension_NAME in
    sasl.jaas.config. Default: ''."""


class ConsumerSettings(ConnectionSettings, total=False):
    """A consumer's settings."""

    group_id: str | None
    """The group this consumer is a member of; None: no group, no commits. Default: None."""

    group_protocol: Literal["classic", "consumer", "push"]
    """Classic: members assign; consumer: the coordinator assigns (KIP-848); push: the coordinator sends the requests
    (kohort's brokers only). Default: 'classic' (classic, consumer, push)."""

    group_instance_id: str | None
    """A name that outlives restarts, so that a quick restart moves no partition (static membership). Default: None."""

    group_remote_assignor: str | None
    """The coordinator's assignor by name, for group.protocol=consumer. Default: None."""

    partition_assignment_strategy: Sequence[Any]
    """Classic assignors by preference: names, or assignor objects of your own; the group uses the first that all
    members list. Default: 'range,cooperative-sticky'."""

    session_timeout_ms: int
    """A member without a heartbeat for this long is evicted from the group. Default: 45000 ms (at least 1 ms)."""

    heartbeat_interval_ms: int
    """The interval of heartbeats, by which the member also learns of rebalances. Default: 3000 ms (at least 1 ms)."""

    max_poll_interval_ms: int
    """A consumer that does not poll for this long gives its partitions up. Default: 300000 ms (at least 1 ms)."""

    max_poll_records: int
    """Bounds what one poll returns, and so the work between polls; -1: no bound. Default: 500 (at least -1)."""

    poll_share: Literal["greedy", "proportional"]
    """Greedy empties one partition after the other, proportional deals equal shares. Default: 'greedy' (greedy,
    proportional)."""

    prefetch: Literal["total", "share"]
    """Fetch ahead while fewer than max.poll.records records are kept in total, or per partition fewer than its share of
    them. Default: 'total' (total, share)."""

    queued_max_bytes: int
    """No fetch is sent while this much is fetched or decoded and not returned; a decode and a poll end at it too.
    Default: 134217728 bytes (at least 1 bytes)."""

    enable_auto_commit: bool
    """Commit what poll returned before, in the background and at close. Default: True."""

    auto_commit_interval_ms: int
    """The shortest time between automatic commits. Default: 5000 ms (at least 1 ms)."""

    auto_offset_reset: str
    """Where to start without a committed offset: earliest, latest, none (an error), by_duration:PT1H; with latest,
    partitions added after this consumer subscribed are read from their start. Default: 'latest'."""

    fetch_min_bytes: int
    """A broker responds to a fetch when it has this much. Default: 1 bytes (at least 0 bytes)."""

    fetch_max_wait_ms: int
    """A broker responds to a fetch after at most this long. Default: 500 ms (at least 0 ms)."""

    fetch_max_bytes: int
    """Bounds one answer to a fetch; of each broker about four are in memory at once, as bytes or as columns. Default:
    16777216 bytes (from 1 to 2147483647 bytes)."""

    max_partition_fetch_bytes: int
    """Bounds one partition's share of a fetch response. Default: 1048576 bytes (from 1 to 2147483647 bytes)."""

    isolation_level: Literal["read_uncommitted", "read_committed"]
    """Read_committed leaves out records of transactions that are open or aborted. Default: 'read_uncommitted'
    (read_uncommitted, read_committed)."""

    columns: Sequence[str]
    """The columns that are decoded; a record's other fields stay empty. Default:
    'key,value,topic,partition,offset,timestamp,timestampType,headers' (key, value, topic, partition, offset, timestamp,
    timestampType, headers)."""

    max_decompressed_batch_bytes: int
    """A compressed batch that holds more is refused: a few kilobytes can stand for gigabytes (Java: no limit). Default:
    268435456 bytes (from 1 to 2147483647 bytes)."""

    check_crcs: bool
    """Finds damage between the producer and here. Default: True."""

    allow_auto_create_topics: bool
    """Whether a metadata request for an unknown topic may create it; never with a pattern. Default: True."""

    exclude_internal_topics: bool
    """Patterns do not match Kafka's own topics. Default: True."""

    rebalance_batch_ms: int
    """The leader gathers metadata changes this long before it rebalances for them. Default: 0 ms (at least 0 ms)."""

    key_deserializer: Callable[[bytes], Any] | None
    """Called with each key; None: bytes. Default: None."""

    value_deserializer: Callable[[bytes], Any] | None
    """Called with each value; None: bytes. Default: None."""

    schema_registry_url: str | None
    """Deserializes values by the schemas of this registry, in place of value.deserializer; several with commas between,
    a user and password may stand before a host. Default: None."""


class ProducerSettings(ConnectionSettings, total=False):
    """A producer's settings."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    """The replicas that must have a batch before it is acknowledged: all in sync, the leader (1), or none (0). Default:
    'all' (all, -1, 0, 1)."""

    enable_idempotence: bool
    """Retries write nothing twice and nothing out of order; needs acks=all; off by default with other acks, and with
    more than 5 requests in flight. Default: True."""

    transactional_id: str | None
    """Names this producer across restarts; makes transactions possible and fences an older instance. Default: None."""

    transaction_timeout_ms: int
    """The coordinator aborts a transaction that is open for longer. Default: 60000 ms (at least 1 ms)."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """How batches are compressed. Default: 'none' (none, gzip, snappy, lz4, zstd)."""

    compression_level: int | None
    """The codec's own level; None or -1: its default; only zstd has others below 0. Default: None (from -131072 to
    22)."""

    batch_size: int
    """A batch is sent when it is this full; memory is taken as it fills, so a larger one costs a slow producer nothing,
    and two fit in a request; below 128 it is 128, so with 0 most records are batches of their own. Default: 491520
    bytes (from 0 to 2147483647 bytes)."""

    linger_ms: int
    """A batch is sent at the latest when it is this old. Default: 5 ms (at least 0 ms)."""

    buffer_memory: int
    """Bounds what waits to be sent; then send() blocks. Default: 33554432 bytes (at least 1024 bytes)."""

    max_block_ms: int
    """How long send() blocks at most for memory or for a topic's metadata. Default: 60000 ms (at least 0 ms)."""

    max_request_size: int
    """Bounds one request, and so one record. Default: 1048576 bytes (at least 128 bytes)."""

    max_in_flight_requests_per_connection: int
    """Requests on one connection that are not answered yet. Default: 5 (at least 1)."""

    connections_per_broker: int
    """Partitions are spread over this many connections; a broker handles requests of a connection one by one. Default:
    2 (from 1 to 16)."""

    delivery_timeout_ms: int
    """A record is delivered within this time of send(), or fails; longer by default if `linger.ms` and
    `request.timeout.ms` together are. Default: 120000 ms (at least 1 ms)."""

    retries: int
    """How often a batch is sent again, within the delivery timeout. Default: 2147483647 (at least 0)."""

    partitioner: Callable[[str, bytes | None, int], int] | None
    """Called with topic, key and number of partitions; None: by the key's murmur2, as Kafka's own producers do.
    Default: None."""

    key_serializer: Callable[[Any], bytes] | None
    """Called with each key; None: bytes or str. Default: None."""

    value_serializer: Callable[[Any], bytes] | None
    """Called with each value; None: bytes or str. Default: None."""
