"""Rebalances of the classic protocol: a join phase ends with a generation, a sync phase with its assignment.

| state | waits for | ends when |
|---|---|---|
| Empty | a first member | it joins: PreparingRebalance, with the initial delay; even 0 takes in queued joins |
| PreparingRebalance | all JoinGroups | all joined, or the rebalance timeout: CompletingRebalance; nobody left: Empty |
| CompletingRebalance | the leader's SyncGroup | it comes: Stable; a member joins, leaves or dies: PreparingRebalance |
| Stable | nothing | a member joins, changes, leaves or dies, or never syncs: PreparingRebalance |

Source: KIP-134 (initial delay), KIP-345 (static members stay through a join phase), KIP-394 (pending members),
spec 3.7.
"""

from __future__ import annotations

from kohort.consumer_protocol import read_assignment
from kohort.errors import ErrorCode
from kohort.groups.classic.deferred_notification import ClassicNotification
from kohort.groups.classic.members import ClassicMember
from kohort.groups.effects import (
    Cause,
    Downtime,
    GroupState,
    JoinedMember,
    JoinGroupReply,
    Level,
    RebalanceReason,
    SyncGroupReply,
)
from kohort.groups.records import GenerationStarted, GroupSaved
from kohort.groups.step import Step
from kohort.groups.topics import ImageChange, metadata_hash

