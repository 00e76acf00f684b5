"""Messages between a region's control plane and its members, as plain data classes.

Every message of the control plane carries its term; a member that knows a higher term ignores it. A member's answer
about a checkpoint or a reset carries the number of the order. An answer to an earlier order is thereby ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from kohort.region.records import Contribution, Part, Position
from kohort.region.staged import StagedKey

NO_REGION = UUID(int=0)
"""The id of no region."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's identity in its consumer group: the coordinator checks it when offsets are committed.

    Attributes:
        member_id: empty before the member has joined.
        generation: the classic generation or the member epoch of KIP-848.
        instance_id: Kafka's `group.instance.id`; None: the member is no static one.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointAttempt:
    """The identity of one attempt at a checkpoint: the id that the checkpoint would have, and the attempt's number."""

    sequence: int
    attempt: int


# -- orders of the control plane


@dataclass(frozen=True, slots=True)
class RegistrationAccepted:
    """The control plane's answer to `RegistrationRequest`: the member is registered, and goes on with its records.

    Attributes:
        epoch: of what it stages; new for a member that has just started.
        sequence: the id of the last complete checkpoint; 0: the initial state.
        names: all registered members, including this one.
        state: for a member that has just started, the state that a member of its name saved with that checkpoint, or
            that has waited for the member while it was absent; None: none.
        cut: the checkpoint in progress; a member that is drained for it stays drained.
        counts: the last checkpoint has the member's contribution, if it made one; a control plane of an earlier release
            does not say.
        moves_state: the control plane hands keyed states on with their partitions; one of an earlier release does not.
    """

    term: int
    epoch: int
    sequence: int
    names: tuple[str, ...]
    state: bytes | None = None
    cut: CheckpointAttempt | None = None
    counts: bool = True
    moves_state: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationRefused:
    """The control plane's refusal to register a member, which ends with this error."""

    term: int
    why: str
    remedy: str = "give each member a name of its own"


@dataclass(frozen=True, slots=True)
class MemberNamesChanged:
    """The control plane's notice of the names of all registered members, sent when the list has changed."""

    term: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """The control plane's order to stop polling, finish the table in progress and commit, then send `MemberDrained`."""

    term: int
    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class ContributeOrder:
    """The control plane's order to save the state, because all members are drained, then send `ContributionReport`.

    Attributes:
        cut: the checkpoint attempt.
        names: the members that contribute to this checkpoint.
    """

    term: int
    cut: CheckpointAttempt
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupGenerationRequest:
    """The control plane's request for the member's present group generation, sent in `AssignmentChanged`.

    The group coordinator has refused the member's offsets under the generation before.
    """

    term: int
    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The control plane's notice that a checkpoint is complete.

    Attributes:
        sequence: its id.
        retired: no reset returns to the checkpoints up to this id.
        counts: the checkpoint has the member's contribution, if it made one.
    """

    term: int
    sequence: int
    retired: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class PublishOrder:
    """The control plane's order to publish the last checkpoint to one sink, for all members that write there.

    The order is repeated until the member sends `CheckpointPublished`.

    Attributes:
        sequence: the checkpoint's id.
        keys: the keys of the rows to publish.
        floor: the minimum valid epoch: rows staged in an earlier one, and not of this checkpoint, are never published.
        empties: publish it by emptying the sink.
        place: the sink or the dead-letter sink of the member; empty: its sink.
        positions: where the checkpoint ends, for sinks that record it; two orders of one checkpoint have the same.
    """

    term: int
    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""
    positions: tuple[Position, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class StartOffsetsAnswer:
    """The control plane's answer to `StartOffsetsRequest`: partitions that the member may read, with start offsets.

    Partitions that another member holds are not among them; they follow when released.

    Attributes:
        found: positions of the last checkpoint, or initial offsets.
        first: partitions that nobody has read: look their start position up and send `StartOffsetsLookedUp`.
        added: unread partitions of a topic of which the group reads others already, or that its pattern did not match
            at first. They begin at their earliest offset; send `StartOffsetsLookedUp` too.
    """

    term: int
    number: int
    found: tuple[Position, ...]
    first: tuple[Part, ...] = ()
    added: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class ResetOrder:
    """The control plane's order to return to the last complete checkpoint, or to the initial state.

    The member requests start offsets with `StartOffsetsRequest` after it has sent `MemberWasReset`.

    Attributes:
        epoch: of what is staged from now on; it names the attempt.
        sequence: the id of the checkpoint to return to; 0: the initial state.
        state: the member's state in that checkpoint, or the one that waited while the member was absent; None: nothing,
            or the initial state.
    """

    term: int
    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The control plane's order to end: the region has stopped, or the member leaves.

    `cause` is empty if the member asked to leave.
    """

    term: int
    cause: str
    remedy: str


