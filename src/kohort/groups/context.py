"""The state of one shard, which the machine's handlers share: its groups, and the step under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kohort.groups import admission
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Level
from kohort.groups.events import JoinGroup
from kohort.groups.group import REFUSED, Group, GroupMembership
from kohort.groups.imports import PROCEED, Imports, Verdict
from kohort.groups.ledger import Ledger
from kohort.groups.records import GroupSaved, OffsetCommitted, Record, Tombstone
from kohort.groups.step import Step
from kohort.groups.table import Trigger, UnexpectedTransitionError
from kohort.groups.timers import Deadline, Timer

Downgrade: TypeAlias = "Callable[[Context, str, str | None, tuple[JoinGroup, str] | None], bool]"
"""The conversion of a consumer group to a classic one, which stands above the protocols."""


class Context(Step):
    """The state of one shard and its current step.

    Attributes:
        ledger: the hard state.
        downgrade: the conversion of a consumer group to a classic one (`migration.conversion`).
        imports: the groups whose earlier coordinator is being asked.
        expiring: groups that the current offset expiration has still to look at.
    """

    def __init__(self, config: GroupConfig, protocols: Sequence[type[GroupMembership]], downgrade: Downgrade) -> None:
        super().__init__(config)
        self.ledger = Ledger(protocols)
        self.imports = Imports()
        self.expiring: list[str] = []
        self.expiry = Timer(Deadline.EXPIRY)
        self.downgrade = downgrade

    def emit(self, record: Record) -> None:
        """Apply a record to the hard state now, and append it with the step's effects."""
        self.ledger.apply(record)
        self.effects.records.append(record)

    def offsets_of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitted]:
        """Return the committed offsets of an existing group, by topic and partition."""
        return self.ledger.groups[group_id].offsets

    def turn_classic(
        self, group_id: str, leaving: str | None = None, joining: tuple[JoinGroup, str] | None = None
    ) -> bool:
        """Convert a consumer group to a classic one if only classic members are left and the policy permits it."""
        return self.downgrade(self, group_id, leaving, joining)

    def mark_changed(self, group_id: str) -> None:
        """Mark a published group as changed, because soft state that it shows has changed."""
        self.ledger.mark_changed(self.ledger.groups[group_id].membership)

    def find(self, group_id: str) -> Group | None:
        """Return a group; None if there is none."""
        return self.ledger.groups.get(group_id)

    def react(self, group: Group, trigger: Trigger, *arguments: Any) -> None:
        """Let a group handle an event, by its table.

        Raises:
            UnexpectedTransitionError: the handler led to a state that the table does not name.
        """
        membership = group.membership
        reactions = membership.table.get(trigger)
        if reactions is None:
            refuse = REFUSED.get(trigger)
            if refuse is not None:
                refuse(membership, self, *arguments)
            return
        before = membership.group_state()
        entry = reactions[before]
        if entry.do is None:
            return
        entry.do(membership, self, *arguments)
        after = membership.group_state() if group.membership is membership else group.membership.name
        if after is not before and after not in entry.to:
            raise UnexpectedTransitionError(f"{group.group_id}: {trigger} led from {before} to {after}")

    def remove(self, group: Group) -> None:
        """Write tombstones for all records of a group's membership; its offsets stay."""
        for key in list(group.membership.tombstones()):
            self.emit(Tombstone(key))

    def admit_group(self, group_id: str) -> Verdict:
        """Return whether a missing group may be created or reported as empty; start an import if that is unknown."""
        if self.config.group_import == "off" or group_id in self.ledger.imported:
            return PROCEED
        return self.imports.admit(self, group_id)

    def has_room(self) -> bool:
        """Return whether the shard may have another group."""
        return admission.check_group(self.config, len(self.ledger.groups))

    def create(self, group_id: str) -> Group | None:
        """Create an empty group with its record; None if the shard holds `group.coordinator.max.groups` already."""
        if not self.has_room():
            self.log(group_id, f"refused: there are {self.config.groups_max} groups already", Level.WARNING)
            return None
        self.emit(GroupSaved(group_id, "", 0, None, None, self.now.wall_ms, ()))
        return self.ledger.groups[group_id]
