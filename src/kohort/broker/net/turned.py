"""A connection that has turned round: the server asks, and the client's frames are the answers.

Neither have numbers to be matched by: each frame in answers the oldest frame out that is not answered yet. A push
protocol turns the connection on which a client registers; what was asked before is answered as ever, and first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from kohort.broker.net.framing import BadFrame, Frame
from kohort.broker.net.sending import Parts
from kohort.errors import ErrorCode, KafkaError

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
