"""The events of a run, read from the members' logs and the driver's notes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


CONCURRENT = ("kafka-python",)
"""Clients whose callbacks run beside the application: what poll has handed out may be processed after `revoked` was
said, and a partition that comes back goes on behind it. What they do counts, but says nothing of tenures."""


WITHOUT_LOST = ("aiokafka",)
"""Clients that say `revoked` also when partitions were taken away."""


@dataclass(slots=True)
class Pause:
    """A SIGSTOP and the SIGCONT after it; None: it never woke."""

    since_ns: int
    until_ns: int | None = None


@dataclass(slots=True)
class Member:
    """One process that was a member, as the driver saw it (times in ns) and as its own log tells.

    Attributes:
        ended_ns: when it was seen to be gone, or SIGKILL was sent to it; None: it lived on.
        killed: by SIGKILL.
        died: it ended by itself; its last words.
        instance: the instance id of a static member.
        superseded_ns: when another process began that has the same: from then on this one owns nothing.
    """

    name: str
    client: str
    protocol: str
    log: Path
    started_ns: int
    ended_ns: int | None = None
    killed: bool = False
    died: str = ""
    instance: str = ""
    superseded_ns: int | None = None
    pauses: list[Pause] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def read(self) -> None:
        """Takes in its log; a kill may have cut the last line short."""
        if self.log.exists():
            lines = self.log.read_bytes().split(b"\n")[:-1]
            self.events = [json.loads(line) for line in lines]


@dataclass(slots=True)
class Outage:
    """The broker was killed, was started again, and answered."""

    since_ns: int
    started_ns: int
    until_ns: int


@dataclass(slots=True)
class Story:
    """A whole run.

    Attributes:
        produced: by partition, in the order of offsets: when the record was produced, and its value.
        committed: the group's offsets at the end.
        churned_ns: when churn ended; everything after it is healing.
        settled: whether the group healed in time; `unsettled` says what was missing.
    """

    session_ms: int
    heartbeat_ms: int
    members: list[Member] = field(default_factory=list)
    produced: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    committed: dict[str, int] = field(default_factory=dict)
    began_ns: int = 0
    churned_ns: int = 0
    ended_ns: int = 0
    unsettled: str = ""


@dataclass(slots=True)
class Ownership:
    """A member holds a partition, from its word to its word or its end.

    Attributes:
        until_ns: the end of ownership: given up, or the end of the session of a member that was paused; `since_ns` when
            it never began.
        seen_ns: when the member itself let go; later than `until_ns` for one that slept through its session's end.
        unaware: its member may have slept through its session's end without knowing when this began.
        how: `revoked`, `lost`, `closing`, `killed`, `ended` or `held`.
        records: when and what it processed.
    """

    member: Member
    partition: str
    since_ns: int
    until_ns: int = 0
    seen_ns: int = 0
    how: str = "held"
    unaware: bool = False
    records: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Commit:
    """One partition's part of a commit.

    Attributes:
        answered_ns: None: no answer is known.
        held_since_ns: the start of its member's tenure at that time; None: it had none.
    """

    member: Member
    partition: str
    offset: int
    sent_ns: int
    answered_ns: int | None = None
    error: str = ""
    held_since_ns: int | None = None

    @property
    def acknowledged(self) -> bool:
        return self.answered_ns is not None and not self.error


@dataclass(slots=True)
class Reading:
    """A story taken apart; what contradicts itself already is in `oddities`."""

    story: Story
    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    oddities: list[tuple[str, Member, int, str]] = field(default_factory=list)


def read(story: Story) -> Reading:
    """ShardOwnership and commits of all members."""
    reading = Reading(story)
    for member in story.members:
        _MemberReading(reading, member).run()
    return reading


class _MemberReading:
    """One member's log, event by event."""

    def __init__(self, reading: Reading, member: Member) -> None:
        self._reading, self._member = reading, member
        self._held: dict[str, Ownership] = {}
        self._asked: dict[int, list[Commit]] = {}
        self._lost_ns = 0
        self._lapsed_ns: dict[str, int] = {}

    def run(self) -> None:
        """Reads it all; what is held at the end is held until the process was gone."""
        for event in self._member.events:
            handler = getattr(self, f"_on_{event['e']}", None)
            if handler is not None:
                handler(event["t"], event)
        member, story = self._member, self._reading.story
        end_ns = member.ended_ns if member.ended_ns is not None else story.ended_ns
        if member.killed and member.events:
            end_ns = max(end_ns, member.events[-1]["t"])  # it spoke between the clock and the signal
        how = "killed" if member.killed else "ended" if member.ended_ns is not None else "held"
        self._close(list(self._held), end_ns, how)

    def _on_assigned(self, t: int, event: Event) -> None:
        for partition in event["partitions"]:
            if partition in self._held:
                self._odd("assigned twice", t, partition)
                continue
            ownership = Ownership(self._member, partition, t, unaware=self._is_unaware(t))
            self._held[partition] = ownership
            self._reading.ownerships.append(ownership)

    def _on_revoked(self, t: int, event: Event) -> None:
        self._close(event["partitions"], t, "revoked")

    def _on_lapsed(self, t: int, event: Event) -> None:
        for partition in self._held:
            self._lapsed_ns.setdefault(partition, t)

    def _on_lost(self, t: int, event: Event) -> None:
        self._close(event["partitions"], t, "lost")
        self._lost_ns = t

    def _on_closing(self, t: int, event: Event) -> None:
        self._close(list(self._held), t, "closing")

    def _on_records(self, t: int, event: Event) -> None:
        ownership = self._held.get(event["partition"])
        self._lapsed_ns.pop(event["partition"], None)
        if ownership is None:
            if self._member.client not in CONCURRENT:
                self._odd("processed what it does not hold", t, f"{event['partition']} {event['offsets']}")
            ownership = Ownership(self._member, event["partition"], t, t, t, "never")  # of no length
            self._reading.ownerships.append(ownership)
        ownership.records += [
            (t, offset, value) for offset, value in zip(event["offsets"], event["values"], strict=True)
        ]

    def _on_committing(self, t: int, event: Event) -> None:
        self._asked[event["id"]] = []
        for partition, offset in event["offsets"].items():
            held = self._held.get(partition)
            since = None if held is None else held.since_ns
            commit = Commit(self._member, partition, offset, t, held_since_ns=since)
            self._asked[event["id"]].append(commit)
            self._reading.commits.append(commit)

    def _on_committed(self, t: int, event: Event) -> None:
        for commit in self._asked[event["id"]]:
            commit.answered_ns = t

    def _on_refused(self, t: int, event: Event) -> None:
        for commit in self._asked[event["id"]]:
            commit.answered_ns, commit.error = t, event["error"]

    def _close(self, partitions: list[str], t: int, how: str) -> None:
        for partition in partitions:
            ownership = self._held.pop(partition, None)
            if ownership is not None:
                ownership.how, ownership.seen_ns = how, t
                lapsed_ns = self._lapsed_ns.pop(partition, t)
                ends = [t, lapsed_ns, *self._session_ends(ownership, t), *self._superseded()]
                taken = how == "lost" or (how == "revoked" and self._member.client in WITHOUT_LOST)
                never = ownership.unaware and taken
                ownership.until_ns = ownership.since_ns if never else max(ownership.since_ns, min(ends))

    def _is_unaware(self, t: int) -> bool:
        """Whether it has just woken after its session's end, and has not lost anything since.

        What it is given now may have been sent to it before; when that is taken away again, it was never its own. Its
        commits may have been refused meanwhile: Java's client learns from its heartbeats alone.
        """
        session_ns = self._reading.story.session_ms * 1_000_000
        return any(
            pause.until_ns is not None
            and pause.until_ns - pause.since_ns > self._least_pause_ns()
            and pause.until_ns <= t < pause.until_ns + session_ns
            and self._lost_ns < pause.until_ns
            for pause in self._member.pauses
        )

    def _least_pause_ns(self) -> int:
        """The shortest pause that may end a session: two heartbeats may have been missing before it."""
        story = self._reading.story
        return (story.session_ms - 2 * story.heartbeat_ms) * 1_000_000

    def _superseded(self) -> list[int]:
        return [] if self._member.superseded_ns is None else [self._member.superseded_ns]

    def _session_ends(self, ownership: Ownership, seen_ns: int) -> Iterator[int]:
        """When a paused member's session may have ended.

        Two heartbeats may have been missing before the pause, and all since the broker was started shortly before it.
        """
        story = self._reading.story
        session_ns, missing_ns = story.session_ms * 1_000_000, 2 * story.heartbeat_ms * 1_000_000
        for pause in self._member.pauses:
            may_end_ns = pause.since_ns + self._least_pause_ns()
            for outage in story.outages:
                if outage.since_ns < pause.since_ns < outage.until_ns + missing_ns:
                    may_end_ns = min(may_end_ns, outage.started_ns + session_ns)
            woke_ns = pause.until_ns if pause.until_ns is not None else seen_ns
            if may_end_ns < woke_ns and ownership.since_ns < may_end_ns:
                yield may_end_ns

    def _odd(self, what: str, t: int, text: str) -> None:
        self._reading.oddities.append((what, self._member, t, text))
