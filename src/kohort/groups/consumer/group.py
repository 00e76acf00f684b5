"""A group under KIP-848: its table, its permission to commit and to fetch, and how it is described.

The chapters below it hold the behaviour, each knowing only those before: `members` (state), `reconcile`, `membership`,
`suspicion`, `assignment`, `classic_members`, `heartbeat`.
"""

from __future__ import annotations

from typing import ClassVar

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups.consumer.heartbeat import ConsumerHeartbeat
from kohort.groups.effects import DescribedConsumer, DescribedConsumerGroup, GroupState, GroupType, NamedPartitions
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    ConsumerGroupHeartbeat,
    GroupSettingsChanged,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    RegexesResolved,
    ReleaseLongPolls,
    SyncGroup,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.pairs import Pairs, pack
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline
from kohort.ids import TopicId

EMPTY, ASSIGNING = GroupState.EMPTY, GroupState.ASSIGNING
RECONCILING, STABLE = GroupState.RECONCILING, GroupState.STABLE
STATES = (EMPTY, ASSIGNING, RECONCILING, STABLE)
CLASSIC = GroupType.CLASSIC
_LONG_POLL_ENDS = {
    EMPTY: ignored("the group has no members"),
    ASSIGNING: reaction("the delayed heartbeat is answered", ConsumerHeartbeat.on_long_poll_end),
    RECONCILING: reaction(
        "the delayed heartbeat is answered: the member moves towards its target",
        ConsumerHeartbeat.on_long_poll_end,
        STABLE,
    ),
    STABLE: reaction("the delayed heartbeat is answered", ConsumerHeartbeat.on_long_poll_end),
}

