"""The transition tables of groups: what a group does with an event in each of its states, and where that may lead.

Each protocol's table stands at the head of its group's class. `Context.handle_event` executes it: it finds the entry by
event and state, and calls the entry's method. It raises if the group is then in a state that the entry does not name.
docs/states.md is made from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct

from kohort.groups.effects import GroupState
from kohort.groups.timers import Deadline


class Transition(Struct, frozen=True):
    """An entry of a transition table: what a group does with an event in one state.

    Attributes:
        why: what happens, and when it leads to another state.
        do: the group's method; None: the event is ignored.
        to: the possible next states beside the present one; the name of a protocol stands for a converted group.
    """

    why: str
    do: Callable[..., Any] | None = None
    to: tuple[Enum | str, ...] = ()


Trigger: TypeAlias = "type[Any] | Deadline"
"""The class of an event, or the kind of a timer that has expired."""
Transitions: TypeAlias = "Mapping[GroupState, Transition]"
Table: TypeAlias = "Mapping[Trigger, Transitions]"


class UnexpectedTransitionError(Exception):
    """A handler that led to a state which the table does not name: a bug."""


def reaction(why: str, do: Callable[..., Any], *to: Enum | str) -> Transition:
    """Return a table entry: the method that handles the event, and the states that it may lead to."""
    return Transition(why, do, to)


def ignored(why: str) -> Transition:
    """Return a table entry for an event that is ignored in a state; `why` goes into docs/states.md."""
    return Transition(f"ignored: {why}")
