"""Record batches on disk, in Apache Kafka's own layout: segments, partitions, the store of all of them, the group journal.

One thread owns a `LogStore` and everything below it; only `ReadResult.bytes()` may be called from others.
"""

from kohort.log.config import CleanupPolicy, LogConfig, StoreLimits
from kohort.log.journal import Journal, LogJournal
from kohort.log.partition import PartitionLog
from kohort.log.results import (
    AbortedTransaction,
    AppendResult,
    FileRange,
    Isolation,
    ReadResult,
    RecoveryReport,
    TimestampOffset,
)
from kohort.log.store import LogStore, Topic

__all__ = [
    "AbortedTransaction",
    "AppendResult",
    "CleanupPolicy",
    "FileRange",
    "Isolation",
    "Journal",
    "LogConfig",
    "LogJournal",
    "LogStore",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "StoreLimits",
    "TimestampOffset",
    "Topic",
]
