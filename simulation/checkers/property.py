"""The base of checkers, and their view of the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects
from kohort.groups.events import Heartbeat, OffsetCommit, OffsetFetch
from kohort.groups.machine import GroupMachine
from kohort.groups.records import Record
from kohort.ids import TopicId, TopicPartition
from simulation.checkers.journal_model import JournalModel
from simulation.harness.server import Waiting
from simulation.harness.world import World

QUIET: frozenset[type] = frozenset({Heartbeat, OffsetCommit, OffsetFetch})
"""Event types that most requests have: no member or group appears, changes or ends by them, except that a commit may
create a group.
"""


class ViolatedError(Exception):
    """A violated property."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Holder(Protocol):
    """A client as the checkers see it.

    Attributes:
        keeps_its_id: it rejoins under the same member id when its group has forgotten it, as Kafka's client does under
            the consumer protocol.
    """

    keeps_its_id: bool
    name: str
    member_id: str
    held: frozenset[TopicPartition]
    dead: bool
    stable: bool
    started_ms: int

    @property
    def group_id(self) -> str:
        """The member's group."""

    @property
    def instance_id(self) -> str | None:
        """The member's static id."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the member reads."""

    def owns(self, partition: TopicPartition) -> bool:
        """Return whether the client believes that it owns a partition, and would process its records now."""

    def topic_of(self, partition: TopicPartition) -> TopicId:
        """Return the topic id that the partition's topic had when this partition was assigned."""


def is_one(member: Holder, other: Holder) -> bool:
    """Return whether two processes are one member to the coordinator: they share an instance id or a member id."""
    if member.instance_id is not None:
        return other.instance_id == member.instance_id
    return bool(member.member_id) and other.member_id == member.member_id


class Checker:
    """The base of a checker of one property; subclasses override the hooks that they need.

    Attributes:
        skips: event types for which `on_stepped` has nothing to check.
        journal: the journal's model; during `on_stepped` still without the step's records.
        newest_offset: returns the last offset that any client commits, or is about to commit: all differ, and grow.
    """

    skips: frozenset[type] = frozenset()
    journal: JournalModel
    newest_offset: Callable[[], int]

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        self.world = world
        self.members = members
        self.config = config
        self.chance = world.stream(type(self).__name__)

    def fail(self, text: str) -> None:
        """Raise `ViolatedError`: the property does not hold."""
        raise ViolatedError(type(self).__name__, text)

    def on_hold(self, member: Holder) -> None:
        """Check a client whose owned partitions have changed, or whose expired session was renewed."""

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        """Check the effects of an event that the coordinator has handled; `event` None: it has just loaded."""

    def on_released(self, event: Any, value: Any) -> None:
        """Check a reply at the moment at which it leaves the coordinator."""

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """Check a reply to a request of time `came_ms`, by a coordinator that was replaced at time `since_ms`."""

    def on_journal(self, records: list[Record]) -> None:
        """Check the records that one of several coordinators has loaded, which stay in the journal."""

    def on_coordination(self, coordinators: Any, zookeeper: Any, *, at_end: bool) -> None:
        """Check several coordinators against the nodes in their ZooKeeper, from time to time and at the end."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        """Check the error code of a request that a shard rejects in this phase, or because its queue is full."""

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """Check the state when the records of all steps so far are on disk and their replies have left."""

    def on_replayed(self, machine: GroupMachine) -> None:
        """Check the state machine after the coordinator has replayed its journal."""

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        """Check the soft state that the coordinator has built after the replay, before it serves."""

    def on_worked(self, work: Any, event: Any) -> None:
        """Take note of an event from background work; the coordinator that gets it may not be the one that asked."""

    def on_deleted(self, topic: str) -> None:
        """Take note of a topic's deletion, of which the coordinator is about to learn."""

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        """Check the final state, long after the faults have ended."""
