"""Coordination through a classic consumer group on Kafka itself, for clusters without ZooKeeper.

The group's leader is the coordinators' leader, and its assignment is the placement. A suspected member is removed with
LeaveGroup by its member id. While the group rebalances, or Kafka's coordinator is unavailable, all members keep the
placement they have.

Source: spec 4.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import Cluster, Coordinator
from kohort.client.net.runtime import Promise, Task, logged_kafka_error
from kohort.client.offsets import LOST_COORDINATOR
from kohort.client.settings import ConnectionConfig
from kohort.cluster.coordination.group_round import JoinMetadata, LeaderAssignment, compute_assignments, id_conflict
from kohort.cluster.coordination.placement import Candidate, Placement
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, RetriableError, TimedOutError, error_for
from kohort.io.log_throttle import FailureThrottle
from kohort.wire.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

log = logging.getLogger("kohort.cluster")
PLACEMENT_GROUP = "__kohort_coordinators"
SESSION_MS = 6_000
"""The shortest session timeout that Kafka allows by default (group.min.session.timeout.ms)."""
HEARTBEAT_MS = 300
"""Heartbeat interval: a member learns of a rebalance with its next heartbeat, so a change takes this long."""
_PROTOCOL_TYPE, _PROTOCOL = "kohort-coordinators", "placement-1"
_JOIN_GRACE_MS = 5_000
_OPEN_MS = 30_000
"""Timeout of `open`. Kafka delays the first join of an empty group by 3 s, and waits a session for a silent member."""
_LEAVE_MS = 1_000
_MEMBER, _ASIDE = "member", "aside"
"""Two connections, so that a pending JoinGroup request does not delay other requests."""
_AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.MEMBER_ID_REQUIRED)


class _Again(Exception):
    """Control flow: this generation is over for this member, which has to join again."""


class GroupCoordination:
    """A coordination service over a classic consumer group on Kafka."""

    def __init__(
        self,
        config: ConnectionConfig,
        group: str = PLACEMENT_GROUP,
        *,
        session_ms: int = SESSION_MS,
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        """Create a closed service; `open` connects it.

        Args:
            config: Connection settings of the Kafka cluster.
            group: The coordinators' own group; nobody else may use it.
            session_ms: The session timeout, after which a silent member is removed.
            heartbeat_ms: The heartbeat interval, after which a member learns of changes.
        """
        self.placement: Placement | None = None
        self._config = replace(config, client_id=f"{config.client_id}-placement", retry_backoff_max_ms=500)
        self._group = group
        self._coordinator = Coordinator(group)
        self._session_ms = session_ms
        self._heartbeat_ms = heartbeat_ms
        self._client: AsyncClient | None = None
        self._metadata: JoinMetadata | None = None
        self._joined_as: JoinMetadata | None = None
        self._member_id, self._generation = "", -1
        self._leading = False
        self._heard_ms = float("-inf")
        self._members: dict[int, str] = {}
        self._refused = ""
        self._failure: KafkaError | None = None
        self._last_trouble: KafkaError | None = None
        self._opened = False
        self._on_change: Callable[[], None] = lambda: None
        self._look_now: Promise[None] = Promise()
        self._life: Task[None] | None = None

    # -- the coordination service

    @property
    def is_leader(self) -> bool:
        """Whether this coordinator leads the group, and a heartbeat succeeded within a session timeout."""
        client = self._client
        if client is None or not self._leading:
            return False
        return client.cluster.runtime.clock_with_sleep_ms() - self._heard_ms < self._session_ms

    def on_changes(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` on the loop after `placement` or `is_leader` changed."""
        self._on_change = on_change

    async def open(self, me: Candidate, shards: int) -> None:
        """Join the group; return once this candidate is registered and has a placement.

        Raises:
            KafkaError: Kafka can't be reached, may not be used, or the id is taken; the message says what to do.
        """
        self._metadata, self._refused = JoinMetadata(me, shards), ""
        self.placement = self._joined_as = self._failure = None
        self._client = client = await AsyncClient.open(self._config)
        self._log_throttle = FailureThrottle(lambda: client.cluster.runtime.now_ms)
        try:
            await client.call(self._make_room(client.cluster, me))
            self._life = client.cluster.runtime.spawn(self._run_member(client.cluster), f"place in {self._group}")
            client.wake()
            wait_s = _OPEN_MS / 1000
            if not await client.wait_until(lambda: self._failure is not None or self._has_place(), wait_s):
                raise self._no_place(client.cluster)
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            await self.close()
            if isinstance(error, KafkaError):
                raise self._advised(error) from error.__cause__
            raise
        self._opened = True

    def remove_dead_candidate(self, candidate: Candidate) -> None:
        """Remove a member whose process seems to have ended, if this generation has it under that id."""
        known = None if self.placement is None else self.placement.candidate(candidate.id)
        member = self._members.get(candidate.id)
        if self._client is None or known is None or known.incarnation != candidate.incarnation or not member:
            return
        removal = self._remove(self._client.cluster, [member], f"refused a connection of {self._coordinator_text()}")
        self._client.cluster.runtime.spawn(removal, f"removal of {member}")
        self._client.wake()

    async def hand_over_and_leave(self) -> None:
        """Rejoin as a member that gets no shards, and leave the group once the placement assigns it none."""
        client, metadata = self._client, self._metadata
        if client is None or metadata is None:
            return
        if self._opened and not client.closed:
            self._metadata = replace(metadata, retiring=True)
            self._wake()
            bound_s = 2 * self._session_ms / 1000  # a peer that hangs holds the round up for a session
            await client.wait_until(lambda: self._joined_as is not None and self._joined_as.retiring, bound_s)
        await self.close()

    async def refresh_placement(self) -> None:
        """Wait until Kafka answers a heartbeat of this generation, or sends the placement of the next one."""
        client = self._client
        if client is not None:
            asked_ms = client.cluster.runtime.clock_with_sleep_ms()
            self._wake()
            await client.wait_until(lambda: self._heard_ms >= asked_ms)

    def report_loop_alive(self) -> None:
        """Do nothing: the member's heartbeats run on the same event loop, so they stop with it."""

    async def close(self) -> None:
        """Leave the group at once. A second call does nothing."""
        client, member = self._client, self._member_id
        if client is None or client.closed:
            return
        self._leading = False
        if self._life is not None:
            self._life.cancel()
        if member:
            self._member_id = ""
            with contextlib.suppress(KafkaError):
                await client.call(self._remove(client.cluster, [member], "the coordinator stops"))
        await client.close()

    # -- before it joins

    async def _make_room(self, cluster: Cluster, me: Candidate) -> None:
        """Remove the group member of an earlier process at this address, and wait until this candidate's id is free.

        Raises:
            KafkaError: the id belongs to another coordinator.
        """
        runtime = cluster.runtime
        deadline = runtime.now_ms + self._session_ms + _LEAVE_MS

        async def described_candidates() -> dict[str, Candidate]:
            return await self._described(cluster)

        while True:
            candidates = await cluster.retry_call(described_candidates, f"group {self._group!r} on Kafka", _OPEN_MS)
            same = {member: other for member, other in candidates.items() if other.id == me.id and other != me}
            earlier = [member for member, other in same.items() if other.address == me.address]
            if earlier:
                await self._remove(cluster, earlier, f"another process is at {me.address} now")
            elif not same:
                return
            elif runtime.now_ms > deadline:
                raise _taken(id_conflict(me, next(iter(same.values()))))
            await runtime.sleep(self._heartbeat_ms)

    async def _described(self, cluster: Cluster) -> dict[str, Candidate]:
        """Return the candidates in the coordinators' group; none while it rebalances, when Kafka omits the metadata."""
        request = DescribeGroupsRequest(groups=[self._group])
        answer = await cluster.send(request, self._coordinator, timeout_ms=self._session_ms, channel=_ASIDE)
        group = answer.groups[0]
        if group.error_code and group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            self._raise_for(cluster, group.error_code)
        candidates = {}
        for member in group.members:
            with contextlib.suppress(CorruptDataError):
                candidates[member.member_id] = JoinMetadata.from_bytes(bytes(member.member_metadata)).candidate
        return candidates

    # -- membership

    async def _run_member(self, cluster: Cluster) -> None:
        failures = 0
        while self._failure is None:
            try:
                await self._round(cluster)
                failures = 0
                await self._send_heartbeats(cluster)
            except _Again:
                failures += 1
            except Exception as error:  # noqa: BLE001 - an unforeseen fault is logged too, and ends nothing
                failures += 1
                cluster.forget_coordinator(self._coordinator)
                self._trouble(logged_kafka_error(f"place in {self._group!r}", error))
            if failures > 1:  # the first repetition is how Kafka gives a member its id
                await cluster.runtime.sleep(
                    cluster.connections.backoff_ms(failures - 1, self._config.retry_backoff_ms, 1_000)
                )

    def _trouble(self, error: KafkaError) -> None:
        error = self._last_trouble = self._advised(error)
        if not self._opened and not isinstance(error, RetriableError):
            self._failure = error
        elif self._opened and self._log_throttle.should_log("trouble"):
            log.warning(
                "placement: a request to Kafka failed, retrying; the last known placement stays in use: %s", error
            )

    async def _round(self, cluster: Cluster) -> None:
        """Run one rebalance, JoinGroup and SyncGroup; the group's leader computes the placement."""
        metadata = replace(self._require_metadata(), placement=self.placement)
        joined = await self._join(cluster, metadata)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        leads = joined.leader == joined.member_id
        gifts = _assignments(joined) if leads else {}
        entry = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL,
            assignments=[entry(member_id=member, assignment=gift.to_bytes()) for member, gift in gifts.items()],
        )
        timeout_ms, sent_ms = self._session_ms + _JOIN_GRACE_MS, cluster.runtime.clock_with_sleep_ms()
        answer = await cluster.send(request, self._coordinator, timeout_ms=timeout_ms, channel=_MEMBER)
        self._raise_for(cluster, answer.error_code)
        gift = LeaderAssignment.from_bytes(bytes(answer.assignment))
        self._heard(sent_ms)
        self._adopt_placement(gift, metadata, leads)

    async def _join(self, cluster: Cluster, metadata: JoinMetadata) -> JoinGroupResponse:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=metadata.to_bytes())
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._session_ms,
            member_id=self._member_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[protocol],
        )
        timeout_ms = self._session_ms + _JOIN_GRACE_MS
        answer = await cluster.send(request, self._coordinator, timeout_ms=timeout_ms, channel=_MEMBER)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        self._raise_for(cluster, answer.error_code)
        return answer

    def _adopt_placement(self, gift: LeaderAssignment, metadata: JoinMetadata, leads: bool) -> None:
        if gift.refused and not self._refused and self._opened:
            log.error("placement: this coordinator has lost its registration and resigns: %s", gift.refused)
        self._leading, self._joined_as, self._refused = leads and not gift.refused, metadata, gift.refused
        self._members = dict(gift.members)
        self.placement = gift.placement
        asyncio.get_running_loop().call_soon(self._on_change)

    async def _send_heartbeats(self, cluster: Cluster) -> None:
        """Send heartbeats until there is a reason to rejoin."""
        runtime = cluster.runtime
        while True:
            if await runtime.wait_first(self._look_now, timeout_ms=self._heartbeat_ms) is not None:
                self._look_now = Promise()
            if self._joined_as is None or self._joined_as.retiring != self._require_metadata().retiring:
                return
            sent_ms = runtime.clock_with_sleep_ms()
            request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id)
            try:
                answer = await cluster.send(
                    request, self._coordinator, timeout_ms=self._session_ms / 3, channel=_MEMBER
                )
                self._raise_for(cluster, answer.error_code)
            except RetriableError as error:
                cluster.forget_coordinator(self._coordinator)
                self._trouble(error)
                continue
            except _Again:
                return
            self._heard(sent_ms)

    def _heard(self, sent_ms: float) -> None:
        self._heard_ms = sent_ms
        self._last_trouble = None
        if self._log_throttle.end_failure("trouble"):
            log.info("placement: requests to Kafka succeed again")

    async def _remove(self, cluster: Cluster, members: list[str], reason: str) -> None:
        identity = LeaveGroupRequest.MemberIdentity
        request = LeaveGroupRequest(
            group_id=self._group, members=[identity(member_id=member, reason=reason) for member in members]
        )

        async def remove_once() -> None:
            answer = await cluster.send(request, self._coordinator, timeout_ms=_LEAVE_MS, channel=_ASIDE)
            with contextlib.suppress(_Again):
                self._raise_for(cluster, answer.error_code)

        try:
            await cluster.retry_call(remove_once, f"removal from {self._group!r}", _LEAVE_MS)
        finally:
            self._wake()  # a heartbeat now learns of the new generation at once

    def _raise_for(self, cluster: Cluster, code: int) -> None:
        """Raise the exception for an error code; return for NONE.

        Raises:
            _Again: the member has to rejoin.
            KafkaError: any other error; its class says whether it is retriable.
        """
        known = ErrorCode.of(code)
        if known is ErrorCode.NONE:
            return
        if known is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if known in (*_AGAIN, ErrorCode.UNKNOWN_MEMBER_ID):
            raise _Again
        if known in LOST_COORDINATOR:
            cluster.forget_coordinator(self._coordinator)
        raise self._advised(error_for(code, known.text))

    def _advised(self, error: KafkaError) -> KafkaError:
        """Return the error with advice on its remedy, where one is known."""
        advice = {
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "it is used by something else; give the coordinators another group",
            ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user needs the rights to describe and to read it",
            ErrorCode.INVALID_SESSION_TIMEOUT: f"Kafka does not grant a session of {self._session_ms} ms "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms)",
        }.get(error.code)
        if advice is None:
            return error
        return error_for(error.code, f"the coordinators' group {self._group!r} on Kafka: {advice}")

    # -- state and messages

    def _has_place(self) -> bool:
        return self.placement is not None and not self._refused

    def _no_place(self, cluster: Cluster) -> KafkaError:
        if self._refused:
            return KafkaError(
                f"{self._refused}; give this one another with --id", ErrorCode.DUPLICATE_BROKER_REGISTRATION
            )
        why = cluster.unreachable_text() or self._last_trouble or "the group did not come to a generation"
        return TimedOutError(f"no place among the coordinators within {_OPEN_MS} ms: {why}")

    def _require_metadata(self) -> JoinMetadata:
        if self._metadata is None:
            raise RuntimeError("the door is not open")
        return self._metadata

    def _coordinator_text(self) -> str:
        return f"coordinator {self._require_metadata().candidate.id}"

    def _wake(self) -> None:
        self._look_now.resolve(None)
        if self._client is not None:
            self._client.wake()


def _assignments(joined: JoinGroupResponse) -> dict[str, LeaderAssignment]:
    metadata: dict[str, JoinMetadata] = {}
    for member in joined.members:
        try:
            metadata[member.member_id] = JoinMetadata.from_bytes(bytes(member.metadata))
        except CorruptDataError as error:
            log.warning(
                "placement: member %s gets no shards: its JoinGroup metadata can't be decoded: %s",
                member.member_id,
                error,
            )
    return compute_assignments(joined.generation_id, joined.member_id, metadata)


def _taken(refused: str) -> KafkaError:
    return KafkaError(f"{refused}; give this one another with --id", ErrorCode.DUPLICATE_BROKER_REGISTRATION)
