"""What the topic `__kohort_regions` says of a region: durable facts. Values only; their bytes are in `records`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read of a partition."""

    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Claim:
    """A group belongs to a region: to that of the first claim in the log.

    Attributes:
        application: who wrote it, for people.
        at_ms: since the epoch, here as in the others; for people.
    """

    group: str
    region: str
    application: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Birth:
    """A region of this name was made. Names are used again, ids are not."""

    region: str
    region_id: UUID
    at_ms: int


@dataclass(frozen=True, slots=True)
class Term:
    """Who is the control plane: the newest counts.

    Attributes:
        token: what it lets in; who may read the topic may talk to it.
    """

    region: str
    term: int
    host: str
    port: int
    token: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch has begun: the newest counts.

    Attributes:
        floor: that of the last reset: what was staged in earlier ones is void.
        consecutive: resets in a row, this one too.
        cause: for people.
    """

    region: str
    epoch: int
    term: int
    floor: int
    consecutive: int
    cause: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Initial:
    """Where a partition was begun."""

    region: str
    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Began:
    """The topics that a group's pattern found when the group began: those found later begin at their beginning.

    Attributes:
        topics: their names.
    """

    region: str
    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """What a member read of a partition in one sequence: from `begin` to before `end`."""

    group: str
    topic: str
    topic_id: UUID
    partition: int
    begin: int
    end: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one member gives to a sequence.

    Attributes:
        members: all names that it knew of.
        member_id, generation, instance_id: its place in its group then.
        state: the operator's bytes, at most 512 KiB.
        sink: the place whose keys these are; empty: it has none, or an earlier release wrote this.
        keeps: the state waits for the member while it is away; else it goes with it.
        letters: the place of its dead letters; empty: it has none.
        letter_keys: what it staged there.
        dead_letters: how many these are.
        shares, pinned, process: as the member has registered; the control plane notes them.
    """

    region: str
    sequence: int
    term: int
    epoch: int
    member: str
    members: tuple[str, ...]
    group: str
    member_id: str
    generation: int
    instance_id: str | None
    spans: tuple[Span, ...]
    keys: tuple[StagedKey, ...]
    state: bytes
    sink: str = ""
    keeps: bool = False
    shares: bool = True
    pinned: tuple[str, ...] = ()
    process: str = ""
    letters: str = ""
    letter_keys: tuple[StagedKey, ...] = ()
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """A group of which nobody may read while a state waits: what is read there meanwhile is not in it.

    Attributes:
        pinned: but these queries, since a partition is read by its own alone; empty: nobody.
    """

    group: str
    pinned: tuple[str, ...] = ()


def reserved_by(contributions: Iterable[Contribution]) -> dict[str, Reserved]:
    """By whose state waits when they go away, the groups that are theirs then."""
    return {one.member: Reserved(one.group, one.pinned) for one in contributions if one.keeps and _is_whole(one)}


def _is_whole(given: Contribution) -> bool:
    """Whether the state must be of all that was read in its group, or of all of some partitions."""
    return bool(given.pinned) or not given.shares


def keys_by_place(contributions: Iterable[Contribution]) -> dict[str, tuple[StagedKey, ...]]:
    """What a sequence staged, by the place that it was staged for."""
    keys: dict[str, tuple[StagedKey, ...]] = {}
    for given in contributions:
        for place, staged in ((given.sink, given.keys), (given.letters, given.letter_keys)):
            if staged:
                keys[place] = keys.get(place, ()) + staged
    return keys


@dataclass(frozen=True, slots=True)
class Manifest:
    """A sequence is complete: without it, its contributions are none.

    Attributes:
        epoch: the floor then.
        members: who contributed.
        stay: who of them goes on; others left with it.
        positions: of every partition that the region has ever read.
        empties: all goes back to the initial state: what sinks show is void, and the sequence is published when they
            are empty.
        places: all that the region has published to, this sequence too, since they were last emptied.
        away: who did not contribute and has a state that waits, each with the sequence whose contribution has it.
        made_as: the number that the sequence had before a person adopted a sink that is ahead, and other sinks still
            know it by; 0: the same.
    """

    region: str
    region_id: UUID
    sequence: int
    term: int
    epoch: int
    at_ms: int
    members: tuple[str, ...]
    stay: tuple[str, ...]
    positions: tuple[Position, ...]
    empties: bool = False
    places: tuple[str, ...] = ()
    away: dict[str, int] = field(default_factory=dict)
    made_as: int = 0


@dataclass(frozen=True, slots=True)
class Stopped:
    """The region has stopped; with an empty cause, it goes on."""

    region: str
    cause: str
    member: str
    remedy: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A place shows what a sequence staged for it: the newest counts.

    Else a control plane that takes over could not know it where nobody is left who writes there and could look. What
    the place itself shows is compared with it: see `agreement`.

    Attributes:
        empty: the place was emptied as this sequence.
    """

    region: str
    place: str
    sequence: int
    at_ms: int
    empty: bool = False


Fact = Claim | Birth | Term | Epoch | Initial | Began | Contribution | Manifest | Stopped | Shown
