"""A group machine under test: virtual time, requests by name, and a restart that replays what was written."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from simulation.checkers import invariants

from kohort.consumer_protocol import write_assignment
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer import assignment
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import (
    BackgroundTask,
    Computation,
    ComputePushAssignment,
    CoordinatorMeter,
    CounterIncreased,
    Effects,
    FindOffsets,
    JoinGroupReply,
    Lookup,
    Now,
    ReplyValue,
    ResolveRegexes,
)
from kohort.groups.events import (
    Client,
    ConsumerGroupHeartbeat,
    GroupSettings,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    OffsetsFound,
    OffsetToCommit,
    PushPosition,
    SyncGroup,
    TimersDue,
    Topic,
    TopicImage,
    TopicsChanged,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.push import rebalance
from kohort.groups.records import OfferedProtocol, Record, TopicPartitions
from kohort.ids import TopicPartition

CLIENT = Client("client", "/127.0.0.1")
CHECKED_REQUESTS = 300
"""So many requests long every step is followed by a check of all invariants."""
START_MS = 1_700_000_000_000


def subscription(*topics: str, version: int = 1, user_data: bytes = b"") -> bytes:
    """A consumer's metadata: version, topics, user data."""
    parts = [struct.pack(">hi", version, len(topics))]
    for topic in topics:
        raw = topic.encode()
        parts.append(struct.pack(">h", len(raw)) + raw)
    parts.append(struct.pack(">i", len(user_data)) + user_data)
    return b"".join(parts)


def topic_id(name: str) -> uuid.UUID:
    """A topic's id, made from its name."""
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def owned(name: str, *partitions: int) -> tuple[TopicPartitions, ...]:
    """Partitions of one topic as heartbeats have them."""
    return (TopicPartitions(topic_id(name), partitions),) if partitions else ()


def match(regex: str, topics: Iterable[str]) -> list[str]:
    """Match a pattern in place of RE2."""
    return [topic for topic in topics if re.fullmatch(regex, topic)]


def protocols(*names: str, topics: Iterable[str] = ("t",)) -> tuple[OfferedProtocol, ...]:
    """Strategies with the same subscription each."""
    return tuple(OfferedProtocol(name, subscription(*topics)) for name in names)


