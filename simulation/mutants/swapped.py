"""A coordinator with one of its own functions replaced during each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from kohort.groups.effects import Effects, Now
from kohort.groups.machine import PROTOCOLS, GroupMachine
from kohort.groups.table import Table


@contextmanager
def swapped(where: ModuleType | type, name: str, other: Any) -> Iterator[None]:
    """Replace a function of a module or a class."""
    real = getattr(where, name)
    setattr(where, name, other)
    try:
        yield
    finally:
        setattr(where, name, real)


def with_handler(table: Table, real: Any, other: Any) -> Table:
    """Return a group's handler table with another method in place of the real one."""
    return {
        trigger: {state: replace(entry, do=other) if entry.do is real else entry for state, entry in reactions.items()}
        for trigger, reactions in table.items()
    }


class Swapped(GroupMachine):
    """A coordinator with one function replaced by `swap(real)`."""

    module: ModuleType | type
    name: str

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of the real function."""
        raise NotImplementedError

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """Replace the function in its module or class, and in the handler tables that contain it."""
        real = getattr(self.module, self.name)
        other = self.swap(real)
        with ExitStack() as stack:
            for kind in PROTOCOLS:
                stack.enter_context(swapped(kind, "table", with_handler(kind.table, real, other)))
            stack.enter_context(swapped(self.module, self.name, other))
            yield

    def step(self, event: Any, now: Now) -> Effects:
        """Step with the function replaced."""
        with self._swapped():
            return super().step(event, now)

    def on_loaded(self, *args: Any) -> Effects:
        """Build the soft state with the function replaced."""
        with self._swapped():
            return super().on_loaded(*args)
