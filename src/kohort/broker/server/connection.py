"""One client connection: frames in, responses out in the order of the requests.

A connection combines a transport, framing (`framing.py`), flow control, the outgoing bytes and the client's session.
All connections of the loop share one read buffer, because a read and the processing of its bytes are one uninterrupted
step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from kohort.broker.framing import BadFrame, Frame, Frames, WrongSecurityProtocol
from kohort.broker.purgatory import WaitingFetch
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.security.login import SaslLogin
from kohort.broker.security.principals import ANYONE
from kohort.broker.server.flow_control import ByteBudget, FlowControl, Limits
from kohort.broker.server.repeated_requests import Repetition
from kohort.broker.server.server_requests import ServerRequests
from kohort.broker.transport import LogSlice, Part, Parts, Transport, join_small_buffers
from kohort.groups.client_quirks import DelayTolerance, delay_tolerance, max_heartbeat_delay_ms
from kohort.groups.events import Client
from kohort.io.processes import NAME_MAX_LENGTH, lease_heartbeat_ms, long_poll_max_ms
from kohort.wire.schema import Buffer

# -- The client of a connection, as the broker knows it

OWN_SOFTWARE = "kohort"
"""The software name that kohort's own clients send in ApiVersions."""


class ClientSession:
    """A client from the beginning of its connection to the end.

    Attributes:
        number: identifies the connection, also in events of the group coordinator.
        host: the client's address.
        principal: the client's identity. A request keeps the principal that it arrived with.
        software: the client's name and version from ApiVersions 3 or later.
        lease_ms: the client's disconnect lease in ms (`kohort.io.processes`); 0: it has none.
        process: the client's process, as the client named it; "": not named. See `kohort.io.processes`.
        client_id: from the header of ApiVersions; push frames have none.
        shards: the group shards that the client has used, which learn of its disconnect.
        held: heartbeats that a shard may delay, token to shard. The next request releases them.
        repeated: the requests that the client repeats, by API key. `RepeatedRequests` alone changes it.
        waits: the client's fetches in purgatory.
        listener: the listener that the client connected to.
        login: the client's SASL login; None: its listener has none.
    """

    __slots__ = (
        "_identity", "client_id", "held", "host", "lease_ms", "listener", "login", "number", "principal", "process",
        "repeated", "shards", "software", "waits",
    )  # fmt: skip

    def __init__(self, number: int, host: str) -> None:
        self.number = number
        self.host = host
        self.principal = ANYONE
        self.software: tuple[str, str] | None = None
        self.lease_ms = 0
        self.process = self.client_id = ""
        self.shards: set[int] = set()
        self.held: dict[int, int] = {}
        self.repeated: dict[int, Repetition] = {}
        self.waits: set[WaitingFetch] = set()
        self.listener: ListenerSocket | None = None
        self.login: SaslLogin | None = None
        self._identity: Client | None = None

    def set_software(self, name: str, version: str, process: str) -> None:
        """Record the client's software name, version and process, from its ApiVersions request."""
        self.software = (name, version)
        self.process = process[: NAME_MAX_LENGTH + 1]

    @property
    def is_kohort_client(self) -> bool:
        """Whether the client is one of kohort's own clients."""
        return self.software is not None and self.software[0] == OWN_SOFTWARE

    @property
    def interval_ms(self) -> int:
        """The known interval of the client's classic heartbeats; 0: unknown."""
        return lease_heartbeat_ms(self.lease_ms)

    def max_heartbeat_delay_ms(self, mode: str) -> int:
        """Return how long a response to its classic Heartbeat may be delayed; `mode` is `group.notify.at.once`."""
        return (
            0 if self._is_new else self._within_lease(max_heartbeat_delay_ms(mode, self.software and self.software[0]))
        )

    def delay_tolerance(self, mode: str) -> DelayTolerance:
        """Return how long responses to this client's ConsumerGroupHeartbeat may be delayed.

        `mode` is the config `group.notify.at.once`.
        """
        tolerance = delay_tolerance(mode, self.software and self.software[0])
        delay_ms = 0 if self._is_new else self._within_lease(tolerance.delay_ms)
        return tolerance if delay_ms == tolerance.delay_ms else tolerance._replace(delay_ms=delay_ms)

    def client_identity(self, client_id: str | None) -> Client:
        """Return the client as the coordinator's records describe it, from a cache."""
        known = self._identity
        if known is None or known.id != (client_id or "") or known.process != self.process:
            known = self._identity = Client(client_id or "", "/" + self.host, self.process)
        return known

    @property
    def _is_new(self) -> bool:
        """Whether this connection has sent no group request yet.

        A client that reconnected has already waited for a response.
        """
        return not self.shards

    def _within_lease(self, delay_ms: int) -> int:
        return min(delay_ms, long_poll_max_ms(self.lease_ms)) if self.lease_ms else delay_ms


