"""Unverified bytes of a segment: written by an earlier process and not yet completely checked."""

from __future__ import annotations

from bisect import bisect_right, insort

from kohort.log.damage import LogDamage


class UnverifiedBytes:
    """The bytes of a segment that an earlier process wrote, and how far this one has verified them.

    Attributes:
        end: their number. Later bytes were written by this process.
        closed: whether they end where the next segment begins.
        damages: the damage found, by position in the file.
    """

    __slots__ = ("_spans", "closed", "damages", "end")

    def __init__(self, end: int, *, closed: bool = False) -> None:
        self.end = end
        self.closed = closed
        self.damages: list[LogDamage] = []
        self._spans: list[tuple[int, int]] = []

    def covers(self, begin: int, stop: int) -> bool:
        """Return whether everything between these positions was verified."""
        number = bisect_right(self._spans, (begin, self.end + 1)) - 1
        return number >= 0 and self._spans[number][1] >= stop

    def add(self, begin: int, stop: int) -> None:
        """Record that this range was verified."""
        touching = [span for span in self._spans if span[0] <= stop and span[1] >= begin]
        for span in touching:
            self._spans.remove(span)
            begin, stop = min(begin, span[0]), max(stop, span[1])
        insort(self._spans, (begin, stop))

    def truncate_at(self, end: int) -> None:
        """Record that the file was truncated at `end`."""
        self.end, self.closed = min(self.end, end), False
        self.damages = [damage for damage in self.damages if damage.position < end]
        self._spans = [(begin, min(stop, end)) for begin, stop in self._spans if begin < end]

    @property
    def done(self) -> bool:
        """Whether everything is verified and valid, so that this object is no longer needed."""
        return not self.damages and self.covers(0, self.end)

    def damage_from(self, position: int) -> LogDamage | None:
        """Return the first damage at or after a position, or that contains it."""
        for damage in self.damages:
            if damage.position >= position or damage.position + (damage.length or 0) > position:
                return damage
        return None

    def damage_of(self, offset: int) -> LogDamage | None:
        """Return the damage that contains an offset."""
        for damage in self.damages:
            if damage.first_offset <= offset and (damage.next_offset is None or offset < damage.next_offset):
                return damage
        return None
