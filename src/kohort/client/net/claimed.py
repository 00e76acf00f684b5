"""A link that belongs to one part of the client: frames without Kafka's header, in both directions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kohort.client.net.runtime import Promise, Runtime

FRAMES_MAX = 64
"""Frames that came and were not taken yet: who sends more does not wait for answers. Bounds memory."""


class Claimed:
    """What comes and goes on a claimed link.

    Attributes:
        ended: why the link has ended, None as long as it stands.
    """

    def __init__(
        self, send: Callable[[bytes], None], close: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """`send` takes a frame without its size; `changed` is called when a frame has come, and when the link ends."""
        self._send = send
        self._close = close
        self._changed = changed
        self._frames: deque[memoryview] = deque()
        self._news: Promise[None] = Promise()
        self.ended: str | None = None

    def send(self, body: bytes) -> None:
        """Send a frame; on a link that has ended, nothing is."""
        if self.ended is None:
            self._send(body)

    def take(self) -> memoryview | None:
        """The oldest frame that came and was not taken."""
        return self._frames.popleft() if self._frames else None

    async def next(self, runtime: Runtime, timeout_ms: float) -> memoryview | None:
        """The next frame; None: it did not come in time, or the link has ended."""
        until_ms = runtime.now_ms + timeout_ms
        while not self._frames and self.ended is None and runtime.now_ms < until_ms:
            await runtime.first(self._news, timeout_ms=until_ms - runtime.now_ms)
        return self.take()

    def close(self, why: str) -> None:
        """End the link."""
        if self.ended is None:
            self._close(why)

    # What the connections call.

    def came(self, frame: memoryview) -> bool:
        """A frame has come; False: it is one too many."""
        self._frames.append(memoryview(bytes(frame)))
        self._tell()
        return len(self._frames) <= FRAMES_MAX

    def end(self, why: str) -> None:
        """The link has ended."""
        if self.ended is None:
            self.ended = why
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, Promise()
        news.resolve(None)
        self._changed()
