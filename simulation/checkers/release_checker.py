"""A checker of members evicted for silence: they must have stopped processing before."""

from __future__ import annotations

from typing import Any

from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects
from kohort.groups.events import ConnectionLost, ConsumerGroupHeartbeat, JoinGroup, LeaveGroup, TimersDue
from kohort.groups.machine import GroupMachine
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

MOVES = frozenset((ConnectionLost, ConsumerGroupHeartbeat, JoinGroup, LeaveGroup, TimersDue))
"""Events that can change who is in a group."""
SILENT = (ConnectionLost, TimersDue)
"""Events that evict members which have sent nothing."""


class ReleaseChecker(Checker):
    """A member evicted for silence has stopped before, by its own clock, even if no other member takes its partitions.

    A process that has ended, or is stopped, owns nothing. Silence is measured by a session and a lease. Both sides
    count them, on their own clocks and with delayed messages.
    """

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._machine: GroupMachine | None = None
        self._places: set[tuple[str, str]] = set()

    def on_replayed(self, machine: GroupMachine) -> None:
        self._machine = machine
        self._places = self._taken()

    def _taken(self) -> set[tuple[str, str]]:
        """Return every member of every group."""
        if self._machine is None:
            return set()
        return {
            (group_id, member_id)
            for group_id, group in self._machine.context.ledger.groups.items()
            for member_id, _, _ in group.membership.member_connections()
        }

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if event is not None and type(event) not in MOVES:
            return
        before, self._places = self._places, self._taken()
        if type(event) not in SILENT:
            return
        gone = before - self._places
        for member in self.members if gone else ():
            if (member.group_id, member.member_id) not in gone or self._is_shared(member):
                continue
            owned = sorted(str(partition) for partition in member.held if member.owns(partition))
            if owned:
                self.fail(f"{member.name} was evicted while it works on {', '.join(owned)}")

    def _is_shared(self, member: Holder) -> bool:
        """Return whether another process has the same member id: it is unknown which of the two is the member."""
        mine = (member.group_id, member.member_id)
        return any(other is not member and (other.group_id, other.member_id) == mine for other in self.members)
