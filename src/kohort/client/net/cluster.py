"""Brokers, leaders and coordinators as the client knows them, and the one way to send a request to any of them.

Everything here runs inside the core's `Runtime`; see `kohort.client.net.runtime`. A part of the client (consumer,
producer, admin) is written as coroutines over a `Cluster`:

    async def delete_groups(cluster: Cluster, groups: list[str]) -> ...:
        async def attempt() -> ...:
            answer = await cluster.send(DeleteGroupsRequest(groups_names=groups), Coordinator(groups[0]))
            ...raise error_for(code, text) for what went wrong: retriable ones are tried again by `retry_call`
        return await cluster.retrying(attempt, "delete groups")

and called from outside through a driver, which steps the runtime and owns the sockets:

    client = ThreadClient(config)                      # kohort.client.net.thread_driver
    client.call(delete_groups(client.cluster, ["g"]))  # blocks; client.submit(...) gives a concurrent.futures.Future
    client.close()

    client = await AsyncClient.open(config)                # kohort.client.net.asyncio_driver
    await client.call(delete_groups(client.cluster, ["g"]))
    await client.close()

Errors to catch: `ConnectionFailed` (retriable: the node could not be reached, or the connection ended),
`TimedOutError`, and KafkaError with UNSUPPORTED_VERSION. The caller handles the error codes inside a response:
after NOT_COORDINATOR call `forget_coordinator`, after NOT_LEADER_OR_FOLLOWER and the like `request_metadata`.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Protocol, TypeVar
from uuid import UUID

from kohort.client.net.bootstrap_check import unreachable_text
from kohort.client.net.connection import Address, BrokerConnection, BrokerConnections, ConnectionFailed
from kohort.client.net.metadata import BrokerInfo, Metadata, TopicInfo
from kohort.client.net.runtime import FailureLog, Promise, Runtime, Task, Work
from kohort.client.net.security import TlsError, sasl_mechanism
from kohort.client.net.targets import (
    ANY,
    ANY_BROKER,
    ANY_COORDINATOR,
    CONTROLLER,
    GROUP,
    LOOKUP_TIMEOUT_MS,
    TRANSACTION,
    AnyCoordinator,
    AnyNode,
    Between,
    BrokerById,
    Controller,
    Coordinator,
    EscalatingTimeout,
    Leader,
    Target,
    choose_request_version,
    parse_address,
)
from kohort.client.settings import ConnectionConfig
from kohort.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    RetriableError,
    TimedOutError,
    error_for,
)
from kohort.ids import TopicPartition
from kohort.wire.coordinators import DescribeCoordinatorsRequest
from kohort.wire.discovery import MetadataRequest, MetadataResponse
from kohort.wire.groups import FindCoordinatorRequest
from kohort.wire.message import Message, RequestMessage

# -- Look-up of coordinators
#
# With brokers as bootstrap servers, groups are looked up at any broker, and so is everything else. With kohort's
# coordinators over a Kafka cluster as bootstrap servers, groups are looked up at the coordinators. Transactional ids,
# topics and data are looked up at Kafka's brokers.
#
# A broker of that cluster is never asked for a group: it would return Kafka's own coordinator.
#
# The first connection tells which case it is (`BrokerConnections.apart`), before any address but those of the bootstrap
# servers is known.

R = TypeVar("R", bound=Message)

log = logging.getLogger("kohort.client")
JOURNAL_TOPIC = "__kohort_groups"
"""The default topic in which kohort's coordinators over a Kafka cluster keep groups."""

COORDINATOR_LIST_MAX_AGE_MS = 10_000
"""A look-up also refreshes a list of coordinators older than this; a new coordinator may be unknown for that long."""

GROUP_CONNECT_TIMEOUT_MS = 1_500
"""Look a coordinator up again when it can't be connected within this time. Another coordinator may own its groups by
now. Longer than the backoff after a refused connection."""


