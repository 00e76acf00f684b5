"""Membership of a region: members register, reconnect, move, leave and are lost."""

from __future__ import annotations

from typing import Final

from kohort.region.agreement import SOMEWHERE, compare_sink_with_topic
from kohort.region.control_plane.events import (
    CheckpointMayBegin,
    CheckProcess,
    ConnectionEnded,
    DeferredResetMayBegin,
    GroupGenerationReported,
    LeaverWantsCheckpoint,
    LogLevel,
    MembersChanged,
    MemberStopRequested,
    MessageReceived,
    ParticipantLost,
    PartitionsReleased,
    ProcessEnded,
    RegionRunning,
    ResetCause,
    ResetRequest,
    StopRequest,
)
from kohort.region.control_plane.starts import StartOffsets
from kohort.region.control_plane.state import NOWHERE, ControlPlaneState, MemberPhase, RegisteredMember
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
    AssignmentChanged,
    ContributeOrder,
    DrainOrder,
    GroupGenerationRequest,
    LeaveRequest,
    MemberNamesChanged,
    RegistrationRefused,
    RegistrationRequest,
    StopOrder,
)
from kohort.region.records import EpochBegun, Part, StoppedMembers, to_part
from kohort.region.states import RegionState

_HERE = (RegionState.RUNNING, RegionState.DRAINING, RegionState.CHECKPOINTING, RegionState.COMMITTING)


