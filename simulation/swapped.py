"""A coordinator with one of its own functions replaced during each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

from kohort.groups.effects import Now, Outcome
from kohort.groups.handlers import ProtocolHandlers
from kohort.groups.machine import GroupMachine
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


def rewired(protocol: ProtocolHandlers[Any], real: Any, other: Any) -> ProtocolHandlers[Any]:
    """Return a protocol's handlers with another function wherever they have the real one."""
    changed: dict[str, Any] = {}
    for field in fields(protocol):
        cell = getattr(protocol, field.name)
        if cell is real:
            changed[field.name] = other
        elif isinstance(cell, Mapping) and real in cell.values():
            changed[field.name] = {key: other if function is real else function for key, function in cell.items()}
    return replace(protocol, **changed)


def with_handler(table: Table, real: Any, other: Any) -> Table:
    """Return a group's table with another method wherever it has the real one."""
    return {
        trigger: {state: replace(entry, do=other) if entry.do is real else entry for state, entry in reactions.items()}
        for trigger, reactions in table.items()
    }


class Swapped(GroupMachine):
    """A coordinator with one function replaced, by `swap(real)`."""

    module: ModuleType | type
    name: str

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of the real function."""
        raise NotImplementedError

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """Replace the function in its module, and in the handlers of the protocols that have it."""
        real, protocols = getattr(self.module, self.name), self.context.protocols
        other = self.swap(real)
        self.context.protocols = {kind: rewired(row, real, other) for kind, row in protocols.items()}
        try:
            with ExitStack() as stack:
                for kind in protocols:
                    stack.enter_context(swapped(kind, "table", with_handler(kind.table, real, other)))
                stack.enter_context(swapped(self.module, self.name, other))
                yield
        finally:
            self.context.protocols = protocols

    def step(self, event: Any, now: Now) -> Outcome:
        """Step with the function replaced."""
        with self._swapped():
            return super().step(event, now)

    def on_loaded(self, *args: Any) -> Outcome:
        """Build the soft state with the function replaced."""
        with self._swapped():
            return super().on_loaded(*args)
