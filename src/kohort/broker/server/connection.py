"""One client connection: frames in, answers out in the order of the requests.

It ties its parts together: a transport (`transport.py`), framing (`framing.py`), flow control (`flow.py`), what is to
be sent (`sending.py`), and what is known of the client (`session.py`). Reading goes through one buffer shared by all
connections of the loop, because a read and the taking of what it brought are one uninterrupted step.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kohort.broker.purgatory import Wait
from kohort.broker.server.framing import BadFrame, Frame, Frames
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.client_quirks import DelayTolerance, classic_hold_ms, delay_tolerance
from kohort.io.processes import NAME_MAX_LENGTH, beat_ms, long_poll_max_ms
from kohort.log import FileRange
from kohort.wire.schema import Buffer

# -- What the broker knows of the client at the other end of a connection

OWN_SOFTWARE = "kohort"
"""What our own clients name themselves in ApiVersions."""


class Principal(NamedTuple):
    """Who a client is, by its authentication."""

    kind: str
    name: str


ANYONE = Principal("User", "ANONYMOUS")
"""Who a client is that did not authenticate."""


class ClientSession:
    """One client, from its connection's beginning to its end.

    Attributes:
        number: tells connections apart, in events of the group coordinator too.
        host: the client's address.
        principal: who it is; requests keep the one that they came under.
        software: name and version that it gave in ApiVersions 3 and up.
        lease_ms: the lease that it was told to keep, 0: none.
        process: what it says of its process, "": nothing. See `kohort.io.processes`.
        client_id: as the header of ApiVersions had it; frames of the push protocol have none.
        shards: the group shards that it has asked, to be told of its end.
        held: heartbeats whose answers a shard may hold back, token to shard: the next request releases them.
        waits: its parked fetches.
    """

    __slots__ = (
        "client_id", "held", "host", "lease_ms", "number", "principal", "process", "shards", "software", "waits",
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
        self.waits: set[Wait] = set()

    def introduce(self, name: str, version: str, process: str) -> None:
        """The client says what it is, and which process."""
        self.software = (name, version)
        self.process = process[: NAME_MAX_LENGTH + 1]

    @property
    def is_own(self) -> bool:
        """Whether it is kohort's own client."""
        return self.software is not None and self.software[0] == OWN_SOFTWARE

    @property
    def interval_ms(self) -> int:
        """At which interval it is known to send classic heartbeats, 0: not known."""
        return beat_ms(self.lease_ms)

    def classic_hold_ms(self, mode: str) -> int:
        """How long it bears to wait for the answer to a classic heartbeat. `mode`: `group.notify.at.once`."""
        return 0 if self._is_new else self._within_lease(classic_hold_ms(mode, self.software and self.software[0]))

    def patience(self, mode: str) -> DelayTolerance:
        """How it bears to wait for the answer to the heartbeat of a consumer group's member; arguments as above."""
        found = delay_tolerance(mode, self.software and self.software[0])
        return found._replace(hold_ms=0 if self._is_new else self._within_lease(found.hold_ms))

    @property
    def _is_new(self) -> bool:
        """Whether nothing of a group has come yet: who comes back on a new connection has waited for an answer."""
        return not self.shards

    def _within_lease(self, hold_ms: int) -> int:
        return min(hold_ms, long_poll_max_ms(self.lease_ms)) if self.lease_ms else hold_ms


# -- What an answer is made of: buffers, and bytes of log files that never enter this process

SMALL_BYTES = 4096
"""Answers below it are copied together: cheaper than to give them to the kernel one by one."""


class LogSlice:
    """Bytes of a log file inside an answer, read when the socket takes them."""

    __slots__ = ("_file", "_length", "_position")

    def __init__(self, part: FileRange) -> None:
        self._file, self._position, self._length = part

    def __len__(self) -> int:
        return self._length

    def send_to(self, fd: int, count: int) -> int:
        """Send the first `count` bytes to a socket; returns how many it took."""
        return os.sendfile(fd, self._file.fd, self._position, count)

    def drop(self, count: int) -> None:
        """Forget the first bytes: they were sent."""
        self._position += count
        self._length -= count


Part: TypeAlias = Buffer | LogSlice


def gathered(parts: Sequence[Part]) -> list[Part]:
    """The same bytes with small buffers that follow each other in one."""
    found: list[Part] = []
    run: list[Buffer] = []
    for part in parts:
        if not isinstance(part, LogSlice) and len(part) < SMALL_BYTES:
            run.append(part)
            continue
        if run:
            found.append(b"".join(run))
            run = []
        found.append(part)
    if run:
        found.append(b"".join(run))
    return found


# -- Flow control: how much is taken from one client before it must take what it is owed

