"""The durable facts in the topic `__kohort_regions`, as plain data classes; `record_codec` encodes them.

A partition is identified by group, topic id and number (`Part`). A recreated topic is a different one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kohort.ids import NO_TOPIC_ID, TopicId
from kohort.region.staged import StagedKey


class Part(NamedTuple):
    """One partition that a group of the region reads, identified by its topic's id.

    Attributes:
        topic_id: NO_TOPIC_ID if the broker reports none.
    """

    group: str
    topic: str
    partition: int
    topic_id: TopicId = NO_TOPIC_ID

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class StateHead(NamedTuple):
    """The newest file of a partition's keyed state, which names the files before it.

    Attributes:
        base: the sequence of the oldest file that counts: files of earlier sequences can be removed.
        sequence: the sequence for which the newest file was written.
        digest: the digest of that file's content, 16 bytes.
        size: the bytes of all files that count.
    """

    base: int
    sequence: int
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read of a partition.

    Attributes:
        state: the keyed state that the records before this offset have made; None: there is none.
    """

    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    state: StateHead | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a group for a region; the first claim in the log is valid.

    Attributes:
        application: the application that wrote it, for humans.
        at_ms: the wall-clock time in ms since 1970, here as in the other facts; for humans.
    """

    group: str
    region: str
    application: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Birth:
    """The creation of a region. Names may be used again, ids are not."""

    region: str
    region_id: UUID
    at_ms: int


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the control plane; the newest is the present one.

    Attributes:
        pin: the SHA-256 of the certificate that it shows; empty: it listens on loopback, without TLS.
        stated: how often it was stated again for another producer id.
    """

    region: str
    term: int
    host: str
    port: int
    pin: bytes
    at_ms: int
    stated: int = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """The beginning of an epoch; the newest is the present one.

    Attributes:
        floor: the minimum valid epoch, that of the last reset; what was staged in earlier ones is discarded.
        consecutive: the number of resets in a row, including this one.
        cause: for humans.
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
    """The offset at which the region began to read a partition."""

    region: str
    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Began:
    """The fact that records the topics which a group's pattern matched when the group began to read.

    Partitions of later ones begin at the earliest offset.

    Attributes:
        topics: their names.
    """

    region: str
    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of a partition that a member read in one sequence: from `begin` to before `end`.

    Attributes:
        state: the keyed state at `end`; None: there is none.
    """

    group: str
    topic: str
    topic_id: UUID
    partition: int
    begin: int
    end: int
    leader_epoch: int = -1
    state: StateHead | None = None


def part_of(given: Position | Span | Initial) -> Part:
    """Return the partition of a position, a span or an initial offset."""
    return Part(given.group, given.topic, given.partition, given.topic_id)


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of one member to a sequence.

    Attributes:
        members: the names of all members of the region that the contributor knew of.
        member_id, generation, instance_id: the contributor's identity in its consumer group at that time.
        state: the application's state, at most 512 KiB.
        sink: the sink of these keys; empty: it has none, or an earlier release wrote this.
        keeps: the state waits for the member while it is away; otherwise it is discarded then.
        letters: the name of its dead-letter sink; empty: none.
        letter_keys: the keys that it staged there.
        dead_letters: the number of dead letters.
        shares, pinned, process: as in the member's registration; the control plane adds them.
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
    """A group that no other member may read while a state waits: that state would lack the records.

    Attributes:
        pinned: queries that may read nevertheless, each its own partitions; empty: none.
    """

    group: str
    pinned: tuple[str, ...] = ()


def reserved_by(contributions: Iterable[Contribution]) -> dict[str, Reserved]:
    """Return the reserved groups, by the member whose state waits when it is away."""
    return {
        contribution.member: Reserved(contribution.group, contribution.pinned)
        for contribution in contributions
        if contribution.keeps and _is_whole(contribution)
    }


def _is_whole(given: Contribution) -> bool:
    """Return whether a member's state must include all records of its group, or of its pinned partitions."""
    return bool(given.pinned) or not given.shares


def keys_by_place(contributions: Iterable[Contribution]) -> dict[str, tuple[StagedKey, ...]]:
    """Return the keys that a sequence staged, by sink."""
    keys: dict[str, tuple[StagedKey, ...]] = {}
    for given in contributions:
        for place, staged in ((given.sink, given.keys), (given.letters, given.letter_keys)):
            if staged:
                keys[place] = keys.get(place, ()) + staged
    return keys


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a complete sequence. The contributions of a sequence without a manifest are ignored.

    Attributes:
        epoch: the minimum valid epoch when the sequence was committed.
        members: the contributors.
        stay: the contributors that continue; the other contributors left the region with this sequence.
        positions: of every partition that the region has ever read.
        empties: a reset to the initial state: what the sinks show is invalid, and emptying them publishes this
            sequence.
        places: all sinks that the region has published to since they were last emptied, including this sequence.
        away: members that did not contribute and whose state waits, each with the sequence that has it.
        made_as: the number of the sequence before `adopt` renumbered it, which other sinks still have; 0: it was not
            renumbered.
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
    """The fact that the region was stopped; with an empty cause, that it was resumed."""

    region: str
    cause: str
    member: str
    remedy: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The last sequence that a sink shows; the newest fact applies.

    Without it, a new control plane could not know this if no member is left that writes to the sink. `agreement`
    compares this number with what the sink itself shows.

    Attributes:
        empty: the sink was emptied as this sequence.
    """

    region: str
    place: str
    sequence: int
    at_ms: int
    empty: bool = False


Fact = Claim | Birth | Term | Epoch | Initial | Began | Contribution | Manifest | Stopped | Shown
