"""What can happen to a control plane, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kohort.region.messages import Cut, Identity, Order, Report
from kohort.region.parts import Part
from kohort.region.records import Contribution, Fact, Manifest, Position


@dataclass(frozen=True, slots=True)
class Heard:
    """Something came in on a connection; whose it is, its `Register` has said."""

    connection: int
    report: Report


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has ended."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process is gone, for certain, and whatever members were in it."""

    process: str


@dataclass(frozen=True, slots=True)
class Saved:
    """Facts that were to be saved are committed."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """The outcome of a commit is known.

    Attributes:
        refused: members whose offsets were not taken, with the coordinator's reason; empty: all is committed.
        gone: of those, the ones that the coordinator does not know any more.
    """

    cut: Cut
    refused: dict[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outsider:
    """Someone in a group who is not of the region, in a stable group, holds partitions."""

    group: str
    client_id: str
    host: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What the coordinator says of a group that was looked at."""

    group: str
    outsiders: tuple[Outsider, ...]


@dataclass(frozen=True, slots=True)
class StopMember:
    """A person has a member leave, with the next complete sequence."""

    name: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A person lets a stopped region go on."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Heard | Disconnected | ProcessEnded | Saved | CommitEnded | GroupSeen | StopMember | Resumed | Tick


class Level(IntEnum):
    """As in the standard library's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Say:
    """To the member on this connection."""

    connection: int
    order: Order


@dataclass(frozen=True, slots=True)
class Close:
    """End a connection, when what was said on it is sent."""

    connection: int


@dataclass(frozen=True, slots=True)
class Save:
    """Write facts in one transaction; `Saved` when they are committed. Tried again until it works or a term is over."""

    token: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """What is committed for one member: its own partitions, under its own place in the group."""

    member: str
    group: str
    identity: Identity
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit point of a cut: one transaction. `CommitEnded` only when the outcome is known."""

    cut: Cut
    manifest: Manifest
    contributions: tuple[Contribution, ...]
    offsets: tuple[Offsets, ...]


@dataclass(frozen=True, slots=True)
class LookAt:
    """Describe a group: somebody reads partitions that no member holds."""

    group: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class LookAtProcess:
    """A member's connection has ended: `ProcessEnded` if its process has ended too, and else nothing."""

    process: str


@dataclass(frozen=True, slots=True)
class Told:
    """For the log."""

    level: Level
    text: str


Effect = Say | Close | Save | Commit | LookAt | LookAtProcess | Told
