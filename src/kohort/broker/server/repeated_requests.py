"""Requests that clients repeat: a template for each connection and API, once two frames in a row have one length.

Heartbeats and commits of a member are alike until the next rebalance. Their templates save a third of the time of a
request (`kohort.wire.frame_templates`). A template costs as much as a few requests. After one that served seldom, a
connection has to repeat its request more often before it gets another.
"""

from __future__ import annotations

from typing import Final, Protocol

from kohort.wire.frame_templates import TEMPLATE_BYTES_MAX, FrameTemplate
from kohort.wire.framing import RequestHeader
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.schema import Buffer

REPEATED: Final = frozenset(("ConsumerGroupHeartbeat", "Heartbeat", "OffsetCommit"))
"""The APIs whose requests clients repeat."""
KEPT_BYTES_MAX: Final = 64 << 20
"""Memory of all templates together, about. Connections beyond it are served without."""
_TEMPLATE_BYTES: Final = 3_000
_BYTES_PER_FRAME_BYTE: Final = 16
_TOPIC_BYTES: Final = 1_000
"""Memory of a template with what its handler keeps: for any, for each byte of its frame, and for each topic of a
commit. That is 4 KB for a commit of one position, 33 KB for one of a hundred, and 140 KB if each has another topic.
"""
_WORTH_USES: Final = 8
"""A template that served fewer frames has cost more than it saved."""
_REPEATS_MAX: Final = 1_024


class Repetition:
    """How often a connection has repeated a request of one API, and the template to decode it by.

    Attributes:
        template: the template of the frames; None: the request has not been repeated often enough.
    """

    __slots__ = ("_left", "_size", "_wanted", "kept_bytes", "template", "uses")

    def __init__(self) -> None:
        self.template: FrameTemplate | None = None
        self.uses = self.kept_bytes = 0
        self._size, self._wanted, self._left = -1, 1, 1

    def is_template_due(self, size: int) -> bool:
        """Count a frame that no template matched; return whether enough of this length came in a row to make one."""
        if size != self._size:
            self._size, self._left = size, self._wanted
            return False
        self._left -= 1
        return self._left <= 0

    def drop_template(self) -> None:
        """Drop the template, because the client sends another request."""
        self.template = None
        self._wanted = min(2 * self._wanted, _REPEATS_MAX) if self.uses < _WORTH_USES else 1
        self.uses, self._size = 0, -1


class RepeatingConnection(Protocol):
    """A connection whose client sends the same requests again and again, like heartbeats and fetches."""

    @property
    def repeated(self) -> dict[int, Repetition]:
        """The repeated requests of this connection, by API key."""


class RepeatedRequests:
    """The frame templates of a host's connections, for requests that clients repeat."""

    __slots__ = ("_kept_bytes",)

    def __init__(self) -> None:
        self._kept_bytes = 0

    def record_request(
        self, client: RepeatingConnection, frame: Buffer, header: RequestHeader, message: Message
    ) -> None:
        """Count a request that was decoded without a template, and make its template if it was repeated."""
        size, key = len(frame), header.api_key
        repetition = client.repeated.get(key)
        if repetition is None:
            repetition = client.repeated[key] = Repetition()
        if repetition.template is not None:
            self._kept_bytes -= repetition.kept_bytes
            repetition.drop_template()
        if not repetition.is_template_due(size) or size > TEMPLATE_BYTES_MAX:
            return
        needed = _TEMPLATE_BYTES + _BYTES_PER_FRAME_BYTE * size
        if isinstance(message, OffsetCommitRequest):
            needed += _TOPIC_BYTES * len(message.topics)
        if self._kept_bytes + needed > KEPT_BYTES_MAX:
            return
        repetition.template = FrameTemplate.from_frame(frame, header, message)
        if repetition.template is None:
            repetition.drop_template()
        else:
            repetition.kept_bytes = needed
            self._kept_bytes += needed

    def forget_client(self, client: RepeatingConnection) -> None:
        """Drop the templates of a connection that has closed."""
        for repetition in client.repeated.values():
            if repetition.template is not None:
                self._kept_bytes -= repetition.kept_bytes
        client.repeated.clear()
