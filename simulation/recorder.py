"""Writes down every change of a group's or member's state that a run goes through."""

from __future__ import annotations

from typing import Any

from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import Now, Outcome
from kohort.groups.group import Group
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup
from kohort.groups.transitions import CLASSIC, CONSUMER, NONE, PUSH

Seen = tuple[str, str, str]
"""State, event, next state."""
States = dict[Any, tuple[str, str]]


def kind_of(group: Group) -> str:
    """Which protocol it speaks, as the tables name it."""
    if group.under(PushGroup) is not None:
        return PUSH
    return CLASSIC if group.under(ConsumerGroup) is None else CONSUMER


class RecordingMachine(GroupMachine):
    """The real one, with its transitions kept.

    Attributes:
        seen: by kind of group ("classic group", "consumer group", "push group") or "member".
    """

    seen: dict[str, set[Seen]]

    def step(self, event: Any, now: Now) -> Outcome:
        """Step as the real machine does, and record the transitions."""
        named = getattr(event, "group_id", None)
        groups, members = self._groups(named), self._members(named)
        outcome = super().step(event, now)
        self._compare(type(event).__name__, groups, self._groups(named))
        after = self._members(named)
        for key in members.keys() | after.keys():
            state, to = members.get(key, NONE), after.get(key, NONE)
            if state != to and self._is_consumer(key[0]):
                self.seen["member"].add((state, type(event).__name__, to))
        return outcome

    def _concerned(self, named: str | None) -> list[Group]:
        """The group that an event names, or all."""
        groups = self.context.ledger.groups
        if named is None:
            return list(groups.values())
        group = groups.get(named)
        return [] if group is None else [group]

    def _is_consumer(self, group_id: str) -> bool:
        group = self.context.find(group_id)
        return group is not None and group.under(ConsumerGroup) is not None

    def _groups(self, named: str | None) -> States:
        return {group.group_id: (kind_of(group), str(group.state())) for group in self._concerned(named)}

    def _members(self, named: str | None) -> dict[tuple[str, str], str]:
        return {
            (group.group_id, member_id): consumer.current_assignment(member_id).state.name
            for group in self._concerned(named)
            if (consumer := group.under(ConsumerGroup)) is not None
            for member_id in consumer.members
        }

    def _compare(self, event: str, before: States, after: States) -> None:
        for group_id in before.keys() | after.keys():
            one, other = before.get(group_id), after.get(group_id)
            if one == other:
                continue
            kind = (one or other or ("", ""))[0]
            state = NONE if one is None else one[1]
            to = NONE if other is None else other[1] if other[0] == kind else other[0]
            self.seen[kind].add((state, event, to))
