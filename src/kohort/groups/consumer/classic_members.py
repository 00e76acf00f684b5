"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup against epochs. Source: KIP-848.

A classic member's generation is its member epoch. REBALANCE_IN_PROGRESS tells it to move. Its JoinGroup reports the
partitions that it still has, and its SyncGroup returns its new ones.
"""

from __future__ import annotations

from typing import Protocol

from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    read_subscription,
    write_assignment,
)
from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.admission import Refusal
from kohort.groups.consumer.assignment import ConsumerAssignment
from kohort.groups.effects import HeartbeatReply, JoinGroupReply, LeaveGroupReply, LeftMember, SyncGroupReply
from kohort.groups.events import Client, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from kohort.groups.group import leave_cause
from kohort.groups.records import MemberSaved, OfferedProtocol, ReconciliationState
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import TopicIdPartitions
from kohort.ids import TopicId, TopicPartition


class ClassicIdentity(Protocol):
    """A classic member as its JoinGroup, or its classic group, describes it."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of a static member."""

    @property
    def client(self) -> Client:
        """The client that sent the JoinGroup."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout of the member's JoinGroup, in ms."""

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout of the member's JoinGroup, in ms."""

    @property
    def protocols(self) -> tuple[OfferedProtocol, ...]:
        """The assignors that the member supports, with its metadata for each."""


def classic_member_record(
    group_id: str, member_id: str, said: ClassicIdentity, subscription: ConsumerProtocolSubscription
) -> MemberSaved:
    """Build the record of a classic member in a consumer group.

    `said` is its JoinGroup, or the member of the classic group that is converted.
    """
    return MemberSaved(
        group_id=group_id,
        member_id=member_id,
        instance_id=said.instance_id,
        rack_id=subscription.rack,
        client_id=said.client.id,
        client_host=said.client.host,
        subscribed_topics=tuple(sorted(set(subscription.topics))),
        subscribed_regex=None,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=None,
        classic_session_timeout_ms=said.session_timeout_ms,
        classic_protocols=said.protocols,
    )


def is_stale_join(subscription: ConsumerProtocolSubscription | None, member_epoch: int) -> bool:
    """Return whether a JoinGroup reports partitions of an older epoch than the member's current one.

    Such a join was sent before the member got its partitions, and arrived late or again after a lost reply. Partitions
    that it leaves out are not revoked. Members that name no generation are taken at their word.
    """
    return subscription is not None and 0 < subscription.generation < member_epoch


