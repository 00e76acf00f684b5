"""Group host: the state that handlers of group requests work with, and the shards behind them.

A host is a broker, or a process that coordinates groups without storing topics.

| a host has | used for |
|---|---|
| topics, by name and id | offset commits and fetches; the coordinator's topic image |
| endpoints | Metadata, DescribeCluster, FindCoordinator |
| groups, with their settings | all group requests |
| transactions | transactional offset commits; None: the host rejects them |
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID
from zlib import crc32

from kohort.broker.audit import AuditLog
from kohort.broker.authorization import Authorizer, Caller, CallerCopy, PushAuthorization, Resource, may_see
from kohort.broker.dispatch import RequestThrottling
from kohort.broker.driver import LoopDriver
from kohort.broker.endpoints import Endpoints
from kohort.broker.framing import BadFrame, Frame
from kohort.broker.metrics import ApiMetrics, Histogram, Metrics
from kohort.broker.rebalance_history import RebalanceHistory
from kohort.broker.server.connection import ClientSession, Connection
from kohort.broker.server.faults import Faults
from kohort.broker.server.repeated_requests import RepeatedRequests
from kohort.broker.server.server_requests import OnAnswer, ServerRequests
from kohort.broker.shards import GroupShards
from kohort.broker.transport import Parts
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    BackgroundTask,
    Computation,
    ComputePushAssignment,
    CounterIncreased,
    DisconnectConsumer,
    FindOffsets,
    Lookup,
    MetricNote,
    PingConsumer,
    Push,
    Rebalanced,
    RebalanceLeftNoMembers,
    ResolveRegexes,
    StartConsumer,
    StopConsumer,
)
from kohort.groups.events import (
    Event,
    GroupSettings,
    OffsetsFound,
    PushConsumerAnswered,
    PushPosition,
    PushRequestKind,
    TopicImage,
)
from kohort.ids import AclOperation, TopicPartition
from kohort.io.processes import ENDING_LOOKS_S, has_process_ended
from kohort.io.thread_pools import run_in_pool
from kohort.journal.protocol import Journal
from kohort.name_patterns import matching_names
from kohort.wire.discovery import ApiVersionsResponse
from kohort.wire.push import (
    ErrorResponse,
    PositionedPartition,
    PushType,
    decode_ping_response,
    encode_ping,
    encode_start,
    encode_stop,
    with_length_prefix,
)
from kohort.wire.schema import WireError

# -- Push consumers: frames to their connections, answers to the shards of their groups

log = logging.getLogger("kohort.broker")

NO_LEADER = -1
Asks: TypeAlias = PingConsumer | StopConsumer | StartConsumer
KINDS = {
    PushRequestKind.PING: PushType.PING,
    PushRequestKind.STOP: PushType.STOP,
    PushRequestKind.START: PushType.START,
}


class ServerRequest:
    """A server request to a push consumer, from its creation until the consumer's answer: the counterpart of `Request`.

    Attributes:
        client_id: the consumer's id.
        message: the effect of the group's shard that caused the request.
    """

    __slots__ = ("api", "began", "client_id", "connection", "latency", "message", "on_answer", "on_reply")

    def __init__(
        self, kind: PushType, connection: Connection, message: Asks, metrics: ApiMetrics, on_answer: OnAnswer
    ) -> None:
        self.api = kind.api
        self.connection = connection
        self.client_id = message.member_id
        self.message = message
        self.latency: Histogram = metrics.latency
        self.on_answer = on_answer
        self.on_reply: Callable[[Parts], bool] | None = None
        self.began = perf_counter()
        metrics.requests += 1

    @property
    def name(self) -> str:
        """The request's name for log lines."""
        return f"{self.api} to {self.connection.name} ({self.client_id})"

    def handle_answer(self, frame: Frame) -> None:
        """Handle the consumer's answer.

        Raises:
            BadFrame: the answer is malformed.
        """
        if self.on_reply is not None and not self.on_reply([bytes(frame)]):
            return
        self.latency.observe(perf_counter() - self.began)
        self.on_answer(frame)

    def send(self, parts: Parts) -> None:
        """Deliver an answer that was delayed or made up by a fault rule to the group's shard."""
        if self.connection.closed:
            return
        (frame,) = parts
        assert isinstance(frame, bytes)
        try:
            self.handle_answer(memoryview(frame))
        except BadFrame as error:
            log.warning(
                "closing the connection from %s: malformed answer of a push consumer: %s", self.connection.name, error
            )
            self.connection.close()

    def undecodable_response(self) -> Parts:
        """Return bytes that no decoder accepts; a fault rule puts them in place of the consumer's answer."""
        return [b"\xff"]

    def fail(self, error: ErrorCode, why: str) -> None:
        """Answer with an error in the consumer's place.

        The answer to a Ping has no error field, so its connection is closed instead.
        """
        if self.api == PushType.PING.api:
            log.warning(
                "closing the connection of a push consumer from %s: its Ping was to fail, and has no field for an "
                "error: %s",
                self.connection.name,
                why,
            )
            self.connection.close()
        else:
            self.send([ErrorResponse(error).encode_frame()])


