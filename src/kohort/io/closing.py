"""Objects of one process: a `with` block closes them, and they can't be pickled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Self


class OneProcess:
    """An object with connections, threads or files, which no other process can take over."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled: create one in each process, for Spark in the task")


class ClosedOnExit(OneProcess, ABC):
    """An object that the end of its `with` block closes, whether or not the block raised."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
