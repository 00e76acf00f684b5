"""What a control plane knows: the durable facts of its region, and its members as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from kohort.region.agreement import Bounds, Last, bounds_of
from kohort.region.control_plane.events import Close, Effect, Level, Save, Say, Told
from kohort.region.messages import Cut, Identity, Members, MemberSeen, Order, RegionSeen, SinkSeen, Waiting
from kohort.region.parts import Part, part_of
from kohort.region.records import Contribution, Epoch, Fact, Initial, Manifest, Position, Reserved, Shown
from kohort.region.staged import StagedKey
from kohort.region.states import RegionState

# -- How a region behaves. All times in ms


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """Knobs of a control plane.

    Attributes:
        checkpoint_every_ms: between two cuts; None: members or persons ask for them.
        register_ms: so long after a takeover, and after its connection ended, a member may take to register again.
        drain_ms: so long a cut may take from its beginning until all have contributed: a member's longest piece of
            work, with room. Below `max.poll.interval.ms`, so that a cut ends before the group loses patience.
        reset_ms: so long an attempt at a reset may take.
        resets_most: so many in a row stop the region; forced ones and those before a complete sequence don't count.
        lone_sequences: a partition that a stable group has given to nobody of the region for so many sequences is
            looked after.
    """

    checkpoint_every_ms: int | None = 5_000
    register_ms: int = 10_000
    drain_ms: int = 180_000
    reset_ms: int = 60_000
    resets_most: int = 5
    lone_sequences: int = 3


NOWHERE = -1
"""The connection of a member that has none."""
SOMEWHERE = ""
"""The place of what an earlier release wrote, when a region had one sink and did not say which."""


class Phase(Enum):
    """Where a member is in what all do together, as its control plane knows it."""

    READING = "it reads, or may"
    DRAINED = "drained for the present cut"
    CONTRIBUTED = "it has contributed to the present cut"
    GOING_BACK = "told to go back, and has not said that it did"


class Why(Enum):
    """Why all go back."""

    ASKED = "a person, or what is behind a member"
    PARTITIONS = "partitions that were read were revoked or lost"
    DEAD = "a member died"
    LATE = "a member took too long"
    DRAIN = "a member could not be drained"
    CONTRIBUTION = "a member contributed what can't be"
    COMMIT = "the group's coordinator refused the offsets"


class Figures:
    """What a control plane counts since it took over. Times in ms; -1: none yet."""

    def __init__(self) -> None:
        self.resets: Counter[Why] = Counter()
        self.sequence_ms = self.longest_ms = -1
        self._began_ms = -1

    def cut_began(self, now_ms: int) -> None:
        """A cut begins; one that begins again goes on."""
        if self._began_ms < 0:
            self._began_ms = now_ms

    def cut_ended(self, now_ms: int, *, complete: bool) -> None:
        """It is complete, or came to nothing."""
        if complete and self._began_ms >= 0:
            self.sequence_ms = now_ms - self._began_ms
            self.longest_ms = max(self.longest_ms, self.sequence_ms)
        self._began_ms = -1


@dataclass(slots=True)
class Registered:
    """One member.

    Attributes:
        handed: where its next contribution begins, of each partition that it was given to read and has not let go.
        epoch: that it works in; -1: it has just started, and was not told yet.
        lost_ms: since when it has no connection; None: it has one.
        leaves: it goes with the next complete sequence.
        stop: what it is told then, when it was not its own wish.
        left: it has gone with the last sequence, and stays to publish it, since nobody else can.
        sink: the place that it writes to; empty: none.
        shares: False: it must be alone in its group.
        of: the same for all members of one query; empty: it is one of its own.
        sources: how many they are.
        pinned: all queries of its group, where each partition is one of theirs for ever.
        process: its process's name; empty: whether that has ended can't be seen from here.
        waits_for: why its sink does not take what it has submitted; empty: the sink does.
        letters: the place of its dead letters; empty: it has none.
        dead_letters: how many complete sequences of this term have.
    """

    name: str
    incarnation: UUID
    group: str
    identity: Identity
    connection: int
    sink: str = ""
    shares: bool = True
    of: str = ""
    sources: int = 1
    pinned: tuple[str, ...] = ()
    process: str = ""
    epoch: int = -1
    phase: Phase = Phase.READING
    handed: dict[Part, int] = field(default_factory=dict)
    lost_ms: int | None = None
    leaves: bool = False
    stop: bool = False
    left: bool = False
    waits_for: str = ""
    letters: str = ""
    dead_letters: int = 0

    @property
    def places(self) -> tuple[str, ...]:
        """All places that it writes to, and can publish in."""
        return tuple(place for place in (self.sink, self.letters) if place)


@dataclass(slots=True)
class Asked:
    """Starts that a member waits for.

    Attributes:
        looking: parts whose start position it was told to look up.
    """

    member: str
    number: int
    parts: tuple[Part, ...]
    looking: frozenset[Part] = frozenset()


@dataclass(slots=True)
class Cutting:
    """A cut under way.

    Attributes:
        names: the members that were registered when it began.
        again: someone holds partitions back, or wants to go, since after it began: another cut follows.
    """

    cut: Cut
    names: tuple[str, ...]
    contributions: dict[str, Contribution] = field(default_factory=dict)
    manifest: Manifest | None = None
    unidentified: frozenset[str] = frozenset()
    again: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """A reset that waits for the outcome of a commit, or until the region is formed."""

    why: Why
    cause: str
    member: str = ""
    forced: bool = False
    initial: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The durable facts that a control plane begins with.

    Attributes:
        epoch: the newest.
        floor: that of the last reset: what was staged in earlier ones is void.
        expected: members that hold something, as far as the topic tells: who does not register again is dead.
        keys: what the last sequence staged, published or not, by the place that it was staged for.
        states: what the members' operators saved with it, and those that wait for members who are away.
        empties: the last sequence is one that is published by emptying the sinks.
        made_as: the number that the last sequence had before a person adopted a sink that is ahead; 0: the same.
        places: all that the region has published to.
        waiting: whose state waits if they go away, or does, each with the sequence that has it.
        contributors: who contributed to the last sequence, each with the epoch that it worked in.
        reserved: of those, the ones whose group nobody else may read meanwhile.
        processes: where those were who contributed to the last sequence, as far as that can be seen from somewhere.
        shown: by place, the last sequence that it is known to show.
        began: by group, the topics that its pattern found when it began.
    """

    region: str
    region_id: UUID
    term: int
    epoch: int = 0
    floor: int = 0
    sequence: int = 0
    consecutive: int = 0
    expected: frozenset[str] = frozenset()
    initial: tuple[Initial, ...] = ()
    positions: tuple[Position, ...] = ()
    keys: dict[str, tuple[StagedKey, ...]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    stopped: str = ""
    empties: bool = False
    made_as: int = 0
    places: tuple[str, ...] = ()
    waiting: dict[str, int] = field(default_factory=dict)
    contributors: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, Reserved] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    shown: dict[str, Shown] = field(default_factory=dict)
    began: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def owed(self) -> dict[str, tuple[StagedKey, ...]]:
        """Keys of the last sequence for places that are not known to show it; none of a place: it is to be emptied."""
        keys = dict.fromkeys(self.places or (SOMEWHERE,), ()) if self.empties else self.keys
        return {place: given for place, given in keys.items() if not self._shows_the_last(place)}

    def _shows_the_last(self, place: str) -> bool:
        known = self.shown.get(place)
        return known is not None and known.sequence == self.last().number_in(known)

    def last(self) -> Last:
        """The last complete sequence."""
        return Last(self.sequence, self.empties, self.made_as)

    def bounds(self, place: str) -> Bounds:
        """Which sequences a place may show."""
        owed = self.owed()
        owed |= dict.fromkeys((place,), ()) if SOMEWHERE in owed else {}
        return bounds_of(place, self.last(), owed, self.shown)


