"""A classic group: its table, its permission to commit, and how it is described.

The chapters below it hold the behaviour, each knowing only those before: `members` (state), `deferred_notification`,
`rebalance`, `requests`.
"""

from __future__ import annotations

from typing import ClassVar

from kohort.errors import ErrorCode
from kohort.groups.classic.deferred_notification import COOPERATIVE
from kohort.groups.classic.requests import ClassicRequests
from kohort.groups.effects import DescribedGroup, DescribedMember, GroupState, GroupType
from kohort.groups.events import (
    NO_CONNECTION,
    ConnectionLost,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    ReleaseLongPolls,
    SyncGroup,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline

EMPTY, STABLE = GroupState.EMPTY, GroupState.STABLE
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE
STATES = (EMPTY, PREPARING, COMPLETING, STABLE)
_LONG_POLL_ENDS = dict.fromkeys(STATES, reaction("the delayed heartbeat is answered", ClassicRequests.on_long_poll_end))
_NO_JOIN_PHASE = ignored("there is no join phase")

TABLE: Table = {
    JoinGroup: {
        EMPTY: reaction("a first member joins and the initial delay runs, or it is sent back for its id",
                        ClassicRequests.join, PREPARING),
        PREPARING: reaction("the member waits; the last one ends the join phase", ClassicRequests.join, COMPLETING),
        COMPLETING: reaction("a new member, or one that joins with other metadata, begins a rebalance",
                             ClassicRequests.join, PREPARING),
        STABLE: reaction("a new member, one with other metadata, or the leader begins a rebalance",
                         ClassicRequests.join, PREPARING, COMPLETING),
    },
    SyncGroup: {
        EMPTY: reaction("refused: the group has no members", ClassicRequests.sync),
        PREPARING: reaction("refused: the member has to join again", ClassicRequests.sync),
        COMPLETING: reaction("the member waits; the leader's request has the assignment", ClassicRequests.sync, STABLE),
        STABLE: reaction("the member gets its assignment", ClassicRequests.sync),
    },
    Heartbeat: {
        EMPTY: reaction("refused: the group has no members", ClassicRequests.heartbeat),
        PREPARING: reaction("the member has to join again, or is notified later", ClassicRequests.heartbeat),
        COMPLETING: reaction("answered", ClassicRequests.heartbeat),
        STABLE: reaction("answered, or delayed until there is news; a returned static member may have left partitions "
                         "without an owner", ClassicRequests.heartbeat, PREPARING),
    },
    LeaveGroup: {
        EMPTY: reaction("refused: the group has no members", ClassicRequests.leave),
        PREPARING: reaction("the last member leaves, or the last awaited", ClassicRequests.leave, COMPLETING, EMPTY),
        COMPLETING: reaction("the others rebalance, if there are any", ClassicRequests.leave, PREPARING, EMPTY),
        STABLE: reaction("the others rebalance, if there are any", ClassicRequests.leave, PREPARING, EMPTY),
    },
    ConsumerGroupHeartbeat: {
        state: reaction("refused: the group was not converted", ClassicRequests.refuse_consumer)
        for state in STATES
    },
    ConnectionLost: {
        EMPTY: reaction("an unused member id is dropped", ClassicRequests.on_connection_lost),
        PREPARING: reaction("a new member without its id is evicted: the last awaited one, or the last one",
                            ClassicRequests.on_connection_lost, COMPLETING, EMPTY),
        COMPLETING: reaction("a new member without its id is evicted: the others rebalance, if there are any",
                             ClassicRequests.on_connection_lost, PREPARING, EMPTY),
        STABLE: reaction("a new member without its id is evicted: the others rebalance, if there are any",
                         ClassicRequests.on_connection_lost, PREPARING, EMPTY),
    },
    ReleaseLongPolls: _LONG_POLL_ENDS,
    Deadline.LONG_POLL: _LONG_POLL_ENDS,
    Deadline.SESSION: {
        EMPTY: ignored("the group has no members"),
        PREPARING: reaction("the member is evicted: the last awaited one, or the last one",
                            ClassicRequests.on_session_end, COMPLETING, EMPTY),
        COMPLETING: reaction("the member is evicted: the others rebalance, if there are any",
                             ClassicRequests.on_session_end, PREPARING, EMPTY),
        STABLE: reaction("the member is evicted: the others rebalance, if there are any",
                         ClassicRequests.on_session_end, PREPARING, EMPTY),
    },
    Deadline.PENDING_MEMBER: {
        EMPTY: reaction("the member id is dropped", ClassicRequests.on_pending_end),
        PREPARING: reaction("the member id is dropped, which may end the join phase",
                            ClassicRequests.on_pending_end, COMPLETING, EMPTY),
        COMPLETING: reaction("the member id is dropped", ClassicRequests.on_pending_end),
        STABLE: reaction("the member id is dropped", ClassicRequests.on_pending_end),
    },
    Deadline.JOIN_PHASE: {
        EMPTY: _NO_JOIN_PHASE,
        PREPARING: reaction("the initial delay or the rebalance timeout is over; members that did not join are evicted",
                            ClassicRequests.on_join_deadline, COMPLETING, EMPTY),
        COMPLETING: _NO_JOIN_PHASE,
        STABLE: _NO_JOIN_PHASE,
    },
    Deadline.SYNC_PHASE: {
        EMPTY: ignored("there is no sync phase"),
        PREPARING: ignored("there is no sync phase"),
        COMPLETING: reaction("members that did not sync are evicted",
                         ClassicRequests.on_sync_deadline, PREPARING, EMPTY),
        STABLE: reaction("members that did not sync are evicted",
                         ClassicRequests.on_sync_deadline, PREPARING, EMPTY),
    },
    Deadline.NOTIFICATION: {
        EMPTY: _NO_JOIN_PHASE,
        PREPARING: reaction("the members are notified of the rebalance", ClassicRequests.on_notification_deadline),
        COMPLETING: _NO_JOIN_PHASE,
        STABLE: _NO_JOIN_PHASE,
    },
    TopicsChanged: {
        EMPTY: ignored("the group has no members"),
        PREPARING: ignored("the leader assigns the topics as they are after the rebalance"),
        COMPLETING: ignored("the leader assigns the topics as they are"),
        STABLE: reaction("topics changed that a static leader may miss: a rebalance begins",
                         ClassicRequests.on_topics_changed, PREPARING, COMPLETING),
    },
}  # fmt: skip
"""What a classic group does with an event in each state."""


class ClassicGroup(ClassicRequests):
    """A group under the classic protocol, or one that only holds offsets."""

    name: ClassVar[str] = GroupType.CLASSIC
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return the type that the members have in common; empty without members so far."""
        return self.protocol_type or ""

    # -- Permission to commit in a classic group. Source: spec 1.1, KIP-447

    def may_commit(self, step: Step, event: OffsetCommit) -> ErrorCode:
        """Return whether a member, or a client without group management, may commit now."""
        generation, is_empty = event.generation, self.state is GroupState.EMPTY
        if generation < 0 and is_empty:
            return ErrorCode.NONE
        if generation < 0 and not event.member_id and event.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if event.member_id not in self.members or event.instance_id is not None:
            error = self.member_error(event.member_id, event.instance_id)
            if error is not ErrorCode.NONE:
                return error
        if not self.is_current_generation(generation):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE or (self.awaiting_join and self.has_given_up(event)):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def may_commit_in_transaction(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Return whether a transactional commit is accepted; a producer may omit the member, no rebalance delays it."""
        if event.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if event.generation < 0 and not event.member_id and event.instance_id is None:
            return ErrorCode.NONE
        error = self.member_error(event.member_id, event.instance_id)
        if error is ErrorCode.NONE and not self.is_current_generation(event.generation):
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def has_given_up(self, event: OffsetCommit) -> bool:
        """Return whether a commit follows its member's JoinGroup, before which an eager member revokes its partitions.

        Kafka processes a connection's requests one after the other, so it sees such a commit after the rebalance and
        refuses it. A process that was paused while it waited to join cannot commit here what others may have
        read since.
        """
        member = self.members.get(event.member_id)
        if member is None or member.join_request is None or event.connection == NO_CONNECTION:
            return False
        return event.connection == member.connection and COOPERATIVE not in (self.protocol or "")

    def committed(self, step: Step, event: OffsetCommit) -> None:
        """Count a member's commit as a sign of life."""
        member = self.members.get(event.member_id)
        if member is not None and self.state is not GroupState.COMPLETING_REBALANCE:
            member.restart_session(step)

    def describe(self, step: Step) -> DescribedGroup:
        """Describe a group with its members; their metadata only while it is stable."""
        protocol = self.protocol if self.state is GroupState.STABLE else None
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client.id,
                member.client.host,
                member.metadata(protocol),
                member.assignment,
            )
            for member in self.members.values()
        )
        return DescribedGroup(self.group_id, self.state, self.protocol_type or "", protocol or "", members)
