"""Events of a member, and the effects that its machine returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.region.messages import CheckpointAttempt, Identity, Order, Report
from kohort.region.records import Part, Position
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Connected:
    """The event that a connection to a control plane exists; the one before has ended.

    Attributes:
        process: this process's name, if the control plane can see whether it has ended; else empty.
        shows: the last sequence that the member's sink shows, read on this connection; -1: it has no sink.
        letters_show: the same for its dead-letter sink.
    """

    process: str = ""
    shows: int = -1
    letters_show: int = -1


@dataclass(frozen=True, slots=True)
class OrderReceived:
    """The event that the control plane has sent an order."""

    order: Order


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    """The event that the group has assigned partitions; `parts` is the full assignment."""

    identity: Identity
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PartitionsRevoked:
    """The event that the group revokes partitions, which the member keeps until `ReleasePartitions`."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PartitionsLost:
    """The event that partitions were lost; another consumer may own them already."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RecordsFetched:
    """The event that records were fetched."""


@dataclass(frozen=True, slots=True)
class DrainCompleted:
    """The event that no table is in progress, and the offsets of submitted records are committed."""

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class DrainError:
    """The event that the member could not do its part of a checkpoint: to drain, commit, save state or contribute."""

    cut: CheckpointAttempt
    cause: str


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The event that the application's state is saved, and all submitted rows are staged.

    Attributes:
        ends: the next offsets of all partitions that the member was given; if it reads on meanwhile, of what it has
            finished.
        keys: keys of the rows that these ends cover, and the sequences before do not.
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
    """The event that `ResetApplication` is done: queue and drain buffer are empty, and the application has reset."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StartsLookedUp:
    """The event that the start offsets which `LookUpStarts` asked for were found.

    Attributes:
        topics: the topics that the member's pattern matches now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishEnded:
    """The event that an attempt to publish a sequence has ended.

    Attributes:
        cause: why it failed; empty: it succeeded.
        place: the sink of the order.
    """

    sequence: int
    cause: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """The application's request for a checkpoint, after a number of records."""


@dataclass(frozen=True, slots=True)
class ResetWanted:
    """The application's request for a reset."""

    cause: str


@dataclass(frozen=True, slots=True)
class SinkWaits:
    """The event that the sink refuses rows, which are retried; with an empty cause, it has accepted them."""

    cause: str


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """The event of an error that no reset repairs."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The event that the application has closed the member."""


Event = (
    Connected
    | OrderReceived
    | PartitionsAssigned
    | PartitionsRevoked
    | PartitionsLost
    | RecordsFetched
    | DrainCompleted
    | DrainError
    | StateSaved
    | ApplicationReset
    | StartsLookedUp
    | PublishEnded
    | CheckpointWanted
    | ResetWanted
    | SinkWaits
    | MemberFailed
    | CloseRequested
)


@dataclass(frozen=True, slots=True)
class SendReport:
    """An order to send a message to the control plane; without a connection the message is dropped."""

    report: Report


@dataclass(frozen=True, slots=True)
class Poll:
    """An order to fetch records.

    Attributes:
        slowly: poll once in 100 ms (spec 5.11).
    """

    slowly: bool = False


@dataclass(frozen=True, slots=True)
class StopPolling:
    """An order to fetch no more, and to submit nothing more of the queue.

    Attributes:
        clear: discard the queue.
    """

    clear: bool = False


@dataclass(frozen=True, slots=True)
class Quiesce:
    """An order to stop polling, finish the table in progress and commit, then post `DrainCompleted`.

    The queue becomes the drain buffer. A member that does not stop for a checkpoint posts it at once, and reads on.
    """

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class SaveState:
    """An order to stage the submitted rows and save the application's state, then post `StateSaved`."""

    cut: CheckpointAttempt
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResumeSubmitting:
    """An order to submit again, first from the drain buffer."""


@dataclass(frozen=True, slots=True)
class ResetApplication:
    """An order to empty queue and drain buffer and reset the application, then post `ApplicationReset`.

    Attributes:
        sequence: the sequence to return to; 0: the initial state.
    """

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """An order to work in this epoch; the application starts with a state that an earlier member of its name saved."""

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Seek:
    """An order to read partitions from these positions.

    Attributes:
        commit: commit the positions to the group too: its offsets may be ahead.
    """

    positions: tuple[Position, ...]
    commit: bool = False


@dataclass(frozen=True, slots=True)
class LookUpStarts:
    """An order to look up start offsets, then post `StartsLookedUp`.

    Attributes:
        first: partitions that begin at the start position.
        added: partitions that begin at their earliest offset.
    """

    number: int
    first: tuple[Part, ...]
    added: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """An order to release revoked partitions: none of their records is queued, read or submitted any more."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RetireSequences:
    """An order that a sequence is complete: release the state of sequences that no reset can return to.

    Attributes:
        retired: the sequences up to this one can no longer be returned to.
        counts: the sequence includes this member's last contribution; otherwise the member contributes that again.
    """

    sequence: int
    retired: int
    counts: bool


@dataclass(frozen=True, slots=True)
class PublishKeys:
    """An order to publish what a sequence staged, retrying until it succeeds; `PublishEnded` follows each attempt.

    Attributes:
        floor: the minimum valid epoch: rows staged in an earlier one, and not of this sequence, are never published.
        empties: empty the sink instead.
        place: the sink or the dead-letter sink of the member; empty: its sink.
        positions: where the sequence ends, for sinks that record it.
    """

    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""
    positions: tuple[Position, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class EndMember:
    """An order to end the member.

    Attributes:
        cause: empty: the application asked for it.
    """

    cause: str = ""
    remedy: str = ""


Effect = (
    SendReport
    | Poll
    | StopPolling
    | Quiesce
    | SaveState
    | ResumeSubmitting
    | ResetApplication
    | BeginEpoch
    | Seek
    | LookUpStarts
    | ReleasePartitions
    | RetireSequences
    | PublishKeys
    | EndMember
)
