"""Resets: all members return to the last complete sequence, or to the initial state.

Source: spec 5.7, "Reset processing".
"""

from __future__ import annotations

from kohort.region.control_plane import checkpoints, membership, starts
from kohort.region.control_plane.events import Heard, LogLevel, Resumed
from kohort.region.control_plane.state import MemberPhase, Pending, Plane, Why
from kohort.region.messages import AskReset, CantGoOn, Declined, Emptying, Stop, WasReset
from kohort.region.records import Epoch, Fact, Manifest, Stopped
from kohort.region.states import RegionState


def _waits(plane: Plane) -> bool:
    """Return whether a reset must wait: until all members have registered, or until a pending commit has an outcome."""
    if plane.state is RegionState.COMMITTING:
        return is_out(plane)
    return plane.state is RegionState.FORMING


def is_out(plane: Plane) -> bool:
    """Return whether a commit is pending; a refused one that waits for a generation is not."""
    cutting = plane.cutting
    return cutting is not None and cutting.manifest is not None and not cutting.unidentified


def asked(plane: Plane, event: Heard) -> None:
    """Handle a request for a reset, from a member, its application or an operator."""
    report = event.report
    assert isinstance(report, AskReset)
    if report.initial and (why_not := _unconfirmed(plane, report.confirms)):
        plane.tell(LogLevel.WARNING, f"region {plane.region}: a reset to the initial state was declined: {why_not}")
        plane.say_to(event.connection, Declined(why_not))
        return
    member = plane.member_on(event.connection)
    name = "" if member is None else member.name
    why = Why.PARTITIONS if report.forced and member is not None else Why.ASKED
    ask(plane, why, report.cause, name, forced=report.forced, initial=report.initial)


def _unconfirmed(plane: Plane, confirms: Emptying | None) -> str:
    """Return why a reset to the initial state may not delete what is published; empty: it may, or nothing is."""
    if plane.sequence == 0 and not is_out(plane):
        return ""
    if confirms is None:
        return "sequences are published, and the request does not confirm that their rows are to be deleted"
    if confirms.region_id != plane.region_id:
        return f"the request is for region {confirms.region_id}, and this one is {plane.region_id}"
    left = _written(plane) - set(confirms.places)
    return f"the request does not confirm that {', '.join(sorted(left))} is to be emptied" if left else ""


def _written(plane: Plane) -> set[str]:
    """Return all sinks that the region writes to, or has published to since they were last emptied."""
    return plane.places.union(*(member.places for member in plane.members.values()))


def ask(plane: Plane, why: Why, cause: str, member: str = "", *, forced: bool = False, initial: bool = False) -> None:
    """Begin a reset, or defer it; during one, the next attempt begins at once."""
    wanted = Pending(why, cause, member, forced, initial)
    if plane.state is RegionState.STOPPED:
        return
    if _waits(plane):
        before = plane.pending
        if before is None or wanted.initial or not before.initial:
            plane.pending = wanted
        return
    _begin(plane, wanted)


def begin_pending(plane: Plane) -> None:
    """Begin the deferred reset."""
    wanted, plane.pending = plane.pending, None
    if wanted is not None:
        _begin(plane, wanted)


def fail(plane: Plane, why: Why, cause: str) -> None:
    """Begin a reset after a failed checkpoint, of which nothing was written."""
    wanted, plane.pending = plane.pending, None
    plane.cutting = None
    _begin(plane, wanted or Pending(why, cause))


def _begin(plane: Plane, wanted: Pending) -> None:
    plane.consecutive = 0 if wanted.forced or wanted.initial else plane.consecutive + 1
    if plane.consecutive >= plane.config.resets_most:
        remedy = f"mend the cause, then {how_to_resume(plane)}"
        stop(plane, f"{plane.consecutive} resets in a row; the last: {wanted.cause}", wanted.member, remedy)
        return
    plane.figures.resets[wanted.why] += 1
    plane.figures.cut_ended(plane.now_ms, complete=False)
    plane.tell(LogLevel.WARNING, f"region {plane.region} resets to sequence {plane.sequence}: {wanted.cause}")
    plane.epoch += 1
    plane.floor = epoch = plane.epoch
    plane.cutting, plane.state, plane.wanted = None, RegionState.RESETTING, False
    plane.asked.clear()
    plane.due.pop("cut", None)
    plane.due.pop("checkpoint", None)
    plane.due["reset"] = plane.now_ms + plane.config.reset_ms
    for member in plane.members.values():
        member.handed.clear()
        member.phase = MemberPhase.GOING_BACK if member.epoch >= 0 else MemberPhase.READING
    facts: list[Fact] = [Epoch(plane.region, epoch, plane.term, epoch, plane.consecutive, wanted.cause, plane.now_ms)]
    initial = _to_initial(plane) if wanted.initial else None
    if initial is not None:
        facts.append(initial)
        plane.emptying.append(initial)

    def saved() -> None:
        if initial is not None:
            plane.emptying.remove(initial)
            _is_initial(plane, initial)
        if plane.epoch < epoch or plane.floor != epoch or plane.state is not RegionState.RESETTING:
            return
        for member in plane.members.values():
            if member.epoch > epoch:
                continue  # it has started after the reset, and holds nothing
            fresh, member.epoch = member.epoch < 0, epoch
            plane.say(
                member,
                membership.welcome(plane, member, fresh=True) if fresh else membership.going_back(plane, member),
            )
        end_if_all_are_back(plane)

    plane.save(facts, saved)


