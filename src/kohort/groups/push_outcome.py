"""What the coordinator wants of push consumers, and says of push groups alone; see `outcome`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.events import Position, Topic
from kohort.groups.records import OffsetCommitted, PushMemberSaved, TopicPartitions
from kohort.ids import TopicPartition


class RegisterConsumerReply(NamedTuple):
    """An error closes the connection."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ShownPushGroup:
    """A push group as it is shown elsewhere.

    Attributes:
        settled: no rebalance is under way.
        owners: who owns which partition, as consumer and stream.
        offsets: its positions.
        loaded: it was there when its shard was loaded: an earlier process may have shown it.
    """

    group_id: str
    settled: bool
    owners: Mapping[TopicPartition, str]
    offsets: Mapping[tuple[str, int], OffsetCommitted]
    loaded: bool


@dataclass(frozen=True, slots=True)
class ShowPushGroupsReply:
    """Push groups as they are now.

    Attributes:
        whole: these are all that there are; that was asked for, or nobody has asked since the shard was loaded.
        gone: else, those that have changed and are push groups no more.
    """

    groups: tuple[ShownPushGroup, ...]
    whole: bool = True
    gone: tuple[str, ...] = ()


class PingConsumer(NamedTuple):
    """Is it alive, and where is it? `retries`: 0: all its answers have come; n: the nth time that this is asked."""

    group_id: str
    member_id: str
    auto_commit: bool
    retries: int = 0


class StopConsumer(NamedTuple):
    """Read nothing more."""

    group_id: str
    member_id: str


class StartConsumer(NamedTuple):
    """Read these partitions from there; all that it has."""

    group_id: str
    member_id: str
    positions: tuple[Position, ...]


class DismissConsumer(NamedTuple):
    """It is no member any more, or another connection is its: this one ends, which is said in the log."""

    group_id: str
    member_id: str
    why: str


Pushed: TypeAlias = PingConsumer | StopConsumer | StartConsumer | DismissConsumer


@dataclass(frozen=True, slots=True)
class DividePartitions:
    """Long work: who of a push group is to have what; feed `PartitionsDivided` back.

    A group's works run one after the other, and wait for those of groups of the same queue only.

    Attributes:
        ticket: the answer names it; one that names another is stale.
        assignor: "sticky" or "range".
        members: what each said, by member id.
        current: what each has, so that partitions stay.
        topics: all that there are.
    """

    group_id: str
    ticket: int
    assignor: str
    members: Mapping[str, PushMemberSaved]
    current: Mapping[str, tuple[TopicPartitions, ...]]
    topics: Mapping[str, Topic]


@dataclass(frozen=True, slots=True)
class FindOffsets:
    """Begin or end of partitions that have no position; feed `OffsetsFound` back."""

    group_id: str
    member_id: str
    ticket: int
    partitions: tuple[TopicPartition, ...]
    from_begin: bool
