"""Settings of the producer: Kafka's names and, except for the batch size, Kafka's defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.client.settings import ConnectionConfig
from kohort.errors import InvalidInputError
from kohort.settings.config import declare_setting
from kohort.wire.compression import CODECS

INT32_MAX = 2**31 - 1
MOST_IN_FLIGHT = 5
"""Batches of one partition whose sequence numbers a broker remembers; more in flight may be out of order."""


@dataclass(frozen=True, slots=True, repr=False)
class ProducerConfig(ConnectionConfig):
    """Settings of a producer."""

    acks: str = declare_setting(
        "acks",
        "all",
        choices=("all", "-1", "0", "1"),
        elsewhere=("request.required.acks",),
        why="the replicas that must have a batch before it is acknowledged: all in sync, the leader (1), or none (0)",
    )
    enable_idempotence: bool = declare_setting(
        "enable.idempotence",
        True,
        why="retries write nothing twice and nothing out of order; needs acks=all; off by default with other acks, and "
        "with more than 5 requests in flight",
    )
    transactional_id: str | None = declare_setting(
        "transactional.id",
        None,
        why="names this producer across restarts; makes transactions possible and fences an older instance",
    )
    transaction_timeout_ms: int = declare_setting(
        "transaction.timeout.ms",
        60_000,
        low=1,
        unit="ms",
        why="the coordinator aborts a transaction that is open for longer",
    )
    compression_type: str = declare_setting(
        "compression.type",
        "none",
        elsewhere=("compression.codec",),
        choices=tuple(CODECS),
        why="how batches are compressed",
    )
    compression_level: int | None = declare_setting(
        "compression.level",
        None,
        low=-(2**17),
        high=22,
        why="the codec's own level; None or -1: its default; only zstd has others below 0",
    )
    batch_size: int = declare_setting(
        "batch.size",
        480 * 1024,
        low=0,
        high=INT32_MAX,
        unit="bytes",
        why="a batch is sent when it is this full; memory is taken as it fills, so a larger one costs a slow producer "
        "nothing, and two fit in a request; below 128 it is 128, so with 0 most records are batches of their own",
    )
    linger_ms: int = declare_setting(
        "linger.ms",
        5,
        elsewhere=("queue.buffering.max.ms",),
        low=0,
        unit="ms",
        why="a batch is sent at the latest when it is this old",
    )
    buffer_memory: int = declare_setting(
        "buffer.memory",
        32 * 1024 * 1024,
        low=1024,
        unit="bytes",
        why="bounds what waits to be sent; then send() blocks",
    )
    max_block_ms: int = declare_setting(
        "max.block.ms",
        60_000,
        low=0,
        unit="ms",
        why="how long send() blocks at most for memory or for a topic's metadata",
    )
    max_request_size: int = declare_setting(
        "max.request.size", 1024 * 1024, low=128, unit="bytes", why="bounds one request, and so one record"
    )
    max_in_flight_requests_per_connection: int = declare_setting(
        "max.in.flight.requests.per.connection",
        MOST_IN_FLIGHT,
        low=1,
        why="requests on one connection that are not answered yet",
    )
    connections_per_broker: int = declare_setting(
        "connections.per.broker",
        2,
        low=1,
        high=16,
        why="partitions are spread over this many connections; a broker handles requests of a connection one by one",
    )
    delivery_timeout_ms: int = declare_setting(
        "delivery.timeout.ms",
        120_000,
        low=1,
        unit="ms",
        why="a record is delivered within this time of send(), or fails; longer by default if `linger.ms` and "
        "`request.timeout.ms` together are",
    )
    retries: int = declare_setting(
        "retries", INT32_MAX, low=0, why="how often a batch is sent again, within the delivery timeout"
    )
    partitioner: Callable[[str, bytes | None, int], int] | None = declare_setting(  # noqa: RUF009
        "partitioner",
        None,
        why="called with topic, key and number of partitions; None: by the key's murmur2, as Kafka's own producers do",
    )
    key_serializer: Callable[[Any], bytes] | None = declare_setting(  # noqa: RUF009
        "key.serializer", None, elsewhere=("key_deserializer",), why="called with each key; None: bytes or str"
    )
    value_serializer: Callable[[Any], bytes] | None = declare_setting(  # noqa: RUF009
        "value.serializer", None, elsewhere=("value_deserializer",), why="called with each value; None: bytes or str"
    )

    @property
    def acks_number(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def codec_level(self) -> int | None:
        """Return the level of the codec; None: its default, which librdkafka's files write as -1."""
        return None if self.compression_level == -1 else self.compression_level

    def check(self) -> ProducerConfig:
        """Check the settings together, and return this configuration.

        Raises:
            InvalidInputError: Settings contradict each other.
        """
        if self.enable_idempotence and self.acks_number != -1:
            raise InvalidInputError("enable.idempotence needs acks=all: set acks=all, or enable_idempotence=False")
        if self.enable_idempotence and self.max_in_flight_requests_per_connection > MOST_IN_FLIGHT:
            raise InvalidInputError(
                f"enable.idempotence allows at most {MOST_IN_FLIGHT} for max.in.flight.requests.per.connection"
            )
        if (self.compression_level or 0) < -1 and self.compression_type != "zstd":
            raise InvalidInputError(
                f"compression.level {self.compression_level} is below 0, which only zstd has; -1: the codec's default"
            )
        if self.transactional_id is not None and not self.enable_idempotence:
            raise InvalidInputError("transactional.id needs enable.idempotence")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise InvalidInputError("delivery.timeout.ms is at least linger.ms + request.timeout.ms")
        return self
