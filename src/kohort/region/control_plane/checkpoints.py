"""Checkpoints: all members drain, save their state and contribute; the merged result is committed as a sequence.

Source: spec 5.9, 5.10.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kohort.region.control_plane.events import (
    CheckpointFailed,
    CommitCheckpoint,
    CommitEnded,
    DeferredResetMayBegin,
    FindOutsideClients,
    LogLevel,
    MemberOffsets,
    MembersChanged,
    MessageReceived,
    OutsideClientsChecked,
    PendingCommitSettled,
    ResetCause,
    ResetRequest,
    StopRequest,
)
from kohort.region.control_plane.starts import StartOffsets
from kohort.region.control_plane.state import ControlPlaneState, MemberPhase, OngoingCheckpoint, RegisteredMember
from kohort.region.control_plane.table import (
    CHECKPOINTING,
    COMMITTING,
    DRAINING,
    FORMING,
    NO_MEMBERS,
    RESETS_ANYWAY,
    RESETS_OR_STOPS,
    RESETTING,
    RUNNING,
    STOPPED,
    Table,
    ignored,
    row,
)
from kohort.region.messages import (
    CheckpointAttempt,
    CheckpointCompleted,
    CheckpointPublished,
    CheckpointRequest,
    ContributeOrder,
    ContributionReport,
    DrainFailed,
    DrainOrder,
    GroupGenerationRequest,
    Identity,
    MemberDrained,
    PublishFailed,
    RevokedPartitionsHeld,
    WaitingForSink,
)
from kohort.region.records import (
    Contribution,
    Manifest,
    OffsetSpan,
    Part,
    Position,
    PublishedCheckpoint,
    groups_reserved_by_states,
    staged_keys_by_sink,
    to_part,
)
from kohort.region.states import RegionState

KEPT = 2
"""Complete sequences that are kept: the last, and the one before it for members that do not know the last one yet."""


class Checkpoints:
    """The part of the control plane that begins, restarts, commits and publishes checkpoints."""

    def __init__(self, plane: ControlPlaneState, starts: StartOffsets) -> None:
        self.plane, self.starts = plane, starts

    # -- beginning a checkpoint

    def schedule_next_checkpoint(self) -> None:
        """Set the time of the next periodic checkpoint; do nothing if checkpoints are made on request only."""
        plane = self.plane
        if plane.config.checkpoint_every_ms is not None:
            plane.due["checkpoint"] = plane.now_ms + plane.config.checkpoint_every_ms

    def request_checkpoint_if_due(self) -> None:
        """Request a checkpoint if the time of the next periodic one has come."""
        plane = self.plane
        if plane.now_ms >= plane.due.get("checkpoint", plane.now_ms + 1):
            del plane.due["checkpoint"]
            self.request_checkpoint()

    def on_checkpoint_requested(self, event: MessageReceived) -> None:
        """Handle a request for a checkpoint: an operator's, an application's, or one to give partitions up."""
        assert isinstance(event.report, CheckpointRequest | RevokedPartitionsHeld)
        self.request_checkpoint()

    def request_checkpoint(self) -> None:
        """Request a checkpoint. It begins once every participant is ready, and after the one in progress."""
        self.plane.wanted = True
        self.begin_checkpoint_if_ready()

    def want_if_member_leaves(self) -> None:
        """Request a checkpoint if a member waits for one to leave; begin a requested one if all are ready."""
        plane = self.plane
        plane.wanted = plane.wanted or any(member.leaves and not member.left for member in plane.members.values())
        self.begin_checkpoint_if_ready()

    def begin_checkpoint_if_ready(self) -> None:
        """Begin the checkpoint that was requested, if every participant is connected and reading."""
        plane = self.plane
        names = plane.checkpoint_participants()
        those = [plane.members[name] for name in names]
        ready = all(
            member.phase is MemberPhase.READING
            and member.lost_ms is None
            and member.epoch >= 0
            and plane.has_all_query_members(member)
            for member in those
        )
        if plane.state is RegionState.RUNNING and plane.wanted and names and ready:
            plane.wanted = False
            plane.due.pop("checkpoint", None)
            self._begin_attempt(names)

    def _begin_attempt(self, names: tuple[str, ...]) -> None:
        plane = self.plane
        plane.attempts += 1
        plane.metrics.record_checkpoint_begin(plane.now_ms)
        # An attempt that is repeated keeps its deadline.
        plane.due.setdefault("cut", plane.now_ms + plane.config.drain_ms)
        plane.state = RegionState.DRAINING
        plane.ongoing = OngoingCheckpoint(CheckpointAttempt(plane.sequence + 1, plane.attempts), names)
        for name in names:
            plane.members[name].phase = MemberPhase.READING
            plane.send(plane.members[name], DrainOrder(plane.term, plane.ongoing.cut))

    def restart_attempt(self, reason: str) -> None:
        """Restart the checkpoint in progress with a new attempt: contributions are invalid, but no data is lost.

        Members that are drained stay so. If no participant is left, the checkpoint is abandoned.
        """
        plane = self.plane
        ongoing = plane.ongoing
        if plane.state not in (RegionState.DRAINING, RegionState.CHECKPOINTING) or ongoing is None:
            return
        plane.log(LogLevel.INFO, f"region {plane.region}: {ongoing.cut} restarts: {reason}")
        checkpoint_participants = plane.checkpoint_participants()
        names = tuple(name for name in ongoing.names if name in checkpoint_participants)
        if names:
            self._begin_attempt(names)
        else:
            plane.ongoing, plane.state = None, RegionState.RUNNING
            plane.metrics.record_checkpoint_end(plane.now_ms, complete=False)
            plane.due.pop("cut", None)
            self.schedule_next_checkpoint()

    def reset_if_overdue(self) -> None:
        """Reset the region if a member does not drain, contribute or report its generation before the deadline.

        If all late members wait for their sinks, set a new deadline instead.
        """
        plane = self.plane
        ongoing = plane.ongoing
        if ongoing is None or plane.now_ms < plane.due.get("cut", plane.now_ms + 1):
            return
        waiting = MemberPhase.CONTRIBUTED if plane.state is RegionState.CHECKPOINTING else MemberPhase.DRAINED
        late = [name for name in ongoing.names if name in plane.members and plane.members[name].phase is not waiting]
        late = sorted(ongoing.unidentified) if plane.state is RegionState.COMMITTING else late
        if self.all_wait_for_sinks(late):
            plane.due["cut"] = plane.now_ms + plane.config.drain_ms
            return
        plane.request(
            CheckpointFailed(ResetCause.LATE, f"{', '.join(late)} did not take part in {ongoing.cut} in time")
        )

    def all_wait_for_sinks(self, late: list[str]) -> bool:
        """Return whether every late member waits for an unavailable sink, which no reset repairs."""
        members = self.plane.members
        return bool(late) and all(name in members and members[name].waits_for for name in late)

    # -- contributions

    def _sender_in_checkpoint(self, event: MessageReceived, cut: CheckpointAttempt) -> RegisteredMember | None:
        """Return the sender if it participates in the current checkpoint attempt and its message names that attempt."""
        member, ongoing = self.plane.member_on_connection(event.connection), self.plane.ongoing
        if member is None or ongoing is None or cut != ongoing.cut or member.name not in ongoing.names:
            return None
        return member

    def on_drained(self, event: MessageReceived) -> None:
        """Handle the report that a member is drained: it has finished its table and committed.

        After the last one, order all members to save their state.
        """
        plane = self.plane
        report, ongoing = event.report, plane.ongoing
        assert isinstance(report, MemberDrained)
        member = self._sender_in_checkpoint(event, report.cut)
        if member is None or ongoing is None:
            return
        member.phase = MemberPhase.DRAINED
        if all(name in plane.members and plane.members[name].phase is MemberPhase.DRAINED for name in ongoing.names):
            plane.state = RegionState.CHECKPOINTING
            for name in ongoing.names:
                plane.send(plane.members[name], ContributeOrder(plane.term, ongoing.cut, ongoing.names))

    def on_drain_failed(self, event: MessageReceived) -> None:
        """Reset the region, because a member can't drain: an offset can't be committed, or a state can't be saved."""
        report = event.report
        assert isinstance(report, DrainFailed)
        member = self._sender_in_checkpoint(event, report.cut)
        if member is not None:
            self.plane.request(
                ResetRequest(ResetCause.DRAIN, f"{member.name} could not be drained: {report.cause}", member.name)
            )

    def on_contributed(self, event: MessageReceived) -> None:
        """Check and keep a member's contribution; commit when all members have contributed.

        An invalid contribution resets the region.
        """
        report, ongoing = event.report, self.plane.ongoing
        assert isinstance(report, ContributionReport)
        member = self._sender_in_checkpoint(event, report.cut)
        if member is None or ongoing is None or member.phase is not MemberPhase.DRAINED:
            return
        wrong = self._wrong(ongoing, member, report.contribution)
        if wrong:
            self.plane.request(ResetRequest(ResetCause.CONTRIBUTION, f"{member.name} contributed {wrong}", member.name))
            return
        member.phase = MemberPhase.CONTRIBUTED
        ongoing.contributions[member.name] = replace(
            report.contribution, shares=member.shares, pinned=member.pinned, process=member.process
        )
        self.commit_if_all_contributed()

    def _wrong(self, ongoing: OngoingCheckpoint, member: RegisteredMember, given: Contribution) -> str:
        """Return why a contribution is invalid, such as a gap or a partition of another member; empty: it is valid."""
        meant = (given.member, given.term, given.epoch, given.sequence, given.group)
        if meant != (member.name, self.plane.term, member.epoch, ongoing.cut.sequence, member.group):
            return f"as of another time: {meant}"
        if given.sink != member.sink or (given.keys and not given.sink):
            return f"what it staged for {given.sink or 'no sink'!r}, and it writes to {member.sink or 'none'!r}"
        if given.letters != member.letters or bool(given.letter_keys) != bool(given.dead_letters):
            units = len(given.letter_keys)
            return f"{given.dead_letters} dead letters in {units} units for {given.letters or 'no place'!r}"
        taken = {to_part(span) for other in ongoing.contributions.values() for span in other.spans}
        for span in given.spans:
            part, start = to_part(span), self.plane.saved_position(to_part(span))
            if start is None or span.begin != start.offset:
                known = "nothing" if start is None else start.offset
                return f"{part} from {span.begin} on, where the region has come to {known}"
            if span.end < span.begin:
                return f"{part} from {span.begin} to {span.end}"
            if start.state is not None and span.state is None:
                return f"{part} without its keyed state"
            if part in taken:
                return f"{part}, which another member contributed too"
            if part not in member.handed:
                return f"{part}, which it was not given to read"
            taken.add(part)
        if {to_part(span) for span in given.spans} != set(member.handed):
            return "less than all that it was given to read"
        return ""

    def invalidate_contribution(self, name: str, parts: Iterable[Part]) -> None:
        """Restart the checkpoint if a member has released partitions that it had contributed."""
        ongoing = self.plane.ongoing
        given = None if ongoing is None else ongoing.contributions.get(name)
        if given is not None and {to_part(span) for span in given.spans}.intersection(parts):
            self.restart_attempt(f"{name} released partitions that it had contributed")

    # -- the commit point

    def commit_if_all_contributed(self) -> None:
        """Commit the checkpoint if all members have contributed and the previous one is published in all sinks."""
        plane = self.plane
        ongoing = plane.ongoing
        if plane.state is not RegionState.CHECKPOINTING or ongoing is None:
            return
        if set(ongoing.contributions) != set(ongoing.names):
            return
        if plane.unpublished:
            plane.due.pop("cut", None)  # the publication is late, not a member
            for place in [
                unserved for unserved in sorted(plane.unpublished) if plane.publishing_member(unserved) is None
            ]:
                plane.log(
                    LogLevel.WARNING,
                    f"region {plane.region}: {ongoing.cut} waits for the publication of sequence {plane.sequence} "
                    f"to {place}, and no member that writes there is registered: start one",
                )
            return
        ends = {
            to_part(span): _end_of(span)
            for contribution in ongoing.contributions.values()
            for span in contribution.spans
        }
        stay = tuple(name for name in ongoing.names if name in plane.members and not plane.members[name].leaves)
        merged = tuple(position for _, position in sorted({**plane.all_positions(), **ends}.items()))
        before = set() if plane.empties else plane.places  # the sinks are empty now
        places = before | set(staged_keys_by_sink(ongoing.contributions.values()))
        ongoing.manifest = Manifest(
            plane.region,
            plane.region_id,
            ongoing.cut.sequence,
            plane.term,
            plane.floor,
            plane.now_ms,
            ongoing.names,
            stay,
            merged,
            places=tuple(sorted(places)),
            away={name: sequence for name, sequence in plane.waiting.items() if name not in ongoing.names},
        )
        plane.state = RegionState.COMMITTING
        self._commit(ongoing)

    def _commit(self, ongoing: OngoingCheckpoint) -> None:
        assert ongoing.manifest is not None
        self.plane.due.pop("cut", None)  # no deadline: the commit may succeed late
        given = tuple(ongoing.contributions[name] for name in ongoing.names)
        offsets = tuple(
            MemberOffsets(
                contribution.member,
                contribution.group,
                Identity(contribution.member_id, contribution.generation, contribution.instance_id),
                tuple(map(_end_of, contribution.spans)),
            )
            for contribution in given
            if contribution.spans
        )
        self.plane.effects.append(CommitCheckpoint(ongoing.cut, ongoing.manifest, given, offsets))

    def on_commit_ended(self, event: CommitEnded) -> None:
        """Handle the outcome of a commit: the checkpoint is complete, or offsets were refused and nothing was written.

        A member whose offsets were refused is asked for its new generation. If it is gone from its group, the region
        resets.
        """
        plane = self.plane
        ongoing = plane.ongoing
        if ongoing is None or ongoing.cut != event.cut:
            return
        if not event.refused:
            self._complete(ongoing)
            return
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(event.refused.items()))
        if plane.pending is not None or event.gone or not set(event.refused) <= set(plane.members):
            plane.request(CheckpointFailed(ResetCause.COMMIT, f"the offsets of {ongoing.cut} were refused: {reasons}"))
            return
        plane.log(LogLevel.INFO, f"region {plane.region}: the offsets of {ongoing.cut} were refused: {reasons}")
        ongoing.unidentified = frozenset(event.refused)
        plane.due["cut"] = plane.now_ms + plane.config.drain_ms
        for name in event.refused:
            member, given = plane.members[name], ongoing.contributions[name]
            if member.identity != Identity(given.member_id, given.generation, given.instance_id):
                self.commit_with_new_generation(member)  # it has reported its new generation meanwhile
            else:
                plane.send(member, GroupGenerationRequest(plane.term, ongoing.cut))

    def on_commit_ended_when_stopped(self, event: CommitEnded) -> None:
        """Handle the outcome of a commit that was pending when the region stopped.

        If it succeeded, the region continues from this checkpoint when it is resumed.
        """
        ongoing = self.plane.ongoing
        if ongoing is None or ongoing.cut != event.cut:
            return
        self.plane.ongoing = None
        if not event.refused:
            self._stands(ongoing)
        self.plane.request(PendingCommitSettled())

    def commit_with_new_generation(self, member: RegisteredMember) -> None:
        """Retry the commit with the new group generation that a refused member has reported.

        If the member no longer holds all partitions that it contributed, the checkpoint restarts.
        """
        ongoing = self.plane.ongoing
        if ongoing is None or member.name not in ongoing.unidentified:
            return
        given = ongoing.contributions[member.name]
        if not {to_part(span) for span in given.spans} <= set(member.handed):
            ongoing.unidentified = frozenset()
            self.plane.state = RegionState.CHECKPOINTING
            self.restart_attempt(f"{member.name} no longer holds what it contributed")
            return
        who = member.identity
        ongoing.contributions[member.name] = replace(
            given, member_id=who.member_id, generation=who.generation, instance_id=who.instance_id
        )
        ongoing.unidentified -= {member.name}
        if not ongoing.unidentified:
            self._commit(ongoing)

    def _stands(self, ongoing: OngoingCheckpoint) -> None:
        """Make the checkpoint that was just committed the last complete one in the control plane's state."""
        plane = self.plane
        assert ongoing.manifest is not None
        plane.sequence, plane.ongoing, plane.consecutive = ongoing.cut.sequence, None, 0
        plane.positions = {to_part(position): position for position in ongoing.manifest.positions}
        given, away = ongoing.contributions, ongoing.manifest.away
        plane.states = {name: plane.states[name] for name in away} | {
            name: contribution.state for name, contribution in given.items()
        }
        plane.waiting = away | {name: plane.sequence for name, contribution in given.items() if contribution.keeps}
        plane.contributors = {name: contribution.epoch for name, contribution in given.items()}
        for name in given.keys() & plane.members.keys():
            plane.members[name].dead_letters += given[name].dead_letters
        kept = {name: reservation for name, reservation in plane.reserved.items() if name in away}
        plane.reserved = kept | groups_reserved_by_states(given.values())
        plane.empties, plane.made_as, plane.places = False, 0, set(ongoing.manifest.places)
        plane.set_unpublished(staged_keys_by_sink(ongoing.contributions[name] for name in ongoing.names))

    def _complete(self, ongoing: OngoingCheckpoint) -> None:
        plane = self.plane
        assert ongoing.manifest is not None
        self._stands(ongoing)
        plane.due.pop("cut", None)
        plane.metrics.record_checkpoint_end(plane.now_ms, complete=True)
        self._log_completed(ongoing)
        plane.state = RegionState.RUNNING
        for member in list(plane.members.values()):
            member.phase = MemberPhase.READING if member.phase is not MemberPhase.GOING_BACK else member.phase
            for part in member.handed:
                member.handed[part] = plane.positions[part].offset
            counts = plane.contributed_to_last_checkpoint(member.name, member.epoch)
            plane.send(member, CheckpointCompleted(plane.term, plane.sequence, max(0, plane.sequence - KEPT), counts))
        self._let_leave([name for name in ongoing.names if name not in ongoing.manifest.stay])
        self._look_for_lone()
        plane.order_publications()
        if plane.pending is not None:
            plane.request(DeferredResetMayBegin())
            return
        self.schedule_next_checkpoint()
        self.starts.hand_out_partitions()
        self.want_if_member_leaves()

    def _log_completed(self, ongoing: OngoingCheckpoint) -> None:
        """Log a complete checkpoint; one without records only at debug level."""
        plane = self.plane
        records = sum(
            span.end - span.begin for contribution in ongoing.contributions.values() for span in contribution.spans
        )
        names, took_ms = len(ongoing.names), plane.metrics.sequence_ms
        plane.log(
            LogLevel.INFO if records else LogLevel.DEBUG,
            f"region {plane.region}: sequence {plane.sequence} is complete: {records} records, members: {names}, "
            f"{took_ms} ms",
        )

    def _let_leave(self, names: Iterable[str]) -> None:
        """Unregister members that leave with this checkpoint.

        If a member is the only one that can still publish to a sink, it stays until it has, with all members of its
        query.
        """
        plane = self.plane
        going = [plane.members[name] for name in names if name in plane.members and plane.members[name].leaves]
        here = [registered for registered in plane.members.values() if registered.lost_ms is None]
        stay = {place for member in here if member not in going for place in member.sink_names}
        able = [member for member in reversed(going) if member in here]
        last = {
            place: member
            for member in able
            for place in member.sink_names
            if place not in stay and plane.needs_publication(place)
        }
        for member in going:
            if any(
                last.get(place) is sibling for sibling in plane.query_members(member) for place in sibling.sink_names
            ):
                member.left = True
                member.handed.clear()
            else:
                plane.end_and_unregister(member)

    # -- publication

    def on_published(self, event: MessageReceived) -> None:
        """Record in the region's metadata topic that a sink shows the last checkpoint, whoever has published it."""
        plane = self.plane
        report, member = event.report, plane.member_on_connection(event.connection)
        assert isinstance(report, CheckpointPublished)
        place = "" if member is None else report.place or member.sink
        if member is None or place not in member.sink_names or place not in plane.unpublished:
            return
        if report.sequence != plane.last_checkpoint_id_in_sink(place):
            return
        shown = PublishedCheckpoint(plane.region, place, report.sequence, plane.now_ms, plane.empties)

        def continue_after_save() -> None:
            plane.shown[shown.place] = shown
            if shown.empty:
                plane.emptied.add(shown.place)
            if shown.sequence == plane.last_checkpoint_id_in_sink(shown.place):
                self._after_publication(shown.place)

        plane.save_facts([shown], continue_after_save)

    def _after_publication(self, sink_name: str) -> None:
        """Let members leave that stayed for a publication, and commit the next checkpoint if it waited for it."""
        plane = self.plane
        plane.record_published(sink_name)
        left = [member for member in plane.members.values() if member.left]
        staying = {member.of or member.name for member in left if any(map(plane.needs_publication, member.sink_names))}
        for member in [member for member in left if (member.of or member.name) not in staying]:
            plane.end_and_unregister(member)
        plane.request(MembersChanged())
        self.commit_if_all_contributed()

    def on_publish_failed(self, event: MessageReceived) -> None:
        """Log a failed publication. The member retries without limit, and the next checkpoint can't commit before."""
        plane = self.plane
        report = event.report
        assert isinstance(report, PublishFailed)
        member = plane.member_on_connection(event.connection)
        if member is not None:
            plane.unshown[report.place or member.sink] = report.cause
        plane.log(
            LogLevel.WARNING, f"region {plane.region}: sequence {report.sequence} is not published: {report.cause}"
        )

    def on_waiting_for_sink(self, event: MessageReceived) -> None:
        """Record that a member waits for its sink, or no longer does; an empty cause ends the wait.

        A checkpoint in progress waits with it, and gets a new deadline when the wait ends.
        """
        plane = self.plane
        report, member = event.report, plane.member_on_connection(event.connection)
        assert isinstance(report, WaitingForSink)
        if member is None:
            self._waits_to_register(event.connection, report)
            return
        before, member.waits_for = member.waits_for, report.cause
        if report.cause and not before:
            places = " or ".join(member.sink_names)
            text = f"region {plane.region}: waiting for sink {places}: {member.name} cannot stage: {report.cause}"
            plane.log(LogLevel.WARNING, text)
        elif before and not report.cause:
            plane.log(LogLevel.INFO, f"region {plane.region}: the sink of {member.name} accepts rows again")
            if "cut" in plane.due:
                plane.due["cut"] = plane.now_ms + plane.config.drain_ms

    def _waits_to_register(self, connection: int, report: WaitingForSink) -> None:
        """Record a connected member that can't register yet, because its sink does not answer."""
        plane = self.plane
        if report.member and connection not in plane.waiting_to_register:
            text = f"waiting for sink {report.sink} before {report.member} can register: {report.cause}"
            plane.log(LogLevel.WARNING, f"region {plane.region}: {text}")
        if report.member:
            plane.waiting_to_register[connection] = report

    def _look_for_lone(self) -> None:
        """Request descriptions of groups with partitions that no member has held for several checkpoints.

        Clients outside the region may read these partitions.
        """
        plane = self.plane
        held = {part for member in plane.members.values() for part in member.handed}
        wanted = {(asked.member, part) for asked in plane.start_requests for part in asked.parts}
        coming = {part for _, part in wanted}
        plane.lone = {
            part: plane.lone.get(part, 0) + 1
            for part in plane.all_positions()
            if part not in held and part not in coming
        }
        long = sorted(part for part, count in plane.lone.items() if count >= plane.config.lone_sequences)
        for group in sorted({part.group for part in long}):
            plane.effects.append(FindOutsideClients(group, tuple(part for part in long if part.group == group)))

    def on_outside_clients_checked(self, event: OutsideClientsChecked) -> None:
        """Stop the region if a client outside it reads in one of its groups.

        The region lacks the records that this client reads.
        """
        if not event.outsiders:
            return
        names = "; ".join(
            f"{outsider.client_id} at {outsider.host} holds {', '.join(map(str, outsider.parts))}"
            for outsider in event.outsiders
        )
        self.plane.request(
            StopRequest(
                f"group {event.group!r} has members that are not of the region: {names}",
                "",
                f"end them, or give them a group of their own, then {self.plane.resume_command()}",
            )
        )