# -- Turns: how long one connection is served in a row

TAKE_S = 0.005
"""Longest processing of one read. After that, other connections get their turn."""
READS_PER_WAKE = 4
"""Reads of one connection in a row. After that, other connections get their turn."""
PARKED_CHECK = 16
"""Each time so many more requests are unanswered, count the completed responses that wait behind the first one."""


# -- Outgoing bytes of a connection
#
# Log bytes are never held in memory: they are read from their file when the transport accepts them.

GATHER_BYTES = 1 << 18
"""One send offers at least this much if available. Larger sends gain nothing."""
GATHER_PARTS = 256
"""Buffers in one send: below IOV_MAX (1,024 on Linux; POSIX guarantees 16, but 1,024 is usual)."""
SENDFILE_BYTES = 1 << 20
"""Log bytes per system call, so that other connections get their turn in between."""


class OutgoingBytes:
    """The bytes of a connection's responses that the socket has not accepted yet.

    Attributes:
        size: the number of bytes.
    """

    __slots__ = ("_parts", "_transport", "size")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._parts: deque[Part] = deque()
        self.size = 0

    def add(self, parts: Parts) -> None:
        """Append the parts of a response to the bytes that wait to be sent."""
        if len(parts) > 1:
            parts = join_small_buffers(parts)
        self._parts.extend(parts)
        self.size += sum(map(len, parts))

    def send(self) -> bool:
        """Send as much as the transport accepts; return whether that was everything.

        Raises:
            OSError: the connection has failed.
        """
        try:
            while self._parts:
                if not self._send_some():
                    return False
        except (BlockingIOError, InterruptedError):
            return False
        return True

    @property
    def memory_bytes(self) -> int:
        """The number of unsent bytes that are held in memory; ranges of log files do not count."""
        return sum([len(part) for part in self._parts if not isinstance(part, LogSlice)])

    def discard_unsent(self) -> None:
        """Discard the unsent bytes."""
        self._parts.clear()
        self.size = 0

    def _send_some(self) -> bool:
        """Send once; return whether the transport accepted everything offered."""
        first = self._parts[0]
        if isinstance(first, LogSlice):
            offered = min(len(first), SENDFILE_BYTES)
            sent = self._transport.send_log_slice(first, offered)
            if sent == 0:
                raise OSError("a log file is shorter than it was")
        else:
            chunk, offered, more = self._chunk()
            sent = self._transport.send(chunk, more=more)
        self._drop(sent)
        return sent == offered

    def _chunk(self) -> tuple[list[Buffer], int, bool]:
        """Return the unsent buffers at the front, their size, and whether bytes of a log file follow."""
        chunk: list[Buffer] = []
        size = 0
        for part in self._parts:
            if isinstance(part, LogSlice):
                return chunk, size, True
            chunk.append(part)
            size += len(part)
            if size >= GATHER_BYTES or len(chunk) >= GATHER_PARTS:
                break
        return chunk, size, False

    def _drop(self, sent: int) -> None:
        """Remove this many sent bytes from the front of the unsent ones."""
        parts = self._parts
        self.size -= sent
        while sent:
            part = parts[0]
            size = len(part)
            if sent < size:
                if isinstance(part, LogSlice):
                    part.skip_sent(sent)
                else:
                    parts[0] = memoryview(part)[sent:]
                return
            sent -= size
            parts.popleft()


