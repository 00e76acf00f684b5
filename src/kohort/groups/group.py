"""A group: its offsets, and its members under the protocol that it speaks.

A `Group` exists as long as it has a record. Soft state and timers are lost with the process; `on_loaded` rebuilds them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from kohort.errors import ErrorCode
from kohort.groups.effects import (
    Cause,
    ConsumerGroupHeartbeatReply,
    DescribedConsumerGroup,
    DescribedGroup,
    GroupState,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    LeftMember,
    RebalanceReason,
    SyncGroupReply,
)
from kohort.groups.events import (
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    TxnOffsetCommit,
)
from kohort.groups.long_polling import LongPollingGroup
from kohort.groups.records import OffsetCommitted, Record, RecordKey, RecordKind
from kohort.groups.step import Step
from kohort.groups.table import Table, Trigger

Partition = tuple[str, int]
Appliers: TypeAlias = Mapping[type, Callable[[Any, Any], None]]
"""Handlers by the class of a record; called with a membership of the class that holds the table, and a record."""


def leave_cause(leaving: Sequence[LeavingMember]) -> Cause:
    """Return the rebalance cause for members that left, with the reasons that they gave."""
    named = [member.member_id or member.instance_id or "" for member in leaving]
    reasons = ", ".join(sorted({member.reason for member in leaving if member.reason}))
    text = f"{', '.join(named)} left (reason: {reasons or 'not given'})"
    return Cause(RebalanceReason.LEFT, text, named[0] if len(named) == 1 else "")


class GroupMembership(LongPollingGroup):
    """The members of a group under one protocol: their records and their soft state.

    Each protocol derives one class, whose table says what a group does with an event. Methods that change something
    take the step. A new protocol is a folder with such a class, and an entry in `machine.PROTOCOLS`.

    Attributes:
        name: the protocol's name, and the type that ListGroups shows unless `listed_as` is set.
        listed_as: another type for ListGroups.
        table: what the group does with an event in each of its states.
        appliers: how each kind of record changes the membership; only the ledger calls these.
        is_shown: such groups are published elsewhere, so the ledger tracks their changes (`Ledger.mark_for_zookeeper`).
    """

    __slots__ = ("group_id",)

    name: ClassVar[str]
    listed_as: ClassVar[str] = ""
    is_shown: ClassVar[bool] = False

    group_id: str
    appliers: ClassVar[Appliers]
    table: ClassVar[Table] = {}

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    @abstractmethod
    def group_state(self) -> GroupState:
        """Return the state for ListGroups. An Empty group may be removed or change its protocol."""

    @abstractmethod
    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members read; None: they may read any."""

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read this topic, or may read any topic.

        Ask `subscribed_topics` once instead of this for several topics.
        """
        topics = self.subscribed_topics()
        return topics is None or topic in topics

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield every record of the membership, in an order that replays."""

    @abstractmethod
    def has_records(self) -> bool:
        """Return whether the journal has any record of the membership."""

    @abstractmethod
    def tombstones(self) -> Iterator[RecordKey]:
        """Yield the keys to remove, in this order, so that no record is left."""

    @abstractmethod
    def apply_tombstone(self, kind: RecordKind, names: list[str]) -> bool:
        """Apply the tombstone of a record with this kind and the rest of its key (`names`). Only the ledger calls this.

        Returns:
            Whether this was the protocol's last record, after which the group no longer uses the protocol.
        """

    @abstractmethod
    def cancel_timers(self) -> None:
        """Stop all timers of the group and its members, because another protocol takes over."""

    @abstractmethod
    def member_connections(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member's id, the connection on which it was last heard, and whether that has ended."""

    @abstractmethod
    def listed_protocol_type(self) -> str:
        """Return the group's protocol type for ListGroups."""

    @abstractmethod
    def build_soft_state(self, step: Step) -> None:
        """Build the soft state after a replay; sessions restart."""

    @abstractmethod
    def commit_error(self, step: Step, event: OffsetCommit) -> ErrorCode:
        """Return NONE if an OffsetCommit is accepted, else its error."""

    @abstractmethod
    def transactional_commit_error(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Return NONE if a TxnOffsetCommit is accepted, else its error."""

    def on_offsets_committed(self, step: Step, event: OffsetCommit) -> None:
        """Handle an accepted OffsetCommit, which may count as a member's sign of life."""
        return

    def refused_offsets(self, step: Step, event: OffsetCommit) -> Mapping[Partition, ErrorCode] | None:
        """Return the partitions that an accepted commit must leave unchanged, with their errors; None: none."""
        return None

    def fetch_error(self, step: Step, event: OffsetFetch) -> ErrorCode:
        """Return NONE if an OffsetFetch that names a member is answered, else its error."""
        return ErrorCode.NONE

    def describe(self, step: Step) -> DescribedGroup | None:
        """Return the answer to DescribeGroups, None if that API does not cover such groups."""
        return None

    def describe_consumer(self, step: Step) -> DescribedConsumerGroup | None:
        """Return the answer to ConsumerGroupDescribe, None if that API does not cover such groups."""
        return None

    def refuse_join(self, step: Step, event: JoinGroup) -> None:
        """Refuse a JoinGroup: a group with members takes none of another protocol."""
        step.reply(event.request, JoinGroupReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=event.member_id))

    def refuse_sync(self, step: Step, event: SyncGroup) -> None:
        """Refuse a SyncGroup: the group has no members that use it."""
        step.reply(event.request, SyncGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))

    def refuse_heartbeat(self, step: Step, event: Heartbeat) -> None:
        """Refuse a Heartbeat: the group has no members that use it."""
        step.reply(event.request, HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID))

    def refuse_leave(self, step: Step, event: LeaveGroup) -> None:
        """Refuse a LeaveGroup: the group has no members that use it."""
        unknown = (
            LeftMember(leaver.member_id, leaver.instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for leaver in event.members
        )
        step.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(unknown)))

    def refuse_consumer(self, step: Step, event: ConsumerGroupHeartbeat) -> None:
        """Refuse a ConsumerGroupHeartbeat: the group is not under KIP-848."""
        text = f"Group {event.group_id} is not a consumer group."
        step.reply(event.request, ConsumerGroupHeartbeatReply(ErrorCode.GROUP_ID_NOT_FOUND, text))

    def may_expire_offsets(self) -> bool:
        """Return whether any of the group's committed offsets may expire in its present state."""
        return True

    def empty_since_ms(self) -> int:
        """Return since when the group is empty, as wall clock time in ms; -1 if it has members or it is unknown."""
        return -1

    def has_unused_member_ids(self) -> bool:
        """Return whether a member id was given out and its owner has yet to join with it."""
        return False

    def knows_subscribed_topics(self) -> bool:
        """Return whether the members' topics are known, so that committed offsets of other topics may be deleted."""
        return True