class PushRegistration(NamedTuple):
    """The registration of a push consumer on its connection, for as long as the connection is open.

    Attributes:
        right: the authorization of the registration; None: no authorizer.
    """

    connection: Connection
    turned: ServerRequests
    group_id: str
    right: PushAuthorization | None


class PushConnections:
    """The connections of registered push consumers, by connection number.

    Attributes:
        throttling: measures the consumers' answers for quotas; None: there are no quotas.
    """

    def __init__(self, groups: GroupShards, endpoints: Endpoints, metrics: Metrics, faults: Faults) -> None:
        self._groups = groups
        self._endpoints = endpoints
        self._metrics = {asking: metrics.apis[kind] for asking, kind in KINDS.items()}
        self._faults = faults
        self._by_number: dict[int, PushRegistration] = {}
        self.throttling: RequestThrottling | None = None

    def __len__(self) -> int:
        return len(self._by_number)

    def register_consumer(self, connection: Connection, group_id: str, right: PushAuthorization | None = None) -> None:
        """Register a consumer on a connection: all later frames from it are answers."""
        self._by_number[connection.client.number] = PushRegistration(
            connection, connection.reverse_direction(), group_id, right
        )

    def authorizations(self, group_id: str) -> list[PushAuthorization]:
        """Return the authorizations under which a group's push consumers registered."""
        return [found.right for found in self._by_number.values() if found.group_id == group_id and found.right]

    def close_shard_connections(self, index: int) -> None:
        """Close the connections of a shard's groups, so that consumers rejoin at once and not only after a timeout."""
        for connection, _, group_id, _ in list(self._by_number.values()):
            if self._groups.shard_index_of(group_id) == index:
                log.info(
                    "[group %s] closing a push consumer's connection from %s: the group has moved to another "
                    "coordinator",
                    group_id,
                    connection.name,
                )
                connection.close_after_responses()

    def forget_connection(self, client: ClientSession) -> None:
        """Forget a push consumer's connection that has closed."""
        self._by_number.pop(client.number, None)

    def send_to_consumer(self, push: Push) -> None:
        """Send a Ping, Stop or Start to a registered push consumer, or close its connection.

        A consumer whose connection has closed is skipped: its shard is notified of the disconnect separately.
        """
        found = self._by_number.get(push.connection)
        if found is None:
            return
        connection = found.connection
        value = push.value
        try:
            if isinstance(value, DisconnectConsumer):
                log.info(
                    "[group %s] closing a push consumer's connection from %s: %s",
                    value.group_id,
                    connection.name,
                    value.why,
                )
                connection.close_after_responses()
            else:
                self._send_to_consumer(found, value, *encode_server_request(value, self._leader))
        except WireError as error:
            self._close_consumer(connection, value.group_id, error)

    @staticmethod
    def _close_consumer(connection: Connection, group_id: str, error: KafkaError) -> None:
        log.warning("[group %s] closing a push consumer's connection from %s: %s", group_id, connection.name, error)
        connection.close_after_responses()

    def _send_to_consumer(self, to: PushRegistration, value: Asks, asking: PushRequestKind, body: bytes) -> None:
        connection = to.connection
        answer = partial(self._on_answer, to, value, asking)
        asked = ServerRequest(KINDS[asking], connection, value, self._metrics[asking], answer)

        def send_request_frame() -> None:
            if connection.closed:
                return
            try:
                to.turned.ask([with_length_prefix(body)], asked.handle_answer)
            except KafkaError as error:
                self._close_consumer(connection, value.group_id, error)

        if not (self._faults.active and self._faults.apply_rules(asked, send_request_frame)):
            send_request_frame()

    def _leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's current leader."""
        leaders = self._endpoints.leaders(topic, range(partition, partition + 1))
        return leaders[0][0] if leaders else NO_LEADER

    def _on_answer(self, by: PushRegistration, value: Asks, asked: PushRequestKind, frame: Frame) -> None:
        """Handle a consumer's answer, and measure it for quotas.

        Raises:
            BadFrame: the answer is malformed.
        """
        began = perf_counter()
        self._pass_answer(by, value, asked, frame)
        if self.throttling is not None and self.throttling.active:
            self.throttling.charge_push_frame(by.connection, perf_counter() - began)

    def _pass_answer(self, by: PushRegistration, value: Asks, asked: PushRequestKind, frame: Frame) -> None:
        """Pass a consumer's answer to its group's shard.

        If the consumer is no longer authorized, drop the answer and close the connection.

        Raises:
            BadFrame: the answer is malformed.
        """
        connection = by.connection
        if by.right is not None and (refused := by.right.current_error()):
            what = f"{value.member_id} may not be a member any more: {refused.name}: {refused.text}"
            self._close_consumer(connection, value.group_id, KafkaError(what, refused))
            return
        try:
            answered = decode_consumer_answer(value, connection.client.number, asked, frame)
        except WireError as bad:
            what = f"{value.member_id} answers {asked.name.capitalize()}"
            raise BadFrame(f"group {value.group_id}: {what}: {bad}") from None
        self._groups.queue_event(value.group_id, answered)