class RegionMembers:
    """The part of the control plane that registers members, and notices when they reconnect, leave or are lost."""

    def __init__(self, plane: ControlPlaneState, starts: StartOffsets) -> None:
        self.plane, self.starts = plane, starts

    def on_register(self, event: MessageReceived) -> None:
        """Register a new or returning member.

        A new member fences a registered one of its name. A member that was only paused, and finds its name taken by a
        newer one, is refused instead.
        """
        plane, report = self.plane, event.report
        assert isinstance(report, RegistrationRequest)
        plane.waiting_to_register.pop(event.connection, None)
        known = plane.members.get(report.name)
        if known is not None and known.incarnation == report.incarnation:
            self._reconnect(known, report, event.connection)
            if not self._is_of_another_history(report):
                plane.order_publications()  # it may have missed the order
            return
        if known is not None and 0 <= report.epoch < known.epoch:
            self._refuse_replaced(known, event.connection)
            return
        if known is not None:
            self._fence(known)
        member = RegisteredMember(
            report.name, report.incarnation, report.group, report.identity, event.connection, report.sink,
            report.shares, report.of, report.sources, report.pinned, report.process, letters=report.letters,
            keyed=report.keyed,
        )  # fmt: skip
        plane.members[member.name] = member
        plane.by_connection[event.connection] = member.name
        self._inherit(member)
        if report.epoch >= 0:
            self._take_on(member, report)
        for sibling in plane.query_members(member):
            member.leaves, member.stop = member.leaves or sibling.leaves, member.stop or sibling.stop
        if plane.is_stop_saved(member):
            self._mark_stopped(member)
        plane.await_query_members(member)
        plane.expected.pop(member.name, None)
        plane.send_to_all(MemberNamesChanged(plane.term, plane.member_names()))
        if self._is_of_another_history(report):
            return
        if plane.state is RegionState.FORMING:
            self.run_if_all_registered()
        elif not self._is_refused(member):
            self.let_member_work(member)
            if member.of:  # its siblings may have waited for it
                self.starts.hand_out_partitions()
                plane.request(CheckpointMayBegin())
        plane.order_publications()
        if plane.is_stop_saved(member) and plane.members.get(member.name) is member:
            self._release_member(member)

    def _is_of_another_history(self, report: RegistrationRequest) -> bool:
        """Stop the region if a sink of the member disagrees with the region's metadata topic; return whether one does.

        This precedes any order to publish there.
        """
        plane = self.plane
        for place, shows in ((report.sink, report.shows), (report.letters, report.letters_show)):
            found = compare_sink_with_topic(plane.region, place, shows, plane.sink_id_bounds(place))
            if found is not None:
                remedy = f"{found.remedy}; in each case then {plane.resume_command()}"
                plane.request(StopRequest(f"{report.name}: {found.cause}", report.name, remedy))
                return True
        return False

    def _inherit(self, member: RegisteredMember) -> None:
        """Give the first member's sink the unpublished keys of an earlier release, which stored no sink's name."""
        plane = self.plane
        if member.sink and SOMEWHERE in plane.unpublished:
            plane.unpublished[member.sink] = plane.unpublished.pop(SOMEWHERE)
            plane.places.add(member.sink)

    def _is_refused(self, member: RegisteredMember) -> bool:
        """Refuse a new member that can't share its consumer group, and return whether it was refused.

        The cause is that its state, or that of another member of the group, does not move with partitions. Another
        cause is that only some members of the group keep keyed states.

        The other member may be absent, if its saved state waits for it. A member that was there before and returns with
        its partitions is never refused.
        """
        plane = self.plane
        if member.epoch >= 0 and member.phase is MemberPhase.READING:
            return False
        there = [
            other
            for other in plane.members.values()
            if other is not member and other.group == member.group and not other.left
        ]
        alone = [candidate for candidate in (member, *there) if not candidate.shares]
        owners = self._owners_of_reserved_state(member)
        others_differ = [other.name for other in there if other.keyed != member.keyed]
        if others_differ:
            keeps, lacks = ("keeps", "do not") if member.keyed else ("does not keep", "do")
            why = (
                f"it {keeps} keyed states, and {', '.join(others_differ)} of group {member.group!r} {lacks}: states "
                "would lack the records of some members"
            )
            remedy = "give keyed_state= to all members of the group, or to none"
        elif there and alone:
            others = ", ".join(other.name for other in there)
            why = (
                f"group {member.group!r} is read by {others}, and the state of {alone[0].name} does not move when a "
                "partition does: its results would be wrong"
            )
            remedy = f"give {alone[0].name} a group of its own, or end the other first"
        elif owners:
            why = (
                f"what {member.name} would read in group {member.group!r} would be missing in the state of {owners}, "
                "which is kept also while it is away: its results would be wrong"
            )
            remedy = (
                f"start {owners} instead, or give {member.name} a group of its own; to forget that state, restart from "
                f"the beginning: `kohort region reset {plane.region} --to-initial --empty-sinks --execute`"
            )
        else:
            return False
        plane.log(LogLevel.WARNING, f"region {plane.region}: {member.name} is refused: {why}")
        plane.send(member, RegistrationRefused(plane.term, why, remedy))
        plane.close_connection(member.connection)
        plane.unregister(member)
        return True

    def _owners_of_reserved_state(self, member: RegisteredMember) -> str:
        """Return the names of members whose saved state keeps others out of this member's group; empty: none.

        Their state would lack the records that another member reads. Only absent members count; of pinned queries,
        connected members count too.
        """
        return ", ".join(
            sorted(
                name
                for name, reservation in self.plane.reserved.items()
                if name != member.name
                and (reservation.pinned or name not in self.plane.members or self.plane.members[name].left)
                and reservation.group == member.group
                and (not reservation.pinned or reservation.pinned != member.pinned)
            )
        )

    def _refuse_members_that_cannot_share(self) -> None:
        """Refuse members that can't share a consumer group, when the region begins to run.

        The member with the higher epoch stays, then the owner of saved state, then the one that registered first.
        """
        newcomers = [
            newcomer
            for newcomer in self.plane.members.values()
            if newcomer.epoch < 0 or newcomer.phase is MemberPhase.GOING_BACK
        ]
        newcomers.reverse()
        for member in sorted(newcomers, key=lambda newcomer: (newcomer.epoch, newcomer.name in self.plane.reserved)):
            self._is_refused(member)

    def _fence(self, known: RegisteredMember) -> None:
        plane = self.plane
        why = f"another member of region {plane.region!r} has registered as {known.name!r}"
        for sibling in plane.query_members(known):
            plane.send(sibling, RegistrationRefused(plane.term, why))
        self.remove_dead_member(known, f"{known.name} was restarted, or started twice")

    def _refuse_replaced(self, known: RegisteredMember, connection: int) -> None:
        """Refuse a paused member whose name a newer one has taken; its work since the last checkpoint is discarded."""
        plane = self.plane
        why = f"while it slept, another member of region {plane.region!r} has begun as {known.name!r}"
        plane.send_on_connection(connection, RegistrationRefused(plane.term, why))
        plane.close_connection(connection)

    def _take_on(self, member: RegisteredMember, report: RegistrationRequest) -> None:
        """Accept a member that has an epoch already, with its partitions, as after a takeover or a lost connection.

        It resets alone if its epoch or offsets are outdated, or if another member holds its partitions.
        """
        plane = self.plane
        counts = report.contributed == plane.sequence and plane.contributed_to_last_checkpoint(
            report.name, report.epoch
        )
        begins = report.ends if counts else ()
        held: dict[Part, int] = {to_part(position): position.offset for position in (*report.holds, *begins)}
        starts_now = {part: plane.saved_position(part) for part in held}
        sound = all(start is not None and start.offset == held[part] for part, start in starts_now.items())
        alone = all(plane.owner_of(part) is None for part in held)
        member.epoch = report.epoch
        if plane.floor <= report.epoch <= plane.epoch and sound and alone:
            member.handed = held
        else:
            member.phase = MemberPhase.GOING_BACK

    def refuse_while_stopped(self, event: MessageReceived) -> None:
        """Refuse a member of a stopped region: send it the cause, and close its connection."""
        plane = self.plane
        plane.send_on_connection(
            event.connection, StopOrder(plane.term, plane.stopped, f"when that is mended: {plane.resume_command()}")
        )
        plane.close_connection(event.connection)

    def let_member_work(self, member: RegisteredMember) -> None:
        """Let a registered member work: in a new epoch if it has just started or must reset alone."""
        plane = self.plane
        if member.epoch >= 0 and member.phase is MemberPhase.READING:
            plane.send(member, plane.registration_answer(member))
            return
        plane.epoch += 1
        epoch, before = plane.epoch, member.epoch

        def continue_after_save() -> None:
            if plane.members.get(member.name) is not member or epoch < plane.floor:
                return
            if member.epoch != before:
                return  # a reset of all members has sent it
            fresh, member.epoch = member.epoch < 0, epoch
            order = plane.registration_answer(member, fresh=True) if fresh else plane.reset_order(member)
            plane.send(member, order)
            plane.request(MembersChanged())

        cause = f"{member.name} has started" if member.epoch < 0 else f"{member.name} goes back alone"
        plane.save_facts(
            [EpochBegun(plane.region, epoch, plane.term, plane.floor, plane.consecutive, cause, plane.now_ms)],
            continue_after_save,
        )

    def _reconnect(self, member: RegisteredMember, report: RegistrationRequest, connection: int) -> None:
        """Continue with a known member on its new connection, and send it the orders again that it may have missed.

        Its requests for start offsets are dropped, because the member repeats them.
        """
        plane = self.plane
        if member.connection not in (NOWHERE, connection):
            plane.by_connection.pop(member.connection, None)
            plane.close_connection(member.connection)
        member.connection, member.lost_ms = connection, None
        member.waits_for = ""  # one that still waits says so again: what it said last may have been lost
        plane.by_connection[connection] = member.name
        plane.due.pop(f"lost {member.name}", None)
        plane.start_requests = [request for request in plane.start_requests if request.member != member.name]
        member.identity, member.process = report.identity, report.process
        held = {to_part(position) for position in report.holds}
        plane.request(PartitionsReleased(member.name, tuple(part for part in member.handed if part not in held)))
        member.handed = {part: begin for part, begin in member.handed.items() if part in held}
        if member.epoch < 0 or plane.state in (RegionState.FORMING, RegionState.STOPPED):
            return
        if member.phase is MemberPhase.GOING_BACK:
            if member.epoch >= plane.floor:
                plane.send(member, plane.reset_order(member))
            return
        plane.send(member, plane.registration_answer(member, fresh=report.epoch < 0))
        ongoing = plane.ongoing
        if ongoing is not None and member.name in ongoing.names:
            if plane.state is RegionState.DRAINING and member.phase is MemberPhase.READING:
                plane.send(member, DrainOrder(plane.term, ongoing.cut))
            elif plane.state is RegionState.CHECKPOINTING and member.phase is MemberPhase.DRAINED:
                plane.send(member, ContributeOrder(plane.term, ongoing.cut, ongoing.names))
            elif member.name in ongoing.unidentified:
                plane.send(member, GroupGenerationRequest(plane.term, ongoing.cut))
        plane.request(CheckpointMayBegin())

    def run_if_all_registered(self) -> None:
        """Let the region run when every member of the last term has registered again or is known to be dead."""
        plane = self.plane
        self._drop_expected_that_ended()
        if plane.expected or not plane.members:
            return
        plane.due.pop("forming", None)
        self._refuse_members_that_cannot_share()
        old = [member for member in plane.members.values() if member.epoch >= 0 and member.phase is MemberPhase.READING]
        plane.state = RegionState.RUNNING
        if plane.pending is not None:
            plane.request(DeferredResetMayBegin())
            return
        if not old:
            plane.floor = plane.epoch + 1  # earlier staged rows are discarded
        for member in list(plane.members.values()):
            self.let_member_work(member)
        plane.request(RegionRunning())

    def _drop_expected_that_ended(self) -> None:
        """Reset without waiting longer if all members still waited for have died, and others are working.

        If none works, waiting loses nothing: whoever starts members again starts them together.
        """
        plane = self.plane
        dead = sorted(name for name, process in plane.expected.items() if process in plane.ended)
        if dead and len(dead) == len(plane.expected) and any(member.epoch >= 0 for member in plane.members.values()):
            plane.expected.clear()
            plane.request(ResetRequest(ResetCause.DEAD, f"{', '.join(dead)}: the process has ended"))

    def on_assignment_changed(self, event: MessageReceived) -> None:
        """Record a member's new identity in its consumer group, and the partitions that it has released."""
        report, member = event.report, self.plane.member_on_connection(event.connection)
        assert isinstance(report, AssignmentChanged)
        if member is None:
            return
        member.identity = report.identity
        for part in report.gone:
            member.handed.pop(part, None)
        self.starts.forget_start_requests(member, report.gone)
        self.plane.request(GroupGenerationReported(member.name))
        self.plane.request(PartitionsReleased(member.name, report.gone))
        self.starts.hand_out_partitions()

    def on_leave_requested(self, event: MessageReceived) -> None:
        """Handle a member's request to leave; the other members of its query leave too."""
        assert isinstance(event.report, LeaveRequest)
        member = self.plane.member_on_connection(event.connection)
        if member is not None:
            self._release_member(member)

    def stop_member(self, event: MemberStopRequested) -> None:
        """Handle an operator's request that a member leaves, with the other members of its query."""
        plane = self.plane
        member = plane.members.get(event.name)
        if member is None:
            plane.log(LogLevel.WARNING, f"region {plane.region}: there is no member {event.name!r} to stop")
            return
        self._mark_stopped(member)
        self._release_member(member)
        if plane.members.get(member.name) is member:
            self._save_stops()

    def _mark_stopped(self, member: RegisteredMember) -> None:
        for sibling in self.plane.query_members(member):
            sibling.leaves = sibling.stop = True

    def _save_stops(self) -> None:
        """Record which members an operator has stopped, so that they also leave a later control plane."""
        plane = self.plane
        stopped = {name: incarnation for name, incarnation in plane.stopped_members.items() if name in plane.expected}
        stopped |= {member.name: member.incarnation for member in plane.members.values() if member.stop}

        def continue_after_save() -> None:
            plane.stopped_members = stopped

        plane.save_facts([StoppedMembers(plane.region, stopped, plane.now_ms)], continue_after_save)

    def _release_member(self, member: RegisteredMember) -> None:
        plane = self.plane
        those, ongoing = plane.query_members(member), plane.ongoing
        for sibling in those:
            sibling.leaves = True
        plane.await_query_members(member)
        is_cut = ongoing is not None and any(sibling.name in ongoing.names for sibling in those)
        holds = any(sibling.handed for sibling in those) or not plane.has_all_query_members(member)
        if holds or (is_cut and plane.state is RegionState.COMMITTING):
            if plane.state in _HERE:
                plane.request(LeaverWantsCheckpoint())
            return
        self._let_all_leave(those)
        if is_cut:
            plane.request(ParticipantLost(f"{member.name} has left"))
        plane.request(MembersChanged())

    def _let_all_leave(self, those: list[RegisteredMember]) -> None:
        left = any(self._alone_can_publish(sibling) for sibling in those)
        for sibling in those:
            sibling.left = left
            sibling.handed.clear()
            if not left:
                self.plane.end_and_unregister(sibling)

    def _alone_can_publish(self, member: RegisteredMember) -> bool:
        """Return whether no other connected member can publish what one of this member's sinks still lacks.

        The member must then stay. A disconnected member can't publish: False.
        """
        if member.lost_ms is not None:
            return False
        others = [other for other in self.plane.members.values() if other is not member and other.lost_ms is None]
        elsewhere = {place for other in others for place in other.sink_names}
        return any(self.plane.needs_publication(place) for place in member.sink_names if place not in elsewhere)

    def on_member_disconnected(self, event: ConnectionEnded) -> None:
        """Start the deadline by which a disconnected member must reconnect, and check whether its process has ended."""
        plane = self.plane
        plane.waiting_to_register.pop(event.connection, None)
        member = plane.member_on_connection(event.connection)
        if member is None:
            return
        plane.by_connection.pop(event.connection, None)
        member.connection, member.lost_ms = NOWHERE, plane.now_ms
        plane.due[f"lost {member.name}"] = plane.now_ms + plane.config.register_ms
        if member.process:
            plane.effects.append(CheckProcess(member.process))
        plane.order_publications()

    def on_process_ended(self, event: ProcessEnded) -> None:
        """Remove the disconnected members of an ended process; a connected one may still deliver a last message."""
        plane = self.plane
        for member in list(plane.members.values()):
            there = plane.members.get(member.name) is member  # a sibling's end may have removed it
            if there and member.lost_ms is not None and member.process == event.process:
                self.remove_dead_member(member, f"{member.name}: its process has ended")
        if event.process in plane.expected.values():
            plane.ended.add(event.process)
            self.run_if_all_registered()

    def remove_disconnected_members(self) -> None:
        """Remove members that have not reconnected in time."""
        plane = self.plane
        for member in list(plane.members.values()):
            there = plane.members.get(member.name) is member  # a sibling's end may have removed it
            if there and member.lost_ms is not None and plane.now_ms >= member.lost_ms + plane.config.register_ms:
                self.remove_dead_member(member, f"{member.name} did not reconnect in time")

    def remove_unregistered_members(self) -> None:
        """Remove members that have not registered with a new control plane in time."""
        plane = self.plane
        if plane.now_ms >= plane.due.get("forming", plane.now_ms + 1):
            names = ", ".join(plane.expected)
            plane.expected.clear()
            plane.due.pop("forming")
            plane.request(ResetRequest(ResetCause.DEAD, f"{names} did not register with the new control plane"))
            self.run_if_all_registered()

    def remove_incomplete_queries(self) -> None:
        """Remove a Spark query if not all of its members have registered in time and one was given partitions.

        If all its registered members want to leave, they leave.
        """
        plane = self.plane
        late = [
            registered
            for registered in plane.members.values()
            if plane.now_ms >= plane.due.get(f"siblings {registered.of}", plane.now_ms + 1)
        ]
        for member in late:
            those = plane.query_members(member)
            plane.due.pop(f"siblings {member.of}", None)
            if plane.members.get(member.name) is not member:
                continue  # removed with another
            if all(sibling.leaves for sibling in those):
                self._let_all_leave(those)
                plane.request(MembersChanged())
            elif any(sibling.handed for sibling in those):
                self.remove_dead_member(
                    member, f"{member.name} reads with {member.sources - 1} more, and not all have registered"
                )

    def remove_dead_member(self, member: RegisteredMember, cause: str) -> None:
        """Remove a dead member and the other members of its query.

        The region resets if they held partitions, or if the generation of one of them is awaited for a commit.
        """
        plane = self.plane
        those, ongoing = plane.query_members(member), plane.ongoing
        awaited = frozenset() if ongoing is None else ongoing.unidentified
        held = any(sibling.handed or sibling.name in awaited for sibling in those)
        for sibling in those:
            plane.unregister(sibling)
            if sibling.connection != NOWHERE:
                plane.close_connection(sibling.connection)  # a live member reconnects, and resets with the others
        plane.order_publications()
        if plane.state is RegionState.RESETTING or not held:
            if ongoing is not None and any(sibling.name in ongoing.names for sibling in those):
                plane.request(ParticipantLost(cause))
            plane.request(MembersChanged())
        else:
            plane.request(ResetRequest(ResetCause.DEAD, cause, member.name))


