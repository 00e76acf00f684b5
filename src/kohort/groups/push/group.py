"""A push group: its table, its permission to commit, and how it is described and published.

The chapters below it hold the behaviour, each knowing only those before: `members` (state), `requests` (Ping, Stop,
Start), `rebalance`, `registration`, `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, write_assignment, write_subscription
from kohort.errors import ErrorCode
from kohort.groups.context import Context
from kohort.groups.effects import (
    DescribedGroup,
    DescribedMember,
    GroupState,
    ShownPushGroup,
    ShowPushGroupsReply,
)
from kohort.groups.events import (
    ConnectionLost,
    ConsumerAnswered,
    LeaveGroup,
    OffsetCommit,
    OffsetsFound,
    OwnersMissing,
    PartitionsDivided,
    RegisterConsumer,
    ShowPushGroups,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.group import Partition
from kohort.groups.pairs import Pairs
from kohort.groups.push.answers import PushAnswers
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline
from kohort.ids import TopicPartition

EMPTY, PREPARING, STABLE = GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.STABLE

PUSH_PROTOCOL: Final = "push"
"""The chosen protocol that DescribeGroups shows for a push group."""

_NO_MEMBERS = ignored("the group has no members")
_NO_REBALANCE = ignored("no rebalance is under way")

TABLE: Table = {
    RegisterConsumer: {
        EMPTY: reaction("a first member: a rebalance begins", PushAnswers.register, PREPARING),
        PREPARING: reaction("a new member takes part in the next rebalance", PushAnswers.register),
        STABLE: reaction("a new member, or one that reads other topics: a rebalance", PushAnswers.register, PREPARING),
    },
    LeaveGroup: {
        EMPTY: reaction("refused: the group has no members", PushAnswers.leave),
        PREPARING: reaction("the last member leaves, or the last one awaited", PushAnswers.leave, EMPTY, STABLE),
        STABLE: reaction("a member leaves or is removed: the others rebalance", PushAnswers.leave, PREPARING, EMPTY),
    },
    ConnectionLost: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the member's process has ended: it was the last one, or the last one awaited",
                            PushAnswers.on_connection_lost, EMPTY, STABLE),
        STABLE: reaction("the member's process has ended: the others rebalance; a replacement may read other topics",
                         PushAnswers.on_connection_lost, PREPARING, EMPTY),
    },
    Deadline.SESSION: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("a session timed out: of the last member, or of the last one awaited",
                            PushAnswers.on_session_end, EMPTY, STABLE),
        STABLE: reaction("a session timed out: the others rebalance", PushAnswers.on_session_end, PREPARING, EMPTY),
    },
    Deadline.PING: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the member is pinged, or replaced by a conflicting registration", PushAnswers.on_ping_due),
        STABLE: reaction("the member is pinged; a conflicting registration that replaces it may read other topics",
                         PushAnswers.on_ping_due, PREPARING),
    },
    ConsumerAnswered: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the last awaited member has been started", PushAnswers.on_answered, STABLE),
        STABLE: reaction("a member that may read other partitions is stopped", PushAnswers.on_answered, PREPARING),
    },
    PartitionsDivided: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("members are moved; without any to move the rebalance is complete",
                            PushAnswers.on_partitions_divided, STABLE),
        STABLE: _NO_REBALANCE,
    },
    OffsetsFound: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the positions are written, and the member is started", PushAnswers.on_offsets_found),
        STABLE: reaction("the positions are written, and the member is started", PushAnswers.on_offsets_found),
    },
    Deadline.ATTEMPT: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("the rebalance is retried after a pause, or fails", PushAnswers.on_attempt_end),
        STABLE: _NO_REBALANCE,
    },
    Deadline.BACKOFF: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("the next attempt begins", PushAnswers.on_backoff_end),
        STABLE: reaction("the rebalance begins that waited for the pause", PushAnswers.on_backoff_end, PREPARING),
    },
    TopicsChanged: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("another rebalance follows", PushAnswers.on_topics_changed),
        STABLE: reaction("topics changed that members read, or may", PushAnswers.on_topics_changed, PREPARING),
    },
    OwnersMissing: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("another rebalance follows", PushAnswers.on_owners_missing),
        STABLE: reaction("the owners that ZooKeeper shows were deleted", PushAnswers.on_owners_missing, PREPARING),
    },
}  # fmt: skip
"""What a push group does with an event in each state."""


class PushGroup(PushAnswers):
    """A group under the push protocol."""

    name: ClassVar[str] = PUSH_PROTOCOL
    listed_as: ClassVar[str] = "classic"
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return the protocol type of consumers."""
        return CONSUMER_PROTOCOL_TYPE

    def partition_owners(self, step: Step) -> Mapping[TopicPartition, str]:
        """Return each partition's owner as consumer and stream."""
        found: dict[TopicPartition, str] = {}
        for member_id, pairs in self.owned.items():
            found.update(self.deal_to_streams(step, self.members[member_id], pairs))
        return found

    def deal_to_streams(self, step: Step, saved: PushMemberSaved, pairs: Pairs) -> Mapping[TopicPartition, str]:
        """Deal a consumer's partitions to its streams in order, as `rebalance.split` counts them."""
        of_topic = dict(saved.topics)
        dealt: dict[str, int] = {}
        found: dict[TopicPartition, str] = {}
        for part in self.named_pairs(step, pairs):
            stream = dealt.get(part.topic, 0)
            dealt[part.topic] = stream + 1
            count = of_topic.get(part.topic, saved.streams if saved.regex is not None else 1)
            found[part] = f"{saved.member_id}-{stream % max(1, count)}"
        return found

    # -- Permission to commit manually in a push group
    #
    # A member may commit its own partitions until its Stop is answered. For other partitions a member may repeat the
    # committed position with its own metadata. For a partition without an owner it may also commit a first offset.
    # Neither moves another member.

    def may_commit(self, step: Step, event: OffsetCommit) -> ErrorCode:
        """Return whether a commit is accepted: a member's, or anyone's if the group is empty."""
        if not self.members and event.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.NONE if event.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def refused_offsets(self, step: Step, event: OffsetCommit) -> Mapping[Partition, ErrorCode]:
        """Return the partitions that a commit would move although the member does not own them, or has revoked them."""
        member = self.present.get(event.member_id)
        if member is None:
            return {}
        topics, holders = step.image.topics, self.holders
        known = step.offsets_of(self.group_id)
        refused = {}
        for offset in event.offsets:
            part = (offset.topic, offset.partition)
            topic, at = topics.get(offset.topic), known.get(part)
            if topic is None or offset.partition >= topic.partitions:
                refused[part] = ErrorCode.ILLEGAL_GENERATION
                continue
            holder = holders.get((topic.id, offset.partition))
            moves = holder is not None if at is None else at.offset != offset.offset
            if moves and (member.ending or holder != event.member_id):
                refused[part] = ErrorCode.ILLEGAL_GENERATION
        return refused

    def may_commit_in_transaction(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Refuse transactional commits in a group with members, which have no epoch to check the transaction by."""
        return ErrorCode.NONE if not self.members else ErrorCode.ILLEGAL_GENERATION

    def describe(self, step: Step) -> DescribedGroup:
        """Describe a push group like a classic one, with assignments that every tool can read."""
        members = tuple(
            DescribedMember(
                member_id=member_id,
                instance_id=None,
                client_id=saved.client_id,
                client_host=saved.client_host,
                metadata=write_subscription(Subscription(1, self.known_topics(saved))),
                assignment=write_assignment(1, self.named_pairs(step, self.owned_by(member_id))),
            )
            for member_id, saved in self.members.items()
        )
        protocol = PUSH_PROTOCOL if members else ""
        return DescribedGroup(self.group_id, self.group_state(), CONSUMER_PROTOCOL_TYPE, protocol, members)

    def known_topics(self, saved: PushMemberSaved) -> tuple[str, ...]:
        """Return the topics that a member reads, as far as they are known."""
        if saved.regex is None:
            return tuple(topic for topic, _ in saved.topics)
        return tuple(sorted(self.matched.get((saved.regex, saved.excluding), ())))


def show(context: Context, event: ShowPushGroups) -> None:
    """Return the push groups of the shard, either all of them or those that have changed."""
    ledger = context.ledger
    changed, ledger.changed = ledger.changed, {}
    names = None if event.whole else changed
    found, gone = [], []
    for group_id in ledger.groups if names is None else names:
        group = ledger.groups.get(group_id)
        push = None if group is None else group.under(PushGroup)
        if group is not None and push is not None:
            settled, offsets = not push.rebalancing, dict(group.offsets)
            found.append(ShownPushGroup(group_id, settled, push.partition_owners(context), offsets, push.loaded))
        elif names is not None:
            gone.append(group_id)
    context.reply(event.request, ShowPushGroupsReply(tuple(found), names is None, tuple(gone)))
