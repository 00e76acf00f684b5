"""Members of both protocols, without data: they join, hold an assignment, heartbeat and leave.

They act as Java's clients do, as librdkafka's (KIP-848), or as kohort's, which keep a lease. Those of librdkafka wait
for a response no longer than the interval that they were given. The first heartbeat after a join comes at a random
point of its interval, as among clients that started at different times. A lost connection is noticed at once, as by
clients that watch their sockets. The first heartbeat on the next connection comes without delay. A restart is thus
measured by the coordinator's handling of the storm, not by the interval. Assignments are recorded at the moment when
the members would process them, so that downtime is the clients' own.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.coordinator.book import Book
from bench.coordinator.wire import Link
from kohort.consumer_protocol import ConsumerProtocolSubscription, read_assignment, write_assignment, write_subscription
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.io.processes import lease_heartbeat_ms, process_identity
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kohort.wire.offsets import OffsetCommitRequest

RETRY_PAUSE_S = 0.1
JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT = 7, 5, 4, 4, 9
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class Plan:
    """The common settings of all members of a run. Times in milliseconds.

    Attributes:
        software: the client's software name, "" for none.
        patient: whether a client waits for a response longer than the interval it was given.
        id_length: client ids are padded to this number of characters.
        commit_ms: the interval of classic members' commits, 0: none.
        from_reply: the next heartbeat is due an interval after the last response, not after the last request.
        processes: each member claims to be a process of its own, which sleeps until the member crashes or is gone.
        servers: push members ask these, in turn, for their coordinator; empty: they know it.
        leased: push members keep the lease that kohort's own keep.
    """

    topic: str
    partitions: int
    topic_id: uuid.UUID
    heartbeat_ms: int = 3_000
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    address: Callable[[], tuple[str, int]] = lambda: ("127.0.0.1", 9092)
    software: str = "apache-kafka-java"
    patient: bool = True
    id_length: int = 0
    commit_ms: int = 0
    from_reply: bool = False
    processes: bool = False
    servers: tuple[tuple[str, int], ...] = ()
    leased: bool = False


@dataclass
class Heard:
    """The observations of one member, on time.monotonic()'s clock."""

    latencies: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    downtimes_s: list[float] = field(default_factory=list)
    pings: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Member:
    """A member of one group; `stable` when it holds an assignment of `epoch`, and the coordinator has said so."""

    def __init__(self, plan: Plan, group: str, name: str, book: Book) -> None:
        self.plan, self.group = plan, group
        self.name = name.ljust(plan.id_length, "x")
        self.book = book
        self.member_id = ""
        self.epoch = -1
        self.owned: frozenset[int] = frozenset()
        self.stable = False
        self.lease_ms = 0
        self.heard = Heard()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._working = False
        self._stopped_at: float | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def crash(self) -> None:
        """Vanish: the socket closes, nothing is said."""
        await self._end()
        self._gone()

    async def leave(self) -> None:
        await self._end()
        with suppress(ConnectionError):
            await self._say_leave(await self._open())
        self._gone()

    async def freeze(self) -> None:
        """Stop without closing anything, as a process that is paused."""
        await self._end()
        self._hold(frozenset())

    async def thaw(self) -> bool:
        """Wake, and commit with what it was; whether the coordinator took it."""
        offset = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=self.plan.topic, partitions=[offset])
        request = OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.epoch,
            topics=[topic],
        )
        taken = False
        with suppress(ConnectionError):
            answer = await (await self._open()).ask(request, COMMIT)
            taken = answer.topics[0].partitions[0].error_code == 0
        self._gone()
        return taken

    def _gone(self) -> None:
        if self._process is not None:
            self._process.kill()
        if self._link is not None:
            self._link.abort()
        if self._process is not None:
            self._process.communicate()
            self._process = None
        self.stable = False
        self._hold(frozenset())

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _open(self) -> Link:
        if self._link is None:
            link = await Link.open(*self.plan.address(), self.name)
            if self.plan.software:
                said = ApiVersionsRequest(
                    client_software_name=self.plan.software,
                    client_software_version="1",
                    client_process=self._process_name(),
                )
                self.lease_ms = (await link.ask(said, 3)).lease_ms
            self._link = link
        return self._link

    def _process_name(self) -> str:
        if not self.plan.processes:
            return ""
        if self._process is None:
            self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # ends with this one at the latest
        return process_identity(self._process.pid)

    async def _run(self) -> None:
        while True:
            try:
                await self._live(await self._open())
            except (ConnectionError, OSError):
                if self._link is not None:
                    self.note("disconnected")
                    self._link = None
                self.stable = False
                await asyncio.sleep(RETRY_PAUSE_S * random.uniform(0.8, 1.2))

    def note(self, what: str) -> None:
        self.heard.errors[what] = self.heard.errors.get(what, 0) + 1

    def _hold(self, owned: frozenset[int]) -> None:
        """Process these from now on, and nothing else."""
        self.book.release(self, self.owned - owned)
        self.book.take(self, owned)
        self.owned = owned

    def _stop_work(self) -> None:
        self.stable = False
        if self._working:
            self._stopped_at = time.monotonic()
        self._working = False
        self._hold(frozenset())

    def _start_work(self, owned: frozenset[int]) -> None:
        if self._stopped_at is not None:
            self.heard.downtimes_s.append(time.monotonic() - self._stopped_at)
            self._stopped_at = None
        self._hold(owned)
        self.stable = self._working = True

    async def _timed(self, link: Link, request: Any, version: int, within_ms: int = 0) -> Any:
        started = time.monotonic()
        if within_ms:
            try:
                answer = await asyncio.wait_for(link.ask(request, version), within_ms / 1000)
            except TimeoutError:
                self.note("timed out")
                link.abort()
                raise ConnectionError("no answer in time") from None
        else:
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
        committing = asyncio.create_task(self._commit_often(link))
        try:
            await self._join_and_beat(link)
        finally:
            committing.cancel()

    async def _commit_often(self, link: Link) -> None:
        """Commit as clients do on their own, on the connection of the heartbeats."""
        pause = self.plan.commit_ms / 1000
        if not pause:
            return
        await asyncio.sleep(random.random() * pause)
        while True:
            started = time.monotonic()
            if self._working and self.owned:
                with suppress(ConnectionError):
                    await self._commit(link)
                    self.heard.commits.append(time.monotonic() - started)
            await asyncio.sleep(max(0.0, started + pause - time.monotonic()))

    async def _commit(self, link: Link) -> None:
        offset = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=min(self.owned), committed_offset=1)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=self.plan.topic, partitions=[offset])
        request = OffsetCommitRequest(
            group_id=self.group, member_id=self.member_id, generation_id_or_member_epoch=self.epoch, topics=[topic]
        )
        answer = await link.ask(request, COMMIT)
        if (code := answer.topics[0].partitions[0].error_code) != 0:
            self.note(f"commit: {ErrorCode(code).name}")

    async def _join_and_beat(self, link: Link) -> None:
        if self._working:  # back after a lost connection
            await self._beat(link)
        while True:
            if not self._working and not await self._join(link):
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            interval = self.plan.heartbeat_ms / 1000
            due = time.monotonic() + random.random() * interval
            if self.lease_ms:  # as kohort's clients: at once, since the answer comes when there is something to say
                due, interval = 0.0, min(interval, lease_heartbeat_ms(self.lease_ms) / 1000)
            while self._working:
                await link.idle(due - time.monotonic())
                due = time.monotonic() + interval
                await self._beat(link)
                if self.plan.from_reply:
                    due = time.monotonic() + interval

    async def _beat(self, link: Link) -> None:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.epoch, member_id=self.member_id)
        answer = await self._timed(link, request, HEARTBEAT)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self.stable = True
            return
        self.note(code.name)
        if code in NOT_YET:
            await asyncio.sleep(RETRY_PAUSE_S)
            await self._beat(link)
            return
        self._stop_work()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    async def _join(self, link: Link) -> bool:
        metadata = write_subscription(ConsumerProtocolSubscription(0, (self.plan.topic,)))
        answer = await link.ask(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.plan.session_ms,
                rebalance_timeout_ms=self.plan.rebalance_ms,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
            ),
            JOIN,
        )
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return await self._join(link)
        if code is not ErrorCode.NONE:
            self.note(code.name)
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
            share = [TopicPartition(self.plan.topic, number) for number in range(position, position + count)]
            position += count
            data = write_assignment(0, share)
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
            self.note(code.name)
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return code is ErrorCode.REBALANCE_IN_PROGRESS and await self._join(link)
        owned: set[int] = set()
        if answer.assignment:
            assignment = read_assignment(bytes(answer.assignment))
            if assignment is not None:
                owned.update(number for _, number in assignment.partitions)
        self._start_work(frozenset(owned))
        return True

    async def _say_leave(self, link: Link) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        await link.ask(LeaveGroupRequest(group_id=self.group, members=[leaving]), LEAVE)


