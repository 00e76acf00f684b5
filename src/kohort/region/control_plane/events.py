"""Events of a control plane, the requests of its machines to each other, and the effects that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from kohort.region.messages import CheckpointAttempt, Identity, Order, Report, ResetDeclined
from kohort.region.records import Contribution, Fact, Manifest, Part, Position


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """The event that a member or an operator has sent a message.

    An earlier `Register` message on the connection tells which member it is; without one, it is no member.
    """

    connection: int
    report: Report


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The event that the connection of a member or an operator has ended."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The event that an operating system process has ended for certain, and with it all members in it."""

    process: str


@dataclass(frozen=True, slots=True)
class FactsSaved:
    """The event that the records of the `SaveFacts` with this token are committed to the region's metadata topic."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """The event that the outcome of a checkpoint's commit is known.

    Attributes:
        refused: members whose offsets the group coordinator refused, each with its reason; empty: all is committed.
        gone: those among them that the coordinator does not know any more.
    """

    cut: CheckpointAttempt
    refused: dict[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OutsideClient:
    """A client outside the region to which one of the region's groups has assigned partitions."""

    group: str
    client_id: str
    host: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class OutsideClientsChecked:
    """The event that a group's coordinator has described it, in answer to `FindOutsideClients`.

    Attributes:
        outsiders: clients outside the region that are assigned partitions; empty: there are none.
    """

    group: str
    outsiders: tuple[OutsideClient, ...]


@dataclass(frozen=True, slots=True)
class MemberStopRequested:
    """An operator's request that a member leaves with the next complete checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """An operator's request that a stopped region continues."""


@dataclass(frozen=True, slots=True)
class ClockTick:
    """The event that time has passed, so that deadlines are checked."""


Event = (
    MessageReceived
    | ConnectionEnded
    | ProcessEnded
    | FactsSaved
    | CommitEnded
    | OutsideClientsChecked
    | MemberStopRequested
    | ResumeRequested
    | ClockTick
)


# -- What the machines of the control plane ask of each other: `machine.RegionMachine` says which of them answer


class ResetCause(Enum):
    """The kind of cause for which a region resets; metrics count resets by it."""

    ASKED = "a person, or what is behind a member"
    PARTITIONS = "partitions that were read were revoked or lost"
    DEAD = "a member died"
    LATE = "a member took too long"
    DRAIN = "a member could not be drained"
    CONTRIBUTION = "a member contributed what can't be"
    COMMIT = "the group's coordinator refused the offsets"


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The request for a reset of the region. It may have to wait for a pending commit, or for members to register.

    Attributes:
        why: the kind of cause, for metrics.
        cause: the cause, for the log.
        member: the member that is the cause; empty: none.
        forced: starts the count of resets in a row again, which stops the region at a limit.
        initial: the region returns to its initial offsets.
    """

    why: ResetCause
    cause: str
    member: str = ""
    forced: bool = False
    initial: bool = False


@dataclass(frozen=True, slots=True)
class DeferredResetMayBegin:
    """The request to begin the deferred reset, because nothing delays it any more."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The request for a reset at once, because a checkpoint has failed and nothing of it was written."""

    why: ResetCause
    cause: str


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The request to stop the region until an operator resumes it, because of an error that no reset repairs."""

    cause: str
    member: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PendingCommitSettled:
    """The notice that a commit which was pending when the region stopped has succeeded or failed."""


@dataclass(frozen=True, slots=True)
class RegionRunning:
    """The notice that the region runs: all members have registered, or have reset."""


@dataclass(frozen=True, slots=True)
class LeaverWantsCheckpoint:
    """The request for a checkpoint, with which a member can leave the region."""


@dataclass(frozen=True, slots=True)
class CheckpointMayBegin:
    """The request to begin a wanted checkpoint, which may have waited only for a member that is ready now."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The notice that a member is gone, has got its epoch or has published what others waited for."""


@dataclass(frozen=True, slots=True)
class ParticipantLost:
    """The notice that a participant of the checkpoint in progress is gone."""

    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsReleased:
    """The notice that a member has released partitions; they may be in its contribution to a checkpoint."""

    member: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GroupGenerationReported:
    """The notice that a member has reported its present generation in its consumer group."""

    member: str


Request = (
    ResetRequest
    | DeferredResetMayBegin
    | CheckpointFailed
    | StopRequest
    | PendingCommitSettled
    | RegionRunning
    | LeaverWantsCheckpoint
    | CheckpointMayBegin
    | MembersChanged
    | ParticipantLost
    | PartitionsReleased
    | GroupGenerationReported
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
    """An effect: send a message to the member or operator on this connection."""

    connection: int
    order: Order | ResetDeclined


@dataclass(frozen=True, slots=True)
class EndMemberConnection:
    """An effect: close a connection after its queued messages are sent."""

    connection: int


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """An effect: write records to the region's metadata topic in one transaction.

    The write is retried until it succeeds or the control plane's term ends. `FactsSaved` with the same token follows.
    """

    token: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class MemberOffsets:
    """The offsets to commit for one member: those of its own partitions, under its identity in its group."""

    member: str
    group: str
    identity: Identity
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """An effect: commit a checkpoint, with its manifest, contributions and offsets, in one transaction.

    `CommitEnded` follows only when the outcome is known.
    """

    cut: CheckpointAttempt
    manifest: Manifest
    contributions: tuple[Contribution, ...]
    offsets: tuple[MemberOffsets, ...]


@dataclass(frozen=True, slots=True)
class FindOutsideClients:
    """An effect: describe a group, because clients outside the region may read partitions that no member holds."""

    group: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CheckProcess:
    """An effect: check whether the process of a disconnected member still runs; if not, `ProcessEnded` follows."""

    process: str


@dataclass(frozen=True, slots=True)
class WriteLogLine:
    """An effect: write a line to the control plane's log."""

    level: LogLevel
    text: str


Effect = (
    SendMessage | EndMemberConnection | SaveFacts | CommitCheckpoint | FindOutsideClients | CheckProcess | WriteLogLine
)
