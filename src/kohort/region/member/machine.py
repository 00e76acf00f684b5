"""A member of a region as a state machine, `step(event) -> effects`, and its table.

Source: spec 5.6-5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages as told
from kohort.region.member import events as happens
from kohort.region.member import handlers
from kohort.region.member.events import Effect, Event, Ordered
from kohort.region.member.state import (
    CHECKPOINTED,
    DRAINED,
    PENDING,
    RECORDS_FETCHED,
    RESET_COMPLETE,
    SUBSCRIBED,
    Member,
)
from kohort.region.states import MemberState, Row

MemberRow = Row[Member, MemberState]
Rows = dict[MemberState, MemberRow]
_ALL = tuple(MemberState)
_READY = (SUBSCRIBED, RECORDS_FETCHED, RESET_COMPLETE)


def _row(why: str, do: Callable[..., None], *to: MemberState) -> MemberRow:
    return Row(why, do, to)


def _ignored(why: str) -> MemberRow:
    return Row(f"ignored, because {why}")


def _everywhere(row: MemberRow, **others: MemberRow) -> Rows:
    return {state: others.get(state.name, row) for state in _ALL}


_NOT_ASKED = "no cut is under way that it takes part in"
_READS_ON = "who does not stop for a cut reads: so it will stand when the cut is over"
_PENDING = "a reset comes"

TABLE: dict[type, Rows] = {
    happens.Connected: _everywhere(_row("it registers, with what it holds", handlers.connected)),
    told.Welcome: _everywhere(
        _row("it begins, or goes on", handlers.welcome),
        DRAINED=_row("drained in vain, it goes on; of a cut still under way it stays", handlers.welcome, *_READY),
        CHECKPOINTED=_row("the sequence is complete, or it contributed in vain: it goes on", handlers.welcome, *_READY),
    ),
    told.Members: _everywhere(_row("noted", handlers.members)),
    told.Refused: _everywhere(_row("it ends", handlers.end)),
    told.Stop: _everywhere(_row("it ends, with what to do", handlers.end)),
    happens.Assigned: _everywhere(
        _row("it asks where what is new begins", handlers.assigned),
        CR_RESET_PENDING=_row("noted; nothing is sought until it has gone back", handlers.assigned),
    ),
    happens.Revoked: {
        SUBSCRIBED: _row("let go: it has just subscribed, and nothing was fetched", handlers.revoked_unread),
        RECORDS_FETCHED: _row("queue cleared, polling stopped, all must go back; or held until a sequence is complete",
                              handlers.revoked, PENDING),
        DRAINED: _row("all must go back; or held until the sequence is complete", handlers.revoked, PENDING),
        CHECKPOINTED: _row("all must go back; or held until the sequence is complete", handlers.revoked, PENDING),
        PENDING: _row("let go", handlers.revoked_unread),
        RESET_COMPLETE: _row("let go: it has just gone back, and nothing was fetched", handlers.revoked_unread),
    },
    happens.Lost: {
        SUBSCRIBED: _row("let go: nothing was fetched", handlers.revoked_unread),
        RECORDS_FETCHED: _row("all must go back", handlers.lost, PENDING),
        DRAINED: _row("all must go back", handlers.lost, PENDING),
        CHECKPOINTED: _row("all must go back", handlers.lost, PENDING),
        PENDING: _row("let go", handlers.revoked_unread),
        RESET_COMPLETE: _row("let go: nothing was fetched", handlers.revoked_unread),
    },
    happens.Fetched: {
        SUBSCRIBED: _row("it reads", handlers.fetched, RECORDS_FETCHED),
        RECORDS_FETCHED: _ignored("it reads already"),
        DRAINED: _row(_READS_ON, handlers.fetched_in_cut),
        CHECKPOINTED: _row(_READS_ON, handlers.fetched_in_cut),
        PENDING: _ignored("what came before the reset is thrown away"),
        RESET_COMPLETE: _row("it reads at full speed", handlers.fetched, RECORDS_FETCHED),
    },
    told.Starts: _everywhere(
        _row("it reads what it was given from there", handlers.starts),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, after which it asks anew"),
    ),
    happens.LookedUp: _everywhere(
        _row("it tells where they begin", handlers.looked_up),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, and it asks anew"),
    ),
    told.Drain: _everywhere(
        _row("it stops polling, finishes what is in flight and commits", handlers.drain),
        DRAINED=_row("it is drained", handlers.drain_again),
        CHECKPOINTED=_row("what it contributed is void; it is drained", handlers.drain_again, DRAINED),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    happens.Quiet: _everywhere(
        _row("it is drained", handlers.quiet, DRAINED),
        DRAINED=_ignored("it is drained already"),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    happens.NotQuiet: _everywhere(
        _row("the cut fails", handlers.not_quiet),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    told.Checkpoint: _everywhere(
        _ignored(_NOT_ASKED),
        DRAINED=_row("what was submitted is staged, the operator saves its state", handlers.checkpoint),
        CHECKPOINTED=_row("it says again what it has contributed", handlers.contribute_again),
    ),
    happens.StateSaved: _everywhere(
        _ignored(_NOT_ASKED), DRAINED=_row("it contributes", handlers.state_saved, CHECKPOINTED)
    ),
    told.Identify: _everywhere(
        _ignored(_NOT_ASKED), CHECKPOINTED=_row("it tells its generation", handlers.identify)
    ),
    told.Completed: _everywhere(
        _row("noted", handlers.completed),
        DRAINED=_row("it was complete without it", handlers.completed, *_READY),
        CHECKPOINTED=_row("the next contribution begins where this one ended; it goes on", handlers.completed, *_READY),
    ),
    told.Publish: _everywhere(_row("it publishes", handlers.publish)),
    happens.PublishEnded: _everywhere(_row("it says so", handlers.publish_ended)),
    told.Reset: _everywhere(
        _row("everything is thrown away, the operator goes back", handlers.reset, PENDING),
        CR_RESET_PENDING=_row("everything is thrown away, the operator goes back", handlers.reset),
    ),
    happens.WentBack: _everywhere(
        _ignored("it went back for an earlier reset"),
        CR_RESET_PENDING=_row("it polls slowly, and asks where all begins", handlers.went_back, RESET_COMPLETE),
    ),
    happens.SinkWaits: _everywhere(_row("it says so: the cut waits with it", handlers.sink_waits)),
    happens.CheckpointWanted: _everywhere(
        _row("it asks for a cut", handlers.checkpoint_wanted), CR_RESET_PENDING=_ignored(_PENDING)
    ),
    happens.ResetWanted: _everywhere(_row("it asks for a reset", handlers.reset_wanted)),
    happens.Failed: _everywhere(_row("the region stops", handlers.failed)),
    happens.Closing: _everywhere(
        _row("it asks to leave; with the next sequence, or at once if it holds nothing", handlers.closing)
    ),
}  # fmt: skip
"""By what happens: what it does in each state."""


class UnexpectedError(Exception):
    """A handler led to a state that the table does not name: a fault of ours."""


class MemberMachine(Member):
    """One member. See the module's text."""

    def step(self, event: Event) -> list[Effect]:
        """What is to be done about an event, in order."""
        before = self.state
        if isinstance(event, Ordered):
            if event.order.term < self.term:
                return []  # of a control plane that was overtaken
            self.term = event.order.term
        what: Any = event.order if isinstance(event, Ordered) else event
        row = TABLE[type(what)][before]
        if row.do is not None:
            row.do(self, what)
        if self.state is not before and self.state not in row.to:
            raise UnexpectedError(f"{type(what).__name__} led from {before.name} to {self.state.name}")
        effects, self.effects = self.effects, []
        return effects