log = logging.getLogger("kohort.broker")

READ_BUFFER_BYTES = 1 << 18
REQUEST_BYTES_MIN = 2
"""The smallest possible request. Kafka's are longer, which decoding their headers verifies."""


class ResponseSlot(Protocol):
    """One place in the order of a connection's responses: the response, or None until it is known."""

    parts: Parts | None
    """The parts to send; None: not known yet; empty: send nothing."""


class UnrequestedFrame:
    """A frame that answers no Kafka request, such as a Ping to a push consumer, at its place between responses."""

    __slots__ = ("parts",)

    def __init__(self, parts: Parts) -> None:
        self.parts: Parts | None = parts


class ConnectionHandler(Protocol):
    """The part of the server that handles the events of a connection."""

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Handle one request; raise `BadFrame` to close the connection.

        The frame may be modified. The next read overwrites its memory.
        """

    def on_closed(self, connection: Connection) -> None:
        """Handle the event that a connection has closed."""

    def schedule_flush(self, connection: Connection) -> None:
        """Schedule a `flush` of a connection that has responses to send."""

    def should_log_problem(self, connection: Connection, why: str) -> bool:
        """Return whether a client's mistake, which it repeats with each connection, is to be logged now."""

    @property
    def unfinished(self) -> ByteBudget:
        """The budget of bytes that all connections' incomplete requests share."""

    @property
    def unsent(self) -> ByteBudget:
        """The budget of bytes in memory that all connections' unsent responses share."""


