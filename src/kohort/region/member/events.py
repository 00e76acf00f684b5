"""What can happen to a member, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass

from kohort.region.messages import Cut, Identity, Order, Report
from kohort.region.parts import Part
from kohort.region.records import Position
from kohort.region.staged import StagedKey


@dataclass(frozen=True, slots=True)
class Connected:
    """There is a connection to a control plane; the one before has ended.

    Attributes:
        process: this one's name, if the control plane can see whether it has ended; else empty.
        shows: the last sequence that the member's sink shows, looked at since; -1: it has none.
        letters_show: the same of the place of its dead letters.
    """

    process: str = ""
    shows: int = -1
    letters_show: int = -1


@dataclass(frozen=True, slots=True)
class Ordered:
    """The control plane said something."""

    order: Order


@dataclass(frozen=True, slots=True)
class Assigned:
    """What the group has given to this member, all of it."""

    identity: Identity
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group wants partitions back; they are the member's until `Release`."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Partitions are someone else's already."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records have come."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing is in flight, and what was submitted is committed."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class NotQuiet:
    """The drain failed."""

    cut: Cut
    cause: str


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The operator's state is there, and all that was submitted is staged.

    Attributes:
        ends: next offsets of all that the member was given to read; of what it has finished, if it reads on meanwhile.
        keys: of what these ends cover, and the sequences before do not.
        letter_keys: the same of its dead letters.
        dead_letters: how many these are.
    """

    cut: Cut
    ends: tuple[Position, ...]
    keys: tuple[StagedKey, ...]
    state: bytes
    letter_keys: tuple[StagedKey, ...] = ()
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class WentBack:
    """Queue and drain buffer are empty, and the operator has gone back."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Start positions were found.

    Attributes:
        topics: all that the member's pattern finds now; empty: it reads topics by name.
    """

    number: int
    found: tuple[Position, ...]
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishEnded:
    """An attempt to publish what a sequence staged has ended.

    Attributes:
        cause: why not yet; empty: it is.
        place: where, as it was ordered.
    """

    sequence: int
    cause: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """The operator has counted its records."""


@dataclass(frozen=True, slots=True)
class ResetWanted:
    """What is behind the member can't go on from here."""

    cause: str


@dataclass(frozen=True, slots=True)
class SinkWaits:
    """The sink does not take what is to be staged, which is tried again; with an empty cause, it has."""

    cause: str


@dataclass(frozen=True, slots=True)
class Failed:
    """What no reset mends."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Closing:
    """The application has closed the member."""


Event = (
    Connected
    | Ordered
    | Assigned
    | Revoked
    | Lost
    | Fetched
    | Quiet
    | NotQuiet
    | StateSaved
    | WentBack
    | LookedUp
    | PublishEnded
    | CheckpointWanted
    | ResetWanted
    | SinkWaits
    | Failed
    | Closing
)


@dataclass(frozen=True, slots=True)
class Say:
    """To the control plane; lost when there is none."""

    report: Report


@dataclass(frozen=True, slots=True)
class Poll:
    """Fetch.

    Attributes:
        slowly: one poll in 100 ms (spec 5.11).
    """

    slowly: bool = False


@dataclass(frozen=True, slots=True)
class StopPolling:
    """Fetch nothing more, and submit nothing more of what is queued.

    Attributes:
        clear: throw away what is queued.
    """

    clear: bool = False


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Stop polling, put the queue into the drain buffer, finish what is in flight, commit: then `Quiet`.

    Who does not stop for a cut says so at once, and reads on.
    """

    cut: Cut


@dataclass(frozen=True, slots=True)
class SaveState:
    """Stage what was submitted, have the operator save its state: then `StateSaved`."""

    cut: Cut
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoOn:
    """Submit again: first what is in the drain buffer."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """Empty queue and drain buffer, forget positions, have the operator go back: then `WentBack`.

    Attributes:
        sequence: 0: the initial state.
    """

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Begin:
    """The member works in this epoch; its operator begins with a state that another of its name has saved."""

    epoch: int
    sequence: int
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Seek:
    """Read partitions from here.

    Attributes:
        commit: have the group's offsets say so too: they may be ahead.
    """

    positions: tuple[Position, ...]
    commit: bool = False


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find where partitions begin: then `LookedUp`.

    Attributes:
        first: by the start position.
        added: at their beginning.
    """

    number: int
    first: tuple[Part, ...]
    added: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Let partitions go that the group wants back: nothing of them is queued, read or submitted any more."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """A sequence is complete.

    Attributes:
        retired: those up to this one are given up.
        counts: it has what this member contributed last; otherwise that is contributed again.
    """

    sequence: int
    retired: int
    counts: bool


@dataclass(frozen=True, slots=True)
class PublishKeys:
    """Publish what a sequence staged, again and again until it is: then `PublishEnded`.

    Attributes:
        floor: what was staged in an earlier epoch, and is not of this sequence, never counts.
        empties: empty the sink instead.
        place: the member's sink, or that of its dead letters; empty: its sink.
    """

    sequence: int
    keys: tuple[StagedKey, ...]
    floor: int = 0
    empties: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The member is over.

    Attributes:
        cause: empty: the application wanted it.
    """

    cause: str = ""
    remedy: str = ""


Effect = (
    Say
    | Poll
    | StopPolling
    | Quiesce
    | SaveState
    | GoOn
    | GoBack
    | Begin
    | Seek
    | LookUp
    | Release
    | Retire
    | PublishKeys
    | End
)
