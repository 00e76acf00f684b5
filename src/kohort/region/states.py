"""The states of a region and of a member, and what a table of them is made of.

Source: spec 5.6; the states between are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Machine = TypeVar("Machine")


class RegionState(Enum):
    """Where a region is, as its control plane knows it."""

    FORMING = "the control plane has just begun: members register, with what they hold"
    RUNNING = "members read, submit and stage"
    DRAINING = "a cut: members finish what is in flight and commit"
    CHECKPOINTING = "all are drained: members save their state and contribute"
    COMMITTING = "manifest and offsets are being committed: nothing begins before the outcome is known"
    RESETTING = "members go back to the last complete sequence, or to the initial state"
    STOPPED = "nothing goes on without a person"


class MemberState(Enum):
    """Where a member is, as it knows itself."""

    SUBSCRIBED = "subscribed, and nothing fetched yet"
    RECORDS_FETCHED = "it reads and submits"
    DRAINED = "nothing is in flight; what was queued waits in the drain buffer"
    CHECKPOINTED = "it has contributed, and waits for the sequence"
    CR_RESET_PENDING = "partitions were revoked or lost after records were fetched: it waits for the reset"
    RESET_COMPLETE = "it has gone back, and nothing is fetched yet: it polls slowly"


@dataclass(frozen=True, slots=True)
class Row(Generic[Machine, State]):
    """What an event does in a state: a handler and the states that it may lead to, or why it is ignored.

    Attributes:
        do: None: ignored.
        to: other states than the present one that it may lead to.
    """

    why: str
    do: Callable[..., None] | None = None
    to: tuple[State, ...] = ()
