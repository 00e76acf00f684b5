"""Resets: all members return to the last complete sequence, or to the initial state.

Source: spec 5.7, "Reset processing".
"""

from __future__ import annotations

from typing import Final

from kohort.region.control_plane.events import (
    CheckpointMayBegin,
    LogLevel,
    MessageReceived,
    RegionRunning,
    ResetCause,
    ResetRequest,
    ResumeRequested,
    StopRequest,
)
from kohort.region.control_plane.state import ControlPlaneState, MemberPhase
from kohort.region.control_plane.table import (
    CHECKPOINTING,
    COMMITTING,
    DRAINING,
    FORMING,
    NO_MEMBERS,
    RESETS_OR_STOPS,
    RESETTING,
    RUNNING,
    STOPPED,
    Table,
    ignored,
    row,
)
from kohort.region.messages import (
    EmptySinksConfirmation,
    MemberWasReset,
    RegionResetRequest,
    ResetDeclined,
    StopOrder,
    UnrecoverableFailure,
)
from kohort.region.records import EpochBegun, Fact, Manifest, RegionStopped
from kohort.region.states import RegionState


class Recovery:
    """The part of the control plane that resets the region, stops it, and resumes a stopped one."""

    def __init__(self, plane: ControlPlaneState) -> None:
        self.plane = plane

    def _waits(self) -> bool:
        """Return whether a reset must wait: for all members to register, or for the outcome of a pending commit."""
        if self.plane.state is RegionState.COMMITTING:
            return self.plane.is_commit_pending()
        return self.plane.state is RegionState.FORMING

    def on_reset_requested(self, event: MessageReceived) -> None:
        """Handle a request for a reset, from a member, its application or an operator."""
        plane = self.plane
        report = event.report
        assert isinstance(report, RegionResetRequest)
        if report.initial and (why_not := self._unconfirmed(report.confirms)):
            plane.log(LogLevel.WARNING, f"region {plane.region}: a reset to the initial state was declined: {why_not}")
            plane.send_on_connection(event.connection, ResetDeclined(why_not))
            return
        member = plane.member_on_connection(event.connection)
        name = "" if member is None else member.name
        why = ResetCause.PARTITIONS if report.forced and member is not None else ResetCause.ASKED
        self.reset_region(ResetRequest(why, report.cause, name, forced=report.forced, initial=report.initial))

    def _unconfirmed(self, confirms: EmptySinksConfirmation | None) -> str:
        """Return why a reset to the initial state must not delete published rows; empty: it may, or there are none."""
        plane = self.plane
        if plane.sequence == 0 and not plane.is_commit_pending():
            return ""
        if confirms is None:
            return "sequences are published, and the request does not confirm that their rows are to be deleted"
        if confirms.region_id != plane.region_id:
            return f"the request is for region {confirms.region_id}, and this one is {plane.region_id}"
        left = self._written() - set(confirms.places)
        return f"the request does not confirm that {', '.join(sorted(left))} is to be emptied" if left else ""

    def _written(self) -> set[str]:
        """Return the names of all sinks that may have rows of the region, or to which a member writes."""
        return self.plane.sinks_with_rows().union(*(member.sink_names for member in self.plane.members.values()))

    def reset_region(self, wanted: ResetRequest) -> None:
        """Begin a reset, or defer it while members register or a commit is pending.

        During a reset, the next attempt begins at once. A stopped region does nothing.
        """
        if self.plane.state is RegionState.STOPPED:
            return
        if self._waits():
            before = self.plane.pending
            if before is None or wanted.initial or not before.initial:
                self.plane.pending = wanted
            return
        self._begin_reset(wanted)

    def begin_deferred_reset(self) -> None:
        """Begin the reset that was deferred."""
        wanted, self.plane.pending = self.plane.pending, None
        if wanted is not None:
            self._begin_reset(wanted)

    def reset_after_failure(self, why: ResetCause, cause: str) -> None:
        """Begin a reset after a failed checkpoint, of which nothing was written; a deferred reset takes precedence."""
        wanted, self.plane.pending = self.plane.pending, None
        self.plane.ongoing = None
        self._begin_reset(wanted or ResetRequest(why, cause))

    def _begin_reset(self, wanted: ResetRequest) -> None:
        plane = self.plane
        plane.consecutive = 0 if wanted.forced or wanted.initial else plane.consecutive + 1
        if plane.consecutive >= plane.config.resets_most:
            remedy = f"mend the cause, then {plane.resume_command()}"
            cause = f"{plane.consecutive} resets in a row; the last: {wanted.cause}"
            self.stop_region(StopRequest(cause, wanted.member, remedy))
            return
        plane.metrics.resets[wanted.why] += 1
        plane.metrics.record_checkpoint_end(plane.now_ms, complete=False)
        plane.log(LogLevel.WARNING, f"region {plane.region} resets to sequence {plane.sequence}: {wanted.cause}")
        plane.epoch += 1
        plane.floor = epoch = plane.epoch
        plane.ongoing, plane.state, plane.wanted = None, RegionState.RESETTING, False
        plane.start_requests.clear()
        plane.due.pop("cut", None)
        plane.due.pop("checkpoint", None)
        plane.due["reset"] = plane.now_ms + plane.config.reset_ms
        for member in plane.members.values():
            member.handed.clear()
            member.phase = MemberPhase.GOING_BACK if member.epoch >= 0 else MemberPhase.READING
        facts: list[Fact] = [
            EpochBegun(plane.region, epoch, plane.term, epoch, plane.consecutive, wanted.cause, plane.now_ms)
        ]
        initial = self._to_initial() if wanted.initial else None
        if initial is not None:
            facts.append(initial)
            plane.emptying.append(initial)

        def continue_after_save() -> None:
            if initial is not None:
                plane.emptying.remove(initial)
                self._is_initial(initial)
            if plane.epoch < epoch or plane.floor != epoch or plane.state is not RegionState.RESETTING:
                return
            for member in plane.members.values():
                if member.epoch > epoch:
                    continue  # it has started after the reset, and holds nothing
                fresh, member.epoch = member.epoch < 0, epoch
                plane.send(
                    member, plane.registration_answer(member, fresh=True) if fresh else plane.reset_order(member)
                )
            self.end_reset_if_complete()

        plane.save_facts(facts, continue_after_save)

    def _to_initial(self) -> Manifest:
        """Return a manifest with all partitions at their initial offsets, and the sinks that are to be emptied."""
        plane = self.plane
        written = self._written()
        places = written if plane.sequence > 0 else set()
        return Manifest(
            plane.region,
            plane.region_id,
            plane.sequence + 1 + len(plane.emptying),  # two resets that are on their way are two sequences
            plane.term,
            plane.floor,
            plane.now_ms,
            (),
            plane.member_names(),
            tuple(position for _, position in sorted(plane.initial.items())),
            empties=bool(places),
            places=tuple(sorted(places)),
        )

    def _is_initial(self, manifest: Manifest) -> None:
        """Continue from the initial state, after the reset to it is committed: only now are the sinks emptied."""
        plane = self.plane
        plane.sequence, plane.empties, plane.made_as = manifest.sequence, manifest.empties, 0
        plane.positions, plane.states, plane.waiting, plane.contributors = {}, {}, {}, {}
        plane.reserved = {}
        plane.places = set(manifest.places)
        plane.set_unpublished(dict.fromkeys(manifest.places, ()))
        plane.order_publications()

    def on_member_reset(self, event: MessageReceived) -> None:
        """Handle the report of a member that has reset, with all others or alone; ignore one of an earlier reset."""
        plane = self.plane
        report, member = event.report, plane.member_on_connection(event.connection)
        assert isinstance(report, MemberWasReset)
        if member is None or member.phase is not MemberPhase.GOING_BACK or report.epoch != member.epoch:
            return
        if member.epoch < plane.floor:
            return
        member.phase = MemberPhase.READING
        if plane.state is RegionState.RESETTING:
            self.end_reset_if_complete()
        else:
            plane.request(CheckpointMayBegin())

    def end_reset_if_complete(self) -> None:
        """End the reset when all members have reset and the topic records it, even if no member is left."""
        plane = self.plane
        if plane.saved_floor < plane.floor:
            return
        if any(
            member.phase is MemberPhase.GOING_BACK or member.epoch < plane.floor for member in plane.members.values()
        ):
            return
        plane.due.pop("reset", None)
        plane.state = RegionState.RUNNING
        plane.request(RegionRunning())

    def restart_reset_if_overdue(self) -> None:
        """Restart the reset for all members if one of them misses the deadline. The late member stays registered."""
        plane = self.plane
        if plane.now_ms >= plane.due.get("reset", plane.now_ms + 1):
            late = sorted(member.name for member in plane.members.values() if member.phase is MemberPhase.GOING_BACK)
            plane.due.pop("reset")
            cause = f"{', '.join(late)} did not reset in time"
            self.reset_region(ResetRequest(ResetCause.LATE, cause, late[0] if late else ""))

    def stop_region(self, wanted: StopRequest) -> None:
        """Stop the region after an error that no reset repairs; it waits for an operator to resume it."""
        plane, cause, remedy = self.plane, wanted.cause, wanted.remedy
        plane.log(LogLevel.ERROR, f"region {plane.region} has stopped: {cause}; {remedy}")
        plane.ongoing = plane.ongoing if plane.is_commit_pending() else None
        plane.stopped, plane.state, plane.stopping = cause, RegionState.STOPPED, True
        plane.pending, plane.wanted = None, False
        plane.waiting_to_register.clear()  # waiting members report it again
        plane.due.clear()

        def continue_after_save() -> None:
            plane.stopping = False
            for member in list(plane.members.values()):
                plane.send(member, StopOrder(plane.term, cause, remedy))
                plane.unregister(member)
            self.resume_if_settled()

        plane.save_facts([RegionStopped(plane.region, cause, wanted.member, remedy, plane.now_ms)], continue_after_save)

    def on_member_failed(self, event: MessageReceived) -> None:
        """Stop the region after an error of a member that no reset repairs."""
        report, member = event.report, self.plane.member_on_connection(event.connection)
        assert isinstance(report, UnrecoverableFailure)
        if member is not None:
            self.stop_region(StopRequest(f"{member.name}: {report.cause}", member.name, report.remedy))

    def resume_region(self, event: ResumeRequested) -> None:
        """Resume the region on an operator's request: members register as after a takeover, but none is waited for."""
        del event
        self.plane.resumes = True
        self.resume_if_settled()

    def resume_if_settled(self) -> None:
        """Resume the stopped region once the topic records the stop and the outcome of any pending commit is known."""
        plane = self.plane
        if not plane.resumes or plane.stopping or plane.ongoing is not None:
            return
        plane.resumes, plane.stopped, plane.consecutive = False, "", 0
        plane.save_facts([RegionStopped(plane.region, "", "", "", plane.now_ms)], lambda: None)
        plane.state = RegionState.FORMING
        plane.expected.clear()


