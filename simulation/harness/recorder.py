"""Records all state transitions of groups, and of members of consumer groups, during a run."""

from __future__ import annotations

from typing import Any

from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.group import Group
from kohort.groups.machine import GroupMachine
from kohort.groups.table import Table, Trigger
from kohort.groups.timers import Deadline

MEMBER = "member"
Seen = tuple[str, str, str]
"""State, trigger, next state."""


def trigger_name(trigger: Trigger) -> str:
    """Return the name of an event, or of a timer."""
    return f"timer {trigger.name}" if isinstance(trigger, Deadline) else trigger.__name__


def transitions(table: Table) -> set[Seen]:
    """Return the transitions that a group's table allows."""
    return {
        (state, trigger_name(trigger), str(to))
        for trigger, reactions in table.items()
        for state, entry in reactions.items()
        for to in entry.to
    }


def member_states(group: Group) -> dict[str, str]:
    """Return the state of each member of a consumer group."""
    consumer = group.membership_as(ConsumerGroup)
    if consumer is None:
        return {}
    return {member_id: consumer.current_assignment(member_id).state.name for member_id in consumer.members}


class RecordingContext(Context):
    """The state of a shard, which records what groups do with events.

    Attributes:
        seen: transitions by the name of a protocol, or `MEMBER`.
    """

    seen: dict[str, set[Seen]]

    def handle_event(self, group: Group, trigger: Trigger, *arguments: Any) -> None:
        """Let a group handle an event, and record the transition."""
        membership = group.membership
        before, members = membership.group_state(), member_states(group)
        super().handle_event(group, trigger, *arguments)
        after = membership.group_state() if group.membership is membership else group.membership.name
        if after != before:
            self.seen[membership.name].add((before, trigger_name(trigger), after))
        for member_id, state in member_states(group).items():
            if members.get(member_id, state) != state:
                self.seen[MEMBER].add((members[member_id], "", state))


class RecordingMachine(GroupMachine):
    """A machine whose transitions are recorded."""

    seen: dict[str, set[Seen]]

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self.context.__class__ = type("Recording", (RecordingContext,), {"seen": self.seen})
