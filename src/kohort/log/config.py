"""Every knob of a topic's log, under Kafka's topic property names, with unit, limit and default."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_DAY_MS = 86_400_000


class CleanupPolicy(StrEnum):
    """What happens to old records (`cleanup.policy`)."""

    DELETE = "delete"
    COMPACT = "compact"
    BOTH = "compact,delete"

    @property
    def compacts(self) -> bool:
        return self is not CleanupPolicy.DELETE

    @property
    def deletes(self) -> bool:
        return self is not CleanupPolicy.COMPACT


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's log settings. Field names are Kafka's topic properties with `_` for `.`; -1 means no limit.

    Sizes are bytes, `*_ms` milliseconds.
    """

    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    flush_messages: int = _LONG_MAX

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock stamps the batches (`message.timestamp.type=LogAppendTime`)."""
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of one data folder, each with its reason."""

    open_files: int = 512
    """Log files open at once; the usual soft limit of a process is 1,024 and sockets need the rest."""
    topics: int = 10_000
    """Each topic is one line of the catalog, rewritten as a whole on every change."""
    partitions: int = 100_000
    """Each partition costs about 3 KB of memory and a millisecond at start-up."""
    producers_per_partition: int = 10_000
    """Idempotent producers remembered by one partition; beyond it the one idle longest is forgotten."""
    producer_id_expiration_ms: int = _DAY_MS
    """Idle time after which a producer's sequence numbers are forgotten (`producer.id.expiration.ms`)."""
