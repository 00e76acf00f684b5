"""The checkers of properties that must always hold. Each checker kills a mutant (`mutants`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import Effects, GroupState, JoinGroupReply, LeaveGroupReply, Now
from kohort.groups.events import (
    ConsumerGroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    TopicImage,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup
from kohort.groups.records import MemberSaved, OffsetCommitted, Record
from kohort.ids import TopicPartition
from simulation.checkers import invariants
from simulation.checkers.admin_checkers import DeletionChecker, DescriptionChecker
from simulation.checkers.away_checker import AwayChecker
from simulation.checkers.epoch_checker import StaleEpochChecker
from simulation.checkers.eviction_checker import EvictionChecker
from simulation.checkers.expiry_checker import ExpiryChecker
from simulation.checkers.fencing_checker import FencingChecker, deleted_groups
from simulation.checkers.journal_model import JournalModel
from simulation.checkers.offset_checkers import DurabilityChecker, TransactionChecker
from simulation.checkers.property import QUIET, Checker, Holder, is_one
from simulation.checkers.push_checkers import ChangeChecker, StartedChecker, StartOffsetChecker
from simulation.checkers.refusal_checkers import JournalChecker, RefusalChecker
from simulation.checkers.release_checker import ReleaseChecker
from simulation.checkers.share_checkers import ClassicEvennessChecker, EvennessChecker
from simulation.checkers.soft_state_checker import SoftStateChecker
from simulation.checkers.target_checkers import CountChecker, HandoverChecker, TargetChecker
from simulation.harness.server import Waiting
from simulation.harness.world import World

LONGEST_WAIT_MS = 60_000


class OwnershipChecker(Checker):
    """No partition is owned by two clients of a group, as the clients see it.

    Two processes with one instance id, or one id of the push protocol, are one member to the coordinator. A member that
    an administrator removed is no member. Neither is one whose place in a full group others took while it rebalanced.
    The older or removed process learns of it from its next response. Its commits are refused from the first moment
    (`FencingChecker`), so this checker ignores it.
    """

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._removed: set[str] = set()
        self._placed: dict[tuple[str, str | None], str] = {}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for record in outcome.records:
            if isinstance(record, MemberSaved):
                self._placed[record.group_id, record.instance_id] = record.member_id
        if isinstance(event, LeaveGroup):
            for _, value in outcome.replies:
                if isinstance(value, LeaveGroupReply):
                    gone = {left.member_id or left.instance_id for left in value.members if not left.error}
                    self._removed.update(
                        member.member_id for member in self.members if gone & {member.member_id, member.instance_id}
                    )

        elif isinstance(event, JoinGroup) and event.member_id:
            refused = (
                value.error is ErrorCode.GROUP_MAX_SIZE_REACHED
                for request, value in outcome.replies
                if request == event.request and isinstance(value, JoinGroupReply)
            )
            if any(refused):
                self._removed.add(event.member_id)

    def on_hold(self, member: Holder) -> None:
        if self._is_superseded(member):
            return
        rivals = [other for other in self.members if other.group_id == member.group_id and other is not member]
        for partition in member.held:
            if not member.owns(partition):
                continue
            for other in rivals:
                if not other.owns(partition) or member.topic_of(partition) != other.topic_of(partition):
                    continue
                if not self._is_superseded(other):
                    self.fail(f"{partition} of {member.group_id} is owned by {member.name} and {other.name}")

    def _is_superseded(self, member: Holder) -> bool:
        """Return whether another process took the instance id, or the member was removed.

        A dead process that began earlier counts too: its join may arrive late and replace a newer one.
        """
        if member.member_id in self._removed:
            return True
        placed = self._placed.get((member.group_id, member.instance_id), member.member_id)
        if member.instance_id is not None and placed != member.member_id:
            return True
        return any(
            other is not member
            and other.group_id == member.group_id
            and (not other.dead or other.started_ms >= member.started_ms)
            for other in self.members
            if is_one(member, other)
        )


class GenerationChecker(Checker):
    """Generations only grow, and one generation has one set of members, until the group is deleted.

    Classic members of a consumer group have no leader, and each has a generation of its own. A response may leave after
    its group was deleted, because it waits for the journal.
    """

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._newest: dict[str, int] = {}
        self._rounds: dict[tuple[str, int], tuple[str, ...]] = {}
        self._ends: dict[str, int] = {}
        self._decided: dict[int, int] = {}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for token, value in outcome.replies:
            if isinstance(value, JoinGroupReply) and token in waiting:
                self._decided[token] = self._ends.get(waiting[token][0].group_id, 0)
        for group_id in deleted_groups(outcome):
            self._ends[group_id] = self._ends.get(group_id, 0) + 1
            self._newest.pop(group_id, None)
            self._rounds = {key: value for key, value in self._rounds.items() if key[0] != group_id}

    def on_released(self, event: Any, value: Any) -> None:
        if not isinstance(event, JoinGroup) or value.error is not ErrorCode.NONE or not value.leader:
            return
        ends = self._ends.get(event.group_id, 0)
        if self._decided.pop(event.request, ends) != ends:
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


class EpochChecker(Checker):
    """A consumer group's epoch only grows, and so does the epoch in a member's responses, until group deletion."""

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._newest: dict[str, int] = {}
        self._sent_epochs: dict[tuple[str, str], int] = {}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for group_id in deleted_groups(outcome):
            self._newest.pop(group_id, None)
            self._sent_epochs = {key: epoch for key, epoch in self._sent_epochs.items() if key[0] != group_id}

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        for group_id, group in machine.context.ledger.groups.items():
            if (consumer := group.membership_as(ConsumerGroup)) is not None:
                newest, epoch = self._newest.get(group_id, 0), consumer.epoch
                if epoch < newest:
                    self.fail(f"{group_id} went from epoch {newest} back to {epoch}")
                self._newest[group_id] = epoch

    def on_released(self, event: Any, value: Any) -> None:
        if isinstance(event, ConsumerGroupHeartbeat) and value.error is ErrorCode.NONE and value.member_epoch >= 0:
            key = (event.group_id, value.member_id)
            if value.member_epoch < self._sent_epochs.get(key, 0):
                self.fail(f"{value.member_id} was told epoch {value.member_epoch} after {self._sent_epochs[key]}")
            self._sent_epochs[key] = value.member_epoch


class LimitsChecker(Checker):
    """No group has more members, and no committed offset more metadata, than the configuration allows."""

    SHARE = 0.1

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        limit = self.config.offset_metadata_bytes_max
        for record in outcome.records:
            if isinstance(record, OffsetCommitted) and len(record.metadata) > limit:
                self.fail(f"{record.group_id} keeps {len(record.metadata)} bytes of metadata for {record.topic}")

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        groups = machine.context.ledger.groups
        if len(groups) > self.config.groups_max:
            self.fail(f"there are {len(groups)} groups")
        for group_id, group in groups.items():
            membership, limit = group.membership, self.config.group_max_size
            members = len(list(membership.member_connections()))
            if isinstance(membership, ConsumerGroup):
                members, limit = len(membership.members), self.config.consumer_max_size
            elif isinstance(membership, ClassicGroup) and membership.state is GroupState.PREPARING_REBALANCE:
                members = membership.awaiting_join
            if members > limit:
                self.fail(f"{group_id} has {members} members, the limit is {limit}")


class ReplayChecker(Checker):
    """A replay of the disk's contents, and of what compaction would keep of them, gives the live state."""

    SHARE = 0.03

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._source: list[Record] = []
        self._replayed = 0
        self._mirror: GroupMachine | None = None

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        mirror = self._mirror
        if mirror is None or self._source is not records:
            mirror, self._source, self._replayed = GroupMachine(machine.context.config), records, 0
            self._mirror = mirror
        for at in range(self._replayed, len(records)):
            mirror.apply(records[at])
        self._replayed = len(records)
        if self.chance.likely(self.SHARE):
            self.compare(machine, mirror)

    def compare(self, machine: GroupMachine, mirror: GroupMachine) -> None:
        """Compare the hard state with its replay, and the soft state with the soft state that a restart would build."""
        live = {record.key: record for record in machine.snapshot()}
        replayed = {record.key: record for record in mirror.snapshot()}
        if live != replayed:
            different = sorted(str(key) for key in live.keys() | replayed.keys() if live.get(key) != replayed.get(key))
            self.fail(f"replay differs from life in {different}")
        again = GroupMachine(machine.context.config)
        for record in replayed.values():
            again.apply(record)
        again.on_loaded(Now(self.world.now_ms, self.world.wall_ms), TopicImage())
        for group_id, group in machine.context.ledger.groups.items():
            classic = group.membership_as(ClassicGroup)
            if classic is not None and classic.state is GroupState.STABLE:
                twin, alive = again.context.ledger.groups[group_id].membership_as(ClassicGroup), describe(classic)
                if twin is None or (loaded := describe(twin)) != alive:
                    self.fail(f"{group_id} would be loaded as {twin and loaded}, but is {alive}")