TABLE: Final[Table] = {
    RegistrationRequest: {
        FORMING: row("one member fewer is expected; after the last the region runs, or resets",
                      RegionMembers.on_register, RUNNING, DRAINING, *RESETS_OR_STOPS),
        RUNNING: row("the member gets its epoch; an earlier member of its name is fenced", RegionMembers.on_register,
                      DRAINING, *RESETS_OR_STOPS),
        DRAINING: row("the member takes part in the next checkpoint",
                       RegionMembers.on_register, RUNNING, *RESETS_OR_STOPS),
        CHECKPOINTING: row("the member takes part in the next checkpoint",
                            RegionMembers.on_register, RUNNING, DRAINING, *RESETS_OR_STOPS),
        COMMITTING: row("the member takes part in the next checkpoint; an earlier member of its name is fenced",
                         RegionMembers.on_register,
                         *RESETS_OR_STOPS),
        RESETTING: row("the member gets the epoch of the reset", RegionMembers.on_register, RUNNING, DRAINING, STOPPED),
        STOPPED: row("the member gets the cause, and its connection ends", RegionMembers.refuse_while_stopped),
    },
    LeaveRequest: {
        FORMING: row("the member leaves when all members have registered", RegionMembers.on_leave_requested),
        RUNNING: row("a checkpoint begins, then the member leaves; at once if it holds nothing",
                      RegionMembers.on_leave_requested, DRAINING),
        DRAINING: row("the member leaves after this checkpoint; at once if it holds nothing",
                       RegionMembers.on_leave_requested, RUNNING),
        CHECKPOINTING: row(
            "the member leaves after this checkpoint; at once if it holds nothing",
            RegionMembers.on_leave_requested, RUNNING, DRAINING,
        ),
        COMMITTING: row("the member leaves after the next checkpoint; at once if it holds and gave nothing",
                         RegionMembers.on_leave_requested),
        RESETTING: row("the member leaves at once, or when it has published", RegionMembers.on_leave_requested,
                        RUNNING, DRAINING),
        STOPPED: ignored(NO_MEMBERS),
    },
    AssignmentChanged: {
        FORMING: row("recorded", RegionMembers.on_assignment_changed),
        RUNNING: row("recorded; released partitions can be given to others", RegionMembers.on_assignment_changed),
        DRAINING: row("recorded", RegionMembers.on_assignment_changed),
        CHECKPOINTING: row("recorded; a contribution of released partitions is invalid: the checkpoint restarts",
                            RegionMembers.on_assignment_changed, DRAINING),
        COMMITTING: row("a refused member is committed under its new generation, or the checkpoint restarts",
                         RegionMembers.on_assignment_changed, DRAINING),
        RESETTING: row("recorded", RegionMembers.on_assignment_changed),
        STOPPED: ignored(NO_MEMBERS),
    },
    ConnectionEnded: {
        FORMING: row("the member may reconnect", RegionMembers.on_member_disconnected),
        RUNNING: row("the member may reconnect; no checkpoint begins until then", RegionMembers.on_member_disconnected),
        DRAINING: row("the member may reconnect", RegionMembers.on_member_disconnected),
        CHECKPOINTING: row("the member may reconnect", RegionMembers.on_member_disconnected),
        COMMITTING: row("the member may reconnect", RegionMembers.on_member_disconnected),
        RESETTING: row("the member may reconnect", RegionMembers.on_member_disconnected),
        STOPPED: ignored(NO_MEMBERS),
    },
    ProcessEnded: {
        FORMING: row("its members are dead, and not waited for: the region resets when the others are there",
                      RegionMembers.on_process_ended, RUNNING, DRAINING, *RESETS_OR_STOPS),
        RUNNING: row("its members are dead: the region resets",
                      RegionMembers.on_process_ended, DRAINING, *RESETS_OR_STOPS),
        DRAINING: row("its members are dead: the region resets",
                       RegionMembers.on_process_ended, RUNNING, *RESETS_OR_STOPS),
        CHECKPOINTING: row("its members are dead: the region resets", RegionMembers.on_process_ended,
                            RUNNING, DRAINING, *RESETS_OR_STOPS),
        COMMITTING: row("its members are dead: the region resets when the outcome is known; at once while a "
                         "generation is requested", RegionMembers.on_process_ended, *RESETS_OR_STOPS),
        RESETTING: row("its members are not waited for", RegionMembers.on_process_ended, RUNNING, DRAINING),
        STOPPED: ignored(NO_MEMBERS),
    },
    MemberStopRequested: {
        FORMING: row("the member leaves when all members have registered", RegionMembers.stop_member),
        RUNNING: row("a checkpoint begins, then the member leaves", RegionMembers.stop_member, DRAINING),
        DRAINING: row("the member leaves after this checkpoint; at once if it holds nothing",
                       RegionMembers.stop_member, RUNNING),
        CHECKPOINTING: row(
            "the member leaves after this checkpoint; at once if it holds nothing",
            RegionMembers.stop_member, RUNNING, DRAINING
        ),
        COMMITTING: row("the member leaves after the next checkpoint; at once if it holds and gave nothing",
                         RegionMembers.stop_member),
        RESETTING: row("the member leaves at once, or when it has published", RegionMembers.stop_member,
                        RUNNING, DRAINING),
        STOPPED: ignored(NO_MEMBERS),
    },
}  # fmt: skip
"""The transitions of a region by the events of its members: an entry for each event in each state."""
