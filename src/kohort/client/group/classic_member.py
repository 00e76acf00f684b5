"""A member in the classic protocol: members join, the leader among them assigns.

States, and what moves the member on:

========== ======================================================== ====================================================
state      meaning                                                  leaves it
========== ======================================================== ====================================================
IDLE       no subscription, or given up for not polling             subscribe; poll
REVOKING   waits for the application to release partitions          release, or fenced meanwhile
JOINING    JoinGroup is out; partitions are held only cooperatively its answer
SYNCING    joined; the leader assigns; SyncGroup is out             its answer
HOLDING    a generation is held, heartbeats go on                   the group rebalances; subscription or metadata
                                                                    change; fenced; session over by the own clock; poll
                                                                    overdue
LEFT       closed                                                   -
========== ======================================================== ====================================================

Source: spec 3.1–3.11, KIP-62, KIP-345, KIP-394, KIP-429.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kohort.client.group.classic_protocol import ClassicProtocol
from kohort.client.group.membership import LEAVE_MS, NOT_HEARD, Membership, MemberState
from kohort.client.net.cluster import Cluster
from kohort.client.net.notices import fault
from kohort.client.net.runtime import Promise, Task
from kohort.client.offset_requests import LOST_COORDINATOR
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.wire.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

log = logging.getLogger("kohort.client")
_JOIN_GRACE_MS = 5_000
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class _Rejoin(Exception):
    """Control flow: the round is over, join again; `reset` forgets the member id."""

    def __init__(self, code: ErrorCode, reset: bool = False) -> None:
        super().__init__(code.name)
        self.code = code
        self.reset = reset


class ClassicMembership(Membership):
    """See the module's text."""

    NOT_JOINED = -1

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        poll_bound: bool = True,
    ) -> None:
        """As Membership."""
        super().__init__(cluster, config, changed=changed, poll_bound=poll_bound)
        self.protocol = ClassicProtocol(cluster, config, self, self.request_rejoin)
        self.chosen_protocol = ""
        self._rejoin_reason: str | None = None
        self._syncing = False
        self._beating: Task[None] | None = None
        self._failure: KafkaError | None = None
        self._beat_now: Promise[None] = Promise()

    def request_rejoin(self, reason: str) -> None:
        """Rebalance the group."""
        self._rejoin_reason = self._rejoin_reason or reason
        self._move()

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
                failures += 1
                self._not_yet(error, failures)
            except Exception as error:  # noqa: BLE001 - the application is told, whatever it is
                await self._fatal(fault(f"group {self.group!r}", error))
            if failures:
                await self.cluster.runtime.sleep(self._backoff_ms(failures))

    async def _round(self) -> None:
        """One rebalance as this member sees it: give up, join, sync, take."""
        await self._until(lambda: self.revocation is None)  # nothing is claimed that is being lost
        self._raise_failure()
        await self._give_up_before_joining()
        self._raise_failure()
        if not self.assignment.partitions:
            self._stop_beating()
        reason, self._rejoin_reason = (
            self._rejoin_reason or "",
            None,
        )  # also what came while it gave up: this join serves it
        self._unsettle()
        self.state = MemberState.JOINING
        sent_ms = self.cluster.runtime.now_ms
        try:
            joined = await self._join(reason)
        except Exception:
            self._start_beating()
            raise
        self._generation, self.chosen_protocol = joined.generation_id, joined.protocol_name or ""
        self._member_id = joined.member_id
        self._fenced = self._failure = None
        self._heard_ms = max(self._heard_ms, sent_ms) if self.assignment.partitions else self.cluster.runtime.now_ms
        self.state = MemberState.SYNCING
        self._start_beating()
        self._syncing = True
        try:
            content = await self._sync(joined)
        finally:
            self._syncing = False
        await self._take(content)

    async def _give_up_before_joining(self) -> None:
        if self._fenced is not None:
            await self._lose(self._fenced)
        held = self.assignment.partitions
        given_up = held if self.protocol.eager else self.protocol.unsubscribed(held)
        if given_up and self.joined:
            await self._revoke(given_up)
            if self._fenced is not None:
                await self._lose(self._fenced)

    async def _lose(self, code: ErrorCode) -> None:
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self._member_id = ""
        await super()._lose(code)

    async def _join(self, reason: str) -> JoinGroupResponse:
        await self.protocol.prepare()
        protocols = self.protocol.metadata(self.assignment, self._generation)

        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.max_poll_interval_ms,
            member_id=self._member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=self.protocol.protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            reason=reason[:255] or None,
        )
        timeout_ms = max(self.config.request_timeout_ms, self.config.max_poll_interval_ms + _JOIN_GRACE_MS)
        answer = await self._ask(request, timeout_ms)
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            raise _Rejoin(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            raise _Rejoin(code, reset=True)
        self._raise_for(code, "join")
        return answer

    async def _sync(self, joined: JoinGroupResponse) -> bytes:
        """The assignment's bytes; the leader computes everyone's first."""
        assignments: list[tuple[str, bytes]] = []
        if joined.leader == joined.member_id:
            try:
                assignments = await self.protocol.assign(joined)
            except KafkaError:
                await self._tell_left("the assignor failed")
                raise
        else:
            self.protocol.followed()

        entry = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=self.protocol.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=[entry(member_id=member, assignment=data) for member, data in assignments],
        )
        timeout_ms = max(self.config.request_timeout_ms, self.config.max_poll_interval_ms + _JOIN_GRACE_MS)
        deadline = self.cluster.runtime.now_ms + self.config.max_poll_interval_ms
        failures = 0
        while True:
            sent, sent_ms = self.cluster.runtime.elapsed_ms(), self.cluster.runtime.now_ms
            try:
                answer = await self._ask(request, timeout_ms)
                code = ErrorCode.of(answer.error_code)
                if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    raise _Rejoin(code, reset=True)
                self._raise_for(code, "sync")
                self._heard_ms = max(self._heard_ms, sent_ms)
                if self._session_left_ms() <= 0:  # what the answer gives may be others' by now
                    raise _Rejoin(ErrorCode.ILLEGAL_GENERATION, reset=True)
                self._renew(sent)
                return bytes(answer.assignment)
            except RetriableError:
                failures += 1
                if self._fenced is not None or self.cluster.runtime.now_ms > deadline:
                    raise
                await self.cluster.runtime.sleep(self._backoff_ms(failures))

    async def _take(self, content: bytes) -> None:
        await self._until(lambda: self.revocation is None)
        partitions, user_data = self.protocol.decode_assignment(content)
        self.protocol.assigned(self.chosen_protocol, partitions, user_data, self._generation)
        kept = set(partitions)
        revoked = [part for part in self.assignment.partitions if part not in kept]
        if revoked:
            await self._revoke(revoked)
            if self._fenced is not None:
                await self._lose(self._fenced)
                raise _Rejoin(ErrorCode.ILLEGAL_GENERATION)
            self.request_rejoin("partitions were given up for another member")
        self._settle(tuple(sorted(partitions)), user_data)
        if self._lease.length_ms is not None and self._rejoin_reason is None:
            self._beat_now.resolve(None)  # a broker that tells a lease answers when there is something to say

    async def _holding(self) -> None:
        """Until there is a reason to join again."""
        runtime = self.cluster.runtime
        while self._rejoin_reason is None and self._fenced is None:
            wait = self._poll_time_left_ms()
            if wait is not None and wait <= 0:
                await self._poll_overdue()
                return
            moved = self._moved
            await runtime.first(moved, timeout_ms=wait)

    async def _after(self, again: _Rejoin) -> None:
        if again.reset:
            await self._lose(again.code)
        self._rejoin_reason = self._rejoin_reason or f"after {again.code.name}"

    def _raise_failure(self) -> None:
        """Why nobody beats for what is held, if that is so."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # Heartbeats.

    def _start_beating(self) -> None:
        if self.joined and (self._beating is None or self._beating.done):  # done: fenced while a join was on its way
            self._beating = self.cluster.runtime.spawn(self._beat(), f"heartbeats of {self.group}")

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _beat(self) -> None:
        """Until it is fenced or stopped.

        Any other end would leave a member that no one beats for, so it is the member's failure.
        """
        try:
            await self._beat_on()
        except Exception as error:  # noqa: BLE001 - the application is told, whatever it is
            self._failure = fault(f"heartbeat of group {self.group!r}", error)
            self._fence(ErrorCode.ILLEGAL_GENERATION, str(self._failure))

    async def _beat_on(self) -> None:
        runtime, config = self.cluster.runtime, self.config
        due = runtime.now_ms + self._lease.beat_ms(config.heartbeat_interval_ms)
        while True:
            until = min(due, self._session_end_ms) if self.assignment.partitions else due
            if await runtime.first(self._beat_now, timeout_ms=max(0.0, until - runtime.now_ms)) is not None:
                self._beat_now = Promise()
            sent, sent_elapsed = runtime.now_ms, runtime.elapsed_ms()
            due = sent + self._lease.beat_ms(config.heartbeat_interval_ms)
            session_left = self._session_left_ms()
            if self._syncing or self.state is MemberState.JOINING:
                if session_left <= 0 and self.assignment.partitions:
                    # Its join claimed them, and who assigns may wait until they are given up: only another says they
                    # were.
                    self.request_rejoin("partitions were lost while it joined")
                    await self._lose_held(NOT_HEARD)
                if not await self._beat_aside(sent, sent_elapsed):
                    due = min(due, runtime.now_ms + config.retry_backoff_ms)
                continue
            if session_left <= 0:  # it keeps its id: a coordinator that was silent itself may know it still
                self._fence(ErrorCode.ILLEGAL_GENERATION, NOT_HEARD)
                return
            try:
                code = await self._heartbeat(min(config.request_timeout_ms, session_left))
            except RetriableError:
                due = min(due, runtime.now_ms + config.retry_backoff_ms)
                continue
            if code is ErrorCode.NONE or code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._heard_ms = sent
                self._renew(sent_elapsed)
                if code is ErrorCode.REBALANCE_IN_PROGRESS and self.state is MemberState.HOLDING:
                    self.request_rejoin("the group rebalances")
            elif code in _FENCED:
                self._fence(code)
                return
            elif code in (*LOST_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                due = min(due, runtime.now_ms + config.retry_backoff_ms)
            else:
                raise error_for(code, f"heartbeat of group {self.group!r}: {code.text}")

    def _session_left_ms(self) -> float:
        return self._session_end_ms - self.cluster.runtime.now_ms

    async def _beat_aside(self, sent: float, sent_elapsed: float) -> bool:
        """A sign of life on a connection of its own, while a join or sync waits on the usual one.

        The coordinator keeps a member that waits, but not one whose answer is on its way for a session or gets lost.
        What went wrong is told by the answer to that join or sync. False: the coordinator was not reached.
        """
        limit = min(self.config.request_timeout_ms, max(self.config.retry_backoff_ms, self._session_left_ms()))
        try:
            code = await self._heartbeat(limit, f"beat:{self.group}")
        except KafkaError:
            return False
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._heard_ms = max(self._heard_ms, sent)
            self._renew(sent_elapsed)
        return True

    async def _heartbeat(self, timeout_ms: float, lane: str = "main") -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self.config.group_instance_id,
        )
        asking = self._ask(request, self._lease.answer_ms(timeout_ms), lane)
        # A connection is made first, which may take as long again.
        answer = await self.cluster.runtime.within(asking, timeout_ms, f"heartbeat of group {self.group!r}")
        code = ErrorCode.of(answer.error_code)
        if code in LOST_COORDINATOR:
            self.cluster.forget_coordinator(self._coordinator)
        return code

    # Inside.

    async def _send_leave(self, reason: str) -> None:
        if not self._member_id or self.config.group_instance_id is not None:
            return
        member_id, self._member_id = self._member_id, ""
        request = LeaveGroupRequest(
            group_id=self.group,
            member_id=member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason[:255])],
        )
        # On a connection of its own: a JoinGroup that waits would hold it up.
        await self._ask(request, min(self.config.request_timeout_ms, LEAVE_MS), f"leave:{self.group}")

    def _raise_for(self, code: ErrorCode, what: str) -> None:
        if code is ErrorCode.NONE:
            return
        if code in LOST_COORDINATOR:
            self.cluster.forget_coordinator(self._coordinator)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            raise _Rejoin(code)
        raise error_for(code, f"{what} of group {self.group!r}: {code.text}")

    def _subscription_changed(self) -> None:
        self.request_rejoin("the subscription changed")

    def _metadata_changed(self) -> None:
        if self._subscription is not None and self.joined:
            self.protocol.metadata_changed()

    def _want_topics(self) -> None:
        if self._subscription is not None:
            self.protocol.subscribe(self._subscription)

    def _stop(self) -> None:
        self._stop_beating()