def describe(classic: ClassicGroup) -> tuple[Any, ...]:
    """Return the soft state of a stable group that a restart must build again."""
    members = {
        name: (member.instance_id, member.assignment, member.metadata(classic.protocol), member.session_timeout_ms)
        for name, member in classic.members.items()
    }
    head = (classic.state, classic.generation, classic.protocol, classic.leader, classic.static_ids)
    return (*head, classic.subscribed, members)


class AnswerChecker(Checker):
    """Every request is answered once; a request without an answer belongs to a member that is known to wait for it."""

    SHARE = 0.1

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._answered: set[int] = set()

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for token, value in outcome.replies:
            if token in self._answered:
                self.fail(f"request {token} was answered twice, the second time with {value}")
            self._answered.add(token)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        known: set[int | None] = set()
        for group in machine.context.ledger.groups.values():
            membership = group.membership
            if isinstance(membership, ClassicGroup):
                for member in membership.members.values():
                    held = None if member.long_poll is None else member.long_poll.request
                    known.update((member.join_request, member.sync_request, held))
            elif isinstance(membership, ConsumerGroup):
                for presence in membership.presences.values():
                    waits = (presence.waiting, presence.long_poll, presence.joining)
                    known.update(event.request for event in waits if event is not None)
            elif isinstance(membership, PushGroup):
                claims = (presence.claim for presence in membership.present.values())
                known.update(claim.request for claim in claims if claim is not None)
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
                invariants.check(machine.context)
            except invariants.BrokenInvariantError as error:
                self.fail(str(error))