LEAST_WAIT_MS = 1_000
"""The shortest wait, in ms, until a join phase that nobody has joined is checked again. A rebalance timeout may be
shorter.
"""
REBALANCES_FROM = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class ClassicRebalance(ClassicNotification):
    """The phases of a classic group's rebalance, and what begins one."""

    def add_member(self, step: Step, member: ClassicMember, request: int) -> None:
        """Add a member that waits on its JoinGroup."""
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.count_votes(member, 1)
        self.await_join(step, member, request)
        self.drop_pending_id(step, member.member_id)

    def await_join(self, step: Step, member: ClassicMember, request: int) -> None:
        """Keep a JoinGroup waiting; an earlier one of the member is answered, so that no request stays open."""
        self.release_awaited_member(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
        if member.join_request is None:
            self.awaiting_join += 1
        else:
            error = JoinGroupReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            step.reply(member.join_request, error)
        member.join_request = request
        member.beat_ms = None
        if member.stopped_ms is None:
            member.stopped_ms = step.now.mono_ms

    def answer_join(self, step: Step, member: ClassicMember, reply: JoinGroupReply) -> None:
        """Answer the member's waiting JoinGroup, if there is one."""
        if member.join_request is None:
            return
        step.reply(member.join_request, reply)
        member.join_request = None
        self.awaiting_join -= 1
        member.notified = member.notified or bool(reply.member_id)

    def remove_member(self, step: Step, member_id: str) -> None:
        """Remove a member: answer its waiting requests with UNKNOWN_MEMBER_ID, and pick the next leader if it led."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.count_votes(member, -1)
            self.release_awaited_member(step, member, ErrorCode.UNKNOWN_MEMBER_ID)
            self.answer_join(step, member, JoinGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))
            member.answer_sync(step, SyncGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))
            if member.instance_id is not None:
                self.static_ids.pop(member.instance_id, None)
            member.session.cancel()
            member.unbind_connection(step)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.drop_pending_id(step, member_id)
        self.pending_sync.pop(member_id, None)

    def drop_pending_id(self, step: Step, member_id: str) -> bool:
        """Drop a pending member id; False if it is not pending."""
        pending = self.pending.take_given_id(member_id)
        if pending is None:
            return False
        pending.timer.cancel()
        step.forget_connection(pending.connection, pending.timer.group_id, member_id)
        return True

    def rebalance_after_change(self, step: Step, cause: Cause) -> None:
        """Start a rebalance after a change of members, or check whether the current join phase is complete.

        During a join phase, a member that only joins again is not recorded as a further cause.
        """
        if self.state in REBALANCES_FROM:
            self.prepare_rebalance(step, cause)
        else:
            if cause.reason is not RebalanceReason.REJOINED:
                step.record_rebalance_cause(self.group_id, cause)
            self.complete_if_all_joined(step)

    def prepare_rebalance(self, step: Step, cause: Cause) -> None:
        """Start a join phase. Members that wait on a SyncGroup are told to join again. Source: spec 3.8."""
        step.record_rebalance_cause(self.group_id, cause)
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                self.clear_member_assignment(member)
                if member.answer_sync(step, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS)):
                    member.restart_session_if_connected(step, member.session_timeout_ms)
        self.pending_sync.clear()
        self.sync_phase.cancel()
        initial = self.state is GroupState.EMPTY
        self.set_state(GroupState.PREPARING_REBALANCE)
        if self.began_ms is None:
            self.began_ms = step.now.mono_ms
        step.log(self.group_id, f"preparing a rebalance after generation {self.generation}: {cause.text}")
        if initial:
            self.delay_ms = step.config.initial_rebalance_delay_ms
            self.remaining_ms = max(self.rebalance_timeout_ms() - self.delay_ms, 0)
            self.newcomer = False
            step.start_timer(
                self.join_phase, self.delay_ms
            )  # also for 0, so that joins in the queue are taken in first
        elif self.all_joined():
            self.complete_join(step)
        else:
            step.start_timer(self.join_phase, self.rebalance_timeout_ms())
            if self.previous_state is GroupState.STABLE:
                self.defer_notification(step)

    def set_state(self, state: GroupState) -> None:
        """Set the group's state, such as PreparingRebalance."""
        self.previous_state = self.state
        self.state = state

    def report_rebalance_completed(self, step: Step) -> None:
        """Report the rebalance as complete: the assignments are sent, and all members work."""
        now_ms = step.now.mono_ms
        still = [
            Downtime(member.member_id, now_ms - member.stopped_ms)
            for member in self.members.values()
            if member.stopped_ms is not None
        ]
        step.report_rebalance(self.group_id, "classic", self.began_ms, still, len(self.members), self.generation)
        self.began_ms = None
        for member in self.members.values():
            member.stopped_ms = None

    def clear_member_assignment(self, member: ClassicMember) -> None:
        """Remove a member's assignment, because the member must join again to get one."""
        self.set_assignment(member, b"")

    def set_assignment(self, member: ClassicMember, assignment: bytes) -> None:
        """Set a member's assignment, and update the size of the group's record."""
        change = len(assignment) - len(member.assignment)
        member.assignment = assignment
        member.size += change
        self.size += change

    def complete_if_all_joined(self, step: Step) -> None:
        """End the join phase if it waits for nobody; an initial one ends only by its delay."""
        if self.state is not GroupState.PREPARING_REBALANCE or self.previous_state is GroupState.EMPTY:
            return
        if self.all_joined():
            self.complete_join(step)
        else:
            self.notify_if_none_awaited(step)

    def on_join_deadline(self, step: Step, subject: str) -> None:
        """Handle the end of the initial delay or of the rebalance timeout."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self.previous_state is GroupState.EMPTY and self.newcomer and self.remaining_ms:
            self.newcomer = False
            delay = min(step.config.initial_rebalance_delay_ms, self.remaining_ms)
            self.remaining_ms = max(self.remaining_ms - self.delay_ms, 0)
            self.delay_ms = delay
            step.start_timer(self.join_phase, delay)
            return
        self.complete_join(step)

    def complete_join(self, step: Step) -> None:
        """End the join phase: evict members that did not join, elect a leader, begin a generation."""
        self.join_phase.cancel()
        self.end_deferral()
        absent = [m.member_id for m in self.members.values() if m.join_request is None and m.instance_id is None]
        for member_id in absent:
            self.remove_member(step, member_id)
        if absent:
            cause = _evicted(absent, "join")
            step.record_rebalance_cause(self.group_id, cause)
            step.log(self.group_id, cause.text)
        if not self.members:
            self.write_empty_group(step)
            return
        if not self.elect_leader():
            step.log(self.group_id, "no member joined in time; static members stay in the group", Level.WARNING)
            step.start_timer(self.join_phase, max(self.rebalance_timeout_ms(), LEAST_WAIT_MS))
            return
        self.begin_generation(step)

    def elect_leader(self) -> bool:
        """Keep the group's leader if it has joined, else choose the first joined member; False: none has joined."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_request is not None:
            return True
        for member in self.members.values():
            if member.join_request is not None:
                self.leader = member.member_id
                return True
        return False

    def write_empty_group(self, step: Step) -> None:
        """Write the group's record without members; its time starts the expiration of offsets."""
        self.protocol = None
        self.leader = None
        self.subscribed = self.read_subscriptions()
        self.resumed_from = -1
        self.pending_sync.clear()
        self.set_state(GroupState.EMPTY)
        self.began_ms = None
        generation = self.generation + 1
        step.emit(GroupSaved(self.group_id, self.protocol_type or "", generation, None, None, step.now.wall_ms, ()))
        step.record_group_emptied(self.group_id, generation)
        step.log(self.group_id, f"generation {generation} has no members: the group is empty")

    def begin_generation(self, step: Step) -> None:
        """Choose the protocol, write the generation, and answer the JoinGroups. Source: spec 3.7."""
        step.emit(GenerationStarted(self.group_id, self.generation + 1))
        self.protocol = self.select_protocol()
        self.subscribed = self.read_subscriptions()
        self.resumed_from = -1
        self.set_state(GroupState.COMPLETING_REBALANCE)
        self.pending_sync = dict.fromkeys(self.members)
        for member in self.members.values():
            self.answer_join(step, member, self.join_reply(member))
            member.is_new = False
            member.restart_session_if_connected(step, member.session_timeout_ms)
        step.start_timer(self.sync_phase, self.rebalance_timeout_ms())
        count = len(self.members)
        step.log(self.group_id, f"generation {self.generation} has {count} {'member' if count == 1 else 'members'}")

    def join_reply(self, member: ClassicMember) -> JoinGroupReply:
        """Return the reply to a JoinGroup of the current generation; the leader's lists all members."""
        leads = self.is_leader(member.member_id)
        return JoinGroupReply(
            ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            members=self.members_for_leader() if leads else (),
        )

    def members_for_leader(self) -> tuple[JoinedMember, ...]:
        """Return every member with its metadata for the chosen protocol, for the leader."""
        protocol = self.protocol
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )

    def on_sync_deadline(self, step: Step, subject: str) -> None:
        """Evict members that have not synced within the rebalance timeout after the generation began."""
        if self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not self.pending_sync:
            return
        late = list(self.pending_sync)
        for member_id in late:
            self.remove_member(step, member_id)
        self.prepare_rebalance(step, _evicted(late, "sync"))

    def record_member_sync(self, step: Step, member_id: str) -> None:
        """Record a member's SyncGroup in this generation, so that it is not evicted at the sync deadline."""
        self.pending_sync.pop(member_id, None)
        if not self.pending_sync:
            self.sync_phase.cancel()

    def on_session_end(self, step: Step, member_id: str) -> None:
        """Evict a member after its session timeout or grace period, unless it waits on a reply."""
        member = self.members.get(member_id)
        if member is None:
            return
        seen = member.last_seen_text(step, member.client.id, member.client.host)
        if member.lost:
            text = f"member {member_id} evicted: did not reconnect after its connection ended ({seen})"
            self.evict_member(step, Cause(RebalanceReason.DISCONNECTED, text, member_id))
            return
        if not member.is_new and (member.join_request is not None or member.sync_request is not None):
            return
        text = f"member {member_id} evicted: session timed out after {member.session_timeout_ms} ms ({seen})"
        self.evict_member(step, Cause(RebalanceReason.SESSION_EXPIRED, text, member_id))

    def evict_member(self, step: Step, cause: Cause) -> None:
        """Remove a member, and complete or start a rebalance as needed."""
        was_member = cause.member_id in self.members
        self.remove_member(step, cause.member_id)
        step.log(self.group_id, cause.text)
        self.rebalance_after_removal(step, cause, is_cause=was_member)

    def rebalance_after_removal(self, step: Step, cause: Cause, *, is_cause: bool = True) -> None:
        """Complete the current join phase, or start a rebalance, after a member was removed.

        Args:
            step: the step.
            cause: the removal.
            is_cause: whether a joined member was removed; False for a member id that nobody had joined with.
        """
        if self.state is GroupState.PREPARING_REBALANCE:
            if is_cause:
                step.record_rebalance_cause(self.group_id, cause)
            self.complete_if_all_joined(step)
        elif self.state is not GroupState.EMPTY:
            self.prepare_rebalance(step, cause)

    # -- Topic changes that a classic group's leader may miss
    #
    # The leader compares the topics with those it assigned, and joins again when they change. A static leader that
    # returns has assigned nothing. With JoinGroup below version 9 it cannot be told that it leads (KIP-814), so it
    # compares nothing. Otherwise it compares with the topics that it sees after the reply, and misses changes before
    # that. After a restart nobody knows whether the leader returned like this. Until such a leader assigns, the
    # coordinator compares the topics itself. Source: KAFKA-13435.

    def current_topics_hash(self, step: Step) -> int:
        """Return a hash of the subscribed topics as they are now."""
        return metadata_hash(step.image, sorted(self.subscribed or ()))

    def on_topics_changed(self, step: Step, change: ImageChange) -> None:
        """Start a rebalance when subscribed topics changed and a static leader may not notice by itself."""
        if not self.leader_unaware or self.state is not GroupState.STABLE or self.subscribed is None:
            return
        now = self.current_topics_hash(step)
        if self.topics_hash != now:
            self.topics_hash = now
            text = "topics changed, and the static leader may not notice"
            self.rebalance_after_change(step, Cause(RebalanceReason.TOPICS_CHANGED, text))

    def check_static_group_after_load(self, step: Step) -> None:
        """Check a group with static members after a load; do nothing for other groups.

        A static leader may not notice later changes of topics by itself, so the coordinator watches them. If partitions
        have no owner, a rebalance begins.
        """
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.instance_id is not None:
            self.leader_unaware = True
        if self.static_ids:
            self.rebalance_if_unowned(step)

    def rebalance_if_unowned(self, step: Step) -> None:
        """Start a rebalance if partitions that members read have no owner.

        A static member that returns with another subscription gets its old assignment, as in Apache Kafka. There the
        topics that only it reads have no owner until the next rebalance. Here the group's next heartbeat starts one.
        """
        self.owes_look, self.left_out = False, None
        if self.state is GroupState.STABLE and self.has_unowned_partitions(step):
            text = "partitions of subscribed topics have no owner, and the leader may not notice"
            self.prepare_rebalance(step, Cause(RebalanceReason.SUBSCRIPTION_CHANGED, text))

    def has_unowned_partitions(self, step: Step) -> bool:
        """Return whether a partition of a subscribed topic is in no member's assignment, if assignments are readable.

        The answer is cached for each generation and image, because thousands of static members may return at once.
        """
        asked = (self.generation, step.image.version)
        if self.left_out is None or self.left_out[:2] != asked:
            self.left_out = (*asked, self.find_unowned_partitions(step))
        return self.left_out[2]

    def find_unowned_partitions(self, step: Step) -> bool:
        held: set[tuple[str, int]] = set()
        for member in self.members.values():
            assigned = read_assignment(member.assignment)
            if assigned is None:
                return False
            held.update(assigned.partitions)
        topics = ((name, step.image.topics.get(name)) for name in self.subscribed or ())
        return any((name, number) not in held for name, topic in topics if topic for number in range(topic.partitions))


def _evicted(members: list[str], missed: str) -> Cause:
    """Return the rebalance cause for members that were evicted because they did not join or sync in time."""
    text = f"members evicted: did not {missed} in time: {', '.join(members)}"
    return Cause(RebalanceReason.EVICTED, text, members[0] if len(members) == 1 else "")
