"""A classic group: its requests, its table, its permission to commit, and how it is described.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup are answered as Kafka's coordinator answers them. The chapters below hold
what is between the requests, each knowing only those before: `members` (state), `deferred_notification`, `rebalance`.

Source: spec 3.1-3.13, KIP-62, KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from kohort.consumer_protocol import read_topics
from kohort.errors import NO_ERROR, ErrorCode
from kohort.groups import admission
from kohort.groups.classic.deferred_notification import COOPERATIVE, ClassicNotification
from kohort.groups.classic.members import COMPLETING, EMPTY, PREPARING, STABLE, ClassicMember, PendingMember
from kohort.groups.classic.rebalance import ClassicRebalance
from kohort.groups.effects import (
    Cause,
    ConsumerGroupHeartbeatReply,
    DescribedGroup,
    DescribedMember,
    GroupState,
    GroupType,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    LeftMember,
    Level,
    RebalanceReason,
    SyncGroupReply,
)
from kohort.groups.events import (
    NO_CONNECTION,
    ConnectionLost,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    ReleaseLongPolls,
    SyncGroup,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.group import leave_cause
from kohort.groups.records import GroupSaved
from kohort.groups.sizes import names_bytes
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline, Timer


def names_other_protocol(asked: str | None, actual: str | None) -> bool:
    """Return whether a protocol name in a request differs from the group's; None, a missing name, never does."""
    return asked is not None and actual is not None and asked != actual


