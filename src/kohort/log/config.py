"""Topic settings of the log, under Kafka's property names, with unit, limits and reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kohort.errors import ErrorCode, InvalidInputError
from kohort.settings.config import declare_setting, settings, unknown_key

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_DAY_MS = 86_400_000
RECORD_BYTES_UNLIMITED = 0x7FFFFFF7
"""The largest byte array in Java, and the default of `max.decompressed.message.bytes`, which disables the check."""
RATIO_NAME = "max.decompressed.batch.ratio"
DECOMPRESSED_RATIO = 128
"""The default of `max.decompressed.batch.ratio`: 128 MiB with the default of `max.message.bytes`. Producers fill
batches of one megabyte; repetitive records compress to a hundredth.
"""
FLUSH_NEVER_MS = _LONG_MAX
"""`flush.ms` of a log that is not flushed by time."""


COMPRESSIONS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of `compression.type` that name a codec, with its number in a batch."""
PRODUCER = "producer"
"""The `compression.type` of topics whose batches are stored unchanged."""
_UNKNOWN_CONFIG = "Unknown topic config name:"
"""Kafka's text, which administration tools and their tests compare."""
_REPLICAS = re.compile(r"\*|\d+:\d+(,\d+:\d+)*")


def _not_zero(level: int) -> None:
    if level == 0:
        raise ValueError("gzip has no level 0 here; -1 is its own choice, 1 to 9 are from fast to small")


def _pairs(words: tuple[str, ...]) -> None:
    if words and not _REPLICAS.fullmatch(",".join(words)):
        raise ValueError("must be *, or pairs like 0:101,1:102 (partition:broker)")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log settings of one topic. -1 means no limit where it is allowed."""

    cleanup_policy: tuple[str, ...] = declare_setting(
        "cleanup.policy",
        ("delete",),
        choices=("delete", "compact"),
        why="how old records go: whole segments, by key, both",
    )
    segment_bytes: int = declare_setting(
        "segment.bytes",
        1 << 30,
        low=14,
        high=_INT_MAX,
        unit="bytes",
        why="retention and compaction work on whole segments",
    )
    segment_ms: int = declare_setting(
        "segment.ms", 7 * _DAY_MS, low=1, high=_LONG_MAX, unit="ms", why="a quiet topic's records can still expire"
    )
    segment_index_bytes: int = declare_setting(
        "segment.index.bytes", 10 << 20, low=4, high=_INT_MAX, unit="bytes", why="a full index starts a new segment"
    )
    index_interval_bytes: int = declare_setting(
        "index.interval.bytes",
        4096,
        low=0,
        high=_INT_MAX,
        unit="bytes",
        why="log bytes scanned at most for one look-up",
    )
    retention_bytes: int = declare_setting(
        "retention.bytes",
        -1,
        low=-_LONG_MAX - 1,
        high=_LONG_MAX,
        unit="bytes",
        why="bounds one partition's disk space; below 0: no bound",
    )
    retention_ms: int = declare_setting(
        "retention.ms", 7 * _DAY_MS, low=-1, high=_LONG_MAX, unit="ms", why="bounds the age of records"
    )
    delete_retention_ms: int = declare_setting(
        "delete.retention.ms",
        _DAY_MS,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="readers have this long to see a tombstone",
    )
    min_cleanable_dirty_ratio: float = declare_setting(
        "min.cleanable.dirty.ratio", 0.5, low=0.0, high=1.0, why="compaction rewrites the log only when it pays"
    )
    min_compaction_lag_ms: int = declare_setting(
        "min.compaction.lag.ms", 0, low=0, high=_LONG_MAX, unit="ms", why="records stay uncompacted at least this long"
    )
    max_message_bytes: int = declare_setting(
        "max.message.bytes", 1_048_588, low=0, high=_INT_MAX, unit="bytes", why="bounds one batch"
    )
    max_decompressed_message_bytes: int = declare_setting(
        "max.decompressed.message.bytes",
        RECORD_BYTES_UNLIMITED,
        low=1,
        high=RECORD_BYTES_UNLIMITED,
        unit="bytes",
        why="bounds one record of a compressed batch, which is small on the wire whatever its records are",
    )
    message_timestamp_type: str = declare_setting(
        "message.timestamp.type",
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        why="whose clock stamps records: the producer's or ours",
    )
    message_timestamp_before_max_ms: int = declare_setting(
        "message.timestamp.before.max.ms",
        _LONG_MAX,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="refuses records stamped too long ago",
    )
    message_timestamp_after_max_ms: int = declare_setting(
        "message.timestamp.after.max.ms",
        3_600_000,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="a wrong clock would keep segments for ever",
    )
    flush_messages: int = declare_setting(
        "flush.messages", _LONG_MAX, low=1, high=_LONG_MAX, why="records between two fsyncs; 1 survives a power loss"
    )
    compression_type: str = declare_setting(
        "compression.type",
        "producer",
        choices=("producer", *COMPRESSIONS),
        why="producer: batches stay as they come; else those that come otherwise are compressed anew",
    )
    compression_gzip_level: int = declare_setting(
        "compression.gzip.level",
        -1,
        low=-1,
        high=9,
        check=_not_zero,
        why="of what the broker compresses; -1: gzip's own",
    )
    compression_lz4_level: int = declare_setting(
        "compression.lz4.level", 9, low=1, high=17, why="of what the broker compresses"
    )
    compression_zstd_level: int = declare_setting(
        "compression.zstd.level", 3, low=-131_072, high=22, why="of what the broker compresses"
    )
    min_insync_replicas: int = declare_setting(
        "min.insync.replicas", 1, low=1, high=_INT_MAX, why="taken as it is: there is one replica"
    )
    max_compaction_lag_ms: int = declare_setting(
        "max.compaction.lag.ms",
        _LONG_MAX,
        low=1,
        high=_LONG_MAX,
        unit="ms",
        why="records are compacted at the latest after this",
    )
    file_delete_delay_ms: int = declare_setting(
        "file.delete.delay.ms",
        60_000,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="taken as it is: open readers keep a deleted file anyway",
    )
    flush_ms: int = declare_setting(
        "flush.ms",
        FLUSH_NEVER_MS,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="a power loss costs no more than this, and the second of a look",
    )
    segment_jitter_ms: int = declare_setting(
        "segment.jitter.ms",
        0,
        low=0,
        high=_LONG_MAX,
        unit="ms",
        why="taken as it is: few segments end at the same time here",
    )
    local_retention_bytes: int = declare_setting(
        "local.retention.bytes", -2, low=-2, high=_LONG_MAX, unit="bytes", why="taken as it is: all segments are local"
    )
    local_retention_ms: int = declare_setting(
        "local.retention.ms", -2, low=-2, high=_LONG_MAX, unit="ms", why="taken as it is: all segments are local"
    )
    leader_throttled: tuple[str, ...] = declare_setting(
        "leader.replication.throttled.replicas", (), check=_pairs, why="taken as it is: there is one replica"
    )
    follower_throttled: tuple[str, ...] = declare_setting(
        "follower.replication.throttled.replicas", (), check=_pairs, why="taken as it is: there is one replica"
    )
    preallocate: bool = declare_setting("preallocate", False, why="taken as it is: segments grow by appending")
    unclean_leader_election_enable: bool = declare_setting(
        "unclean.leader.election.enable", False, why="taken as it is: there is one replica"
    )

    @property
    def uses_log_append_time(self) -> bool:
        """Whether the broker's clock stamps the batches (`message.timestamp.type`)."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def uses_compaction(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def uses_deletion(self) -> bool:
        return "delete" in self.cleanup_policy