class Connection:
    """One client connection: reads frames, keeps responses in order, and sends them. All methods run on the loop.

    Attributes:
        client: the client's session.
        pending: the unsent responses, in order.
        corked: whether a read is being processed, so that completed responses are sent afterwards.
        dirty: whether a `flush` is scheduled.
        muted: whether nothing is read for a time, because the client exceeded a quota.
        has_asked: whether a complete request has arrived.
        opened, last_active: when the connection was accepted, and when bytes last moved (monotonic clock).
    """

    __slots__ = (
        "_begun",
        "_flow",
        "_frames",
        "_handler",
        "_held",
        "_limits",
        "_loop",
        "_on_frame",
        "_outgoing",
        "_reading",
        "_scratch",
        "_transport",
        "_unmuting",
        "_writing",
        "client",
        "closed",
        "corked",
        "dirty",
        "fd",
        "has_asked",
        "last_active",
        "local",
        "muted",
        "opened",
        "peer",
        "pending",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        client: ClientSession,
        handler: ConnectionHandler,
        limits: Limits,
        scratch: memoryview,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self.client = client
        self.fd = transport.fd
        self.peer = transport.peer
        self.local = transport.local
        self._handler = handler
        self._on_frame: Callable[[Connection, Frame], None] = handler.on_frame
        self._limits = limits
        self._flow = FlowControl(limits)
        self._frames = Frames(REQUEST_BYTES_MIN, limits.request_bytes_max)
        self._outgoing = OutgoingBytes(transport)
        self._held = self._begun = 0
        self._scratch = scratch
        self._writing = False
        self._reading = True
        self.pending: deque[ResponseSlot] = deque()
        self.closed = False
        self.dirty = False
        self.corked = False
        self.has_asked = self.muted = False
        self._unmuting: asyncio.TimerHandle | None = None
        self.opened = self.last_active = time.monotonic()
        loop.add_reader(self.fd, self._on_readable)

    @property
    def name(self) -> str:
        """The client's address for log lines."""
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def is_idle(self) -> bool:
        """Whether the connection has no unanswered request and no unsent bytes."""
        return not self.pending and not self._outgoing.size

    @property
    def is_reading(self) -> bool:
        """Whether the client's next bytes would be read now."""
        return self._reading

    # -- requests

    def _on_readable(self) -> None:
        try:
            for _ in range(READS_PER_WAKE):
                if not self._reading or not self._read_once():
                    break
        except BadFrame as error:
            self._end_for(error)

    def _end_for(self, error: BadFrame) -> None:
        """Log that a client sent invalid bytes, send the completed responses, and close the connection."""
        if not isinstance(error, WrongSecurityProtocol) or self._handler.should_log_problem(self, str(error)):
            log.warning("closing the connection from %s: what it sent is no valid request: %s", self.name, error)
        self.close_after_responses()

    def close_after_responses(self) -> None:
        """Send completed responses, then close the connection."""
        self.corked = False
        self.flush()
        self.close()

    def _read_once(self) -> bool:
        """Read once and process the frames; return whether there may be more to read."""
        scratch = self._scratch
        try:
            count = self._transport.receive_into(scratch)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.close()
            return False
        if count == 0:
            self.close()
            return False
        self.corked = True
        self._handle_frames(scratch[:count])
        self.corked = False
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return count == len(scratch) and not self._frames.kept and not self.closed

    def _handle_frames(self, data: memoryview) -> None:
        """Pass the complete frames of `data` to the handler.

        Responses are sent in between, and a full connection stops reading. A read full of small requests must not pile
        up large responses, nor delay the other connections.
        """
        clock = time.monotonic
        now = clock()
        until = now + TAKE_S
        pending, outgoing, flow = self.pending, self._outgoing, self._flow
        high_water_mark, bytes_max = flow.high_water_mark, flow.bytes_max
        found = self._frames.split_frames(data)
        if self._frames.begun != self._begun:
            self._count_unfinished()
            if self.closed:
                return
        if not found:
            self.last_active = now
            return
        self.has_asked = True
        frames = iter(found)
        for frame in frames:
            self._on_frame(self, frame)
            if self.closed:
                return
            now = clock()
            if (
                len(pending) >= high_water_mark
                or outgoing.size + self._held >= bytes_max
                or self.muted
                or (len(pending) % PARKED_CHECK == 1 and pending[0].parts is None and self._parked_bytes() >= bytes_max)
            ) and self._stays_full():
                self._put_back(frames)
                return
            if now > until:
                self._put_back(frames)
                self._loop.call_soon(self._resume_if_room)
                return
        self.last_active = now
        if self._frames.kept:  # from a frame on whose size was invalid when the earlier ones were cut
            self._handle_frames(self._frames.take_unsplit_bytes())

    def _put_back(self, frames: Iterator[Frame]) -> None:
        """Keep the frames that can't be handled now for later, and stop reading."""
        self._frames.put_back(frames)
        self._count_unfinished()
        self._pause()

    def _count_unfinished(self) -> None:
        """Count the bytes of incomplete requests toward the bound of all connections, which may close this one."""
        self._begun = self._frames.begun + len(self._frames.kept)
        self._handler.unfinished.set_held_bytes(self, self._begun)

    def _stays_full(self) -> bool:
        """Send completed responses; return whether the connection still has no room for another request."""
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return (self._is_full or self.muted) and not self.closed

    @property
    def _is_full(self) -> bool:
        return self._flow.must_stop_reading(len(self.pending), self._outgoing.size + self._held + self._parked_bytes())

    def _parked_bytes(self) -> int:
        """Return the bytes of completed responses that wait for an earlier one, such as a fetch that waits for data."""
        return sum([len(part) for answer in self.pending if answer.parts for part in answer.parts])

    def count_retained_bytes(self, size: int) -> None:
        """Count `size` bytes of waiting requests toward the connection's limit; a negative size releases them."""
        self._held += size
        self._resume_if_room()

    def suspend_requests(self) -> None:
        """Handle no further request until `resume_requests`: a login is being checked."""
        self.count_retained_bytes(self._flow.bytes_max)

    def resume_requests(self) -> None:
        """Handle requests again, also those that came in the meantime."""
        self.count_retained_bytes(-self._flow.bytes_max)

    def handle_received_bytes(self) -> None:
        """Handle bytes that the transport received during the TLS handshake, before this object existed."""
        if not self.closed:
            self._on_readable()

    def intercept(self, on_frame: Callable[[Connection, Frame], None], size_max: int | None) -> None:
        """Pass later frames to `on_frame` instead of the dispatcher.

        Their size limit is `size_max`; None: `socket.request.max.bytes`.
        """
        self._on_frame = on_frame
        self._frames.size_max = self._limits.request_bytes_max if size_max is None else size_max

    def pause_reading(self, seconds: float) -> None:
        """Read nothing for a time. Requests that were read before are still answered."""
        until = self._loop.time() + seconds
        if self.closed or (self._unmuting is not None and self._unmuting.when() >= until):
            return
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.muted = True
        self._pause()
        self._unmuting = self._loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        self.muted, self._unmuting = False, None
        self._resume_if_room()

    def _pause(self) -> None:
        if self._reading and not self.closed:
            self._reading = False
            self._loop.remove_reader(self.fd)

    def _resume_if_room(self) -> None:
        if self._reading or self.closed or self.muted or self._is_full:
            return
        self._reading = True
        if self._frames.kept:
            self._loop.call_soon(self._take_kept)
        else:
            self._loop.add_reader(self.fd, self._on_readable)

    def _take_kept(self) -> None:
        """Handle the frames that were kept because the connection was full or suspended, then read again."""
        if self.closed:
            return
        try:
            self._handle_frames(self._frames.take_unsplit_bytes())
        except BadFrame as error:
            self._end_for(error)
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self.closed:
            return
        if self._reading:
            self._loop.add_reader(self.fd, self._on_readable)
        if self.pending and self.pending[0].parts is not None:
            self.flush()

    def reverse_direction(self) -> ServerRequests:
        """Reverse the connection: later frames are responses to the broker's requests, and may have any size."""
        turned = ServerRequests(self.send_raw)
        self._on_frame = lambda _, frame: turned.handle_response(frame)
        self._frames.size_min = 0
        return turned

    # -- responses

    def send_when_next(self, answer: ResponseSlot) -> None:
        """Schedule sending of a completed response if it is the next one."""
        if self.closed:
            return
        if not self.dirty and not self.corked and self.pending and self.pending[0] is answer:
            self.dirty = True
            self._handler.schedule_flush(self)

    def send_raw(self, parts: Parts) -> None:
        """Send a frame that is no response, after all pending responses."""
        if not self.closed:
            unasked = UnrequestedFrame(parts)
            self.pending.append(unasked)
            self.send_when_next(unasked)

    def flush(self) -> None:
        """Send the completed responses that no earlier response blocks."""
        self.dirty = False
        pending = self.pending
        ready: list[Part] = []
        while pending:
            parts = pending[0].parts
            if parts is None:
                break
            pending.popleft()
            ready += parts
        outgoing = self._outgoing
        if ready:
            outgoing.add(ready)
        if not self._writing:
            if outgoing.size:
                self._send()
        elif ready:
            self._handler.unsent.set_held_bytes(self, outgoing.memory_bytes)
        self._resume_if_room()

    def _send(self) -> None:
        try:
            done = self._outgoing.send()
        except OSError:
            self.close()
            return
        self.last_active = time.monotonic()
        if done:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self.fd)
                self._handler.unsent.set_held_bytes(self, 0)
        else:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self.fd, self._on_writable)
            self._handler.unsent.set_held_bytes(self, self._outgoing.memory_bytes)

    def _on_writable(self) -> None:
        if not self.closed:
            self._send()
            self._resume_if_room()

    def close(self) -> None:
        """Close the connection; unsent bytes are lost."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.fd)
        if self._writing:
            self._loop.remove_writer(self.fd)
        self._outgoing.discard_unsent()
        self._frames.discard_incomplete()
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._handler.unfinished.set_held_bytes(self, 0)
        self._handler.unsent.set_held_bytes(self, 0)
        self._transport.close()
        self._handler.on_closed(self)