TABLE: Table = {
    ConsumerGroupHeartbeat: {
        EMPTY: reaction("a first member joins", ConsumerHeartbeat.consumer_heartbeat, ASSIGNING),
        ASSIGNING: reaction("a join waits for the target; after a leave the others get a new epoch, or turn classic",
                            ConsumerHeartbeat.consumer_heartbeat, EMPTY, CLASSIC),
        RECONCILING: reaction("the member moves towards its target; a join, a leave or another subscription begins an "
                              "epoch", ConsumerHeartbeat.consumer_heartbeat, STABLE, ASSIGNING, EMPTY, CLASSIC),
        STABLE: reaction("answered, or delayed until there is news; a join, a leave or another subscription begins an "
                         "epoch; a static member leaves for a while",
                         ConsumerHeartbeat.consumer_heartbeat, ASSIGNING, RECONCILING, EMPTY, CLASSIC),
    },
    JoinGroup: {
        EMPTY: reaction("a first member of the classic protocol", ConsumerHeartbeat.join, ASSIGNING),
        ASSIGNING: reaction("a classic member waits for the target, or replaces the last member of the consumer "
                            "protocol", ConsumerHeartbeat.join, CLASSIC),
        RECONCILING: reaction("a classic member moves towards its target; a new one begins an epoch",
                              ConsumerHeartbeat.join, STABLE, ASSIGNING, CLASSIC),
        STABLE: reaction("a new classic member begins an epoch, or takes the place of a static one",
                         ConsumerHeartbeat.join, ASSIGNING, RECONCILING, CLASSIC),
    },
    SyncGroup: dict.fromkeys(STATES, reaction("a classic member gets its assignment", ConsumerHeartbeat.sync)),
    Heartbeat: dict.fromkeys(
        STATES, reaction("a classic member learns whether it has to join again", ConsumerHeartbeat.classic_heartbeat)
    ),
    LeaveGroup: {
        EMPTY: reaction("refused: the group has no members", ConsumerHeartbeat.leave_group),
        ASSIGNING: reaction("classic members leave", ConsumerHeartbeat.leave_group, EMPTY),
        RECONCILING: reaction("classic members leave: an epoch", ConsumerHeartbeat.leave_group, ASSIGNING, EMPTY),
        STABLE: reaction("classic members leave: an epoch", ConsumerHeartbeat.leave_group, ASSIGNING, EMPTY),
    },
    ConnectionLost: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("a new member without its id is evicted; another's grace period begins",
                            ConsumerHeartbeat.on_connection_lost, EMPTY, CLASSIC),
        RECONCILING: reaction("a new member without its id is evicted; another's delayed heartbeat is answered, its "
                              "grace period begins",
                              ConsumerHeartbeat.on_connection_lost, STABLE, ASSIGNING, EMPTY, CLASSIC),
        STABLE: reaction("a new member without its id is evicted; another's grace period begins",
                         ConsumerHeartbeat.on_connection_lost, ASSIGNING, EMPTY, CLASSIC),
    },
    ReleaseLongPolls: _LONG_POLL_ENDS,
    Deadline.LONG_POLL: _LONG_POLL_ENDS,
    Deadline.SESSION: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("the member is evicted; classic members alone turn classic",
                            ConsumerHeartbeat.on_session_end, EMPTY, CLASSIC),
        RECONCILING: reaction("the member is evicted: an epoch begins; classic members alone turn classic",
                              ConsumerHeartbeat.on_session_end, ASSIGNING, EMPTY, CLASSIC),
        STABLE: reaction("the member is evicted: an epoch begins; classic members alone turn classic",
                         ConsumerHeartbeat.on_session_end, ASSIGNING, EMPTY, CLASSIC),
    },
    Deadline.PENDING_MEMBER: dict.fromkeys(
        STATES, reaction("an unused member id is dropped", ConsumerHeartbeat.on_given_id_end)
    ),
    Deadline.REVOCATION: dict.fromkeys(
        STATES, reaction("the member is refused until it rejoins", ConsumerHeartbeat.on_revocation_end)
    ),
    Deadline.JOIN_PHASE: dict.fromkeys(
        STATES, reaction("the classic member is refused until it rejoins", ConsumerHeartbeat.on_phase_end)
    ),
    Deadline.SYNC_PHASE: dict.fromkeys(
        STATES, reaction("the classic member is refused until it rejoins", ConsumerHeartbeat.on_phase_end)
    ),
    Deadline.SILENCE: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("the suspected members are excluded from a newer target",
                            ConsumerHeartbeat.on_silence_check),
        RECONCILING: reaction("members that have to move are suspected: an epoch without them begins",
                              ConsumerHeartbeat.on_silence_check, ASSIGNING),
        STABLE: reaction("checked again while members have to move", ConsumerHeartbeat.on_silence_check, ASSIGNING),
    },
    AssignmentComputed: {
        EMPTY: reaction("dropped: it was computed for former members", ConsumerHeartbeat.on_assignment_computed),
        ASSIGNING: reaction("the target is written; members that have all of it are settled",
                            ConsumerHeartbeat.on_assignment_computed, RECONCILING, STABLE),
        RECONCILING: reaction("dropped: the newest epoch has a target", ConsumerHeartbeat.on_assignment_computed),
        STABLE: reaction("dropped: the newest epoch has a target", ConsumerHeartbeat.on_assignment_computed),
    },
    RegexesResolved: {
        EMPTY: reaction("dropped: nobody uses the patterns", ConsumerHeartbeat.on_regexes_resolved),
        ASSIGNING: reaction("the topics are written, and the target is requested",
                            ConsumerHeartbeat.on_regexes_resolved),
        RECONCILING: reaction("patterns match other topics now: an epoch begins",
                              ConsumerHeartbeat.on_regexes_resolved, ASSIGNING),
        STABLE: reaction("patterns match other topics now: an epoch begins",
                         ConsumerHeartbeat.on_regexes_resolved, ASSIGNING),
    },
    TopicsChanged: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("an epoch with the new topics begins", ConsumerHeartbeat.on_topics_changed),
        RECONCILING: reaction("topics that members read changed: an epoch begins",
                              ConsumerHeartbeat.on_topics_changed, ASSIGNING),
        STABLE: reaction("topics that members read changed: an epoch begins",
                         ConsumerHeartbeat.on_topics_changed, ASSIGNING),
    },
    GroupSettingsChanged: dict.fromkeys(
        STATES, reaction("the group's own timeouts apply from now on", ConsumerHeartbeat.on_settings_changed)
    ),
}  # fmt: skip
"""What a consumer group does with an event in each state."""


