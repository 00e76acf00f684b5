"""Membership of a region: members register, reconnect, move, leave and are lost."""

from __future__ import annotations

from kohort.region.agreement import compare
from kohort.region.control_plane import checkpoints, recovery, starts
from kohort.region.control_plane.events import (
    Disconnected,
    Heard,
    LogLevel,
    LookAtProcess,
    MemberStopRequested,
    ProcessEnded,
)
from kohort.region.control_plane.state import NOWHERE, SOMEWHERE, MemberPhase, Plane, RegisteredMember, Why
from kohort.region.messages import (
    Checkpoint,
    Drain,
    Identify,
    Leave,
    Members,
    Moved,
    Publish,
    Refused,
    Register,
    Reset,
    Stop,
    Welcome,
)
from kohort.region.parts import Part, part_of
from kohort.region.records import Epoch
from kohort.region.states import RegionState

_HERE = (RegionState.RUNNING, RegionState.DRAINING, RegionState.CHECKPOINTING, RegionState.COMMITTING)


def register(plane: Plane, event: Heard) -> None:
    """Register a new or returning member. A second member of a name fences the first, unless it has only slept."""
    report = event.report
    assert isinstance(report, Register)
    plane.waiting_to_register.pop(event.connection, None)
    known = plane.members.get(report.name)
    if known is not None and known.incarnation == report.incarnation:
        _reconnect(plane, known, report, event.connection)
        if not _is_of_another_history(plane, report):
            offer_publish(plane)  # it may have missed the order
        return
    if known is not None and 0 <= report.epoch < known.epoch:
        _refuse_replaced(plane, known, event.connection)
        return
    if known is not None:
        _fence(plane, known)
    member = RegisteredMember(
        report.name, report.incarnation, report.group, report.identity, event.connection, report.sink, report.shares,
        report.of, report.sources, report.pinned, report.process, letters=report.letters,
    )  # fmt: skip
    plane.members[member.name] = member
    plane.by_connection[event.connection] = member.name
    _inherit(plane, member)
    if report.epoch >= 0:
        _take_on(plane, member, report)
    for sibling in plane.siblings(member):
        member.leaves, member.stop = member.leaves or sibling.leaves, member.stop or sibling.stop
    plane.miss_siblings(member)
    plane.expected.pop(member.name, None)
    plane.say_all(Members(plane.term, plane.names()))
    if _is_of_another_history(plane, report):
        return
    if plane.state is RegionState.FORMING:
        form(plane)
    elif not _is_refused(plane, member):
        admit(plane, member)
        if member.of:  # its siblings may have waited for it
            starts.serve(plane)
            checkpoints.begin_if_due(plane)
    offer_publish(plane)


def _is_of_another_history(plane: Plane, report: Register) -> bool:
    """Stop the region if a sink disagrees with the region's topic, before anything is published there."""
    for place, shows in ((report.sink, report.shows), (report.letters, report.letters_show)):
        found = compare(plane.region, place, shows, plane.bounds(place))
        if found is not None:
            remedy = f"{found.remedy}; in each case then {recovery.how_to_resume(plane)}"
            recovery.stop(plane, f"{report.name}: {found.cause}", report.name, remedy)
            return True
    return False


def _inherit(plane: Plane, member: RegisteredMember) -> None:
    """Give keys that an earlier release staged, without naming a sink, to the first member that has a sink."""
    if member.sink and SOMEWHERE in plane.owed:
        plane.owed[member.sink] = plane.owed.pop(SOMEWHERE)
        plane.places.add(member.sink)


def _is_refused(plane: Plane, member: RegisteredMember) -> bool:
    """Refuse a new member that can't share its group, because its state or another member's there does not move.

    The other member may be away while its state waits. A member that was there before and returns with its partitions
    is never refused.
    """
    if member.epoch >= 0 and member.phase is MemberPhase.READING:
        return False
    there = [
        other
        for other in plane.members.values()
        if other is not member and other.group == member.group and not other.left
    ]
    alone = [candidate for candidate in (member, *there) if not candidate.shares]
    owners = _owners_of_reserved_state(plane, member)
    if there and alone:
        others = ", ".join(other.name for other in there)
        why = (
            f"group {member.group!r} is read by {others}, and the state of {alone[0].name} does not move when a "
            "partition does: its results would be wrong"
        )
        remedy = f"give {alone[0].name} a group of its own, or end the other first"
    elif owners:
        why = (
            f"what {member.name} would read in group {member.group!r} would be missing in the state of {owners}, which "
            "is kept also while it is away: its results would be wrong"
        )
        remedy = (
            f"start {owners} instead, or give {member.name} a group of its own; to forget that state, restart from "
            f"the beginning: `kohort region reset {plane.region} --to-initial --empty-sinks --execute`"
        )
    else:
        return False
    plane.tell(LogLevel.WARNING, f"region {plane.region}: {member.name} is refused: {why}")
    plane.say(member, Refused(plane.term, why, remedy))
    plane.close(member.connection)
    plane.drop(member)
    return True


