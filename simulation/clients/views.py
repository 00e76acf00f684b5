"""The expectations of an application, partition by partition, from what it did and saw itself."""

from __future__ import annotations

from dataclasses import dataclass

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"


@dataclass(slots=True)
class View:
    """One partition as an application sees it.

    Attributes:
        reader: the consumer's client id: its application and life.
        committed_only: it reads with isolation.level=read_committed.
        reset: its auto.offset.reset.
        expected: the offset from which on nothing may be missing; None: not known yet.
        begins_at: where it is to begin, while `expected` is None: the committed offset, the first or the last.
        since_ms: since when it is to begin there.
        reach: the highest offset that was ever expected.
    """

    reader: str
    committed_only: bool
    reset: str
    expected: int | None = None
    begins_at: str = COMMITTED
    since_ms: int = 0
    reach: int = 0

    def begin(self, where: str, now_ms: int) -> None:
        """Begin at that place, whatever offset it has."""
        self.expected, self.begins_at, self.since_ms = None, where, now_ms

    def expect(self, offset: int) -> None:
        """Expect this record next, or the first visible one after it."""
        self.expected = offset
        self.reach = max(self.reach, offset)
