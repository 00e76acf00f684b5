"""Consumer lag: how far groups are behind, since when, and why."""

from kohort.lag.evaluation import CAUSES, GroupLag, LagReport, LagStatus, PartitionLag, Trend, evaluate
from kohort.lag.reading import LagReader
from kohort.lag.record_times import first_record_timestamp
from kohort.lag.snapshot import ClusterSnapshot, ReadFailure
from kohort.lag.timeline import GroupChange, changes, changes_between

__all__ = [
    "CAUSES",
    "ClusterSnapshot",
    "GroupChange",
    "GroupLag",
    "LagReader",
    "LagReport",
    "LagStatus",
    "PartitionLag",
    "ReadFailure",
    "Trend",
    "changes",
    "changes_between",
    "evaluate",
    "first_record_timestamp",
]
