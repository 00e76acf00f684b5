"""A group under KIP-848: its heartbeats, its table, its permission to commit and to fetch. Source: KIP-848.

A ConsumerGroupHeartbeat joins, moves, leaves, and is fenced. Differences from Kafka: a joiner's reply waits for the
moment that its target takes to compute. Members that wait for others are told a short interval. A settled member's
reply may be delayed until there is news.

The chapters below hold the rest, each knowing only those before: `members` (state, reconciliation), `assignment`
(targets, suspected members), `classic_members`.
"""

from __future__ import annotations

from typing import ClassVar
from zlib import crc32

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import NO_ERROR, ErrorCode
from kohort.groups import admission, client_quirks
from kohort.groups.admission import LEFT_FOR_A_WHILE, Refusal
from kohort.groups.consumer.assignment import ConsumerAssignment
from kohort.groups.consumer.classic_members import ConsumerClassicMembers
from kohort.groups.consumer.members import (
    ASSIGNING,
    EMPTY,
    RECONCILING,
    STABLE,
    CurrentAssignment,
    MemberSoftState,
)
from kohort.groups.effects import (
    Cause,
    ConsumerGroupHeartbeatReply,
    DescribedConsumer,
    DescribedConsumerGroup,
    GroupType,
    Level,
    PartitionsOfTopic,
    RebalanceReason,
)
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
from kohort.groups.long_polling import LongPollEnd
from kohort.groups.records import MemberSaved, ReconciliationState
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline
from kohort.groups.topics import TopicIdPartitions, pack_partitions, unpack_partitions
from kohort.ids import TopicId

SPREAD_FROM = 500
"""From this group size on, the first full interval is shortened at random, so that heartbeats do not come at once."""
MEMBERS_PER_MS = 5
"""How many unsettled members may send a heartbeat in one ms, which bounds the cost of their short interval."""


