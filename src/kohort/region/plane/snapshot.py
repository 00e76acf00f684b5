"""A control plane as people see it."""

from __future__ import annotations

from kohort.region.messages import MemberSeen, RegionSeen, SinkSeen
from kohort.region.plane.state import Phase, Plane

WAITS = "waits for its sink before it registers"


def seen(plane: Plane) -> RegionSeen:
    """The region as it is now."""
    waits = {report.member: report for report in plane.waiting_to_register.values()}
    members = [
        MemberSeen(
            member.name,
            member.group,
            "has just started" if member.epoch < 0 and member.phase is Phase.READING else member.phase.value,
            member.epoch,
            tuple(sorted(member.handed)),
            member.lost_ms is None,
            member.sink,
            waits[member.name].cause if member.name in waits else member.waits_for,
            letters=member.letters,
            dead_letters=member.dead_letters,
        )
        for _, member in sorted(plane.members.items())
    ]
    members += [
        MemberSeen(name, report.group, WAITS, -1, (), True, report.sink, report.cause, registered=False)
        for name, report in sorted(waits.items())
        if name not in plane.members
    ]
    return RegionSeen(
        plane.region,
        plane.state.name,
        plane.term,
        plane.epoch,
        plane.sequence,
        plane.published,
        tuple(members),
        tuple(position for _, position in sorted(plane.all_positions().items())),
        {why.name.lower(): count for why, count in plane.figures.resets.items()},
        plane.figures.sequence_ms,
        plane.figures.longest_ms,
        plane.stopped,
        _sinks(plane),
    )


def _sinks(plane: Plane) -> tuple[SinkSeen, ...]:
    written = {place for member in plane.members.values() for place in member.places}
    written |= {report.sink for report in plane.waiting_to_register.values()}
    places = plane.places | set(plane.owed) | (written - {""})
    return tuple(
        SinkSeen(
            place,
            plane.published if place in plane.owed else plane.sequence,
            "" if (publisher := plane.publisher(place)) is None else publisher.name,
            plane.unshown.get(place, "") if place in plane.owed else "",
        )
        for place in sorted(places)
    )