def encode_server_request(value: Asks, leader: Callable[[str, int], int]) -> tuple[PushRequestKind, bytes]:
    """Encode a Ping, Stop or Start for a push consumer; return its kind and the frame without its size.

    Raises:
        WireError: the assignment does not fit into a frame.
    """
    if isinstance(value, PingConsumer):
        return PushRequestKind.PING, encode_ping(value.retries)
    if isinstance(value, StopConsumer):
        return PushRequestKind.STOP, encode_stop()
    parts = [PositionedPartition(topic, leader(topic, number), number, at) for topic, number, at in value.positions]
    return PushRequestKind.START, encode_start(parts)


def decode_consumer_answer(value: Asks, connection: int, asked: PushRequestKind, frame: Frame) -> PushConsumerAnswered:
    """Decode a push consumer's answer as the event for its group's shard.

    The frame does not name its request, so the caller supplies it.

    Raises:
        WireError: the answer is malformed.
    """
    error = ErrorCode.NONE
    positions: tuple[PushPosition, ...] = ()
    if asked is PushRequestKind.PING:
        found = decode_ping_response(frame, isinstance(value, PingConsumer) and value.auto_commit)
        positions = tuple([PushPosition(entry.topic, entry.partition, entry.offset) for entry in found])
    else:
        error = ErrorCode.of(ErrorResponse.decode(frame).error_code)
    return PushConsumerAnswered(value.group_id, value.member_id, connection, asked, error, positions)


class AssignmentThreads:
    """Threads that compute the assignments of push groups: always the same one for a group.

    A group whose assignor hangs holds up those of its queue and no others. Source: spec 4.9.
    """

    def __init__(self, count: int) -> None:
        self._threads: list[ThreadPoolExecutor | None] = [None] * count

    def assignment_executor_of(self, group_id: str) -> ThreadPoolExecutor:
        """Return the thread executor that computes a group's assignments; it is started on first use."""
        index = crc32(group_id.encode()) % len(self._threads)
        found = self._threads[index]
        if found is None:
            found = self._threads[index] = ThreadPoolExecutor(1, f"kohort-divide-{index}")
        return found

    def close(self) -> None:
        """Stop the threads that compute assignments of push groups."""
        for thread in self._threads:
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)