def heartbeat_epoch_refusal(current: CurrentAssignment, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Return why the member epoch in a heartbeat is refused, else None.

    Besides the current epoch, the previous one is accepted if only the response with the newer one was lost.
    """
    epoch = event.member_epoch
    if epoch == current.member_epoch:
        return None
    lost_reply = (
        epoch < current.member_epoch
        and epoch == current.previous_epoch
        and event.owned is not None
        and unpack_partitions(event.owned) <= current.assigned
    )
    if lost_reply:
        return None
    relation = "greater" if epoch > current.member_epoch else "smaller"
    return Refusal(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({current.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def is_plain_heartbeat(old: MemberSaved, event: ConsumerGroupHeartbeat) -> bool:
    """Return whether a heartbeat reports no change: only its member's id and epoch, as nearly all do."""
    unsaid = event.subscribed_topics is None and event.subscribed_regex is None and event.rebalance_timeout_ms == -1
    unsaid = unsaid and event.rack_id is None and event.server_assignor is None and old.classic_protocols is None
    client, instance_id = event.client, event.instance_id
    same = old.client_id == client.id and old.client_host == client.host and instance_id in (None, old.instance_id)
    return unsaid and same


def is_full_heartbeat(event: ConsumerGroupHeartbeat) -> bool:
    """Return whether a heartbeat sets all fields: a join, or the full heartbeat of a client after a lost response."""
    subscribed = event.subscribed_topics is not None or event.subscribed_regex is not None
    return event.member_epoch == 0 or (event.rebalance_timeout_ms != -1 and subscribed and event.owned is not None)


def spread_heartbeat_interval_ms(interval_ms: int, member_id: str) -> int:
    """Return a heartbeat interval between half and all of the usual one, by the member's id.

    Members of a large group settle within moments of each other. Otherwise all of them would send their heartbeats at
    one moment ever after.
    """
    return interval_ms - crc32(member_id.encode()) % max(1, interval_ms // 2)


class ConsumerHeartbeat(ConsumerClassicMembers):
    """The heartbeat requests of a consumer group's members, and what follows when a member misses a deadline."""

    def consumer_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat) -> None:
        """Process a heartbeat that passed `heartbeat_refusal`: a join, a regular heartbeat, or a leave."""
        refusal = (
            self.process_leave_heartbeat(step, event) if event.member_epoch < 0 else self.process_heartbeat(step, event)
        )
        if refusal is not None:
            self.log_fenced(step, event, refusal)
            refusal.refuse_heartbeat(step, event)

    def process_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat) -> Refusal | None:
        """Process a ConsumerGroupHeartbeat that joins or continues; return a refusal; None: answered or waiting."""
        member_id = event.member_id or event.new_member_id
        refusal = self.check_member(step, event, member_id)
        if refusal is not None:
            return refusal
        back = self.clear_suspicion(step, member_id)
        joins, before = event.member_epoch == 0, self.members.get(member_id)
        if joins:
            self.rejoin_member(step, member_id)
        if self.write_member_metadata(step, event, member_id):
            self.begin_epoch(step, self.member_epoch_cause(before, member_id))
        elif back:
            text = f"suspected member {member_id} is heard again"
            self.begin_epoch(step, Cause(RebalanceReason.RETURNED, text, member_id))
        presence = self.on_member_heard(step, member_id, event.connection)
        presence.overdue = presence.fenced = False
        if joins:
            presence.process = event.client.process
        if before is not None and before.classic_protocols is not None:
            self.on_member_protocol_changed(step, presence, member_id)
        if presence.awaits_answer:
            self.answer_waiting(step, member_id)
        self.refresh_regexes(step)
        if self.epoch > self.target_epoch:
            self.request_target_assignment(step)
            if joins:
                presence.waiting, presence.awaited_epoch = event, self.epoch
                return None
        self.answer_heartbeat(step, event, member_id)
        return None

    def check_member(self, step: Step, event: ConsumerGroupHeartbeat, member_id: str) -> Refusal | None:
        """Check member id and epoch of a heartbeat; let a static member that returns replace its predecessor."""
        joins = event.member_epoch == 0
        known = member_id in self.members
        if event.instance_id is not None:
            holder = self.static_ids.get(event.instance_id)
            if holder is None and not joins:
                return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
            if holder != member_id and joins and known:
                # it would have two names, of which one outlives it, or another member's partitions instead of its own
                text = f"Member {member_id} cannot change its instance id to {event.instance_id}."
                return Refusal(ErrorCode.INVALID_REQUEST, text)
            if holder is not None and holder != member_id:
                return self.replace_static(step, event, holder, member_id)
        if joins:
            limit = step.config.consumer_max_size
            error = admission.group_full_error(limit, len(self.members), has_place=known)
            text = f"The consumer group has reached its maximum capacity of {limit} members."
            return None if error is ErrorCode.NONE else Refusal(error, text)
        if not known:
            return Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {event.group_id}."
            )
        if self.soft_state(member_id).overdue:
            text = (
                f"Member {member_id} did not give its partitions up within its rebalance timeout and must join again."
            )
            return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return heartbeat_epoch_refusal(self.current_assignment(member_id), event)

    def replace_static(self, step: Step, event: ConsumerGroupHeartbeat, old_id: str, new_id: str) -> Refusal | None:
        """Replace a static member by another process, if it left temporarily or speaks the classic protocol."""
        if event.member_epoch != 0:
            text = f"Static member {new_id} with instance id {event.instance_id} was fenced by member {old_id}."
            return Refusal(ErrorCode.FENCED_INSTANCE_ID, text)
        old = self.members[old_id]
        if old.classic_protocols is None and not self.current_assignment(old_id).has_left_temporarily:
            text = (
                f"Static member {new_id} with instance id {event.instance_id} cannot join the group because the "
                f"instance id is owned by {old_id} member."
            )
            return Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        self.replace_member(step, old_id, new_id)
        return None

    def write_member_metadata(self, step: Step, event: ConsumerGroupHeartbeat, member_id: str) -> bool:
        """Write a member's metadata if it is new; True if the group needs a new epoch for it.

        A new subscription needs one. Since Kafka 4.4 a preference that changes the group's assignor does too.
        """
        old = self.members.get(member_id)
        if old is not None and is_plain_heartbeat(old, event):
            return False
        base = old or MemberSaved(event.group_id, member_id, None, None, "", "", (), None, -1, None)
        topics, regex = base.subscribed_topics, base.subscribed_regex
        new = MemberSaved(
            group_id=event.group_id,
            member_id=member_id,
            instance_id=base.instance_id if event.instance_id is None else event.instance_id,
            rack_id=base.rack_id if event.rack_id is None else event.rack_id,
            client_id=event.client.id,
            client_host=event.client.host,
            subscribed_topics=topics
            if event.subscribed_topics is None
            else tuple(sorted(set(event.subscribed_topics))),
            subscribed_regex=regex if event.subscribed_regex is None else event.subscribed_regex or None,
            rebalance_timeout_ms=base.rebalance_timeout_ms
            if event.rebalance_timeout_ms == -1
            else event.rebalance_timeout_ms,
            server_assignor=base.server_assignor if event.server_assignor is None else event.server_assignor,
        )
        if new == old:
            return False
        wishes_otherwise = old is not None and new.server_assignor != old.server_assignor
        preferred = self.preferred_assignor(step) if wishes_otherwise else ""
        step.emit(new)
        if old is None or (new.subscribed_topics, new.subscribed_regex) != (topics, regex):
            return True
        return wishes_otherwise and self.preferred_assignor(step) != preferred

    def answer_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat, member_id: str) -> None:
        """Move a member one step towards its target; send it any change, or delay the reply until there is one."""
        before = self.current_assignment(member_id)
        owned = None if event.owned is None else unpack_partitions(event.owned)
        after = self.reconcile_member(step, member_id, owned)
        moved = after is not before and after.assigned != before.assigned  # sets compare each element, also of the same
        told = moved or after.member_epoch != event.member_epoch or is_full_heartbeat(event)
        settled = after.is_reconciled_to(self.epoch)
        presence = self.soft_state(member_id)
        if (
            settled
            and not told
            and event.owned is None
            and event.delay_ms > 0
            and self.delay_heartbeat(step, event, presence)
        ):
            return
        interval = self.heartbeat_interval_ms(step)
        if not settled:
            interval = self.unsettled_interval_ms(step, interval)
        elif event.short_interval:
            interval = min(interval, step.config.unsettled_interval_ms)
        elif presence.interval_ms < interval // 2 and len(self.members) >= SPREAD_FROM:
            interval = spread_heartbeat_interval_ms(interval, member_id)
        presence.interval_ms = interval
        step.reply(
            event.request,
            ConsumerGroupHeartbeatReply(
                NO_ERROR,
                None,
                member_id,
                after.member_epoch,
                interval,
                pack_partitions(after.assigned) if told else None,
            ),
        )

    def unsettled_interval_ms(self, step: Step, settled_ms: int) -> int:
        """Return the heartbeat interval for members without all of their target: short, but longer in large groups.

        `settled_ms` is the usual interval, which it never exceeds.
        """
        if step.config.notify_at_once == "off":
            return settled_ms
        return min(settled_ms, max(step.config.unsettled_interval_ms, len(self.members) // MEMBERS_PER_MS))

    def delay_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat, presence: MemberSoftState) -> bool:
        """Delay the reply until something changes; False if it must be sent now."""
        limit = event.delay_ms if event.short_interval else client_quirks.max_response_delay_ms(presence.interval_ms)
        return self.begin_long_poll(step, presence, event, limit)

    def answer_long_poll(
        self, step: Step, presence: MemberSoftState, event: ConsumerGroupHeartbeat, why: LongPollEnd
    ) -> None:
        """Answer a delayed heartbeat; the member moves on whether or not the reply reaches it."""
        self.answer_heartbeat(step, event._replace(delay_ms=0), presence.session.subject)

    def refuse_long_poll(
        self, step: Step, event: ConsumerGroupHeartbeat, error: ErrorCode, message: str | None
    ) -> None:
        """Answer a delayed heartbeat with an error, because its member was removed or replaced."""
        Refusal(error, message or error.text).refuse_heartbeat(step, event)

    def answer_waiting(self, step: Step, member_id: str) -> None:
        """Answer a member's waiting heartbeats: a join by the current target, a delayed one as usual."""
        presence = self.presences.get(member_id)
        if presence is None:
            return
        event, presence.waiting = presence.waiting, None
        if event is not None:
            self.restart_connected_session(step, presence, member_id)
            self.answer_heartbeat(step, event._replace(delay_ms=0), member_id)
        self.end_long_poll(step, presence)

    def release_long_polls(self, step: Step) -> None:
        """Answer every delayed heartbeat, so that all members move now."""
        for presence in list(self.presences.values()):
            self.end_long_poll(step, presence)

    def on_assignment_computed(self, step: Step, event: AssignmentComputed) -> None:
        """Take over a computed target: answer waiting joins, move delayed members, and request the next target."""
        taken = self.accept_target_assignment(step, event)
        for member_id, presence in list(self.presences.items()):
            if presence.waiting is None:
                continue
            if event.failure is not None and self.computing < 0:
                Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, event.failure).refuse_heartbeat(step, presence.waiting)
                presence.waiting = None
            elif presence.awaited_epoch <= self.target_epoch:
                self.answer_waiting(step, member_id)
        self.answer_waiting_joins(step, event.failure)
        if taken:
            self.release_long_polls(step)
            self.schedule_suspicion_check(step)
            self.request_target_assignment(step)

    def process_leave_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat) -> Refusal | None:
        """Process a leave, permanent or, for a static member, temporary."""
        member_id = event.member_id
        if event.instance_id is not None:
            holder = self.static_ids.get(event.instance_id)
            if holder is None:
                return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {event.instance_id} is unknown.")
            if holder != member_id:
                text = f"Static member {member_id} with instance id {event.instance_id} was fenced by member {holder}."
                return Refusal(ErrorCode.FENCED_INSTANCE_ID, text)
        elif member_id not in self.members:
            return Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {event.group_id}."
            )
        if event.member_epoch == LEFT_FOR_A_WHILE:
            self.leave_temporarily(step, member_id)
        else:
            self.evict_member(step, Cause(RebalanceReason.LEFT, f"member {member_id} left", member_id))
        step.reply(
            event.request,
            ConsumerGroupHeartbeatReply(ErrorCode.NONE, member_id=member_id, member_epoch=event.member_epoch),
        )
        return None

    def evict_member(self, step: Step, cause: Cause) -> None:
        """Remove the member that the cause names; the others get a new epoch or become a classic group again."""
        if cause.member_id in self.members:
            step.log(self.group_id, cause.text)
            self.remove_members(step, [cause.member_id], cause)

    def on_session_end(self, step: Step, member_id: str) -> None:
        """Evict a member after its session timeout or grace period."""
        presence = self.presences.get(member_id)
        if presence is None or member_id not in self.members:
            return
        if presence.overdue:
            reason, why = RebalanceReason.EVICTED, "did not revoke, join or sync in time, and did not join again"
        elif presence.lost:
            reason, why = RebalanceReason.DISCONNECTED, "did not reconnect after its connection ended"
        else:
            why = f"session timed out after {self.session_timeout_ms(step, member_id)} ms"
            reason = RebalanceReason.SESSION_EXPIRED
        text = f"member {member_id} evicted: {why} ({self.member_last_seen_text(step, member_id)})"
        self.evict_member(step, Cause(reason, text, member_id))

    def on_revocation_expired(self, step: Step, member_id: str) -> None:
        """Require a member to rejoin that did not revoke its partitions within its rebalance timeout."""
        self.refuse_until_rejoin(step, member_id, "revoke")

    def refuse_late_join_or_sync(self, step: Step, member_id: str) -> None:
        """Require a classic member to rejoin that did not join or sync within its rebalance timeout."""
        self.refuse_until_rejoin(step, member_id, "join or sync")

    def on_given_id_expired(self, step: Step, member_id: str) -> None:
        """Forget a member id that a JoinGroup response gave out (KIP-394) and that did not join in time."""
        self.forget_given_id(member_id)

    def refuse_until_rejoin(self, step: Step, member_id: str, what: str) -> None:
        """Refuse a member until it joins again: it did not revoke, join or sync within its rebalance timeout.

        The member may not know that it must move, nor see that it is refused now. So it keeps its partitions until it
        joins again, leaves, or its session ends, counted from its last accepted request. By then it has stopped.
        """
        presence = self.presences.get(member_id)
        if presence is not None and presence.waiting is None and presence.joining is None:
            step.log(self.group_id, f"member {member_id} refused until it rejoins: did not {what} in time")
            presence.overdue = True

    def on_suspicion_check(self, step: Step, subject: str) -> None:
        """Begin a new epoch that excludes members that became suspected before they moved to the target."""
        silent = self.suspected_among(step, self.members_short_of_target())
        if silent and self.may_exclude_suspected(step):
            names = ", ".join(silent)
            text = f"suspected members {names}: rebalance continues without them"
            self.begin_epoch(step, Cause(RebalanceReason.SUSPECTED, text, names if len(silent) == 1 else ""))
        else:
            self.schedule_suspicion_check(step)

    def on_settings_changed(self, step: Step, event: GroupSettingsChanged) -> None:
        """Keep the group's changed session timeout and heartbeat interval.

        They apply to each member from its next heartbeat. Running session timers are left as they are.
        """
        self.settings = event.settings

    def build_soft_state(self, step: Step) -> None:
        """Build the soft state after a replay: restart sessions and revocation timers, and request a missing target.

        Regular expressions are resolved again, which finds topics that changed while no coordinator ran.
        """
        self.settings = step.settings.get(self.group_id, self.settings)
        for member_id, member in self.members.items():
            presence = self.soft_state(member_id)
            step.start_timer(presence.session, self.session_timeout_ms(step, member_id))
            presence.heard_ms = step.now.mono_ms
            unrevoked = self.current_assignment(member_id).state is ReconciliationState.UNREVOKED_PARTITIONS
            if unrevoked and member.classic_protocols is None:
                step.start_timer(presence.revocation, member.rebalance_timeout_ms)
        if self.members:
            self.request_regex_resolution(step, again=True)
            self.check_topics(step)
            settled = self.epoch == self.target_epoch
            if settled and (self.has_uneven_target(step) or self.has_unassigned_partitions(step)):
                text = "the target was made without suspected members"
                self.begin_epoch(step, Cause(RebalanceReason.COORDINATOR, text))
            self.request_target_assignment(step)
            self.schedule_suspicion_check(step)
        members = "1 member" if len(self.members) == 1 else f"{len(self.members)} members"
        step.log(self.group_id, f"loaded with {members} at epoch {self.epoch}", Level.DEBUG)

    # -- Members of a consumer group whose connection ended without a leave; `failure_detector` defines their grace
    # period

    def on_connection_lost(self, step: Step, member_id: str, event: ConnectionLost) -> None:
        """Handle a lost connection: evict a member that never learned its id; start the grace period of any other."""
        self.evict_uninformed_member(step, member_id)
        presence, member = self.presences.get(member_id), self.members.get(member_id)
        if presence is None or presence.connection != event.connection or member is None:
            return
        self.handle_connection_end(
            step,
            presence,
            event,
            is_static=member.instance_id is not None,
            process=presence.process,
            interval_ms=0 if member.classic_protocols is None else member.classic_session_timeout_ms // 3,
        )

    def evict_uninformed_member(self, step: Step, member_id: str) -> None:
        """Evict a new member that never learned its id: its connection ended before a reply told it."""
        presence = self.presences.get(member_id)
        if presence is None:
            return
        first, joining = presence.waiting, presence.joining
        untold = joining is not None and not joining.member_id and joining.instance_id is None
        if untold or (first is not None and not first.member_id):
            text = f"the connection of new member {member_id} ended"
            self.evict_member(step, Cause(RebalanceReason.DISCONNECTED, text, member_id))


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
        EMPTY: reaction("a first member of the classic protocol", ConsumerClassicMembers.join, ASSIGNING),
        ASSIGNING: reaction("a classic member waits for the target, or replaces the last member of the consumer "
                            "protocol", ConsumerClassicMembers.join, CLASSIC),
        RECONCILING: reaction("a classic member moves towards its target; a new one begins an epoch",
                              ConsumerClassicMembers.join, STABLE, ASSIGNING, CLASSIC),
        STABLE: reaction("a new classic member begins an epoch, or takes the place of a static one",
                         ConsumerClassicMembers.join, ASSIGNING, RECONCILING, CLASSIC),
    },
    SyncGroup: dict.fromkeys(STATES, reaction("a classic member gets its assignment", ConsumerClassicMembers.sync)),
    Heartbeat: dict.fromkeys(
        STATES, reaction("a classic member learns whether it has to rejoin", ConsumerClassicMembers.classic_heartbeat)
    ),
    LeaveGroup: {
        EMPTY: reaction("refused: the group has no members", ConsumerClassicMembers.leave_group),
        ASSIGNING: reaction("members leave or are removed; classic members alone turn classic",
                            ConsumerClassicMembers.leave_group, EMPTY, CLASSIC),
        RECONCILING: reaction("members leave or are removed: an epoch; classic members alone turn classic",
                              ConsumerClassicMembers.leave_group, ASSIGNING, EMPTY, CLASSIC),
        STABLE: reaction("members leave or are removed: an epoch; classic members alone turn classic",
                         ConsumerClassicMembers.leave_group, ASSIGNING, EMPTY, CLASSIC),
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
        STATES, reaction("an unused member id is dropped", ConsumerHeartbeat.on_given_id_expired)
    ),
    Deadline.REVOCATION: dict.fromkeys(
        STATES, reaction("the member is refused until it rejoins", ConsumerHeartbeat.on_revocation_expired)
    ),
    Deadline.JOIN_PHASE: dict.fromkeys(
        STATES, reaction("the classic member is refused until it rejoins", ConsumerHeartbeat.refuse_late_join_or_sync)
    ),
    Deadline.SYNC_PHASE: dict.fromkeys(
        STATES, reaction("the classic member is refused until it rejoins", ConsumerHeartbeat.refuse_late_join_or_sync)
    ),
    Deadline.SILENCE: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("the suspected members are excluded from a newer target",
                            ConsumerHeartbeat.on_suspicion_check),
        RECONCILING: reaction("members that have to move are suspected: an epoch without them begins",
                              ConsumerHeartbeat.on_suspicion_check, ASSIGNING),
        STABLE: reaction("checked again while members have to move", ConsumerHeartbeat.on_suspicion_check, ASSIGNING),
    },
    AssignmentComputed: {
        EMPTY: reaction("dropped: it was computed for former members", ConsumerHeartbeat.on_assignment_computed),
        ASSIGNING: reaction("the target is written; members that have all of it are settled",
                            ConsumerHeartbeat.on_assignment_computed, RECONCILING, STABLE),
        RECONCILING: reaction("dropped: the newest epoch has a target", ConsumerHeartbeat.on_assignment_computed),
        STABLE: reaction("dropped: the newest epoch has a target", ConsumerHeartbeat.on_assignment_computed),
    },
    RegexesResolved: {
        EMPTY: reaction("dropped: nobody uses the patterns", ConsumerAssignment.on_regexes_resolved),
        ASSIGNING: reaction("the topics are written, and the target is requested",
                            ConsumerAssignment.on_regexes_resolved),
        RECONCILING: reaction("patterns match other topics now: an epoch begins",
                              ConsumerAssignment.on_regexes_resolved, ASSIGNING),
        STABLE: reaction("patterns match other topics now: an epoch begins",
                         ConsumerAssignment.on_regexes_resolved, ASSIGNING),
    },
    TopicsChanged: {
        EMPTY: ignored("the group has no members"),
        ASSIGNING: reaction("an epoch with the new topics begins", ConsumerAssignment.on_topics_changed),
        RECONCILING: reaction("topics that members read changed: an epoch begins",
                              ConsumerAssignment.on_topics_changed, ASSIGNING),
        STABLE: reaction("topics that members read changed: an epoch begins",
                         ConsumerAssignment.on_topics_changed, ASSIGNING),
    },
    GroupSettingsChanged: dict.fromkeys(
        STATES, reaction("the group's own timeouts apply from now on", ConsumerHeartbeat.on_settings_changed)
    ),
}  # fmt: skip
"""The transitions of a consumer group: an entry for each event in each state."""