def _owners_of_reserved_state(plane: Plane, member: RegisteredMember) -> str:
    """Return the owners of a group's reserved state.

    Members that are away, and of pinned queries also connected ones.
    """
    return ", ".join(
        sorted(
            name
            for name, reservation in plane.reserved.items()
            if name != member.name
            and (reservation.pinned or name not in plane.members or plane.members[name].left)
            and reservation.group == member.group
            and (not reservation.pinned or reservation.pinned != member.pinned)
        )
    )


def _refuse_members_that_cannot_share(plane: Plane) -> None:
    """Refuse members that can't share a group.

    Earlier members win, then owners of waiting state, then by registration.
    """
    newcomers = [
        newcomer
        for newcomer in plane.members.values()
        if newcomer.epoch < 0 or newcomer.phase is MemberPhase.GOING_BACK
    ]
    newcomers.reverse()
    for member in sorted(newcomers, key=lambda newcomer: (newcomer.epoch, newcomer.name in plane.reserved)):
        _is_refused(plane, member)


def _fence(plane: Plane, known: RegisteredMember) -> None:
    why = f"another member of region {plane.region!r} has registered as {known.name!r}"
    for sibling in plane.siblings(known):
        plane.say(sibling, Refused(plane.term, why))
    gone(plane, known, f"{known.name} was restarted, or started twice")


def _refuse_replaced(plane: Plane, known: RegisteredMember, connection: int) -> None:
    """Refuse a member that returns after another one has taken its name: none of its work counts."""
    why = f"while it slept, another member of region {plane.region!r} has begun as {known.name!r}"
    plane.say_to(connection, Refused(plane.term, why))
    plane.close(connection)


def _take_on(plane: Plane, member: RegisteredMember, report: Register) -> None:
    """Accept a member of an earlier control plane with its partitions, or let it reset alone."""
    counts = report.contributed == plane.sequence and plane.counts(report.name, report.epoch)
    begins = report.ends if counts else ()
    held: dict[Part, int] = {part_of(position): position.offset for position in (*report.holds, *begins)}
    starts_now = {part: plane.start_of(part) for part in held}
    sound = all(start is not None and start.offset == held[part] for part, start in starts_now.items())
    alone = all(plane.holder_of(part) is None for part in held)
    member.epoch = report.epoch
    if plane.floor <= report.epoch <= plane.epoch and sound and alone:
        member.handed = held
    else:
        member.phase = MemberPhase.GOING_BACK


def admit(plane: Plane, member: RegisteredMember) -> None:
    """Let a member work: in a new epoch if it has just started or must reset alone."""
    if member.epoch >= 0 and member.phase is MemberPhase.READING:
        plane.say(member, welcome(plane, member))
        return
    plane.epoch += 1
    epoch, before = plane.epoch, member.epoch

    def saved() -> None:
        if plane.members.get(member.name) is not member or epoch < plane.floor:
            return
        if member.epoch != before:
            return  # a reset of all members has sent it
        fresh, member.epoch = member.epoch < 0, epoch
        order = welcome(plane, member, fresh=True) if fresh else going_back(plane, member)
        plane.say(member, order)
        go_on(plane)

    cause = f"{member.name} has started" if member.epoch < 0 else f"{member.name} goes back alone"
    plane.save([Epoch(plane.region, epoch, plane.term, plane.floor, plane.consecutive, cause, plane.now_ms)], saved)


def welcome(plane: Plane, member: RegisteredMember, *, fresh: bool = False) -> Welcome:
    """Return the welcome message of a registered member."""
    state = plane.states.get(member.name) if fresh else None
    cutting = plane.cutting
    cut = cutting.cut if cutting is not None and member.name in cutting.names else None
    counts = plane.counts(member.name, member.epoch)
    return Welcome(plane.term, member.epoch, plane.sequence, plane.names(), state, cut, counts)


def going_back(plane: Plane, member: RegisteredMember) -> Reset:
    """Return the reset order of a member."""
    return Reset(plane.term, member.epoch, plane.sequence, plane.states.get(member.name))


