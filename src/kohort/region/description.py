"""Descriptions of regions as rows, for the commands and the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.region.messages import MemberStatus, RegionStatus, SinkStatus
    from kohort.region.region_topic import SavedFacts


def region_list_rows(found: Mapping[str, tuple[SavedFacts, Iterable[str]]]) -> list[dict[str, Any]]:
    """Return a row for each region that the topic records, with its consumer groups."""
    return [
        {
            "region": name,
            "term": 0 if saved.term is None else saved.term.term,
            "epoch": 0 if saved.epoch is None else saved.epoch.epoch,
            "sequence": saved.last_complete_sequence,
            "stopped": stop_reason(saved),
            "groups": list(groups),
        }
        for name, (saved, groups) in found.items()
    ]


def stop_reason(saved: SavedFacts) -> str:
    """Return why a region is stopped, or why its records are ignored here; empty: neither."""
    if saved.birth is None and saved.ignored_because:
        return f"its records are ignored here: the last {saved.ignored_because}"
    return "" if saved.stopped is None else saved.stopped.cause


def region_row(seen: RegionStatus) -> dict[str, Any]:
    """Return the status of a region as one row, for commands and the dashboard."""
    return {
        "region": seen.name,
        "state": seen.state,
        "term": seen.term,
        "epoch": seen.epoch,
        "sequence": seen.sequence,
        "published": seen.published,
        "unpublished": seen.sequence - seen.published,
        "resets": sum(seen.resets.values()),
        "sequence_ms": None if seen.sequence_ms < 0 else seen.sequence_ms,
        "stopped": seen.stopped,
    }


def member_row(seen: RegionStatus, member: MemberStatus) -> dict[str, Any]:
    """Return the status of one member of a region as one row, for commands and the dashboard."""
    return {
        "region": seen.name,
        "member": member.name,
        "group": member.group,
        "phase": member.phase,
        "epoch": member.epoch,
        "partitions": [str(part) for part in member.parts],
        "connected": member.connected,
        "sink": member.sink,
        "dead_letters": member.dead_letters,
        "waits_for": member.waits_for,
    }


def sink_row(seen: RegionStatus, sink: SinkStatus) -> dict[str, Any]:
    """Return the status of one sink of a region as one row, for commands and the dashboard."""
    return {
        "region": seen.name,
        "sink": sink.place,
        "published": sink.published,
        "unpublished": seen.sequence - sink.published,
        "publisher": sink.publisher,
        "waits_for": sink.waits_for,
    }


def keyed_state_rows(seen: RegionStatus) -> list[dict[str, Any]]:
    """Return a row for each group with keyed states: how many partitions have one, and the bytes of their files."""
    sizes: dict[str, list[int]] = {}
    for position in seen.positions:
        if position.state is not None:
            sizes.setdefault(position.group, []).append(position.state.size)
    return [
        {"region": seen.name, "group": group, "keyed_states": len(found), "bytes": sum(found), "largest": max(found)}
        for group, found in sorted(sizes.items())
    ]


def region_view(seen: RegionStatus) -> dict[str, Any]:
    """Return a region's row with those of its members, sinks and positions, as one nested mapping."""
    positions = [
        {
            "group": position.group,
            "topic": position.topic,
            "partition": position.partition,
            "offset": position.offset,
            "state_bytes": 0 if position.state is None else position.state.size,
        }
        for position in seen.positions
    ]
    members = [member_row(seen, member) for member in seen.members]
    sinks = [sink_row(seen, sink) for sink in seen.sinks]
    return {
        **region_row(seen),
        "resets": seen.resets,
        "members": members,
        "sinks": sinks,
        "states": keyed_state_rows(seen),
        "positions": positions,
    }
