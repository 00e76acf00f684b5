"""Damage: unreadable bytes in a log file, the offsets that are lost, and the bytes that are not yet checked."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from pathlib import Path

from kohort.errors import CorruptDataError, ErrorCode

ASIDE = ".damaged"
"""Suffix of files with bytes that were damaged, or that followed damage."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """One damaged range of a log file.

    Attributes:
        path: the file.
        position: the start of the damage in the file, in bytes.
        length: the number of damaged bytes; None: unknown.
        first_offset: the first offset that can't be read.
        next_offset: the next readable offset; None: unknown, or nothing follows.
        reason: a short description of the fault.
    """

    path: Path
    position: int
    length: int | None
    first_offset: int
    next_offset: int | None
    reason: str

    def describe(self) -> str:
        """Describe the file, position and fault, the lost offsets, and where reading continues."""
        where = f"{self.path.parent.name}/{self.path.name}"
        size = "" if self.length is None else f" ({self.length} bytes)"
        if self.next_offset is None:
            lost = f"offsets from {self.first_offset} on can't be read"
        elif self.next_offset <= self.first_offset:
            lost = "no offset is lost"
        else:
            last = self.next_offset - 1
            offsets = f"offset {last}" if last == self.first_offset else f"offsets {self.first_offset} to {last}"
            lost = f"{offsets} can't be read, the next readable one is {self.next_offset}"
        return f"{where} is damaged at byte {self.position}{size}: {self.reason}; {lost}"


class DamagedError(CorruptDataError):
    """An error of a read that met damage in a log file (CORRUPT_MESSAGE).

    Attributes:
        damage: the damaged range.
    """

    def __init__(self, damage: LogDamage, message: str = "", code: ErrorCode | None = None) -> None:
        super().__init__(message or damage.describe(), code)
        self.damage = damage


class UnverifiedBytes:
    """The bytes of a segment that an earlier process wrote, with the ranges that this process has verified so far.

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

    def is_verified(self, begin: int, stop: int) -> bool:
        """Return whether all bytes between two file positions are verified."""
        number = bisect_right(self._spans, (begin, self.end + 1)) - 1
        return number >= 0 and self._spans[number][1] >= stop

    def add_verified(self, begin: int, stop: int) -> None:
        """Record that the bytes between two file positions were verified."""
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
    def is_all_verified(self) -> bool:
        """Whether everything is verified and valid, so that this object is no longer needed."""
        return not self.damages and self.is_verified(0, self.end)

    def first_damage_from(self, position: int) -> LogDamage | None:
        """Return the first damage at or after a position, or that contains it; None if there is none."""
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