class LivenessChecker(Checker):
    """Once the faults have ended, every group is stable and every partition of its topics is owned by one client.

    No client owns a partition of a deleted topic, or of a topic that it does not subscribe to.
    """

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        found = unhealthy(self.members, partitions)
        if found is not None:
            self.fail(found)


def unhealthy(members: Sequence[Holder], partitions: Mapping[str, int]) -> str | None:
    """Return the reason why the first unstable group is not stable yet; None if all are stable."""
    for group_id in sorted({member.group_id for member in members}):
        living = [member for member in members if member.group_id == group_id and not member.dead]
        unsettled = [member.name for member in living if not member.stable]
        if unsettled:
            return f"{', '.join(unsettled)} of {group_id} never became stable"
        for member in living:
            unread = [str(partition) for partition in sorted(member.held) if partition.topic not in member.topics]
            if unread:
                return f"{member.name} of {group_id} holds {', '.join(unread)}, which it does not read"
            gone = [
                str(partition)
                for partition in sorted(member.held)
                if partition.partition >= partitions.get(partition.topic, 0)
            ]
            if gone:
                return f"{member.name} of {group_id} holds {', '.join(gone)}, which there is not"
        for topic in sorted({topic for member in living for topic in member.topics}):
            for number in range(partitions.get(topic, 0)):
                owners = [member.name for member in living if member.owns(TopicPartition(topic, number))]
                if len(owners) != 1:
                    return f"{topic}-{number} of {group_id} is owned by {owners or 'no one'}"
    return None


ALL: tuple[type[Checker], ...] = (
    OwnershipChecker,
    DurabilityChecker,
    TransactionChecker,
    FencingChecker,
    GenerationChecker,
    EpochChecker,
    LimitsChecker,
    ReplayChecker,
    JournalChecker,
    AnswerChecker,
    InvariantChecker,
    LivenessChecker,
    EvennessChecker,
    ClassicEvennessChecker,
    AwayChecker,
    RefusalChecker,
    EvictionChecker,
    StaleEpochChecker,
    TargetChecker,
    CountChecker,
    HandoverChecker,
    SoftStateChecker,
    DeletionChecker,
    DescriptionChecker,
    ReleaseChecker,
    ExpiryChecker,
    StartedChecker,
    ChangeChecker,
    StartOffsetChecker,
)


