"""What a region's control plane and its members say to each other. Values only.

Every message of the control plane carries its term: a member that has heard a higher one ignores it. What a member says
about a cut or a reset carries the number that it was asked with: the answer to an earlier question is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kohort.region.parts import Part
from kohort.region.records import Contribution, Position
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's place in its group: the coordinator checks it where its offsets are committed.

    Attributes:
        member_id: empty before it has joined.
        generation: the classic generation or the member epoch of KIP-848.
    """

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Which cut is meant: the sequence that it would complete, and the so-manyth attempt at it."""

    sequence: int
    attempt: int


# What the control plane says.


@dataclass(frozen=True, slots=True)
class Welcome:
    """A member is registered, for the first time or again. It goes on with what is buffered, if anything is.

    Attributes:
        epoch: of what it stages; new for who has just started.
        sequence: the last complete one; 0: the initial state.
        names: all that are registered, this one too.
        state: for who has just started: what a member of its name saved with that sequence; None: nothing.
        cut: that under way: who is drained for it stays so.
        counts: what the member contributed to that sequence, if it did, is in it; a control plane of an earlier release
            does not say.
    """

    term: int
    epoch: int
    sequence: int
    names: tuple[str, ...]
    state: bytes | None = None
    cut: Cut | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """A member can't be registered; it ends with this error."""

    term: int
    why: str
    remedy: str = "give each member a name of its own"


@dataclass(frozen=True, slots=True)
class Members:
    """Who is registered now."""

    term: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop polling, finish what is in flight, commit, and say `Drained`."""

    term: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All are drained: save the state and say `Contributed`.

    Attributes:
        names: who contributes to this sequence.
    """

    term: int
    cut: Cut
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identify:
    """The coordinator refused the member's generation: say `Moved` with the one that holds now."""

    term: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Completed:
    """The sequence is the last complete one.

    Attributes:
        retired: those up to this one are given up.
        counts: what the member contributed to it, if it did, is in it.
    """

    term: int
    sequence: int
    retired: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Publish:
    """This member publishes for all that write to a place: what the sequence staged for it. Said until `Published`.

    Attributes:
        floor: what was staged in an earlier epoch, and is not of this sequence, never counts.
        empties: it is published by emptying the sink.
        place: its sink, or that of its dead letters; empty: its sink.
    """

    term: int
    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class Starts:
    """Where partitions are read from, those of an `AskStarts` that are free; the rest follows.

    Attributes:
        found: the merged checkpoint's, or the initial offsets.
        first: nobody has read these: look their start position up and say `Looked`.
        added: neither, in a topic that the region reads already: they begin at their beginning; say `Looked` too.
    """

    term: int
    number: int
    found: tuple[Position, ...]
    first: tuple[Part, ...] = ()
    added: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Go back: to the last complete sequence, or to the initial state.

    Where its partitions are read from it asks with `AskStarts`, when it has said `WasReset`.

    Attributes:
        epoch: of what is staged from now on; it names the attempt.
        sequence: 0: the initial state.
        state: what the member's `on_checkpoint` returned for that sequence; None: nothing, or the initial state.
    """

    term: int
    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The region has stopped, or this member may or must leave: it ends, with what to do; no cause: it wanted to."""

    term: int
    cause: str
    remedy: str


Order = Welcome | Refused | Members | Drain | Checkpoint | Identify | Completed | Publish | Starts | Reset | Stop
"""What the control plane says to a member."""


# What a member says.


@dataclass(frozen=True, slots=True)
class Register:
    """A member is there, for the first time or after the control plane has changed.

    Attributes:
        name: unique in the region; a second of a name fences the earlier one.
        incarnation: of the consumer object: the same one comes back, another fences.
        epoch: that it works in; -1: it has just started.
        holds: which partitions it was given to read, each with the offset where its next contribution begins.
        contributed: the sequence that it has contributed to and has not heard of since; 0: none.
        ends: the ends that it has contributed then: where the next one begins if that sequence is complete.
        sink: the place that it writes to, the same for all who write there; empty: none.
        shares: its state moves with partitions, or it has none; False: it must be alone in its group.
        of: the same for all members of one query, its siblings, and for no other; empty: it is one of its own.
        sources: how many they are.
        pinned: all queries of the group, where each partition is one of theirs for ever; empty: it is not so.
        process: its name, by which the control plane can see that it has ended; empty: it is on another machine.
        shows: the last sequence that its sink shows, looked at since it has this connection; -1: it does not say.
        letters: the place of its dead letters; empty: it has none.
        letters_show: the last sequence that this place shows, as `shows`.
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


@dataclass(frozen=True, slots=True)
class Leave:
    """The member wants to go: with the next complete sequence, or at once if it and its siblings hold nothing."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is in flight, and what was submitted is committed."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class DrainFailed:
    """It could not be drained: the commit of an offset failed for good, or the time was over."""

    cut: Cut
    cause: str


