"""Damage: unreadable bytes in a log file, and the offsets that are lost."""

from __future__ import annotations

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

    def sentence(self) -> str:
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
        super().__init__(message or damage.sentence(), code)
        self.damage = damage
