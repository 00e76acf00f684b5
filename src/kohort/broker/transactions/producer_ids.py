"""Producer ids: never given out twice, across restarts and losses of power too.

A block is reserved on disk before its first id is used.
"""

from __future__ import annotations

from pathlib import Path

from kohort.log.checkpoints import replace_file

FILE = "producer-ids"
BLOCK = 1_000
"""Ids reserved at once: a crash loses at most so many, and one small write serves so many producers."""


class ProducerIds:
    """Gives out ids."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._next = int(self._path.read_text(encoding="ascii")) if self._path.exists() else 0
        self._reserved = self._next

    def take(self) -> int:
        """An id that no one had before."""
        if self._next >= self._reserved:
            self._reserve()
        self._next += 1
        return self._next - 1

    def _reserve(self) -> None:
        reserved = self._next + BLOCK
        replace_file(self._path, str(reserved))
        self._reserved = reserved
