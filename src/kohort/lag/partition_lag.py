"""Lag by partition, correct also after retention moved the log start past the committed offset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kohort.client.admin.admin import Admin
from kohort.errors import KafkaError
from kohort.ids import TopicPartition

PAST_END, BEFORE_START = "past end", "before start"
"""The states of a committed offset outside the log: the topic was recreated or its log truncated, or retention was
faster than the group."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's position in a partition.

    Attributes:
        committed: the committed offset; None: none is committed.
        metadata: the metadata that was committed with it.
        log_start: the partition's first offset; None if it is unavailable.
        log_end: the offset of the next record; read after `committed`, so that lag is never overstated.
        error: why the partition's offsets are unavailable (its topic was deleted, say).
    """

    partition: TopicPartition
    committed: int | None
    metadata: str
    log_start: int | None
    log_end: int | None
    error: str | None = None

    @property
    def lag(self) -> int | None:
        """The records still to be read: end less the larger of committed and start; None without a committed offset."""
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        return max(0, self.log_end - max(self.committed, self.log_start))

    @property
    def status(self) -> str | None:
        """`past end` or `before start` if a consumer can't continue at the committed offset; else None.

        Such a consumer resets its position by its auto.offset.reset.
        """
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        if self.committed > self.log_end:
            return PAST_END
        return BEFORE_START if self.committed < self.log_start else None

    @property
    def lost(self) -> int | None:
        """The offsets from `committed` on that retention deleted; None unless the status is `before start`."""
        if self.committed is None or self.log_start is None or self.status != BEFORE_START:
            return None
        return self.log_start - self.committed


def group_lag(
    admin: Admin, group: str, also: Iterable[TopicPartition] = (), *, timeout_ms: float | None = None
) -> list[PartitionLag]:
    """Return the lag of every partition with a committed offset of the group, and of those in `also`.

    Raises:
        KafkaError: the group's offsets are unavailable; an error of a single partition is in its entry.
    """
    found = admin.list_consumer_group_offsets(group, timeout_ms=timeout_ms)
    committed = found.values
    partitions = sorted({*committed, *found.errors, *also})
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"), timeout_ms=timeout_ms)
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), timeout_ms=timeout_ms)
    lags = []
    for partition in partitions:
        offset = committed.get(partition)
        problem: KafkaError | None = next(
            (part.errors[partition] for part in (found, ends, starts) if partition in part.errors), None
        )
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
