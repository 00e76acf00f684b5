"""Events of a control plane, the requests of its machines to each other, and the effects that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from kohort.region.messages import CheckpointAttempt, Declined, Identity, Order, Report
from kohort.region.records import Contribution, Fact, Manifest, Part, Position


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message on a connection; its `Register` message has named the member."""

    connection: int
    report: Report


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The event that a connection has ended."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The event that a process has ended for certain, and with it all members in it."""

    process: str


@dataclass(frozen=True, slots=True)
class FactsSaved:
    """The event that requested facts are committed."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """The event that the outcome of a commit is known.

    Attributes:
        refused: members whose offsets were refused, with the coordinator's reason; empty: all is committed.
        gone: those among them that the coordinator does not know any more.
    """

    cut: CheckpointAttempt
    refused: dict[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outsider:
    """A client outside the region that holds partitions in a stable group."""

    group: str
    client_id: str
    host: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The coordinator's description of a group."""

    group: str
    outsiders: tuple[Outsider, ...]


@dataclass(frozen=True, slots=True)
class MemberStopRequested:
    """An operator's request that a member leaves with the next complete sequence."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """An operator's request that a stopped region continues."""


@dataclass(frozen=True, slots=True)
class ClockTick:
    """The event that time has passed."""


Event = (
    MessageReceived
    | Disconnected
    | ProcessEnded
    | FactsSaved
    | CommitEnded
    | GroupSeen
    | MemberStopRequested
    | ResumeRequested
    | ClockTick
)


# -- What the machines of the control plane ask of each other: `machine.RegionMachine` says which of them answer


class ResetCause(Enum):
    """The cause of a reset."""

    ASKED = "a person, or what is behind a member"
    PARTITIONS = "partitions that were read were revoked or lost"
    DEAD = "a member died"
    LATE = "a member took too long"
    DRAIN = "a member could not be drained"
    CONTRIBUTION = "a member contributed what can't be"
    COMMIT = "the group's coordinator refused the offsets"


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """A machine's request for a reset, which may wait for the outcome of a commit, or until the region is formed.

    Attributes:
        member: the member that is the cause; empty: none.
        forced: the limit of resets in a row leaves it out.
        initial: the region returns to its initial state.
    """

    why: ResetCause
    cause: str
    member: str = ""
    forced: bool = False
    initial: bool = False


@dataclass(frozen=True, slots=True)
class DeferredResetDue:
    """The request to begin the reset that was deferred: nothing delays it any more."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The request to reset the region, whatever it waits for, after a checkpoint of which nothing was written."""

    why: ResetCause
    cause: str


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The request to stop the region until an operator resumes it, because of an error that no reset repairs."""

    cause: str
    member: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CommitSettled:
    """The notice that the outcome of a commit is known which was pending when the region stopped."""


@dataclass(frozen=True, slots=True)
class RegionRuns:
    """The notice that the region runs: all members have registered or reset."""


@dataclass(frozen=True, slots=True)
class LeaverWantsCheckpoint:
    """The request for a checkpoint, because a member wants to leave with one."""


@dataclass(frozen=True, slots=True)
class CheckpointMayBegin:
    """The request to begin a wanted checkpoint, which may have waited only for a member that is connected now."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The event that a member is gone or has its epoch, so that what waited for it may continue."""


@dataclass(frozen=True, slots=True)
class ParticipantLost:
    """The notice that a participant of the present checkpoint is gone."""

    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsReleased:
    """The notice that a member has released partitions, which it may have contributed to the present checkpoint."""

    member: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GenerationReported:
    """The notice that a member has reported the generation of its group under which it works."""

    member: str


Request = (
    ResetRequest
    | DeferredResetDue
    | CheckpointFailed
    | StopRequest
    | CommitSettled
    | RegionRuns
    | LeaverWantsCheckpoint
    | CheckpointMayBegin
    | MembersChanged
    | ParticipantLost
    | PartitionsReleased
    | GenerationReported
)


# -- Effects


class LogLevel(IntEnum):
    """Log levels with the numbers of the standard library's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class SendMessage:
    """A message to the member or operator on this connection."""

    connection: int
    order: Order | Declined


@dataclass(frozen=True, slots=True)
class EndConnection:
    """The end of a connection, after its queued messages are sent."""

    connection: int


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """A transaction that writes facts, retried until it succeeds or the term ends; `FactsSaved` reports it."""

    token: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class MemberOffsets:
    """The offsets committed for one member: those of its own partitions, under its own group membership."""

    member: str
    group: str
    identity: Identity
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit point of a checkpoint: one transaction. `CommitEnded` follows only when the outcome is known."""

    cut: CheckpointAttempt
    manifest: Manifest
    contributions: tuple[Contribution, ...]
    offsets: tuple[MemberOffsets, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """A request to describe a group: somebody may read partitions that no member holds."""

    group: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CheckProcess:
    """A request to check the process of a disconnected member; `ProcessEnded` follows only if it has ended."""

    process: str


@dataclass(frozen=True, slots=True)
class RegionLogLine:
    """An effect: write a line to the control plane's log."""

    level: LogLevel
    text: str


Effect = SendMessage | EndConnection | SaveFacts | Commit | DescribeGroup | CheckProcess | RegionLogLine