FEATURES = {"group.version": (0, 1), "metadata.version": (7, 33), "transaction.version": (0, 2)}
"""Features with their lowest and highest levels as of Apache Kafka 4.4. The highest level is in effect."""
REGEX_CALLERS_MAX = 10_000
"""The most groups whose latest client is remembered. Patterns of others wait for a heartbeat."""
WORKERS = 2
"""Threads for background tasks of the coordinator. The interpreter lock bounds them, so more would gain nothing."""


class KnownTopic(Protocol):
    """A topic, with the properties that group requests need: id, name and partition count."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> UUID: ...
    @property
    def partitions(self) -> int: ...


class KnownTopics(Protocol):
    """All existing topics, wherever they are stored.

    Attributes:
        sure: whether a topic that is not listed certainly does not exist; see `TopicImage`.
    """

    @property
    def sure(self) -> bool: ...
    @property
    def by_name(self) -> Mapping[str, KnownTopic]: ...
    @property
    def by_id(self) -> Mapping[UUID, KnownTopic]: ...

    def topic_image(self) -> TopicImage:
        """Return all topics as the group coordinator sees them."""

    def invalid_name_error(self, name: str) -> KafkaError | None:
        """Return why a topic of this name can't exist, or None."""


class OffsetTransactions(Protocol):
    """The part of the transaction coordinator that commits of offsets in transactions need."""

    def add_partitions(
        self, transactional_id: str, producer: tuple[int, int], partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Add partitions of the offsets topic to a transaction."""

    def check_partition_in_transaction(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition
    ) -> ErrorCode:
        """Check that a producer's transaction includes this partition of the offsets topic."""


class GroupHost:
    """The groups of one process, with all that their handlers and shards need. All methods run on the loop.

    Attributes:
        api_keys: the API versions in responses to ApiVersions.
        authorizer: decides what clients may do; None: everything is allowed.
        audit: the audit log; None: nothing is recorded.
        consumers: the connected push consumers.
        throttling: measures requests for quotas; None: this host has no quotas.
        repeated: the templates of requests that clients repeat.
        on_rebalanced: called when a group has rebalanced and the result is durable; None: no callback.
        features: feature names with their lowest and highest levels.
        described_partitions_max: the most partitions in one response (`max.request.partition.size.limit`).
        coordinator_id: node id of a coordinator outside the brokers, for kohort's own clients; -1: none.
    """

    features: Mapping[str, tuple[int, int]] = FEATURES
    coordinator_id = -1
    described_partitions_max = 2_000

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        topics: Callable[[GroupShards], KnownTopics],
        endpoints: Endpoints,
        open_journal: Callable[[int], Journal],
        api_keys: Sequence[ApiVersionsResponse.ApiVersion],
    ) -> None:
        """Create a group host without shards.

        Args:
            loop: the event loop.
            config: the group settings.
            topics: creates the topics, which notify the groups of changes.
            endpoints: the cluster's endpoints.
            open_journal: opens the journal of a shard.
            api_keys: the API versions that are served.
        """
        self.loop = loop
        self.group_config = config
        self.endpoints = endpoints
        self.api_keys = api_keys
        self.authorizer: Authorizer | None = None
        self.audit: AuditLog | None = None
        self._open_journal = open_journal
        self.transactions: OffsetTransactions | None = None
        self.throttling: RequestThrottling | None = None
        self.metrics = Metrics()
        self.on_rebalanced: Callable[[Rebalanced], None] | None = None
        self.faults = Faults(loop)
        self.repeated = RepeatedRequests()
        self._request_ids = itertools.count(1)
        self.groups = GroupShards(self.next_request_id, self._make_shard)
        self.topics = topics(self.groups)
        self.consumers = PushConnections(self.groups, endpoints, self.metrics, self.faults)
        self.rebalances = RebalanceHistory()
        self.groups.on_end = self._shard_given_up
        self._workers = ThreadPoolExecutor(WORKERS, "kohort-work")
        self._matching = ThreadPoolExecutor(1, "kohort-match")
        self._dividers = AssignmentThreads(config.push_rebalance_threads)
        self._work: set[asyncio.Future[Event]] = set()
        self._regex_callers: OrderedDict[str, CallerCopy] = OrderedDict()
        self._regexes_waiting: dict[str, tuple[ResolveRegexes, Callable[[Event], None]]] = {}

    def _shard_given_up(self, index: int) -> None:
        self.consumers.close_shard_connections(index)
        self.rebalances.drop_histories(lambda group: self.groups.shard_index_of(group) == index)

    def next_request_id(self) -> int:
        """Return a new id for an event that is sent to a group shard. The reply finds its request by this id."""
        return next(self._request_ids)

    def _make_shard(self, index: int, term: int) -> Shard:
        return Shard(index, self._open_journal(index), term, self.group_config, LoopDriver(self.loop, self))

    # -- clients

    def lease_ms(self, client: ClientSession) -> int:
        """Return the disconnect lease for a client in ms (`kohort.io.processes`); 0: the client gets none."""
        keeps_one = self.group_config.notice_disconnects != "off" and client.is_kohort_client
        return self.group_config.disconnect_lease_ms if keeps_one else 0

    def answer_delayed_heartbeats(self, client: ClientSession) -> None:
        """Answer a client's delayed heartbeats, because another request arrived on the connection."""
        self.groups.answer_delayed_heartbeats(client)

    def on_client_disconnected(self, client: ClientSession) -> None:
        """Notify the group shards that a client's connection is closed."""
        self.consumers.forget_connection(client)
        self.repeated.forget_client(client)
        if client.shards:
            noticed = client.lease_ms > 0 or self.group_config.notice_disconnects == "all"
            self._report_lost(client, noticed, ENDING_LOOKS_S if noticed and client.process else ())

    def _report_lost(self, client: ClientSession, noticed: bool, looks_s: tuple[float, ...]) -> None:
        """Notify the group shards that a client's connection closed, and whether its process has ended too.

        The process is checked before each pause in `looks_s`, until it has ended; after the last, it counts as alive.
        """
        ended = bool(looks_s) and has_process_ended(client.process)
        if looks_s and not ended:
            self.loop.call_later(looks_s[0], self._report_lost, client, noticed, looks_s[1:])
        else:
            self.groups.connection_lost(client, noticed=noticed, ended=ended)

    # -- what a shard needs

    def topic_image(self) -> TopicImage:
        """Return all topics that exist now."""
        return self.topics.topic_image()

    def topics_since_load(self, index: int) -> Sequence[str]:
        """Return the topics created since a shard's journal was last loaded: none, unless a subclass tracks them.

        Where topics are identified by id, committed offsets name their topic without this.
        """
        return ()

    def handle_shard_loaded(self, index: int) -> None:
        """Close push connections of a shard that has loaded: their registrations belong to an earlier load."""
        self.consumers.close_shard_connections(index)

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Close push connections of a shard that was fenced or can't be read."""
        self.consumers.close_shard_connections(index)

    def group_settings_of_shard(self, index: int) -> Mapping[str, GroupSettings]:
        """Return the settings of single groups (not the broker's defaults) for a shard's groups, by group id."""
        return {}

    def run_background_task(self, work: BackgroundTask, done: Callable[[Event], None]) -> None:
        """Run a group's background task in a thread, or look up what it asks for in logs or in Kafka.

        `done` gets the resulting event on the loop.
        """
        if isinstance(work, FindOffsets):
            self.lookup_offsets(work, done)
            return
        if not isinstance(work, Computation):
            self.lookup_in_kafka_cluster(work, done)
            return
        visible = self._visible_to_group(work)
        if visible is None:
            assert isinstance(work, ResolveRegexes)
            self._regexes_waiting[work.group_id] = work, done
            return
        from kohort.broker.background_tasks import run_task  # loads the assignors: only when first needed

        future = run_in_pool(self.loop, self._thread_of(work), partial(run_task, work, visible))
        self._work.add(future)

        def deliver_result(finished: asyncio.Future[Event]) -> None:
            self._work.discard(finished)
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(deliver_result)

    def _thread_of(self, work: Computation) -> ThreadPoolExecutor:
        """Return the thread pool for a background task.

        Regular expressions have a pool of their own, so that slow ones delay no assignments.
        """
        if isinstance(work, ComputePushAssignment):
            return self._dividers.assignment_executor_of(work.group_id)
        return self._matching if isinstance(work, ResolveRegexes) else self._workers

    def match_names(
        self, pattern: str, names: Sequence[str], done: Callable[[list[str] | InvalidInputError], None]
    ) -> None:
        """Match names with a client's regular expression in a thread.

        `done` gets the matching names, or why the expression is refused, on the loop.
        """

        def match_in_thread() -> list[str] | InvalidInputError:
            try:
                return matching_names(pattern, names)
            except InvalidInputError as error:
                return error.with_traceback(None)

        def deliver_result(finished: asyncio.Future[list[str] | InvalidInputError]) -> None:
            if not finished.cancelled():
                done(finished.result())

        run_in_pool(self.loop, self._matching, match_in_thread).add_done_callback(deliver_result)

    # -- topics that regular expressions may select

    def remember_regex_caller(self, group_id: str, caller: Caller) -> None:
        """Remember the client of a group's latest heartbeat: its permissions decide which topics a regex may match.

        A regex resolution that had to wait for such a client is started.
        """
        self._regex_callers[group_id] = CallerCopy.copy_of(caller)
        self._regex_callers.move_to_end(group_id)
        if len(self._regex_callers) > REGEX_CALLERS_MAX:
            self._regex_callers.popitem(last=False)
        if (waiting := self._regexes_waiting.pop(group_id, None)) is not None:
            self.run_background_task(*waiting)

    def _visible_to_group(self, work: Computation) -> Callable[[Iterable[str]], list[str]] | None:
        """Return a filter for the topics that a group's regexes may match; None if no client of it is known yet."""
        if self.authorizer is None:
            return list
        if isinstance(work, ResolveRegexes):
            caller = self._regex_callers.get(work.group_id)
            return None if caller is None else partial(self._describable, caller)
        if isinstance(work, ComputePushAssignment):
            rights = self.consumers.authorizations(work.group_id)
            return lambda names: [name for name in names if all(right.may_read(name) for right in rights)]
        return list

    def _describable(self, caller: Caller, names: Iterable[str]) -> list[str]:
        return [name for name in names if may_see(self, caller, AclOperation.DESCRIBE, Resource.TOPIC, name)]

    def lookup_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """Look up unknown topics, then call `then`. A host whose topics are `sure` knows all, and looks nothing up."""
        then()

    def lookup_in_kafka_cluster(self, question: Lookup, done: Callable[[Event], None]) -> None:
        """Look up topics or groups in another Kafka cluster. A host that stores all of them itself is never asked."""
        log.error(
            "unexpected question to another Kafka cluster, which this broker never reads; left unanswered: %s", question
        )

    def lookup_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Answer that partition offsets can't be looked up: this process stores no topics. `Node` overrides it."""
        failure = "start and end offsets can't be looked up here: commit positions before consumers start"
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, (), failure))

    def send_to_push_consumer(self, push: Push) -> None:
        """Send a Ping, Stop or Start of a shard to a push consumer, or close its connection."""
        self.consumers.send_to_consumer(push)

    def record_metric(self, note: MetricNote) -> None:
        """Update the metrics and the history of rebalances from a group coordinator."""
        if not isinstance(note, CounterIncreased):
            self.rebalances.record_rebalance_event(note)
        if not isinstance(note, RebalanceLeftNoMembers):
            self.metrics.record_measurement(note)
        if self.on_rebalanced is not None and isinstance(note, Rebalanced):
            self.on_rebalanced(note)

    # -- the end

    def answer_waiting_requests(self) -> None:
        """Answer all waiting requests, because the process is shutting down."""
        for shard in self.groups:
            shard.close()

    def close(self) -> None:
        """Stop the host's threads, drop its fault rules, and close the audit log."""
        self.faults.clear()
        if self.audit is not None:
            self.audit.close_log()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._matching.shutdown(wait=False, cancel_futures=True)
        self._dividers.close()
