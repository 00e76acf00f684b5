"""Lag by partition, right also after retention moved the start of a partition past the committed offset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kohort.client.admin.admin import Admin
from kohort.errors import KafkaError
from kohort.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Where a group is in a partition.

    Attributes:
        committed: the committed offset; None: none is committed.
        metadata: what the committer wrote beside it.
        log_start: the first offset the partition holds; None where it can't be had.
        log_end: the offset that the next record will get; read after `committed`, so that lag is never made up.
        error: why the partition's offsets can't be had (its topic was deleted, say).
    """

    partition: TopicPartition
    committed: int | None
    metadata: str
    log_start: int | None
    log_end: int | None
    error: str | None = None

    @property
    def lag(self) -> int | None:
        """Records still to be read: end less the larger of committed and start; None without a committed offset."""
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        return max(0, self.log_end - max(self.committed, self.log_start))


def group_lag(
    admin: Admin, group: str, also: Iterable[TopicPartition] = (), *, timeout_ms: float | None = None
) -> list[PartitionLag]:
    """The lag of every partition that the group has a committed offset for, and of those in `also`.

    Raises:
        KafkaError: the group's offsets can't be had.
    """
    committed = admin.list_consumer_group_offsets(group, timeout_ms=timeout_ms).all()
    partitions = sorted({*committed, *also})
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"), timeout_ms=timeout_ms)
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), timeout_ms=timeout_ms)
    lags = []
    for partition in partitions:
        offset = committed.get(partition)
        problem: KafkaError | None = ends.errors.get(partition) or starts.errors.get(partition)
        known = problem is None
        lags.append(
            PartitionLag(
                partition,
                None if offset is None else offset.offset,
                "" if offset is None else offset.metadata,
                starts.result(partition).offset if known else None,
                ends.result(partition).offset if known else None,
                None if problem is None else str(problem),
            )
        )
    return lags
