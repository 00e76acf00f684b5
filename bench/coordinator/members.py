"""Members of both protocols, without data: they join, hold an assignment, heartbeat and leave.

They act as Java's clients do: a heartbeat every interval, eager revocation, one leader that assigns. The first
heartbeat after a join comes at a random point of its interval, as among clients that started at different times.
What they hold is recorded at the moment they would process it, so that standstill is the clients' own.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from bench.coordinator.wire import Link

from kohort.errors import ErrorCode
from kohort.wire.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

RETRY_PAUSE_S = 0.1
JOIN, SYNC, HEARTBEAT, LEAVE = 7, 5, 4, 4


@dataclass
class Plan:
    """What all members of a run share. Times in milliseconds."""

    topic: str
    partitions: int
    topic_id: uuid.UUID
    heartbeat_ms: int = 3_000
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    address: Callable[[], tuple[str, int]] = lambda: ("127.0.0.1", 9092)


@dataclass
class Heard:
    """What a member saw, on time.monotonic()'s clock."""

    latencies: list[float] = field(default_factory=list)
    stood_still: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    rejoined: int = 0


class Member:
    """A member of one group; `stable` when it holds an assignment of `epoch` and would process."""

    def __init__(self, plan: Plan, group: str, name: str) -> None:
        self.plan, self.group, self.name = plan, group, name
        self.member_id = ""
        self.epoch = -1
        self.owned: frozenset[int] = frozenset()
        self.stable = False
        self.heard = Heard()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped_at: float | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def crash(self) -> None:
        """Vanish: the socket closes, nothing is said."""
        await self._end()
        if self._link is not None:
            self._link.abort()
        self.stable = False

    async def leave(self) -> None:
        await self._end()
        with suppress(ConnectionError):
            await self._say_leave(await self._open())
        if self._link is not None:
            self._link.abort()
        self.stable = False

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _open(self) -> Link:
        if self._link is None:
            self._link = await Link.open(*self.plan.address(), self.name)
        return self._link

    async def _run(self) -> None:
        while True:
            try:
                await self._live(await self._open())
            except (ConnectionError, OSError):
                self._link = None
                self._note("disconnected")
                await asyncio.sleep(RETRY_PAUSE_S)

    def _note(self, what: str) -> None:
        self.heard.errors[what] = self.heard.errors.get(what, 0) + 1

    def _stop_work(self) -> None:
        if self.stable:
            self.stable = False
            self._stopped_at = time.monotonic()

    def _start_work(self) -> None:
        if self._stopped_at is not None:
            self.heard.stood_still.append(time.monotonic() - self._stopped_at)
            self._stopped_at = None
        self.stable = True

    async def _timed(self, link: Link, request: object, version: int) -> object:
        started = time.monotonic()
        answer = await link.ask(request, version)
        self.heard.latencies.append(time.monotonic() - started)
        return answer

    async def _live(self, link: Link) -> None:
        raise NotImplementedError

    async def _say_leave(self, link: Link) -> None:
        raise NotImplementedError


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat with the eager range strategy."""

    async def _live(self, link: Link) -> None:
        while True:
            if not self.stable and not await self._join(link):
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            due = time.monotonic() + random.random() * self.plan.heartbeat_ms / 1000
            while self.stable:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = time.monotonic() + self.plan.heartbeat_ms / 1000
                await self._beat(link)

    async def _beat(self, link: Link) -> None:
        answer = await self._timed(
            link,
            HeartbeatRequest(group_id=self.group, generation_id=self.epoch, member_id=self.member_id),
            HEARTBEAT,
        )
        code = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
        if code is ErrorCode.NONE:
            return
        self._note(code.name)
        if code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            return
        self._stop_work()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else self.member_id

    async def _join(self, link: Link) -> bool:
        self.heard.rejoined += 1
        metadata = ConsumerProtocolSubscription(topics=[self.plan.topic]).encode(0)
        answer = await link.ask(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.plan.session_ms,
                rebalance_timeout_ms=self.plan.rebalance_ms,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0" + metadata)],
            ),
            JOIN,
        )
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return await self._join(link)
        if code is not ErrorCode.NONE:
            self._note(code.name)
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return False
        self.member_id, self.epoch = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self.member_id:
            assignments = self._assign(sorted(member.member_id for member in answer.members))
        return await self._sync(link, assignments)

    def _assign(self, members: list[str]) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        each, extra = divmod(self.plan.partitions, len(members))
        out, position = [], 0
        for index, member in enumerate(members):
            count = each + (index < extra)
            topics = [
                ConsumerProtocolAssignment.TopicPartition(
                    topic=self.plan.topic, partitions=list(range(position, position + count))
                )
            ]
            position += count
            data = b"\0\0" + ConsumerProtocolAssignment(assigned_partitions=topics).encode(0)
            out.append(SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data))
        return out

    async def _sync(self, link: Link, assignments: list[SyncGroupRequest.SyncGroupRequestAssignment]) -> bool:
        answer = await link.ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.epoch,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            ),
            SYNC,
        )
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self._note(code.name)
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return code is ErrorCode.REBALANCE_IN_PROGRESS and await self._join(link)
        owned: set[int] = set()
        if answer.assignment:
            decoded = ConsumerProtocolAssignment.decode(answer.assignment[2:], 0)
            for topic in decoded.assigned_partitions:
                owned.update(topic.partitions)
        self.owned = frozenset(owned)
        self._start_work()
        return True

    async def _say_leave(self, link: Link) -> None:
        await link.ask(
            LeaveGroupRequest(
                group_id=self.group,
                members=[LeaveGroupRequest.MemberIdentity(member_id=self.member_id)],
            ),
            LEAVE,
        )


class ConsumerMember(Member):
    """KIP-848: one request kind; revoked partitions are acknowledged at once, as a client with nothing to finish does."""

    def __init__(self, plan: Plan, group: str, name: str) -> None:
        super().__init__(plan, group, name)
        self.member_id = str(uuid.uuid4())
        self.told_ms = plan.heartbeat_ms
        self._acknowledged = True

    async def _live(self, link: Link) -> None:
        if self.epoch < 0:
            self.epoch = 0
        full = True
        while True:
            changed = await self._beat(link, full)
            full = self.epoch == 0
            if full:
                await asyncio.sleep(RETRY_PAUSE_S)
            elif not changed:
                await asyncio.sleep(self.told_ms / 1000)

    async def _beat(self, link: Link, full: bool) -> bool:
        """One heartbeat; True when the member has something to acknowledge at once."""
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if full or not self._acknowledged:
            request.topic_partitions = self._topic_partitions()
        if full:
            request.rebalance_timeout_ms = self.plan.rebalance_ms
            request.subscribed_topic_names = [self.plan.topic]
        answer = await self._timed(link, request, 1)
        code = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
        if code is not ErrorCode.NONE:
            self._note(code.name)
            if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.epoch, self.owned = 0, frozenset()
                self._stop_work()
            else:
                await asyncio.sleep(RETRY_PAUSE_S)
            return False
        self.told_ms = answer.heartbeat_interval_ms  # type: ignore[attr-defined]
        self.epoch = answer.member_epoch  # type: ignore[attr-defined]
        self._acknowledged = True
        if answer.assignment is None:  # type: ignore[attr-defined]
            return False
        owned: set[int] = set()
        for topic in answer.assignment.topic_partitions:  # type: ignore[attr-defined]
            owned.update(topic.partitions)
        changed = frozenset(owned) != self.owned
        self.owned = frozenset(owned)
        self._acknowledged = not changed
        self._start_work()
        return changed

    def _topic_partitions(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        if not self.owned:
            return []
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self.plan.topic_id, partitions=sorted(self.owned))
        ]

    async def _say_leave(self, link: Link) -> None:
        await link.ask(
            ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=-1),
            1,
        )
