"""A coordinator with one function of its own replaced as long as it takes a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from kohort.groups.events import TopicImage
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import Now, Outcome


@contextmanager
def swapped(where: ModuleType | type, name: str, other: Any) -> Iterator[None]:
    """A module or a class with another function of this name."""
    real = getattr(where, name)
    setattr(where, name, other)
    try:
        yield
    finally:
        setattr(where, name, real)


class Swapped(GroupMachine):
    """The real one with one function of the coordinator replaced, by `swap(real)`."""

    module: ModuleType | type
    name: str

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for the real function."""
        raise NotImplementedError

    def _other(self) -> Any:
        return self.swap(getattr(self.module, self.name))

    def step(self, event: Any, now: Now) -> Outcome:
        """As the real one, but for the function."""
        with swapped(self.module, self.name, self._other()):
            return super().step(event, now)

    def on_loaded(self, now: Now, image: TopicImage) -> Outcome:
        """As the real one, but for the function."""
        with swapped(self.module, self.name, self._other()):
            return super().on_loaded(now, image)
