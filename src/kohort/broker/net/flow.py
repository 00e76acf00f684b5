"""Flow control: how much is taken from one client before it must take what it is owed."""

from __future__ import annotations

from typing import Protocol

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