class ConsumerGroup(ConsumerHeartbeat):
    """A group under KIP-848, which may also have classic members."""

    name: ClassVar[str] = GroupType.CONSUMER
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return the protocol type of consumers."""
        return CONSUMER_PROTOCOL_TYPE

    # -- Permission to commit in a consumer group, and to fetch as a member. Source: KIP-848, KIP-1251

    def may_commit(self, step: Step, event: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
        """Return whether a member may commit now, or anyone if the group is empty.

        A member's epoch may advance while its commit is under way. An older epoch is accepted for partitions that the
        member had then and has had ever since. Source: KIP-1251.
        """
        member_id, instance_id, epoch = event.member_id, event.instance_id, event.generation
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if instance_id is not None and self.static_ids.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic_protocols is None and isinstance(event, OffsetCommit) and not event.knows_stale_epoch:
            return ErrorCode.UNSUPPORTED_VERSION
        current, topics = self.current_assignment(member_id), step.image.topics
        if epoch == current.member_epoch or all(
            offset.topic in topics and current.covers(epoch, (topics[offset.topic].id, offset.partition))
            for offset in event.offsets
        ):
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic_protocols is None else ErrorCode.ILLEGAL_GENERATION

    def may_commit_in_transaction(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Return whether a transactional commit is accepted; a producer need not name a member."""
        error = ErrorCode.NONE
        if event.generation >= 0 or event.member_id:
            error = self.may_commit(step, event)
        is_unknown = error is ErrorCode.STALE_MEMBER_EPOCH and not event.knows_stale_epoch
        return ErrorCode.ILLEGAL_GENERATION if is_unknown else error

    def committed(self, step: Step, event: OffsetCommit) -> None:
        """Count a classic member's commit as a sign of life, as in a classic group, for clients that cannot tell."""
        member = self.members.get(event.member_id)
        if member is not None and member.classic_protocols is not None:
            presence = self.presence(event.member_id)
            if not presence.overdue:
                self.restart_session(step, presence, event.member_id)

    def may_fetch(self, step: Step, event: OffsetFetch) -> ErrorCode:
        """Return whether a fetch with a member names a known one with its epoch; a fetch without one is open to all."""
        if event.member_id is None and event.member_epoch < 0:
            return ErrorCode.NONE
        member_id = event.member_id or ""
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if event.member_epoch == self.current_assignment(member_id).member_epoch:
            return ErrorCode.NONE
        is_classic = self.members[member_id].classic_protocols is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def describe_consumer(self, step: Step) -> DescribedConsumerGroup:
        """Describe a group with its members, epochs, assignments and targets."""
        names = step.topic_names()
        members = []
        for member_id, member in self.members.items():
            current = self.current_assignment(member_id)
            members.append(
                DescribedConsumer(
                    member_id=member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=current.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topics=member.subscribed_topics,
                    subscribed_regex=member.subscribed_regex,
                    assignment=named(current.assigned | current.pending, names),
                    target=named(self.targets.get(member_id, frozenset()), names),
                    member_type=1 if member.classic_protocols is None else 0,
                )
            )
        return DescribedConsumerGroup(
            self.group_id,
            self.group_state(),
            self.epoch,
            self.target_epoch,
            self.preferred_assignor(step),
            tuple(members),
        )


def named(pairs: Pairs, names: dict[TopicId, str]) -> tuple[NamedPartitions, ...]:
    """Return partitions by topic id and name, without those of deleted topics."""
    return tuple(
        NamedPartitions(entry.topic_id, names[entry.topic_id], entry.partitions)
        for entry in pack(pairs)
        if entry.topic_id in names
    )
