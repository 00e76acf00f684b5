"""Reversed connections of the push protocol: the broker sends requests on them, and the client responds.

These frames have no correlation ids: each incoming frame answers the oldest unanswered request. The registration of a
push consumer reverses its connection. Earlier requests are still answered first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kohort.broker.framing import BadFrame, Frame
from kohort.errors import ErrorCode, KafkaError
from kohort.wire.schema import Buffer

UNANSWERED_MAX = 64
"""The most unanswered requests to a client, which bounds memory. The coordinator should have evicted such a client."""

OnAnswer: TypeAlias = Callable[[Frame], None]
"""Callback that takes a response. The frame's memory is reused afterwards. Raises `BadFrame` to close the connection.
"""


class ServerRequests:
    """The requests sent to the client of a reversed connection, in order."""

    __slots__ = ("_asked", "_queue")

    def __init__(self, queue: Callable[[Sequence[Buffer]], None]) -> None:
        """Create an empty queue. `queue` sends a frame after all pending responses."""
        self._queue = queue
        self._asked: deque[OnAnswer] = deque()

    @property
    def unanswered(self) -> int:
        """The number of responses that the client has not sent yet."""
        return len(self._asked)

    def ask(self, parts: Sequence[Buffer], on_answer: OnAnswer) -> None:
        """Send the client a request. `on_answer` gets its response, or is never called if the connection closes before.

        Raises:
            KafkaError: the client has too many unanswered requests.
        """
        if len(self._asked) >= UNANSWERED_MAX:
            raise KafkaError(
                f"{UNANSWERED_MAX} frames to a client are not answered", ErrorCode.THROTTLING_QUOTA_EXCEEDED
            )
        self._asked.append(on_answer)
        self._queue(parts)

    def handle_response(self, frame: Frame) -> None:
        """Handle a frame from the client as the response to the oldest unanswered request.

        Raises:
            BadFrame: no request is unanswered.
        """
        if not self._asked:
            raise BadFrame(f"an answer of {len(frame)} bytes to nothing that was asked")
        self._asked.popleft()(frame)