_EARLIER_RESET = "it answers an earlier reset"

TABLE: Final[Table] = {
    RegionResetRequest: {
        FORMING: row("the reset begins when all members have registered", Recovery.on_reset_requested),
        RUNNING: row("the region resets", Recovery.on_reset_requested, *RESETS_OR_STOPS),
        DRAINING: row("the checkpoint is abandoned, the region resets", Recovery.on_reset_requested, *RESETS_OR_STOPS),
        CHECKPOINTING: row("the checkpoint is abandoned, the region resets",
                            Recovery.on_reset_requested, *RESETS_OR_STOPS),
        COMMITTING: row("the reset begins when the outcome is known; at once while a generation is requested",
                         Recovery.on_reset_requested,
                         *RESETS_OR_STOPS),
        RESETTING: row("the next attempt begins", Recovery.on_reset_requested, STOPPED),
        STOPPED: ignored(NO_MEMBERS),
    },
    MemberWasReset: {
        FORMING: ignored(_EARLIER_RESET),
        RUNNING: row("the member has reset alone, and takes part again", Recovery.on_member_reset, DRAINING),
        DRAINING: row("the member joined after the checkpoint began, and has reset alone", Recovery.on_member_reset),
        CHECKPOINTING: row("the member joined after the checkpoint began, and has reset alone",
                           Recovery.on_member_reset),
        COMMITTING: row("the member joined after the checkpoint began, and has reset alone", Recovery.on_member_reset),
        RESETTING: row("after the last one the region runs", Recovery.on_member_reset, RUNNING, DRAINING),
        STOPPED: ignored(NO_MEMBERS),
    },
    UnrecoverableFailure: {
        state: row("the region stops", Recovery.on_member_failed, STOPPED)
        for state in RegionState if state is not STOPPED
    } | {STOPPED: ignored(NO_MEMBERS)},
    ResumeRequested: {
        state: ignored("the region has not stopped") for state in RegionState if state is not STOPPED
    } | {STOPPED: row("members may register again, as soon as pending writes are in the topic",
                          Recovery.resume_region, FORMING)},
}  # fmt: skip
"""The transitions of a region by the events of its resets: an entry for each event in each state."""
