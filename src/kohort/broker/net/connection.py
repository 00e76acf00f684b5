"""One client connection on a raw socket: frames in, answers out in the order of the requests.

Reading goes through one buffer shared by all connections of the loop, because a read and the parsing of what it
brought are one uninterrupted step; only a frame that has not wholly arrived takes memory of its own, and no more than has
come of it: a size is only a claim. Writing gathers
what is ready and never holds log bytes in memory: they are read from their file when the socket takes them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from typing import Any, Protocol

from kohort.broker.net.parts import LogSlice, gathered

log = logging.getLogger("kohort.broker")

READ_BUFFER_BYTES = 1 << 18
GATHER_BYTES = 1 << 18
"""One send takes at least this much if it is there: beyond it a larger one gains nothing."""
SENDFILE_BYTES = 1 << 20
"""Log bytes given to the kernel at once: others have their turn between."""
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Where the system knows it, a head waits for the log bytes that follow and leaves in the same packet."""
GATHER_PARTS = 256
"""Below IOV_MAX (1,024 on Linux, 16 by POSIX's promise but 1,024 everywhere that matters)."""
REQUEST_BYTES_MIN = 8
"""Api, version and correlation id."""
ANSWERS_HELD = 256
"""Answers gathered before they are sent, while a read is taken apart."""
TAKE_S = 0.005
"""A read full of requests that take long is taken apart for so long; then the others have their turn."""
READS_PER_WAKE = 4
"""A connection with more to read lets the others have their turn after this many reads."""

_unpack_size = struct.Struct(">i").unpack_from


class Answer(Protocol):
    """A place in a connection's order of answers."""

    parts: list[Any] | None
    """What to send (buffers and LogSlices), None as long as it is not known, empty to send nothing."""


class Handler(Protocol):
    """What a connection needs from the server."""

    def on_frame(self, connection: Connection, frame: bytearray | memoryview) -> None:
        """Take one request; raises `BadFrame` to end the connection.

        The frame may be written to, and is gone when this returns: the next read goes into the same memory.
        """

    def on_closed(self, connection: Connection) -> None:
        """The connection ended."""

    def wake(self, connection: Connection) -> None:
        """Have `flush` called soon."""


class BadFrame(Exception):
    """Bytes no client of ours sends: the connection ends, the text says why."""


