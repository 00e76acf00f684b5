"""Consumer lag: how far groups are behind, since when, and why."""

from kohort.lag.evaluation import CAUSES, GroupLag, LagReport, PartitionLag, Status, Trend, evaluate
from kohort.lag.reading import LagReader
from kohort.lag.snapshot import ClusterSnapshot, ReadFailure

__all__ = [
    "CAUSES",
    "ClusterSnapshot",
    "GroupLag",
    "LagReader",
    "LagReport",
    "PartitionLag",
    "ReadFailure",
    "Status",
    "Trend",
    "evaluate",
]
