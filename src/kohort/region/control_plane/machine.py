"""The state machine of a region's control plane, `step(event, now_ms) -> effects`.

Its parts are small machines over one `ControlPlaneState`: `RegionMembers`, `Checkpoints`, `Recovery` and
`StartOffsets`. Each handles its own events, by the table that stands behind its class. A part asks another by a request
(`events.Request`), and `RegionMachine` routes it. Every event has an entry in every state. The next states in an entry
are enforced: any other is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from kohort.region.control_plane import checkpoints, membership, recovery, starts
from kohort.region.control_plane.checkpoints import Checkpoints
from kohort.region.control_plane.events import (
    CheckpointFailed,
    CheckpointMayBegin,
    ClockTick,
    DeferredResetMayBegin,
    Effect,
    Event,
    FactsSaved,
    GroupGenerationReported,
    LeaverWantsCheckpoint,
    MembersChanged,
    MessageReceived,
    ParticipantLost,
    PartitionsReleased,
    PendingCommitSettled,
    RegionRunning,
    Request,
    ResetRequest,
    StopRequest,
)
from kohort.region.control_plane.membership import RegionMembers
from kohort.region.control_plane.recovery import Recovery
from kohort.region.control_plane.starts import StartOffsets
from kohort.region.control_plane.state import ControlPlaneState, RegionConfig, RegionFacts
from kohort.region.control_plane.table import (
    CHECKPOINTING,
    COMMITTING,
    DRAINING,
    FORMING,
    RESETS_OR_STOPS,
    RESETTING,
    RUNNING,
    STOPPED,
    RegionTransition,
    ignored,
    row,
)
from kohort.region.states import RegionState


class UnexpectedStateError(Exception):
    """The error of a handler that led to a state which the table does not name: a bug."""


class RegionMachine:
    """The state machine of one region's control plane: events go in, effects come out, and no I/O is done."""

    def __init__(self, known: RegionFacts, config: RegionConfig, now_ms: int) -> None:
        self.plane = ControlPlaneState(known, config, now_ms)
        self.plane.request = self._answer
        self.starts = StartOffsets(self.plane)
        self.membership = RegionMembers(self.plane, self.starts)
        self.checkpoints = Checkpoints(self.plane, self.starts)
        self.recovery = Recovery(self.plane)
        self._handlers: dict[type, object] = {
            **dict.fromkeys(membership.TABLE, self.membership),
            **dict.fromkeys(checkpoints.TABLE, self.checkpoints),
            **dict.fromkeys(recovery.TABLE, self.recovery),
            **dict.fromkeys(starts.TABLE, self.starts),
        }

    @property
    def state(self) -> RegionState:
        """The state of the region."""
        return self.plane.state

    def next_deadline_ms(self) -> int | None:
        """Return the time of the earliest deadline, when a `ClockTick` is needed; None: there is no deadline."""
        return min(self.plane.due.values(), default=None)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event and return its effects, in order.

        Raises:
            UnexpectedStateError: a handler led to a state which the table does not allow.
        """
        plane = self.plane
        plane.now_ms, before = now_ms, plane.state
        what: Any = event.report if isinstance(event, MessageReceived) else event
        reaction = TABLE[type(what)][before]
        if reaction.do is not None:
            reaction.do(self._handlers.get(type(what), self), event)
        if plane.state is not before and plane.state not in reaction.to:
            raise UnexpectedStateError(f"{type(what).__name__} led from {before.name} to {plane.state.name}")
        effects, plane.effects = plane.effects, []
        return effects

    def _answer(self, request: Request) -> None:
        """Pass a request of one part of the control plane on to the parts that handle it."""
        match request:
            case ResetRequest():
                self.recovery.reset_region(request)
            case DeferredResetMayBegin():
                self.recovery.begin_deferred_reset()
            case CheckpointFailed():
                self.recovery.reset_after_failure(request.why, request.cause)
            case StopRequest():
                self.recovery.stop_region(request)
            case PendingCommitSettled():
                self.recovery.resume_if_settled()
            case RegionRunning():
                self.checkpoints.schedule_next_checkpoint()
                self.starts.hand_out_partitions()
                self.checkpoints.want_if_member_leaves()
            case MembersChanged():
                if self.state is RESETTING:
                    self.recovery.end_reset_if_complete()
                self.starts.hand_out_partitions()
                self.checkpoints.begin_checkpoint_if_ready()
            case LeaverWantsCheckpoint():
                self.checkpoints.request_checkpoint()
            case CheckpointMayBegin():
                self.checkpoints.begin_checkpoint_if_ready()
            case ParticipantLost():
                self.checkpoints.restart_attempt(request.cause)
            case PartitionsReleased():
                self.checkpoints.invalidate_contribution(request.member, request.parts)
            case GroupGenerationReported():
                self.checkpoints.commit_with_new_generation(self.plane.members[request.member])
            case _:
                assert_never(request)

    def on_facts_saved(self, event: FactsSaved) -> None:
        """Continue what waited for records to be committed to the region's metadata topic."""
        self.plane.on_facts_saved(event.token)

    def check_deadlines(self, event: ClockTick) -> None:
        """Handle the deadlines that have passed, of members, checkpoints and resets."""
        del event
        self.membership.remove_unregistered_members()
        self.membership.remove_disconnected_members()
        self.membership.remove_incomplete_queries()
        self.checkpoints.request_checkpoint_if_due()
        self.checkpoints.reset_if_overdue()
        self.recovery.restart_reset_if_overdue()


TABLE: dict[type, Mapping[RegionState, RegionTransition]] = {
    **membership.TABLE,
    **checkpoints.TABLE,
    **recovery.TABLE,
    **starts.TABLE,
    FactsSaved: {
        FORMING: row("recorded", RegionMachine.on_facts_saved),
        RUNNING: row("what waited for it continues", RegionMachine.on_facts_saved, DRAINING),
        DRAINING: row("what waited for it continues", RegionMachine.on_facts_saved),
        CHECKPOINTING: row("what waited for it continues, a commit too", RegionMachine.on_facts_saved, COMMITTING),
        COMMITTING: row("what waited for it continues", RegionMachine.on_facts_saved),
        RESETTING: row("the members get the epoch", RegionMachine.on_facts_saved, RUNNING, DRAINING),
        STOPPED: row("recorded; its members are stopped, and an operator's resume waits for that",
                     RegionMachine.on_facts_saved,
                     FORMING),
    },
    ClockTick: {
        FORMING: row("members that have not registered in time are dead: the region resets",
                     RegionMachine.check_deadlines, RUNNING, DRAINING, *RESETS_OR_STOPS),
        RUNNING: row("a checkpoint is due; members that did not reconnect in time are dead: the region resets",
                     RegionMachine.check_deadlines, DRAINING, *RESETS_OR_STOPS),
        DRAINING: row("the region resets if a member is late or dead",
                      RegionMachine.check_deadlines, RUNNING, *RESETS_OR_STOPS),
        CHECKPOINTING: row("the region resets if a member is late or dead",
                           RegionMachine.check_deadlines, RUNNING, DRAINING, *RESETS_OR_STOPS),
        COMMITTING: row("after a death the region resets when the outcome is known; at once while a generation is "
                        "requested, or not reported", RegionMachine.check_deadlines, *RESETS_OR_STOPS),
        RESETTING: row("the reset restarts if a member is late; a dead member is not waited for",
                       RegionMachine.check_deadlines, RUNNING, DRAINING, STOPPED),
        STOPPED: ignored("nothing is due"),
    },
}  # fmt: skip
"""The transitions of a region, of all its machines: event or message type, then state."""