REFUSED: Final[Mapping[Trigger, Callable[..., None]]] = {
    JoinGroup: GroupMembership.refuse_join,
    SyncGroup: GroupMembership.refuse_sync,
    Heartbeat: GroupMembership.refuse_heartbeat,
    LeaveGroup: GroupMembership.refuse_leave,
    ConsumerGroupHeartbeat: GroupMembership.refuse_consumer,
}
"""The refusals of requests that a group's table leaves out. Other events are dropped then."""
M = TypeVar("M", bound=GroupMembership)


@dataclass(slots=True)
class PendingOffset:
    """A transactional offset whose transaction has not ended.

    Attributes:
        order: the offset's place among the pending offsets in the journal.
        superseded: a later offset of the partition is committed already, so this one will not replace it.
    """

    record: OffsetCommitted
    order: int
    superseded: bool = False


@dataclass(slots=True)
class Group:
    """A group: its offsets, and its members under the protocol that it speaks.

    Attributes:
        membership: the members; a group that only holds offsets is a classic group without members.
        offsets: committed offsets by (topic, partition).
        pending: transactional offsets by producer id, then (topic, partition). The ledger alone changes them.
        pending_of: the same by (topic, partition), then producer id. A group may have thousands of open transactions.
    """

    group_id: str
    membership: GroupMembership
    offsets: dict[Partition, OffsetCommitted] = field(default_factory=dict)
    pending: dict[int, dict[Partition, PendingOffset]] = field(default_factory=dict)
    pending_of: dict[Partition, dict[int, PendingOffset]] = field(default_factory=dict)

    def membership_as(self, kind: type[M]) -> M | None:
        """Return the membership if the group speaks this protocol, else None."""
        return self.membership if isinstance(self.membership, kind) else None

    def has_no_records(self) -> bool:
        """Return whether the group has no record left: no members, and no committed or pending offsets."""
        return not (self.offsets or self.pending or self.membership.has_records())

    def listed_state(self) -> GroupState:
        """Return the group's state for ListGroups."""
        return self.membership.group_state()

    def all_partitions(self) -> list[Partition]:
        """Return every partition with a committed or a pending offset, each once."""
        return list(dict.fromkeys((*self.offsets, *self.pending_of)))

    def has_pending_offset(self, partition: Partition) -> bool:
        """Return whether a transaction holds an offset of this partition."""
        return partition in self.pending_of
