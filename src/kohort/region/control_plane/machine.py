"""The control plane of a region as a state machine, `step(event, now_ms) -> effects`, and its table.

Every event has an entry in every state. What an entry says of the next state is held to: another one is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages as told
from kohort.region.control_plane import checkpoints, membership, recovery, starts
from kohort.region.control_plane import events as happens
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


def _look_at_clock(plane: Plane, event: happens.Tick) -> None:
    del event
    membership.look_for_missing(plane)
    membership.look_for_lost(plane)
    membership.look_for_siblings(plane)
    checkpoints.look_at_time(plane)
    checkpoints.look_for_late(plane)
    recovery.look_for_late(plane)


def _saved(plane: Plane, event: happens.Saved) -> None:
    plane.saved(event.token)


_NONE_THERE = "nobody is registered in a region that has stopped"
_EARLIER_CUT = "it answers an earlier cut"
_EARLIER_RESET = "it answers an earlier reset"
_GOES_BACK = "all go back, and what they do until then is void"
_UNDER_WAY = "the next cut is under way"
_NO_COMMIT = "no commit is out"
_BACK_OR_STOPPED = (RESETTING, STOPPED)

TABLE: dict[type, Rows] = {
    told.Register: {
        FORMING: _row("one less is expected; the last one has the region run, or go back", membership.register,
                      RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("it is told its epoch; of another's name: that one is fenced", membership.register,
                      DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("it takes part in the next cut", membership.register, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("it takes part in the next cut", membership.register, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("it takes part in the next cut; of another's name: that one is fenced", membership.register,
                         *_BACK_OR_STOPPED),
        RESETTING: _row("it is told the epoch that all go back to", membership.register, RUNNING, STOPPED),
        STOPPED: _row("it is told why, and its connection ends", recovery.refuse),
    },
    told.Leave: {
        FORMING: _row("it goes when all are known", membership.leave),
        RUNNING: _row("a cut begins, after which it goes; at once if it holds nothing", membership.leave, DRAINING),
        DRAINING: _row("it goes after this cut; at once if it holds nothing", membership.leave, RUNNING),
        CHECKPOINTING: _row(
            "it goes after this cut; at once if it holds nothing", membership.leave, RUNNING, DRAINING
        ),
        COMMITTING: _row("it goes after the next cut; at once if it holds and gave nothing", membership.leave),
        RESETTING: _row("it goes at once, for it holds nothing; or when it has published", membership.leave,
                        RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Drained: {
        FORMING: _ignored("the cut that it was drained for is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _row("the last one has all save their state", checkpoints.drained, CHECKPOINTING),
        CHECKPOINTING: _ignored("all are drained"),
        COMMITTING: _ignored("all are drained"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.DrainFailed: {
        FORMING: _ignored("the cut that failed is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _row("all go back", checkpoints.drain_failed, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("all go back", checkpoints.drain_failed, *_BACK_OR_STOPPED),
        COMMITTING: _ignored("it has contributed"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Contributed: {
        FORMING: _ignored("the cut that it contributes to is over"),
        RUNNING: _ignored(_EARLIER_CUT),
        DRAINING: _ignored("the cut has begun again"),
        CHECKPOINTING: _row("the last one is followed by the commit; a wrong one has all go back",
                            checkpoints.contributed, COMMITTING, *_BACK_OR_STOPPED),
        COMMITTING: _ignored("all have contributed"),
        RESETTING: _ignored(_GOES_BACK),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Holding: {
        FORMING: _row("a cut begins as soon as the region runs", checkpoints.asked),
        RUNNING: _row("a cut begins, after which it lets go", checkpoints.asked, DRAINING),
        DRAINING: _row("another cut follows, after which it lets go", checkpoints.asked),
        CHECKPOINTING: _row("another cut follows, after which it lets go", checkpoints.asked),
        COMMITTING: _row("another cut follows, after which it lets go", checkpoints.asked),
        RESETTING: _ignored("who goes back lets go at once"),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Moved: {
        FORMING: _row("noted", membership.moved),
        RUNNING: _row("noted; what it has let go can be given to others", membership.moved),
        DRAINING: _row("noted", membership.moved),
        CHECKPOINTING: _row("noted; a contribution of what it has let go is void: the cut begins again",
                            membership.moved, DRAINING),
        COMMITTING: _row("who was refused for its generation is committed under this one, or the cut begins again",
                         membership.moved, DRAINING),
        RESETTING: _row("noted", membership.moved),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.AskStarts: {
        FORMING: _row("answered when the region runs", starts.ask),
        RUNNING: _row("answered for what nobody else has", starts.ask),
        DRAINING: _row("answered after the cut", starts.ask),
        CHECKPOINTING: _row("answered after the cut", starts.ask),
        COMMITTING: _row("answered when the outcome is known", starts.ask),
        RESETTING: _row("answered when all are back", starts.ask),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Looked: {
        FORMING: _row("saved before it is handed out", starts.looked),
        RUNNING: _row("saved before it is handed out", starts.looked),
        DRAINING: _row("saved; handed out after the cut", starts.looked),
        CHECKPOINTING: _row("saved; handed out after the cut", starts.looked),
        COMMITTING: _row("saved; handed out when the outcome is known", starts.looked),
        RESETTING: _ignored("it asks anew when all are back"),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.AskCheckpoint: {
        FORMING: _row("a cut begins as soon as the region runs", checkpoints.asked),
        RUNNING: _row("a cut begins", checkpoints.asked, DRAINING),
        DRAINING: _ignored(_UNDER_WAY),
        CHECKPOINTING: _ignored(_UNDER_WAY),
        COMMITTING: _ignored(_UNDER_WAY),
        RESETTING: _ignored("who goes back counts anew"),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.AskReset: {
        FORMING: _row("it begins when all are known", recovery.asked),
        RUNNING: _row("all go back", recovery.asked, *_BACK_OR_STOPPED),
        DRAINING: _row("the cut is given up, all go back", recovery.asked, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("the cut is given up, all go back", recovery.asked, *_BACK_OR_STOPPED),
        COMMITTING: _row("it begins when the outcome is known; at once while a generation is asked for", recovery.asked,
                         *_BACK_OR_STOPPED),
        RESETTING: _row("the next attempt begins", recovery.asked, STOPPED),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.CantGoOn: {
        state: _row("the region stops", recovery.cant_go_on, STOPPED) for state in RegionState if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    told.WasReset: {
        FORMING: _ignored(_EARLIER_RESET),
        RUNNING: _row("it went back alone, and takes part again", recovery.was_reset, DRAINING),
        DRAINING: _row("it came when the cut had begun, and went back alone", recovery.was_reset),
        CHECKPOINTING: _row("it came when the cut had begun, and went back alone", recovery.was_reset),
        COMMITTING: _row("it came when the cut had begun, and went back alone", recovery.was_reset),
        RESETTING: _row("the last one has the region run", recovery.was_reset, RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    told.Published: {
        state: _row("saved, so that whoever takes over knows it", checkpoints.published) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    told.PublishFailed: {
        state: _row("told to people; the next commit waits", checkpoints.publish_failed) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    told.Waiting: {
        state: _row("noted: its sink is away, and the cut waits for it", checkpoints.waiting) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: _ignored(_NONE_THERE)},
    happens.Disconnected: {
        FORMING: _row("it may come back", membership.disconnected),
        RUNNING: _row("it may come back; no cut begins until then", membership.disconnected),
        DRAINING: _row("it may come back", membership.disconnected),
        CHECKPOINTING: _row("it may come back", membership.disconnected),
        COMMITTING: _row("it may come back", membership.disconnected),
        RESETTING: _row("it may come back", membership.disconnected),
        STOPPED: _ignored(_NONE_THERE),
    },
    happens.ProcessEnded: {
        FORMING: _row("who was in it is dead, and not waited for: all go back when the others are there",
                      membership.process_ended, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("who was in it is dead: all go back", membership.process_ended, DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("who was in it is dead: all go back", membership.process_ended, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("who was in it is dead: all go back", membership.process_ended,
                            RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("who was in it is dead: all go back when the outcome is known; at once while a generation is "
                         "asked for", membership.process_ended, *_BACK_OR_STOPPED),
        RESETTING: _row("who was in it is not waited for", membership.process_ended, RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    happens.Saved: {
        FORMING: _row("noted", _saved),
        RUNNING: _row("what waited for it goes on", _saved, DRAINING),
        DRAINING: _row("what waited for it goes on", _saved),
        CHECKPOINTING: _row("what waited for it goes on, a commit too", _saved, COMMITTING),
        COMMITTING: _row("what waited for it goes on", _saved),
        RESETTING: _row("the members hear of the epoch", _saved, RUNNING, DRAINING),
        STOPPED: _row("noted; its members are told to end, and a person who has it go on waits for that", _saved,
                      FORMING),
    },
    happens.CommitEnded: {
        FORMING: _ignored(_NO_COMMIT),
        RUNNING: _ignored(_NO_COMMIT),
        DRAINING: _ignored(_NO_COMMIT),
        CHECKPOINTING: _ignored(_NO_COMMIT),
        COMMITTING: _row("complete; or refused: tried under the generation that holds now, cut again, or all go back",
                         checkpoints.commit_ended, RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RESETTING: _ignored(_NO_COMMIT),
        STOPPED: _row("what stands is gone on from, when a person has it go on",
                      checkpoints.ended_when_stopped, FORMING),
    },
    happens.GroupSeen: {
        state: _row("a group with others than members of the region stops it", checkpoints.group_seen, STOPPED)
        for state in RegionState if state not in (STOPPED, COMMITTING)
    } | {COMMITTING: _ignored("the next sequence asks again"), STOPPED: _ignored(_NONE_THERE)},
    happens.StopMember: {
        FORMING: _row("it goes when all are known", membership.stop_member),
        RUNNING: _row("a cut begins, after which it goes", membership.stop_member, DRAINING),
        DRAINING: _row("it goes after this cut; at once if it holds nothing", membership.stop_member, RUNNING),
        CHECKPOINTING: _row(
            "it goes after this cut; at once if it holds nothing", membership.stop_member, RUNNING, DRAINING
        ),
        COMMITTING: _row("it goes after the next cut; at once if it holds and gave nothing",
                         membership.stop_member),
        RESETTING: _row("it goes at once, for it holds nothing; or when it has published", membership.stop_member,
                        RUNNING, DRAINING),
        STOPPED: _ignored(_NONE_THERE),
    },
    happens.Resumed: {
        state: _ignored("the region has not stopped") for state in RegionState if state is not STOPPED
    } | {STOPPED: _row("members may register again, as soon as what was being written is in the topic",
                          recovery.resume, FORMING)},
    happens.Tick: {
        FORMING: _row("who has not registered in time is dead: all go back", _look_at_clock,
                      RUNNING, DRAINING, *_BACK_OR_STOPPED),
        RUNNING: _row("a cut is due; who did not come back in time is dead: all go back", _look_at_clock,
                      DRAINING, *_BACK_OR_STOPPED),
        DRAINING: _row("who is late or dead has all go back", _look_at_clock, RUNNING, *_BACK_OR_STOPPED),
        CHECKPOINTING: _row("who is late or dead has all go back", _look_at_clock,
                            RUNNING, DRAINING, *_BACK_OR_STOPPED),
        COMMITTING: _row("who is dead has all go back when the outcome is known; at once while a generation is asked "
                         "for, or who does not tell its own", _look_at_clock, *_BACK_OR_STOPPED),
        RESETTING: _row("who is late has all begin again; who is dead is not waited for", _look_at_clock,
                        RUNNING, DRAINING, STOPPED),
        STOPPED: _ignored("nothing is due"),
    },
}  # fmt: skip
"""By what happens: what it does in each state."""


class UnexpectedError(Exception):
    """A handler led to a state that the table does not name: a fault of ours."""


class RegionMachine:
    """The control plane of one region. See the module's text."""

    def __init__(self, known: Known, config: RegionConfig, now_ms: int) -> None:
        self.plane = Plane(known, config, now_ms)

    @property
    def state(self) -> RegionState:
        """Where the region is."""
        return self.plane.state

    def due_ms(self) -> int | None:
        """When a Tick is wanted, None: not at all."""
        return min(self.plane.due.values(), default=None)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done about an event, in order.

        Raises:
            UnexpectedError: a handler led elsewhere than its table says.
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