class ClassicRequests(ClassicRebalance):
    """The handling of requests from the members of a classic group."""

    def member_request_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for a member that is not in the group or was replaced under its instance id, else NONE.

        If a restart interrupted a rebalance, the id that is not on record may be the newer one of this static member.
        Then the error is UNKNOWN_MEMBER_ID, not FENCED_INSTANCE_ID, so that it joins again. Source: scenario 8.
        """
        if instance_id is not None:
            current = self.static_ids.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID if self.resumed_from < 0 else ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_current_generation(self, generation: int) -> bool:
        """Return whether a generation is the current one, or the last complete one if a restart cut a rebalance off."""
        return generation == self.generation or (generation == self.resumed_from and generation >= 0)

    def join(self, step: Step, event: JoinGroup) -> None:
        """Process a JoinGroup: the member wants to be in the next generation."""
        error = self.join_or_error(step, event)
        if error is not ErrorCode.NONE:
            member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else event.member_id
            step.reply(event.request, JoinGroupReply(error, member_id=member_id))

    def join_or_error(self, step: Step, event: JoinGroup) -> ErrorCode:
        """Process a JoinGroup, or return the error that refuses it."""
        config = step.config
        refused = admission.join_request_error(config, event)
        if refused is not ErrorCode.NONE:
            return refused
        if self.join_capacity_error(step, event) is not ErrorCode.NONE:
            if event.member_id in self.members:
                text = f"no room for member {event.member_id}"
                self.evict_member(step, Cause(RebalanceReason.EVICTED, text, event.member_id))
            self.on_pending_id_expired(step, event.member_id)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        refused = self.joining_protocol_error(step, event)
        if refused is not ErrorCode.NONE:
            return refused
        if not event.member_id:
            self.join_without_id(step, event)
            return ErrorCode.NONE
        return self.join_with_id(step, event)

    def joining_protocol_error(self, step: Step, event: JoinGroup) -> ErrorCode:
        """Return why a member's protocols do not fit the group, NONE if they do."""
        too_many = len(event.protocols) > step.config.protocols_max
        if too_many or not self.supports_protocols(event.protocol_type, event.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.GROUP_MAX_SIZE_REACHED if self.would_outgrow_record(step, event) else ErrorCode.NONE

    def join_capacity_error(self, step: Step, event: JoinGroup) -> ErrorCode:
        """Return GROUP_MAX_SIZE_REACHED if the group is full for this member, else NONE.

        In a join phase, the first members to join have the places.
        """
        member = self.members.get(event.member_id or self.static_ids.get(event.instance_id, ""))
        taken, has_place = len(self.members), member is not None
        if self.state is GroupState.EMPTY:
            taken = 0
        elif self.state is GroupState.PREPARING_REBALANCE:
            taken, has_place = self.awaiting_join, member is not None and member.join_request is not None
        return admission.group_full_error(step.config.group_max_size, taken, has_place=has_place)

    def would_outgrow_record(self, step: Step, event: JoinGroup) -> bool:
        """Return whether this member could make the group's record exceed its limit; the member is refused then."""
        member = self.members.get(event.member_id)
        before = 0 if member is None else member.size
        metadata = max(len(protocol.metadata) for protocol in event.protocols)
        size = self.size - before + metadata + names_bytes((event.client.id,))
        if admission.record_size_error(step.config, size) is ErrorCode.NONE:
            return False
        step.log(
            self.group_id,
            f"member refused: the group would not fit into one record of {step.config.group_record_bytes_max} bytes; "
            "raise group.record.max.bytes",
            Level.ERROR,
        )
        return True

    def join_without_id(self, step: Step, event: JoinGroup) -> None:
        """Process a JoinGroup without id: a static member may replace its predecessor; others get an id (KIP-394)."""
        if self.saved is None:  # a group that only holds offsets would disappear with the last of them
            step.emit(GroupSaved(self.group_id, "", self.generation, None, None, step.now.wall_ms, ()))
        if event.instance_id is not None:
            predecessor = self.static_ids.get(event.instance_id)
            if predecessor is not None:
                self.replace_static(step, self.members[predecessor], event)
                return
        elif event.requires_known_id:
            timer = Timer(Deadline.PENDING_MEMBER, self.group_id, event.new_member_id)
            self.pending.record_given_id(event.new_member_id, PendingMember(timer, event.connection))
            step.start_timer(timer, event.session_timeout_ms)
            step.remember_connection(event.connection, self.group_id, event.new_member_id)
            step.reply(event.request, JoinGroupReply(ErrorCode.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
            while (surplus := self.pending.oldest_surplus_id()) is not None:
                self.on_pending_id_expired(step, surplus)
            return
        self.add_new_member(step, event, event.new_member_id, notified=event.instance_id is not None)

    def add_new_member(self, step: Step, event: JoinGroup, member_id: str, *, notified: bool) -> None:
        """Add a new member to the group."""
        member = ClassicMember(self.group_id, member_id, event.instance_id, event.client)
        member.protocols, member.is_loaded = event.protocols, False
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.is_new = True
        member.notified = notified
        if not self.members:
            self.protocol_type = event.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self.newcomer = True
        self.add_member(step, member, event.request)
        member.bind_connection(step, event.connection)
        step.start_timer(member.session, step.config.new_member_timeout_ms)
        text = f"member {member_id} joined (reason: {event.reason or 'not given'})"
        self.rebalance_after_change(step, Cause(RebalanceReason.JOINED, text, member_id))

    def join_with_id(self, step: Step, event: JoinGroup) -> ErrorCode:
        """Process a join with a member id, pending or in the group."""
        if event.member_id in self.pending and event.instance_id is None:
            self.add_new_member(step, event, event.member_id, notified=True)
            return ErrorCode.NONE
        error = self.member_request_error(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
        member = self.members[event.member_id]
        member.on_member_request(step, event.connection)
        unchanged = member.protocols == event.protocols
        leads = self.is_leader(event.member_id)
        settled = self.state is GroupState.COMPLETING_REBALANCE or (self.state is GroupState.STABLE and not leads)
        if settled and unchanged:
            member.restart_session_if_connected(step, member.session_timeout_ms)
            step.reply(event.request, self.join_reply(member))
            return ErrorCode.NONE
        cause = self.rejoin_cause(step, member, event)
        self.update_member(step, member, event)
        self.rebalance_after_change(step, cause)
        return ErrorCode.NONE

    def rejoin_cause(self, step: Step, member: ClassicMember, event: JoinGroup) -> Cause:
        """Return why a member's JoinGroup causes a rebalance: assignors, subscription, topics, or only the request."""
        role = "leader" if self.is_leader(event.member_id) else "member"
        why = f"(reason: {event.reason or 'not given'})"
        names = [protocol.name for protocol in event.protocols]
        topics = read_topics(event.protocols[0].metadata) if event.protocols else None
        reason, text = RebalanceReason.REJOINED, "joined again"
        known = [protocol.name for protocol in member.protocols]
        if names != known and not (member.is_loaded and set(known) <= set(names)):
            reason, text = RebalanceReason.ASSIGNOR_CHANGED, f"joined again with the assignors {', '.join(names)}"
        elif topics != read_topics(member.protocols[0].metadata):
            reason, text = RebalanceReason.SUBSCRIPTION_CHANGED, "joined again with another subscription"
        elif role == "leader" and self.subscribed and self.topics_hash not in (None, self.current_topics_hash(step)):
            reason, text = RebalanceReason.TOPICS_CHANGED, "joined again: topics changed"
        return Cause(reason, f"{role} {event.member_id} {text} {why}", event.member_id)

    def update_member(self, step: Step, member: ClassicMember, event: JoinGroup) -> None:
        """Take over a member's protocols and timeouts from its join, and keep the join waiting."""
        self.count_votes(member, -1)
        member.protocols = event.protocols
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        self.count_votes(member, 1)
        self.await_join(step, member, event.request)

    def replace_static(self, step: Step, old: ClassicMember, event: JoinGroup) -> None:
        """Replace a static member that returned under a new id; the old id is fenced. Source: KIP-345."""
        old_leader = self.leader or ""
        new = ClassicMember(self.group_id, event.new_member_id, event.instance_id, old.client)
        new.assignment = old.assignment
        fenced = JoinGroupReply(ErrorCode.FENCED_INSTANCE_ID, member_id=old.member_id)
        self.answer_join(step, old, fenced)
        old.answer_sync(step, SyncGroupReply(ErrorCode.FENCED_INSTANCE_ID))
        self.release_awaited_member(step, old, ErrorCode.FENCED_INSTANCE_ID)
        self.count_votes(old, -1)
        old.session.cancel()
        old.unbind_connection(step)
        del self.members[old.member_id]
        self.members[new.member_id] = new
        self.static_ids[event.instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id
        if self.pending_sync.pop(old.member_id, "") is None:
            self.pending_sync[new.member_id] = None
        self.count_votes(new, 1)
        new.bind_connection(step, event.connection)
        self.update_member(step, new, event)
        new.restart_session_if_connected(step, new.session_timeout_ms)
        step.log(
            self.group_id,
            f"static member {event.instance_id} replaced: its member id is {new.member_id}, was {old.member_id}",
        )
        self.owes_look |= read_topics(old.metadata(self.protocol)) != read_topics(new.metadata(self.protocol))
        self.after_static_replacement(step, new, event, old_leader)

    def after_static_replacement(self, step: Step, new: ClassicMember, event: JoinGroup, old_leader: str) -> None:
        """Keep a stable group's assignment after a static member returned under a new id, or start a rebalance.

        The assignment is kept unless the protocol or a leader's topics have changed. A returning leader notices only
        later changes of topics. So changes before its return are compared here (KAFKA-13435); after a restart they are
        unknown. A sync under way restarts (KAFKA-9801). If a partition has no owner, a cooperative member revoked it
        and left before it joined again. Another member must get that partition, so the group rebalances.
        """
        keeps = self.select_protocol() == self.protocol and not self.has_unowned_partitions(step)
        if keeps and self.is_leader(new.member_id):
            keeps = self.subscribed is None or self.topics_hash == self.current_topics_hash(step)
        if self.state is GroupState.STABLE and keeps:
            self.write_group_record(step)
            new.stopped_ms = None  # its next SyncGroup brings its assignment: this is no part of a rebalance
            reply = self.join_reply(new)
            leads = self.is_leader(new.member_id)
            self.leader_unaware |= leads
            if not event.can_skip_assignment:
                reply = replace(reply, leader=old_leader, members=())
            elif leads:
                reply = replace(reply, skip_assignment=True)
            self.answer_join(step, new, reply)
            return
        text = f"static member {event.instance_id} came back"
        self.rebalance_after_change(step, Cause(RebalanceReason.JOINED, text, new.member_id))

    def write_group_record(self, step: Step) -> None:
        """Write the group's record, and update the subscriptions from it."""
        members = tuple(member.to_saved_member(self.protocol) for member in self.members.values())
        step.emit(
            GroupSaved(
                self.group_id,
                self.protocol_type or "",
                self.generation,
                self.protocol,
                self.leader,
                step.now.wall_ms,
                members,
            )
        )
        self.subscribed = self.read_subscriptions()

    def sync(self, step: Step, event: SyncGroup) -> None:
        """Process a SyncGroup: the member asks for its assignment, and the leader brings everyone's."""
        error = self.sync_or_error(step, event)
        if error is not ErrorCode.NONE:
            step.reply(event.request, SyncGroupReply(error))

    def sync_or_error(self, step: Step, event: SyncGroup) -> ErrorCode:
        """Process a SyncGroup, or return the error that refuses it."""
        if self.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.member_request_error(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
        self.members[event.member_id].on_member_request(step, event.connection)
        if not self.is_current_generation(event.generation):
            return ErrorCode.ILLEGAL_GENERATION
        if names_other_protocol(event.protocol_type, self.protocol_type) or names_other_protocol(
            event.protocol_name, self.protocol
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if self.refused_generation == event.generation:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        member = self.members[event.member_id]
        self.record_member_sync(step, event.member_id)
        if self.state is GroupState.STABLE:
            member.restart_session_if_connected(step, member.session_timeout_ms)
            step.reply(event.request, self.sync_reply(member))
            return ErrorCode.NONE
        if member.sync_request is not None:
            step.reply(member.sync_request, SyncGroupReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_request = event.request
        if self.is_leader(event.member_id):
            self.complete_sync(step, dict(event.assignments))
        return ErrorCode.NONE

    def sync_reply(self, member: ClassicMember) -> SyncGroupReply:
        """Return a member's assignment in the current generation as a reply."""
        return SyncGroupReply(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)

    def complete_sync(self, step: Step, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignments, then send them to the members. Source: spec 3.7."""
        for member in self.members.values():
            self.set_assignment(member, assignments.get(member.member_id, b""))
        if self.size > step.config.group_record_bytes_max:
            self.refuse_generation(step)
            return
        self.set_state(GroupState.STABLE)
        self.write_group_record(step)
        self.topics_hash = self.current_topics_hash(step)
        self.leader_unaware, self.left_out = False, None
        self.report_rebalance_completed(step)
        for member in self.members.values():
            if member.answer_sync(step, self.sync_reply(member)):
                member.restart_session_if_connected(step, member.session_timeout_ms)

    def refuse_generation(self, step: Step) -> None:
        """Refuse a generation whose assignment does not fit into a record, so that members stop retrying it."""
        step.log(
            self.group_id,
            f"generation {self.generation} refused: with its assignment the group takes {self.size} bytes, more than "
            f"the {step.config.group_record_bytes_max} of one record; raise group.record.max.bytes",
            Level.ERROR,
        )
        self.refused_generation = self.generation
        for member in self.members.values():
            self.clear_member_assignment(member)
            member.answer_sync(step, SyncGroupReply(ErrorCode.GROUP_MAX_SIZE_REACHED))

    def heartbeat(self, step: Step, event: Heartbeat) -> None:
        """Process a heartbeat: answer whether the member must join again, or delay the answer until there is news."""
        error = self.heartbeat_error(event)
        if error is NO_ERROR:
            if self.owes_look:
                self.rebalance_if_unowned(step)
            member = self.members[event.member_id]
            if member.connection != event.connection or member.lost:
                member.on_member_request(step, event.connection)
            self.on_member_heartbeat(step, member, event)
            member.restart_session_if_connected(step, member.session_timeout_ms)
            if self.delay_heartbeat(step, member, event):
                return
            error = self.heartbeat_error_code(step, member)
        step.reply(event.request, HeartbeatReply(error))
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.notify_if_none_awaited(step)

    def heartbeat_error(self, event: Heartbeat) -> ErrorCode:
        """Return the error for a heartbeat from an unknown member or another generation, else NONE."""
        if event.member_id not in self.members or event.instance_id is not None:
            error = self.member_request_error(event.member_id, event.instance_id)
            if error is not ErrorCode.NONE:
                return error
        return NO_ERROR if self.is_current_generation(event.generation) else ErrorCode.ILLEGAL_GENERATION

    def leave(self, step: Step, event: LeaveGroup) -> None:
        """Remove members that leave by themselves or that an administrator removes."""
        left = []
        gone = []
        before = len(self.members)
        for leaving in event.members:
            error = self.remove_leaving_member(step, leaving)
            left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
            if error is ErrorCode.NONE:
                gone.append(leaving)
        step.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(left)))
        if gone:
            self.rebalance_after_removal(step, leave_cause(gone), is_cause=len(self.members) < before)

    def remove_leaving_member(self, step: Step, leaving: LeavingMember) -> ErrorCode:
        """Remove one member that a LeaveGroup names, or an id that nobody joined with yet; return an error or NONE."""
        member_id = leaving.member_id
        if not member_id:
            found = self.static_ids.get(leaving.instance_id) if leaving.instance_id is not None else None
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id not in self.pending:
            error = self.member_request_error(member_id, leaving.instance_id)
            if error is not ErrorCode.NONE:
                return error
        step.log(self.group_id, f"member {member_id} left (reason: {leaving.reason or 'not given'})")
        self.remove_member(step, member_id)
        return ErrorCode.NONE

    def on_pending_id_expired(self, step: Step, member_id: str) -> None:
        """Drop a member id given out (KIP-394) that was not used in time or does not fit; continue the join phase."""
        if self.drop_pending_id(step, member_id):
            self.complete_if_all_joined(step)

    def build_soft_state(self, step: Step) -> None:
        """Build the soft state from the group's record; sessions restart. Source: spec 3.7.

        A generation that began and was never synchronized is over: its members, and those of the one before, join
        again.
        """
        saved = self.saved
        if saved is None:
            return
        self.protocol_type = saved.protocol_type or None
        self.protocol = saved.protocol
        self.leader = saved.leader
        for stored in saved.members:
            member = ClassicMember.from_saved(self.group_id, stored, saved.protocol or "")
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static_ids[member.instance_id] = member.member_id
            self.count_votes(member, 1)
            member.restart_session_if_connected(step, member.session_timeout_ms)
        self.subscribed = self.read_subscriptions()
        if not self.members:
            return
        self.state = self.previous_state = GroupState.STABLE
        if self.started > saved.generation:
            self.resumed_from = saved.generation
            text = f"a restart interrupted generation {self.started}"
            self.prepare_rebalance(step, Cause(RebalanceReason.COORDINATOR, text))
        elif len(self.members) > step.config.group_max_size:
            text = f"{len(self.members)} members are more than group.max.size"
            self.prepare_rebalance(step, Cause(RebalanceReason.EVICTED, text))
        else:
            self.check_static_group_after_load(step)

    # -- Classic members whose connection ended without a leave; `failure_detector` defines their grace period

    def on_connection_lost(self, step: Step, member_id: str, event: ConnectionLost) -> None:
        """Handle a lost connection: evict a member that never learned its id; start the grace period of any other."""
        self.evict_uninformed_member(step, member_id)
        member = self.members.get(member_id)
        if member is None or member.connection != event.connection:
            return
        self.handle_connection_end(
            step,
            member,
            event,
            is_static=member.instance_id is not None,
            process=member.client.process,
            interval_ms=member.session_timeout_ms // 3,
        )

    def evict_uninformed_member(self, step: Step, member_id: str) -> None:
        """Evict a new member that never learned its id: its connection ended before a reply told it.

        An unused member id (KIP-394) is dropped. Its client was no member, so no rebalance begins.
        """
        member = self.members.get(member_id)
        if member_id in self.pending:
            step.log(self.group_id, f"the connection of new member {member_id} ended")
            self.on_pending_id_expired(step, member_id)
        elif member is not None and not member.notified:
            text = f"the connection of new member {member_id} ended"
            self.evict_member(step, Cause(RebalanceReason.DISCONNECTED, text, member_id))

    def refuse_consumer(self, step: Step, event: ConsumerGroupHeartbeat) -> None:
        """Refuse a consumer heartbeat to a classic group; fence a static member that another process has replaced."""
        holder = self.static_ids.get(event.instance_id)
        if holder is not None and holder != event.member_id:
            text = (
                f"Static member {event.member_id} with instance id {event.instance_id} was fenced by member {holder}."
            )
            step.reply(event.request, ConsumerGroupHeartbeatReply(ErrorCode.FENCED_INSTANCE_ID, text))
        else:
            text = f"Group {event.group_id} is not a consumer group."
            step.reply(event.request, ConsumerGroupHeartbeatReply(ErrorCode.GROUP_ID_NOT_FOUND, text))


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
                            ClassicRebalance.on_session_end, COMPLETING, EMPTY),
        COMPLETING: reaction("the member is evicted: the others rebalance, if there are any",
                             ClassicRebalance.on_session_end, PREPARING, EMPTY),
        STABLE: reaction("the member is evicted: the others rebalance, if there are any",
                         ClassicRebalance.on_session_end, PREPARING, EMPTY),
    },
    Deadline.PENDING_MEMBER: {
        EMPTY: reaction("the member id is dropped", ClassicRequests.on_pending_id_expired),
        PREPARING: reaction("the member id is dropped, which may end the join phase",
                            ClassicRequests.on_pending_id_expired, COMPLETING, EMPTY),
        COMPLETING: reaction("the member id is dropped", ClassicRequests.on_pending_id_expired),
        STABLE: reaction("the member id is dropped", ClassicRequests.on_pending_id_expired),
    },
    Deadline.JOIN_PHASE: {
        EMPTY: _NO_JOIN_PHASE,
        PREPARING: reaction("the initial delay or the rebalance timeout is over; members that did not join are evicted",
                            ClassicRebalance.on_join_deadline, COMPLETING, EMPTY),
        COMPLETING: _NO_JOIN_PHASE,
        STABLE: _NO_JOIN_PHASE,
    },
    Deadline.SYNC_PHASE: {
        EMPTY: ignored("there is no sync phase"),
        PREPARING: ignored("there is no sync phase"),
        COMPLETING: reaction("members that did not sync are evicted",
                         ClassicRebalance.on_sync_deadline, PREPARING, EMPTY),
        STABLE: reaction("members that did not sync are evicted",
                         ClassicRebalance.on_sync_deadline, PREPARING, EMPTY),
    },
    Deadline.NOTIFICATION: {
        EMPTY: _NO_JOIN_PHASE,
        PREPARING: reaction("the members are notified of the rebalance", ClassicNotification.on_notification_deadline),
        COMPLETING: _NO_JOIN_PHASE,
        STABLE: _NO_JOIN_PHASE,
    },
    TopicsChanged: {
        EMPTY: ignored("the group has no members"),
        PREPARING: ignored("the leader assigns the topics as they are after the rebalance"),
        COMPLETING: ignored("the leader assigns the topics as they are"),
        STABLE: reaction("topics changed that a static leader may miss: a rebalance begins",
                         ClassicRebalance.on_topics_changed, PREPARING, COMPLETING),
    },
}  # fmt: skip
"""The transitions of a classic group: an entry for each event in each state."""


class ClassicGroup(ClassicRequests):
    """A group under the classic protocol, or one that only holds offsets."""

    name: ClassVar[str] = GroupType.CLASSIC
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return the protocol type of the members, for ListGroups; empty until a first member has joined."""
        return self.protocol_type or ""

    # -- Permission to commit in a classic group. Source: spec 1.1, KIP-447

    def commit_error(self, step: Step, event: OffsetCommit) -> ErrorCode:
        """Return the error that refuses a commit of a member, or of a client without group management, else NONE."""
        generation, is_empty = event.generation, self.state is EMPTY
        if generation < 0 and is_empty:
            return NO_ERROR
        if generation < 0 and not event.member_id and event.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if event.member_id not in self.members or event.instance_id is not None:
            error = self.member_request_error(event.member_id, event.instance_id)
            if error is not NO_ERROR:
                return error
        if not self.is_current_generation(generation):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is COMPLETING or (self.awaiting_join and self.has_revoked_to_join(event)):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NO_ERROR

    def transactional_commit_error(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Return the error that refuses a transactional commit, else NONE. A producer may omit the member."""
        if event.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if event.generation < 0 and not event.member_id and event.instance_id is None:
            return ErrorCode.NONE
        error = self.member_request_error(event.member_id, event.instance_id)
        if error is ErrorCode.NONE and not self.is_current_generation(event.generation):
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def has_revoked_to_join(self, event: OffsetCommit) -> bool:
        """Return whether an eager member commits while its JoinGroup waits: by then it has revoked its partitions.

        Kafka processes a connection's requests one after the other. It would see such a commit after the rebalance, and
        refuse it. Here, a process that was paused while it joined must not overwrite what the next owners commit.
        """
        member = self.members.get(event.member_id)
        if member is None or member.join_request is None or event.connection == NO_CONNECTION:
            return False
        return event.connection == member.connection and COOPERATIVE not in (self.protocol or "")

    def on_offsets_committed(self, step: Step, event: OffsetCommit) -> None:
        """Restart a member's session after its accepted OffsetCommit, which counts as a sign of life."""
        member = self.members.get(event.member_id)
        if member is not None and self.state is not COMPLETING:
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