class Trial:
    """One machine, its clock, its journal, and every reply by request."""

    def __init__(self, **config: Any) -> None:
        self.config = GroupConfig(**({"initial_rebalance_delay_ms": 0} | config))
        self.mono_ms = 0
        self.wall_ms = START_MS
        self.journal: list[Record] = []
        self.replies: dict[int, ReplyValue] = {}
        self.notes: list[Any] = []
        self.outcome = Effects()
        self.image = TopicImage()
        self.work: list[BackgroundTask] = []
        self.questions: list[Lookup] = []
        self.works_at_once = True
        self._request = 0
        self._fresh = 0
        self.machine = self.make_machine()
        self._take(self.machine.on_loaded(self.now, self.image))

    def make_machine(self) -> GroupMachine:
        """A machine without state."""
        return GroupMachine(self.config)

    @property
    def now(self) -> Now:
        return Now(self.mono_ms, self.wall_ms)

    def classic_group(self, group_id: str = "g") -> ClassicGroup:
        """The members of a group that speaks the classic protocol."""
        classic = self.machine.context.ledger.groups[group_id].membership_as(ClassicGroup)
        assert classic is not None, f"{group_id} is no classic group"
        return classic

    def consumer_group(self, group_id: str = "g") -> ConsumerGroup:
        """The members of a group under KIP-848."""
        consumer = self.machine.context.ledger.groups[group_id].membership_as(ConsumerGroup)
        assert consumer is not None, f"{group_id} is no consumer group"
        return consumer

    def feed(self, event: Any) -> Effects:
        """One event, and what is due at once after it, as the shell does it; the event's outcome is kept."""
        return self.feed_together(event)

    def feed_together(self, *events: Any) -> Effects:
        """Events that arrive in one moment: what becomes due meanwhile waits for all of them."""
        for event in events:
            outcome = self._take(self.machine.step(event, self.now))
        while (due := self.machine.next_deadline_ms()) is not None and due <= self.mono_ms:
            self._take(self.machine.step(TimersDue(), self.now))
        self.outcome = outcome
        return outcome

    def ask(self, event: Any) -> Any:
        """One request; its reply, None while it waits."""
        self.feed(event)
        return self.replies.get(event.request)

    def pass_time(self, ms: int) -> None:
        """Let time go by, with a tick at every deadline."""
        end = self.mono_ms + ms
        while (due := self.machine.next_deadline_ms()) is not None and due <= end:
            self._move(max(due, self.mono_ms))
            self.feed(TimersDue())
        self._move(end)

    def restart(self, cut: int | None = None, settings: Mapping[str, GroupSettings] | None = None) -> None:
        """Throw the machine away and replay the journal, up to `cut` records if given; groups get these settings."""
        if cut is not None:
            del self.journal[cut:]
        self.machine = self.make_machine()
        for record in self.journal:
            self.machine.apply(record)
        self._take(self.machine.on_loaded(self.now, self.image, settings or {}))

    def reply(self, request: int) -> Any:
        """The reply to a request, None while it waits."""
        return self.replies.get(request)

    def request(self) -> int:
        """A fresh request number."""
        self._request += 1
        return self._request

    def join_event(self, member_id: str = "", **more: Any) -> JoinGroup:
        """A JoinGroup with defaults: group g, strategy range, topic t, session 10 s, rebalance timeout 60 s."""
        self._fresh += 1
        fields: dict[str, Any] = {
            "request": self.request(),
            "group_id": "g",
            "member_id": member_id,
            "new_member_id": f"m{self._fresh}",
            "client": CLIENT,
            "protocol_type": "consumer",
            "protocols": protocols("range"),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "requires_known_id": False,
        }
        return JoinGroup(**(fields | more))

    def join(self, member_id: str = "", **more: Any) -> int:
        """Send a JoinGroup; returns its request."""
        event = self.join_event(member_id, **more)
        self.feed(event)
        return event.request

    def joined(self, member_id: str = "", **more: Any) -> JoinGroupReply:
        """A JoinGroup that must be answered by now, without an error."""
        reply = self.reply(self.join(member_id, **more))
        assert isinstance(reply, JoinGroupReply), "the join waits"
        assert reply.error is ErrorCode.NONE
        return reply

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any) -> int:
        """Send a SyncGroup; returns its request."""
        request = self.request()
        items = tuple((assignments or {}).items())
        self.feed(SyncGroup(request, more.pop("group_id", "g"), generation, member_id, items, **more))
        return request

    def heartbeat(self, member_id: str, generation: int, **more: Any) -> ErrorCode:
        """A heartbeat's answer."""
        request = self.request()
        return self.ask(Heartbeat(request, more.pop("group_id", "g"), generation, member_id, **more)).error

    def leave(self, member_id: str, **more: Any) -> ErrorCode:
        """One member's leave, as answered to it."""
        request = self.request()
        group_id = more.pop("group_id", "g")
        reply = self.ask(LeaveGroup(request, group_id, (LeavingMember(member_id, **more),)))
        return reply.error or reply.members[0].error

    def commit(self, offset: int, member_id: str = "", generation: int = -1, **more: Any) -> ErrorCode:
        """Commit one position of t-0 (or `topic`, `partition`); its answer."""
        topic, partition = more.pop("topic", "t"), more.pop("partition", 0)
        metadata = more.pop("metadata", "")
        one = OffsetToCommit(topic, partition, offset, -1, metadata)
        group_id = more.pop("group_id", "g")
        return self.ask(OffsetCommit(self.request(), group_id, member_id, generation, (one,), **more)).errors[0]

    def committed(self, topic: str = "t", partition: int = 0, group_id: str = "g", **more: Any) -> int:
        """The committed position, -1 when there is none."""
        event = OffsetFetch(self.request(), group_id, (TopicPartition(topic, partition),), **more)
        return self.ask(event).offsets[0].offset

    def counted(self, meter: CoordinatorMeter) -> int:
        """How far a meter has moved."""
        return sum(note.amount for note in self.notes if isinstance(note, CounterIncreased) and note.meter is meter)

    def stable(self, count: int, **more: Any) -> tuple[list[str], int]:
        """A stable group of `count` new members, the first leading; their ids and the generation."""
        requests = [self.join(**more) for _ in range(count)]
        self._rejoin_all(requests, more)
        replies = [self.reply(request) for request in requests]
        members = [reply.member_id for reply in replies]
        generation = replies[0].generation
        leader = replies[0].leader
        for member in sorted(members, key=lambda name: name == leader):
            plan = {name: b"a-" + name.encode() for name in members} if member == leader else None
            self.sync(member, generation, plan)
        return members, generation

    def stable_with(self, instance_id: str, **partitions: int) -> None:
        """A stable group of one static member with so many partitions of these topics, subscribed to them."""
        joined = self.joined(instance_id=instance_id, protocols=protocols("range", topics=partitions))
        held = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        assignment = {joined.member_id: write_assignment(1, held)}
        self.sync(joined.member_id, joined.generation, assignment, instance_id=instance_id)

    def _rejoin_all(self, requests: list[int], more: dict[str, Any]) -> None:
        """Members that were answered before the last came join again."""
        while (
            any(self.reply(request) is None for request in requests)
            or len({self.reply(request).generation for request in requests}) > 1
        ):
            for at, request in enumerate(requests):
                known = self.reply(request)
                if known is not None:
                    assert known.error is ErrorCode.NONE
                    requests[at] = self.join(known.member_id, **more)

    def _take(self, outcome: Effects) -> Effects:
        self.journal.extend(outcome.records)
        for reply in outcome.replies:
            assert reply.request not in self.replies, "a request was answered twice"
            self.replies[reply.request] = reply.value
        self.notes.extend(outcome.notes)
        self.outcome = outcome
        if self._request < CHECKED_REQUESTS:
            invariants.check(self.machine.context)
        self.work.extend(outcome.work)
        if self.works_at_once:
            self.do_work()
        return outcome

    def do_work(self) -> None:
        """Carry out the work that has left the machine, and what comes of it; questions wait for their answers."""
        while self.work:
            work = self.work.pop(0)
            if isinstance(work, FindOffsets):
                self.feed(self.offsets_found(work))
            elif not isinstance(work, Computation):
                self.questions.append(work)
            elif isinstance(work, ResolveRegexes):
                self.feed(assignment.resolve_regexes(work, match))
            elif isinstance(work, ComputePushAssignment):
                self.feed(rebalance.compute_push_assignment(work, match))
            else:
                self.feed(assignment.compute_target_assignment(work))

    def offsets_found(self, work: FindOffsets) -> OffsetsFound:
        """Every log begins at 0 and ends at 100."""
        offset = 0 if work.from_begin else 100
        found = tuple(PushPosition(topic, partition, offset) for topic, partition in work.partitions)
        return OffsetsFound(work.group_id, work.member_id, work.ticket, found)

    def set_topics(self, **partitions: int) -> None:
        """The topics that exist, by name, with their partition counts."""
        topics = {name: Topic(name, topic_id(name), count) for name, count in partitions.items()}
        self.image = TopicImage(self.image.version + 1, topics)
        self.feed(TopicsChanged(self.image))

    def consumer_event(self, member_id: str, epoch: int = 0, **more: Any) -> ConsumerGroupHeartbeat:
        """A ConsumerGroupHeartbeat; a join (epoch 0) says all that a join must: topic t, rebalance timeout 60 s."""
        fields: dict[str, Any] = {
            "request": self.request(),
            "group_id": "g",
            "member_id": member_id,
            "new_member_id": "fresh",
            "member_epoch": epoch,
            "client": CLIENT,
        }
        if epoch == 0:
            fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topics": ("t",), "owned": ()}
        return ConsumerGroupHeartbeat(**(fields | more))

    def beat(self, member_id: str, epoch: int = 0, **more: Any) -> Any:
        """Send a ConsumerGroupHeartbeat; its reply as it stands now."""
        event = self.consumer_event(member_id, epoch, **more)
        self.feed(event)
        return self.replies.get(event.request)

    def _move(self, mono_ms: int) -> None:
        self.wall_ms += mono_ms - self.mono_ms
        self.mono_ms = mono_ms
