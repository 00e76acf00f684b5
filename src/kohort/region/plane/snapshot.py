"""A control plane as people see it."""

from __future__ import annotations

from kohort.region.messages import MemberSeen, RegionSeen, SinkSeen
from kohort.region.plane.state import Phase, Plane


def seen(plane: Plane) -> RegionSeen:
    """The region as it is now."""
    members = tuple(
        MemberSeen(
            one.name,
            one.group,
            "has just started" if one.epoch < 0 and one.phase is Phase.READING else one.phase.value,
            one.epoch,
            tuple(sorted(one.handed)),
            one.lost_ms is None,
            one.sink,
            one.waits_for,
        )
        for _, one in sorted(plane.members.items())
    )
    return RegionSeen(
        plane.region,
        plane.state.name,
        plane.term,
        plane.epoch,
        plane.sequence,
        plane.published,
        members,
        tuple(position for _, position in sorted(plane.all_positions().items())),
        {why.name.lower(): count for why, count in plane.figures.resets.items()},
        plane.figures.sequence_ms,
        plane.figures.longest_ms,
        plane.stopped,
        _sinks(plane),
    )


def _sinks(plane: Plane) -> tuple[SinkSeen, ...]:
    places = plane.places | set(plane.owed) | {one.sink for one in plane.members.values() if one.sink}
    return tuple(
        SinkSeen(
            place,
            plane.published if place in plane.owed else plane.sequence,
            "" if (publisher := plane.publisher(place)) is None else publisher.name,
            plane.unshown.get(place, "") if place in plane.owed else "",
        )
        for place in sorted(places)
    )