class Plane:
    """The data that all handlers work with, and the few verbs that all of them need.

    Attributes:
        now_ms: of the event that is handled.
        positions: of the last complete sequence, of every partition that the region has read.
        initial: where partitions were begun, for a reset to the initial state.
        begun: those whose beginning is saved, or about to be: it is saved once.
        began: by group, the topics that its pattern found when it began; saved, or about to be.
        members: registered, by name.
        expected: who has not registered since the takeover, each with its process's name; empty: nobody knows it.
        ended: of their processes, those that are gone.
        asked: members that wait for starts, in order.
        cutting: the cut under way; None: none.
        wanted: a cut is to begin as soon as it can.
        pending: a reset that waits.
        stopping: it has stopped, and the topic has that not yet.
        resumes: a person lets it go on, as soon as the topic has all that was on its way there when it stopped.
        saved_floor: the floor that the topic has. One that is not there yet may never be, if another has taken over:
            what others stage before it may still count.
        places: all that the region has published to since they were last emptied.
        owed: what the last sequence staged and is not published yet, by place; nothing of a place: it is to be emptied.
        unshown: why the last sequence could not be published yet, by place.
        emptying: resets to the initial state that the topic has not yet: then their places are owed.
        made_as: the number that the last sequence had before a person adopted a sink that is ahead; 0: the same.
        published: the sequence up to which all that was staged is published, everywhere.
        shown: by place, the last sequence that it is known to show; and as the topic had it when this term began.
        emptied: places that were emptied in this term.
        due: when what is to happen at the latest, by name.
        lone: for how many sequences nobody has held a partition.
        waiting_to_register: by connection, members whose sink does not answer before they can register.
    """

    def __init__(self, known: Known, config: RegionConfig, now_ms: int) -> None:
        self.config = config
        self.region, self.region_id, self.term = known.region, known.region_id, known.term
        self.epoch, self.floor, self.sequence = known.epoch, known.floor, known.sequence
        self.saved_floor, self.consecutive = known.floor, known.consecutive
        self.state = RegionState.STOPPED if known.stopped else RegionState.FORMING
        self.stopped = known.stopped
        self.now_ms = now_ms
        self.initial = {
            part_of(one): Position(one.group, one.topic, one.topic_id, one.partition, one.offset, one.leader_epoch)
            for one in known.initial
        }
        self.begun, self.began = set(self.initial), dict(known.began)
        self.positions = {part_of(one): one for one in known.positions}
        self.states, self.waiting = dict(known.states), dict(known.waiting)
        self.contributors = dict(known.contributors)
        self.reserved = dict(known.reserved)
        self.members: dict[str, Registered] = {}
        self.by_connection: dict[int, str] = {}
        self.expected = {name: known.processes.get(name, "") for name in sorted(known.expected)}
        self.ended: set[str] = set()
        self.asked: list[Asked] = []
        self.cutting: Cutting | None = None
        self.attempts = 0
        self.wanted = False
        self.pending: Pending | None = None
        self.stopping = self.resumes = False
        self.empties, self.made_as = known.empties, known.made_as
        self.emptying: list[Manifest] = []
        self.places = set(known.places)
        self.published = known.sequence - 1
        self.owed: dict[str, tuple[StagedKey, ...]] = {}
        self.shown, self.shown_before = dict(known.shown), dict(known.shown)
        self.emptied: set[str] = set()
        self.owe(known.owed())
        self.due: dict[str, int] = {"forming": now_ms + config.register_ms} if known.expected else {}
        self.lone: dict[Part, int] = {}
        self.figures = Figures()
        self.effects: list[Effect] = []
        self.waiting_to_register: dict[int, Waiting] = {}
        self._tokens = 0
        self.unshown: dict[str, str] = {}
        self._saving: dict[int, tuple[int, Callable[[], None]]] = {}

    # -- what comes of it

    def say(self, member: Registered, order: Order) -> None:
        """To a member, if it is there; who comes back is told anew."""
        if member.connection != NOWHERE:
            self.effects.append(Say(member.connection, order))

    def say_to(self, connection: int, order: Order) -> None:
        """To whoever is on a connection."""
        self.effects.append(Say(connection, order))

    def say_all(self, order: Order) -> None:
        for member in self.members.values():
            self.say(member, order)

    def close(self, connection: int) -> None:
        self.effects.append(Close(connection))

    def tell(self, level: Level, text: str) -> None:
        self.effects.append(Told(level, text))

    def save(self, facts: Iterable[Fact], then: Callable[[], None]) -> None:
        """Go on with `then` when these are committed."""
        self._tokens += 1
        save = Save(self._tokens, tuple(facts))
        floor = max((fact.floor for fact in save.facts if isinstance(fact, Epoch)), default=0)
        self._saving[self._tokens] = (floor, then)
        self.effects.append(save)

    def saved(self, token: int) -> None:
        """Facts are committed."""
        if token in self._saving:
            floor, then = self._saving.pop(token)
            self.saved_floor = max(self.saved_floor, floor)
            then()

    # -- what it knows

    def member_on(self, connection: int) -> Registered | None:
        """Who speaks on a connection."""
        name = self.by_connection.get(connection)
        return None if name is None else self.members[name]

    def names(self) -> tuple[str, ...]:
        """All that are registered."""
        return tuple(sorted(self.members))

    def start_of(self, part: Part) -> Position | None:
        """Where reading of a partition goes on: by the last complete sequence, else where it was begun."""
        return self.positions.get(part) or self.initial.get(part)

    def holder_of(self, part: Part) -> Registered | None:
        """Who may be reading a partition."""
        return next((member for member in self.members.values() if part in member.handed), None)

    def all_positions(self) -> dict[Part, Position]:
        """Of every partition that the region has read or begun."""
        return {**self.initial, **self.positions}

    def counts(self, name: str, epoch: int) -> bool:
        """Whether the last sequence has what a member contributed in this epoch, and not another of its name."""
        return self.contributors.get(name) == epoch

    def cutters(self) -> tuple[str, ...]:
        """Who takes part in a cut that begins now: not who was given nothing, and waits for its siblings."""
        able = ((name, self.members[name]) for name in self.names())
        return tuple(name for name, one in able if not one.left and (one.handed or self.is_whole(one)))

    def siblings(self, member: Registered) -> list[Registered]:
        """The members of its query that are registered: they are cut, leave and die together."""
        return [one for one in self.members.values() if one is member or (one.of and one.of == member.of)]

    def is_whole(self, member: Registered) -> bool:
        """Whether all of its query are registered."""
        return not member.of or len(self.siblings(member)) >= member.sources

    def miss_siblings(self, member: Registered) -> None:
        """Who is there of its query waits so long for the others."""
        if self.is_whole(member) or not self.siblings(member):
            self.due.pop(f"siblings {member.of}", None)
        else:
            self.due.setdefault(f"siblings {member.of}", self.now_ms + self.config.register_ms)

    def publisher(self, place: str) -> Registered | None:
        """Who publishes for all that write to a place: the first by name that is there."""
        able = [
            member for _, member in sorted(self.members.items()) if place in member.places and member.lost_ms is None
        ]
        return able[0] if able else None

    def needs(self, place: str) -> bool:
        """Whether someone must publish in a place, or empty it once the topic has the reset that waits or is coming."""
        if self.pending is not None and self.pending.initial and self.sequence > 0:
            return True
        return place in self.owed or any(place in manifest.places for manifest in self.emptying)

    def owe(self, keys: Mapping[str, tuple[StagedKey, ...]]) -> None:
        """The last sequence is to be published in these places."""
        self.owed = dict(keys)
        if not self.owed:
            self.published = self.sequence

    def bounds(self, place: str) -> Bounds:
        """Which sequences a place may show that was looked at after this term had begun."""
        owed = self.owed if SOMEWHERE not in self.owed else {*self.owed, place}
        now = bounds_of(place, self.last(), owed, self.shown)
        then = bounds_of(place, self.last(), owed, self.shown_before)
        return Bounds(then.least, now.most, then.emptied or now.emptied or place in self.emptied)

    def last(self) -> Last:
        """The last complete sequence."""
        return Last(self.sequence, self.empties, self.made_as)

    def number_in(self, place: str) -> int:
        """The number under which a place shows the last sequence."""
        return self.last().number_in(self.shown.get(place))

    def paid(self, place: str) -> None:
        """The last sequence is published in this place, and the topic has that."""
        self.owed.pop(place, None)
        self.unshown.pop(place, None)
        if not self.owed:
            self.published = self.sequence

    def drop(self, member: Registered) -> None:
        """It is registered no more."""
        del self.members[member.name]
        self.by_connection.pop(member.connection, None)
        self.asked = [one for one in self.asked if one.member != member.name]
        self.due.pop(f"lost {member.name}", None)
        self.miss_siblings(member)
        self.say_all(Members(self.term, self.names()))


