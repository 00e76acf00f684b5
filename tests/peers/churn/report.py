"""Figures of a run, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.peers.churn.check import Seconds, Violation, evicted
from tests.peers.churn.story import Ownership, Reading


def metrics(reading: Reading, found: Sequence[Violation]) -> dict[str, Any]:
    """Everything that is reported."""
    story, at = reading.story, Seconds(reading.story)
    return {
        "seconds": round((story.churned_ns - story.began_ns) / 1e9, 1),
        "heal_seconds": round((story.ended_ns - story.churned_ns) / 1e9, 1),
        "records": sum(map(len, story.produced.values())),
        "outages": len(story.outages),
        "clients": _clients(reading),
        "latency_ms": _latency(reading),
        "owned": _owned(reading),
        "standstill_s": _downtime(reading),
        "takeover_s": _takeover(reading),
        "evicted": [{"member": member.name, "at_s": at(at_ns)} for member, at_ns in evicted(reading)],
        "violations": [asdict(violation) for violation in found],
        "violation_counts": dict(Counter(violation.property for violation in found)),
    }


def _clients(reading: Reading) -> dict[str, dict[str, int]]:
    """By client and protocol: what happened to its members and what they did."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for member in reading.story.members:
        row = rows[f"{member.client} {member.protocol}"]
        row["members"] += 1
        row["killed"] += member.killed
        row["paused"] += len(member.pauses)
        row["assignments"] += sum(event["e"] == "assigned" and bool(event["partitions"]) for event in member.events)
        row["lost"] += sum(event["e"] == "lost" and bool(event["partitions"]) for event in member.events)
        row["errors"] += sum(event["e"] == "error" for event in member.events)
    seen: set[tuple[str, int]] = set()
    done = ((when, ownership, offset) for ownership in reading.ownerships for when, offset, _ in ownership.records)
    for _, ownership, offset in sorted(done, key=lambda entry: entry[0]):
        row = rows[f"{ownership.member.client} {ownership.member.protocol}"]
        row["records"] += 1
        row["again"] += (ownership.partition, offset) in seen
        seen.add((ownership.partition, offset))
    for commit in reading.commits:
        row = rows[f"{commit.member.client} {commit.member.protocol}"]
        row["commits"] += commit.acknowledged
        row["refused"] += bool(commit.error)
    for member, _ in evicted(reading):
        rows[f"{member.client} {member.protocol}"]["evicted"] += 1
    return {name: {column: row[column] for column in COLUMNS} for name, row in sorted(rows.items())}


COLUMNS = (
    "members",
    "killed",
    "paused",
    "assignments",
    "lost",
    "evicted",
    "records",
    "again",
    "commits",
    "refused",
    "errors",
)


def _latency(reading: Reading) -> dict[str, float]:
    """From a record's production until it was first processed."""
    first: dict[tuple[str, int], int] = {}
    for ownership in reading.ownerships:
        for when, offset, _ in ownership.records:
            key = (ownership.partition, offset)
            first[key] = min(when, first.get(key, when))
    waits = [
        (first[where, offset] - produced_ns) / 1e6
        for where, records in reading.story.produced.items()
        for offset, (produced_ns, _) in enumerate(records)
        if (where, offset) in first
    ]
    return _spread(waits)


def _owned(reading: Reading) -> dict[str, float]:
    """Shares of the time of churn: of partitions that had an owner, and of moments at which all had.

    A partition counts from its first record on.
    """
    story = reading.story
    changes: list[tuple[int, int, int]] = [(records[0][0], 0, 1) for records in story.produced.values() if records]
    for ownership in reading.ownerships:
        if ownership.until_ns > ownership.since_ns:
            changes += [(ownership.since_ns, 1, 0), (ownership.until_ns, -1, 0)]
    owners = total = 0
    owned_ns = total_ns = whole_ns = 0
    last_ns = story.began_ns
    for at_ns, owner, partition in [*sorted(changes), (story.churned_ns, 0, 0)]:
        span_ns = max(0, min(at_ns, story.churned_ns) - last_ns)
        owned = min(owners, total)
        owned_ns, total_ns = owned_ns + owned * span_ns, total_ns + total * span_ns
        whole_ns += span_ns if owned == total else 0
        last_ns += span_ns
        owners, total = owners + owner, total + partition
    return {
        "partitions": round(owned_ns / max(1, total_ns), 3),
        "all_at_once": round(whole_ns / (story.churned_ns - story.began_ns), 3),
    }


def _downtime(reading: Reading) -> dict[str, float]:
    """How long a living member that gave everything up in order had nothing before it was given something."""
    by_member: dict[str, list[Ownership]] = defaultdict(list)
    for ownership in reading.ownerships:
        by_member[ownership.member.name].append(ownership)
    gaps: list[float] = []
    for ownerships in by_member.values():
        ownerships.sort(key=lambda ownership: ownership.since_ns)
        until_ns, how = 0, ""
        for ownership in ownerships:
            if how == "revoked" and ownership.since_ns > until_ns and not ownership.member.pauses:
                gaps.append((ownership.since_ns - until_ns) / 1e9)
            if ownership.seen_ns >= until_ns:
                until_ns, how = ownership.seen_ns, ownership.how
    return _spread(gaps)


def _takeover(reading: Reading) -> dict[str, dict[str, float]]:
    """From a kill until another member was given what the killed one had, by its client."""
    by_partition: dict[str, list[Ownership]] = defaultdict(list)
    for ownership in sorted(reading.ownerships, key=lambda ownership: ownership.since_ns):
        by_partition[ownership.partition].append(ownership)
    waits: dict[str, list[float]] = defaultdict(list)
    for ownerships in by_partition.values():
        for ownership, following in pairwise(ownerships):
            if ownership.how == "killed" and ownership.until_ns == ownership.seen_ns:
                name = f"{ownership.member.client} {ownership.member.protocol}"
                waits[name].append((following.since_ns - ownership.until_ns) / 1e9)
    return {name: _spread(values) for name, values in sorted(waits.items())}


def _spread(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {"count": len(values)}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = {"count": len(values), "p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def show(report: dict[str, Any], title: str, console: Console) -> None:
    """The table, then violations."""
    table = Table(title=title, title_justify="left")
    table.add_column("client")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, row in report["clients"].items():
        table.add_row(name, *(str(row[column]) for column in COLUMNS))
    console.print(table)
    console.print(
        f"{report['seconds']} s of churn, {report['outages']} outages, healed in {report['heal_seconds']} s; "
        f"{report['records']} records\n"
        f"ms until processed {report['latency_ms']}\n"
        f"s without partitions after giving all up {report['standstill_s']}\n"
        f"share of time owned {report['owned']}"
    )
    for name, waits in report["takeover_s"].items():
        console.print(f"s from a kill of {name} until its partitions were given to others {waits}")
    for eviction in report["evicted"][:40]:
        console.print(f"{eviction['at_s']:9.3f} s  {eviction['member']} was evicted, and was neither paused nor killed")
    for violation in report["violations"][:40]:
        console.print(
            f"[red]{violation['at_s']:9.3f} s  {violation['property']}[/]: {violation['text']}", highlight=False
        )
    console.print(f"violations: {report['violation_counts'] or 'none'}")
