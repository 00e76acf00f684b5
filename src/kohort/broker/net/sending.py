"""What is to be sent on one connection: gathered, in order, and given to the transport as it takes it.

Log bytes are never held in memory: they are read from their file when the transport takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from kohort.broker.net.parts import LogSlice, Part, gathered
from kohort.broker.net.transport import Transport
from kohort.wire.schema import Buffer

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
