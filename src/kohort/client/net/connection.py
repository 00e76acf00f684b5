"""Connections to brokers, without sockets: bytes and events in, commands out.

A `BrokerConnection` (a *link* for short) is one connection to one broker. `BrokerConnections` opens them on demand,
negotiates versions, authenticates, matches responses to requests and enforces timeouts. The driver carries out the
commands that `take_commands` returns, and reports back with `on_link_opened`, `on_frame_received` and
`on_link_closed`. Each broker has one connection for each *channel*. Brokers answer the requests of a connection in
order, so a heartbeat must not share a connection with a fetch that waits for data.

A link's states, and what each event does:

=========== =========================== ===================== ===================== ==========================
state       opened                      received              closed                request timed out
=========== =========================== ===================== ===================== ==========================
CONNECTING  asks versions: HANDSHAKE    closed as garbage.    node backs off        closed, node backs off.
HANDSHAKE   -                           next step, then READY node backs off        closed, node backs off.
READY       -                           answers the oldest    requests in flight    request fails, closed.
                                        request in flight     fail, can be retried.
CLOSED      -                           ignored               ignored               -
=========== =========================== ===================== ===================== ==========================
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from kohort.client.net.bootstrap_check import (
    SILENT_MS,
    NodeHealth,
    ReachabilityLog,
    explain_connection_failure,
    explain_unanswered_connection,
)
from kohort.client.net.buffers import FrameReader
from kohort.client.net.dialing import connected_socket
from kohort.client.net.negotiation import Negotiator
from kohort.client.net.runtime import Promise, Runtime, logged_kafka_error
from kohort.client.net.security import SaslError, SaslMechanism, TlsError, mechanism_refused_error, sasl_mechanism
from kohort.client.settings import ConnectionConfig
from kohort.errors import CorruptDataError, KafkaError, RetriableError, TimedOutError
from kohort.io.backoff import exponential_backoff
from kohort.io.chance import CHANCE
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest, ApiVersionsResponse
from kohort.wire.message import Message, RequestMessage
from kohort.wire.schema import Buffer
from kohort.wire.security import SaslAuthenticateRequest, SaslHandshakeRequest

# -- Claimed links: one part of the client exchanges frames without Kafka's header, in both directions

FRAMES_MAX = 64
"""Limit on received frames that were not taken yet: a broker that sends more does not wait for answers. Bounds
memory."""


class RawConnection:
    """A connection for frames without Kafka's header, as the push protocol needs: send, and a queue of received ones.

    Attributes:
        ended: Why the connection has ended; None while it is connected.
    """

    def __init__(
        self, send: Callable[[bytes], None], close: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """Store callbacks: `send` takes a frame without its size, `changed` reports a frame or the link's end."""
        self._send = send
        self._close = close
        self._changed = changed
        self._frames: deque[memoryview] = deque()
        self._news: Promise[None] = Promise()
        self.ended: str | None = None

    def send(self, body: bytes) -> None:
        """Send a frame, unless the link has ended."""
        if self.ended is None:
            self._send(body)

    def next_frame(self) -> memoryview | None:
        """Remove the oldest received frame from the queue, and return it; None if there is none."""
        return self._frames.popleft() if self._frames else None

    async def wait_next_frame(self, runtime: Runtime, timeout_ms: float) -> memoryview | None:
        """Wait for the next frame; return None when the time is over or the link has ended."""
        until_ms = runtime.now_ms + timeout_ms
        while not self._frames and self.ended is None and runtime.now_ms < until_ms:
            await runtime.wait_first(self._news, timeout_ms=until_ms - runtime.now_ms)
        return self.next_frame()

    def close(self, why: str) -> None:
        """End the link."""
        if self.ended is None:
            self._close(why)

    # Called by `BrokerConnections`.

    def receive_frame(self, frame: memoryview) -> bool:
        """Queue a received frame; return False when more than `FRAMES_MAX` wait."""
        self._frames.append(memoryview(bytes(frame)))
        self._wake_reader()
        return len(self._frames) <= FRAMES_MAX

    def record_link_end(self, why: str) -> None:
        """Record that the link has ended."""
        if self.ended is None:
            self.ended = why
            self._wake_reader()

    def _wake_reader(self) -> None:
        news, self._news = self._news, Promise()
        news.resolve(None)
        self._changed()


