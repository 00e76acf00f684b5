"""Record batches on disk, in Apache Kafka's own layout: segments, partitions, the store of all of them, the group journal.

One thread owns a `LogStore` and everything below it; only `ReadResult.bytes()` may be called from others.
"""

from kohort.log.catalog import Topic, TopicPlan
from kohort.log.checked import (
    ON_CORRUPTION,
    UNREADABLE,
    WHAT_TO_DO,
    Survey,
    checked_batches,
    tell_cut_off,
)
from kohort.log.compaction import Compaction, compact_now
from kohort.log.config import FLUSH_NEVER_MS, LogConfig, StoreLimits
from kohort.log.damage import Damage, DamagedError
from kohort.log.journal import Journal, LogJournal
from kohort.log.markers import Marker
from kohort.log.partition import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, PartitionLog
from kohort.log.recovery import OpenOptions
from kohort.log.results import (
    AbortedTransaction,
    AppendResult,
    FileRange,
    Isolation,
    ReadResult,
    RecoveryReport,
    TimestampOffset,
)
from kohort.log.steps import Steps, completed
from kohort.log.store import RETENTION_CHECK_MS, LogStore

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "FLUSH_NEVER_MS",
    "LATEST",
    "MAX_TIMESTAMP",
    "ON_CORRUPTION",
    "RETENTION_CHECK_MS",
    "UNREADABLE",
    "WHAT_TO_DO",
    "AbortedTransaction",
    "AppendResult",
    "Compaction",
    "Damage",
    "DamagedError",
    "FileRange",
    "Isolation",
    "Journal",
    "LogConfig",
    "LogJournal",
    "LogStore",
    "Marker",
    "OpenOptions",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "Steps",
    "StoreLimits",
    "Survey",
    "TimestampOffset",
    "Topic",
    "TopicPlan",
    "checked_batches",
    "compact_now",
    "completed",
    "tell_cut_off",
]
