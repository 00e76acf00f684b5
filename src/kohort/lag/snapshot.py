"""One read of a cluster's groups and partitions. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kohort.client.admin.values import GroupDescription, GroupListing
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError, NotFoundError, RetriableError, TimedOutError
from kohort.ids import TopicPartition

NO_RECORD = -1
"""The time of the oldest unread record where there is none: only markers of transactions, or records that were aborted
or compacted away."""
UNDATED = -2
"""The time of a record that its producer gave none, or whose batch can't be read."""

REASONS = ("unreachable", "timed_out", "not_authorized", "not_found", "refused")
"""The kinds of failure, few enough for a label of a metric."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A part of a read that failed; the other parts are complete.

    Attributes:
        part: The name of the part that could not be read: `broker 2`, `group payments`, `orders-0`.
        reason: One of `REASONS`.
        text: The error.
    """

    part: str
    reason: str
    text: str

    @classmethod
    def of(cls, part: str, error: KafkaError) -> ReadFailure:
        """Return the failure of a part of a read for an error."""
        return cls(part, failure_reason_of(error), str(error))


def failure_reason_of(error: KafkaError) -> str:
    """Return the entry of `REASONS` for an error, the label of metrics on failures."""
    if isinstance(error, TimedOutError):
        return "timed_out"
    if isinstance(error, NotAuthorizedError):
        return "not_authorized"
    if isinstance(error, NotFoundError) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "not_found"
    return "unreachable" if isinstance(error, RetriableError) else "refused"


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """The start and end offsets of a partition's log, each read after the groups' committed offsets.

    Attributes:
        log_start: The first offset that the partition holds.
        log_end: The offset of the next record: the high watermark.
        last_stable: Where the oldest open transaction begins, else `log_end` or more. Read after `log_end`, so that a
            smaller one is a transaction that was open at that moment.
    """

    log_start: int
    log_end: int
    last_stable: int


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group's description and committed offsets, as one read has found them.

    Attributes:
        description: State and members.
        members_known: Whether the description has the members. Old brokers only list share and streams groups.
        committed: The committed offsets; those of share groups are their start offsets.
        errors: The error for which a partition's offset is unavailable, by partition.
        batch: The last batch that a Spark query finished, of its checkpoint; -1 before the first, None for groups.
        lags: Lag that the coordinator counted: that of share groups, which may acknowledge records in any order.
    """

    description: GroupDescription
    members_known: bool = True
    committed: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    errors: Mapping[TopicPartition, KafkaError] = field(default_factory=dict)
    batch: int | None = None
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The groups, offsets and timestamps that one read of a cluster has found, before lag is computed from them.

    Attributes:
        taken_ms: When its log ends were read, in milliseconds since 1970 by this machine's clock.
        groups: The groups by name.
        errors: Why a group could not be read, by name.
        bounds: The offsets of each partition that a group has an offset or a member for; or why they are unavailable.
        oldest: The timestamp of the oldest record at or after an offset, in milliseconds since 1970, else `NO_RECORD`
            or `UNDATED`. Only of some of the unread offsets: their number in a read is bounded.
        listing: All groups of the cluster; None if only named groups were read.
        failures: The other parts of the read that failed.
    """

    taken_ms: int
    groups: Mapping[str, GroupReading] = field(default_factory=dict)
    errors: Mapping[str, KafkaError] = field(default_factory=dict)
    bounds: Mapping[TopicPartition, PartitionBounds | KafkaError] = field(default_factory=dict)
    oldest: Mapping[tuple[TopicPartition, int], int] = field(default_factory=dict)
    listing: Mapping[str, GroupListing] | None = None
    failures: tuple[ReadFailure, ...] = ()
