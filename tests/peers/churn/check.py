"""Properties that a group of real clients must never break.

Ownership is what the members themselves say: from `assigned` to the end of `revoked`, to `lost`, to the last word or to
the kill. A paused member owns nothing once its session may have ended. It is exempt until it wakes and learns of it.
Its commits meanwhile must be refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tests.peers.churn.story import CONCURRENT, Commit, Member, Ownership, Reading, Story

T = TypeVar("T", Ownership, Commit)


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold, and where to look.

    Attributes:
        at_s: seconds since the run began.
    """

    property: str
    at_s: float
    text: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  {self.property}: {self.text}"


class Seconds:
    """Times as seconds since the run began."""

    def __init__(self, story: Story) -> None:
        self._began_ns = story.began_ns

    def __call__(self, at_ns: int | None) -> float:
        return float("nan") if at_ns is None else (at_ns - self._began_ns) / 1e9


def violations(reading: Reading) -> list[Violation]:
    """All of them, in the order of time."""
    found = [violation for check in CHECKS for violation in check(reading)]
    return sorted(found, key=lambda violation: violation.at_s)


def one_owner(reading: Reading) -> Iterator[Violation]:
    """No partition is owned by two members at one time."""
    at = Seconds(reading.story)
    for partition, ownerships in _by_partition(reading.ownerships).items():
        owners: list[Ownership] = []
        for ownership in sorted(ownerships, key=lambda ownership: ownership.since_ns):
            owners = [owner for owner in owners if owner.until_ns > ownership.since_ns]
            for owner in owners:
                if owner.member is not ownership.member and ownership.until_ns > ownership.since_ns:
                    text = (
                        f"{partition} was given to {ownership.member.name} while {owner.member.name} had it "
                        f"from {at(owner.since_ns):.3f} to {at(owner.until_ns):.3f} ({owner.how})"
                    )
                    yield Violation("two owners", at(ownership.since_ns), text, ownership.member.name)
            owners.append(ownership)


def consistent(reading: Reading) -> Iterator[Violation]:
    """No member processes what it does not hold, or is given what it has."""
    at = Seconds(reading.story)
    for what, member, at_ns, text in reading.oddities:
        yield Violation(what, at(at_ns), f"{member.name}: {text}", member.name)


def positions(reading: Reading) -> Iterator[Violation]:
    """A tenure starts at the committed offset of that time, and goes on without gap or repetition.

    A commit without a known answer may or may not have been taken.
    """
    at = Seconds(reading.story)
    commits = _by_partition(reading.commits)
    for ownership in reading.ownerships:
        if not ownership.records or ownership.member.client in CONCURRENT:
            continue
        name, partition = ownership.member.name, ownership.partition
        started_ns, first, _ = ownership.records[0]
        before = commits.get(partition, [])
        floor = max((c.offset for c in before if c.acknowledged and _answered(c) < ownership.since_ns), default=0)
        tried = {c.offset for c in before if c.sent_ns < started_ns}
        if first < floor:
            text = f"{name} starts {partition} at {first}, but {floor} was committed before"
            yield Violation("position behind the commit", at(started_ns), text, name)
        elif first != floor and first not in tried:
            text = f"{name} starts {partition} at {first}, which no one committed; {floor} was committed"
            yield Violation("position past the commit", at(started_ns), text, name)
        for (_, last, _), (when, offset, _) in zip(ownership.records, ownership.records[1:], strict=False):
            if offset != last + 1:
                kind = "skipped" if offset > last else "repeated in one tenure"
                yield Violation(kind, at(when), f"{name} went from {last} to {offset} in {partition}", name)


def commits_only_grow(reading: Reading) -> Iterator[Violation]:
    """A commit sent after another was acknowledged does not take the offset back."""
    at = Seconds(reading.story)
    for partition, commits in _by_partition(reading.commits).items():
        acknowledged = sorted((c for c in commits if c.acknowledged), key=_answered)
        by_sent = sorted(acknowledged, key=lambda commit: commit.sent_ns)
        best: Commit | None = None
        index = 0
        for commit in by_sent:
            while index < len(acknowledged) and _answered(acknowledged[index]) < commit.sent_ns:
                if best is None or acknowledged[index].offset > best.offset:
                    best = acknowledged[index]
                index += 1
            if best is not None and commit.offset < best.offset:
                text = (
                    f"{commit.member.name} committed {commit.offset} of {partition}, but {best.member.name}'s "
                    f"{best.offset} was acknowledged at {at(best.answered_ns):.3f}"
                )
                yield Violation("commit went back", at(commit.sent_ns), text, commit.member.name)
        final = reading.story.committed.get(partition, 0)
        top = max((commit.offset for commit in acknowledged), default=0)
        if final < top:
            text = f"{partition} ends at {final}, but {top} was acknowledged"
            yield Violation("commit lost", at(reading.story.ended_ns), text)


