"""Changes of a consumer group's membership, for members of either protocol: heard, away, replaced, and removed."""

from __future__ import annotations

from dataclasses import replace

from kohort.errors import ErrorCode
from kohort.groups.admission import Refusal
from kohort.groups.consumer.members import Presence
from kohort.groups.consumer.reconcile import ConsumerReconciliation
from kohort.groups.effects import JoinGroupReply
from kohort.groups.events import ConsumerGroupHeartbeat
from kohort.groups.pairs import pack
from kohort.groups.records import Kind, TargetAssigned, Tombstone
from kohort.groups.step import Step


class ConsumerMemberChanges(ConsumerReconciliation):
    """How members of a consumer group are heard, replaced and removed, and their requests refused."""

    def log_fenced(self, step: Step, event: ConsumerGroupHeartbeat, refusal: Refusal) -> None:
        """Log that a member was fenced by its epoch, once until it is heard again."""
        presence = self.presences.get(event.member_id)
        if presence is None or presence.fenced or refusal.error is not ErrorCode.FENCED_MEMBER_EPOCH:
            return
        presence.fenced = True
        current, seen = self.current_assignment(event.member_id), self.member_last_seen(step, event.member_id)
        step.log(
            event.group_id,
            f"member {event.member_id} fenced: it sent epoch {event.member_epoch}, its epoch is "
            f"{current.member_epoch}, the previous one was {current.previous_epoch} ({seen})",
        )

    def member_last_seen(self, step: Step, member_id: str) -> str:
        """Describe for the log who a member is, when it was last heard, and whether its connection ended."""
        member = self.members[member_id]
        return self.presences[member_id].last_seen(step, member.client_id, member.client_host)

    def member_heard(self, step: Step, member_id: str, connection: int) -> Presence:
        """Record a request of a member: bind it to its connection and restart its session."""
        presence = self.presence(member_id)
        if presence.connection != connection:
            presence.bind(step, connection)
        presence.gone_ms = None
        self.restart_session(step, presence, member_id)
        return presence

    def restart_session(self, step: Step, presence: Presence, member_id: str) -> None:
        """Restart a member's session after a request on any connection."""
        presence.alive(step, self.session_timeout_ms(step, member_id))

    def touch_session(self, step: Step, presence: Presence, member_id: str) -> None:
        """Restart a member's session after a sign of life or a wait, unless its connection has ended."""
        presence.touch(step, self.session_timeout_ms(step, member_id))

    def leave_temporarily(self, step: Step, member_id: str) -> None:
        """Write the temporary leave of a static member, which keeps its partitions for the rest of its session.

        Its waiting requests are refused: a later answer would move the member on, back into the group.
        """
        presence = self.presence(member_id)
        presence.expect_nothing()
        gone = Refusal(ErrorCode.FENCED_MEMBER_EPOCH, f"Member {member_id} has left the group for a while.")
        self.refuse_waiting(step, presence, gone)
        step.emit(self.current_assignment(member_id).away().record(self.group_id, member_id))

    def member_changed_protocol(self, step: Step, presence: Presence, member_id: str) -> None:
        """Refuse a member's waiting requests and stop its timers, because it speaks another protocol from now on."""
        presence.expect_nothing()
        elsewhere = Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks another protocol.")
        self.refuse_waiting(step, presence, elsewhere)

    def rejoin_member(self, step: Step, member_id: str) -> None:
        """Let a member that had left temporarily take its place again."""
        current = self.current_assignment(member_id)
        if current.is_away:
            step.emit(current.afresh().record(self.group_id, member_id))

    def replace_member(self, step: Step, old_id: str, new_id: str) -> None:
        """Write that a static member continues under a new id, with the partitions of the old one."""
        old, target = self.members[old_id], self.targets.get(old_id)
        before = self.current_assignment(old_id)
        if old_id in self.excluded:
            self.excluded[new_id] = None
        self.dismiss_member(step, old_id, ErrorCode.FENCED_INSTANCE_ID)
        self.remove_member(step, old_id)
        step.emit(replace(old, member_id=new_id))
        if target is not None:
            step.emit(TargetAssigned(self.group_id, new_id, pack(target)))
        step.emit(before.afresh().record(self.group_id, new_id))

    def remove_member(self, step: Step, member_id: str) -> None:
        """Write that a member is gone."""
        self.dismiss_member(step, member_id)
        self.excluded.pop(member_id, None)
        if member_id in self.current:
            self.record_downtime(step, self.current[member_id].assigned, frozenset())
            step.emit(Tombstone((Kind.CURRENT, self.group_id, member_id)))
        if member_id in self.targets:
            step.emit(Tombstone((Kind.TARGET, self.group_id, member_id)))
        step.emit(Tombstone((Kind.MEMBER, self.group_id, member_id)))

    def dismiss_member(self, step: Step, member_id: str, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Stop a member's timers and refuse its waiting requests."""
        presence = self.presences.pop(member_id, None)
        if presence is not None:
            presence.cancel()
            presence.unbind(step)
            self.refuse_waiting(step, presence, Refusal(error, f"Member {member_id} was removed."))

    def refuse_waiting(self, step: Step, presence: Presence, refusal: Refusal) -> None:
        """Refuse all waiting requests of a member: it was removed or replaced."""
        if presence.waiting is not None:
            refusal.answer(step, presence.waiting)
        self.cancel_long_poll(step, presence, *refusal)
        if presence.joining is not None:
            is_new = refusal.error is ErrorCode.FENCED_MEMBER_EPOCH  # a code that classic clients do not know
            error = ErrorCode.UNKNOWN_MEMBER_ID if is_new else refusal.error
            step.reply(presence.joining.request, JoinGroupReply(error))
        presence.waiting = presence.joining = None
