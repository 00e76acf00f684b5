"""What must never be seen. Each property is one checker, and each checker kills a mutant (`mutants`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kohort.errors import ErrorCode
from kohort.groups import invariants
from kohort.groups.events import ConsumerGroupHeartbeat, JoinGroup, OffsetCommit, OffsetFetch, SyncGroup, TopicImage
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import GroupState, Now, Outcome
from kohort.groups.records import Kind, OffsetCommitted, Record, Tombstone
from kohort.groups.state import Group
from kohort.ids import TopicPartition
from simulation.assigning import decode_assignment, to_names
from simulation.world import World

Waiting = Mapping[int, tuple[Any, Any, int]]
LONGEST_WAIT_MS = 60_000


class ViolatedError(Exception):
    """A property does not hold."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Holder(Protocol):
    """A client as the checkers see it."""

    name: str
    held: frozenset[TopicPartition]
    dead: bool
    stable: bool
    started_ms: int

    @property
    def group_id(self) -> str:
        """Its group."""

    @property
    def instance_id(self) -> str | None:
        """Its static id."""

    @property
    def topics(self) -> tuple[str, ...]:
        """What it reads."""

    def owns(self, partition: TopicPartition) -> bool:
        """Whether it would process this partition now."""


class Checker:
    """One property; the hooks it needs are overridden."""

    def __init__(self, world: World, members: list[Holder]) -> None:
        self.world = world
        self.members = members
        self.chance = world.stream(type(self).__name__)

    def fail(self, text: str) -> None:
        """The property does not hold."""
        raise ViolatedError(type(self).__name__, text)

    def on_hold(self, member: Holder) -> None:
        """A client holds something new, or its session goes on after it had ended."""

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        """The coordinator took in an event."""

    def on_released(self, event: Any, value: Any) -> None:
        """A reply goes out."""

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """A batch is on disk and its replies are out."""

    def on_replayed(self, machine: GroupMachine) -> None:
        """The coordinator has read its journal."""

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        """The world has been healthy for long."""


class OwnershipChecker(Checker):
    """No partition is owned by two clients of a group, as the clients see it.

    Two processes with one instance id are one member to the coordinator: the older hears of it by its next request,
    and its commits are refused from the first moment (`FencingChecker`), so they are not watched here.
    """

    def on_hold(self, member: Holder) -> None:
        if self._is_superseded(member):
            return
        rivals = [other for other in self.members if other.group_id == member.group_id and other is not member]
        for partition in member.held:
            if not member.owns(partition):
                continue
            for other in rivals:
                if other.owns(partition) and not self._is_superseded(other):
                    self.fail(f"{partition} of {member.group_id} is owned by {member.name} and {other.name}")

    def _is_superseded(self, member: Holder) -> bool:
        """Whether another process has, or had later, the same instance id."""
        return member.instance_id is not None and any(
            other is not member
            and (other.group_id, other.instance_id) == (member.group_id, member.instance_id)
            and (not other.dead or other.started_ms >= member.started_ms)
            for other in self.members
        )


