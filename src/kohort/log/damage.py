"""Bytes in a log file that are not what they should be: where they lie, and what is lost by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kohort.errors import CorruptDataError, ErrorCode

ASIDE = ".damaged"
"""How the names of files end in which what was damaged, or lay behind damage, is set aside."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged stretch of a log file.

    Attributes:
        path: the file.
        position: where the damage begins in it, in bytes.
        length: how many bytes it takes; None where that is unknown.
        first_offset: the first offset that can't be read for it.
        next_offset: where reading can go on; None where that is unknown, or nothing follows.
        reason: what was found, in a few words.
    """

    path: Path
    position: int
    length: int | None
    first_offset: int
    next_offset: int | None
    reason: str

    def sentence(self) -> str:
        """File, position, what was found, the offsets lost, and where reading goes on."""
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
    """A read met damage in a log file (CORRUPT_MESSAGE).

    Attributes:
        damage: where, and what is lost.
    """

    def __init__(self, damage: Damage, message: str = "", code: ErrorCode | None = None) -> None:
        super().__init__(message or damage.sentence(), code)
        self.damage = damage