class ConsumerGroup(ConsumerHeartbeat):
    """A group under KIP-848, which may also have classic members."""

    name: ClassVar[str] = GroupType.CONSUMER
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return "consumer", the protocol type for ListGroups."""
        return CONSUMER_PROTOCOL_TYPE

    # -- Permission to commit in a consumer group, and to fetch as a member. Source: KIP-848, KIP-1251

    def commit_error(self, step: Step, event: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
        """Return the error that refuses a commit, else NONE. Without a member epoch, only an empty group accepts one.

        A member's epoch may advance while its commit is under way. An older epoch is accepted for partitions that the
        member had then and has had ever since. Source: KIP-1251.
        """
        member_id, instance_id, epoch = event.member_id, event.instance_id, event.generation
        if epoch < 0 and not self.members:
            return NO_ERROR
        if instance_id is not None and self.static_ids.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic_protocols is None and isinstance(event, OffsetCommit) and not event.knows_stale_epoch:
            return ErrorCode.UNSUPPORTED_VERSION
        current, topics = self.current_assignment(member_id), step.image.topics
        if epoch == current.member_epoch or all(
            offset.topic in topics and current.has_owned_since(epoch, (topics[offset.topic].id, offset.partition))
            for offset in event.offsets
        ):
            return NO_ERROR
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic_protocols is None else ErrorCode.ILLEGAL_GENERATION

    def transactional_commit_error(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Return the error that refuses a transactional commit, else NONE; a producer may omit member and epoch."""
        error = ErrorCode.NONE
        if event.generation >= 0 or event.member_id:
            error = self.commit_error(step, event)
        is_unknown = error is ErrorCode.STALE_MEMBER_EPOCH and not event.knows_stale_epoch
        return ErrorCode.ILLEGAL_GENERATION if is_unknown else error

    def on_offsets_committed(self, step: Step, event: OffsetCommit) -> None:
        """Restart a classic member's session after its accepted commit.

        In a classic group a commit does so, and the member's client can't tell that the group is not one.
        """
        member = self.members.get(event.member_id)
        if member is not None and member.classic_protocols is not None:
            presence = self.soft_state(event.member_id)
            if not presence.overdue:
                self.restart_session(step, presence, event.member_id)

    def fetch_error(self, step: Step, event: OffsetFetch) -> ErrorCode:
        """Return the error for a fetch that names an unknown member or another epoch, else NONE."""
        if event.member_id is None and event.member_epoch < 0:
            return NO_ERROR
        member_id = event.member_id or ""
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if event.member_epoch == self.current_assignment(member_id).member_epoch:
            return NO_ERROR
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
                    assignment=partitions_by_name(current.assigned | current.pending, names),
                    target=partitions_by_name(self.targets.get(member_id, frozenset()), names),
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


def partitions_by_name(pairs: TopicIdPartitions, names: dict[TopicId, str]) -> tuple[PartitionsOfTopic, ...]:
    """Return partitions grouped by topic, with the topics' ids and names, without those of deleted topics."""
    return tuple(
        PartitionsOfTopic(entry.topic_id, names[entry.topic_id], entry.partitions)
        for entry in pack_partitions(pairs)
        if entry.topic_id in names
    )
