"""Registration of push consumers: they join, return, and leave. Source: spec 4.4, 4.12.

| a registration of | what happens |
|---|---|
| a new id | it becomes a member, and a rebalance follows |
| the id of a member whose connection has ended, or that the journal knows | it continues with its partitions |
| the id of a member whose connection seems open | that one is pinged; if it answers, the registration is refused |

A consumer is evicted when its session times out or the process that it registered from has ended. It may also leave
(LeaveGroup, which kohort's own clients send). The end of a connection alone shows nothing: the consumer may work on.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.effects import LeaveGroupReply, LeftMember, Level, RegisterConsumerReply
from kohort.groups.events import ConnectionLost, LeaveGroup, LeavingMember, RegisterConsumer
from kohort.groups.push.members import PushMember
from kohort.groups.push.rebalance import PushRebalance
from kohort.groups.push.requests import first_ping_ms
from kohort.groups.records import Kind, PushGroupSaved, PushMemberSaved, Tombstone
from kohort.groups.step import Step


def saved_of(event: RegisterConsumer) -> PushMemberSaved:
    """Return a registration as its record."""
    return PushMemberSaved(
        group_id=event.group_id,
        member_id=event.member_id,
        client_id=event.client.id,
        client_host=event.client.host,
        topics=tuple(sorted(event.topics.items())),
        regex=event.regex,
        excluding=event.excluding,
        streams=event.streams,
        auto_commit=event.auto_commit,
        from_begin=event.from_begin,
        session_timeout_ms=event.session_timeout_ms,
    )


class PushRegistry(PushRebalance):
    """The members of a push group as they join, return, leave, and are evicted."""

    def register(self, step: Step, event: RegisterConsumer) -> None:
        """Process a registration that admission let pass."""
        member = self.present.get(event.member_id)
        if member is None:
            self.add_member(step, event)
        elif member.is_gone:
            self.rejoin_member(step, member, event)
        elif member.claim is not None:
            step.reply(event.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))
        else:
            member.claim = event
            step.remember_connection(event.connection, event.group_id, event.member_id)
            if member.asked is None:
                self.advance_member(step, event.member_id)

    def add_member(self, step: Step, event: RegisterConsumer) -> None:
        """Add a new member."""
        error = admission.check_place(step.config.group_max_size, len(self.members))
        if error is not ErrorCode.NONE:
            step.reply(event.request, RegisterConsumerReply(error))
            return
        if not self.members:
            step.emit(PushGroupSaved(self.group_id, -1))
        step.emit(saved_of(event))
        member = self.present[event.member_id] = PushMember(self.group_id, event.member_id)
        member.stopped = True
        self.bind_connection(step, member, event)
        step.run(member.ping, first_ping_ms(self.members[event.member_id]))
        self.request_rebalance(step, f"member {event.member_id} joined")

    def bind_connection(self, step: Step, member: PushMember, event: RegisterConsumer) -> None:
        """Bind a member to the connection that it registered on, and restart its session."""
        member.bind(step, event.connection)
        member.process = event.client.process
        member.alive(step, self.session_bound_ms(step, self.members[event.member_id]))
        step.reply(event.request, RegisterConsumerReply(ErrorCode.NONE))

    def rejoin_member(self, step: Step, member: PushMember, event: RegisterConsumer) -> None:
        """Take back a member that registers again: ping it, then start it with its partitions, unless they change."""
        saved = saved_of(event)
        before = self.members[event.member_id]
        if saved != before:
            step.emit(saved)
        member.asked, member.out, member.told = None, 0, None
        member.stopped = member.ending = False
        member.back = True
        member.refusals = 0
        self.bind_connection(step, member, event)
        partitions = len(self.owned_by(event.member_id))
        step.log(self.group_id, f"member {event.member_id} registered again with {partitions} partitions")
        if (saved.topics, saved.regex, saved.excluding, saved.streams) != (
            before.topics,
            before.regex,
            before.excluding,
            before.streams,
        ):
            self.request_rebalance(step, f"member {event.member_id} reads other topics")
        self.advance_member(step, event.member_id)

    def refuse_conflicting(self, step: Step, member: PushMember) -> None:
        """Refuse a conflicting registration, because the member is alive."""
        claim, member.claim = member.claim, None
        if claim is not None:
            if claim.connection != member.connection:
                step.forget_connection(claim.connection, claim.group_id, claim.member_id)
            step.reply(claim.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))

    def replace_unanswering(self, step: Step, member: PushMember) -> None:
        """Disconnect a member that did not answer, in favour of the conflicting registration."""
        self.disconnect_member(
            step, member, f"member {member.session.subject} disconnected: no answer, and its id registered again"
        )

    def disconnect_member(self, step: Step, member: PushMember, why: str) -> None:
        """End a member's connection; its session runs on."""
        step.log(self.group_id, why, Level.WARNING)
        self.close_connection(step, member, why)
        member.unbind(step)
        self.mark_disconnected(step, member)

    def mark_disconnected(self, step: Step, member: PushMember) -> None:
        """Mark a member as unreachable; a conflicting registration takes its place."""
        member.gone_ms = step.now.mono_ms
        member.asked, member.out, member.finding = None, 0, -1
        member.ping.cancel()
        claim, member.claim = member.claim, None
        if claim is not None:
            self.rejoin_member(step, member, claim)

    def on_connection_lost(self, step: Step, member_id: str, event: ConnectionLost) -> None:
        """Handle the end of a connection: evict the member if its process has ended, else let its session run."""
        member = self.present.get(member_id)
        if member is None:
            return
        if member.claim is not None and member.claim.connection == event.connection:
            member.claim = None
        elif member.connection == event.connection and not member.is_gone:
            self.mark_disconnected(step, member)
            is_dead = event.ended != "" and event.ended == member.process
            if is_dead and self.present[member_id].is_gone:
                self.evict_member(step, member_id, f"member {member_id} evicted: its process has ended")

    def on_session_end(self, step: Step, member_id: str) -> None:
        """Evict a member that has answered nothing for its whole session and so has stopped by its own clock."""
        member = self.present[member_id]
        saved = self.members[member_id]
        seen = member.last_seen(step, saved.client_id, saved.client_host)
        self.evict_member(step, member_id, f"member {member_id} evicted: session timed out ({seen})")

    def leave(self, step: Step, event: LeaveGroup) -> None:
        """Remove members that leave or that an administrator removes: they read nothing more, or are said not to."""
        left = tuple(self.remove_member(step, leaving) for leaving in event.members)
        step.reply(event.request, LeaveGroupReply(ErrorCode.NONE, left))

    def remove_member(self, step: Step, leaving: LeavingMember) -> LeftMember:
        """Remove one member."""
        if leaving.member_id not in self.members:
            return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.evict_member(
            step, leaving.member_id, f"member {leaving.member_id} left (reason: {leaving.reason or 'not given'})"
        )
        return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.NONE)

    def evict_member(self, step: Step, member_id: str, why: str) -> None:
        """Remove a member: free its partitions, end its connection, and rebalance."""
        step.log(self.group_id, why)
        member = self.present[member_id]
        self.close_connection(step, member, why)
        member.session.cancel()
        member.ping.cancel()
        claim, member.claim = member.claim, None
        del self.present[member_id]
        self.moved(member_id)
        self.release_partitions(step, member_id)
        step.emit(Tombstone((Kind.PUSH_MEMBER, self.group_id, member_id)))
        member.unbind(step)
        if not self.members:
            step.emit(PushGroupSaved(self.group_id, step.now.wall_ms))
        self.request_rebalance(step, why)
        self.continue_attempt(step)
        if claim is not None:
            step.forget_connection(claim.connection, claim.group_id, claim.member_id)
            self.register(step, claim)

    def load(self, step: Step) -> None:
        """Wait for each member for one session after a replay, and rebalance."""
        self.loaded = True
        for member_id, saved in self.members.items():
            member = self.present[member_id] = PushMember(self.group_id, member_id)
            member.alive(step, self.session_bound_ms(step, saved))
            member.gone_ms = step.now.mono_ms
        if self.members:
            self.request_rebalance(step, "the shard was loaded")