class ConsumerMember(Member):
    """KIP-848: one request kind.

    Revoked partitions are acknowledged at once, as by a client with nothing to finish.
    """

    def __init__(self, plan: Plan, group: str, name: str, book: Book) -> None:
        super().__init__(plan, group, name, book)
        self.member_id = str(uuid.uuid4())
        self.interval_ms = plan.heartbeat_ms
        self._acknowledged = True
        self._settled = False

    async def _live(self, link: Link) -> None:
        self.epoch = max(self.epoch, 0)
        full = True
        while True:
            sent = time.monotonic()
            changed = await self._beat(link, full)
            full = self.epoch == 0
            if full:
                await asyncio.sleep(RETRY_PAUSE_S)
            elif not changed:
                await link.idle(sent + self._pause_s() - time.monotonic())

    def _pause_s(self) -> float:
        """Until the next heartbeat; the first whole interval is a part of one, so that members spread over it."""
        if self._settled or self.interval_ms < self.plan.heartbeat_ms:
            return self.interval_ms / 1000
        self._settled = True
        return random.random() * self.interval_ms / 1000

    async def _beat(self, link: Link, full: bool) -> bool:
        """One heartbeat; True when the member has something to acknowledge at once."""
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if full or not self._acknowledged:
            request.topic_partitions = self._topic_partitions() if self.epoch else []
        if full:
            request.rebalance_timeout_ms = self.plan.rebalance_ms
            request.subscribed_topic_names = [self.plan.topic]
        answer = await self._timed(link, request, 1, 0 if self.plan.patient or full else self.interval_ms)
        code = ErrorCode(answer.error_code)
        if code in NOT_YET:
            self.note(code.name)
            await asyncio.sleep(RETRY_PAUSE_S)
            return await self._beat(link, full)
        if code is not ErrorCode.NONE:
            self.note(code.name)
            if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.epoch = 0
                self._settled = False
                self._stop_work()
            else:
                await asyncio.sleep(RETRY_PAUSE_S)
            return False
        self.interval_ms = answer.heartbeat_interval_ms
        self.epoch = answer.member_epoch
        self._acknowledged = True
        if answer.assignment is None:
            self.stable = True
            return False
        owned: set[int] = set()
        for topic in answer.assignment.topic_partitions:
            owned.update(topic.partitions)
        changed = frozenset(owned) != self.owned
        self._acknowledged = not changed
        self._start_work(frozenset(owned))
        return changed

    def _topic_partitions(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        if not self.owned:
            return []
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self.plan.topic_id, partitions=sorted(self.owned))
        ]

    async def _say_leave(self, link: Link) -> None:
        leaving = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=-1)
        await link.ask(leaving, 1)
