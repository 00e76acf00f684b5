"""Objects that a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class ClosedOnExit(ABC):
    """An object that the end of its `with` block closes, whether or not the block raised."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
