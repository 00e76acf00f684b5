"""The transition tables of the control plane: what a region does with an event in each state, and where that may lead.

Each machine's table stands behind its class, and its entries name methods of that class. `RegionMachine.step` executes
them. docs/region-states.md is made from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kohort.region.states import RegionState, TransitionRule

FORMING, RUNNING, DRAINING = RegionState.FORMING, RegionState.RUNNING, RegionState.DRAINING
CHECKPOINTING, COMMITTING = RegionState.CHECKPOINTING, RegionState.COMMITTING
RESETTING, STOPPED = RegionState.RESETTING, RegionState.STOPPED
RESETS_OR_STOPS: Final = (RESETTING, STOPPED)

RegionTransition: TypeAlias = "TransitionRule[Any, RegionState]"
Table: TypeAlias = "Mapping[type, Mapping[RegionState, RegionTransition]]"
"""The transitions, by the class of the event or message, then by state."""

NO_MEMBERS: Final = "a stopped region has no members"
RESETS_ANYWAY: Final = "the region resets, and work until then is discarded"


def row(why: str, do: Callable[..., None], *to: RegionState) -> RegionTransition:
    """Return a transition table entry: the method that handles an event, and the states that it may lead to."""
    return TransitionRule(why, do, to)


def ignored(why: str) -> RegionTransition:
    """Return a transition table entry for an event that is ignored for this reason."""
    return TransitionRule(f"ignored, because {why}")
