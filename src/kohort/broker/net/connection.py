"""One client connection: frames in, answers out in the order of the requests.

It ties its parts together: a transport (`transport.py`), framing (`framing.py`), flow control (`flow.py`), what is to
be sent (`sending.py`), and what is known of the client (`session.py`). Reading goes through one buffer shared by all
connections of the loop, because a read and the taking of what it brought are one uninterrupted step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from kohort.broker.net.flow import READS_PER_WAKE, TAKE_S, Flow, Limits
from kohort.broker.net.framing import BadFrame, Frame, Frames
from kohort.broker.net.parts import Part
from kohort.broker.net.sending import Outgoing, Parts
from kohort.broker.net.session import ClientSession
from kohort.broker.net.transport import Transport
from kohort.broker.net.turned import Turned

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