def group_uses_kohort_coordinators(group: str, cluster_id: str | None) -> bool:
    """Return whether a client in this process has found this group at kohort's coordinators, not at Kafka's brokers."""
    return any(coordinators.is_served_by_kohort(group, cluster_id) for coordinators in list(_OF_THIS_PROCESS))


def check_brokers_coordinate_groups(cluster: ClusterAccess) -> None:
    """Check that Kafka's own brokers coordinate this cluster's groups, so that a transaction can commit offsets.

    Raises:
        KafkaError: UNSUPPORTED_VERSION: kohort's coordinators do.
    """
    if cluster.connections.apart:
        raise error_for(
            ErrorCode.UNSUPPORTED_VERSION,
            "kohort's coordinators over a Kafka cluster take no offsets within transactions: commit them with the "
            "consumer when the transaction is over (records may then be read again, never skipped), or keep the "
            "group at Kafka's own coordinator",
        )


async def check_group_without_member(cluster: ClusterAccess, group: str, *, warned: set[str]) -> None:
    """Check a group id that is given instead of group metadata for a transaction's offsets.

    Kafka's coordinator accepts the offsets if it has no members of the group, and kohort's coordinators may serve them.
    If kohort's coordinators may serve groups over this cluster, log a warning, once for each group (`warned`).

    Raises:
        InvalidInputError: kohort's coordinators are known to serve the group.
    """
    why = f"group {group!r} is named without its member, and the offsets would go to Kafka's own coordinator"
    todo = "give consumer.group_metadata(), or commit with the consumer when the transaction is over"
    if group_uses_kohort_coordinators(group, cluster.metadata.cluster_id):
        raise InvalidInputError(f"{why}, but the group is at kohort's coordinators: {todo}")
    if group in warned:
        return
    warned.add(group)
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=JOURNAL_TOPIC)])
    request.allow_auto_topic_creation = False
    with contextlib.suppress(KafkaError):
        answer = await cluster.send(request, ANY)
        if any(topic.partitions for topic in answer.topics):
            log.warning(
                "[group %s] a transaction's offsets go to Kafka's own coordinator, because the call names the group "
                "without its member; if kohort's coordinators serve the group, %s",
                group,
                todo,
            )


class ClusterAccess(Protocol):
    """The part of `Cluster` that coordinator look-ups need."""

    config: ConnectionConfig
    runtime: Runtime
    connections: BrokerConnections
    metadata: Metadata

    async def send(self, message: RequestMessage[R], to: Target, *, timeout_ms: float | None = None) -> R: ...

    def unreachable_text(self) -> str: ...