Order = (
    RegistrationAccepted
    | RegistrationRefused
    | MemberNamesChanged
    | DrainOrder
    | ContributeOrder
    | GroupGenerationRequest
    | CheckpointCompleted
    | PublishOrder
    | StartOffsetsAnswer
    | ResetOrder
    | StopOrder
)
"""An order of the control plane to a member."""


# -- reports of a member


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """The registration request of a member, for the first time or with a new control plane.

    Attributes:
        name: unique in the region; a second member of a name fences the first.
        incarnation: the id of the consumer object: the same one reconnects, another one fences it.
        epoch: the epoch in which it works; -1: it has just started.
        holds: the partitions that it was given, each with the offset where its next contribution begins.
        contributed: the id of the checkpoint that it has contributed to, while the outcome is unknown to it; 0: none.
        ends: the ends of that contribution: the next one begins there if that checkpoint is complete.
        sink: the name of the sink that it writes to, common to all its writers; empty: none.
        shares: its state moves with partitions, or it has none; False: it must be alone in its group.
        of: the name of its query, common to the query's members (its siblings) alone; empty: it is not part of a query.
        sources: the number of members of its query.
        pinned: all queries of the group, when each partition belongs to one of them for ever; empty: not so.
        process: its name, by which the control plane can see that it has ended; empty: it is on another host.
        shows: the id of the last checkpoint in its sink, read on this connection; -1: unknown.
        letters: the name of its dead-letter sink; empty: none.
        letters_show: the same for its dead-letter sink.
        keyed: it saves a keyed state for each partition.
    """

    name: str
    incarnation: UUID
    group: str
    identity: Identity
    epoch: int = -1
    holds: tuple[Position, ...] = ()
    contributed: int = 0
    ends: tuple[Position, ...] = ()
    sink: str = ""
    shares: bool = True
    of: str = ""
    sources: int = 1
    pinned: tuple[str, ...] = ()
    process: str = ""
    shows: int = -1
    letters: str = ""
    letters_show: int = -1
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A member's request to leave: with the next complete checkpoint, or at once if its query holds no partitions.

    A member that reads with a consumer counts as a query of its own.
    """


@dataclass(frozen=True, slots=True)
class MemberDrained:
    """A member's report that no table is in progress, and the offsets of submitted records are committed."""

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class DrainFailed:
    """A member's report that it could not do its part of a checkpoint: drain, commit, save state or contribute."""

    cut: CheckpointAttempt
    cause: str


@dataclass(frozen=True, slots=True)
class ContributionReport:
    """A member's report with its contribution to a checkpoint: offsets, staged keys and state."""

    cut: CheckpointAttempt
    contribution: Contribution


@dataclass(frozen=True, slots=True)
class RevokedPartitionsHeld:
    """A member's report that it keeps revoked partitions until a complete checkpoint has all that it read of them."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """A member's report of its changed identity in its consumer group, or of partitions that it has released.

    The partitions that the member still holds are left out: start offsets may be on their way to it.
    """

    identity: Identity
    gone: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOffsetsRequest:
    """A member's request for the start offsets of partitions that its group has assigned to it."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class StartOffsetsLookedUp:
    """A member's report of the start offsets that it has looked up, for partitions that nobody has read.

    Attributes:
        number: the number of the `AskStarts` request.
        found: the start offsets. If the group begins to read a topic, the report has all partitions of the topic; a
            member of an earlier release reports its own.
        topics: the topics that the member's pattern matches now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint, by an operator or an application."""


@dataclass(frozen=True, slots=True)
class EmptySinksConfirmation:
    """The confirmation that a reset to the initial state may delete published rows.

    Attributes:
        region_id: the region's id, which a region of the same name does not have.
        places: the names of the sinks to empty, all that the reset empties.
    """

    region_id: UUID
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegionResetRequest:
    """A request for a reset of the region, by a member or an operator.

    Attributes:
        cause: for the log.
        forced: the count of resets in a row, which stops the region at a limit, starts again.
        initial: reset to the initial state; only an operator requests it.
        confirms: what an initial reset deletes. The control plane declines a request without a confirmation once
            checkpoints are complete.
    """

    cause: str
    forced: bool = False
    initial: bool = False
    confirms: EmptySinksConfirmation | None = None