class Checkers:
    """All properties of one run; each hook is passed on to those that override it."""

    HOOKS = tuple(
        f"on_{what}" for what in ("hold", "stepped", "released", "refused", "durable", "replayed", "loaded", "worked")
    )
    HOOKS = (*HOOKS, "on_overtaken", "on_journal", "on_coordination", "on_deleted", "at_end")

    def __init__(
        self, world: World, members: list[Holder], config: GroupConfig, kinds: Iterable[type[Checker]] = ALL
    ) -> None:
        self._offset = 0
        self._journal = JournalModel()
        checkers = [kind(world, members, config) for kind in kinds]
        for checker in checkers:
            checker.journal, checker.newest_offset = self._journal, lambda: self._offset
        self._checkers = checkers
        self._on_step: dict[type, list[Any]] = {}
        self._hooks = {
            hook: [
                getattr(checker, hook)
                for checker in checkers
                if getattr(type(checker), hook) is not getattr(Checker, hook)
            ]
            for hook in self.HOOKS
        }

    def fresh_offset(self) -> int:
        """Return an offset that no commit has had."""
        self._offset += 1
        return self._offset

    def on_hold(self, member: Holder) -> None:
        """Pass `Checker.on_hold` on to the checkers that override it."""
        for hook in self._hooks["on_hold"]:
            hook(member)

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        """Pass `Checker.on_stepped` on to the checkers that override it."""
        hooks = self._on_step.get(type(event))
        if hooks is None:
            wanted = [checker.on_stepped for checker in self._checkers if type(event) not in checker.skips]
            hooks = [hook for hook in wanted if hook in self._hooks["on_stepped"]]
            self._on_step[type(event)] = hooks
        for hook in hooks:
            hook(event, outcome, waiting)
        if outcome.records:
            self._journal.take(outcome.records)

    def on_released(self, event: Any, value: Any) -> None:
        """Pass `Checker.on_released` on to the checkers that override it."""
        for hook in self._hooks["on_released"]:
            hook(event, value)

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """Pass `Checker.on_overtaken` on to the checkers that override it."""
        for hook in self._hooks["on_overtaken"]:
            hook(event, value, came_ms, since_ms)

    def on_journal(self, records: list[Record]) -> None:
        """Pass `Checker.on_journal` on to the checkers that override it."""
        for hook in self._hooks["on_journal"]:
            hook(records)

    def on_coordination(self, coordinators: Any, zookeeper: Any, *, at_end: bool) -> None:
        """Pass `Checker.on_coordination` on to the checkers that override it."""
        for hook in self._hooks["on_coordination"]:
            hook(coordinators, zookeeper, at_end=at_end)

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        """Pass `Checker.on_refused` on to the checkers that override it."""
        for hook in self._hooks["on_refused"]:
            hook(event, code, phase)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """Pass `Checker.on_durable` on to the checkers that override it."""
        for hook in self._hooks["on_durable"]:
            hook(machine, records, waiting)

    def on_replayed(self, machine: GroupMachine) -> None:
        """Pass `Checker.on_replayed` on to the checkers that override it."""
        self._journal.rebuild(machine.snapshot())
        for hook in self._hooks["on_replayed"]:
            hook(machine)

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        """Pass `Checker.on_loaded` on to the checkers that override it."""
        for hook in self._hooks["on_loaded"]:
            hook(machine, outcome)
        self._journal.take(outcome.records)

    def on_worked(self, work: Any, event: Any) -> None:
        """Pass `Checker.on_worked` on to the checkers that override it."""
        for hook in self._hooks["on_worked"]:
            hook(work, event)

    def on_deleted(self, topic: str) -> None:
        """Pass `Checker.on_deleted` on to the checkers that override it."""
        for hook in self._hooks["on_deleted"]:
            hook(topic)

    def at_end(self, waiting: Waiting, partitions: Mapping[str, int]) -> None:
        """Pass `Checker.at_end` on to the checkers that override it."""
        for hook in self._hooks["at_end"]:
            hook(waiting, partitions)
