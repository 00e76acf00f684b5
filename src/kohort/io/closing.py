"""Objects of one process: a `with` block closes them, and they can't be pickled."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Self

log = logging.getLogger("kohort")


class NotPicklable:
    """The base of objects that can't be pickled, because their connections, threads or files are this process's."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled: create one in each process, for Spark in the task")


class ClosedOnExit(NotPicklable, ABC):
    """An object that the end of its `with` block closes, whether or not the block raised.

    If both the block and `close` raise, the block's error is the one that is raised, and the other is logged.
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close this object; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as late:  # noqa: BLE001 - the block's error is the cause
            log.warning("%s could not be closed after an error: %s", type(self).__name__, late)