def check_config_names(keys: Iterable[str]) -> None:
    """Check the names of a topic's configs. The error's text is Kafka's, with the name that is probably meant.

    Raises:
        InvalidInputError: INVALID_CONFIG: a name is unknown.
    """
    known = settings(LogConfig)
    for key in keys:
        if key not in known:
            raise InvalidInputError(unknown_key(key, known, _UNKNOWN_CONFIG).message, ErrorCode.INVALID_CONFIG)


def check_config_combination(config: LogConfig) -> None:
    """Check settings that depend on each other.

    Raises:
        InvalidInputError: INVALID_CONFIG: two settings contradict each other.
    """
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidInputError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is more than "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}: raise the one or lower the other",
            ErrorCode.INVALID_CONFIG,
        )


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of one data folder: open files, topics, partitions, producers, and the intervals of its checks."""

    open_files: int = 512
    """The most open log files. A process's usual soft limit is 1,024, and sockets need the rest."""
    lent_files: int = 256
    """The most released log files that responses in progress still read."""
    topics: int = 10_000
    """The most topics. Each is one line of the catalog, which is rewritten on every change."""
    partitions: int = 100_000
    """The most partitions. Each costs about 3 KB of memory and time at startup; a folder and files only once it is
    written to.
    """
    changed_at_once: int = 10_000
    """The most partitions of one change, so that the next one need not wait long. Kafka's own limit
    (`MAX_RECORDS_PER_USER_OP`).
    """
    decompressed_ratio: int = DECOMPRESSED_RATIO
    """How many times `max.message.bytes` a produced batch may decompress to (`max.decompressed.batch.ratio`)."""
    producers: int = 10_000
    """The most idempotent producers of one partition. With more, the one idle longest is forgotten."""
    retention_check_ms: int = 300_000
    """The interval of retention checks, as in Kafka (`log.retention.check.interval.ms`): older records stay readable
    until then.
    """
    producer_check_ms: int = 5_000
    """The interval of checks for idle producers (`producer.id.expiration.check.interval.ms`)."""
    producer_id_expiration_ms: int = _DAY_MS
    """The idle time after which a producer is forgotten (`producer.id.expiration.ms`)."""