def fenced(reading: Reading) -> Iterator[Violation]:
    """No commit is taken from a member for a partition that another member was given since."""
    at = Seconds(reading.story)
    ownerships = _by_partition(reading.ownerships)
    for commit in reading.commits:
        name = commit.member.name
        if commit.held_since_ns is None and commit.member.client in CONCURRENT:
            continue
        elif commit.held_since_ns is None:
            text = f"{name} commits {commit.offset} of {commit.partition}, which it does not hold"
            yield Violation("commit without a tenure", at(commit.sent_ns), text, name)
        elif commit.acknowledged:
            held_ns, sent_ns = commit.held_since_ns, commit.sent_ns
            for other in ownerships.get(commit.partition, []):
                if other.member is commit.member or other.until_ns == other.since_ns:
                    continue
                if held_ns < other.since_ns < sent_ns or other.since_ns < sent_ns < other.until_ns:
                    text = (
                        f"{name}'s commit of {commit.offset} of {commit.partition} was taken, but "
                        f"{other.member.name} had been given it at {at(other.since_ns):.3f}"
                    )
                    yield Violation("stale commit taken", at(commit.sent_ns), text, name)


def nothing_lost(reading: Reading) -> Iterator[Violation]:
    """Committed records were processed before, and at the end every record was processed and is committed."""
    at = Seconds(reading.story)
    done: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for ownership in reading.ownerships:
        done[ownership.partition] += ownership.records
    commits = _by_partition(commit for commit in reading.commits if commit.acknowledged)
    for partition, produced in reading.story.produced.items():
        first_ns: dict[int, int] = {}
        for when, offset, value in sorted(done[partition]):
            first_ns.setdefault(offset, when)
            if offset >= len(produced) or produced[offset][1] != value:
                yield Violation("foreign record", at(when), f"{partition} at {offset} has the value {value}")
        missing = [offset for offset in range(len(produced)) if offset not in first_ns]
        if missing:
            text = f"{len(missing)} records of {partition} were never processed: {missing[:5]} …"
            yield Violation("record lost", at(reading.story.ended_ns), text)
        yield from _committed_unprocessed(partition, commits.get(partition, []), first_ns, at)
        final = reading.story.committed.get(partition, 0)
        if final != len(produced):
            text = f"{partition} has {len(produced)} records, committed are {final}"
            yield Violation("not committed", at(reading.story.ended_ns), text)


def _committed_unprocessed(
    partition: str, commits: list[Commit], first_ns: dict[int, int], at: Seconds
) -> Iterator[Violation]:
    checked, latest_ns = 0, 0
    for commit in sorted(commits, key=lambda commit: commit.offset):
        while checked < commit.offset:
            latest_ns = max(latest_ns, first_ns.get(checked, 2**63))
            checked += 1
        if latest_ns > _answered(commit):
            text = f"{commit.member.name} committed {commit.offset} of {partition} before all below it was processed"
            yield Violation("committed unprocessed", at(commit.answered_ns), text, commit.member.name)


def settled(reading: Reading) -> Iterator[Violation]:
    """After churn the group heals: every partition owned, everything consumed; and no member ended by itself."""
    at = Seconds(reading.story)
    if reading.story.unsettled:
        yield Violation("not settled", at(reading.story.ended_ns), reading.story.unsettled)
    for member in reading.story.members:
        if member.died:
            yield Violation("member died", at(member.ended_ns), f"{member.name}: {member.died}", member.name)


CHECKS: tuple[Callable[[Reading], Iterator[Violation]], ...] = (
    one_owner,
    consistent,
    positions,
    commits_only_grow,
    fenced,
    nothing_lost,
    settled,
)


def evicted(reading: Reading) -> list[tuple[Member, int]]:
    """Members that lost partitions, and when, though they were not paused and the broker was up.

    No violation, but a cost.
    """
    story = reading.story
    found: dict[tuple[str, int], Member] = {}
    for ownership in reading.ownerships:
        if ownership.how != "lost":
            continue
        window_ns = 2 * story.session_ms * 1_000_000
        paused = any(
            pause.since_ns < ownership.seen_ns and (pause.until_ns or 2**63) > ownership.seen_ns - window_ns
            for pause in ownership.member.pauses
        )
        outage = any(outage.since_ns < ownership.seen_ns < outage.until_ns + window_ns for outage in story.outages)
        if not paused and not outage and ownership.member.superseded_ns is None:
            found[ownership.member.name, ownership.seen_ns] = ownership.member
    return [(member, at_ns) for (_, at_ns), member in sorted(found.items(), key=lambda item: item[0][1])]


def _answered(commit: Commit) -> int:
    return 2**63 if commit.answered_ns is None else commit.answered_ns


def _by_partition(things: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for thing in things:
        found[thing.partition].append(thing)
    return found
