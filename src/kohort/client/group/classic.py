"""Group membership in the classic protocol: members join, and the leader among them assigns.

States and transitions:

========== ======================================================== ====================================================
state      meaning                                                  left by
========== ======================================================== ====================================================
IDLE       no subscription, or left because of a missing poll.      subscribe; poll.
REVOKING   waits for the application to release partitions.         release, or fenced meanwhile.
JOINING    JoinGroup is sent; cooperative members keep partitions.  its response.
SYNCING    joined; the leader assigns; SyncGroup is sent.           its response.
HOLDING    a generation is held, heartbeats continue.               the group rebalances; subscription or metadata
                                                                    change; fenced; session over by the own clock; poll
                                                                    overdue.
LEFT       closed.                                                  -
========== ======================================================== ====================================================

Source: spec 3.1–3.11, KIP-62, KIP-345, KIP-394, KIP-429.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from kohort import consumer_protocol
from kohort.assignors import AssignableTopic, Assignor, MemberSubscription, client_assignor
from kohort.client.group.membership import (
    HELD_MS,
    LEAVE_MS,
    SESSION_EXPIRED,
    Membership,
    MemberState,
    Subscription,
)
from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import Metadata
from kohort.client.net.runtime import Awaited, Promise, Task, logged_kafka_error
from kohort.client.offsets import LOST_COORDINATOR, Assignment
from kohort.client.settings import ConsumerConfig
from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NEWEST_VERSION,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kohort.wire.message import Message, RequestMessage

R = TypeVar("R", bound=Message)

# -- Subscriptions and assignments, which members exchange through the coordinator
#
# Their bytes are in `kohort.consumer_protocol`. Source: spec 3.2-3.6, 3.10, 3.13; KIP-429; KIP-792.

log = logging.getLogger("kohort.client")


class ClassicProtocol:
    """Codec of subscriptions and assignments; runs the assignor as the leader and detects changed metadata."""

    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, owner: object, request_rejoin: Callable[[str], None]
    ) -> None:
        self._owner = owner
        self._cluster = cluster
        self._config = config
        self._request_rejoin = request_rejoin
        self._assignors: dict[str, Assignor] = _assignors(config)
        self.eager = not all(assignor.cooperative for assignor in self._assignors.values())
        self._subscription: Subscription | None = None
        self._joined_with: tuple[str, ...] = ()
        self._watched: frozenset[str] | None = None
        self._assigned_for: dict[str, tuple[int, ...]] = {}
        self._chosen: Assignor | None = None
        self._batching = False

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._want()

    def topics(self) -> tuple[str, ...]:
        """Return the subscribed topics, as far as they are in the metadata."""
        if self._subscription is None:
            return ()
        return self._subscription.matching_topics(self._cluster.metadata, self._config.exclude_internal_topics)

    def unsubscribed_partitions(self, held: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the held partitions whose topic is no longer subscribed."""
        topics = set(self.topics())
        return [part for part in held if part.topic not in topics]

    # This member's subscription.

    async def load_all_topics(self) -> None:
        """Load all topics before a member with a pattern joins."""
        if (
            self._subscription is not None
            and self._subscription.pattern is not None
            and not self._cluster.metadata.complete
        ):
            await self._cluster.refresh_metadata(self._config.default_api_timeout_ms)

    def metadata(self, held: Assignment, generation: int) -> list[tuple[str, bytes]]:
        """Return the protocols for a JoinGroup request: (assignor's name, encoded subscription), preferred ones first.

        Args:
            held: The assignment that the member owns now.
            generation: The generation of that assignment.
        """
        topics = self.topics()
        self._joined_with = topics
        protocols = []
        for name, assignor in self._assignors.items():
            given = self._subscription.user_data if self._subscription is not None else None
            user_data = assignor.subscription_user_data(topics) if given is None else given
            owned = tuple(held.partitions)
            said = consumer_protocol.ConsumerProtocolSubscription(
                NEWEST_VERSION,
                topics,
                owned,
                self._config.client_rack or None,
                generation if owned else -1,
                user_data,
            )
            protocols.append((name, write_subscription(said)))
        return protocols

    # The leader's assignment.

    async def assign(self, joined: JoinGroupResponse) -> list[tuple[str, bytes]]:
        """Compute every member's assignment and encode it.

        Raises:
            KafkaError: No assignment is possible; says why.
        """
        assignor = self._assignors.get(joined.protocol_name or "")
        if assignor is None:
            text = f"the coordinator chose the assignor {joined.protocol_name!r}, which is not configured here"
            raise error_for(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        members = {member.member_id: _member_subscription(member) for member in joined.members}
        topics = sorted({topic for member in members.values() for topic in member.topics})
        self._watched = frozenset(topics)
        self._assigned_for = {}  # changes in this refresh are part of this assignment
        self._want()
        await self._cluster.describe_topics(topics)
        metadata = self._cluster.metadata
        self._assigned_for = {topic: tuple(metadata.partitions_of(topic)) for topic in topics}
        if joined.skip_assignment:
            return []
        assignable = {
            topic: _assignable(metadata, topic, parts) for topic, parts in self._assigned_for.items() if parts
        }
        try:
            result = assignor.assign(members, assignable)
            extra = assignor.assignment_user_data()
        except KafkaError:
            raise
        except Exception as error:  # the application's own assignor: report its failure
            raise KafkaError(f"the assignor {joined.protocol_name!r} failed: {error!r}") from error
        return [
            (member, write_assignment(NEWEST_VERSION, parts, extra.get(member))) for member, parts in result.items()
        ]

    def watch_own_topics(self) -> None:
        """Want metadata of this member's own topics only, because another member leads the group now.

        A leader watches the topics of all members for changes.
        """
        self._watched = None
        self._assigned_for = {}
        self._want()

    # This member's assignment.

    def decode_assignment(self, content: bytes) -> tuple[list[TopicPartition], bytes | None]:
        """Decode an assignment's partitions and user data; empty content means no partitions.

        Raises:
            CorruptDataError: The content is no assignment.
        """
        assignment = read_assignment(bytes(content))
        if assignment is None:
            raise CorruptDataError(f"assignment: {len(content)} bytes that can't be decoded")
        return sorted(assignment.partitions), assignment.user_data

    def inform_assignor(
        self, protocol_name: str, partitions: list[TopicPartition], user_data: bytes | None, generation: int
    ) -> None:
        """Pass this member's new assignment to the group's chosen assignor (`on_assignment`), if it is known here."""
        assignor = self._assignors.get(protocol_name)
        if assignor is not None:
            assignor.on_assignment(partitions, user_data, generation)

    # Metadata.

    def rebalance_if_topics_changed(self) -> None:
        """Request a rebalance, after `rebalance_batch_ms`, if the watched topics changed since the last assignment.

        Changes are topics that appeared or disappeared, and new partitions.
        """
        if not self._batching and self._what_changed():
            self._batch()

    def _what_changed(self) -> str:
        """Return how the topics have changed since the last assignment, in words; "" if they have not."""
        by_pattern = self._subscription is not None and self._subscription.pattern is not None
        if by_pattern and self.topics() != self._joined_with:
            return "the topics that match the subscription changed"
        return "partitions changed" if self._assigned_for and self._leader_sees_change() else ""

    def _leader_sees_change(self) -> bool:
        metadata = self._cluster.metadata
        return any(
            tuple(metadata.partitions_of(topic)) != parts
            for topic, parts in self._assigned_for.items()
            if topic not in metadata.topics
            or metadata.topics[topic].error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )

    def _batch(self) -> None:
        """Wait for `rebalance_batch_ms` for further changes of topics, then request one rebalance for all of them.

        No rebalance is requested if another one has included the changes by then.
        """
        wait_ms = self._config.rebalance_batch_ms

        def end_collection_delay(_: Awaited | None = None) -> None:
            self._batching = False
            if reason := self._what_changed():
                self._request_rejoin(reason)

        if wait_ms == 0:
            end_collection_delay()
            return
        self._batching = True
        runtime = self._cluster.runtime
        runtime.promise_at(runtime.now_ms + wait_ms).on_done(end_collection_delay)

    def _want(self) -> None:
        if self._subscription is None:
            return
        if self._subscription.pattern is not None:
            self._cluster.set_wanted_topics(self._owner, None)
        else:
            mine, watched = self._subscription.topics, self._watched or frozenset()
            # Other members' patterns may have matched a topic. The leader must not bring it back when it is deleted.
            self._cluster.never_created = watched.difference(mine)
            self._cluster.set_wanted_topics(self._owner, watched.union(mine))


def _member_subscription(member: JoinGroupResponse.JoinGroupResponseMember) -> MemberSubscription:
    """Return a member's subscription for the assignor.

    A member whose subscription can't be decoded gets no topics, so that it does not stop the group.
    """
    said = read_subscription(bytes(member.metadata))
    if said is None:
        log.warning(
            "member %s gets no partitions, because the subscription in its JoinGroup can't be decoded: check its "
            "client",
            member.member_id,
        )
        return MemberSubscription(topics=(), instance_id=member.group_instance_id)
    return MemberSubscription(
        topics=said.topics,
        instance_id=member.group_instance_id,
        rack=said.rack,
        owned=said.owned,
        generation=said.generation,
        user_data=said.user_data,
    )


def _assignable(metadata: Metadata, topic: str, numbers: tuple[int, ...]) -> AssignableTopic:
    racks: list[frozenset[str]] = []
    for number in range(len(numbers)):
        part = metadata.partition(TopicPartition(topic, number))
        nodes = [metadata.brokers.get(node) for node in part.replicas] if part is not None else []
        racks.append(frozenset(broker.rack for broker in nodes if broker is not None and broker.rack))
    return AssignableTopic(len(numbers), tuple(racks) if any(racks) else ())


def _assignors(config: ConsumerConfig) -> dict[str, Assignor]:
    """Return the configured assignors by name, in order of preference.

    Raises:
        InvalidInputError: An unknown name, none at all, or an assignor that needs a rack where none is configured.
    """
    chosen = [
        client_assignor(strategy, config.client_rack) if isinstance(strategy, str) else strategy
        for strategy in config.partition_assignment_strategy
    ]
    if not chosen:
        raise InvalidInputError("partition.assignment.strategy names no assignor")
    return {assignor.name: assignor for assignor in chosen}


_JOIN_GRACE_MS = 5_000
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class _Rejoin(Exception):
    """Exception that ends an attempt to join, so that the member joins again; with `reset`, its partitions are lost."""

    def __init__(self, code: ErrorCode, reset: bool = False) -> None:
        super().__init__(code.name)
        self.code = code
        self.reset = reset


class ClassicMembership(Membership):
    """A member in the classic protocol."""

    NOT_JOINED = -1

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        requires_polling: bool = True,
    ) -> None:
        """Make an idle member."""
        super().__init__(cluster, config, changed=changed, requires_polling=requires_polling)
        self.protocol = ClassicProtocol(cluster, config, self, self.request_rejoin)
        self.chosen_protocol = ""
        self._rejoin_reason: str | None = None
        self._syncing = False
        self._beating: Task[None] | None = None
        self._failure: KafkaError | None = None
        self._beat_now: Promise[None] = Promise()
        self._asked_node = -1
        self._superseded: Promise[None] = Promise()

    def request_rejoin(self, reason: str) -> None:
        """Let this member join the group again as soon as its current round is over, without waiting for a poll.

        Of several reasons the first is sent.
        """
        self._rejoin_reason = self._rejoin_reason or reason
        self._move()

    # Lifecycle.

    async def _run_member(self) -> None:
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
                self._log_retry(error, failures)
            except Exception as error:  # noqa: BLE001 - the application gets any error
                await self._fatal(logged_kafka_error(f"group {self.group!r}", error))
            if failures:
                await self.cluster.runtime.sleep(self.cluster.backoff_ms(failures))

    async def _round(self) -> None:
        """Run one rebalance: revoke, join, sync, take the assignment."""
        await self._await_release()  # a join must not claim partitions that are being lost
        self._raise_failure()
        await self._revoke_before_joining()
        self._raise_failure()
        if not self.assignment.partitions:
            self._stop_beating()
        reason, self._rejoin_reason = (
            self._rejoin_reason or "",
            None,
        )  # reasons that arose during the revocation too: this join serves them
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
        await self._adopt_assignment(content)

    async def _revoke_before_joining(self) -> None:
        if self._fenced is not None:
            await self._lose(self._fenced)
        held = self.assignment.partitions
        given_up = held if self.protocol.eager else self.protocol.unsubscribed_partitions(held)
        if given_up and self.is_joined:
            await self._revoke(given_up)
            if self._fenced is not None:
                await self._lose(self._fenced)

    async def _await_release(self) -> None:
        """Wait until no revocation is pending; leave the group if the application does not release it in time.

        The coordinator may not be waiting: it hands a cooperative member's revoked partitions on after the next join.
        """
        while self.revocation is not None and self._fenced is None:
            left_ms, reason = self._release_time_left()
            if left_ms <= 0:
                log.warning("[group %s] %s (max.poll.interval.ms): this member leaves the group", self.group, reason)
                self._stop_tasks()
                await self._leave_quietly(reason)
                self._fence(ErrorCode.UNKNOWN_MEMBER_ID, reason)
                return
            await self.cluster.runtime.wait_first(self._moved, timeout_ms=left_ms)

    def _release_time_left(self) -> tuple[float, str]:
        """Return the time left to release the revocation, in ms, and the reason to leave the group after it."""
        limit_ms = self.config.max_poll_interval_ms
        left_ms, reason = float("inf"), ""
        if self.revocation is not None and not self.revocation.lost:
            left_ms = self.revocation.deadline_ms - self.cluster.runtime.now_ms
            reason = f"revoked partitions not released for {limit_ms} ms"
        poll_left_ms = self._poll_time_left_ms()
        if poll_left_ms is not None and poll_left_ms <= left_ms:
            left_ms, reason = poll_left_ms, f"not polled for {limit_ms} ms"
        return left_ms, reason

    async def _lose(self, code: ErrorCode) -> None:
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self._member_id = ""
        await super()._lose(code)

    async def _join(self, reason: str) -> JoinGroupResponse:
        await self.protocol.load_all_topics()
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
        answer = await self._ask_for_long(request, timeout_ms)
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            raise _Rejoin(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            raise _Rejoin(code, reset=True)
        self._raise_for(code, "join")
        return answer

    async def _sync(self, joined: JoinGroupResponse) -> bytes:
        """Send SyncGroup and return this member's encoded assignment; a leader first computes those of all members."""
        assignments: list[tuple[str, bytes]] = []
        if joined.leader == joined.member_id:
            try:
                assignments = await self.protocol.assign(joined)
            except KafkaError:
                await self._leave_quietly("the assignor failed")
                raise
        else:
            self.protocol.watch_own_topics()

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
            sent, sent_ms = self.cluster.runtime.clock_with_sleep_ms(), self.cluster.runtime.now_ms
            try:
                answer = await self._ask_for_long(request, timeout_ms)
                code = ErrorCode.of(answer.error_code)
                if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    raise _Rejoin(code, reset=True)
                self._raise_for(code, "sync")
                self._heard_ms = max(self._heard_ms, sent_ms)
                if self._session_left_ms() <= 0:  # other members may own the assignment by now
                    raise _Rejoin(ErrorCode.ILLEGAL_GENERATION, reset=True)
                self._renew(sent)
                return bytes(answer.assignment)
            except RetriableError:
                failures += 1
                if self._fenced is not None or self.cluster.runtime.now_ms > deadline:
                    raise
                await self.cluster.runtime.sleep(self.cluster.backoff_ms(failures))

    async def _ask_for_long(self, request: RequestMessage[R], timeout_ms: float) -> R:
        """Send JoinGroup or SyncGroup, which the coordinator may answer after minutes, and return the response.

        Stop waiting when a heartbeat finds that the group has another coordinator.

        Raises:
            RetriableError: There is no answer, or the group has another coordinator.
        """
        self._asked_node, self._superseded = await self.cluster.coordinator(self._coordinator), Promise()
        asking = self.cluster.runtime.spawn(self._ask_coordinator(request, timeout_ms), "join or sync")
        asking.mark_handled()
        try:
            if await self.cluster.runtime.wait_first(asking, self._superseded) is not asking:
                raise RetriableError("the group has another coordinator by now", ErrorCode.NOT_COORDINATOR)
            return asking.result()
        finally:
            asking.cancel()

    async def _adopt_assignment(self, content: bytes) -> None:
        await self._await_release()
        await self._raise_if_fenced()
        partitions, user_data = self.protocol.decode_assignment(content)
        self.protocol.inform_assignor(self.chosen_protocol, partitions, user_data, self._generation)
        kept = set(partitions)
        revoked = [part for part in self.assignment.partitions if part not in kept]
        if revoked:
            await self._revoke(revoked)
            await self._raise_if_fenced()
            self.request_rejoin("partitions were given up for another member")
        self._complete_rebalance(tuple(sorted(partitions)), user_data)
        if self._lease.length_ms is not None and self._rejoin_reason is None:
            self._beat_now.resolve(None)  # a broker with leases uses long polling

    async def _raise_if_fenced(self) -> None:
        """If the member is fenced, report its partitions as lost, and then end this attempt to join."""
        if self._fenced is not None:
            await self._lose(self._fenced)
            raise _Rejoin(ErrorCode.ILLEGAL_GENERATION)

    async def _holding(self) -> None:
        """Wait, as a member with an assignment, until there is a reason to rejoin or the member is fenced.

        If the application does not poll in time, the member leaves.
        """
        runtime = self.cluster.runtime
        while self._rejoin_reason is None and self._fenced is None:
            wait = self._poll_time_left_ms()
            if wait is not None and wait <= 0:
                await self._poll_overdue()
                return
            moved = self._moved
            await runtime.wait_first(moved, timeout_ms=wait)

    async def _after(self, again: _Rejoin) -> None:
        if again.reset:
            await self._lose(again.code)
        self._rejoin_reason = self._rejoin_reason or f"after {again.code.name}"

    def _raise_failure(self) -> None:
        """Raise the error that ended the heartbeat task, if it has ended."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # Heartbeats.

    def _start_beating(self) -> None:
        if self.is_joined and (self._beating is None or self._beating.done):  # done: fenced during a JoinGroup
            self._beating = self.cluster.spawn_essential_task(self._beat(), f"heartbeats of {self.group}")

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    async def _beat(self) -> None:
        """Send heartbeats until the member is fenced or this task is cancelled.

        An unexpected error fences the member and is kept as its failure: it must not live on without heartbeats.
        """
        try:
            await self._beat_on()
        except Exception as error:  # noqa: BLE001 - the application gets any error
            self._failure = logged_kafka_error(f"heartbeat of group {self.group!r}", error)
            self._fence(ErrorCode.ILLEGAL_GENERATION, str(self._failure))

    async def _beat_on(self) -> None:
        runtime, config = self.cluster.runtime, self.config
        due = runtime.now_ms + self._lease.heartbeat_interval_ms(config.heartbeat_interval_ms)
        while True:
            until = min(due, self._session_end_ms) if self.assignment.partitions else due
            if await runtime.wait_first(self._beat_now, timeout_ms=max(0.0, until - runtime.now_ms)) is not None:
                self._beat_now = Promise()
            sent, sent_elapsed = runtime.now_ms, runtime.clock_with_sleep_ms()
            due = sent + self._lease.heartbeat_interval_ms(config.heartbeat_interval_ms)
            session_left = self._session_left_ms()
            if self._syncing or self.state is MemberState.JOINING:
                if session_left <= 0 and self.assignment.partitions:
                    # The JoinGroup claimed these partitions, and the assignor may wait for their release: only another
                    # JoinGroup reports it.
                    self.request_rejoin("partitions were lost while it joined")
                    await self._lose_held(SESSION_EXPIRED)
                if not await self._beat_aside(sent, sent_elapsed):
                    due = min(due, runtime.now_ms + config.retry_backoff_ms)
                continue
            if session_left <= 0:  # the id is kept: a coordinator that was silent itself may still know it
                self._fence(ErrorCode.ILLEGAL_GENERATION, SESSION_EXPIRED)
                return
            try:
                code = await self._heartbeat(min(self._answer_limit_ms, session_left))
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

    @property
    def _answer_limit_ms(self) -> float:
        """Return the time limit for a heartbeat's response, after which the coordinator is looked up again.

        The coordinator's machine may have died without a word. The rest of the session is for its successor.
        """
        return min(self.config.request_timeout_ms, max(HELD_MS, self.config.session_timeout_ms / 3))

    def _session_left_ms(self) -> float:
        return self._session_end_ms - self.cluster.runtime.now_ms

    async def _beat_aside(self, sent: float, sent_elapsed: float) -> bool:
        """Send a heartbeat on a separate connection while a JoinGroup or SyncGroup waits on the usual one.

        The heartbeat renews the session and lease, and finds a coordinator that has moved. Without it, a lost response
        to the JoinGroup or SyncGroup could cost the membership. Error codes are left to that response.

        Returns:
            False if the coordinator was not reached.
        """
        limit = min(self._answer_limit_ms, max(self.config.retry_backoff_ms, self._session_left_ms()))
        try:
            code = await self._heartbeat(limit, f"beat:{self.group}")
        except KafkaError:
            return False
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._heard_ms = max(self._heard_ms, sent)
            self._renew(sent_elapsed)
        if code not in (*LOST_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            with contextlib.suppress(RetriableError):  # it was forgotten meanwhile
                if await self.cluster.coordinator(self._coordinator) != self._asked_node:
                    self._superseded.resolve(None)
        return True

    async def _heartbeat(self, timeout_ms: float, channel: str = "main") -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self.config.group_instance_id,
        )
        asking = self._ask_coordinator(request, self._lease.response_timeout_ms(timeout_ms), channel)
        # The connection is made first, which may take the same time again.
        answer = await self.cluster.runtime.run_within(asking, timeout_ms, f"heartbeat of group {self.group!r}")
        code = ErrorCode.of(answer.error_code)
        if code in LOST_COORDINATOR:
            self.cluster.forget_coordinator(self._coordinator)
        return code

    # Internals.

    async def _send_leave(self, reason: str) -> None:
        if not self._member_id or self.config.group_instance_id is not None:
            return
        member_id, self._member_id = self._member_id, ""
        request = LeaveGroupRequest(
            group_id=self.group,
            member_id=member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason[:255])],
        )
        # On a separate connection: a waiting JoinGroup would delay it.
        await self._ask_coordinator(request, min(self.config.request_timeout_ms, LEAVE_MS), f"leave:{self.group}")

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
        if self._subscription is not None and self.is_joined:
            self.protocol.rebalance_if_topics_changed()

    def _want_topics(self) -> None:
        if self._subscription is not None:
            self.protocol.subscribe(self._subscription)

    def _stop_tasks(self) -> None:
        self._stop_beating()
