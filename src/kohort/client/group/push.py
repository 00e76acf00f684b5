"""A member in the push protocol: it registers, then answers what the coordinator asks. Source: spec 4.10.

========== ======================================================== ====================================================
state      meaning                                                  leaves it
========== ======================================================== ====================================================
IDLE       no subscription, or given up for not polling             subscribe; poll
JOINING    looks for the coordinator, registers, awaits a Start     Start
HOLDING    started; pings are answered with its positions           Stop; lease over; poll overdue
REVOKING   waits for the application to release partitions: the     release: the Stop is answered; lease over
           Stop is answered then
LEFT       closed                                                   -
========== ======================================================== ====================================================

The coordinator is asked of the bootstrap brokers, round robin, for ever. A connection that ends is made again under the
same id, and what is held is worked on meanwhile, as long as the lease lasts.

The lease: one request of the coordinator is unanswered at a time, so one that repeats nothing tells that the answer
before it, or the registration, has arrived. The member owns what it holds until a session after it *sent* that, less a
margin. The clock is looked at before the socket: a process that stood still finds an old Ping in its buffer, which says
nothing of now. The text's own rule (no request for a session: connect again) is longer, and holds for members that
hold nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping

from kohort.client.group.lease import Lease
from kohort.client.group.membership import LEAVE_MS, NOT_HEARD, Membership, MemberState
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import Address, Claimed, ConnectionFailed
from kohort.client.net.log_throttle import Sparingly, fault
from kohort.client.net.runtime import Task
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, RetriableError, TimedOutError, error_for
from kohort.ids import NO_POSITION, TopicPartition
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
    partition_of,
    write_topic_count,
)
from kohort.wire.schema import WireError

# -- The way to a push group's coordinator: the bootstrap brokers are asked, round robin, for ever. Source: spec 4.10

log = logging.getLogger("kohort.client")
CONSULT_SHARE = 1 / 3
"""Of a session: as often as a consumer is pinged."""
MUTE_MAX = 3
"""So many times in a row brokers end a connection that stood, instead of answering: they don't speak the protocol."""


