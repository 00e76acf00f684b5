"""Suspected members of a consumer group: the group does not wait for them.

A member that is overdue may be dead, which only its session timeout shows. Until then it keeps its partitions. But a
target that revokes some of them or adds others would leave other members waiting and partitions unread. So a target is
computed without the members that are silent at that moment. They keep their partitions, and the others share the rest.
If a member falls silent before it has moved, the group gets a new target. When the member is heard again or evicted,
the next target is balanced again.

`failure_detector` decides which members are silent, by `DETECTOR_SETTINGS`. A static member is also silent while it
has left temporarily.

This works only with the assignor `uniform`. The assignor `range` keeps partitions of the same number together, which
needs every member.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kohort.groups.consumer.members import Presence
from kohort.groups.consumer.membership import ConsumerMemberChanges
from kohort.groups.failure_detector import DetectorSettings
from kohort.groups.pairs import Pairs
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer

SLACK_MS = 500
"""The tolerated delay of a heartbeat beside half its interval, and the time that a client needs to reconnect."""
DETECTOR_SETTINGS = DetectorSettings(
    any_sign=True, late_percent=50, late_ms=SLACK_MS, reconnect_ms=SLACK_MS, forgives_disconnect=True
)
"""The failure detector's parameters for consumer groups.

A false suspicion moves partitions twice: away from the member and back. So members get time, and every request counts.
Heartbeats of members that closed a connection during a delay are still delayed. The length of the delay was measured
with their client (`client_quirks`) or follows from the interval that the member was told. Without delays some clients
would send several heartbeats a second, because they were told a short interval.
"""
ASSIGNOR = "uniform"


class ConsumerSuspicion(ConsumerMemberChanges):
    """Which members of a consumer group are suspected, and what follows for its targets."""

    detector: ClassVar[DetectorSettings] = DETECTOR_SETTINGS

    def find_member(self, member_id: str) -> Presence | None:
        """Return a member's soft state; None if the id is unknown."""
        return self.presences.get(member_id)

    def member_session_ms(self, step: Step, member: Presence) -> int:
        """Return a member's session timeout."""
        return self.session_timeout_ms(step, member.session.subject)

    def usual_interval_ms(self, step: Step) -> int:
        """Return the heartbeat interval of settled members."""
        return self.heartbeat_interval_ms(step)

    def member_silent_from_ms(self, step: Step, member_id: str) -> int | None:
        """Return when a member counts as silent unless it is heard before.

        None for a member of the classic protocol: a new target does not affect it before it joins again.
        """
        if self.members[member_id].classic_protocols is not None:
            return None
        if self.current_assignment(member_id).is_away:
            return step.now.mono_ms
        presence = self.presences.get(member_id)
        return None if presence is None else self.silent_from_ms(step, presence)

    def is_member_silent(self, step: Step, member_id: str) -> bool:
        """Return whether a member counts as silent now."""
        from_ms = self.member_silent_from_ms(step, member_id)
        return from_ms is not None and from_ms <= step.now.mono_ms

    def excludes_suspected(self, step: Step) -> bool:
        """Return whether targets may be computed without some of the members."""
        return step.config.notify_at_once != "off" and self.preferred_assignor(step) == ASSIGNOR

    def exclude_suspected(self, step: Step) -> dict[str, Pairs]:
        """Choose the silent members to exclude from the next target, with their partitions; none if all are silent."""
        self.excluded.clear()
        silent = self.silent_among(step, self.members) if self.excludes_suspected(step) else []
        self.excluded.update(dict.fromkeys(silent))
        current = {member_id: self.current_assignment(member_id) for member_id in silent}
        return {member_id: assignment.assigned | assignment.pending for member_id, assignment in current.items()}

    def silent_among(self, step: Step, candidates: Iterable[str]) -> list[str]:
        """Return the silent ones of some members; none if every member of the group is silent."""
        if all(self.is_member_silent(step, member_id) for member_id in self.members):
            return []
        return [member_id for member_id in candidates if self.is_member_silent(step, member_id)]

    def clear_suspicion(self, step: Step, member_id: str) -> bool:
        """Take a member back that is heard again; return whether the target excluded it and a new one is needed."""
        if member_id not in self.excluded:
            return False
        del self.excluded[member_id]
        presence = self.presences.get(member_id)
        if presence is not None:
            presence.was_not_silent(step)
        return True

    def watch_unmoved(self, step: Step) -> None:
        """Schedule a check of the new target: when the first member that has to move would be silent."""
        if not self.excludes_suspected(step):
            return
        due = [self.member_silent_from_ms(step, member_id) for member_id in self.unmoved_members()]
        first_ms = min((due_ms for due_ms in due if due_ms is not None), default=None)
        if first_ms is not None:
            if self.watch is None:
                self.watch = Timer(Deadline.SILENCE, self.group_id)
            step.deadlines.set(self.watch, max(first_ms, step.now.mono_ms + SLACK_MS))

    def unmoved_members(self) -> list[str]:
        """Return the members that the target includes and that do not have it yet."""
        return [
            member_id
            for member_id in self.members
            if member_id not in self.excluded and not self.has_its_target(member_id)
        ]

    def has_its_target(self, member_id: str) -> bool:
        current = self.current.get(member_id)
        target = self.targets.get(member_id)
        return not target if current is None else not current.pending and current.assigned == (target or frozenset())

    def has_unassigned_partitions(self, step: Step) -> bool:
        """Return whether no target holds some partitions of subscribed topics, as only silent members had read them.

        For a coordinator that takes over; `is_uneven` explains why.
        """
        if not self.excludes_suspected(step):
            return False
        given = {pair for member_id in self.members for pair in self.targets.get(member_id, ())}
        topics = (step.image.topics.get(name) for name in self.subscribed())
        return any((topic.id, number) not in given for topic in topics if topic for number in range(topic.partitions))

    def is_uneven(self, step: Step) -> bool:
        """Return whether shares differ by more than one although all members read the same topics.

        Such a target excluded silent members. No record names them, so a coordinator that takes over checks this.
        """
        if not self.excludes_suspected(step) or len({self.topics_of(reader) for reader in self.members.values()}) != 1:
            return False
        shares = [len(self.targets.get(member_id, frozenset())) for member_id in self.members]
        return max(shares) - min(shares) > 1
