"""Lag of groups: how far the committed offsets are behind."""

from kohort.lag.partition_lag import PartitionLag, group_lag

__all__ = ["PartitionLag", "group_lag"]