class ConsumerClassicMembers(ConsumerAssignment):
    """The handling of JoinGroup, SyncGroup, Heartbeat and LeaveGroup from classic members of a consumer group."""

    def join(self, step: Step, event: JoinGroup) -> None:
        """Process a classic member's join, first or repeated."""
        error = self.join_or_error(step, event)
        if error is not ErrorCode.NONE:
            member_id = event.new_member_id if error is ErrorCode.MEMBER_ID_REQUIRED else event.member_id
            member_id = "" if error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL else member_id
            step.reply(event.request, JoinGroupReply(error, member_id=member_id))

    def join_or_error(self, step: Step, event: JoinGroup) -> ErrorCode:
        """Process a JoinGroup, or return the error that refuses it."""
        refused = admission.join_request_error(step.config, event)
        if refused is not ErrorCode.NONE:
            return refused
        member_id = event.member_id or event.new_member_id
        replaced = self.static_ids.get(event.instance_id)
        has_place = event.member_id in self.members or replaced is not None
        refused = admission.record_size_error(step.config, admission.protocols_size_bytes(event.protocols)) or (
            admission.group_full_error(step.config.consumer_max_size, len(self.members), has_place=has_place)
        )
        if refused is not ErrorCode.NONE:
            return refused
        subscription = read_subscription(event.protocols[0].metadata) if event.protocols else None
        if len(event.protocols) > step.config.protocols_max or not self.supports_protocol(event):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not event.member_id and event.instance_id is None and event.requires_known_id:
            self.answer_with_member_id(step, event)
            return ErrorCode.MEMBER_ID_REQUIRED
        if event.instance_id is None and not self.is_known_member(event.member_id):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if event.instance_id is not None and event.member_id:
            if replaced is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if replaced != event.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if subscription is None:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        goes_back = False
        if replaced is not None and replaced != member_id:
            goes_back = self.members[replaced].classic_protocols is None
            self.replace_member(step, replaced, member_id)
        else:
            self.rejoin_member(step, member_id)
        before = self.members.get(member_id)
        if self.write_classic_member(step, event, member_id, subscription):
            self.begin_epoch(step, self.member_epoch_cause(before, member_id))
        presence = self.on_member_heard(step, member_id, event.connection)
        presence.process = event.client.process
        if before is not None and before.classic_protocols is None:
            self.on_member_protocol_changed(step, presence, member_id)
        if goes_back and step.convert_to_classic(self.group_id, joining=(event, member_id)):
            return ErrorCode.NONE
        self.await_target(step, event, member_id)
        return ErrorCode.NONE

    def answer_with_member_id(self, step: Step, event: JoinGroup) -> None:
        """Answer a first join with a member id (KIP-394)."""
        timer = Timer(Deadline.PENDING_MEMBER, event.group_id, event.new_member_id)
        self.given_ids.record_given_id(event.new_member_id, timer)
        step.start_timer(timer, event.session_timeout_ms)
        while (surplus := self.given_ids.oldest_surplus_id()) is not None:
            self.forget_given_id(surplus)

    def forget_given_id(self, member_id: str) -> bool:
        """Remove a member id from the unused ones (KIP-394); return False if it is not among them."""
        timer = self.given_ids.take_given_id(member_id)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def is_known_member(self, member_id: str) -> bool:
        """Return whether a JoinGroup may come under this member id: empty, in the group, or just given out.

        Kafka accepts any id here. An evicted member that does not know of its eviction would continue with partitions
        that others have by now. UNKNOWN_MEMBER_ID tells it to release them first.
        """
        if not member_id or member_id in self.members:
            return True
        return self.forget_given_id(member_id)

    def supports_protocol(self, event: JoinGroup) -> bool:
        """Return whether a protocol of the member is one that all classic members support."""
        others = [
            {offered.name for offered in member.classic_protocols or ()}
            for member in self.classic_members()
            if member.member_id != event.member_id
        ]
        names = [offered.name for offered in event.protocols]
        is_consumer = event.protocol_type == CONSUMER_PROTOCOL_TYPE
        return is_consumer and any(all(name in other for other in others) for name in names)

    def write_classic_member(
        self, step: Step, event: JoinGroup, member_id: str, subscription: ConsumerProtocolSubscription
    ) -> bool:
        """Write a classic member's metadata if it is new; True if the group needs a new epoch for it."""
        old = self.members.get(member_id)
        new = classic_member_record(event.group_id, member_id, event, subscription)
        if new == old:
            return False
        step.emit(new)
        return old is None or (old.subscribed_topics, old.subscribed_regex) != (new.subscribed_topics, None)

    def await_target(self, step: Step, event: JoinGroup, member_id: str) -> None:
        """Keep a classic member's JoinGroup waiting until the target assignment of its epoch is computed."""
        presence = self.soft_state(member_id)
        again = Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} has sent another JoinGroup.")
        self.refuse_waiting_requests(step, presence, again)
        presence.joining, presence.awaited_epoch = event, self.epoch
        presence.overdue = False
        presence.join_phase.cancel()
        if self.epoch <= self.target_epoch:
            self.complete_join(step, member_id)
        else:
            self.request_target_assignment(step)

    def answer_waiting_joins(self, step: Step, failure: str | None) -> None:
        """Answer the waiting joins of classic members after a target was computed."""
        for member_id, presence in list(self.presences.items()):
            if presence.joining is None:
                continue
            if failure is not None and self.computing < 0:
                reply = JoinGroupReply(ErrorCode.UNKNOWN_SERVER_ERROR, member_id=member_id)
                step.reply(presence.joining.request, reply)
                presence.joining = None
            elif presence.awaited_epoch <= self.target_epoch:
                self.complete_join(step, member_id)

    def complete_join(self, step: Step, member_id: str) -> None:
        """Answer a classic member's JoinGroup with its epoch, after one step towards its target.

        That step takes into account which partitions the JoinGroup reports as owned.
        """
        presence = self.presences[member_id]
        event = presence.joining
        if event is None:
            return
        presence.joining = None
        before = self.current_assignment(member_id)
        subscription = read_subscription(event.protocols[0].metadata)
        owned = (
            None if is_stale_join(subscription, before.member_epoch) else self.reported_partitions(step, subscription)
        )
        current = self.reconcile_member(step, member_id, owned)
        self.restart_connected_session(step, presence, member_id)
        if current != before:  # else it has its assignment or is awaited already: a join may be late or repeated
            step.start_timer(presence.sync_phase, event.rebalance_timeout_ms)
        step.reply(
            event.request,
            JoinGroupReply(
                ErrorCode.NONE,
                member_id=member_id,
                generation=current.member_epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=event.protocols[0].name,
            ),
        )

    def reported_partitions(self, step: Step, subscription: ConsumerProtocolSubscription | None) -> TopicIdPartitions:
        """Return the partitions that a JoinGroup subscription reports as owned, by topic id."""
        topics = step.image.topics
        owned = () if subscription is None else subscription.owned
        return frozenset((topics[topic].id, number) for topic, number in owned if topic in topics)

    def classic_member_error(self, member_id: str, instance_id: str | None, generation: int | None) -> ErrorCode:
        """Return the error for a classic member with an unknown id or another generation, else NONE."""
        if instance_id is not None:
            holder = self.static_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None or member.classic_protocols is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        presence = self.presences.get(member_id)
        if generation is not None and presence is not None and presence.overdue:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != self.current_assignment(member_id).member_epoch:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def sync(self, step: Step, event: SyncGroup) -> None:
        """Process a SyncGroup: return a classic member's assignment."""
        error = self.classic_member_error(event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE:
            error = self.sync_error(step, event)
        if error is not ErrorCode.NONE:
            step.reply(event.request, SyncGroupReply(error))
            return
        member = self.members[event.member_id]
        presence = self.on_member_heard(step, event.member_id, event.connection)
        presence.sync_phase.cancel()
        assignment = self.assignment_bytes(member, step.topic_names())
        reply = SyncGroupReply(ErrorCode.NONE, assignment, event.protocol_type, event.protocol_name)
        step.reply(event.request, reply)

    def sync_error(self, step: Step, event: SyncGroup) -> ErrorCode:
        """Return the error if protocol names differ, or a newer epoch requires the member to rejoin; else NONE."""
        member = self.members[event.member_id]
        name = (member.classic_protocols or ())[0].name
        wrong_type = event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
        if wrong_type or event.protocol_name not in (None, name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        current = self.current_assignment(event.member_id)
        if self.epoch > current.member_epoch and current.state is not ReconciliationState.UNREVOKED_PARTITIONS:
            self.start_rejoin_timeout(step, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def start_rejoin_timeout(self, step: Step, member: MemberSaved) -> None:
        """Start the rebalance timeout of a classic member that was told to join again, unless it runs already."""
        timer = self.soft_state(member.member_id).join_phase
        if timer.due_ms is None:
            step.start_timer(timer, member.rebalance_timeout_ms)

    def classic_heartbeat(self, step: Step, event: Heartbeat) -> None:
        """Answer a classic member's Heartbeat: REBALANCE_IN_PROGRESS if it must rejoin for another assignment."""
        error = self.classic_member_error(event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE:
            member = self.members[event.member_id]
            self.on_member_heard(step, event.member_id, event.connection)
            current = self.current_assignment(event.member_id)
            freed = current.state is ReconciliationState.UNRELEASED_PARTITIONS and not self.waits_for_others(
                event.member_id
            )
            if current.member_epoch < self.epoch or current.state is ReconciliationState.UNREVOKED_PARTITIONS or freed:
                self.start_rejoin_timeout(step, member)
                error = ErrorCode.REBALANCE_IN_PROGRESS
        step.reply(event.request, HeartbeatReply(error))

    def leave_group(self, step: Step, event: LeaveGroup) -> None:
        """Remove members of either protocol that leave, or that an administrator removes.

        The group becomes classic if only classic members are left. Source: KAFKA-18150.
        """
        left: list[LeftMember] = []
        gone: dict[str, LeavingMember] = {}
        for leaving in event.members:
            error, member_id = self.find_leaving_member(leaving)
            if error is ErrorCode.NONE:
                gone[member_id] = leaving
            left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
        if gone:
            self.remove_members(step, gone, leave_cause([*gone.values()]))
        step.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(left)))

    def find_leaving_member(self, leaving: LeavingMember) -> tuple[ErrorCode, str]:
        """Return the error for a member that a LeaveGroup names, NONE if it is in the group, and its member id."""
        member_id, instance_id = leaving.member_id, leaving.instance_id
        if instance_id is not None:
            holder = self.static_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, member_id
            if member_id not in ("", holder):
                return ErrorCode.FENCED_INSTANCE_ID, member_id
            member_id = holder
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID, member_id

    def assignment_bytes(self, saved: MemberSaved, names: dict[TopicId, str]) -> bytes:
        """Encode a classic member's partitions as its client expects them in a SyncGroup response."""
        held = self.current_assignment(saved.member_id).assigned
        protocols = saved.classic_protocols or ()
        subscription = read_subscription(protocols[0].metadata) if protocols else None
        version = 0 if subscription is None else subscription.version
        named = [TopicPartition(names[topic_id], number) for topic_id, number in held if topic_id in names]
        return write_assignment(version, named)