class DurabilityChecker(Checker):
    """An acknowledged commit is there, or a later one is. Every commit has an offset of its own."""

    def __init__(self, world: World, members: list[Holder]) -> None:
        super().__init__(world, members)
        self._order: dict[int, int] = {-1: 0}
        self._floor: dict[tuple[str, str, int], int] = {}

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        for record in outcome.records:
            if isinstance(record, OffsetCommitted):
                self._order[record.offset] = len(self._order)

    def on_released(self, event: Any, value: Any) -> None:
        if isinstance(event, OffsetCommit):
            for offset, error in zip(event.offsets, value.errors, strict=True):
                if error is ErrorCode.NONE:
                    key = (event.group_id, offset.topic, offset.partition)
                    self._floor[key] = max(self._floor.get(key, 0), self._order[offset.offset])
        elif isinstance(event, OffsetFetch) and value.error is ErrorCode.NONE:
            for found in value.offsets:
                self._check(event.group_id, found.topic, found.partition, found.offset)

    def on_replayed(self, machine: GroupMachine) -> None:
        for group_id, topic, partition in self._floor:
            group = machine.kernel.find(group_id)
            record = group.offsets.get((topic, partition)) if group is not None else None
            self._check(group_id, topic, partition, -1 if record is None else record.offset)

    def _check(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        floor = self._floor.get((group_id, topic, partition), 0)
        if self._order.get(offset, -1) < floor:
            self.fail(f"{group_id} {topic}-{partition} is at {offset}, before the last acknowledged commit")


class FencingChecker(Checker):
    """No commit is taken for a partition that the coordinator has told another member to have since."""

    def __init__(self, world: World, members: list[Holder]) -> None:
        super().__init__(world, members)
        self._told: dict[tuple[str, str, int], str] = {}

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        for group_id in deleted_groups(outcome):
            self._told = {key: value for key, value in self._told.items() if key[0] != group_id}

    def on_released(self, event: Any, value: Any) -> None:
        if isinstance(event, SyncGroup) and value.error is ErrorCode.NONE:
            for topic, partition in decode_assignment(value.assignment):
                self._told[event.group_id, topic, partition] = event.member_id
        elif isinstance(event, ConsumerGroupHeartbeat) and value.error is ErrorCode.NONE and value.assignment:
            for topic, partition in to_names(value.assignment):
                self._told[event.group_id, topic, partition] = value.member_id
        elif isinstance(event, OffsetCommit) and event.generation >= 0:
            for offset, error in zip(event.offsets, value.errors, strict=True):
                told = self._told.get((event.group_id, offset.topic, offset.partition), event.member_id)
                if error is ErrorCode.NONE and told != event.member_id:
                    name = f"{offset.topic}-{offset.partition}"
                    self.fail(f"{event.member_id} committed {name} at {event.generation}, but {told} has it")


def deleted_groups(outcome: Outcome) -> list[str]:
    """Groups whose end is among the records: their generations may start anew."""
    return [
        record.key[1] for record in outcome.records if isinstance(record, Tombstone) and record.key[0] is Kind.GROUP
    ]


class GenerationChecker(Checker):
    """Generations only grow, and one generation has one set of members, until the group is deleted.

    Classic members of a consumer group have no leader and a generation each.
    """

    def __init__(self, world: World, members: list[Holder]) -> None:
        super().__init__(world, members)
        self._newest: dict[str, int] = {}
        self._rounds: dict[tuple[str, int], tuple[str, ...]] = {}

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        for group_id in deleted_groups(outcome):
            self._newest.pop(group_id, None)
            self._rounds = {key: value for key, value in self._rounds.items() if key[0] != group_id}

    def on_released(self, event: Any, value: Any) -> None:
        if not isinstance(event, JoinGroup) or value.error is not ErrorCode.NONE or not value.leader:
            return
        newest = self._newest.get(event.group_id, 0)
        if value.generation < newest:
            self.fail(f"{event.group_id} went from generation {newest} back to {value.generation}")
        self._newest[event.group_id] = value.generation
        if value.members and not value.skip_assignment:
            now = tuple(member.member_id for member in value.members)
            before = self._rounds.setdefault((event.group_id, value.generation), now)
            if before != now:
                self.fail(f"{event.group_id} has two rounds of generation {value.generation}: {before} and {now}")


class ReplayChecker(Checker):
    """A replay of what is on disk, and of what compaction would keep of it, gives the state that lives."""

    SHARE = 0.03

    def __init__(self, world: World, members: list[Holder]) -> None:
        super().__init__(world, members)
        self._source: list[Record] = []
        self._replayed = 0
        self._mirror: GroupMachine | None = None

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        mirror = self._mirror
        if mirror is None or self._source is not records:
            mirror, self._source, self._replayed = GroupMachine(machine.kernel.config), records, 0
            self._mirror = mirror
        for at in range(self._replayed, len(records)):
            mirror.apply(records[at])
        self._replayed = len(records)
        if self.chance.likely(self.SHARE):
            self.compare(machine, mirror)

    def compare(self, machine: GroupMachine, mirror: GroupMachine) -> None:
        """Compare the hard state with its replay, and the soft state with what a restart would make of it."""
        live = {record.key: record for record in machine.snapshot()}
        replayed = {record.key: record for record in mirror.snapshot()}
        if live != replayed:
            different = sorted(str(key) for key in live.keys() | replayed.keys() if live.get(key) != replayed.get(key))
            self.fail(f"replay differs from life in {different}")
        again = GroupMachine(machine.kernel.config)
        for record in replayed.values():
            again.apply(record)
        again.on_loaded(Now(self.world.now_ms, self.world.wall_ms), TopicImage())
        for group_id, group in machine.kernel.ledger.groups.items():
            if group.consumer is None and group.classic.state is GroupState.STABLE:
                loaded = describe(again.kernel.ledger.groups[group_id])
                if loaded != describe(group):
                    self.fail(f"{group_id} would be loaded as {loaded}, but is {describe(group)}")


def describe(group: Group) -> tuple[Any, ...]:
    """A stable group's soft state that a restart must find again."""
    classic = group.classic
    members = {
        name: (member.instance_id, member.assignment, member.metadata(classic.protocol), member.session_timeout_ms)
        for name, member in classic.members.items()
    }
    head = (classic.state, group.generation, classic.protocol, classic.leader, classic.static_ids)
    return (*head, classic.subscribed, members)


class AnswerChecker(Checker):
    """Every request is answered once; one without an answer is one that a member is known to wait on."""

    SHARE = 0.1

    def __init__(self, world: World, members: list[Holder]) -> None:
        super().__init__(world, members)
        self._answered: set[int] = set()

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        for token, value in outcome.replies:
            if token in self._answered:
                self.fail(f"request {token} was answered twice, the second time with {value}")
            self._answered.add(token)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        known = {
            request
            for group in machine.kernel.ledger.groups.values()
            for member in group.classic.members.values()
            for request in (member.join_request, member.sync_request, member.held)
        }
        for group in machine.kernel.ledger.groups.values():
            for presence in group.consumer.presences.values() if group.consumer is not None else ():
                waits = (presence.waiting, presence.held, presence.joining)
                known.update(event.request for event in waits if event is not None)
        for token, (event, _, _) in waiting.items():
            if token not in known:
                self.fail(f"forgotten: {event}")

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        for event, _, since_ms in waiting.values():
            if self.world.now_ms - since_ms > LONGEST_WAIT_MS:
                self.fail(f"unanswered for {self.world.now_ms - since_ms} ms: {event}")


class InvariantChecker(Checker):
    """The coordinator's state never contradicts itself."""

    SHARE = 0.1

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if self.chance.likely(self.SHARE):
            try:
                invariants.check(machine.kernel)
            except invariants.BrokenInvariantError as error:
                self.fail(str(error))


class LivenessChecker(Checker):
    """Once the world is healthy, every group is stable and every partition of its topics is owned by one client."""

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        found = unhealthy(self.members, partitions)
        if found is not None:
            self.fail(found)


def unhealthy(members: Sequence[Holder], partitions: Mapping[str, int]) -> str | None:
    """What keeps the first group that is not whole from being so; None when all are."""
    for group_id in sorted({member.group_id for member in members}):
        living = [member for member in members if member.group_id == group_id and not member.dead]
        unsettled = [member.name for member in living if not member.stable]
        if unsettled:
            return f"{', '.join(unsettled)} of {group_id} never became stable"
        for topic in sorted({topic for member in living for topic in member.topics}):
            for number in range(partitions.get(topic, 0)):
                owners = [member.name for member in living if member.owns(TopicPartition(topic, number))]
                if len(owners) != 1:
                    return f"{topic}-{number} of {group_id} is owned by {owners or 'no one'}"
    return None


ALL: tuple[type[Checker], ...] = (
    OwnershipChecker,
    DurabilityChecker,
    FencingChecker,
    GenerationChecker,
    ReplayChecker,
    AnswerChecker,
    InvariantChecker,
    LivenessChecker,
)


class Checkers:
    """All properties of one run; each hook is passed on to those that override it."""

    HOOKS = ("on_hold", "on_stepped", "on_released", "on_durable", "on_replayed", "at_end")

    def __init__(self, world: World, members: list[Holder], kinds: Iterable[type[Checker]] = ALL) -> None:
        self._offset = 0
        checkers = [kind(world, members) for kind in kinds]
        self._hooks = {
            hook: [
                getattr(checker, hook)
                for checker in checkers
                if getattr(type(checker), hook) is not getattr(Checker, hook)
            ]
            for hook in self.HOOKS
        }

    def fresh_offset(self) -> int:
        """An offset that no commit has had."""
        self._offset += 1
        return self._offset

    def on_hold(self, member: Holder) -> None:
        """As `Checker.on_hold`."""
        for hook in self._hooks["on_hold"]:
            hook(member)

    def on_stepped(self, event: Any, outcome: Outcome, waiting: Waiting) -> None:
        """As `Checker.on_stepped`."""
        for hook in self._hooks["on_stepped"]:
            hook(event, outcome, waiting)

    def on_released(self, event: Any, value: Any) -> None:
        """As `Checker.on_released`."""
        for hook in self._hooks["on_released"]:
            hook(event, value)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """As `Checker.on_durable`."""
        for hook in self._hooks["on_durable"]:
            hook(machine, records, waiting)

    def on_replayed(self, machine: GroupMachine) -> None:
        """As `Checker.on_replayed`."""
        for hook in self._hooks["on_replayed"]:
            hook(machine)

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        """As `Checker.at_end`."""
        for hook in self._hooks["at_end"]:
            hook(waiting, partitions)