def _to_initial(plane: Plane) -> Manifest:
    """Return a manifest with all partitions at their initial offsets, and all sinks ever written to empty."""
    written = _written(plane)
    places = written if plane.sequence > 0 else set()
    return Manifest(
        plane.region,
        plane.region_id,
        plane.sequence + 1 + len(plane.emptying),  # two resets that are on their way are two sequences
        plane.term,
        plane.floor,
        plane.now_ms,
        (),
        plane.names(),
        tuple(position for _, position in sorted(plane.initial.items())),
        empties=bool(places),
        places=tuple(sorted(places)),
    )


def _is_initial(plane: Plane, manifest: Manifest) -> None:
    """Update the state after the commit of a reset to the initial state: only now are the sinks emptied."""
    plane.sequence, plane.empties, plane.made_as = manifest.sequence, manifest.empties, 0
    plane.positions, plane.states, plane.waiting, plane.contributors = {}, {}, {}, {}
    plane.reserved = {}
    plane.places = set(manifest.places)
    plane.owe(dict.fromkeys(manifest.places, ()))
    membership.offer_publish(plane)


def was_reset(plane: Plane, event: Heard) -> None:
    """Handle a member that has reset, with all others or alone; ignore an answer to an earlier reset."""
    report, member = event.report, plane.member_on(event.connection)
    assert isinstance(report, WasReset)
    if member is None or member.phase is not MemberPhase.GOING_BACK or report.epoch != member.epoch:
        return
    if member.epoch < plane.floor:
        return
    member.phase = MemberPhase.READING
    if plane.state is RegionState.RESETTING:
        end_if_all_are_back(plane)
    else:
        checkpoints.begin_if_due(plane)


def end_if_all_are_back(plane: Plane) -> None:
    """Run again when all members have reset and the topic has the reset, even if no member is left."""
    if plane.saved_floor < plane.floor:
        return
    if any(member.phase is MemberPhase.GOING_BACK or member.epoch < plane.floor for member in plane.members.values()):
        return
    plane.due.pop("reset", None)
    plane.state = RegionState.RUNNING
    checkpoints.schedule(plane)
    starts.serve(plane)
    checkpoints.begin_if_due(plane)


def look_for_late(plane: Plane) -> None:
    """Restart the reset if a member misses the deadline."""
    if plane.now_ms >= plane.due.get("reset", plane.now_ms + 1):
        late = sorted(member.name for member in plane.members.values() if member.phase is MemberPhase.GOING_BACK)
        plane.due.pop("reset")
        ask(plane, Why.LATE, f"{', '.join(late)} did not reset in time", late[0] if late else "")


def stop(plane: Plane, cause: str, member: str, remedy: str) -> None:
    """Stop the region, which then waits for an operator."""
    plane.tell(LogLevel.ERROR, f"region {plane.region} has stopped: {cause}; {remedy}")
    plane.cutting = plane.cutting if is_out(plane) else None
    plane.stopped, plane.state, plane.stopping = cause, RegionState.STOPPED, True
    plane.pending, plane.wanted = None, False
    plane.waiting_to_register.clear()  # waiting members report it again
    plane.due.clear()

    def saved() -> None:
        plane.stopping = False
        for member in list(plane.members.values()):
            plane.say(member, Stop(plane.term, cause, remedy))
            plane.drop(member)
        go_on_if_settled(plane)

    plane.save([Stopped(plane.region, cause, member, remedy, plane.now_ms)], saved)


def how_to_resume(plane: Plane) -> str:
    """Return the command that resumes a stopped region."""
    return f"`kohort region resume {plane.region} --execute`, and start its members"


def cant_go_on(plane: Plane, event: Heard) -> None:
    """Stop the region after an error of a member that no reset repairs."""
    report, member = event.report, plane.member_on(event.connection)
    assert isinstance(report, CantGoOn)
    if member is not None:
        stop(plane, f"{member.name}: {report.cause}", member.name, report.remedy)


def refuse(plane: Plane, event: Heard) -> None:
    """Refuse a member of a stopped region, with the cause."""
    plane.say_to(event.connection, Stop(plane.term, plane.stopped, f"when that is mended: {how_to_resume(plane)}"))
    plane.close(event.connection)


def resume(plane: Plane, event: Resumed) -> None:
    """Resume on an operator's request: as after a takeover, but no member is expected."""
    del event
    plane.resumes = True
    go_on_if_settled(plane)


def go_on_if_settled(plane: Plane) -> None:
    """Resume when it is known from which sequence, and the earlier members have been stopped."""
    if not plane.resumes or plane.stopping or plane.cutting is not None:
        return
    plane.resumes, plane.stopped, plane.consecutive = False, "", 0
    plane.save([Stopped(plane.region, "", "", "", plane.now_ms)], lambda: None)
    plane.state = RegionState.FORMING
    plane.expected.clear()