class PushCoordinator:
    """Finds the coordinator of one group and registers there."""

    def __init__(self, cluster: Cluster, group: str, session_timeout_ms: float, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._session_ms = session_timeout_ms
        self._group = group
        self._changed = changed
        self._next = 0
        self._mute = 0
        self._reached = False
        self._lane = f"push:{group}"
        self._sparingly = Sparingly(cluster.runtime)

    async def register(self, registration: RegisterConsumerRequest, now: Callable[[], float]) -> tuple[Claimed, float]:
        """A connection on which the consumer is registered, and when `now` said that it asked for that.

        Raises:
            RetriableError: it can't be for now.
            KafkaError: it is refused, with the reason.
        """
        node, address = await self._find()
        link = await self._claim(node, address)
        sent_ms = now()
        link.send(registration.encode())
        frame = await link.next(self._cluster.runtime, self._patience_ms(1))
        if frame is None:
            why = link.ended or "no answer to the registration"
            link.close(why)
            raise ConnectionFailed(f"{address}: {why}")
        code = ErrorCode.of(ErrorResponse.decode(frame).error_code)
        if code is ErrorCode.NONE:
            return link, sent_ms
        link.close(code.name)
        text = f"group {self._group!r}: {address} refuses this consumer: {code.name}: {code.text}"
        if code is ErrorCode.FENCED_INSTANCE_ID:  # an earlier connection of this process is thought to stand
            raise RetriableError(text, code)
        raise error_for(code, text)

    async def _find(self) -> tuple[int, Address]:
        """The coordinator's id and address; ends with an answer only.

        The waits grow where brokers are reached: those that are not are paced by the waits before they are connected.
        """
        bootstrap = self._cluster.bootstrap
        failed: dict[Address, str] = {}
        failures = refused = 0
        while True:
            index = self._next % len(bootstrap)
            self._next += 1
            try:
                return await self._consult(-1 - index, bootstrap[index])
            except RetriableError as error:
                failed[bootstrap[index]] = str(error)
                failures += 1
                refused += self._reached
            if failures % len(bootstrap) == 0:
                self._tell_failed(failed)
                config = self._cluster.config
                rounds = -(-refused // len(bootstrap))
                wait = self._cluster.links.backoff_ms(rounds, config.retry_backoff_ms, config.retry_backoff_max_ms)
                await self._cluster.runtime.sleep(wait)

    def _tell_failed(self, failed: dict[Address, str]) -> None:
        if self._sparingly.due("bootstrap"):
            log.error(
                "group %s: AllKnownBrokersNotAvailable: none of the bootstrap brokers names the coordinator (%s); they "
                "are asked again for ever: if brokers have moved, start this consumer with their new addresses",
                self._group,
                "; ".join(failed.values()),
            )

    async def _consult(self, node: int, address: Address) -> tuple[int, Address]:
        """Ask one broker.

        Raises:
            RetriableError: it can't be reached, or knows no coordinator.
            KafkaError: UNSUPPORTED_VERSION: it does not speak the protocol.
        """
        self._reached = False
        link = await self._claim(node, address)
        self._reached = True
        try:
            link.send(ClusterMetadataRequest(self._group).encode())
            frame = await link.next(self._cluster.runtime, self._patience_ms(CONSULT_SHARE))
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

    def _no_answer(self, link: Claimed, address: Address) -> None:
        """Raises, with the reason."""
        if link.ended is None:
            raise TimedOutError(f"{address}: no answer to ClusterMetadata")
        self._mute += 1
        if self._mute < MUTE_MAX:
            raise ConnectionFailed(f"{address}: {link.ended}")
        self._mute = 0
        raise KafkaError(
            f"{address} ends the connection when it is asked for the coordinator of a push group: it does not speak "
            "the push protocol; use group.protocol=consumer or classic there",
            ErrorCode.UNSUPPORTED_VERSION,
        )

    def _patience_ms(self, share: float) -> float:
        """How long an answer is waited for: one that stands still takes connections, and others are there to ask."""
        return min(self._cluster.config.request_timeout_ms, self._session_ms * share)

    async def _claim(self, node: int, address: Address) -> Claimed:
        links = self._cluster.links
        timeout_ms = min(self._cluster.config.socket_connection_setup_timeout_ms, self._patience_ms(CONSULT_SHARE))
        return links.claim(await links.acquire(node, address, self._lane, timeout_ms), self._changed)


RESETS = {"earliest": "smallest", "latest": "largest", "none": "none"}
"""The text's words for `auto_offset_reset`; the coordinator finds begin or end. With the third, which is no word of the
text's, it finds nothing: a partition without an offset is started without one."""
NO_LEADER = -1
SILENT_SHARE = 2 / 3
"""Of a session, which is two pings: after so long without one the coordinator is asked whether it lives."""


class PushMembership(Membership):
    """See the module's text."""

    NOT_JOINED = 0
    carries_positions = True

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        poll_bound: bool = True,
        new_member_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """As Membership; `new_member_id` is called at first, and after the member has left for not polling.

        Raises:
            InvalidInputError: settings that the protocol has no room for.
        """
        super().__init__(cluster, config, changed=changed, poll_bound=poll_bound)
        if config.auto_offset_reset not in RESETS:
            raise InvalidInputError(
                f"group.protocol=push: auto.offset.reset is {config.auto_offset_reset!r}; the coordinator finds begin "
                "or end, so it must be earliest, latest or none"
            )
        if config.group_instance_id is not None:
            raise InvalidInputError("group.protocol=push has no static members: leave group.instance.id out")
        self._new_member_id = new_member_id
        self._auto_commit = config.enable_auto_commit and poll_bound
        self._owned = Lease(config.session_timeout_ms)
        self._way = PushCoordinator(cluster, self.group, config.session_timeout_ms, self._move)
        self._link: Claimed | None = None
        self._reaching: Task[None] | None = None
        self._probing: Task[None] | None = None
        self._revoking: Task[None] | None = None
        self._registry: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._started = self._stopping = self._first = False
        self._resume = False
        self._lived_ms = float("-inf")  # when the coordinator was last seen to live, though it asked nothing
        self._said = float("-inf")  # when the last answer, or the registration, was sent (`Runtime.elapsed_ms`)
        self._starts_seen = 0

    # The life of a member.

    async def _live(self) -> None:
        while True:
            await self._until(lambda: self._subscription is not None and self.error is None and not self._overdue)
            try:
                await self._member()
            except Exception as error:  # noqa: BLE001 - the application is told, whatever it is
                await self._fatal(fault(f"group {self.group!r}", error))

    async def _member(self) -> None:
        """From a registration until the application does not poll, or an error ends it."""
        runtime = self.cluster.runtime
        self._member_id = self._member_id or self._new_member_id()
        self._unsettle()
        self.state = MemberState.JOINING
        self._heard_ms = runtime.now_ms
        while True:
            if self.assignment.partitions and not self._lease.holds(runtime.elapsed_ms()):
                await self._let_go(NOT_HEARD)
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
                self._unlink("nothing was asked for a session")
                continue
            elif await self._answer_next(self._link):
                continue
            elif runtime.now_ms >= self._silent_ms() and self._probing is None and not self._stopping:
                self._probing = runtime.spawn(self._probe(self._link), f"silence of {self.group}'s coordinator")
            await runtime.first(self._moved, timeout_ms=self._quiet_ms())

    def _quiet_ms(self) -> float | None:
        """How long nothing is to be done, unless something happens."""
        runtime = self.cluster.runtime
        waits = []
        if self._link is not None:
            may_probe = self._probing is None and not self._stopping
            silent = self._silent_ms() if may_probe else float("inf")
            waits.append(min(silent, self._heard_ms + self.config.session_timeout_ms) - runtime.now_ms)
        if self.assignment.partitions:
            waits.append(self._lease.end_ms - runtime.elapsed_ms())
        poll_left = self._poll_time_left_ms()
        if poll_left is not None:
            waits.append(poll_left)
        return max(1.0, min(waits)) if waits else None

    def _silent_ms(self) -> float:
        return max(self._heard_ms, self._lived_ms) + SILENT_SHARE * self.config.session_timeout_ms

    async def _probe(self, link: Claimed) -> None:
        """Ask a silent coordinator for anything, on the connection of commits: one that stands still loses both.

        Else a commit would wait there for as long as a request may, and the application with it, though others may
        have its partitions.
        """
        left_ms = (1 - SILENT_SHARE) * self.config.session_timeout_ms
        try:
            await self._ask(MetadataRequest(topics=[]), left_ms)
        except RetriableError as error:
            if self._link is link and self.cluster.runtime.now_ms >= self._silent_ms():
                self._unlink(f"the coordinator is silent: {error}")
        except KafkaError as error:
            log.debug("group %s: the coordinator lives, and says %s", self.group, error)
        self._probing, self._lived_ms = None, self.cluster.runtime.now_ms
        self._move()

    @property
    def _lease(self) -> Lease:
        return self._owned

    async def _let_go(self, why: str) -> None:
        """What is held may be others' by now: connect again once the application has heard."""
        self._unlink(why)
        self._drop_revoking()
        self._started = self._resume = False
        self._end_lease()
        await self._lose_held(why)
        self._registry = {}
        self.state = MemberState.JOINING

    # The connection.

    def _reach(self) -> None:
        """Find the coordinator and register there, in the background."""
        if self._reaching is None or self._reaching.done:
            self._reaching = self.cluster.runtime.spawn(self._register(), f"registration in {self.group}")

    async def _register(self) -> None:
        failures = 0
        while True:
            try:
                sent = self.cluster.runtime.elapsed_ms
                link, self._said = await self._way.register(self._registration(), sent)
            except RetriableError as error:
                failures += 1
                self._not_yet(error, failures)
                await self.cluster.runtime.sleep(self._backoff_ms(failures))
            except Exception as error:  # noqa: BLE001 - the application is told, whatever it is
                self.error = fault(f"registration in group {self.group!r}", error)
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
            topic_count=write_topic_count(wanted),
            auto_commit=self._auto_commit,
            auto_offset_reset=RESETS[self.config.auto_offset_reset],
            session_timeout_ms=self.config.session_timeout_ms,
        )

    def _unlink(self, why: str) -> None:
        """The connection says nothing any more; it is closed before another one is made."""
        link, self._link = self._link, None
        self._stopping = False
        if link is not None:
            log.info("group %s: the connection to its coordinator has ended: %s", self.group, why)
            link.close(why)

    # What the coordinator asks.

    async def _answer_next(self, link: Claimed) -> bool:
        """Do what is to be done next; False: nothing is."""
        if self._resume and self.revocation is None:
            self._resume = False
            self._settle_started()
        if self._stopping:
            return self._stop_if_released(link)
        frame = link.take()
        if frame is None:
            return False
        try:
            asked = decode_coordinator_request(frame)
        except WireError as error:
            self._unlink(str(error))
            return True
        first, self._first = self._first, False
        self._heard_ms = self.cluster.runtime.now_ms
        if asked.kind is PushType.START and first and self._is_another_map(asked):
            await self._let_go("the coordinator knows nothing of what is held")
            return True
        if self._confirms(asked):
            self._renew(self._said)
        if asked.kind is PushType.PING:
            self._say(link, encode_ping_response(self._positions() if self._auto_commit else None))
        elif asked.kind is PushType.STOP:
            self._stopping = True
            self._revoke_held()
        else:
            self._say(link, ErrorResponse(self._start(asked)).encode())
        return True

    @staticmethod
    def _confirms(asked: CoordinatorRequest) -> bool:
        """Whether it tells that all answers have arrived: a Ping that is repeated does not."""
        return asked.num_retries == 0

    def _say(self, link: Claimed, body: bytes) -> None:
        self._said = self.cluster.runtime.elapsed_ms()
        link.send(body)

    def _positions(self) -> list[PositionedPartition]:
        return [
            PositionedPartition(part.topic, self._leaders.get(part, NO_LEADER), part.partition, offset)
            for part, offset in self._registry.items()
        ]

    def take_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """What the next answer says of partitions that this member was started with."""
        self._registry.update({part: offset for part, offset in positions.items() if part in self._registry})

    def _is_another_map(self, asked: CoordinatorRequest) -> bool:
        return self._started and {partition_of(each) for each in asked.partitions} != self._registry.keys()

    def _start(self, asked: CoordinatorRequest) -> ErrorCode:
        """Take an assignment; another one than is held, without a Stop, is refused and nothing is read by it.

        The same one changes nothing, unless the application has let go of it: for a Stop whose connection ended.
        """
        if self._is_another_map(asked):
            log.error("group %s: the coordinator starts this member without having stopped it", self.group)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if self._started and (self.assignment.partitions or self.revocation is not None or not self._registry):
            self._resume = self.revocation is not None
            return ErrorCode.NONE
        self._registry = {partition_of(each): each.offset for each in asked.partitions}
        self._leaders = {partition_of(each): each.leader for each in asked.partitions}
        self._started = True
        self._starts_seen += 1
        self._generation = self._starts_seen
        self._settle_started()
        return ErrorCode.NONE

    def _settle_started(self) -> None:
        self.starts = {part: offset for part, offset in self._registry.items() if offset != NO_POSITION}
        self._settle(tuple(sorted(self._registry)), None)

    def _revoke_held(self) -> None:
        held = self.assignment.partitions
        if held and self.revocation is None:
            self._revoking = self.cluster.runtime.spawn(self._revoke(held), f"revocation of {self.group}")
            self._revoking.on_done(lambda _: self._move())

    def _stop_if_released(self, link: Claimed) -> bool:
        """Answer a Stop once nothing is held."""
        if self.assignment.partitions or self.revocation is not None:
            return False
        self._unsettle()
        self._stopping = self._started = self._resume = False
        self.state = MemberState.JOINING
        self._say(link, ErrorResponse(ErrorCode.NONE).encode())
        return True

    def _drop_revoking(self) -> None:
        if self._revoking is not None:
            self._revoking.cancel()
            self._revoking = None
        self.revocation = None

    # What the base asks for.

    async def _lose(self, code: ErrorCode) -> None:
        self._drop_revoking()
        self._started = self._resume = False
        await super()._lose(code)
        self._registry = {}

    def _subscription_changed(self) -> None:
        """It registers again: that is where topics are said."""
        self._unlink("the subscription changed")
        if self._reaching is not None:
            self._reaching.cancel()
            self._reaching = None
        self._move()

    def _metadata_changed(self) -> None:
        self._move()

    def _want_topics(self) -> None:
        if self._subscription is not None:
            self.cluster.want_topics(self, self._subscription.topics if self._subscription.pattern is None else None)

    def _stop(self) -> None:
        self._unlink("this member stops")
        if self._reaching is not None:
            self._reaching.cancel()
            self._reaching = None

    async def _send_leave(self, reason: str) -> None:
        """Leave by Kafka's own request, which the text lacks: others need not wait for the session's end."""
        if self._said == float("-inf") or not self._member_id:
            return
        request = LeaveGroupRequest(
            group_id=self.group,
            member_id=self._member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=self._member_id, reason=reason[:255])],
        )
        await self._ask(request, min(self.config.request_timeout_ms, LEAVE_MS), f"leave:{self.group}")