class Coordinators:
    """The known coordinators of groups and transactional ids, and the look-ups of unknown ones.

    Attributes:
        own: kohort's coordinators by id, if they are apart from the brokers.
    """

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self.own: Mapping[int, BrokerInfo] = {}
        self._listed_ms = float("-inf")
        self._found: dict[Coordinator, int] = {}
        self._nodes: dict[int, BrokerInfo] = {}
        self._lookups: dict[Coordinator, Task[int]] = {}
        _OF_THIS_PROCESS.add(self)

    def is_served_by_kohort(self, group: str, cluster_id: str | None) -> bool:
        """Return whether one of kohort's coordinators over Kafka is known to serve this group of this cluster."""
        known = self._cluster.connections.apart and Coordinator(group, GROUP) in self._found
        return known and cluster_id is not None and self._cluster.metadata.cluster_id == cluster_id

    def node(self, node_id: int) -> BrokerInfo | None:
        """Return a coordinator's address by its node id."""
        return self.own.get(node_id) or self._nodes.get(node_id)

    async def find(self, to: Coordinator, timeout_ms: float) -> int:
        """Return the node id of a coordinator: at once if it is known, else after a look-up.

        Concurrent look-ups of the same coordinator are shared.

        Raises:
            KafkaError: The error of FindCoordinator; retriable while the coordinator is not available.
            TimedOutError: The look-up did not end within `timeout_ms`.
        """
        known = self._found.get(to)
        if known is not None:
            return known
        runtime = self._cluster.runtime
        task = self._lookups.get(to)
        if task is None or task.done:
            task = self._lookups[to] = runtime.spawn(self._look_up(to), f"coordinator of {to.key}")
        if await runtime.wait_first(task, timeout_ms=timeout_ms) is None:
            reason = self._cluster.unreachable_text() or "it was not named in time"
            raise TimedOutError(f"no coordinator of {to.key!r} within {timeout_ms:.0f} ms: {reason}")
        return task.result()

    def forget_coordinator(self, to: Coordinator) -> None:
        """Forget a coordinator, so that the next request looks it up again."""
        self._found.pop(to, None)
        task = self._lookups.get(to)
        if task is not None and task.done:
            del self._lookups[to]

    def forget_all_coordinators(self) -> None:
        """Forget all coordinators: their addresses may belong to another cluster by now."""
        self._found.clear()
        self._nodes.clear()

    async def list(self) -> Mapping[int, BrokerInfo]:
        """Ask one of kohort's coordinators for all of them; return them by id.

        Raises:
            KafkaError: No coordinator could be asked.
        """
        answer = await self._cluster.send(DescribeCoordinatorsRequest(), ANY_COORDINATOR, timeout_ms=LOOKUP_TIMEOUT_MS)
        if answer.error_code:
            raise error_for(ErrorCode.of(answer.error_code), "a coordinator could not say which there are")
        named = {
            coordinator.node_id: BrokerInfo(
                coordinator.node_id, Address(coordinator.host, coordinator.port), coordinator.rack
            )
            for coordinator in answer.coordinators
        }
        if named:
            self.own = named
            self._reach_plainly(named.values())
            self._listed_ms = self._cluster.runtime.now_ms
        return self.own

    def close(self) -> None:
        """Cancel the look-ups of coordinators that are under way."""
        for task in self._lookups.values():
            task.cancel()

    async def _look_up(self, to: Coordinator) -> int:
        send, links = self._cluster.send, self._cluster.connections
        request = FindCoordinatorRequest(key=to.key, key_type=to.kind, coordinator_keys=[to.key])
        if links.apart and to.kind == GROUP:
            answer = await send(request, ANY_COORDINATOR, timeout_ms=LOOKUP_TIMEOUT_MS)
        else:
            to_ask = ANY if to.kind == GROUP else ANY_BROKER
            answer = await send(
                request, to_ask, timeout_ms=min(LOOKUP_TIMEOUT_MS, self._cluster.config.request_timeout_ms)
            )
            if links.apart and to.kind == GROUP:  # the first connection has just shown it
                return await self._look_up(to)
        coordinator = answer.coordinators[0] if answer.coordinators else answer
        if coordinator.error_code:
            text = coordinator.error_message or f"no coordinator of {to.key!r}"
            raise error_for(ErrorCode.of(coordinator.error_code), text)
        self._found[to] = coordinator.node_id
        node = self._nodes[coordinator.node_id] = BrokerInfo(
            coordinator.node_id, Address(coordinator.host, coordinator.port)
        )
        if to.kind == GROUP:
            self._reach_plainly([node])
        if node.id in self.own:  # it may have moved since they were listed
            self.own = {**self.own, node.id: node}
        if links.apart and self._cluster.runtime.now_ms - self._listed_ms > COORDINATOR_LIST_MAX_AGE_MS:
            self._cluster.runtime.spawn(self._list_quietly(), "list of coordinators")
        return coordinator.node_id

    def _reach_plainly(self, nodes: Iterable[BrokerInfo]) -> None:
        """Connect to these coordinators without TLS and login, if `coordinators.security.protocol` is set."""
        if self._cluster.config.coordinators_security_protocol:
            self._cluster.connections.plain.update(node.address for node in nodes)

    async def _list_quietly(self) -> None:
        """Refresh the list of kohort's coordinators, to be used when no bootstrap server answers; ignore errors."""
        try:
            await self.list()
        except KafkaError:
            return


_OF_THIS_PROCESS: weakref.WeakSet[Coordinators] = weakref.WeakSet()


