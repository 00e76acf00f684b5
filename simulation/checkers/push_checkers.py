"""Checkers of push groups: no member, no change and no committed offset is forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import DisconnectConsumer, Effects, RegisterConsumerReply, StartConsumer
from kohort.groups.events import (
    ConnectionLost,
    OffsetCommit,
    OffsetsFound,
    PushConsumerAnswered,
    RegisterConsumer,
    TimersDue,
    Topic,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup
from kohort.groups.records import OffsetCommitted, PushMemberSaved, Record, RecordKind, Tombstone, TransactionMarked
from kohort.ids import NO_POSITION
from simulation.checkers.journal_model import TopicIdPartitions
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

LONGEST_MS = 60_000
"""The maximum time until a registered consumer is started: it waits for consumers that have to stop, including one that
is silent for its session.
"""


class StartedChecker(Checker):
    """Every registered consumer is started, or dismissed, or its connection ends."""

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._awaiting: dict[int, tuple[str, int]] = {}

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._awaiting.clear()  # connections of an earlier load say nothing any more

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for request, value in outcome.replies:
            if isinstance(value, RegisterConsumerReply) and value.error is ErrorCode.NONE and request in waiting:
                registration = waiting[request][0]
                assert isinstance(registration, RegisterConsumer)
                name = f"{registration.member_id} of {registration.group_id}"
                self._awaiting[registration.connection] = name, self.world.now_ms
        for push in outcome.pushes:
            if isinstance(push.value, StartConsumer | DisconnectConsumer):
                self._awaiting.pop(push.connection, None)
        if isinstance(event, ConnectionLost):
            self._awaiting.pop(event.connection, None)
        elif isinstance(event, TimersDue):
            self._look(LONGEST_MS)

    def _look(self, longest_ms: int) -> None:
        for name, since_ms in self._awaiting.values():
            if self.world.now_ms - since_ms > longest_ms:
                self.fail(
                    f"{name} is registered for {self.world.now_ms - since_ms} ms, and was neither started nor told"
                )


class ChangeChecker(Checker):
    """No change of members or topics is lost: when no rebalance runs, members own all existing partitions they read."""

    SHARE = 0.3

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        topics = machine.context.image.topics
        for group_id, group in machine.context.ledger.groups.items():
            push, journal = group.membership_as(PushGroup), self.journal.groups.get(group_id)
            at_rest = push is not None and not push.rebalancing and push.backoff.due_ms is None
            if not at_rest or journal is None or journal.push is None:
                continue
            readable = {name: frozenset(read_by(member, topics)) for name, member in journal.push.members.items()}
            owned = [(name, pairs) for name, pairs in journal.push.owned.items() if pairs]
            for name, pairs in owned:
                if not pairs <= readable.get(name, frozenset()):
                    self.fail(f"{group_id} is at rest, and {name} owns what it does not read, or what there is not")
            missing = frozenset().union(*readable.values()) - frozenset().union(*(pairs for _, pairs in owned))
            if missing:
                self.fail(f"{group_id} is at rest, and nobody owns {sorted(map(str, missing))}")


def read_by(member: PushMemberSaved, topics: Any) -> TopicIdPartitions:
    """Return the existing partitions that a consumer reads."""
    return frozenset((topic.id, number) for topic in topics_of(member, topics) for number in range(topic.partitions))


def topics_of(member: PushMemberSaved, topics: Any) -> Iterator[Topic]:
    """Yield the existing topics that a consumer reads."""
    named = dict(member.topics)
    for name, topic in topics.items():
        if member.regex is None:
            reads = name in named
        else:
            reads = not name.startswith("__") and bool(re.fullmatch(member.regex, name)) is not member.excluding
        if reads:
            yield topic


class StartOffsetChecker(Checker):
    """Each Start names the last committed offsets; those of a transaction count from when they were sent.

    Without a committed offset, a consumer that chooses its own start position is started without one, and the
    coordinator writes none for it. Every offset that the coordinator writes was sent by a consumer, or looked up for
    one that asked for the beginning or end.
    """

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._count = 0
        self._offsets: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._pending: dict[int, dict[tuple[Any, ...], tuple[int, int]]] = {}
        self._finders: set[tuple[Any, ...]] = set()

    def on_replayed(self, machine: GroupMachine) -> None:
        self._finders.clear()
        self._offsets.clear()
        self._pending.clear()
        self._take(list(machine.snapshot()))

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._take(outcome.records)

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        self._look_who_said(event, outcome.records)
        self._take(outcome.records)
        for push in outcome.pushes:
            if isinstance(push.value, StartConsumer):
                group_id, member_id = push.value.group_id, push.value.member_id
                nothing = NO_POSITION if (group_id, member_id) in self._finders else None
                for topic, partition, offset in push.value.positions:
                    _, committed = self._offsets.get((group_id, topic, partition), (0, nothing))
                    if committed != offset:
                        name = f"{topic}-{partition} of {group_id}"
                        self.fail(f"{member_id} is started with {name} at {offset}, committed is {committed}")

    def _look_who_said(self, event: Any, records: list[Record]) -> None:
        for record in records:
            if not isinstance(record, OffsetCommitted) or record.producer_id >= 0 or isinstance(event, OffsetCommit):
                continue
            name = f"{record.topic}-{record.partition} of {record.group_id}"
            at = (record.topic, record.partition, record.offset)
            if not isinstance(event, PushConsumerAnswered | OffsetsFound) or at not in event.positions:
                self.fail(f"{name} is at {record.offset}, and nobody said so")
            if isinstance(event, OffsetsFound) and (event.group_id, event.member_id) in self._finders:
                self.fail(f"{name} is at {record.offset}, found for {event.member_id}, which finds it itself")

    def _take(self, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, OffsetCommitted):
                slot = (record.group_id, record.topic, record.partition)
                kept = self._offsets if record.producer_id < 0 else self._pending.setdefault(record.producer_id, {})
                self._count += 1
                kept[slot] = self._count, record.offset
            elif isinstance(record, PushMemberSaved):
                member = (record.group_id, record.member_id)
                (self._finders.add if record.from_begin is None else self._finders.discard)(member)
            elif isinstance(record, TransactionMarked):
                sent = self._pending.pop(record.producer_id, {})
                for slot, found in sent.items() if record.committed else ():
                    self._offsets[slot] = max(found, self._offsets.get(slot, found))
            elif isinstance(record, Tombstone) and record.key[0] is RecordKind.OFFSET:
                for kept in (self._offsets, *self._pending.values()):
                    kept.pop(record.key[1:], None)
            elif isinstance(record, Tombstone) and record.key[0] is RecordKind.PUSH_MEMBER:
                self._finders.discard(record.key[1:])
