"""Record batches on disk in Apache Kafka's own layout: segments, partitions, and the store of all partitions.

One thread owns a `LogStore` and its objects. Other threads may call only `ReadResult.bytes()`.
"""

from kohort.log.catalog import CatalogTopic, TopicPlan
from kohort.log.compaction import Compaction, compact_now
from kohort.log.config import (
    COMPRESSIONS,
    DECOMPRESSED_RATIO,
    FLUSH_NEVER_MS,
    PRODUCER,
    RATIO_NAME,
    LogConfig,
    StoreLimits,
    check_config_combination,
    check_config_names,
)
from kohort.log.cooperative import LoopBudget, Search, Steps, TooMuchForLoopError, run_steps
from kohort.log.damage import DamagedError, LogDamage
from kohort.log.markers import Marker
from kohort.log.partition import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, PartitionLog
from kohort.log.recompress import has_topic_codec, validate_and_recompress
from kohort.log.recovery import OpenOptions
from kohort.log.results import (
    AbortedTxn,
    AppendResult,
    FileRange,
    Isolation,
    ReadResult,
    RecoveryReport,
    TimestampOffset,
)
from kohort.log.store import LogStore
from kohort.log.validator import BATCHES_MAX, CheckedBatches

__all__ = [
    "BATCHES_MAX",
    "COMPRESSIONS",
    "DECOMPRESSED_RATIO",
    "EARLIEST",
    "EARLIEST_LOCAL",
    "FLUSH_NEVER_MS",
    "LATEST",
    "MAX_TIMESTAMP",
    "PRODUCER",
    "RATIO_NAME",
    "AbortedTxn",
    "AppendResult",
    "CatalogTopic",
    "CheckedBatches",
    "Compaction",
    "DamagedError",
    "FileRange",
    "Isolation",
    "LogConfig",
    "LogDamage",
    "LogStore",
    "LoopBudget",
    "Marker",
    "OpenOptions",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "Search",
    "Steps",
    "StoreLimits",
    "TimestampOffset",
    "TooMuchForLoopError",
    "TopicPlan",
    "check_config_combination",
    "check_config_names",
    "compact_now",
    "has_topic_codec",
    "run_steps",
    "validate_and_recompress",
]
