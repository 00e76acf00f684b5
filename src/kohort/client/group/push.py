"""Group membership in the push protocol: the member registers, then answers the coordinator's requests.

Source: spec 4.10.

========== ======================================================== ====================================================
state      meaning                                                  left by
========== ======================================================== ====================================================
IDLE       no subscription, or left because of a missing poll.      subscribe; poll.
JOINING    finds the coordinator, registers, waits for a Start.     Start.
HOLDING    started; Pings are answered with the positions.          Stop; lease over; poll overdue.
REVOKING   waits for the application to release partitions, and     release: the Stop is answered; lease over.
           answers the Stop after that.
LEFT       closed.                                                  -
========== ======================================================== ====================================================

The member asks the bootstrap brokers for the coordinator, round robin, without a limit. A connection that ends is made
again under the same id. The held partitions are processed meanwhile, while the lease is valid.

The lease: one request of the coordinator is unanswered at a time. A request that is not a repetition thus shows that
the answer before it, or the registration, has arrived. The member owns its partitions until a session timeout after it
*sent* that answer, less a margin. The clock is read before the socket: a process that stood still finds an old Ping in
its buffer, which proves nothing. The spec's own rule (no request for a session: connect again) is longer, and applies
to members without partitions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping

from kohort.client.group.membership import LEAVE_MS, SESSION_EXPIRED, Lease, Membership, MemberState
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import Address, ConnectionFailed, RawConnection
from kohort.client.net.runtime import Task, logged_kafka_error
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, RetriableError, TimedOutError, error_for
from kohort.ids import NO_POSITION, TopicPartition
from kohort.io.log_throttle import FailureThrottle
from kohort.wire.discovery import MetadataRequest
from kohort.wire.groups import LeaveGroupRequest
from kohort.wire.push import (
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    CoordinatorRequest,
    ErrorResponse,
    PositionedPartition,
    PushType,
    RegisterConsumerRequest,
    TopicCount,
    decode_coordinator_request,
    encode_ping_response,
    format_topic_count,
    topic_partition_of,
)
from kohort.wire.schema import WireError

# -- Discovery of a push group's coordinator: ask the bootstrap brokers, round robin, without a limit. Source: spec 4.10

log = logging.getLogger("kohort.client")
CONSULT_SHARE = 1 / 3
"""Share of a session: the interval between a consumer's Pings."""
MUTE_MAX = 3
"""After this many connections in a row that brokers close instead of answering, they do not speak the protocol."""