# -- A control plane as people see it

WAITS = "waits for its sink before it registers"


def seen(plane: Plane) -> RegionSeen:
    """The region as it is now."""
    waits = {report.member: report for report in plane.waiting_to_register.values()}
    members = [
        MemberSeen(
            member.name,
            member.group,
            "has just started" if member.epoch < 0 and member.phase is Phase.READING else member.phase.value,
            member.epoch,
            tuple(sorted(member.handed)),
            member.lost_ms is None,
            member.sink,
            waits[member.name].cause if member.name in waits else member.waits_for,
            letters=member.letters,
            dead_letters=member.dead_letters,
        )
        for _, member in sorted(plane.members.items())
    ]
    members += [
        MemberSeen(name, report.group, WAITS, -1, (), True, report.sink, report.cause, registered=False)
        for name, report in sorted(waits.items())
        if name not in plane.members
    ]
    return RegionSeen(
        plane.region,
        plane.state.name,
        plane.term,
        plane.epoch,
        plane.sequence,
        plane.published,
        tuple(members),
        tuple(position for _, position in sorted(plane.all_positions().items())),
        {why.name.lower(): count for why, count in plane.figures.resets.items()},
        plane.figures.sequence_ms,
        plane.figures.longest_ms,
        plane.stopped,
        _sinks(plane),
    )


def _sinks(plane: Plane) -> tuple[SinkSeen, ...]:
    written = {place for member in plane.members.values() for place in member.places}
    written |= {report.sink for report in plane.waiting_to_register.values()}
    places = plane.places | set(plane.owed) | (written - {""})
    return tuple(
        SinkSeen(
            place,
            plane.published if place in plane.owed else plane.sequence,
            "" if (publisher := plane.publisher(place)) is None else publisher.name,
            plane.unshown.get(place, "") if place in plane.owed else "",
        )
        for place in sorted(places)
    )