def _reconnect(plane: Plane, member: RegisteredMember, report: Register, connection: int) -> None:
    """Attach a known member's new connection: send again what it may have missed, and expect its requests again."""
    if member.connection not in (NOWHERE, connection):
        plane.by_connection.pop(member.connection, None)
        plane.close(member.connection)
    member.connection, member.lost_ms = connection, None
    member.waits_for = ""  # one that still waits says so again: what it said last may have been lost
    plane.by_connection[connection] = member.name
    plane.due.pop(f"lost {member.name}", None)
    plane.asked = [request for request in plane.asked if request.member != member.name]
    member.identity, member.process = report.identity, report.process
    held = {part_of(position) for position in report.holds}
    checkpoints.let_go(plane, member, [part for part in member.handed if part not in held])
    member.handed = {part: begin for part, begin in member.handed.items() if part in held}
    if member.epoch < 0 or plane.state in (RegionState.FORMING, RegionState.STOPPED):
        return
    if member.phase is MemberPhase.GOING_BACK:
        if member.epoch >= plane.floor:
            plane.say(member, going_back(plane, member))
        return
    plane.say(member, welcome(plane, member, fresh=report.epoch < 0))
    cutting = plane.cutting
    if cutting is not None and member.name in cutting.names:
        if plane.state is RegionState.DRAINING and member.phase is MemberPhase.READING:
            plane.say(member, Drain(plane.term, cutting.cut))
        elif plane.state is RegionState.CHECKPOINTING and member.phase is MemberPhase.DRAINED:
            plane.say(member, Checkpoint(plane.term, cutting.cut, cutting.names))
        elif member.name in cutting.unidentified:
            plane.say(member, Identify(plane.term, cutting.cut))
    checkpoints.begin_if_due(plane)


def form(plane: Plane) -> None:
    """Begin when every expected member has registered or is dead."""
    _drop_expected_that_ended(plane)
    if plane.expected or not plane.members:
        return
    plane.due.pop("forming", None)
    _refuse_members_that_cannot_share(plane)
    old = [member for member in plane.members.values() if member.epoch >= 0 and member.phase is MemberPhase.READING]
    plane.state = RegionState.RUNNING
    if plane.pending is not None:
        recovery.begin_pending(plane)
        return
    if not old:
        plane.floor = plane.epoch + 1  # earlier staged rows are discarded
    for member in list(plane.members.values()):
        admit(plane, member)
    checkpoints.schedule(plane)
    starts.serve(plane)
    checkpoints.begin_if_due(plane)


def _drop_expected_that_ended(plane: Plane) -> None:
    """Stop waiting for members whose process has ended, if others are working.

    If none is, waiting for all loses nothing: whoever starts them again starts them together.
    """
    dead = sorted(name for name, process in plane.expected.items() if process in plane.ended)
    if dead and len(dead) == len(plane.expected) and any(member.epoch >= 0 for member in plane.members.values()):
        plane.expected.clear()
        recovery.ask(plane, Why.DEAD, f"{', '.join(dead)}: the process has ended")


def offer_publish(plane: Plane) -> None:
    """Order the publication of the last sequence, for each sink by a connected member that writes to it."""
    ends = tuple(position for _, position in sorted(plane.positions.items()))
    for place, keys in plane.owed.items():
        publisher = plane.publisher(place)
        if publisher is not None:
            number = plane.number_in(place)
            plane.say(publisher, Publish(plane.term, number, keys, plane.saved_floor, plane.empties, place, ends))


def moved(plane: Plane, event: Heard) -> None:
    """Handle a member's changed group membership, or its release of partitions."""
    report, member = event.report, plane.member_on(event.connection)
    assert isinstance(report, Moved)
    if member is None:
        return
    member.identity = report.identity
    for part in report.gone:
        member.handed.pop(part, None)
    starts.forget(plane, member, report.gone)
    checkpoints.identified(plane, member)
    checkpoints.let_go(plane, member, report.gone)
    starts.serve(plane)


def leave(plane: Plane, event: Heard) -> None:
    """Handle a member's request to leave."""
    assert isinstance(event.report, Leave)
    member = plane.member_on(event.connection)
    if member is not None:
        _goes(plane, member)


def stop_member(plane: Plane, event: MemberStopRequested) -> None:
    """Handle an operator's request that a member leaves."""
    member = plane.members.get(event.name)
    if member is None:
        plane.tell(LogLevel.WARNING, f"region {plane.region}: there is no member {event.name!r} to stop")
        return
    for sibling in plane.siblings(member):
        sibling.stop = True
    _goes(plane, member)


def _goes(plane: Plane, member: RegisteredMember) -> None:
    those, cutting = plane.siblings(member), plane.cutting
    for sibling in those:
        sibling.leaves = True
    plane.miss_siblings(member)
    is_cut = cutting is not None and any(sibling.name in cutting.names for sibling in those)
    holds = any(sibling.handed for sibling in those) or not plane.is_whole(member)
    if holds or (is_cut and plane.state is RegionState.COMMITTING):
        if plane.state in _HERE:
            checkpoints.want(plane)
        return
    _let_all_leave(plane, those)
    if is_cut:
        checkpoints.begin_again(plane, f"{member.name} has left")
    go_on(plane)