@dataclass(frozen=True, slots=True)
class UnrecoverableFailure:
    """A member's report of an error that no reset repairs: the region stops."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class MemberWasReset:
    """A member's report that it has reset: it reads again, in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    """A member's report that a sink shows a checkpoint, whichever member has published it.

    Attributes:
        sequence: the checkpoint's id.
        place: the sink of the `PublishOrder` order.
    """

    sequence: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A member's report that an attempt to publish a checkpoint to one of its sinks failed; the member retries.

    Attributes:
        sequence: the checkpoint's id.
        cause: the error.
        place: the sink of the `PublishOrder` order.
    """

    sequence: int
    cause: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitingForSink:
    """A member's report that it waits for its sink, and the checkpoint with it; an empty cause ends the wait.

    Attributes:
        member, group, sink: of a member that can't register on this connection yet, because its sink does not answer.
            Empty: the member is registered.
    """

    cause: str
    member: str = ""
    group: str = ""
    sink: str = ""


Report = (
    RegistrationRequest
    | LeaveRequest
    | MemberDrained
    | DrainFailed
    | ContributionReport
    | RevokedPartitionsHeld
    | AssignmentChanged
    | StartOffsetsRequest
    | StartOffsetsLookedUp
    | CheckpointRequest
    | RegionResetRequest
    | UnrecoverableFailure
    | MemberWasReset
    | CheckpointPublished
    | PublishFailed
    | WaitingForSink
)
"""A report of a member to the control plane."""


# -- requests of any client, such as an operator's


@dataclass(frozen=True, slots=True)
class DescribeRegion:
    """An operator's request for the description of the region, `RegionStatus`."""


@dataclass(frozen=True, slots=True)
class StopMember:
    """An operator's request that a member leaves with the next complete checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeRegion:
    """An operator's request to resume a stopped region."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A keep-alive message: an end of a connection that receives nothing for too long takes the other for dead."""


Ask = DescribeRegion | StopMember | ResumeRegion | KeepAlive
"""A request of a client that need not be a member."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The state of a member, as the control plane describes it to operators.

    Attributes:
        phase: what it is doing, in words.
        connected: its connection is open.
        sink: the name of the sink that it writes to; empty: none.
        waits_for: the reason for which its sink accepts no rows or does not answer; empty: the sink accepts rows.
        registered: whether the member has registered; False: it is connected, and waits for its sink to answer.
        letters: the name of its dead-letter sink; empty: none.
        dead_letters: the number of its dead letters in complete checkpoints, since the control plane's term began.
        stop_unsaved: an operator has told it to leave, and the topic does not record that yet.
    """

    name: str
    group: str
    phase: str
    epoch: int
    parts: tuple[Part, ...]
    connected: bool
    sink: str = ""
    waits_for: str = ""
    registered: bool = True
    letters: str = ""
    dead_letters: int = 0
    stop_unsaved: bool = False


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The state of a sink, as the control plane describes it to operators.

    Attributes:
        place: its name.
        published: the id of the last checkpoint that it shows.
        publisher: the member that publishes to the sink; empty: no connected member writes there.
        waits_for: the error of the last attempt to publish the last checkpoint; empty: no attempt has failed.
    """

    place: str
    published: int
    publisher: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """The state of a region, as its control plane describes it to operators.

    Attributes:
        state: in one word.
        sequence: the id of the last complete checkpoint.
        published: the id of the last checkpoint that all its sinks show.
        resets: the number of resets in this term, by cause.
        sequence_ms: duration of the last checkpoint; -1: none yet.
        longest_ms: the longest duration in this term.
        stopped: why the region is stopped; empty: it is not.
        sinks: all sinks that a member writes to, or the region has published to.
        region_id: the region's id.
    """

    name: str
    state: str
    term: int
    epoch: int
    sequence: int
    published: int
    members: tuple[MemberStatus, ...]
    positions: tuple[Position, ...]
    resets: dict[str, int]
    sequence_ms: int = -1
    longest_ms: int = -1
    stopped: str = ""
    sinks: tuple[SinkStatus, ...] = ()
    region_id: UUID = NO_REGION


@dataclass(frozen=True, slots=True)
class ResetDeclined:
    """The control plane's refusal of a `RegionResetRequest` to the initial state; nothing of it was carried out."""

    why: str


Answer = RegionStatus | ResetDeclined | KeepAlive
"""The answer to such a request."""