R = TypeVar("R", bound=Message)
_LOGIN_SHARE = 0.8
"""Share of a login's lifetime after which its connection is replaced."""
RECONNECT_GROWTH = 1.25
"""With a factor of 2, a broker that is back would be noticed only after up to as long again as it was away."""


class ConnectionFailed(RetriableError):
    """A broker could not be reached, or the connection ended under a request."""


class ConnectionState(Enum):
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    READY = "ready"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Address:
    """The host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def tls_name(self) -> str:
        """The host as certificates have it: without the final dot of a complete name. Source: RFC 5280, 4.2.1.6."""
        return self.host.removesuffix(".")


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """Command: connect, with TLS where the configuration says so, then call `on_link_opened` or `on_link_closed`.

    Attributes:
        plain: without TLS, whatever the configuration says.
    """

    link: int
    address: Address
    plain: bool = False


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Command: write these buffers in order."""

    link: int
    parts: list[Buffer]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Command: close the socket; nothing needs to be reported."""

    link: int


Command = OpenConnection | SendFrame | CloseConnection


@dataclass(slots=True)
class InFlightRequest(Generic[R]):
    """A request that was sent and has no response yet."""

    correlation_id: int
    response: type[R]
    version: int
    promise: Promise[R]
    deadline_ms: float
    name: str

    def read_response(self, frame: memoryview) -> int:
        """Decode the response; return its throttle time in milliseconds.

        Raises:
            KafkaError: The response can't be decoded.
        """
        version = self.version
        if self.response is ApiVersionsResponse and bytes(frame[4:6]) == b"\x00\x23":
            version = 0  # an unknown version is answered in the layout of version 0
        message = framing.decode_response(self.response, version, frame)[1]
        self.promise.resolve(message)
        return getattr(message, "throttle_time_ms", 0)


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """One connection to one broker.

    Attributes:
        began_ms: When the attempt to connect began.
        renew_ms: From then on the connection is replaced when nothing is in flight: a login has a lifetime (KIP-368).
        process: The name of this client's process that the broker receives (`kohort.io.processes`).
        plain: Whether the connection has no TLS and no login: one of kohort's coordinators over Kafka.
        coordinator_id: The id, if the other end is one of kohort's coordinators over Kafka; else -1.
        throttled_until_ms: No request is sent before this time, because the broker reads none (KIP-219).
        claimed: The raw connection, if the push protocol has claimed the link for frames without Kafka's header.
        is_served: Whether the broker has answered anything after the handshake.
    """

    id: int
    node: int
    channel: str
    address: Address
    state: ConnectionState
    ready: Promise[BrokerConnection]
    began_ms: float
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    in_flight: deque[InFlightRequest[Any]] = field(default_factory=deque)
    next_correlation: int = 1
    last_used_ms: float = 0.0
    renew_ms: float = float("inf")
    process: str = ""
    plain: bool = False
    coordinator_id: int = -1
    throttled_until_ms: float = 0.0
    claimed: RawConnection | None = None
    is_served: bool = False

    @property
    def is_ready(self) -> bool:
        return self.state is ConnectionState.READY


class BrokerConnections:
    """All connections of one client.

    Attributes:
        lease_ms: The shortest lease that a broker offered this client; None if none did. See `kohort.io.processes`.
        apart: Whether kohort's coordinators over Kafka were met; brokers are then not asked about groups.
        plain: addresses that are reached without TLS and login, as `coordinators.security.protocol` says.
        features: The cluster's finalized features by name, from the newest ApiVersions response (KIP-584).
        negotiator: the first exchange on each connection.
    """

    def __init__(self, config: ConnectionConfig, runtime: Runtime, jitter: Callable[[], float] = CHANCE.random) -> None:
        self.config = config
        self.runtime = runtime
        self.jitter = jitter
        self.requests_sent = 0
        self.lease_ms: int | None = None
        self.bytes_received = 0
        self.apart = False
        self.plain: set[Address] = set()
        self.features: dict[str, int] = {}
        self.negotiator = Negotiator()
        self._features_epoch = -1
        self._ids = itertools.count(1)
        self._links: dict[int, BrokerConnection] = {}
        self._by_channel: dict[tuple[int, str], BrokerConnection] = {}
        self._health: dict[Address, NodeHealth] = {}
        self._commands: list[Command] = []
        self._reachability = ReachabilityLog(runtime)
        self._entrance: Address | None = None

    # Called by the driver.

    def take_commands(self) -> list[Command]:
        """Return the driver's commands since the last call, in order: open a connection, send a frame, close."""
        commands, self._commands = self._commands, []
        return commands

    def on_link_opened(self, link_id: int, mechanism: SaslMechanism | None = None, process: str = "") -> bool:
        """Begin the handshake on a new connection; return False if its link was closed meanwhile: the driver closes it.

        Args:
            link_id: The link.
            mechanism: The SASL exchange with its credentials; None: the handshake creates it if needed.
            process: The name of this client's process, which the handshake sends (`kohort.io.processes`).
        """
        link = self._links.get(link_id)
        if link is None or link.state is not ConnectionState.CONNECTING:
            return False
        link.state = ConnectionState.HANDSHAKE
        link.process = process
        self.runtime.spawn(self._handshake(link, mechanism), f"handshake with {link.address}")
        return True

    def on_frame_received(self, link_id: int, frame: memoryview) -> None:
        """Handle one complete response, without its length prefix. The buffer belongs to the core from now on."""
        link = self._links.get(link_id)
        if link is None:
            return
        self.bytes_received += len(frame)
        link.last_used_ms = self.runtime.now_ms
        if (health := self._health.get(link.address)) is not None:
            health.avoid_until_ms = 0.0
        if link.is_ready and not link.is_served:
            link.is_served = True
            self._reachability.log_connected(link.address)
        if link.claimed is not None:
            if not link.claimed.receive_frame(frame):
                self.close_failed(link, "the broker asks more than it was answered")
            return
        if not link.in_flight:
            self.close_failed(link, "the broker sent something that nobody asked for")
            return
        flight = link.in_flight.popleft()
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != flight.correlation_id:
            flight.promise.fail(ConnectionFailed(f"{flight.name}: answers out of order from {link.address}"))
            self.close_failed(link, f"the broker answered request {correlation_id} in place of {flight.correlation_id}")
            return
        try:
            throttle_ms = flight.read_response(frame)
            if throttle_ms > 0:
                link.throttled_until_ms = self.runtime.now_ms + throttle_ms
        except Exception as error:  # noqa: BLE001 - the caller that waits for the answer gets any error
            reason = f"unreadable answer to {flight.name}: {logged_kafka_error('decode', error).message}"
            flight.promise.fail(CorruptDataError(f"{link.address}: {reason}"))
            self.close_failed(link, reason)

    def on_link_closed(self, link_id: int, reason: str | TlsError) -> None:
        """Record that a connection ended or failed: with a reason to log, or with an error that is not retried."""
        if (link := self._links.get(link_id)) is not None:
            self._fail_waiting(link, reason) if isinstance(reason, TlsError) else self._forget_connection(link, reason)

    # Called by the cluster.

    async def acquire(self, node: int, address: Address, channel: str, timeout_ms: float) -> BrokerConnection:
        """Return a ready connection that is not throttled. Open one if needed, after the node's backoff.

        Raises:
            ConnectionFailed: The attempt failed, or could not start within the time, or the broker throttles this
                client for longer.
            TimedOutError: The attempt did not finish within the time.
        """
        link = self._by_channel.get((node, channel))
        if link is not None and link.address != address:
            self.close_failed(link, f"node {node} moved to {address}")
            link = None
        if link is not None and self.runtime.now_ms >= link.renew_ms:
            link = await self._renewed(link, timeout_ms)
        if link is None:
            health = self.health(address)
            wait = health.retry_at_ms - self.runtime.now_ms
            if wait > timeout_ms:
                raise ConnectionFailed(f"{address}: {health.last_error}")
            if wait > 0:
                await self.runtime.sleep(wait)
            link = self._by_channel.get((node, channel)) or self._open(node, address, channel)
        if not link.ready.done and await self.runtime.wait_first(link.ready, timeout_ms=timeout_ms) is None:
            raise TimedOutError(f"{address}: no connection within {timeout_ms:.0f} ms")
        link = link.ready.result()
        throttle_ms = link.throttled_until_ms - self.runtime.now_ms
        if throttle_ms > 0:
            await self.runtime.sleep(min(throttle_ms, timeout_ms))
            if throttle_ms > timeout_ms:
                raise ConnectionFailed(f"{address} throttles this client for another {throttle_ms - timeout_ms:.0f} ms")
        return link

    def request(
        self, link: BrokerConnection, message: RequestMessage[R], version: int, timeout_ms: float
    ) -> Promise[R]:
        """Send a request on a connection at a version; the promise resolves to the decoded response."""
        promise: Promise[R] = Promise()
        if link.state is ConnectionState.CLOSED:
            promise.fail(ConnectionFailed(f"connection to {link.address} is closed"))
            return promise
        correlation_id = self._send(link, message, version)
        deadline = self.runtime.now_ms + timeout_ms
        name = framing.APIS[message.API_KEY].name
        flight = InFlightRequest(correlation_id, framing.response_type_of(message), version, promise, deadline, name)
        link.in_flight.append(flight)
        timer = self.runtime.promise_at(deadline)
        timer.on_done(lambda _: self._expire(link, flight, timeout_ms))
        promise.on_done(lambda _: timer.resolve(None))
        return promise

    def send_without_response(self, link: BrokerConnection, message: Message, version: int) -> None:
        """Send a request that gets no response.

        Raises:
            ConnectionFailed: The connection is closed.
        """
        if link.state is ConnectionState.CLOSED:
            raise ConnectionFailed(f"connection to {link.address} is closed")
        self._send(link, message, version)

    def take_raw_connection(self, link: BrokerConnection, changed: Callable[[], None]) -> RawConnection:
        """Take a ready link out of the pool, for frames without Kafka's header in both directions (push protocol)."""
        del self._by_channel[link.node, link.channel]  # the next request on the channel opens another link

        def send_raw_frame(body: bytes) -> None:
            self._commands.append(SendFrame(link.id, [len(body).to_bytes(4, "big"), body]))
            self.requests_sent += 1

        def close_raw_link(why: str) -> None:
            self._commands.append(CloseConnection(link.id))
            self._forget_connection(link, why, failed=False)

        link.claimed = RawConnection(send_raw_frame, close_raw_link, changed)
        return link.claimed

    def _send(self, link: BrokerConnection, message: Message, version: int) -> int:
        correlation_id = link.next_correlation
        link.next_correlation = (correlation_id + 1) & 0x7FFFFFFF
        parts = framing.encode_request_parts(message, version, correlation_id, self.config.client_id)
        self._commands.append(SendFrame(link.id, parts))
        self.requests_sent += 1
        link.last_used_ms = self.runtime.now_ms
        return correlation_id

    def health(self, address: Address) -> NodeHealth:
        return self._health.setdefault(address, NodeHealth())

    def mark_unresponsive(self, address: Address) -> None:
        """Record that a broker did not answer in time, so that others are asked before it."""
        self.health(address).avoid_until_ms = self.runtime.now_ms + SILENT_MS

    def requests_in_flight(self, node: int) -> int | None:
        """Return the number of requests in flight to a node over all channels; None when it has no connection."""
        flights = [len(link.in_flight) for link in self._links.values() if link.node == node and link.is_ready]
        return sum(flights) if flights else None

    def connected(self, nodes: Container[int] | None = None) -> bool:
        """Return whether any connection to one of these nodes is ready; None: to any node."""
        return any(link.is_ready and (nodes is None or link.node in nodes) for link in self._links.values())

    def unreachable_reason(self, address: Address) -> str:
        """Return why an address can't be reached; empty when it is connected or no attempt was made."""
        links = [link for link in self._links.values() if link.address == address]
        if any(link.is_ready for link in links):
            return ""
        health = self.health(address)
        if health.failures:
            return health.last_error.removeprefix(f"{address}: ")
        return "no answer to the connection attempt yet" if links else ""

    def close_failed(self, link: BrokerConnection, reason: str) -> None:
        """Close a connection that failed, for example by a timeout; the next one to its node waits for the backoff."""
        if link.state is not ConnectionState.CLOSED:
            self._commands.append(CloseConnection(link.id))
            self._forget_connection(link, reason)

    def close_idle(self) -> None:
        """Close connections that were idle for `connections_max_idle_ms`; -1: none."""
        if self.config.connections_max_idle_ms < 0:
            return
        oldest = self.runtime.now_ms - self.config.connections_max_idle_ms
        for link in list(self._links.values()):
            if link.is_ready and link.claimed is None and link.last_used_ms < oldest and not link.in_flight:
                self._commands.append(CloseConnection(link.id))
                self._forget_connection(link, "idle", failed=False)

    def close_all(self, reason: str = "the client was closed") -> None:
        """Close every connection; requests in flight fail with this reason."""
        for link in list(self._links.values()):
            self._commands.append(CloseConnection(link.id))
            self._forget_connection(link, reason, failed=False)

    def backoff_ms(self, failures: int, base_ms: float, max_ms: float, growth: float = 2.0) -> float:
        """Return the wait after this many failures in a row: exponential, with 20 % jitter."""
        return exponential_backoff(failures, base_ms, max_ms, growth) * (0.8 + 0.4 * self.jitter())

    # Internals.

    async def _renewed(self, link: BrokerConnection, timeout_ms: float) -> BrokerConnection | None:
        """Wait until a connection whose login is about to expire has no requests in flight, then close it.

        Otherwise the broker would close it with requests in flight. The new connection opens after that, so that no
        request overtakes another.

        Returns:
            The connection to use: the same one if requests were left when the time was over, or one that another caller
            has opened meanwhile. None: open one.
        """
        until_ms = self.runtime.now_ms + timeout_ms
        while link.in_flight and self.runtime.now_ms < until_ms:
            await self.runtime.wait_first(link.in_flight[-1].promise, timeout_ms=until_ms - self.runtime.now_ms)
        if link.in_flight:
            return link
        if link.state is not ConnectionState.CLOSED:
            self._commands.append(CloseConnection(link.id))
            self._forget_connection(link, "the login is about to expire", failed=False)
        return self._by_channel.get((link.node, link.channel))

    def _open(self, node: int, address: Address, channel: str) -> BrokerConnection:
        now_ms = self.runtime.now_ms
        link = BrokerConnection(
            next(self._ids), node, channel, address, ConnectionState.CONNECTING, Promise(), now_ms, last_used_ms=now_ms
        )
        self._links[link.id] = link
        self._by_channel[node, channel] = link
        link.plain = address in self.plain
        self._commands.append(OpenConnection(link.id, address, link.plain))
        limit = self.config.socket_connection_setup_timeout_ms
        why, timer = f"no connection within {limit} ms", self.runtime.promise_at(self.runtime.now_ms + limit)
        timer.on_done(lambda _: None if link.ready.done else self.close_failed(link, why))
        link.ready.on_done(lambda _: timer.resolve(None))
        return link

    def _fail_waiting(self, link: BrokerConnection, error: SaslError | TlsError) -> None:
        """Fail the callers that wait for a connection, with an error of TLS or login that no retry cures."""
        link.ready.fail(TlsError(f"{link.address}: {error.message}") if isinstance(error, TlsError) else error)
        self._forget_connection(link, error.message, final=True)

    def _forget_connection(
        self, link: BrokerConnection, reason: str, *, failed: bool = True, final: bool = False
    ) -> None:
        was_ready, connected = link.state is ConnectionState.READY, link.state is ConnectionState.HANDSHAKE
        link.state = ConnectionState.CLOSED
        self._links.pop(link.id, None)
        if self._by_channel.get((link.node, link.channel)) is link:
            del self._by_channel[link.node, link.channel]
        if failed:
            was_served = was_ready and (link.is_served or not link.in_flight)
            if was_ready and not was_served:
                reason = explain_unanswered_connection(reason, self.config)
            elif not was_ready and not final:
                reason = explain_connection_failure(
                    reason, self.config, connected=connected, greeted=bool(link.versions)
                )
            named_by = self._entrance if link.node >= 0 and link.address != self._entrance else None
            self._reachability.log_failure(link.address, reason, paused=was_served, named_by=named_by, final=final)
            health = self.health(link.address)
            health.record_failure(reason, link.began_ms, self.runtime.now_ms, paused=was_ready)
            base_ms, max_ms = self.config.reconnect_backoff_ms, self.config.reconnect_backoff_max_ms
            wait = self.backoff_ms(health.failures, base_ms, max_ms, RECONNECT_GROWTH)
            health.retry_at_ms = self.runtime.now_ms + wait
        error = ConnectionFailed(f"{link.address}: {reason}")
        link.ready.fail(error)
        if link.claimed is not None:
            link.claimed.record_link_end(reason)
        while link.in_flight:
            link.in_flight.popleft().promise.fail(error)

    def _expire(self, link: BrokerConnection, flight: InFlightRequest[R], timeout_ms: float) -> None:
        if flight.promise.done:
            return
        self.mark_unresponsive(link.address)
        flight.promise.fail(TimedOutError(f"{flight.name}: no answer from {link.address} within {timeout_ms:.0f} ms"))
        self.close_failed(link, f"no answer to {flight.name} within {timeout_ms:.0f} ms")

    async def _handshake(self, link: BrokerConnection, mechanism: SaslMechanism | None) -> None:
        timeout_ms = self.config.socket_connection_setup_timeout_ms
        try:
            link.versions = await self._negotiate(link, timeout_ms)
            if link.plain and link.coordinator_id < 0:
                raise ConnectionFailed(
                    f"{link.address} is a broker: coordinators.security.protocol is for bootstrap.servers that are all "
                    "coordinators"
                )
            if self.config.uses_sasl and not link.plain:
                await self._authenticate(link, mechanism or sasl_mechanism(self.config), timeout_ms)
        except SaslError as error:
            self._commands.append(CloseConnection(link.id))
            self._fail_waiting(link, error)
        except KafkaError as error:
            self.close_failed(link, str(error))
        except Exception as error:  # noqa: BLE001 - callers that wait for the connection get any error
            self.close_failed(link, str(logged_kafka_error(f"handshake with {link.address}", error)))
        else:
            if link.state is ConnectionState.HANDSHAKE:
                link.state = ConnectionState.READY
                if link.node < 0:
                    self._entrance = link.address
                self.health(link.address).failures = 0
                link.ready.resolve(link)

    async def _negotiate(self, link: BrokerConnection, timeout_ms: float) -> dict[int, tuple[int, int]]:
        answer, ranges = await self.negotiator.negotiate(
            link.node,
            link.address,
            link.process,
            lambda hello, version: self.request(link, hello, version, timeout_ms),
        )
        link.coordinator_id = answer.coordinator_id
        if answer.coordinator_id >= 0:
            self.apart = True
        elif answer.finalized_features_epoch > self._features_epoch:
            self._features_epoch = answer.finalized_features_epoch
            self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        if answer.lease_ms > 0:
            self.lease_ms = answer.lease_ms if self.lease_ms is None else min(self.lease_ms, answer.lease_ms)
        return ranges

    async def _authenticate(self, link: BrokerConnection, mechanism: SaslMechanism, timeout_ms: float) -> None:
        hello = SaslHandshakeRequest(mechanism=mechanism.name)
        answer = await self.request(link, hello, 1, timeout_ms)
        if answer.error_code:
            raise mechanism_refused_error(link.address, mechanism.name, answer.mechanisms, self.config.uses_tls)
        version = min(
            SaslAuthenticateRequest.MAX_VERSION, link.versions.get(SaslAuthenticateRequest.API_KEY, (0, 0))[1]
        )
        token: bytes | None = mechanism.first_message()
        while token is not None:
            reply = await self.request(link, SaslAuthenticateRequest(auth_bytes=token), version, timeout_ms)
            if reply.error_code:
                reason = reply.error_message or "no reason given"
                raise SaslError(f"{link.address} refused {mechanism.name} of {mechanism.who}: {reason}")
            token = mechanism.next_message(bytes(reply.auth_bytes))
            if reply.session_lifetime_ms:
                link.renew_ms = self.runtime.now_ms + reply.session_lifetime_ms * _LOGIN_SHARE