@dataclass(frozen=True, slots=True)
class Contributed:
    """What the member gives to a cut."""

    cut: Cut
    contribution: Contribution


@dataclass(frozen=True, slots=True)
class Holding:
    """The group wants partitions back; they are held until a sequence that began after this is complete."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The member's place in its group has changed, or partitions have left its hands.

    What it holds is not said: starts may be on their way to it.
    """

    identity: Identity
    gone: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class AskStarts:
    """Partitions were assigned: where are they read from?"""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """The beginnings of partitions that nobody has read.

    Attributes:
        topics: all that the member's pattern finds now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """The operator has counted its records, or a person asks."""


@dataclass(frozen=True, slots=True)
class AskReset:
    """All must go back.

    Attributes:
        forced: it does not count among those in a row, and begins their count anew.
        initial: to the initial state; only a person asks for it.
    """

    cause: str
    forced: bool = False
    initial: bool = False


@dataclass(frozen=True, slots=True)
class CantGoOn:
    """Going back would not help: the region stops."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class WasReset:
    """The member has gone back: it reads again, in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Published:
    """A place of the member shows what the sequence staged for it, by this member or another.

    Attributes:
        place: as `Publish` has it.
    """

    sequence: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A place of the member does not show the sequence yet; the member tries again.

    Attributes:
        place: as `Publish` has it.
    """

    sequence: int
    cause: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The member waits for its sink, and with it the checkpoint; with an empty cause, it goes on.

    Attributes:
        member, group, sink: of one that is not registered on this connection: its sink is compared with the region's
            topic first, and does not answer.
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
    | Moved
    | AskStarts
    | Looked
    | AskCheckpoint
    | AskReset
    | CantGoOn
    | WasReset
    | Published
    | PublishFailed
    | Waiting
)
"""What a member says to the control plane."""


# What anyone asks, a person for one.


@dataclass(frozen=True, slots=True)
class Describe:
    """How is the region?"""


@dataclass(frozen=True, slots=True)
class StopMember:
    """Have a member leave with the next complete sequence."""

    name: str


@dataclass(frozen=True, slots=True)
class LetGoOn:
    """Let a stopped region go on."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing to say; silence would mean that this end is gone."""


Ask = Describe | StopMember | LetGoOn | Alive
"""What is asked without being a member."""


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member, as its control plane knows it.

    Attributes:
        phase: what it is doing, in words.
        connected: it has a connection now.
        sink: the place that it writes to; empty: none.
        waits_for: why its sink does not take what it submits, or does not answer; empty: it does.
        registered: False: it is connected, and registers when its sink answers.
        letters: the place of its dead letters; empty: none.
        dead_letters: how many of them complete sequences have, since the control plane's term began.
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
class SinkSeen:
    """A sink of a region, as its control plane knows it.

    Attributes:
        place: its name.
        published: the last sequence that it shows.
        publisher: the member that publishes; empty: none that could is there.
        waits_for: why the last sequence is not published yet; empty: nothing has failed.
    """

    place: str
    published: int
    publisher: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class RegionSeen:
    """A region, as its control plane knows it.

    Attributes:
        state: in one word.
        published: the last sequence that all its sinks show.
        resets: how many there were in this term, by cause.
        sequence_ms: from the beginning of the last cut to its completion; -1: none yet.
        longest_ms: the longest of this term.
        sinks: each that a member writes to, or the region has published to.
    """

    name: str
    state: str
    term: int
    epoch: int
    sequence: int
    published: int
    members: tuple[MemberSeen, ...]
    positions: tuple[Position, ...]
    resets: dict[str, int]
    sequence_ms: int = -1
    longest_ms: int = -1
    stopped: str = ""
    sinks: tuple[SinkSeen, ...] = ()


Told = RegionSeen | Alive
"""What is answered to that."""
