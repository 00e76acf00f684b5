"""The state machine of a region member, `step(event) -> effects`, and its transition table.

Source: spec 5.6-5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages
from kohort.region.member import events
from kohort.region.member.events import ControlPlaneMessageReceived, Effect, Event
from kohort.region.member.state import (
    CHECKPOINTED,
    DRAINED,
    PENDING,
    RECORDS_FETCHED,
    RESET_COMPLETE,
    SUBSCRIBED,
    Member,
)
from kohort.region.records import Contribution, OffsetSpan, Part, to_part
from kohort.region.states import RegionMemberState, TransitionRule


class UnexpectedMemberStateError(Exception):
    """The error of a handler that led to a state which the table does not name: a bug."""


class MemberMachine(Member):
    """The state machine of one member: `TABLE` names the handler of each event in each state. No I/O is done."""

    def step(self, event: Event) -> list[Effect]:
        """Handle an event and return its effects, in order.

        Messages of a control plane that was replaced are ignored.
        """
        before = self.state
        if isinstance(event, ControlPlaneMessageReceived):
            if event.order.term < self.term:
                return []  # from a control plane that was replaced
            self.term = event.order.term
        what: Any = event.order if isinstance(event, ControlPlaneMessageReceived) else event
        row = TABLE[type(what)][before]
        if row.do is not None:
            row.do(self, what)
        if self.state is not before and self.state not in row.to:
            raise UnexpectedMemberStateError(f"{type(what).__name__} led from {before.name} to {self.state.name}")
        effects, self.effects = self.effects, []
        return effects

    # -- the control plane

    def on_connected(self, event: events.ControlPlaneConnected) -> None:
        self.send_report(
            messages.RegistrationRequest(
                self.name,
                self.incarnation,
                self.group,
                self.identity,
                self.epoch,
                self.held_positions(),
                self.contributed,
                tuple(self.ends.values()),
                self.sink,
                self.how.shares,
                self.how.of,
                self.how.sources,
                self.how.pinned,
                event.process,
                event.shows,
                self.letters,
                event.letters_show,
                self.how.keyed,
            )
        )

    def on_registration_accepted(self, order: messages.RegistrationAccepted) -> None:
        if self.how.keyed and not order.moves_state:
            remedy = "update all applications of the region first"
            cause = "the control plane is of an earlier release, which would lose keyed states"
            self.add_effects(events.StopPolling(clear=True), events.EndMember(cause, remedy))
            return
        self.names = order.names
        if self.epoch < 0:
            self.epoch, self.sequence = order.epoch, order.sequence
            self.add_effects(events.BeginEpoch(order.epoch, order.sequence, order.state), events.StartPolling())
        else:
            self.record_completed_checkpoint(order.sequence, 0, counts=order.counts)
            if self.cut is not None and self.cut != order.cut:
                self.contributed, self.ends = 0, {}
                self.resume_reading()
        self.resend_pending_messages()

    def resend_pending_messages(self) -> None:
        """Send again all that a new control plane may not have received: pending requests and reports.

        Then send `AssignmentChanged`, and request start offsets of the partitions that lack one.
        """
        if self.state is PENDING and not self.going_back:
            self.send_report(messages.RegionResetRequest("partitions were released", forced=True))
        if self.failure is not None:
            self.send_report(self.failure)
        if self.wants_back is not None:
            self.send_report(self.wants_back)
        if self.closing:
            self.send_report(messages.LeaveRequest())
        if self.held:
            self.send_report(messages.RevokedPartitionsHeld())
        self.send_report(messages.AssignmentChanged(self.identity))
        self.request_start_offsets()

    def on_member_names(self, order: messages.MemberNamesChanged) -> None:
        self.names = order.names

    def on_end_order(self, order: messages.RegistrationRefused | messages.StopOrder) -> None:
        if isinstance(order, messages.RegistrationRefused):
            self.add_effects(events.StopPolling(clear=True), events.EndMember(order.why, order.remedy))
        else:
            self.add_effects(events.StopPolling(clear=True), events.EndMember(order.cause, order.remedy))

    # -- the group

    def on_assigned(self, event: events.PartitionsAssigned) -> None:
        self.identity = event.identity
        gone = tuple(part for part in self.assigned if part not in event.parts)
        self.forget_assigned_partitions(gone)
        self.assigned = dict.fromkeys(event.parts)
        self.send_report(messages.AssignmentChanged(self.identity, gone))
        self.request_start_offsets()

    def release_unread_partitions(self, event: events.PartitionsRevoked) -> None:
        self.release_partitions(event.parts)

    def on_revoked(self, event: events.PartitionsRevoked) -> None:
        if not any(part in self.begins for part in event.parts):
            self.release_partitions(event.parts)
        elif self.how.holds_back:
            self.held |= dict.fromkeys(event.parts)
            self.send_report(messages.RevokedPartitionsHeld())
        else:
            self.request_reset("partitions were revoked", event.parts)

    def on_lost(self, event: events.PartitionsLost) -> None:
        if any(part in self.begins for part in event.parts):
            self.request_reset("partitions were lost", event.parts)
        else:
            self.release_partitions(event.parts)

    def request_reset(self, cause: str, parts: tuple[Part, ...]) -> None:
        """Request a reset of the region: partitions are gone whose rows no complete checkpoint covers yet."""
        self.add_effects(events.StopPolling(clear=True))
        self.send_report(messages.RegionResetRequest(f"{cause}: {', '.join(map(str, parts))}", forced=True))
        self.cut, self.contributed, self.ends = None, 0, {}
        self.set_state(PENDING)
        self.release_partitions([*parts, *self.held])

    def on_fetched(self, event: events.RecordsFetched) -> None:
        del event
        if self.state is RESET_COMPLETE:
            self.add_effects(events.StartPolling())
        self.set_state(RECORDS_FETCHED)

    def on_fetched_in_checkpoint(self, event: events.RecordsFetched) -> None:
        del event
        self.resting = RECORDS_FETCHED

    def on_start_offsets(self, order: messages.StartOffsetsAnswer) -> None:
        found = [
            start for start in order.found if to_part(start) in self.assigned and to_part(start) not in self.begins
        ]
        if not self.how.keyed and (saved := [to_part(start) for start in found if start.state is not None]):
            self._refuse_states(saved)
            return
        for position in found:
            self.begins[to_part(position)] = position.offset
        if found:
            self.add_effects(events.SeekPositions(tuple(found), commit=self.went_back))
        first = tuple(part for part in order.first if part in self.assigned)
        added = tuple(part for part in order.added if part in self.assigned)
        if first or added:
            self.add_effects(events.LookUpStartOffsets(order.number, first, added))

    def _refuse_states(self, parts: list[Part]) -> None:
        """Report a failure that stops the region: the member keeps no keyed states, and its partitions have some."""
        self.failure = messages.UnrecoverableFailure(
            f"{', '.join(map(str, parts))} of group {self.group!r} have keyed states, and {self.name} keeps none",
            "start all members of the group with keyed_state=, or reset the region to its initial state",
        )
        self.send_report(self.failure)

    def on_start_offsets_looked_up(self, event: events.StartOffsetsFound) -> None:
        self.send_report(messages.StartOffsetsLookedUp(event.number, event.found, event.topics))

    # -- checkpoints

    def on_drain(self, order: messages.DrainOrder) -> None:
        if self.epoch < 0 or self.going_back or self.wants_back is not None:
            return
        self.cut = order.cut
        self.add_effects(events.DrainMember(order.cut))

    def on_repeated_drain(self, order: messages.DrainOrder) -> None:
        if self.state is CHECKPOINTED:
            self.contributed, self.ends = 0, {}
        self.cut = order.cut
        self.state = DRAINED
        self.send_report(messages.MemberDrained(order.cut))

    def on_drain_completed(self, event: events.DrainCompleted) -> None:
        if event.cut == self.cut:
            self.state = DRAINED
            self.send_report(messages.MemberDrained(event.cut))

    def on_drain_error(self, event: events.DrainAborted) -> None:
        if event.cut == self.cut:
            self.send_report(messages.DrainFailed(event.cut, event.cause))

    def on_checkpoint(self, order: messages.ContributeOrder) -> None:
        if order.cut == self.cut:
            self.add_effects(events.SaveState(order.cut, order.names))

    def on_state_saved(self, event: events.StateSaved) -> None:
        if event.cut != self.cut:
            return
        ends = {to_part(position): position for position in event.ends if to_part(position) in self.begins}
        spans = tuple(
            OffsetSpan(
                part.group,
                part.topic,
                part.topic_id,
                part.partition,
                begin,
                ends[part].offset,
                ends[part].leader_epoch,
                ends[part].state,
            )
            for part, begin in sorted(self.begins.items())
        )
        who = self.identity
        given = Contribution(
            self.region,
            event.cut.sequence,
            self.term,
            self.epoch,
            self.name,
            self.names,
            self.group,
            who.member_id,
            who.generation,
            who.instance_id,
            spans,
            event.keys,
            event.state,
            self.sink,
            self.how.keeps,
            letters=self.letters,
            letter_keys=event.letter_keys,
            dead_letters=event.dead_letters,
        )
        self.contributed, self.ends, self.covered = event.cut.sequence, ends, dict(self.held)
        self.state, self.given = CHECKPOINTED, given
        self.send_report(messages.ContributionReport(event.cut, given))

    def on_repeated_checkpoint_order(self, order: messages.ContributeOrder) -> None:
        if order.cut == self.cut and self.given is not None:
            self.send_report(messages.ContributionReport(order.cut, self.given))

    def on_generation_requested(self, order: messages.GroupGenerationRequest) -> None:
        del order
        self.send_report(messages.AssignmentChanged(self.identity))

    def on_completed(self, order: messages.CheckpointCompleted) -> None:
        if (
            self.record_completed_checkpoint(order.sequence, order.retired, counts=order.counts)
            and self.cut is not None
        ):
            self.resume_reading()

    def record_completed_checkpoint(self, sequence: int, retired: int, *, counts: bool) -> bool:
        """Handle the completion of a checkpoint; return False if the member knew of it already.

        `counts` is whether the checkpoint has the member's contribution, if it made one.
        """
        if sequence <= self.sequence:
            return False
        counts = counts and self.contributed == sequence
        self.sequence, self.went_back = sequence, False
        self.add_effects(events.RetireCheckpoints(sequence, retired, counts=counts))
        if counts:
            for part, end in self.ends.items():
                if part in self.begins:
                    self.begins[part] = end.offset
            if freed := tuple(part for part in self.held if part in self.covered or not self.how.reads_on):
                self.release_partitions(freed)
        self.contributed, self.ends = 0, {}
        return True

    # -- resets

    def on_reset(self, order: messages.ResetOrder) -> None:
        if order.epoch == self.epoch:
            if not self.going_back:  # a repeated order, after a reconnect
                self.send_report(messages.MemberWasReset(order.epoch))
                self.resend_pending_messages()
            return
        self.cut, self.contributed, self.ends, self.failure = None, 0, {}, None
        self.epoch, self.sequence, self.wants_back = order.epoch, order.sequence, None
        self.went_back = self.going_back = True
        self.begins.clear()
        self.add_effects(events.StopPolling(clear=True))
        if self.held:
            self.release_partitions(tuple(self.held))
        self.set_state(PENDING)
        self.add_effects(events.ResetApplication(order.epoch, order.sequence, order.state))

    def on_application_reset(self, event: events.ApplicationReset) -> None:
        if event.epoch != self.epoch or not self.going_back:
            return
        self.going_back = False
        self.set_state(RESET_COMPLETE)
        self.send_report(messages.MemberWasReset(event.epoch))
        if self.closing:
            self.send_report(messages.LeaveRequest())
            if not self._awaits_stop():
                self.add_effects(events.EndMember())
            return
        self.add_effects(events.ResumeSubmitting(), events.StartPolling(slowly=True))
        self.request_start_offsets()

    # -- the application

    def on_publish(self, order: messages.PublishOrder) -> None:
        place, positions = order.place, order.positions
        self.add_effects(
            events.PublishCheckpoint(order.sequence, order.keys, order.floor, order.empties, place, positions)
        )

    def report_publish_ended(self, event: events.PublishEnded) -> None:
        failed = messages.PublishFailed(event.sequence, event.cause, event.place)
        self.send_report(failed if event.cause else messages.CheckpointPublished(event.sequence, event.place))

    def report_sink_waiting(self, event: events.SinkWaitChanged) -> None:
        self.send_report(messages.WaitingForSink(event.cause))

    def on_checkpoint_requested(self, event: events.CheckpointRequested) -> None:
        del event
        self.send_report(messages.CheckpointRequest())

    def on_reset_requested(self, event: events.ResetRequested) -> None:
        self.wants_back = messages.RegionResetRequest(event.cause)
        self.send_report(self.wants_back)

    def on_unrecoverable_failure(self, event: events.MemberFailed) -> None:
        self.failure = messages.UnrecoverableFailure(event.cause, event.remedy)
        self.send_report(self.failure)

    def on_close_requested(self, event: events.CloseRequested) -> None:
        del event
        self.closing = True
        if self.epoch < 0:
            self.add_effects(events.StopPolling(clear=True), events.EndMember())
            return
        if self.begins:
            self.send_report(messages.LeaveRequest())
            return
        if gone := tuple(self.assigned):  # start offsets may be on their way
            self.forget_assigned_partitions(gone)
            self.send_report(messages.AssignmentChanged(self.identity, gone))
        self.send_report(messages.LeaveRequest())
        if not self._awaits_stop():
            self.add_effects(events.StopPolling(clear=True), events.EndMember())

    def _awaits_stop(self) -> bool:
        """Return whether a leaving member waits for the control plane's `Stop`, rather than end at once.

        It may be the only one that can publish to its sinks, or empty them. The control plane may know of that before
        the member does. All members of a Spark query end together.
        """
        return bool(self.sink or self.how.of or self.contributed)


MemberRow = TransitionRule[MemberMachine, RegionMemberState]
Rows = dict[RegionMemberState, MemberRow]
_ALL = tuple(RegionMemberState)
_READY = (SUBSCRIBED, RECORDS_FETCHED, RESET_COMPLETE)


def _entry(why: str, do: Callable[..., None], *to: RegionMemberState) -> MemberRow:
    return TransitionRule(why, do, to)


def _ignored(why: str) -> MemberRow:
    return TransitionRule(f"ignored, because {why}")


def _everywhere(row: MemberRow, **others: MemberRow) -> Rows:
    return {state: others.get(state.name, row) for state in _ALL}


_NOT_ASKED = "it takes part in no checkpoint"
_READS_ON = "a member that does not stop for a checkpoint reads: its state after the checkpoint"
_PENDING = "a reset follows"

TABLE: dict[type, Rows] = {
    events.ControlPlaneConnected: _everywhere(
        _entry("the member registers, with its partitions", MemberMachine.on_connected)
    ),
    messages.RegistrationAccepted: _everywhere(
        _entry("the member begins, or continues", MemberMachine.on_registration_accepted),
        DRAINED=_entry("drained for an abandoned checkpoint, it continues; else it stays drained",
                     MemberMachine.on_registration_accepted, *_READY),
        CHECKPOINTED=_entry("the sequence is complete, or its contribution was discarded: it continues",
                          MemberMachine.on_registration_accepted, *_READY),
    ),
    messages.MemberNamesChanged: _everywhere(_entry("recorded", MemberMachine.on_member_names)),
    messages.RegistrationRefused: _everywhere(_entry("the member ends", MemberMachine.on_end_order)),
    messages.StopOrder: _everywhere(_entry("the member ends, with a remedy", MemberMachine.on_end_order)),
    events.PartitionsAssigned: _everywhere(
        _entry("the member requests start offsets of new partitions", MemberMachine.on_assigned),
        CR_RESET_PENDING=_entry("recorded; nothing is sought before the reset", MemberMachine.on_assigned),
    ),
    events.PartitionsRevoked: {
        SUBSCRIBED: _entry("released: the member has just subscribed, and has fetched nothing",
                         MemberMachine.release_unread_partitions),
        RECORDS_FETCHED: _entry("queue cleared, polling stopped, region reset; or held until a sequence is complete",
                              MemberMachine.on_revoked, PENDING),
        DRAINED: _entry("the region resets; or held until the sequence is complete", MemberMachine.on_revoked, PENDING),
        CHECKPOINTED: _entry("the region resets; or held until the sequence is complete",
                           MemberMachine.on_revoked, PENDING),
        PENDING: _entry("released", MemberMachine.release_unread_partitions),
        RESET_COMPLETE: _entry("released: the member has just reset, and has fetched nothing",
                             MemberMachine.release_unread_partitions),
    },
    events.PartitionsLost: {
        SUBSCRIBED: _entry("released: nothing was fetched", MemberMachine.release_unread_partitions),
        RECORDS_FETCHED: _entry("the region resets", MemberMachine.on_lost, PENDING),
        DRAINED: _entry("the region resets", MemberMachine.on_lost, PENDING),
        CHECKPOINTED: _entry("the region resets", MemberMachine.on_lost, PENDING),
        PENDING: _entry("released", MemberMachine.release_unread_partitions),
        RESET_COMPLETE: _entry("released: nothing was fetched", MemberMachine.release_unread_partitions),
    },
    events.RecordsFetched: {
        SUBSCRIBED: _entry("the member reads", MemberMachine.on_fetched, RECORDS_FETCHED),
        RECORDS_FETCHED: _ignored("it reads already"),
        DRAINED: _entry(_READS_ON, MemberMachine.on_fetched_in_checkpoint),
        CHECKPOINTED: _entry(_READS_ON, MemberMachine.on_fetched_in_checkpoint),
        PENDING: _ignored("records fetched before the reset are discarded"),
        RESET_COMPLETE: _entry("the member reads at full speed", MemberMachine.on_fetched, RECORDS_FETCHED),
    },
    messages.StartOffsetsAnswer: _everywhere(
        _entry("the member reads the partitions from these offsets", MemberMachine.on_start_offsets),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, after which it requests them again"),
    ),
    events.StartOffsetsFound: _everywhere(
        _entry("the member reports the offsets", MemberMachine.on_start_offsets_looked_up),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, and it requests them again"),
    ),
    messages.DrainOrder: _everywhere(
        _entry("the member stops polling, finishes the current table and commits", MemberMachine.on_drain),
        DRAINED=_entry("the member is drained", MemberMachine.on_repeated_drain),
        CHECKPOINTED=_entry("its contribution is discarded; the member is drained",
                          MemberMachine.on_repeated_drain, DRAINED),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    events.DrainCompleted: _everywhere(
        _entry("the member is drained", MemberMachine.on_drain_completed, DRAINED),
        DRAINED=_ignored("it is drained already"),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    events.DrainAborted: _everywhere(
        _entry("the checkpoint fails", MemberMachine.on_drain_error),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    messages.ContributeOrder: _everywhere(
        _ignored(_NOT_ASKED),
        DRAINED=_entry("submitted rows are staged, the application saves its state", MemberMachine.on_checkpoint),
        CHECKPOINTED=_entry("the member sends its contribution again", MemberMachine.on_repeated_checkpoint_order),
    ),
    events.StateSaved: _everywhere(
        _ignored(_NOT_ASKED), DRAINED=_entry("the member contributes", MemberMachine.on_state_saved, CHECKPOINTED)
    ),
    messages.GroupGenerationRequest: _everywhere(
        _ignored(_NOT_ASKED),
        CHECKPOINTED=_entry("the member reports its generation", MemberMachine.on_generation_requested),
    ),
    messages.CheckpointCompleted: _everywhere(
        _entry("recorded", MemberMachine.on_completed),
        DRAINED=_entry("the sequence is complete without this member", MemberMachine.on_completed, *_READY),
        CHECKPOINTED=_entry("the next contribution begins where this one ended; the member continues",
                          MemberMachine.on_completed, *_READY),
    ),
    messages.PublishOrder: _everywhere(_entry("the member publishes", MemberMachine.on_publish)),
    events.PublishEnded: _everywhere(_entry("the member reports it", MemberMachine.report_publish_ended)),
    messages.ResetOrder: _everywhere(
        _entry("everything is discarded, the application resets", MemberMachine.on_reset, PENDING),
        CR_RESET_PENDING=_entry("everything is discarded, the application resets", MemberMachine.on_reset),
    ),
    events.ApplicationReset: _everywhere(
        _ignored("the answer is to an earlier reset"),
        CR_RESET_PENDING=_entry("the member polls slowly, and requests start offsets",
                              MemberMachine.on_application_reset, RESET_COMPLETE),
    ),
    events.SinkWaitChanged: _everywhere(
        _entry("the member reports it: the checkpoint waits", MemberMachine.report_sink_waiting)
    ),
    events.CheckpointRequested: _everywhere(
        _entry("the member requests a checkpoint",
             MemberMachine.on_checkpoint_requested), CR_RESET_PENDING=_ignored(_PENDING)
    ),
    events.ResetRequested: _everywhere(_entry("the member requests a reset", MemberMachine.on_reset_requested)),
    events.MemberFailed: _everywhere(_entry("the region stops", MemberMachine.on_unrecoverable_failure)),
    events.CloseRequested: _everywhere(
        _entry("the member requests to leave; with the next sequence, or at once if it holds nothing",
             MemberMachine.on_close_requested)
    ),
}  # fmt: skip
"""Transition table: event type, then state."""