ANSWERS_HELD = 256
"""Answers gathered before they are sent, while a read is taken apart."""
TAKE_S = 0.005
"""A read full of requests that take long is taken apart for so long; then the others have their turn."""
READS_PER_WAKE = 4
"""A connection with more to read lets the others have their turn after this many reads."""


class Limits(Protocol):
    """The bounds of one connection, from the broker's settings."""

    @property
    def request_bytes_max(self) -> int: ...
    @property
    def queued_requests_max(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...


class Flow:
    """When one connection is full: nothing more is read from it until it has room.

    Attributes:
        requests_max: requests unanswered.
        bytes_max: bytes of answers that the client has not taken.
        brim: so many requests unanswered are a reason to send what is ready before the next is taken.
    """

    __slots__ = ("brim", "bytes_max", "requests_max")

    def __init__(self, limits: Limits) -> None:
        self.requests_max = limits.queued_requests_max
        self.bytes_max = limits.queued_bytes_max
        self.brim = min(ANSWERS_HELD, self.requests_max)

    def is_full(self, requests: int, size: int) -> bool:
        """Whether nothing more is taken with so many requests unanswered and so many bytes unsent."""
        return requests >= self.requests_max or size >= self.bytes_max


# -- Transports: the bytes of one connection, whatever they travel in

MAPPED = "::ffff:"
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Where the system knows it, a head waits for the log bytes that follow and leaves in the same packet."""


class Transport(Protocol):
    """What a connection needs of the bytes below it.

    Receiving and sending never wait. They raise `BlockingIOError` where the loop's next event has to be waited for, and
    another `OSError` where the connection has failed.

    Attributes:
        fd: what the loop watches.
        peer: the client's address.
        local: the address that the client reached.
    """

    @property
    def fd(self) -> int: ...
    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def local(self) -> tuple[str, int]: ...

    def receive_into(self, buffer: memoryview, /) -> int:
        """Take what has come, as far as it fits; 0: the client has ended the connection."""

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send a beginning of these bytes; returns how many. `more`: others follow at once."""

    def send_slice(self, part: LogSlice, count: int, /) -> int:
        """Send a beginning of the first `count` bytes of a log's; returns how many."""

    def close(self) -> None:
        """Let go of the socket."""


def unmapped(host: str) -> str:
    """The IPv4 address that a socket of both families writes as `::ffff:127.0.0.1`; any other address as it is.

    A client on IPv4 is told this broker's address, and may be unable to connect to one of IPv6.
    """
    return host.removeprefix(MAPPED) if host.startswith(MAPPED) and "." in host else host


class PlainTransport:
    """Bytes as they are, on a TCP socket that does not block."""

    __slots__ = ("_sock", "fd", "local", "peer", "receive_into")

    def __init__(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        host, port = sock.getsockname()[:2]
        self.local = (unmapped(host), port)
        self.receive_into: Callable[[memoryview], int] = sock.recv_into

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Send a beginning of these bytes; returns how many. `more`: others follow at once."""
        flags = MORE_FOLLOWS if more else 0
        if len(buffers) == 1:
            return self._sock.send(buffers[0], flags)
        return self._sock.sendmsg(buffers, [], flags)

    def send_slice(self, part: LogSlice, count: int, /) -> int:
        """Have the kernel send log bytes: they never enter this process."""
        return part.send_to(self.fd, count)

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()


# -- What is to be sent on one connection: gathered, in order, and given to the transport as it takes it
#
# Log bytes are never held in memory: they are read from their file when the transport takes them.

GATHER_BYTES = 1 << 18
"""One send takes at least this much if it is there: beyond it a larger one gains nothing."""
GATHER_PARTS = 256
"""Below IOV_MAX (1,024 on Linux, 16 by POSIX's promise but 1,024 everywhere that matters)."""
SENDFILE_BYTES = 1 << 20
"""Log bytes given to the kernel at once: others have their turn between."""

Parts: TypeAlias = Sequence[Part]


class Outgoing:
    """The bytes that the transport has not taken yet.

    Attributes:
        size: how many.
    """

    __slots__ = ("_parts", "_transport", "size")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._parts: deque[Part] = deque()
        self.size = 0

    def add(self, parts: Parts) -> None:
        """These follow what is there."""
        if len(parts) > 1:
            parts = gathered(parts)
        self._parts.extend(parts)
        self.size += sum(map(len, parts))

    def send(self) -> bool:
        """Send what the transport takes now; whether that was all.

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

    def clear(self) -> None:
        """Send no more."""
        self._parts.clear()
        self.size = 0

    def _send_some(self) -> bool:
        """Send once; whether the transport took all that was offered."""
        first = self._parts[0]
        if isinstance(first, LogSlice):
            offered = min(len(first), SENDFILE_BYTES)
            sent = self._transport.send_slice(first, offered)
            if sent == 0:
                raise OSError("a log file is shorter than it was")
        else:
            chunk, offered, more = self._chunk()
            sent = self._transport.send(chunk, more=more)
        self._drop(sent)
        return sent == offered

    def _chunk(self) -> tuple[list[Buffer], int, bool]:
        """The buffers at the front, their bytes, and whether log bytes follow them."""
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
        """Take `sent` bytes off the front."""
        parts = self._parts
        self.size -= sent
        while sent:
            part = parts[0]
            size = len(part)
            if sent < size:
                if isinstance(part, LogSlice):
                    part.drop(sent)
                else:
                    parts[0] = memoryview(part)[sent:]
                return
            sent -= size
            parts.popleft()


# -- A connection that has turned round: the server asks, and the client's frames are the answers
#
# Neither have numbers to be matched by: each frame in answers the oldest frame out that is not answered yet. A push
# protocol turns the connection on which a client registers; what was asked before is answered as ever, and first.

UNANSWERED_MAX = 64
"""Frames out that are not answered: who asks so much of a silent client should have given it up. Bounds memory."""

OnAnswer: TypeAlias = Callable[[Frame], None]
"""Takes an answer, whose memory is not kept; raises `BadFrame` to end the connection."""


class Turned:
    """What was asked of the client of one connection, in order."""

    __slots__ = ("_asked", "_queue")

    def __init__(self, queue: Callable[[Parts], None]) -> None:
        """`queue`: has a frame sent behind what is owed."""
        self._queue = queue
        self._asked: deque[OnAnswer] = deque()

    @property
    def unanswered(self) -> int:
        """How many answers the client owes."""
        return len(self._asked)

    def ask(self, parts: Parts, on_answer: OnAnswer) -> None:
        """Send a frame; its answer goes to `on_answer`, or never comes: the connection's end is told elsewhere.

        Raises:
            KafkaError: the client owes too many answers.
        """
        if len(self._asked) >= UNANSWERED_MAX:
            raise KafkaError(
                f"{UNANSWERED_MAX} frames to a client are not answered", ErrorCode.THROTTLING_QUOTA_EXCEEDED
            )
        self._asked.append(on_answer)
        self._queue(parts)

    def take(self, frame: Frame) -> None:
        """A frame from the client.

        Raises:
            BadFrame: it answers nothing.
        """
        if not self._asked:
            raise BadFrame(f"an answer of {len(frame)} bytes to nothing that was asked")
        self._asked.popleft()(frame)


log = logging.getLogger("kohort.broker")

READ_BUFFER_BYTES = 1 << 18
REQUEST_BYTES_MIN = 2
"""What a request is; those of Kafka are longer, which who reads their headers finds out."""


class Answer(Protocol):
    """A place in a connection's order of answers."""

    parts: Parts | None
    """What to send, None as long as it is not known, empty to send nothing."""


class Unasked:
    """A frame of the server's own, in its place between answers."""

    __slots__ = ("parts",)

    def __init__(self, parts: Parts) -> None:
        self.parts: Parts | None = parts


class Handler(Protocol):
    """What a connection needs from the server."""

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Take one request; raises `BadFrame` to end the connection.

        The frame may be written to, and is gone when this returns: the next read goes into the same memory.
        """

    def on_closed(self, connection: Connection) -> None:
        """The connection ended."""

    def wake(self, connection: Connection) -> None:
        """Have `flush` called soon."""


class Connection:
    """The state of one connection. All methods run on the loop.

    Attributes:
        client: what is known of who is at the other end.
        pending: the answers that are owed, in order.
        corked: a read is being taken apart: what becomes ready is sent when that is done.
        dirty: `flush` will be called.
    """

    __slots__ = (
        "_flow",
        "_frames",
        "_handler",
        "_held",
        "_loop",
        "_on_frame",
        "_outgoing",
        "_reading",
        "_scratch",
        "_transport",
        "_writing",
        "client",
        "closed",
        "corked",
        "dirty",
        "fd",
        "last_active",
        "local",
        "peer",
        "pending",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        client: ClientSession,
        handler: Handler,
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
        self._flow = Flow(limits)
        self._frames = Frames(REQUEST_BYTES_MIN, limits.request_bytes_max)
        self._outgoing = Outgoing(transport)
        self._held = 0
        self._scratch = scratch
        self._writing = False
        self._reading = True
        self.pending: deque[Answer] = deque()
        self.closed = False
        self.dirty = False
        self.corked = False
        self.last_active = time.monotonic()
        loop.add_reader(self.fd, self._on_readable)

    @property
    def name(self) -> str:
        """The peer's address for log lines."""
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def idle(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not self.pending and not self._outgoing.size

    # -- in

    def _on_readable(self) -> None:
        try:
            for _ in range(READS_PER_WAKE):
                if not self._reading or not self._read_once():
                    break
        except BadFrame as error:
            self._end_for(error)

    def _end_for(self, error: BadFrame) -> None:
        """Send what is ready, then end the connection."""
        log.warning("closing the connection from %s: %s", self.name, error)
        self.finish()

    def finish(self) -> None:
        """End the connection, behind what is ready to be sent."""
        self.corked = False
        self.flush()
        self.close()

    def _read_once(self) -> bool:
        """Read and take what is there; whether there may be more."""
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
        self._take(scratch[:count])
        self.corked = False
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return count == len(scratch) and not self._frames.kept and not self.closed

    def _take(self, data: memoryview) -> None:
        """Whole frames of `data` go to the handler.

        Answers are sent between, and what can't be answered yet stops the reading: a read full of small requests must
        not become a pile of large answers, nor keep all other connections waiting.
        """
        clock = time.monotonic
        now = clock()
        until = now + TAKE_S
        pending, outgoing, flow = self.pending, self._outgoing, self._flow
        brim, bytes_max = flow.brim, flow.bytes_max
        frames = iter(self._frames.cut(data))
        for frame in frames:
            self._on_frame(self, frame)
            if self.closed:
                return
            now = clock()
            if (len(pending) >= brim or outgoing.size + self._held >= bytes_max) and self._is_brimful():
                self._put_back(frames)
                return
            if now > until:
                self._put_back(frames)
                self._loop.call_soon(self._resume_if_room)
                return
        self.last_active = now
        if self._frames.kept:  # from a frame on whose size was out of bounds when the others were cut
            self._take(self._frames.take_kept())

    def _put_back(self, frames: Iterator[Frame]) -> None:
        """Take no more now."""
        self._frames.put_back(frames)
        self._pause()

    def _is_brimful(self) -> bool:
        """Send what is ready; whether there is no room for another request even so."""
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return self._is_full and not self.closed

    @property
    def _is_full(self) -> bool:
        return self._flow.is_full(len(self.pending), self._outgoing.size + self._held)

    def hold(self, size: int) -> None:
        """Count bytes of requests that are kept, or with a negative size are not any more, against what is read."""
        self._held += size
        self._resume_if_room()

    def _pause(self) -> None:
        if self._reading and not self.closed:
            self._reading = False
            self._loop.remove_reader(self.fd)

    def _resume_if_room(self) -> None:
        if self._reading or self.closed or self._is_full:
            return
        self._reading = True
        if self._frames.kept:
            self._loop.call_soon(self._take_kept)
        else:
            self._loop.add_reader(self.fd, self._on_readable)

    def _take_kept(self) -> None:
        """Go on with what was read before the connection was full."""
        if self.closed:
            return
        try:
            self._take(self._frames.take_kept())
        except BadFrame as error:
            self._end_for(error)
        self._go_on()

    def _go_on(self) -> None:
        if self.closed:
            return
        if self._reading:
            self._loop.add_reader(self.fd, self._on_readable)
        if self.pending and self.pending[0].parts is not None:
            self.flush()

    def turn_round(self) -> Turned:
        """From now on the server asks: frames in are answers, of any size, also those behind the current one."""
        turned = Turned(self._queue)
        self._on_frame = lambda _, frame: turned.take(frame)
        self._frames.size_min = 0
        return turned

    # -- out

    def ready(self, answer: Answer) -> None:
        """An answer's parts are known: have it sent if it is its turn."""
        if self.closed:
            return
        if not self.dirty and not self.corked and self.pending and self.pending[0] is answer:
            self.dirty = True
            self._handler.wake(self)

    def _queue(self, parts: Parts) -> None:
        """Send a frame that answers nothing, behind what is owed."""
        if not self.closed:
            unasked = Unasked(parts)
            self.pending.append(unasked)
            self.ready(unasked)

    def flush(self) -> None:
        """Send the answers whose turn it is."""
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
        if not self._writing and outgoing.size:
            self._send()
        self._resume_if_room()

    def _send(self) -> None:
        try:
            done = self._outgoing.send()
        except OSError:
            self.close()
            return
        if done:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self.fd)
        elif not self._writing:
            self._writing = True
            self._loop.add_writer(self.fd, self._on_writable)

    def _on_writable(self) -> None:
        if not self.closed:
            self._send()
            self.last_active = time.monotonic()
            self._resume_if_room()

    def close(self) -> None:
        """End the connection; whatever was not sent is lost."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.fd)
        if self._writing:
            self._loop.remove_writer(self.fd)
        self._outgoing.clear()
        self._frames.clear()
        self._transport.close()
        self._handler.on_closed(self)
