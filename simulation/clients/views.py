"""An application's expectations of each partition, from its own calls and the records it received."""

from __future__ import annotations

from dataclasses import dataclass

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"


@dataclass(slots=True)
class View:
    """One partition as an application sees it.

    Attributes:
        reader: the consumer's client id: its application and the number of its process.
        committed_only: whether it reads with isolation.level=read_committed.
        reset: its auto.offset.reset.
        expected: the offset from which no record may be missing; None while it is unknown.
        begins_at: its start position while `expected` is None: the committed offset, the first or the last.
        since_ms: when that start position was set.
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
        """Begin at that start position, whatever offset it has."""
        self.expected, self.begins_at, self.since_ms = None, where, now_ms

    def expect(self, offset: int) -> None:
        """Expect this record next, or the first visible one after it."""
        self.expected = offset
        self.reach = max(self.reach, offset)
