"""One member of one group in the classic protocol, from the first join to the leave. No I/O; see `kohort.client.runtime`.

Two levels that the application reads, and one word it says:

- `assignment`: what the member holds now. Empty before the first join and after a revocation was released.
- `revocation`: what the group wants back; stays until the application says `release()`. The member heartbeats meanwhile, and
  joins again only after it. One with `lost` set says that the partitions are someone else's already.

States, and what moves the member on:

========== ============================================================ =====================================================
state      meaning                                                      leaves it
========== ============================================================ =====================================================
IDLE       no subscription, or given up for not polling                 subscribe; poll
REVOKING   waits for the application to release partitions              release, or fenced meanwhile
JOINING    JoinGroup is out; partitions are held only cooperatively     its answer
SYNCING    joined; the leader assigns; SyncGroup is out                 its answer
HOLDING    a generation is held, heartbeats go on                       the group rebalances; subscription or metadata change;
                                                                        fenced; session over by the own clock; poll overdue
LEFT       closed                                                       -
========== ============================================================ =====================================================

Source: spec 3.1–3.11, KIP-62, KIP-345, KIP-394, KIP-429.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from kohort.client.classic_protocol import ClassicProtocol, Subscription
from kohort.client.cluster import Cluster, Coordinator, Versioned
from kohort.client.offset_values import Assignment, Revocation
from kohort.client.offsets import LOST_COORDINATOR, GroupIdentity
from kohort.client.runtime import Promise, Task
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, FencedError, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

log = logging.getLogger("kohort.client")
_JOIN_GRACE_MS = 5_000
_NO_GENERATION = -1
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class MemberState(Enum):
    IDLE = "idle"
    REVOKING = "revoking"
    JOINING = "joining"
    SYNCING = "syncing"
    HOLDING = "holding"
    LEFT = "left"


class _Rejoin(Exception):
    """Control flow: the round is over, join again; `reset` forgets the member id."""

    def __init__(self, code: ErrorCode, reset: bool = False) -> None:
        super().__init__(code.name)
        self.code = code
        self.reset = reset


class Membership:
    """See the module's text.

    Attributes:
        assignment, revocation: The two levels.
        error: Why the group can't be joined; take it with `take_error`, after which the member tries again.
        sequence: Grows with every change of `assignment` or `revocation`.
        rebalances: Assignments received.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        poll_bound: bool = True,
    ) -> None:
        """A member of `config.group_id`, idle until it subscribes.

        Args:
            cluster: Way to the coordinator.
            config: `group_id` must be set.
            changed: Called after each change of a level.
            poll_bound: Whether `polled()` must be called every `max_poll_interval_ms`.
        """
        if config.group_id is None:
            raise ValueError("membership needs a group id")
        self.cluster = cluster
        self.config = config
        self.group = config.group_id
        self.state = MemberState.IDLE
        self.assignment = Assignment()
        self.revocation: Revocation | None = None
        self.error: KafkaError | None = None
        self.sequence = 0
        self.rebalances = 0
        self.protocol = ClassicProtocol(cluster, config, self.request_rejoin)
        self._coordinator = Coordinator(self.group)
        self._announce = changed
        self._poll_bound = poll_bound
        self._polled_ms = cluster.runtime.now_ms
        self._subscription: Subscription | None = None
        self._member_id = ""
        self._generation = _NO_GENERATION
        self._chosen = ""
        self._rejoin_reason: str | None = None
        self._fenced: ErrorCode | None = None
        self._overdue = False
        self._awaiting_sync = False
        self._heard_ms = 0.0
        self._beating: Task[None] | None = None
        self._moved: Promise[None] = Promise()
        self._main: Task[None] | None = None
        cluster.on_metadata(lambda _: self._metadata_changed())

    # What the application says.

    def subscribe(self, subscription: Subscription) -> None:
        """Subscribe, or change the subscription: the member joins (again)."""
        before, self._subscription = self._subscription, subscription
        self.protocol.subscribe(subscription)
        if before is not None and before != subscription:
            self.request_rejoin("the subscription changed")
        if self._main is None:
            self._main = self.cluster.runtime.spawn(self._live(), f"member of {self.group}")
        self._move()

    def release(self) -> None:
        """Acknowledge the revocation: its partitions are not held any more."""
        if self.revocation is None:
            return
        gone = set(self.revocation.partitions)
        kept = tuple(part for part in self.assignment.partitions if part not in gone)
        self.revocation = None
        self._hold(kept, self.assignment.user_data)

    def polled(self) -> None:
        """The application is alive."""
        self._polled_ms = self.cluster.runtime.now_ms
        if self._overdue:
            self._overdue = False
            self._move()

    def request_rejoin(self, reason: str) -> None:
        """Rebalance the group."""
        self._rejoin_reason = self._rejoin_reason or reason
        self._move()

    def take_error(self) -> KafkaError | None:
        """The error that keeps the member out of the group, once; the member then tries again."""
        error = self.error
        if error is not None and not isinstance(
            error, FencedError
        ):  # a fenced member must not fight with its successor
            self.error = None
            self._move()
        return error

    def identity(self) -> GroupIdentity:
        """As whom to commit."""
        return GroupIdentity(self._generation, self._member_id, self.config.group_instance_id)

    @property
    def subscription(self) -> Subscription | None:
        return self._subscription

    @property
    def chosen_protocol(self) -> str:
        """The assignor that the group agreed on; empty before the first join."""
        return self._chosen

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def holding(self) -> bool:
        """Whether the assignment of a generation is held, with nothing to give up."""
        return self.state is MemberState.HOLDING and self.revocation is None and self._fenced is None

    async def leave(self, reason: str) -> None:
        """Leave the group at once, if a member, and stop. A static member leaves only the process: its partitions wait for it."""
        self._subscription = None
        self._stop_beating()
        if self._main is not None:
            self._main.cancel()
            self._main = None
        self.state = MemberState.LEFT
        self.revocation = None
        self._hold((), None)
        await self._send_leave(reason)
        self._generation = _NO_GENERATION
        self._member_id = ""

    # The life of a member.

    async def _live(self) -> None:
        failures = 0
        while True:
            await self._until(lambda: self._subscription is not None and self.error is None and not self._overdue)
            try:
                await self._round()
                failures = 0
                await self._holding()
            except _Rejoin as again:
                failures = failures + 1 if again.code is not ErrorCode.MEMBER_ID_REQUIRED else 0
                await self._after(again)
            except RetriableError as error:
                log.debug("group %s: %s", self.group, error)
                failures += 1
            except KafkaError as error:
                self._fatal(error)
            if failures:
                config = self.config
                await self.cluster.runtime.sleep(
                    self.cluster.links.backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms)
                )

    async def _round(self) -> None:
        """One rebalance as this member sees it: give up, join, sync, take."""
        reason, self._rejoin_reason = self._rejoin_reason or "", None
        await self._give_up_before_joining()
        self._stop_beating()
        self.state = MemberState.JOINING
        try:
            joined = await self._join(reason)
        except Exception:
            self._start_beating()
            raise
        self._generation, self._chosen = joined.generation_id, joined.protocol_name or ""
        self._member_id = joined.member_id
        self._fenced = None
        self._heard_ms = self.cluster.runtime.now_ms
        self.state = MemberState.SYNCING
        self._start_beating()
        content = await self._sync(joined)
        await self._take(content)

    async def _give_up_before_joining(self) -> None:
        if self._fenced is not None:
            await self._lose(self._fenced)
        held = self.assignment.partitions
        given_up = held if self.protocol.eager else self.protocol.unsubscribed(held)
        if given_up and self._generation != _NO_GENERATION:
            await self._revoke(given_up)
            if self._fenced is not None:
                await self._lose(self._fenced)

    async def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask the application to let go, and wait for it while heartbeats go on."""
        self.state = MemberState.REVOKING
        deadline = self.cluster.runtime.now_ms + self.config.max_poll_interval_ms
        self.revocation = Revocation(tuple(sorted(partitions)), deadline)
        self._changed()
        await self._until(lambda: self.revocation is None or self._fenced is not None)

    async def _lose(self, code: ErrorCode) -> None:
        """Everything held is lost: tell the application and wait until it has heard."""
        self._stop_beating()
        self._fenced = None
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self._member_id = ""
        self._generation = _NO_GENERATION
        if self.assignment.partitions:
            log.warning("group %s: this member lost its partitions: %s", self.group, code.text)
            self.revocation = Revocation(self.assignment.partitions, self.cluster.runtime.now_ms, lost=True)
            self._changed()
            await self._until(lambda: self.revocation is None)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            instance = self.config.group_instance_id
            raise FencedError(
                f"group {self.group!r}: another member with group.instance.id {instance!r} took over", code
            )

    async def _join(self, reason: str) -> Any:
        await self.protocol.prepare()
        protocols = self.protocol.metadata(self.assignment, self._generation)

        def build(version: int) -> JoinGroupRequest:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.config.session_timeout_ms,
                member_id=self._member_id,
                protocol_type=self.protocol.protocol_type,
                protocols=[
                    JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols
                ],
            )
            if version >= 1:
                request.rebalance_timeout_ms = self.config.max_poll_interval_ms
            if version >= 5:
                request.group_instance_id = self.config.group_instance_id
            if version >= 8:
                request.reason = reason[:255] or None
            return request

        timeout_ms = max(self.config.request_timeout_ms, self.config.max_poll_interval_ms + _JOIN_GRACE_MS)
        answer = await self._ask(Versioned(JoinGroupRequest, build), timeout_ms)
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            raise _Rejoin(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            raise _Rejoin(code, reset=True)
        self._raise_for(code, "join")
        return answer

    async def _sync(self, joined: Any) -> bytes:
        """The assignment's bytes; the leader computes everyone's first."""
        assignments: list[tuple[str, bytes]] = []
        if joined.leader == joined.member_id:
            try:
                assignments = await self.protocol.assign(joined)
            except KafkaError:
                await self._send_leave("the assignor failed")
                raise
        else:
            self.protocol.followed()

        def build(version: int) -> SyncGroupRequest:
            entry = SyncGroupRequest.SyncGroupRequestAssignment
            request = SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[entry(member_id=member, assignment=data) for member, data in assignments],
            )
            if version >= 3:
                request.group_instance_id = self.config.group_instance_id
            if version >= 5:
                request.protocol_type, request.protocol_name = self.protocol.protocol_type, joined.protocol_name
            return request

        timeout_ms = max(self.config.request_timeout_ms, self.config.max_poll_interval_ms + _JOIN_GRACE_MS)
        deadline = self.cluster.runtime.now_ms + self.config.max_poll_interval_ms
        failures = 0
        while True:
            try:
                self._awaiting_sync = True
                try:
                    answer = await self._ask(Versioned(SyncGroupRequest, build), timeout_ms)
                finally:
                    self._awaiting_sync = False
                code = ErrorCode.of(answer.error_code)
                if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    raise _Rejoin(code, reset=True)
                self._raise_for(code, "sync")
                return bytes(answer.assignment)
            except RetriableError:
                failures += 1
                if self._fenced is not None or self.cluster.runtime.now_ms > deadline:
                    raise
                await self.cluster.runtime.sleep(
                    self.cluster.links.backoff_ms(
                        failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms
                    )
                )

    async def _take(self, content: bytes) -> None:
        partitions, user_data = self.protocol.decode_assignment(content)
        self.protocol.assigned(self._chosen, partitions, user_data, self._generation)
        kept = set(partitions)
        revoked = [part for part in self.assignment.partitions if part not in kept]
        if revoked:
            await self._revoke(revoked)
            if self._fenced is not None:
                await self._lose(self._fenced)
                raise _Rejoin(ErrorCode.ILLEGAL_GENERATION)
            self.request_rejoin("partitions were given up for another member")
        self.rebalances += 1
        self.state = MemberState.HOLDING
        self._hold(tuple(sorted(partitions)), user_data)

    async def _holding(self) -> None:
        """Until there is a reason to join again."""
        runtime = self.cluster.runtime
        while self._rejoin_reason is None and self._fenced is None:
            wait = self._polled_ms + self.config.max_poll_interval_ms - runtime.now_ms if self._poll_bound else None
            if wait is not None and wait <= 0:
                await self._poll_overdue()
                return
            moved = self._moved
            await runtime.first(moved, timeout_ms=wait)

    async def _poll_overdue(self) -> None:
        limit = self.config.max_poll_interval_ms
        log.warning(
            "group %s: no poll for %d ms (max.poll.interval.ms): this member leaves its group until the next poll",
            self.group,
            limit,
        )
        self._overdue = True
        self._stop_beating()
        await self._send_leave(f"not polled for {limit} ms")
        await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)

    async def _after(self, again: _Rejoin) -> None:
        if again.reset:
            await self._lose(again.code)
        self._rejoin_reason = self._rejoin_reason or f"after {again.code.name}"

    def _fatal(self, error: KafkaError) -> None:
        self._stop_beating()
        self.state = MemberState.IDLE
        self.error = error
        self._changed()

    # Heartbeats.

    def _start_beating(self) -> None:
        if self._generation != _NO_GENERATION and self._beating is None:
            self._beating = self.cluster.runtime.spawn(self._beat(), f"heartbeats of {self.group}")

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _beat(self) -> None:
        runtime, config = self.cluster.runtime, self.config
        due = runtime.now_ms + config.heartbeat_interval_ms
        while True:
            await runtime.sleep(max(0.0, due - runtime.now_ms))
            sent = runtime.now_ms
            due = sent + config.heartbeat_interval_ms
            session_left = self._heard_ms + config.session_timeout_ms - sent
            if session_left <= 0:
                self._fence(ErrorCode.UNKNOWN_MEMBER_ID)
                return
            if self._awaiting_sync:  # the coordinator knows that this member waits for the leader
                self._heard_ms = sent
                continue
            try:
                code = await self._heartbeat(min(config.request_timeout_ms, session_left))
            except RetriableError:
                due = min(due, runtime.now_ms + config.retry_backoff_ms)
                continue
            if code is ErrorCode.NONE or code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._heard_ms = sent
                if code is ErrorCode.REBALANCE_IN_PROGRESS and self.state is MemberState.HOLDING:
                    self.request_rejoin("the group rebalances")
            elif code in _FENCED:
                self._fence(code)
                return
            elif code in (*LOST_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                due = min(due, runtime.now_ms + config.retry_backoff_ms)
            else:
                self.error = error_for(code, f"heartbeat of group {self.group!r}")
                self._fence(ErrorCode.UNKNOWN_MEMBER_ID)
                return

    async def _heartbeat(self, timeout_ms: float) -> ErrorCode:
        def build(version: int) -> HeartbeatRequest:
            request = HeartbeatRequest(group_id=self.group, generation_id=self._generation, member_id=self._member_id)
            if version >= 3:
                request.group_instance_id = self.config.group_instance_id
            return request

        answer = await self._ask(Versioned(HeartbeatRequest, build), timeout_ms)
        code = ErrorCode.of(answer.error_code)
        if code in LOST_COORDINATOR:
            self.cluster.forget_coordinator(self._coordinator)
        return code

    def _fence(self, code: ErrorCode) -> None:
        self._fenced = code
        self._beating = None
        self._move()

    # Inside.

    async def _send_leave(self, reason: str) -> None:
        if not self._member_id or self.config.group_instance_id is not None:
            return
        member_id, self._member_id = self._member_id, ""

        def build(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=self.group, member_id=member_id)
            entry = LeaveGroupRequest.MemberIdentity(member_id=member_id)
            if version >= 5:
                entry.reason = reason[:255]
            return LeaveGroupRequest(group_id=self.group, members=[entry])

        try:
            # On a connection of its own: a JoinGroup that waits would hold it up.
            await self._ask(
                Versioned(LeaveGroupRequest, build), min(self.config.request_timeout_ms, 3_000), f"leave:{self.group}"
            )
        except KafkaError as error:
            log.debug("group %s: leave was not heard: %s", self.group, error)

    async def _ask(self, message: Versioned, timeout_ms: float, lane: str = "main") -> Any:
        try:
            return await self.cluster.send(message, self._coordinator, timeout_ms=timeout_ms, lane=lane)
        except RetriableError:
            self.cluster.forget_coordinator(self._coordinator)
            raise

    def _raise_for(self, code: ErrorCode, what: str) -> None:
        if code is ErrorCode.NONE:
            return
        if code in LOST_COORDINATOR:
            self.cluster.forget_coordinator(self._coordinator)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            raise _Rejoin(code)
        raise error_for(code, f"{what} of group {self.group!r}: {code.text}")

    def _metadata_changed(self) -> None:
        if self._subscription is not None and self._generation != _NO_GENERATION:
            self.protocol.metadata_changed()

    def _hold(self, partitions: tuple[TopicPartition, ...], user_data: bytes | None) -> None:
        self.assignment = Assignment(partitions, self._generation, self._member_id, user_data)
        self._changed()

    def _changed(self) -> None:
        self.sequence += 1
        self._announce()
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, Promise()
        moved.resolve(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._moved
