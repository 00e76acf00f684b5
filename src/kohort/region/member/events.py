"""Events of a member, and the effects that its machine returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.region.messages import CheckpointAttempt, Identity, Order, Report
from kohort.region.records import Part, Position
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class ControlPlaneConnected:
    """The event that the member has a connection to a control plane; the one before has ended.

    Attributes:
        process: this process's name, if the control plane can see whether it has ended; else empty.
        shows: the id of the last checkpoint in the member's sink, read on this connection; -1: it has no sink.
        letters_show: the same for its dead-letter sink.
    """

    process: str = ""
    shows: int = -1
    letters_show: int = -1


@dataclass(frozen=True, slots=True)
class ControlPlaneMessageReceived:
    """The event that the control plane has sent the member a message."""

    order: Order


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    """The event that the member's consumer group has changed its assignment or its generation.

    Attributes:
        parts: the full assignment.
    """

    identity: Identity
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PartitionsRevoked:
    """The event that the consumer group revokes partitions, which the member keeps until `ReleasePartitions`."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PartitionsLost:
    """The event that partitions were lost without a revocation; another consumer may own them already."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RecordsFetched:
    """The event that a poll has returned records, or that a Spark query is about to begin a batch."""


@dataclass(frozen=True, slots=True)
class DrainCompleted:
    """The event that the member is drained: no table is in progress, and submitted records' offsets are committed."""

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class DrainAborted:
    """The event that the member could not do its part of a checkpoint: drain, commit, save state or contribute."""

    cut: CheckpointAttempt
    cause: str


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The event that all submitted rows are staged, and the application's state is saved, for a checkpoint.

    Attributes:
        ends: the next offsets of all partitions that the member was given; if it reads on meanwhile, of what it has
            finished.
        keys: keys of the staged rows of these records, without those of earlier checkpoints.
        letter_keys: the same for its dead letters.
        dead_letters: the number of dead letters.
    """

    cut: CheckpointAttempt
    ends: tuple[Position, ...]
    keys: tuple[StagedKey, ...]
    state: bytes
    letter_keys: tuple[StagedKey, ...] = ()
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class ApplicationReset:
    """The event that `ResetApplication` is done: the queue is empty, and the application has reset."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StartOffsetsFound:
    """The event that the start offsets for a `LookUpStartOffsets` were found.

    Attributes:
        number: the number of the request.
        topics: the topics that the member's pattern matches now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishEnded:
    """The event that an attempt to publish a checkpoint to a sink has succeeded or failed.

    Attributes:
        cause: why it failed; empty: it succeeded.
        place: the name of the sink.
    """

    sequence: int
    cause: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """The event that the application requests a checkpoint, or that many records, changes or batches call for one."""


@dataclass(frozen=True, slots=True)
class ResetRequested:
    """The event that the application requests a reset of the region."""

    cause: str


@dataclass(frozen=True, slots=True)
class SinkWaitChanged:
    """The event that a sink accepts no rows at the moment; with an empty cause, it accepts them again."""

    cause: str


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """The event of an error in this member that no reset repairs, so that the region stops."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The event that the application closes the member."""


Event = (
    ControlPlaneConnected
    | ControlPlaneMessageReceived
    | PartitionsAssigned
    | PartitionsRevoked
    | PartitionsLost
    | RecordsFetched
    | DrainCompleted
    | DrainAborted
    | StateSaved
    | ApplicationReset
    | StartOffsetsFound
    | PublishEnded
    | CheckpointRequested
    | ResetRequested
    | SinkWaitChanged
    | MemberFailed
    | CloseRequested
)


@dataclass(frozen=True, slots=True)
class SendReport:
    """An effect: send a message to the control plane; without a connection, drop it."""

    report: Report


@dataclass(frozen=True, slots=True)
class StartPolling:
    """An effect: poll for records from now on.

    Attributes:
        slowly: poll only once in 100 ms (spec 5.11).
    """

    slowly: bool = False


@dataclass(frozen=True, slots=True)
class StopPolling:
    """An effect: poll for no more records, and give the application none of the queue.

    Attributes:
        clear: also discard the queue.
    """

    clear: bool = False


@dataclass(frozen=True, slots=True)
class DrainMember:
    """An effect: drain the member. Stop polling, finish the table in progress and commit, then post `DrainCompleted`.

    Records that are queued stay so. A member that does not stop for a checkpoint posts it at once, and reads on.
    """

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class SaveState:
    """An effect: stage the submitted rows and save the application's state, then post `StateSaved`."""

    cut: CheckpointAttempt
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResumeSubmitting:
    """An effect: give tables to the application again, first those that are still queued."""


@dataclass(frozen=True, slots=True)
class ResetApplication:
    """An effect: empty the queue and reset the application's state, then post `ApplicationReset`.

    Attributes:
        epoch: the epoch in which the member works from then on.
        sequence: the id of the checkpoint to return to; 0: the initial state.
        state: the application's state in that checkpoint, or the one that waited for an absent member; None: nothing,
            or the initial state.
    """

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """An effect: begin to work in this epoch, when the member has just started.

    Attributes:
        sequence: the id of the last complete checkpoint; 0: none.
        state: what an earlier member of this name saved with it, or the state that waited for an absent member; None:
            nothing.
    """

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class SeekPositions:
    """An effect: read partitions from these positions on.

    Attributes:
        commit: commit the positions to the group too, whose offsets may be ahead of them after a reset.
    """

    positions: tuple[Position, ...]
    commit: bool = False


@dataclass(frozen=True, slots=True)
class LookUpStartOffsets:
    """An effect: look up the start offsets of partitions that nobody has read, then post `StartOffsetsFound`.

    Attributes:
        number: the number of the request.
        first: partitions that begin at the region's start position.
        added: partitions that begin at their earliest offset.
    """

    number: int
    first: tuple[Part, ...]
    added: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """An effect: give up partitions; none of their records is queued, read or submitted any more."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RetireCheckpoints:
    """An effect: a checkpoint is complete; drop the state of checkpoints that no reset can return to.

    Attributes:
        sequence: the id of the complete checkpoint.
        retired: no reset returns to the checkpoints up to this id.
        counts: the checkpoint has this member's last contribution; otherwise the member contributes that again.
    """

    sequence: int
    retired: int
    counts: bool


@dataclass(frozen=True, slots=True)
class PublishCheckpoint:
    """An effect: publish the staged rows of a checkpoint, retrying until it succeeds.

    `PublishEnded` follows each attempt.

    Attributes:
        floor: the minimum valid epoch: rows staged in an earlier one, and not of this checkpoint, are never published.
        empties: empty the sink instead.
        place: the sink or the dead-letter sink of the member; empty: its sink.
        positions: where the checkpoint ends, for sinks that record it.
    """

    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""
    positions: tuple[Position, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class EndMember:
    """An effect: end the member.

    Attributes:
        cause: the reason; empty: the application asked for it.
    """

    cause: str = ""
    remedy: str = ""


Effect = (
    SendReport
    | StartPolling
    | StopPolling
    | DrainMember
    | SaveState
    | ResumeSubmitting
    | ResetApplication
    | BeginEpoch
    | SeekPositions
    | LookUpStartOffsets
    | ReleasePartitions
    | RetireCheckpoints
    | PublishCheckpoint
    | EndMember
)