# -- A socket of a client that a thread drives: connecting, sending, receiving, and its errors as text

_LARGE_WAIT_US = 20_000
_FRAMES_A_TURN = 64
_PER_CALL_FLAGS = hasattr(socket, "MSG_DONTWAIT")
"""Whether one call on a blocking socket can be told not to wait. Windows can't; its sockets do not block at all."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Absent in some builds of Python on macOS; Python ignores SIGPIPE in any case."""


class SocketChannel:
    """A socket with its queue of unsent buffers and the frame being received."""

    def __init__(self, link: int, sock: socket.socket, reader: FrameReader) -> None:
        self.link = link
        self.sock = sock
        self.selector: selectors.BaseSelector | None = None
        self._waits = not isinstance(sock, ssl.SSLSocket) and _PER_CALL_FLAGS
        self._reader = reader
        self._out: deque[memoryview] = deque()
        if not self._waits:
            sock.setblocking(False)
        else:
            # The descriptor stays blocking: small reads pass MSG_DONTWAIT, large ones wait a little for the whole
            # frame.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, _LARGE_WAIT_US))

    def send(self, parts: Sequence[Buffer]) -> None:
        idle = not self._out
        self._out.extend(memoryview(part).cast("B") for part in parts if len(part))
        if idle:
            self.flush()

    def flush(self) -> None:
        """Write as much as the socket accepts now; the rest follows when the socket is writable."""
        try:
            while self._out:
                if not self._waits:
                    sent = self.sock.send(self._out[0])
                else:
                    batch = [self._out[i] for i in range(min(len(self._out), 64))]
                    sent = self.sock.sendmsg(batch, [], socket.MSG_DONTWAIT | _NO_SIGNAL)
                self._sent(sent)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        if self.selector is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            if self.selector.get_key(self.sock).events != events:
                self.selector.modify(self.sock, events, self)

    def _sent(self, count: int) -> None:
        while count:
            head = self._out.popleft()
            if count < len(head):
                self._out.appendleft(head[count:])
                return
            count -= len(head)

    def receive(self) -> Iterator[memoryview]:
        """Yield complete frames until the socket has nothing more for now.

        A call never both yields frames and reports the end of the connection. The broker's last response is thus
        processed before the caller learns that the broker has closed the connection.

        Raises:
            OSError: The connection has ended.
        """
        for _ in range(_FRAMES_A_TURN):
            target = self._reader.receive_buffer()
            try:
                if not self._waits:
                    count = self.sock.recv_into(target)
                else:
                    flags = socket.MSG_WAITALL if self._reader.is_large_frame else socket.MSG_DONTWAIT
                    count = self.sock.recv_into(target, 0, flags)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            complete = False
            for frame in self._reader.complete_frames(count):
                complete = True
                yield frame
            if self._waits and count < len(target) and not self._reader.is_large_frame:
                return
            if complete and not self._decrypted():
                return

    def _decrypted(self) -> bool:
        """Return whether the TLS layer has decrypted bytes that were not read yet: no selector reports them."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def close(self) -> None:
        """Close the socket, and ignore errors of it."""
        with contextlib.suppress(OSError):
            self.sock.close()


_EXPIRED, _OTHER_HOST = (9, 10), (62, 63, 64)
"""OpenSSL's verify codes: not valid yet and expired; another host name, e-mail address or IP address."""
_PROBE, _PROBE_MS = 0x6B6F686F, 2_000
"""The correlation id of the request that probes a listener without TLS, and the time limit for its response."""