class PushCoordinator:
    """The search for the coordinator of one group of the push protocol, and the registration of a member there."""

    def __init__(self, cluster: Cluster, group: str, session_timeout_ms: float, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._session_ms = session_timeout_ms
        self._group = group
        self._changed = changed
        self._next = 0
        self._mute = 0
        self._reached = False
        self._channel = f"push:{group}"
        self._throttle = FailureThrottle(lambda: cluster.runtime.now_ms)

    async def register(
        self, registration: RegisterConsumerRequest, now: Callable[[], float]
    ) -> tuple[RawConnection, float]:
        """Register the consumer; return the connection, and the time by `now` when the request was sent.

        Raises:
            RetriableError: The registration is not possible for now.
            KafkaError: The registration was refused; says why.
        """
        node, address = await self._find_coordinator()
        link = await self._claim_connection(node, address)
        sent_ms = now()
        link.send(registration.encode_frame())
        frame = await link.wait_next_frame(self._cluster.runtime, self._answer_limit_ms(1))
        if frame is None:
            why = link.ended or "no answer to the registration"
            link.close(why)
            raise ConnectionFailed(f"{address} did not register the consumer: {why}")
        code = ErrorCode.of(ErrorResponse.decode(frame).error_code)
        if code is ErrorCode.NONE:
            return link, sent_ms
        link.close(code.name)
        text = f"group {self._group!r}: {address} refuses this consumer: {code.name}: {code.text}"
        if code is ErrorCode.FENCED_INSTANCE_ID:  # the coordinator still counts an earlier connection
            raise RetriableError(text, code)
        raise error_for(code, text)

    async def _find_coordinator(self) -> tuple[int, Address]:
        """Find the coordinator's id and address, retrying without a limit.

        The waits grow only for brokers that were reached: connection backoffs already pace the others.
        """
        bootstrap = self._cluster.bootstrap
        failed: dict[Address, str] = {}
        failures = refused = 0
        while True:
            index = self._next % len(bootstrap)
            self._next += 1
            try:
                return await self._ask_broker(-1 - index, bootstrap[index])
            except RetriableError as error:
                failed[bootstrap[index]] = str(error)
                failures += 1
                refused += self._reached
            if failures % len(bootstrap) == 0:
                self._log_unavailable(failed)
                rounds = -(-refused // len(bootstrap))
                wait = self._cluster.backoff_ms(rounds)
                await self._cluster.runtime.sleep(wait)

    def _log_unavailable(self, failed: dict[Address, str]) -> None:
        if self._throttle.should_log("bootstrap"):
            log.error(
                "[group %s] no broker of bootstrap.servers names the coordinator (%s); retrying without a limit: if "
                "brokers have moved, restart this consumer with their new addresses (AllKnownBrokersNotAvailable)",
                self._group,
                "; ".join(failed.values()),
            )

    async def _ask_broker(self, node: int, address: Address) -> tuple[int, Address]:
        """Ask one broker for the coordinator.

        Raises:
            RetriableError: The broker can't be reached, or knows no coordinator.
            KafkaError: UNSUPPORTED_VERSION: the broker does not speak the protocol.
        """
        self._reached = False
        link = await self._claim_connection(node, address)
        self._reached = True
        try:
            link.send(ClusterMetadataRequest(self._group).encode_frame())
            frame = await link.wait_next_frame(self._cluster.runtime, self._answer_limit_ms(CONSULT_SHARE))
            if frame is None:
                self._no_answer(link, address)
            assert frame is not None
            answer = ClusterMetadataResponse.decode(frame)
        finally:
            link.close("it was consulted")
        self._mute = 0
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{address} names no coordinator of group {self._group!r}: {code.text}")
        for broker in answer.brokers:
            if broker.id == answer.coordinator_id:
                return broker.id, Address(broker.host, broker.port)
        raise ConnectionFailed(f"{address} names coordinator {answer.coordinator_id}, which is none of its brokers")

    def _no_answer(self, link: RawConnection, address: Address) -> None:
        """Raise the error for a broker that did not answer ClusterMetadata in time, or closed the connection.

        After the broker has closed it `MUTE_MAX` times, the error says that it does not speak the push protocol.
        """
        if link.ended is None:
            raise TimedOutError(f"{address} did not answer ClusterMetadata in time")
        self._mute += 1
        if self._mute < MUTE_MAX:
            raise ConnectionFailed(f"{address} did not answer ClusterMetadata: {link.ended}")
        self._mute = 0
        raise KafkaError(
            f"{address} ends the connection when it is asked for the coordinator of a push group: it does not speak "
            "the push protocol; use group.protocol=consumer or classic there",
            ErrorCode.UNSUPPORTED_VERSION,
        )

    def _answer_limit_ms(self, share: float) -> float:
        """Return the time limit for a broker's answer in ms: a share of the session, so that others can be asked."""
        return min(self._cluster.config.request_timeout_ms, self._session_ms * share)

    async def _claim_connection(self, node: int, address: Address) -> RawConnection:
        links = self._cluster.connections
        timeout_ms = min(self._cluster.config.socket_connection_setup_timeout_ms, self._answer_limit_ms(CONSULT_SHARE))
        return links.take_raw_connection(await links.acquire(node, address, self._channel, timeout_ms), self._changed)


RESETS = {"earliest": "smallest", "latest": "largest", "none": "none"}
"""The spec's words for `auto_offset_reset`: the coordinator looks the first or last offset up. With `none`, which
the spec lacks, it looks nothing up: a partition without an offset starts without one."""
NO_LEADER = -1
UNANSWERED_SHARE = 2 / 3
"""Share of a session, two Pings, after which a silent coordinator is probed."""


class PushMembership(Membership):
    """A group member in the push protocol: it registers, then answers the coordinator's requests."""

    NOT_JOINED = 0
    carries_positions = True

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        requires_polling: bool = True,
        new_member_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """Make an idle member; `new_member_id` is called at first, and after the member has left for not polling.

        Raises:
            InvalidInputError: A setting is not available in this protocol.
        """
        super().__init__(cluster, config, changed=changed, requires_polling=requires_polling)
        if config.auto_offset_reset not in RESETS:
            raise InvalidInputError(
                f"group.protocol=push: auto.offset.reset is {config.auto_offset_reset!r}; the coordinator finds begin "
                "or end, so it must be earliest, latest or none"
            )
        if config.group_instance_id is not None:
            raise InvalidInputError("group.protocol=push has no static members: leave group.instance.id out")
        self._new_member_id = new_member_id
        self._auto_commit = config.enable_auto_commit and requires_polling
        self._owned = Lease(config.session_timeout_ms)
        self._way = PushCoordinator(cluster, self.group, config.session_timeout_ms, self._move)
        self._link: RawConnection | None = None
        self._registering: Task[None] | None = None
        self._probing: Task[None] | None = None
        self._revoking: Task[None] | None = None
        self._registry: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._started = self._stopping = self._first = False
        self._resume = False
        self._lived_ms = float("-inf")  # when a probe of the coordinator last succeeded
        self._said = float(
            "-inf"
        )  # when the last answer, or the registration, was sent (`Runtime.clock_with_sleep_ms`)
        self._starts_seen = 0

    # Lifecycle.

    async def _run_member(self) -> None:
        while True:
            await self._until(lambda: self._subscription is not None and self.error is None and not self._overdue)
            try:
                await self._member()
            except Exception as error:  # noqa: BLE001 - the application gets any error
                await self._fatal(logged_kafka_error(f"group {self.group!r}", error))

    async def _member(self) -> None:
        """Register, and answer the coordinator's requests until the application does not poll, or an error ends it.

        If the connection ends, register again; if the lease ends, report the partitions as lost.
        """
        runtime = self.cluster.runtime
        self._member_id = self._member_id or self._new_member_id()
        self._unsettle()
        self.state = MemberState.JOINING
        self._heard_ms = runtime.now_ms
        while True:
            if self.assignment.partitions and not self._lease.is_valid(runtime.clock_with_sleep_ms()):
                await self._abandon_assignment(SESSION_EXPIRED)
            poll_left = self._poll_time_left_ms()
            if poll_left is not None and poll_left <= 0:
                await self._poll_overdue()
                return
            if self.error is not None:
                raise self.error
            if self._link is not None and self._link.ended is not None:
                self._unlink(self._link.ended)
            if self._link is None:
                self._reach()
            elif runtime.now_ms - self._heard_ms >= self.config.session_timeout_ms:
                self._unlink("no request from the coordinator within the session timeout")
                continue
            elif await self._answer_next(self._link):
                continue
            elif runtime.now_ms >= self._unanswered_ms() and self._probing is None and not self._stopping:
                probe = self._probe(self._link)
                self._probing = self.cluster.spawn_essential_task(probe, f"silence of {self.group}'s coordinator")
            await runtime.wait_first(self._moved, timeout_ms=self._quiet_ms())

    def _quiet_ms(self) -> float | None:
        """Return the ms to the next deadline: a silent coordinator, the lease's end, an overdue poll; None: none."""
        runtime = self.cluster.runtime
        waits = []
        if self._link is not None:
            may_probe = self._probing is None and not self._stopping
            silent = self._unanswered_ms() if may_probe else float("inf")
            waits.append(min(silent, self._heard_ms + self.config.session_timeout_ms) - runtime.now_ms)
        if self.assignment.partitions:
            waits.append(self._lease.end_ms - runtime.clock_with_sleep_ms())
        poll_left = self._poll_time_left_ms()
        if poll_left is not None:
            waits.append(poll_left)
        return max(1.0, min(waits)) if waits else None

    def _unanswered_ms(self) -> float:
        return max(self._heard_ms, self._lived_ms) + UNANSWERED_SHARE * self.config.session_timeout_ms

    async def _probe(self, link: RawConnection) -> None:
        """Check whether a silent coordinator is alive, by a Metadata request on the connection that commits use.

        If it does not answer, both connections are closed, and the member registers again. Otherwise a commit would
        block the application for a request timeout, while other members may own its partitions.
        """
        left_ms = (1 - UNANSWERED_SHARE) * self.config.session_timeout_ms
        try:
            await self._ask_coordinator(MetadataRequest(topics=[]), left_ms)
        except RetriableError as error:
            if self._link is link and self.cluster.runtime.now_ms >= self._unanswered_ms():
                self._unlink(f"the coordinator is silent: {error}")
        except KafkaError as error:
            log.debug(
                "[group %s] the coordinator answered a probe with an error, so it is alive and its connection kept: %s",
                self.group,
                error,
            )
        self._probing, self._lived_ms = None, self.cluster.runtime.now_ms
        self._move()

    @property
    def _lease(self) -> Lease:
        return self._owned

    async def _abandon_assignment(self, why: str) -> None:
        """Report the partitions as lost; reconnect once the application has acknowledged it."""
        self._unlink(why)
        self._drop_revoking()
        self._started = self._resume = False
        self._end_lease()
        await self._lose_held(why)
        self._registry = {}
        self.state = MemberState.JOINING

    # The connection.

    def _reach(self) -> None:
        """Start a background task that finds the coordinator and registers there, unless one is running."""
        if self._registering is None or self._registering.done:
            self._registering = self.cluster.spawn_essential_task(self._register(), f"registration in {self.group}")

    async def _register(self) -> None:
        failures = 0
        while True:
            try:
                sent = self.cluster.runtime.clock_with_sleep_ms
                link, self._said = await self._way.register(self._registration(), sent)
            except RetriableError as error:
                failures += 1
                self._log_retry(error, failures)
                await self.cluster.runtime.sleep(self.cluster.backoff_ms(failures))
            except Exception as error:  # noqa: BLE001 - the application gets any error
                self.error = logged_kafka_error(f"registration in group {self.group!r}", error)
                self._move()
                return
            else:
                self._link, self._first, self._stopping = link, True, False
                self._heard_ms = self.cluster.runtime.now_ms
                self._move()
                return

    def _registration(self) -> RegisterConsumerRequest:
        subscription = self._subscription
        assert subscription is not None
        if subscription.pattern is None:
            wanted = TopicCount(dict.fromkeys(subscription.topics, 1))
        else:
            wanted = TopicCount(regex=f"(?s).*(?:{subscription.pattern}).*")
        return RegisterConsumerRequest(
            group_id=self.group,
            consumer_id=self._member_id,
            topic_count=format_topic_count(wanted),
            auto_commit=self._auto_commit,
            auto_offset_reset=RESETS[self.config.auto_offset_reset],
            session_timeout_ms=self.config.session_timeout_ms,
        )

    def _unlink(self, why: str) -> None:
        """Close the connection to the coordinator; the member then registers again on a new one."""
        link, self._link = self._link, None
        self._stopping = False
        if link is not None:
            log.info("[group %s] closing the connection to the coordinator: %s", self.group, why)
            link.close(why)

    # Requests of the coordinator.

    async def _answer_next(self, link: RawConnection) -> bool:
        """Handle the next request of the coordinator; return False when there is none."""
        if self._resume and self.revocation is None:
            self._resume = False
            self._settle_started()
        if self._stopping:
            return self._stop_if_released(link)
        frame = link.next_frame()
        if frame is None:
            return False
        try:
            request = decode_coordinator_request(frame)
        except WireError as error:
            self._unlink(str(error))
            return True
        first, self._first = self._first, False
        self._heard_ms = self.cluster.runtime.now_ms
        if request.kind is PushType.START and first and self._is_another_map(request):
            await self._abandon_assignment("the coordinator knows nothing of what is held")
            return True
        if self._confirms(request):
            self._renew(self._said)
        if request.kind is PushType.PING:
            self._send_response(link, encode_ping_response(self._positions() if self._auto_commit else None))
        elif request.kind is PushType.STOP:
            self._stopping = True
            self._revoke_held()
        else:
            self._send_response(link, ErrorResponse(self._start(request)).encode_frame())
        return True

    @staticmethod
    def _confirms(asked: CoordinatorRequest) -> bool:
        """Return whether a request of the coordinator proves that it received the member's last answer.

        A repeated request (`num_retries` above 0) does not.
        """
        return asked.num_retries == 0

    def _send_response(self, link: RawConnection, body: bytes) -> None:
        self._said = self.cluster.runtime.clock_with_sleep_ms()
        link.send(body)

    def _positions(self) -> list[PositionedPartition]:
        return [
            PositionedPartition(part.topic, self._leaders.get(part, NO_LEADER), part.partition, offset)
            for part, offset in self._registry.items()
        ]

    def set_positions_to_report(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record positions of assigned partitions, which the answer to the coordinator's next Ping reports."""
        self._registry.update({part: offset for part, offset in positions.items() if part in self._registry})

    def _is_another_map(self, asked: CoordinatorRequest) -> bool:
        return (
            self._started and {topic_partition_of(partition) for partition in asked.partitions} != self._registry.keys()
        )

    def _start(self, asked: CoordinatorRequest) -> ErrorCode:
        """Adopt the assignment of the coordinator's Start request, and return the error code of the answer.

        Another assignment than the current one is refused unless a Stop came before. A repetition of the current one
        changes nothing, unless the application has released it meanwhile, for a Stop whose connection ended.
        """
        if self._is_another_map(asked):
            log.error(
                "[group %s] the coordinator's Start is refused until it sends a Stop: it assigns other partitions than "
                "before",
                self.group,
            )
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if self._started and (self.assignment.partitions or self.revocation is not None or not self._registry):
            self._resume = self.revocation is not None
            return ErrorCode.NONE
        self._registry = {topic_partition_of(partition): partition.offset for partition in asked.partitions}
        self._leaders = {topic_partition_of(partition): partition.leader for partition in asked.partitions}
        self._started = True
        self._starts_seen += 1
        self._generation = self._starts_seen
        self._settle_started()
        return ErrorCode.NONE

    def _settle_started(self) -> None:
        self.starts = {part: offset for part, offset in self._registry.items() if offset != NO_POSITION}
        self._complete_rebalance(tuple(sorted(self._registry)), None)

    def _revoke_held(self) -> None:
        held = self.assignment.partitions
        if held and self.revocation is None:
            self._revoking = self.cluster.spawn_essential_task(self._revoke(held), f"revocation of {self.group}")
            self._revoking.on_done(lambda _: self._move())

    def _stop_if_released(self, link: RawConnection) -> bool:
        """Answer the coordinator's Stop if the application has released all partitions; return False if not yet."""
        if self.assignment.partitions or self.revocation is not None:
            return False
        self._unsettle()
        self._stopping = self._started = self._resume = False
        self.state = MemberState.JOINING
        self._send_response(link, ErrorResponse(ErrorCode.NONE).encode_frame())
        return True

    def _drop_revoking(self) -> None:
        if self._revoking is not None:
            self._revoking.cancel()
            self._revoking = None
        self.revocation = None

    # Implementation of `Membership`.

    async def _lose(self, code: ErrorCode) -> None:
        self._drop_revoking()
        self._started = self._resume = False
        await super()._lose(code)
        self._registry = {}

    def _subscription_changed(self) -> None:
        """Register again, because a registration carries the topics."""
        self._unlink("the subscription changed")
        if self._registering is not None:
            self._registering.cancel()
            self._registering = None
        self._move()

    def _metadata_changed(self) -> None:
        self._move()

    def _want_topics(self) -> None:
        if self._subscription is not None:
            self.cluster.set_wanted_topics(
                self, self._subscription.topics if self._subscription.pattern is None else None
            )

    def _stop_tasks(self) -> None:
        self._unlink("this member stops")
        if self._registering is not None:
            self._registering.cancel()
            self._registering = None

    async def _send_leave(self, reason: str) -> None:
        """Leave with Kafka's LeaveGroup, so that the group need not wait for the session timeout."""
        if self._said == float("-inf") or not self._member_id:
            return
        request = LeaveGroupRequest(
            group_id=self.group,
            member_id=self._member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=self._member_id, reason=reason[:255])],
        )
        await self._ask_coordinator(request, min(self.config.request_timeout_ms, LEAVE_MS), f"leave:{self.group}")
