"""What push consumers answered, and what else happens to push groups alone; see `events`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kohort.errors import ErrorCode
from kohort.groups.records import TopicPartitions
from kohort.ids import TopicPartition


class Asking(enum.Enum):
    """What a consumer of the push protocol is asked."""

    PING = enum.auto()
    STOP = enum.auto()
    START = enum.auto()


class Position(NamedTuple):
    """The offset from which a partition is read next."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerAnswered:
    """A consumer of the push protocol answered the oldest of what it was asked on this connection.

    Attributes:
        asked: what that was.
        error: of a Stop or a Start.
        positions: of a Ping.
    """

    group_id: str
    member_id: str
    connection: int
    asked: Asking
    error: ErrorCode = ErrorCode.NONE
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionsDivided:
    """A `DividePartitions` is done; ignored when another was asked for since.

    Attributes:
        assignment: member id to partitions.
        matched: by regular expression and whether it excludes, the topics that it finds.
        failure: why there is no assignment, else None.
    """

    group_id: str
    ticket: int
    assignment: Mapping[str, tuple[TopicPartitions, ...]]
    matched: Mapping[tuple[str, bool], frozenset[str]]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ShowPushGroups:
    """What push groups of this shard own and have committed is to be shown elsewhere. Source: spec 4.7.

    Attributes:
        whole: of all of them, else of those that have changed since this was asked last.
    """

    request: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class OwnersMissing:
    """Where the owners of a push group's partitions are shown, some that had been written are not any more.

    Who owns those is stopped and started again: a rebalance is necessary. Source: spec 4.7, condition 1.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsFound:
    """A `FindOffsets` is done. `failure`: why some are missing, else None."""

    group_id: str
    member_id: str
    ticket: int
    positions: tuple[Position, ...]
    failure: str | None = None