def _let_all_leave(plane: Plane, those: list[RegisteredMember]) -> None:
    left = any(_alone_can_publish(plane, sibling) for sibling in those)
    for sibling in those:
        sibling.left = left
        sibling.handed.clear()
        if not left:
            let_leave(plane, sibling)


def _alone_can_publish(plane: Plane, member: RegisteredMember) -> bool:
    """Return whether the member must stay: one of its sinks would not show a sequence that it needs to show."""
    if member.lost_ms is not None:
        return False
    others = [other for other in plane.members.values() if other is not member and other.lost_ms is None]
    elsewhere = {place for other in others for place in other.places}
    return any(plane.needs(place) for place in member.places if place not in elsewhere)


def let_leave(plane: Plane, member: RegisteredMember) -> None:
    """Unregister a member that leaves in order."""
    stopped = ("the member was stopped", "start it again when it is wanted") if member.stop else ("", "")
    plane.say(member, Stop(plane.term, *stopped))
    plane.tell(LogLevel.INFO, f"region {plane.region}: {member.name} has left")
    plane.drop(member)
    offer_publish(plane)


def disconnected(plane: Plane, event: Disconnected) -> None:
    """Start the reconnect deadline of a member, as after a takeover, and check whether its process has ended."""
    plane.waiting_to_register.pop(event.connection, None)
    member = plane.member_on(event.connection)
    if member is None:
        return
    plane.by_connection.pop(event.connection, None)
    member.connection, member.lost_ms = NOWHERE, plane.now_ms
    plane.due[f"lost {member.name}"] = plane.now_ms + plane.config.register_ms
    if member.process:
        plane.effects.append(LookAtProcess(member.process))
    offer_publish(plane)


def process_ended(plane: Plane, event: ProcessEnded) -> None:
    """Remove the members of an ended process. A last message of one may still be on its way."""
    for member in list(plane.members.values()):
        there = plane.members.get(member.name) is member  # a sibling's end may have removed it
        if there and member.lost_ms is not None and member.process == event.process:
            gone(plane, member, f"{member.name}: its process has ended")
    if event.process in plane.expected.values():
        plane.ended.add(event.process)
        form(plane)


def look_for_lost(plane: Plane) -> None:
    """Remove members that have not reconnected in time."""
    for member in list(plane.members.values()):
        there = plane.members.get(member.name) is member  # a sibling's end may have removed it
        if there and member.lost_ms is not None and plane.now_ms >= member.lost_ms + plane.config.register_ms:
            gone(plane, member, f"{member.name} did not reconnect in time")


def look_for_missing(plane: Plane) -> None:
    """Remove members that have not registered with a new control plane in time."""
    if plane.now_ms >= plane.due.get("forming", plane.now_ms + 1):
        names = ", ".join(plane.expected)
        plane.expected.clear()
        plane.due.pop("forming")
        recovery.ask(plane, Why.DEAD, f"{names} did not register with the new control plane")
        form(plane)


def look_for_siblings(plane: Plane) -> None:
    """Remove a query of which a member has not registered in time, if it has read anything."""
    late = [
        registered
        for registered in plane.members.values()
        if plane.now_ms >= plane.due.get(f"siblings {registered.of}", plane.now_ms + 1)
    ]
    for member in late:
        those = plane.siblings(member)
        plane.due.pop(f"siblings {member.of}", None)
        if plane.members.get(member.name) is not member:
            continue  # removed with another
        if all(sibling.leaves for sibling in those):
            _let_all_leave(plane, those)
            go_on(plane)
        elif any(sibling.handed for sibling in those):
            gone(plane, member, f"{member.name} reads with {member.sources - 1} more, and not all have registered")


def gone(plane: Plane, member: RegisteredMember, cause: str) -> None:
    """Remove a dead member and its siblings: their work since the last sequence is lost."""
    those, cutting = plane.siblings(member), plane.cutting
    held = any(sibling.handed for sibling in those)
    for sibling in those:
        plane.drop(sibling)
        if sibling.connection != NOWHERE:
            plane.close(sibling.connection)  # a live member reconnects, and resets with the others
    offer_publish(plane)
    if plane.state is RegionState.RESETTING or not held:
        if cutting is not None and any(sibling.name in cutting.names for sibling in those):
            checkpoints.begin_again(plane, cause)
        go_on(plane)
    else:
        recovery.ask(plane, Why.DEAD, cause, member.name)


def go_on(plane: Plane) -> None:
    """Continue what may have waited for a member that is gone."""
    if plane.state is RegionState.RESETTING:
        recovery.end_if_all_are_back(plane)
    starts.serve(plane)
    checkpoints.begin_if_due(plane)
