"""The state machine of a region's control plane, `step(event, now_ms) -> effects`, and its transition table.

Every event has an entry in every state. The next states in an entry are enforced: any other is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages
from kohort.region.control_plane import checkpoints, events, membership, recovery, starts
from kohort.region.control_plane.events import Effect, Event, Heard
from kohort.region.control_plane.state import Known, Plane, RegionConfig
from kohort.region.states import RegionState, Row

FORMING, RUNNING, DRAINING = RegionState.FORMING, RegionState.RUNNING, RegionState.DRAINING
CHECKPOINTING, COMMITTING = RegionState.CHECKPOINTING, RegionState.COMMITTING
RESETTING, STOPPED = RegionState.RESETTING, RegionState.STOPPED

PlaneRow = Row[Plane, RegionState]
Rows = dict[RegionState, PlaneRow]


def _row(why: str, do: Callable[..., None], *to: RegionState) -> PlaneRow:
    return Row(why, do, to)


def _ignored(why: str) -> PlaneRow:
    return Row(f"ignored, because {why}")


def _look_at_clock(plane: Plane, event: events.ClockTick) -> None:
    del event
    membership.look_for_missing(plane)
    membership.look_for_lost(plane)
    membership.look_for_siblings(plane)
    checkpoints.look_at_time(plane)
    checkpoints.look_for_late(plane)
    recovery.look_for_late(plane)


def _saved(plane: Plane, event: events.Saved) -> None:
    plane.saved(event.token)


_NONE_THERE = "a stopped region has no members"
_EARLIER_CUT = "it answers an earlier checkpoint"
_EARLIER_RESET = "it answers an earlier reset"
_GOES_BACK = "the region resets, and work until then is discarded"
_UNDER_WAY = "the next checkpoint is under way"
_NO_COMMIT = "no commit is pending"
_BACK_OR_STOPPED = (RESETTING, STOPPED)

TABLE: dict[type, Rows] = {
    messages.Register: {
        FORMING: _row("one member fewer is expected; after the last the region runs, or resets", membership.register,
                      RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("the member gets its epoch; an earlier member of its name is fenced", membership.register,
                      DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("the member takes part in the next checkpoint", membership.register, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("the member takes part in the next checkpoint",
                            membership.register, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("the member takes part in the next checkpoint; an earlier member of its name is fenced",
                         membership.register,
                         *_BACK_OR_STOPPED),
        RESETTING: _row("the member gets the epoch of the reset", membership.register, RUNNING, STOPPED),
        STOPPED: _row("the member gets the cause, and its connection ends", recovery.refuse),
    },
    messages.Leave: {
        FORMING: _row("the member leaves when all members have registered", membership.leave),
        RUNNING: _row("a checkpoint begins, then the member leaves; at once if it holds nothing",
                      membership.leave, DRAINING),
        DRAINING: _row("the member leaves after this checkpoint; at once if it holds nothing",
                       membership.leave, RUNNING),
        CHECKPOINTING: _row(
            "the member leaves after this checkpoint; at once if it holds nothing", membership.leave, RUNNING, DRAINING
        ),
        COMMITTING: _row("the member leaves after the next checkpoint; at once if it holds and gave nothing",
                         membership.leave),
        RESETTING: _row("the member leaves at once, or when it has published", membership.leave,
                        RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Drained: {
        FORMING: _ignored("the checkpoint that it was drained for is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _row("after the last one all members save their state", checkpoints.drained, CHECKPOINTING),
        CHECKPOINTING: _ignored("all are drained"),
        COMMITTING: _ignored("all are drained"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.DrainFailed: {
        FORMING: _ignored("the checkpoint that failed is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _row("the region resets", checkpoints.drain_failed, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("the region resets", checkpoints.drain_failed, *_BACK_OR_STOPPED),
        COMMITTING: _ignored("it has contributed"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Contributed: {
        FORMING: _ignored("the checkpoint that it contributes to is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _ignored("the checkpoint has restarted"),
        CHECKPOINTING: _row("the commit follows the last one; after a wrong one the region resets",
                            checkpoints.contributed, COMMITTING, *_BACK_OR_STOPPED),
        COMMITTING: _ignored("all have contributed"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Holding: {
        FORMING: _row("a checkpoint begins as soon as the region runs", checkpoints.asked),
        RUNNING: _row("a checkpoint begins, then the member releases the partitions", checkpoints.asked, DRAINING),
        DRAINING: _row("another checkpoint follows, then the member releases the partitions", checkpoints.asked),
        CHECKPOINTING: _row("another checkpoint follows, then the member releases the partitions", checkpoints.asked),
        COMMITTING: _row("another checkpoint follows, then the member releases the partitions", checkpoints.asked),
        RESETTING: _ignored("a member that resets releases partitions at once"),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Moved: {
        FORMING: _row("recorded", membership.moved),
        RUNNING: _row("recorded; released partitions can be given to others", membership.moved),
        DRAINING: _row("recorded", membership.moved),
        CHECKPOINTING: _row("recorded; a contribution of released partitions is invalid: the checkpoint restarts",
                            membership.moved, DRAINING),
        COMMITTING: _row("a refused member is committed under its new generation, or the checkpoint restarts",
                         membership.moved, DRAINING),
        RESETTING: _row("recorded", membership.moved),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.AskStarts: {
        FORMING: _row("answered when the region runs", starts.ask),
        RUNNING: _row("answered for partitions that no other member holds", starts.ask),
        DRAINING: _row("answered after the checkpoint", starts.ask),
        CHECKPOINTING: _row("answered after the checkpoint", starts.ask),
        COMMITTING: _row("answered when the outcome is known", starts.ask),
        RESETTING: _row("answered when all members have reset", starts.ask),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Looked: {
        FORMING: _row("saved before it is handed out", starts.looked),
        RUNNING: _row("saved before it is handed out", starts.looked),
        DRAINING: _row("saved; handed out after the checkpoint", starts.looked),
        CHECKPOINTING: _row("saved; handed out after the checkpoint", starts.looked),
        COMMITTING: _row("saved; handed out when the outcome is known", starts.looked),
        RESETTING: _ignored("it asks anew when all members have reset"),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.AskCheckpoint: {
        FORMING: _row("a checkpoint begins as soon as the region runs", checkpoints.asked),
        RUNNING: _row("a checkpoint begins", checkpoints.asked, DRAINING),
        DRAINING: _ignored(_UNDER_WAY),
        CHECKPOINTING: _ignored(_UNDER_WAY),
        COMMITTING: _ignored(_UNDER_WAY),
        RESETTING: _ignored("a member that resets counts anew"),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.AskReset: {
        FORMING: _row("the reset begins when all members have registered", recovery.asked),
        RUNNING: _row("the region resets", recovery.asked, *_BACK_OR_STOPPED),
        DRAINING: _row("the checkpoint is abandoned, the region resets", recovery.asked, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("the checkpoint is abandoned, the region resets", recovery.asked, *_BACK_OR_STOPPED),
        COMMITTING: _row("the reset begins when the outcome is known; at once while a generation is requested",
                         recovery.asked,
                         *_BACK_OR_STOPPED),
        RESETTING: _row("the next attempt begins", recovery.asked, STOPPED),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.CantGoOn: {
        state: _row("the region stops", recovery.cant_go_on, STOPPED) for state in RegionState if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    messages.WasReset: {
        FORMING: _ignored(_EARLIER_RESET),
        RUNNING: _row("the member has reset alone, and takes part again", recovery.was_reset, DRAINING),
        DRAINING: _row("the member joined after the checkpoint began, and has reset alone", recovery.was_reset),
        CHECKPOINTING: _row("the member joined after the checkpoint began, and has reset alone", recovery.was_reset),
        COMMITTING: _row("the member joined after the checkpoint began, and has reset alone", recovery.was_reset),
        RESETTING: _row("after the last one the region runs", recovery.was_reset, RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    messages.Published: {
        state: _row("saved, so that the next control plane knows it", checkpoints.published) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    messages.PublishFailed: {
        state: _row("logged; the next commit waits", checkpoints.publish_failed) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    messages.Waiting: {
        state: _row("recorded: the sink is unavailable, and the checkpoint waits for it", checkpoints.waiting)
        for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    events.Disconnected: {
        FORMING: _row("the member may reconnect", membership.disconnected),
        RUNNING: _row("the member may reconnect; no checkpoint begins until then", membership.disconnected),
        DRAINING: _row("the member may reconnect", membership.disconnected),
        CHECKPOINTING: _row("the member may reconnect", membership.disconnected),
        COMMITTING: _row("the member may reconnect", membership.disconnected),
        RESETTING: _row("the member may reconnect", membership.disconnected),
        STOPPED: _ignored(_NONE_THERE),
    },
    events.ProcessEnded: {
        FORMING: _row("its members are dead, and not waited for: the region resets when the others are there",
                      membership.process_ended, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("its members are dead: the region resets", membership.process_ended, DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("its members are dead: the region resets", membership.process_ended, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("its members are dead: the region resets", membership.process_ended,
                            RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("its members are dead: the region resets when the outcome is known; at once while a "
                         "generation is requested", membership.process_ended, *_BACK_OR_STOPPED),
        RESETTING: _row("its members are not waited for", membership.process_ended, RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    events.Saved: {
        FORMING: _row("recorded", _saved),
        RUNNING: _row("what waited for it continues", _saved, DRAINING),
        DRAINING: _row("what waited for it continues", _saved),
        CHECKPOINTING: _row("what waited for it continues, a commit too", _saved, COMMITTING),
        COMMITTING: _row("what waited for it continues", _saved),
        RESETTING: _row("the members get the epoch", _saved, RUNNING, DRAINING),
        STOPPED: _row("recorded; its members are stopped, and an operator's resume waits for that", _saved,
                      FORMING),
    },
    events.CommitEnded: {
        FORMING: _ignored(_NO_COMMIT),
        RUNNING: _ignored(_NO_COMMIT),
        DRAINING: _ignored(_NO_COMMIT),
        CHECKPOINTING: _ignored(_NO_COMMIT),
        COMMITTING: _row("complete; or refused: retried under the current generation, a new checkpoint, or a reset",
                         checkpoints.commit_ended, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RESETTING: _ignored(_NO_COMMIT),
        STOPPED: _row("the region continues from what was committed, when an operator resumes it",
                      checkpoints.ended_when_stopped, FORMING),
    },
    events.GroupSeen: {
        state: _row("the region stops if clients outside it read in a group", checkpoints.group_seen, STOPPED)
        for state in RegionState if state not in (STOPPED, COMMITTING)
    } | {COMMITTING: _ignored("the next sequence checks again"), STOPPED: _ignored(_NONE_THERE)},
    events.MemberStopRequested: {
        FORMING: _row("the member leaves when all members have registered", membership.stop_member),
        RUNNING: _row("a checkpoint begins, then the member leaves", membership.stop_member, DRAINING),
        DRAINING: _row("the member leaves after this checkpoint; at once if it holds nothing",
                       membership.stop_member, RUNNING),
        CHECKPOINTING: _row(
            "the member leaves after this checkpoint; at once if it holds nothing",
            membership.stop_member, RUNNING, DRAINING
        ),
        COMMITTING: _row("the member leaves after the next checkpoint; at once if it holds and gave nothing",
                         membership.stop_member),
        RESETTING: _row("the member leaves at once, or when it has published", membership.stop_member,
                        RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    events.Resumed: {
        state: _ignored("the region has not stopped") for state in RegionState if state is not STOPPED
    } | {STOPPED: _row("members may register again, as soon as pending writes are in the topic",
                          recovery.resume, FORMING)},
    events.ClockTick: {
        FORMING: _row("members that have not registered in time are dead: the region resets", _look_at_clock,
                      RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("a checkpoint is due; members that did not reconnect in time are dead: the region resets",
                      _look_at_clock,
                      DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("the region resets if a member is late or dead", _look_at_clock, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("the region resets if a member is late or dead", _look_at_clock,
                            RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("after a death the region resets when the outcome is known; at once while a generation is "
                         "requested, or not reported", _look_at_clock, *_BACK_OR_STOPPED),
        RESETTING: _row("the reset restarts if a member is late; a dead member is not waited for", _look_at_clock,
                        RUNNING, DRAINING, STOPPED),
        STOPPED: _ignored("nothing is due"),
    },
}  # fmt: skip
"""Transition table: event type, then state."""


class UnexpectedError(Exception):
    """The error of a handler that led to a state which the table does not name: a bug."""


class RegionMachine:
    """The state machine of one region's control plane."""

    def __init__(self, known: Known, config: RegionConfig, now_ms: int) -> None:
        self.plane = Plane(known, config, now_ms)

    @property
    def state(self) -> RegionState:
        """The state of the region."""
        return self.plane.state

    def due_ms(self) -> int | None:
        """Return when the next Tick is due; None: no Tick is needed."""
        return min(self.plane.due.values(), default=None)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event and return its effects, in order.

        Raises:
            UnexpectedError: a handler led to a state which the table does not allow.
        """
        plane = self.plane
        plane.now_ms, before = now_ms, plane.state
        what: Any = event.report if isinstance(event, Heard) else event
        row = TABLE[type(what)][before]
        if row.do is not None:
            row.do(plane, event)
        if plane.state is not before and plane.state not in row.to:
            raise UnexpectedError(f"{type(what).__name__} led from {before.name} to {plane.state.name}")
        effects, plane.effects = plane.effects, []
        return effects
