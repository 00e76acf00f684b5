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
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointAttempt:
    """The identity of a checkpoint attempt: the sequence that it would complete, and the number of the attempt."""

    sequence: int
    attempt: int


# -- orders of the control plane


@dataclass(frozen=True, slots=True)
class Welcome:
    """The registration of a member, for the first time or again; the member continues with its buffered records.

    Attributes:
        epoch: of what it stages; new for a member that has just started.
        sequence: the last complete one; 0: the initial state.
        names: all registered members, including this one.
        state: for a member that has just started, the state that a member of its name saved with that sequence; None:
            none.
        cut: the checkpoint in progress; a member that is drained for it stays drained.
        counts: that sequence has the member's contribution, if it made one; a control plane of an earlier release does
            not say.
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
class Refused:
    """The refusal of a registration; the member ends with this error."""

    term: int
    why: str
    remedy: str = "give each member a name of its own"


@dataclass(frozen=True, slots=True)
class Members:
    """The notice of the names of all registered members, sent when the list has changed."""

    term: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """An order to stop polling, finish the table in progress and commit, then send `Drained`."""

    term: int
    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An order to save the state, because all are drained, then send `Contributed`.

    Attributes:
        names: the contributors to this sequence.
    """

    term: int
    cut: CheckpointAttempt
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identify:
    """A request for the current generation, sent in `AssignmentChanged`: the coordinator refused the one before."""

    term: int
    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class Completed:
    """The notice that the sequence is the last complete one.

    Attributes:
        retired: the sequences up to this one can no longer be returned to.
        counts: the sequence has the member's contribution, if it made one.
    """

    term: int
    sequence: int
    retired: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Publish:
    """An order to publish a sequence to one sink, for all members that write there; repeated until `Published`.

    Attributes:
        floor: the minimum valid epoch: rows staged in an earlier one, and not of this sequence, are never published.
        empties: publish it by emptying the sink.
        place: the sink or the dead-letter sink of the member; empty: its sink.
        positions: where the sequence ends, for sinks that record it; two orders of one sequence have the same.
    """

    term: int
    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""
    positions: tuple[Position, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Starts:
    """The start offsets of those requested partitions that no other member holds; the others follow when released.

    Attributes:
        found: positions of the last checkpoint, or initial offsets.
        first: partitions that nobody has read: look their start position up and send `Looked`.
        added: unread partitions of a topic that the region reads already: they begin at their earliest offset; send
            `Looked` too.
    """

    term: int
    number: int
    found: tuple[Position, ...]
    first: tuple[Part, ...] = ()
    added: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """An order to return to the last complete sequence, or to the initial state.

    The member requests start offsets with `AskStarts` after it has sent `WasReset`.

    Attributes:
        epoch: of what is staged from now on; it names the attempt.
        sequence: the sequence to return to; 0: the initial state.
        state: what the member's `on_checkpoint` returned for that sequence; None: nothing, or the initial state.
    """

    term: int
    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Stop:
    """An order to end: the region has stopped, or the member leaves.

    `cause` is empty if the member asked to leave.
    """

    term: int
    cause: str
    remedy: str


Order = Welcome | Refused | Members | Drain | Checkpoint | Identify | Completed | Publish | Starts | Reset | Stop
"""An order of the control plane to a member."""


# -- reports of a member


@dataclass(frozen=True, slots=True)
class Register:
    """The registration request of a member, for the first time or with a new control plane.

    Attributes:
        name: unique in the region; a second member of a name fences the first.
        incarnation: the id of the consumer object: the same one reconnects, another one fences it.
        epoch: the epoch in which it works; -1: it has just started.
        holds: the partitions that it was given, each with the offset where its next contribution begins.
        contributed: the sequence that it has contributed to, while the outcome is unknown to it; 0: none.
        ends: the ends of that contribution: the next one begins there if that sequence is complete.
        sink: the name of the sink that it writes to, common to all its writers; empty: none.
        shares: its state moves with partitions, or it has none; False: it must be alone in its group.
        of: the name of its query, common to the query's members (its siblings) alone; empty: it is not part of a query.
        sources: the number of members of its query.
        pinned: all queries of the group, when each partition belongs to one of them for ever; empty: not so.
        process: its name, by which the control plane can see that it has ended; empty: it is on another host.
        shows: the last sequence that its sink shows, read on this connection; -1: unknown.
        letters: the name of its dead-letter sink; empty: none.
        letters_show: the last sequence that the dead-letter sink shows, like `shows`.
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
class Leave:
    """A member's request to leave: with the next complete sequence, or at once if it and its siblings hold nothing."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The report that no table is in progress, and the offsets of submitted records are committed."""

    cut: CheckpointAttempt


@dataclass(frozen=True, slots=True)
class DrainFailed:
    """The report that the member could not drain: the commit of an offset failed for good, or the deadline passed."""

    cut: CheckpointAttempt
    cause: str


@dataclass(frozen=True, slots=True)
class Contributed:
    """The report that carries a member's contribution to a checkpoint: offsets, staged keys and state."""

    cut: CheckpointAttempt
    contribution: Contribution


@dataclass(frozen=True, slots=True)
class Holding:
    """The report that the member holds revoked partitions until a sequence that began later is complete."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """The report of a changed group identity, or of released partitions.

    It does not list the partitions that the member still holds: start offsets may be on their way to it.
    """

    identity: Identity
    gone: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class AskStarts:
    """A request for the start offsets of assigned partitions."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """The start offsets of partitions that nobody has read.

    Attributes:
        topics: the topics that the member's pattern matches now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """A request for a checkpoint, by an application that has counted its records or by an operator."""


@dataclass(frozen=True, slots=True)
class Emptying:
    """The confirmation of a request that deletes published rows: which region's, and from which sinks.

    Attributes:
        region_id: the region's id, which a region of the same name does not have.
        places: the sinks, all that the reset empties.
    """

    region_id: UUID
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskReset:
    """A request for a reset of the region.

    Attributes:
        forced: the limit of resets in a row leaves it out, and starts again with it.
        initial: reset to the initial state; only an operator requests it.
        confirms: what an initial reset deletes. The control plane declines a request without a confirmation once
            sequences are complete.
    """

    cause: str
    forced: bool = False
    initial: bool = False
    confirms: Emptying | None = None


@dataclass(frozen=True, slots=True)
class UnrecoverableFailure:
    """The report of an error that no reset repairs: the region stops."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class WasReset:
    """The report that the member has reset: it reads again, in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Published:
    """The report that a sink of the member shows a sequence, whichever member has published it.

    Attributes:
        place: the sink of the `Publish` order.
    """

    sequence: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The report that an attempt to publish a sequence to one of the member's sinks failed; the member retries.

    Attributes:
        place: the sink of the `Publish` order.
    """

    sequence: int
    cause: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The report that the member waits for its sink, and the checkpoint with it; an empty cause ends the wait.

    Attributes:
        member, group, sink: of a member that is not registered on this connection. Its sink is compared with the
            region's topic first, and does not answer.
    """

    cause: str
    member: str = ""
    group: str = ""
    sink: str = ""


Report = (
    Register
    | Leave
    | Drained
    | DrainFailed
    | Contributed
    | Holding
    | AssignmentChanged
    | AskStarts
    | Looked
    | AskCheckpoint
    | AskReset
    | UnrecoverableFailure
    | WasReset
    | Published
    | PublishFailed
    | Waiting
)
"""A report of a member to the control plane."""


# -- requests of any client, such as an operator's


@dataclass(frozen=True, slots=True)
class Describe:
    """A request for the description of the region."""


@dataclass(frozen=True, slots=True)
class StopMember:
    """A request that a member leaves with the next complete sequence."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeRegion:
    """A request to resume a stopped region."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A keep-alive message: an end that receives nothing for too long counts the other as dead."""


Ask = Describe | StopMember | ResumeRegion | Alive
"""A request of a client that need not be a member."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The state of a member, as its control plane reports it.

    Attributes:
        phase: what it is doing, in words.
        connected: its connection is open.
        sink: the name of the sink that it writes to; empty: none.
        waits_for: the reason for which its sink accepts no rows or does not answer; empty: the sink accepts rows.
        registered: whether the member has registered; False: it is connected, and waits for its sink to answer.
        letters: the name of its dead-letter sink; empty: none.
        dead_letters: the number of its dead letters in complete sequences, since the control plane's term began.
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


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The description of a sink by the region's control plane.

    Attributes:
        place: its name.
        published: the last sequence that it shows.
        publisher: the member that publishes to the sink; empty: no connected member writes there.
        waits_for: the error of the last attempt to publish the last sequence; empty: no attempt has failed.
    """

    place: str
    published: int
    publisher: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class RegionSeen:
    """The state of a region, as its control plane reports it.

    Attributes:
        state: in one word.
        published: the last sequence that all its sinks show.
        resets: the number of resets in this term, by cause.
        sequence_ms: duration of the last checkpoint; -1: none yet.
        longest_ms: the longest duration in this term.
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
class Declined:
    """The refusal of a request to reset to the initial state (`AskReset`), of which nothing was carried out."""

    why: str


Answer = RegionSeen | Declined | Alive
"""The answer to such a request."""