__all__ = [
    "ANY",
    "ANY_COORDINATOR",
    "CONTROLLER",
    "GROUP",
    "TRANSACTION",
    "AnyCoordinator",
    "AnyNode",
    "Between",
    "BrokerById",
    "Cluster",
    "ConnectionFailed",
    "Controller",
    "Coordinator",
    "Leader",
    "Target",
    "parse_address",
]

T = TypeVar("T")
_NAMELESS_TOPICS_SINCE = 12
"""The first version of Metadata that can request topics by id alone."""


class Cluster:
    """The client's view of the cluster, and its connections to it.

    Attributes:
        config: The connection settings.
        runtime: Steps the coroutines; its `spawn` and `sleep` are the only ways to start and to wait.
        bootstrap: The addresses given.
        metadata: The known brokers and topics; read it freely, it changes only between steps.
        never_created: Topics that no refresh creates, whatever `auto_create_topics` says.
        connections: The connections; drivers and metrics read it, everything else uses `send`.
    """

    def __init__(self, config: ConnectionConfig, runtime: Runtime | None = None) -> None:
        if config.uses_sasl:
            sasl_mechanism(config)  # reports missing settings now, not at the first connection
        self.config = config
        self.runtime = runtime or Runtime()
        self.runtime.on_task_failed = FailureLog(self.runtime)
        self.connections = BrokerConnections(config, self.runtime)
        self.metadata = Metadata()
        self.closed = False
        self.auto_create_topics = False
        self.never_created: frozenset[str] = frozenset()
        self.bootstrap = [parse_address(text) for text in config.bootstrap_servers]
        if not self.bootstrap:
            raise InvalidInputError("bootstrap.servers names no broker; write HOST:PORT")
        if config.coordinators_security_protocol:
            self.connections.plain.update(self.bootstrap)
        self.connections.negotiator.watch_identities(self.metadata.expected_identity, self._rebootstrap)
        self._interests: dict[object, frozenset[str] | None] = {}
        self._coordinators = Coordinators(self)
        self._refresh: Task[None] | None = None
        self._refresh_again: Promise[None] | None = None
        self._listeners: list[Callable[[Metadata], None]] = []
        self._before_refresh: list[Callable[[], None]] = []
        self._upkeep: Task[None] | None = None
        self._next_any = 0
        self._on_fault: list[Callable[[Exception], None]] = []

    # The client's own tasks.

    def spawn_essential_task(self, coro: Work[T], name: str) -> Task[T]:
        """Start a task that the client can't do without: an error that it does not handle ends the client.

        Every later call then raises ClientClosedError with that error as its cause.
        """
        task = self.runtime.spawn(coro, name)
        task.on_done(_raise_fault)
        return task

    def add_fault_listener(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` with the error that ends the client."""
        self._on_fault.append(listener)

    def close_after_fault(self, error: Exception) -> None:
        """Close, and tell the fault listeners the unexpected error that ended the client."""
        self.close()
        for listener in self._on_fault:
            listener(error)

    # Requests.

    async def send(
        self,
        message: RequestMessage[R] | Between[R],
        to: Target = ANY,
        *,
        timeout_ms: float | None = None,
        channel: str = "main",
        leaving: Callable[[], None] | None = None,
    ) -> R:
        """Send one request at the highest version both sides know, and return the decoded answer.

        One attempt, no retry.

        Args:
            message: A kohort.wire request, or one `Between` versions.
            to: The target.
            timeout_ms: Limit for connecting and for the response, each; None: `request_timeout_ms`. Long polls
                (JoinGroup, Fetch) need a limit of their own.
            channel: Requests of different channels use different connections and never wait for each other.
            leaving: Called right before the request is sent, on a ready connection; if it raises, nothing is sent.

        Raises:
            ConnectionFailed: The broker could not be reached or the connection ended. Retriable.
            TimedOutError: Not answered within the time. Retriable.
            KafkaError: UNSUPPORTED_VERSION: the broker has no version of this request that this client has, or none
                that can express it.
        """
        limit = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        wanted = message if isinstance(message, Between) else Between(message)
        link = await self._connection_to(to, channel, limit)
        elsewhere = isinstance(to, AnyNode) and (to.serves_itself or wanted.message.API_KEY not in link.versions)
        if link.coordinator_id >= 0 and elsewhere:
            link = await self._broker_connection(channel, limit)
        body, version = choose_request_version(link, wanted)
        if leaving is not None:
            leaving()
        return await self.connections.request(link, body, version, limit)

    async def send_without_response(
        self, message: RequestMessage[R] | Between[R], to: Target, *, channel: str = "main"
    ) -> None:
        """Send a request that gets no response: Produce with acks=0."""
        limit = self.config.request_timeout_ms
        link = await self._connection_to(to, channel, limit)
        body, version = choose_request_version(link, message if isinstance(message, Between) else Between(message))
        self.connections.send_without_response(link, body, version)

    def backoff_ms(self, failures: int, growth: float = 2.0) -> float:
        """Return the wait in ms after this many failures in a row: retry.backoff.ms to retry.backoff.max.ms."""
        config = self.config
        return self.connections.backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms, growth)

    async def retry_call(self, attempt: Callable[[], Awaitable[T]], what: str, timeout_ms: float | None = None) -> T:
        """Await `attempt()` again after each retriable error, with backoff, until the time is over.

        Args:
            attempt: Called for each try; an error whose code is retriable (UNKNOWN_TOPIC_OR_PARTITION too) is tried
                again.
            what: Names the call in the error when the time is over.
            timeout_ms: None: `default_api_timeout_ms`.

        Raises:
            TimedOutError: Time is over; its text has the last error.
        """
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self.runtime.now_ms + limit
        failures = 0
        last: KafkaError | None = None
        while True:
            left = deadline - self.runtime.now_ms
            try:
                return await self.runtime.run_within(_awaited(attempt), left, what)
            except KafkaError as error:
                again = isinstance(error, RetriableError) or error.code.retriable
                if self.closed or not again or isinstance(error, CorruptDataError):  # a damaged file does not heal
                    raise
                failures += 1
                if not (isinstance(error, TimedOutError) and self.runtime.now_ms >= deadline and last is not None):
                    last = error
                wait = self.backoff_ms(failures)
                if self.runtime.now_ms + wait >= deadline:
                    reason = self.unreachable_text() or str(last)
                    raise TimedOutError(f"{what}: gave up after {limit:.0f} ms: {reason}") from error
                await self.runtime.sleep(wait)

    # Metadata.

    def set_wanted_topics(self, owner: object, topics: Iterable[str] | None) -> None:
        """Set the topics whose metadata `owner` needs (None: all); refresh if one is not in the metadata."""
        wanted = None if topics is None else frozenset(topics)
        before = self._interests.get(owner, frozenset())
        self._interests[owner] = wanted
        if wanted != before and (wanted is None or not wanted <= self.metadata.topics.keys()):
            self.request_metadata()

    def drop_wanted_topics(self, owner: object) -> None:
        self._interests.pop(owner, None)

    def add_metadata_listener(self, listener: Callable[[Metadata], None]) -> Callable[[], None]:
        """Call `listener` after each merged metadata response; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def call_before_refresh(self, listener: Callable[[], None]) -> None:
        """Call `listener` before each refresh, so that it can change the topics that it wants."""
        self._before_refresh.append(listener)

    def request_metadata(self) -> Promise[None]:
        """Refresh in the background; the promise resolves with a response to a request sent after this call."""
        if self._refresh is not None and not self._refresh.done:
            if self._refresh_again is None:
                self._refresh_again = Promise()
            return self._refresh_again
        self._refresh = self.runtime.spawn(self._refresh_metadata(), "metadata refresh")
        self._start_upkeep()
        return self._refresh

    async def refresh_metadata(self, timeout_ms: float | None = None) -> Metadata:
        """Refresh the metadata and wait for it.

        Raises:
            TimedOutError: No broker answered within `timeout_ms` (None: `default_api_timeout_ms`); names the addresses.
        """
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        promise = self.request_metadata()
        if await self.runtime.wait_first(promise, timeout_ms=limit) is None:
            raise TimedOutError(f"no metadata within {limit:.0f} ms: {self.unreachable_text() or 'no broker answered'}")
        promise.result()
        return self.metadata

    async def describe_topics(
        self, topics: Iterable[str] | None, timeout_ms: float | None = None, *, create: bool = False
    ) -> dict[str, TopicInfo]:
        """Ask for these topics now (None: all); merge and return the response, with errors per topic inside.

        With `create`, the broker may create those that do not exist.
        """
        names, escalating = None if topics is None else sorted(set(topics)), EscalatingTimeout()

        async def describe_topics_once() -> dict[str, TopicInfo]:
            await self._ask_metadata(names, escalating, create)
            infos = self.metadata.topics
            return dict(infos) if names is None else {name: infos[name] for name in names if name in infos}

        return await self.retry_call(describe_topics_once, "metadata", timeout_ms)

    async def request_brokers_once(self) -> None:
        """Ask for the list of brokers, once, and merge the response.

        Raises:
            KafkaError: The request failed.
        """
        await self._ask_metadata([])

    async def describe_topic_ids(self, ids: Iterable[UUID]) -> None:
        """Ask for topics by id, once, and merge the response. Older brokers are asked for all topics.

        Raises:
            KafkaError: The request failed.
        """
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(ids)]
        )
        answer = await self.send(
            Between(request, lowest=_NAMELESS_TOPICS_SINCE, instead=MetadataRequest(topics=None)), ANY
        )
        self._merge(answer, ())

    async def leader(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """Return the leader's node id, refreshing the metadata until it is known.

        Raises:
            TimedOutError: The leader stayed unknown.
            KafkaError: The topic is not available, for a reason that waiting does not cure.
        """
        if (known := self.metadata.leader(partition)) >= 0:
            return known  # without a task: a thousand partitions are looked up at once

        async def find_leader_once() -> int:
            node = self.metadata.leader(partition)
            if node < 0:
                infos = await self.describe_topics([partition.topic])
                node = self.metadata.leader(partition)
                if node < 0:
                    code = infos[partition.topic].error if partition.topic in infos else ErrorCode.NONE
                    code = code or (
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        if self.metadata.partition(partition) is None
                        else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                    raise error_for(code, f"no leader of {partition} is known")
            return node

        return await self.retry_call(find_leader_once, f"leader of {partition}", timeout_ms)

    # Coordinators.

    async def coordinator(self, to: Coordinator, timeout_ms: float | None = None) -> int:
        """Return the node id of a coordinator, as `Coordinators.find` does; None: within `request_timeout_ms`.

        Raises:
            KafkaError: The error of FindCoordinator; retriable while the coordinator is not available.
            TimedOutError: The look-up did not end in time.
        """
        return await self._coordinators.find(to, self.config.request_timeout_ms if timeout_ms is None else timeout_ms)

    def forget_coordinator(self, to: Coordinator, reason: str = "") -> None:
        """Forget a coordinator that said NOT_COORDINATOR or can't be reached; the next request looks it up again."""
        self._coordinators.forget_coordinator(to)

    async def group_coordinator_nodes(self, timeout_ms: float | None = None) -> list[int]:
        """Refresh and return the ids of the nodes that coordinate groups: all brokers, or kohort's own coordinators.

        Raises:
            KafkaError: No node could be asked.
        """
        metadata = await self.refresh_metadata(timeout_ms)
        return sorted(await self._coordinators.list() if self.connections.apart else metadata.brokers)

    # Life.

    def unreachable_text(self) -> str:
        """Return each failing address and why, for error texts; empty while a broker of the cluster is connected."""
        named = dict.fromkeys(broker.address for broker in self.metadata.brokers.values())
        if self.connections.connected(self.metadata.brokers) or (not named and self.connections.connected()):
            return ""
        return unreachable_text(self.bootstrap, named, self.connections.unreachable_reason)

    def close(self) -> None:
        """Close every connection and cancel the cluster's own tasks. The driver closes itself after that."""
        self.closed = True
        for task in filter(None, (self._refresh, self._upkeep)):
            task.cancel()
        self._coordinators.close()
        self.connections.close_all()

    # Internals.

    async def _connection_to(self, to: Target, channel: str, limit: float) -> BrokerConnection:
        if isinstance(to, AnyNode | AnyCoordinator):
            return await self._any_connection(to, channel, limit)
        if isinstance(to, Coordinator):
            node = await self.coordinator(to, limit)
            channel = f"group:{to.key}" if to.kind == GROUP and channel == "main" else channel
            limit = min(limit, GROUP_CONNECT_TIMEOUT_MS) if to.kind == GROUP and self.connections.apart else limit
        elif isinstance(to, Leader):
            node = await self.leader(to.partition, limit)
        elif isinstance(to, Controller):
            node = await self._controller(limit)
        else:
            node = to.id
        broker = self.metadata.brokers.get(node) or self._coordinators.node(node)
        if self.connections.apart and isinstance(to, Coordinator) and to.kind == GROUP:
            broker = self._coordinators.node(node)  # a newer broker may have its id for a moment
        if broker is None:
            raise ConnectionFailed(f"broker {node} is not in the cluster's metadata")
        try:
            return await self.connections.acquire(node, broker.address, channel, limit)
        except RetriableError:
            if isinstance(to, Coordinator):
                self.forget_coordinator(to)
            self.request_metadata()
            raise

    async def _broker_connection(self, channel: str, limit: float) -> BrokerConnection:
        """Connect to one of Kafka's brokers, which kohort's coordinators name."""
        deadline = self.runtime.now_ms + limit
        await self.refresh_metadata(limit)
        link = await self._any_connection(ANY, channel, max(0.0, deadline - self.runtime.now_ms))
        if link.coordinator_id >= 0:
            reason = self.unreachable_text() or "none can be reached"
            raise ConnectionFailed(f"{link.address} is a coordinator; of the brokers that it names: {reason}")
        return link

    async def _controller(self, limit: float) -> int:
        if self.metadata.controller not in self.metadata.brokers:
            await self.refresh_metadata(limit)
        if self.metadata.controller not in self.metadata.brokers:
            raise RetriableError("the cluster names no controller", ErrorCode.BROKER_NOT_AVAILABLE)
        return self.metadata.controller

    async def _any_connection(self, to: AnyNode | AnyCoordinator, channel: str, limit: float) -> BrokerConnection:
        deadline, refused = self.runtime.now_ms + limit, set[Address]()
        while True:
            node, address = self._pick(to)
            try:
                return await self.connections.acquire(node, address, channel, max(0.0, deadline - self.runtime.now_ms))
            except TlsError:
                refused.add(address)
                if refused >= {other for _, other in self._nodes(to)}:  # other nodes' certificates may be valid
                    raise
            except TimedOutError:
                self.connections.mark_unresponsive(address)
                raise
            except ConnectionFailed as error:
                if self.closed or self.runtime.now_ms + self._soonest_ms(to) >= deadline:
                    raise ConnectionFailed(self.unreachable_text() or str(error)) from error
                await self.runtime.sleep(max(1.0, self._soonest_ms(to)))

    def _nodes(self, to: AnyNode | AnyCoordinator) -> list[tuple[int, Address]]:
        named = self._coordinators.own if isinstance(to, AnyCoordinator) else self.metadata.brokers
        known, health = [(broker.id, broker.address) for broker in named.values()], self.connections.health
        if not known or all(health(address).failures for _, address in known):
            known += [(-1 - index, address) for index, address in enumerate(self.bootstrap)]
        # An idle connection to a stalled machine looks healthy, and is the least busy of all.
        return [node for node in known if health(node[1]).avoid_until_ms <= self.runtime.now_ms] or known

    def _pick(self, to: AnyNode | AnyCoordinator) -> tuple[int, Address]:
        nodes = self._nodes(to)
        standing = [
            (load, node) for node in nodes if (load := self.connections.requests_in_flight(node[0])) is not None
        ]
        if standing:
            return min(standing)[1]
        self._next_any += 1
        turned = [nodes[(self._next_any + step) % len(nodes)] for step in range(len(nodes))]
        return min(turned, key=lambda node: self.connections.health(node[1]).retry_at_ms)

    def _soonest_ms(self, to: AnyNode | AnyCoordinator) -> float:
        return max(0.0, min(self.connections.health(at).retry_at_ms for _, at in self._nodes(to)) - self.runtime.now_ms)

    def _rebootstrap(self) -> None:
        """Forget the brokers, whose addresses are outdated, and start from the bootstrap servers again.

        Source: KIP-1102, KIP-1242.
        """
        self.metadata.forget_brokers()
        self._coordinators.forget_all_coordinators()
        self.request_metadata()

    async def _refresh_metadata(self) -> None:
        queued: Promise[None] | None = None
        try:
            while True:
                await self._ask_until_answered()
                if queued is not None:
                    queued.resolve(None)
                queued, self._refresh_again = self._refresh_again, None
                if queued is None:
                    return
        except Exception as error:
            for promise in filter(None, (queued, self._refresh_again)):
                promise.fail(error)
            self._refresh_again = None
            raise

    async def _ask_until_answered(self) -> None:
        for listener in self._before_refresh:
            listener()
        failures, escalating, topics = 0, EscalatingTimeout(), self._wanted()
        while True:
            try:
                return await self._ask_metadata(topics, escalating)
            except RetriableError:
                failures += 1
                wait = self.backoff_ms(failures)
                await self.runtime.sleep(wait)

    def _wanted(self) -> list[str] | None:
        topics: set[str] = set()
        for interest in self._interests.values():
            if interest is None:
                return None
            topics |= interest
        return sorted(topics)

    async def _ask_metadata(
        self, topics: list[str] | None, escalating: EscalatingTimeout | None = None, create: bool = False
    ) -> None:
        """Request metadata of topics (None: all), and merge it; topics not to be created get a request of their own."""
        may_create, kept = create or self.auto_create_topics, frozenset[str]()
        if topics and may_create and not create:
            kept = self.never_created.intersection(topics)
        if topics and kept:
            await self._ask_metadata_once(sorted(kept), escalating, False)
            if kept.issuperset(topics):
                return
            topics = [topic for topic in topics if topic not in kept]
        await self._ask_metadata_once(topics, escalating, may_create)

    async def _ask_metadata_once(
        self, topics: list[str] | None, escalating: EscalatingTimeout | None, create: bool
    ) -> None:
        named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=create)
        with nullcontext(self.config.request_timeout_ms) if escalating is None else escalating as most_ms:
            answer = await self.send(request, ANY, timeout_ms=min(most_ms, self.config.request_timeout_ms))
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap()
            self.connections.close_all(reason := "the broker asks to begin with the bootstrap servers again")
            raise ConnectionFailed(reason)
        if not answer.brokers:
            raise RetriableError("the broker knows no brokers yet", ErrorCode.BROKER_NOT_AVAILABLE)
        self._merge(answer, topics)

    def _merge(self, answer: MetadataResponse, asked: Iterable[str] | None) -> None:
        self.metadata.merge(answer, asked, self.runtime.now_ms)
        for listener in list(self._listeners):
            listener(self.metadata)

    def _start_upkeep(self) -> None:
        if self._upkeep is None:
            self._upkeep = self.spawn_essential_task(self._keep_up(), "cluster upkeep")

    async def _keep_up(self) -> None:
        while not self.closed:
            age = self.config.metadata_max_age_ms
            await self.runtime.sleep(min(age, 30_000))
            self.connections.close_idle()
            if self.runtime.now_ms - self.metadata.updated_ms >= age:
                self.request_metadata()


def _raise_fault(task: Promise[T]) -> None:
    if isinstance(task.error, Exception):
        raise task.error


async def _awaited(attempt: Callable[[], Awaitable[T]]) -> T:
    return await attempt()
