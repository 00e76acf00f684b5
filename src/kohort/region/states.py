"""The states of a region and of a member, and the row type of their transition tables.

Source: spec 5.6; the other states are this project's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Machine = TypeVar("Machine")


class RegionState(Enum):
    """The states of a region in its control plane's state machine."""

    FORMING = "the control plane has just begun: members register, with their partitions"
    RUNNING = "members read, submit and stage"
    DRAINING = "a checkpoint: members finish the current table and commit"
    CHECKPOINTING = "all are drained: members save their state and contribute"
    COMMITTING = "manifest and offsets are being committed: nothing begins before the outcome is known"
    RESETTING = "members return to the last complete sequence, or to the initial state"
    STOPPED = "the region waits for an operator"


class RegionMemberState(Enum):
    """The states of a member in its own state machine."""

    SUBSCRIBED = "subscribed, nothing fetched yet"
    RECORDS_FETCHED = "the member reads and submits"
    DRAINED = "no table is in progress; queued records wait in the drain buffer"
    CHECKPOINTED = "the member has contributed, and waits for the sequence"
    CR_RESET_PENDING = "partitions were revoked or lost after records were fetched: the member waits for the reset"
    RESET_COMPLETE = "the member has reset, nothing fetched yet: it polls slowly"


@dataclass(frozen=True, slots=True)
class TransitionRule(Generic[Machine, State]):
    """An entry of a state machine's transition table, for one state and one event.

    Attributes:
        why: why the event is handled so, or ignored.
        do: the handler; None: the event is ignored.
        to: the states that may follow, besides the present one.
    """

    why: str
    do: Callable[..., None] | None = None
    to: tuple[State, ...] = ()
