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
from simulation.harness.world import World

QUIET: frozenset[type] = frozenset({Heartbeat, OffsetCommit, OffsetFetch})
"""Most requests are such: no member or group comes, moves or ends by them, except a group that begins with a commit."""
Waiting = Mapping[int, tuple[Any, Any, int]]


class ViolatedError(Exception):
    """A property does not hold."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Holder(Protocol):
    """A client as the checkers see it.

    Attributes:
        keeps_its_id: it joins under the same member id when its group has forgotten it, as Kafka's client does under
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
        """Whether it would process this partition now."""

    def topic_of(self, partition: TopicPartition) -> TopicId:
        """The id that the topic had when this partition was taken: of another topic of that name it is not."""


def is_one(member: Holder, other: Holder) -> bool:
    """Whether two processes have one instance id, or one member id."""
    if member.instance_id is not None:
        return other.instance_id == member.instance_id
    return bool(member.member_id) and other.member_id == member.member_id


class Checker:
    """One property; the hooks it needs are overridden.

    Attributes:
        skips: kinds of events after which `on_stepped` has nothing to look at.
        journal: what the journal says; while a step is looked at, what it said before.
        newest_offset: the last offset that anyone commits, or is about to: all are different, and grow.
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
        """The property does not hold."""
        raise ViolatedError(type(self).__name__, text)

    def on_hold(self, member: Holder) -> None:
        """A client holds something new, or its session goes on after it had ended."""

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        """The coordinator took in an event; None: it has loaded."""

    def on_released(self, event: Any, value: Any) -> None:
        """A reply goes out."""

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """A reply goes out to a request that came then, from a coordinator that was overtaken at a time before."""

    def on_journal(self, records: list[Record]) -> None:
        """A coordinator of several has loaded: so much is in its journal for good."""

    def on_coordination(self, coordinators: Any, zookeeper: Any, *, at_end: bool) -> None:
        """Now and then, and at the end: several coordinators, and where they find each other."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        """A request is refused as a whole: by a shard in this phase, or one that is full."""

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """All that was stepped is on disk, and its replies are out."""

    def on_replayed(self, machine: GroupMachine) -> None:
        """The coordinator has read its journal."""

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        """The coordinator has built its soft state after that, and begins."""

    def on_worked(self, work: Any, event: Any) -> None:
        """Work is done: the event will come back, perhaps to a later coordinator than asked for it."""

    def on_deleted(self, topic: str) -> None:
        """A topic is being deleted: the coordinator is about to hear of it."""

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        """The world has been healthy for long."""