def connect(address: Address, config: ConnectionConfig, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a connected blocking socket, after the TLS handshake if one is configured.

    Raises:
        OSError: The connection failed; the text has the reason.
    """
    sock = connected_socket(address.host, address.port, config)
    try:
        sock.settimeout(config.socket_connection_setup_timeout_ms / 1000)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address.tls_name)
        sock.settimeout(None)
    except OSError:
        sock.close()
        raise
    return sock


def tls_error(error: BaseException, address: Address, config: ConnectionConfig) -> TlsError | None:
    """Return an error with a remedy if TLS failed for a lasting reason; None for any other error.

    A listener without TLS closes the connection, and so does one that restarts. A request without TLS tells them apart.
    Blocks.
    """
    if isinstance(error, TlsError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"the broker's certificate is not trusted: {error.verify_message}: {_remedy(error)}")
    hung_up = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError)
    if (refused := certificate_refusal(error)) is not None:
        return refused
    if isinstance(error, ssl.SSLError) and not hung_up:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        protocol = config.security_protocol
        return TlsError(f"TLS failed: {reason} (security.protocol is {protocol}: does the broker speak TLS there?)")
    if hung_up and _speaks_plainly(address, config):
        return TlsError(
            f"the broker speaks Kafka without TLS there: security.protocol is {config.security_protocol}; set it to "
            f"{'SASL_PLAINTEXT' if config.uses_sasl else 'PLAINTEXT'}, or use the address of its listener with TLS"
        )
    return None


def certificate_refusal(error: BaseException) -> TlsError | None:
    """Return the broker's refusal of this client's certificate, else None. With TLS 1.3 it follows the handshake."""
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "CERTIFICATE" not in reason and "UNKNOWN_CA" not in reason:
        return None
    text = reason.lower().replace("_", " ")
    return TlsError(f"the broker refuses this client: {text}: look at ssl.certificate.location and ssl.key.location")


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _EXPIRED:
        return "give the broker one that holds now, and look at this machine's clock"
    if error.verify_code in _OTHER_HOST:
        return "use an address that it names, or trust any name with ssl.endpoint.identification.algorithm=none"
    return "name the authority that signed it in ssl.ca.location"


def _speaks_plainly(address: Address, config: ConnectionConfig) -> bool:
    """Return whether a listener answers ApiVersions without TLS. The request reveals nothing of the client."""
    message = ApiVersionsRequest(client_software_name="kohort", client_software_version="")
    frame = b"".join(bytes(part) for part in framing.encode_request_parts(message, 0, _PROBE, None))
    try:
        with socket.create_connection((address.host, address.port), _PROBE_MS / 1000) as sock:
            sock.settimeout(min(_PROBE_MS, config.socket_connection_setup_timeout_ms) / 1000)
            sock.sendall(frame)
            head = sock.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return head[4:] == _PROBE.to_bytes(4, "big")
