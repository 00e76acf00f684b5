"""Consumer lag: how far a group's committed offsets are behind."""

from kohort.lag.partition_lag import BEFORE_START, PAST_END, PartitionLag, group_lag

__all__ = ["BEFORE_START", "PAST_END", "PartitionLag", "group_lag"]
