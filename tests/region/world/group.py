"""A region's group in virtual time: the coordinator that ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kohort.client.offsets import GroupMetadata, OffsetAndMetadata
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.assignment import compute_target_assignment
from kohort.groups.effects import ComputeAssignment, Effects, Now, OffsetCommitReply, OffsetFetchReply
from kohort.groups.events import (
    Event,
    OffsetFetch,
    OffsetToCommit,
    TimersDue,
    Topic,
    TopicImage,
    TopicsChanged,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import Record
from kohort.ids import TopicPartition
from kohort.region.records import InitialOffset, Part, Position
from tests.region.world.memberships import (
    BEAT_MS,
    SESSION_MS,
    ClassicGroupMembership,
    ConsumerGroupMembership,
    GroupMembership,
)
from tests.region.world.names import GROUP, TOPIC, TOPIC_ID, part

if TYPE_CHECKING:
    from tests.region.world.clock import Clock
    from tests.region.world.member import Member

Members = Sequence[tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata]]]


class Group:
    """The coordinator, and its members' seats."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.count = clock, count
        self.memberships: dict[UUID, GroupMembership] = {}
        self.records: list[Record] = []
        self.requests = 0
        self._membership: type[GroupMembership] = clock.chance.choice((ClassicGroupMembership, ConsumerGroupMembership))
        self._config = GroupConfig(
            consumer_session_timeout_ms=SESSION_MS,
            consumer_heartbeat_interval_ms=BEAT_MS,
            initial_rebalance_delay_ms=0,
        )
        self._loads = 0
        self._waiting: dict[int, Callable[[Any], None]] = {}
        clock.log(f"members are {self._membership.__name__}s")
        self._load()
        self._tick()

    # -- the coordinator

    def _image(self) -> TopicImage:
        return TopicImage(self.count, {TOPIC: Topic(TOPIC, TOPIC_ID, self.count)})

    def _load(self) -> None:
        self._loads += 1
        self.machine = GroupMachine(self._config)
        for record in self.records:
            self.machine.apply(record)
        self._take(self.machine.on_loaded(self._now(), self._image()))

    def move(self) -> None:
        """Another broker coordinates the group now: it knows what is in the journal."""
        self._waiting.clear()
        self._load()
        for membership in self.memberships.values():
            membership.unanswered()

    def bring_back(self, records: list[Record]) -> None:
        """Go on from an older copy of the journal."""
        self.records = list(records)
        self.move()

    def grow(self, count: int) -> None:
        """The topic has so many partitions now."""
        self.count = count
        self.do(TopicsChanged(self._image()))
        for membership in list(self.memberships.values()):
            membership.topics_changed()

    def _now(self) -> Now:
        return Now(self.clock.now_ms, self.clock.now_ms)

    def number(self) -> int:
        """Of the next request."""
        self.requests += 1
        return self.requests

    def ask(self, event: Event, answer: Callable[[Any], None]) -> None:
        """`event` has the number of `number`; some answers come with a later event."""
        self._waiting[self.requests] = answer
        self.do(event)

    def do(self, event: Event) -> None:
        """Nobody waits for an answer."""
        self._take(self.machine.step(event, self._now()))

    def _take(self, outcome: Effects) -> None:
        self.records += outcome.records
        for work in outcome.work:
            assert isinstance(work, ComputeAssignment)
            self.clock.after(self.clock.chance.randint(1, 40), self._computed(work, self._loads))
        for reply in outcome.replies:
            answer = self._waiting.pop(reply.request, None)
            if answer is not None:
                answer(reply.value)

    def _computed(self, work: ComputeAssignment, load: int) -> Callable[[], None]:
        def done() -> None:
            if load == self._loads:
                self.do(compute_target_assignment(work))

        return done

    def _tick(self) -> None:
        due = self.machine.next_deadline_ms()
        if due is not None and due <= self.clock.now_ms:
            self.do(TimersDue())
        self.clock.after(50, self._tick)

    # -- members

    def parts(self) -> list[Part]:
        return [part(number) for number in range(self.count)]

    def join(self, member: Member) -> None:
        membership = self.memberships[member.incarnation] = self._membership(self, member)
        membership.begin()

    def leave(self, member: Member) -> None:
        """Leave the group. A killed member sends nothing: its session ends."""
        membership = self.memberships.pop(member.incarnation, None)
        if membership is not None and member.ended:
            membership.leave()

    def lose_heartbeats(self, member: Member) -> None:
        """Until after its session: it is put out, and hears of it then."""
        membership = self.memberships.get(member.incarnation)
        if membership is not None:
            membership.mute_until_ms = self.clock.now_ms + SESSION_MS + self.clock.chance.randint(500, 3_000)

    def released(self, member: Member, parts: tuple[Part, ...]) -> None:
        membership = self.memberships.get(member.incarnation)
        if membership is not None:
            membership.released(set(parts))

    # -- the commit point

    def commit(self, members: Members, epoch: int) -> dict[str, ErrorCode]:
        """Take the offsets of an open transaction: by member id why not."""
        refused: dict[str, ErrorCode] = {}
        for who, offsets in members:
            given = tuple(OffsetToCommit(at.topic, at.partition, announced.offset) for at, announced in offsets.items())
            event = TxnOffsetCommit(
                self.number(), GROUP, 1, epoch, given, who.member_id, who.generation_id, None, "a region"
            )
            answers: list[OffsetCommitReply] = []
            self.ask(event, answers.append)
            wrong = [error for error in answers[0].errors if error is not ErrorCode.NONE]
            if wrong:
                refused[who.member_id] = wrong[0]
        return refused

    def end(self, epoch: int, *, commit: bool) -> None:
        """A transaction in which offsets were taken ends."""
        self.do(TransactionEnded(1, epoch, commit=commit))

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets by partition."""
        answers: list[OffsetFetchReply] = []
        self.ask(OffsetFetch(self.number(), GROUP), answers.append)
        return {offset.partition: offset.offset for offset in answers[0].offsets if offset.offset >= 0}


def wrong_offsets(
    committed: dict[int, int], positions: dict[Part, Position], initial: dict[Part, InitialOffset]
) -> str:
    """Where the group's offsets are not the last sequence's.

    Except of what nobody has read, or not since all went back to the initial state: members set these back when they
    are given them.
    """
    expected = {where.partition: at.offset for where, at in positions.items() if at.offset != initial[where].offset}
    there = {number: committed.get(number) for number in expected}
    return "" if there == expected else f"the group has {committed}, the last sequence {expected}"
