"""Consumer lag: how far groups are behind, since when, and why."""

from kohort.lag.evaluation import CAUSES, GroupLag, LagReport, PartitionLag, Status, Trend, evaluate
from kohort.lag.reading import LagReader
from kohort.lag.snapshot import ClusterSnapshot, ReadFailure
from kohort.lag.timeline import GroupChange, changes

__all__ = [
    "CAUSES",
    "ClusterSnapshot",
    "GroupChange",
    "GroupLag",
    "LagReader",
    "LagReport",
    "PartitionLag",
    "ReadFailure",
    "Status",
    "Trend",
    "changes",
    "evaluate",
]
