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
    """One partition that a consumer group of the region reads; a recreated topic has another topic id.

    Attributes:
        topic_id: NO_TOPIC_ID if the broker reports none.
    """

    group: str
    topic: str
    partition: int
    topic_id: TopicId = NO_TOPIC_ID

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class KeyedStateChainHead(NamedTuple):
    """A pointer to the newest file in the chain of files of a partition's keyed state; each file names those before it.

    Attributes:
        base: the checkpoint id of the oldest file that is needed: files of earlier checkpoints can be removed.
        sequence: the id of the checkpoint for which the newest file was written.
        digest: the digest of that file's content, 16 bytes.
        size: the size in bytes of all files that are needed.
    """

    base: int
    sequence: int
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read of a partition, with the keyed state at that offset.

    Attributes:
        state: the keyed state that the records before this offset have made; None: there is none.
    """

    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    state: KeyedStateChainHead | None = None


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """A record by which a region takes a consumer group for itself; the first such record in the log is valid.

    Attributes:
        application: the application that wrote it, for humans.
        at_ms: the wall-clock time in ms since 1970, here as in the other records; for humans.
    """

    group: str
    region: str
    application: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class RegionCreated:
    """A record of the creation of a region. Names may be used again, ids are not."""

    region: str
    region_id: UUID
    at_ms: int


@dataclass(frozen=True, slots=True)
class TermBegun:
    """A record of the beginning of a control plane's term; the newest term is the present one.

    Attributes:
        host, port: the address of the control plane.
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
class EpochBegun:
    """A record of the beginning of an epoch, with each reset and each start of a member; the newest is the present one.

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
class InitialOffset:
    """A record of the offset at which the region began to read a partition."""

    region: str
    group: str
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class InitialTopics:
    """A record of the topics that a group's pattern matched when the group began to read.

    Partitions of topics that match later begin at the earliest offset.

    Attributes:
        topics: their names.
    """

    region: str
    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets of a partition that a member read for one checkpoint: from `begin` to before `end`.

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
    state: KeyedStateChainHead | None = None


def to_part(given: Position | OffsetSpan | InitialOffset) -> Part:
    """Return the partition of which a position, a span or an initial offset is."""
    return Part(given.group, given.topic, given.partition, given.topic_id)


@dataclass(frozen=True, slots=True)
class Contribution:
    """A record of what one member contributes to a checkpoint: offsets, keys of staged rows, and state.

    Attributes:
        sequence: the checkpoint's id.
        members: the names of all members of the region that the contributor knew of.
        member_id, generation, instance_id: the contributor's identity in its consumer group at that time.
        spans: the offsets that it has read since the last checkpoint.
        keys: the keys of the rows that it staged of them.
        state: the application's state, at most 512 KiB.
        sink: the name of the sink of these keys; empty: it has none, or an earlier release wrote this.
        keeps: the state waits for the member while it is away; otherwise it is discarded then.
        letters: the name of its dead-letter sink; empty: none.
        letter_keys: the keys of the dead letters that it staged there.
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
    spans: tuple[OffsetSpan, ...]
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
class ReservedGroup:
    """A consumer group that no other member may read while the saved state of an absent member waits for it.

    That state would lack the records of the other member.

    Attributes:
        pinned: queries that may read nevertheless, each its own partitions; empty: none.
    """

    group: str
    pinned: tuple[str, ...] = ()


def groups_reserved_by_states(contributions: Iterable[Contribution]) -> dict[str, ReservedGroup]:
    """Return the groups that saved states reserve, by the member to which the state belongs."""
    return {
        contribution.member: ReservedGroup(contribution.group, contribution.pinned)
        for contribution in contributions
        if contribution.keeps and _is_whole(contribution)
    }


def _is_whole(given: Contribution) -> bool:
    """Return whether a member's state has to include all records of its group, or of its pinned partitions."""
    return bool(given.pinned) or not given.shares


def staged_keys_by_sink(contributions: Iterable[Contribution]) -> dict[str, tuple[StagedKey, ...]]:
    """Return the keys of the rows that members staged for a checkpoint, by the name of the sink."""
    keys: dict[str, tuple[StagedKey, ...]] = {}
    for given in contributions:
        for place, staged in ((given.sink, given.keys), (given.letters, given.letter_keys)):
            if staged:
                keys[place] = keys.get(place, ()) + staged
    return keys


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record that makes a checkpoint complete: without it, the checkpoint's contributions are ignored.

    Attributes:
        sequence: the checkpoint's id.
        epoch: the minimum valid epoch when the checkpoint was committed.
        members: the contributors.
        stay: the contributors that continue; the other contributors left the region with this checkpoint.
        positions: the next offset of every partition that the region has ever read.
        empties: a reset to the initial state: what the sinks show is invalid, and emptying them publishes this
            checkpoint.
        places: all sinks that the region has published to since they were last emptied, including this checkpoint.
        away: members that did not contribute and whose state waits, each with the id of the checkpoint that has it.
        made_as: the checkpoint's id before `adopt` renumbered it, which other sinks still have; 0: it was not
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
class RegionStopped:
    """A record that the region was stopped; with an empty cause, that it was resumed."""

    region: str
    cause: str
    member: str
    remedy: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class StoppedMembers:
    """A record of the members that an operator has stopped; the next control plane lets them leave too.

    Attributes:
        members: their names, each with its incarnation. Another member that starts under that name may stay.
    """

    region: str
    members: dict[str, UUID]
    at_ms: int


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A record that a checkpoint is published to a sink; the newest one of each sink is valid.

    Without it, a new control plane could not know this if no member is left that writes to the sink. `agreement`
    compares it with what the sink itself shows.

    Attributes:
        place: the name of the sink.
        sequence: the checkpoint's id.
        empty: the sink was emptied as this checkpoint.
    """

    region: str
    place: str
    sequence: int
    at_ms: int
    empty: bool = False


Fact = (
    GroupClaim
    | RegionCreated
    | TermBegun
    | EpochBegun
    | InitialOffset
    | InitialTopics
    | Contribution
    | Manifest
    | RegionStopped
    | StoppedMembers
    | PublishedCheckpoint
)