def _end_of(span: OffsetSpan) -> Position:
    return Position(span.group, span.topic, span.topic_id, span.partition, span.end, span.leader_epoch, span.state)


_EARLIER_CUT = "it answers an earlier checkpoint"
_UNDER_WAY = "the next checkpoint is under way"
_NO_COMMIT = "no commit is pending"

TABLE: Final[Table] = {
    CheckpointRequest: {
        FORMING: row("a checkpoint begins as soon as the region runs", Checkpoints.on_checkpoint_requested),
        RUNNING: row("a checkpoint begins", Checkpoints.on_checkpoint_requested, DRAINING),
        DRAINING: ignored(_UNDER_WAY),
        CHECKPOINTING: ignored(_UNDER_WAY),
        COMMITTING: ignored(_UNDER_WAY),
        RESETTING: ignored("a member that resets counts anew"),
        STOPPED: ignored(NO_MEMBERS),
    },
    RevokedPartitionsHeld: {
        FORMING: row("a checkpoint begins as soon as the region runs", Checkpoints.on_checkpoint_requested),
        RUNNING: row("a checkpoint begins, then the member releases the partitions",
                     Checkpoints.on_checkpoint_requested, DRAINING),
        DRAINING: row("another checkpoint follows, then the member releases the partitions",
                      Checkpoints.on_checkpoint_requested),
        CHECKPOINTING: row("another checkpoint follows, then the member releases the partitions",
                           Checkpoints.on_checkpoint_requested),
        COMMITTING: row("another checkpoint follows, then the member releases the partitions",
                        Checkpoints.on_checkpoint_requested),
        RESETTING: ignored("a member that resets releases partitions at once"),
        STOPPED: ignored(NO_MEMBERS),
    },
    MemberDrained: {
        FORMING: ignored("the checkpoint that it was drained for is over"),
        RUNNING: ignored(_EARLIER_CUT),
        DRAINING: row("after the last one all members save their state", Checkpoints.on_drained, CHECKPOINTING),
        CHECKPOINTING: ignored("all are drained"),
        COMMITTING: ignored("all are drained"),
        RESETTING: ignored(RESETS_ANYWAY),
        STOPPED: ignored(NO_MEMBERS),
    },
    DrainFailed: {
        FORMING: ignored("the checkpoint that failed is over"),
        RUNNING: ignored(_EARLIER_CUT),
        DRAINING: row("the region resets", Checkpoints.on_drain_failed, *RESETS_OR_STOPS),
        CHECKPOINTING: row("the region resets", Checkpoints.on_drain_failed, *RESETS_OR_STOPS),
        COMMITTING: ignored("it has contributed"),
        RESETTING: ignored(RESETS_ANYWAY),
        STOPPED: ignored(NO_MEMBERS),
    },
    ContributionReport: {
        FORMING: ignored("the checkpoint that it contributes to is over"),
        RUNNING: ignored(_EARLIER_CUT),
        DRAINING: ignored("the checkpoint has restarted"),
        CHECKPOINTING: row("the commit follows the last one; after a wrong one the region resets",
                            Checkpoints.on_contributed, COMMITTING, *RESETS_OR_STOPS),
        COMMITTING: ignored("all have contributed"),
        RESETTING: ignored(RESETS_ANYWAY),
        STOPPED: ignored(NO_MEMBERS),
    },
    CommitEnded: {
        FORMING: ignored(_NO_COMMIT),
        RUNNING: ignored(_NO_COMMIT),
        DRAINING: ignored(_NO_COMMIT),
        CHECKPOINTING: ignored(_NO_COMMIT),
        COMMITTING: row("complete; or refused: retried under the current generation, a new checkpoint, or a reset",
                         Checkpoints.on_commit_ended, RUNNING, DRAINING, *RESETS_OR_STOPS),
        RESETTING: ignored(_NO_COMMIT),
        STOPPED: row("the region continues from what was committed, when an operator resumes it",
                      Checkpoints.on_commit_ended_when_stopped, FORMING),
    },
    CheckpointPublished: {
        state: row("saved, so that the next control plane knows it", Checkpoints.on_published) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: ignored(NO_MEMBERS)},
    PublishFailed: {
        state: row("logged; the next commit waits", Checkpoints.on_publish_failed) for state in RegionState
        if state is not STOPPED
    } | {STOPPED: ignored(NO_MEMBERS)},
    WaitingForSink: {
        state: row("recorded: the sink is unavailable, the checkpoint waits for it", Checkpoints.on_waiting_for_sink)
        for state in RegionState
        if state is not STOPPED
    } | {STOPPED: ignored(NO_MEMBERS)},
    OutsideClientsChecked: {
        state: row("the region stops if clients outside it read in a group",
                   Checkpoints.on_outside_clients_checked, STOPPED)
        for state in RegionState if state not in (STOPPED, COMMITTING)
    } | {COMMITTING: ignored("the next sequence checks again"), STOPPED: ignored(NO_MEMBERS)},
}  # fmt: skip
"""The transitions of a region by the events of its checkpoints: an entry for each event in each state."""