class Limits(Protocol):
    """The bounds of one connection, from the broker's settings."""

    @property
    def request_bytes_max(self) -> int: ...
    @property
    def queued_requests_max(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...


class Connection:
    """The state of one socket. All methods run on the loop.

    Attributes:
        pending: the answers that are owed, in order.
        number: tells connections apart in events of the group coordinator.
        software: name and version that the client gave in ApiVersions 3 and up.
        lease_ms: the lease that the client was told to keep, 0: none.
        process: what the client says of its process, "": nothing. See `kohort.processes`.
        shards: the group shards this connection has asked, to be told of its end.
        held: heartbeats whose answers a shard may hold back, token to shard: the next request releases them.
        waits: its parked fetches.
    """

    __slots__ = (
        "_backlog",
        "_begun",
        "_brim",
        "_handler",
        "_limits",
        "_loop",
        "_out",
        "_out_bytes",
        "_reading",
        "_scratch",
        "_sock",
        "_wanted",
        "_writing",
        "closed",
        "corked",
        "dirty",
        "fd",
        "held",
        "last_active",
        "lease_ms",
        "local",
        "number",
        "peer",
        "pending",
        "process",
        "shards",
        "software",
        "waits",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: tuple[str, int],
        handler: Handler,
        limits: Limits,
        scratch: bytearray,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.local: tuple[str, int] = sock.getsockname()[:2]
        self._handler = handler
        self._limits = limits
        self._brim = min(ANSWERS_HELD, limits.queued_requests_max)
        self._scratch = scratch
        self._begun: bytearray | None = None  # what has come of a frame (or of its size) that has not wholly arrived
        self._wanted = 0  # the frame's size, 0: not known yet
        self._backlog = b""
        self._out: deque[Any] = deque()
        self._out_bytes = 0
        self._writing = False
        self._reading = True
        self.pending: deque[Answer] = deque()
        self.closed = False
        self.dirty = False
        self.corked = False
        self.number = 0
        self.software: tuple[str, str] | None = None
        self.lease_ms = 0
        self.process = ""
        self.shards: set[int] = set()
        self.held: dict[int, int] = {}
        self.waits: set[Any] = set()
        self.last_active = time.monotonic()
        loop.add_reader(self.fd, self._on_readable)

    @property
    def name(self) -> str:
        """The peer's address for log lines."""
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def idle(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not self.pending and not self._out

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
        self.corked = False
        self.flush()
        self.close()

    def _read_once(self) -> bool:
        """Read and take what is there; whether there may be more."""
        scratch = self._scratch
        try:
            count = self._sock.recv_into(scratch)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.close()
            return False
        if count == 0:
            self.close()
            return False
        self.corked = True
        data = memoryview(scratch)[:count]
        if self._begun is None:
            self._take(data)
        else:
            self._take_more(self._begun, data)
        self.corked = False
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return count == len(scratch) and not self._backlog and not self.closed

    def _take_more(self, begun: bytearray, data: memoryview) -> None:
        """`data` goes on with a frame of which some has come before."""
        if not self._wanted:
            self._begun = None
            self._take(memoryview(begun + data))
            return
        missing = self._wanted - len(begun)
        begun += data[:missing]
        if len(begun) < self._wanted:
            return
        self._begun = None
        self._handler.on_frame(self, begun)
        if self.closed:
            return
        self.last_active = time.monotonic()
        if missing < len(data):
            self._take(data[missing:])
        elif self._full():
            self._pause()

    def _check_size(self, size: int) -> None:
        limit = self._limits.request_bytes_max
        if size > limit:
            raise BadFrame(f"a request of {size} bytes; socket.request.max.bytes is {limit}")
        if size < REQUEST_BYTES_MIN:
            raise BadFrame(f"{size} is no size of a request; does the client speak Kafka's protocol, without TLS?")

    def _take(self, data: memoryview) -> None:
        """Whole frames of `data` go to the handler, the rest waits in a buffer of its own.

        Answers are sent between, and what can't be answered yet stops the reading: a read full of small requests must
        not become a pile of large answers, nor keep all other connections waiting.
        """
        start, end = 0, len(data)
        clock = time.monotonic
        until = clock() + TAKE_S
        on_frame = self._handler.on_frame
        pending = self.pending
        limits = self._limits
        brim, size_max, queued_max = self._brim, limits.request_bytes_max, limits.queued_bytes_max
        while end - start >= 4:
            if (len(pending) >= brim or self._out_bytes >= queued_max) and self._brimful():
                self._backlog = bytes(data[start:end])
                self._pause()
                return
            (size,) = _unpack_size(data, start)
            if not REQUEST_BYTES_MIN <= size <= size_max:
                self._check_size(size)
            first = start + 4
            start = first + size
            if start > end:
                start = first - 4
                break
            on_frame(self, data[first:start])
            if self.closed:
                return
            if clock() > until and start < end:
                self._backlog = bytes(data[start:end])
                self._pause()
                self._loop.call_soon(self._resume_if_room)
                return
        self.last_active = time.monotonic()
        if start < end:
            self._keep(data[start:end])

    def _brimful(self) -> bool:
        """Send what is ready; whether there is no room for another request even so."""
        if self.pending and self.pending[0].parts is not None:
            self.flush()
        return self._full() and not self.closed

    def _keep(self, rest: memoryview) -> None:
        if len(rest) < 4:
            self._begun, self._wanted = bytearray(rest), 0
            return
        (size,) = _unpack_size(rest)
        self._check_size(size)
        self._begun, self._wanted = bytearray(rest[4:]), size

    def _full(self) -> bool:
        limits = self._limits
        return len(self.pending) >= limits.queued_requests_max or self._out_bytes >= limits.queued_bytes_max

    def _pause(self) -> None:
        if self._reading and not self.closed:
            self._reading = False
            self._loop.remove_reader(self.fd)

    def _resume_if_room(self) -> None:
        if self._reading or self.closed or self._full():
            return
        self._reading = True
        if self._backlog:
            self._loop.call_soon(self._take_backlog)
        else:
            self._loop.add_reader(self.fd, self._on_readable)

    def _take_backlog(self) -> None:
        """Go on with what was read before the connection was full."""
        backlog, self._backlog = self._backlog, b""
        if self.closed:
            return
        try:
            self._take(memoryview(backlog))
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

    def ready(self, answer: Answer) -> None:
        """An answer's parts are known: have it sent if it is its turn."""
        if self.closed:
            return
        if not self.dirty and not self.corked and self.pending and self.pending[0] is answer:
            self.dirty = True
            self._handler.wake(self)

    def push(self, parts: list[Any]) -> None:
        """Send a frame that answers no request, now, between answers."""
        if not self.closed:
            self._enqueue(parts)
            self._send()

    def flush(self) -> None:
        """Send the answers whose turn it is."""
        self.dirty = False
        pending = self.pending
        ready: list[Any] = []
        while pending:
            parts = pending[0].parts
            if parts is None:
                break
            pending.popleft()
            ready += parts
        if ready:
            self._enqueue(ready)
        if not self._writing and self._out:
            self._send()
        self._resume_if_room()

    def _enqueue(self, parts: list[Any]) -> None:
        if len(parts) > 1:
            parts = gathered(parts)
        self._out.extend(parts)
        self._out_bytes += sum(map(len, parts))

    def _send(self) -> None:
        try:
            while self._out:
                if not self._send_some():
                    if not self._writing:
                        self._writing = True
                        self._loop.add_writer(self.fd, self._on_writable)
                    return
        except OSError:
            self.close()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)

    def _send_some(self) -> bool:
        """Send once; whether the socket took all that was offered."""
        try:
            if type(self._out[0]) is LogSlice:
                return self._send_slice(self._out[0])
            return self._send_buffers()
        except (BlockingIOError, InterruptedError):
            return False

    def _send_slice(self, part: LogSlice) -> bool:
        """Have the kernel send log bytes: they never enter this process."""
        offered = min(len(part), SENDFILE_BYTES)
        sent = part.send_to(self.fd, offered)
        if sent == 0:
            raise OSError("a log file is shorter than it was")
        self._drop(sent)
        return sent == offered

    def _send_buffers(self) -> bool:
        chunk: list[Any] = []
        size = 0
        flags = 0
        for part in self._out:
            if type(part) is LogSlice:
                flags = MORE_FOLLOWS
                break
            chunk.append(part)
            size += len(part)
            if size >= GATHER_BYTES or len(chunk) >= GATHER_PARTS:
                break
        sent = self._sock.send(chunk[0], flags) if len(chunk) == 1 else self._sock.sendmsg(chunk, [], flags)
        self._drop(sent)
        return sent == size

    def _drop(self, sent: int) -> None:
        """Take `sent` bytes off the front of what is to be sent."""
        out = self._out
        self._out_bytes -= sent
        while sent:
            part = out[0]
            size = len(part)
            if sent < size:
                if type(part) is LogSlice:
                    part.drop(sent)
                else:
                    out[0] = memoryview(part)[sent:]
                return
            sent -= size
            out.popleft()

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
        self._out.clear()
        self._out_bytes = 0
        self._begun = None
        self._sock.close()
        self._handler.on_closed(self)
