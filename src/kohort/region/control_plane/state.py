"""The state of a control plane: the durable facts of its region, and its current members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from kohort.region.agreement import SOMEWHERE, CheckpointIdBounds, LastCheckpoint, id_bounds_of_sink
from kohort.region.control_plane.events import (
    Effect,
    EndMemberConnection,
    LogLevel,
    Request,
    ResetCause,
    ResetRequest,
    SaveFacts,
    SendMessage,
    WriteLogLine,
)
from kohort.region.messages import (
    CheckpointAttempt,
    Identity,
    MemberNamesChanged,
    MemberStatus,
    Order,
    PublishOrder,
    RegionStatus,
    RegistrationAccepted,
    ResetDeclined,
    ResetOrder,
    SinkStatus,
    StopOrder,
    WaitingForSink,
)
from kohort.region.records import (
    Contribution,
    EpochBegun,
    Fact,
    InitialOffset,
    Manifest,
    Part,
    Position,
    PublishedCheckpoint,
    ReservedGroup,
    to_part,
)
from kohort.region.staged import StagedKey
from kohort.region.states import RegionState

# -- Configuration of a region. All times in ms


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """The settings of a control plane. Times are in ms.

    Attributes:
        checkpoint_every_ms: interval between two checkpoints; None: only members or operators request them.
        register_ms: time for a member to register again, after a takeover and after its connection ended.
        drain_ms: time for a checkpoint from its beginning until all have contributed: a member's longest batch, with a
            margin. Below `max.poll.interval.ms`, so that a checkpoint ends before the group removes the member.
        reset_ms: time for one attempt at a reset.
        resets_most: the region stops at this number of resets in a row without a complete checkpoint between; a forced
            one starts the count again.
        lone_sequences: after this many checkpoints in which no member held a partition, its group is described.
    """

    checkpoint_every_ms: int | None = 5_000
    register_ms: int = 10_000
    drain_ms: int = 180_000
    reset_ms: int = 60_000
    resets_most: int = 5
    lone_sequences: int = 3


NOWHERE = -1
"""Connection of a member that has none."""


WAITS = "waits for its sink before it registers"
"""Phase of a member, in a description, that waits for its sink before it registers."""


class MemberPhase(Enum):
    """A member's progress in the present checkpoint or reset, as its reports tell the control plane."""

    READING = "it reads, or may"
    DRAINED = "drained for the present cut"
    CONTRIBUTED = "it has contributed to the present cut"
    GOING_BACK = "told to go back, and has not said that it did"


class ControlPlaneMetrics:
    """Counters and times since a control plane took over. Times are in ms; -1: not measured yet."""

    def __init__(self) -> None:
        self.resets: Counter[ResetCause] = Counter()
        self.sequence_ms = self.longest_ms = -1
        self._began_ms = -1

    def record_checkpoint_begin(self, now_ms: int) -> None:
        """Record the beginning of a checkpoint; an attempt that restarts keeps the first time."""
        if self._began_ms < 0:
            self._began_ms = now_ms

    def record_checkpoint_end(self, now_ms: int, *, complete: bool) -> None:
        """Record the end of a checkpoint, complete or abandoned."""
        if complete and self._began_ms >= 0:
            self.sequence_ms = now_ms - self._began_ms
            self.longest_ms = max(self.longest_ms, self.sequence_ms)
        self._began_ms = -1


@dataclass(slots=True)
class RegisteredMember:
    """A registered member.

    Attributes:
        handed: the partitions that it was given and has not released, each with the offset where its next contribution
            begins.
        epoch: the epoch in which the member works; -1: the member has just started and has no epoch yet.
        lost_ms: the time at which the member's connection ended; None: the member is connected.
        leaves: the member leaves with the next complete checkpoint; the member, another of its query or an operator
            wants that.
        stop: an operator has asked for the member to leave; the member gets this cause when it leaves.
        left: the member has left with the last checkpoint, and stays only to publish that, because no other member can.
        sink: the name of the sink that the member writes to; empty: none.
        shares: whether other members may be in its consumer group; False: its state can't move with partitions.
        of: the name of its Spark query, common to the query's members; empty: the member is no Spark query's.
        sources: the number of members of its Spark query, one for each source.
        pinned: all queries of its group, when each partition belongs to one of them for ever.
        process: the name of its process; empty: its end can't be seen from here, because it runs on another host, say.
        waits_for: the reason for which its sink accepts no rows now; empty: the sink accepts rows.
        letters: the name of its dead-letter sink; empty: none.
        dead_letters: the number of its dead letters in complete checkpoints of this term.
        keyed: it saves a keyed state for each partition.
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
    phase: MemberPhase = MemberPhase.READING
    handed: dict[Part, int] = field(default_factory=dict)
    lost_ms: int | None = None
    leaves: bool = False
    stop: bool = False
    left: bool = False
    waits_for: str = ""
    letters: str = ""
    dead_letters: int = 0
    keyed: bool = False

    @property
    def sink_names(self) -> tuple[str, ...]:
        """The names of the member's sink and dead-letter sink, without those that it does not have."""
        return tuple(place for place in (self.sink, self.letters) if place)


@dataclass(slots=True)
class PendingStartRequest:
    """A member's request for the start offsets of partitions that its group has assigned to it.

    Attributes:
        number: the member's number of the request, which the answer repeats.
        parts: the partitions that are not handed out yet.
        looking: those whose start offset the member was asked to look up, and has not reported yet.
    """

    member: str
    number: int
    parts: tuple[Part, ...]
    looking: frozenset[Part] = frozenset()


@dataclass(slots=True)
class OngoingCheckpoint:
    """A checkpoint in progress.

    Attributes:
        names: the members that take part in it.
        contributions: what they have contributed so far, by member.
        manifest: what is being committed; None: the commit has not begun.
        unidentified: members whose offsets were refused, and whose new generation is awaited.
    """

    cut: CheckpointAttempt
    names: tuple[str, ...]
    contributions: dict[str, Contribution] = field(default_factory=dict)
    manifest: Manifest | None = None
    unidentified: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """The saved state of a region, with which a new control plane begins.

    Attributes:
        epoch: the newest epoch.
        floor: the minimum valid epoch, that of the last reset; what was staged in earlier ones is discarded.
        sequence: the id of the last complete checkpoint; 0: none.
        expected: members that hold partitions, according to the topic. A member that does not register again is dead.
        keys: the keys of the rows staged for the last checkpoint, published or not, by sink.
        states: the states that members saved with it, and those that wait for absent members.
        empties: the last checkpoint is published by emptying the sinks.
        made_as: the id of the last checkpoint before `adopt` renumbered it; 0: it was not renumbered.
        places: all sinks to which the region has published.
        waiting: members whose state waits while they are absent, each with the id of the checkpoint that has the state.
        contributors: members that contributed to the last checkpoint, each with the epoch in which it worked.
        reserved: those among them whose group no other member may read meanwhile.
        processes: the processes of the contributors to the last checkpoint, if known.
        shown: the last checkpoint that each sink is known to show.
        began: for each group, the topics that its pattern matched when it began.
        stopped_members: members that an operator has stopped, each with its incarnation.
    """

    region: str
    region_id: UUID
    term: int
    epoch: int = 0
    floor: int = 0
    sequence: int = 0
    consecutive: int = 0
    expected: frozenset[str] = frozenset()
    initial: tuple[InitialOffset, ...] = ()
    positions: tuple[Position, ...] = ()
    keys: dict[str, tuple[StagedKey, ...]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    stopped: str = ""
    empties: bool = False
    made_as: int = 0
    places: tuple[str, ...] = ()
    waiting: dict[str, int] = field(default_factory=dict)
    contributors: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, ReservedGroup] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    shown: dict[str, PublishedCheckpoint] = field(default_factory=dict)
    began: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stopped_members: dict[str, UUID] = field(default_factory=dict)

    def unpublished_keys(self) -> dict[str, tuple[StagedKey, ...]]:
        """Return the keys of the last checkpoint's rows that are not published, by sink.

        A sink without keys is to be emptied.
        """
        keys = dict.fromkeys(self.places or (SOMEWHERE,), ()) if self.empties else self.keys
        return {place: given for place, given in keys.items() if not self._shows_the_last(place)}

    def _shows_the_last(self, sink_name: str) -> bool:
        return self.last_checkpoint().is_published(self.shown.get(sink_name))

    def last_checkpoint(self) -> LastCheckpoint:
        """The last complete checkpoint."""
        return LastCheckpoint(self.sequence, self.empties, self.made_as)

    def sink_id_bounds(self, sink_name: str) -> CheckpointIdBounds:
        """Return the range in which the id of a sink's last checkpoint must lie, according to the topic."""
        unpublished = self.unpublished_keys()
        unpublished |= dict.fromkeys((sink_name,), ()) if SOMEWHERE in unpublished else {}
        return id_bounds_of_sink(sink_name, self.last_checkpoint(), unpublished, self.shown)


def _nobody_answers(request: Request) -> None:
    raise AssertionError(f"no machine answers {request}")


class ControlPlaneState:
    """The state of a region's control plane, with the operations that its parts share.

    Attributes:
        request: asks the other parts for something, at once; `RegionMachine` sets it.
        now_ms: the time of the current event.
        positions: the offsets of the last complete checkpoint, for each partition that the region has read.
        initial: the initial offsets of partitions, for a reset to the initial state.
        begun: partitions whose initial offset is saved, or about to be: it is saved once.
        began: for each group, the topics that its pattern matched when it began; saved, or about to be.
        members: the registered members, by name.
        expected: members that have not registered since the takeover, each with the name of its process; empty: not
            known.
        ended: those of their processes that have ended.
        stopped_members: members that an operator has stopped, each with its incarnation, as the topic has it.
        start_requests: requests for start offsets, in order.
        ongoing: the checkpoint in progress; None: none.
        wanted: a checkpoint was requested, and begins as soon as possible.
        pending: a reset that is deferred until a commit has an outcome or all members have registered; None: none.
        stopping: the region has stopped, and the record of that is not committed to the topic yet.
        resumes: an operator has resumed the region; it continues when the topic has all that was pending when it
            stopped.
        saved_floor: the minimum valid epoch in the topic. A newer one may never arrive there, if another control plane
            has taken over: what other members stage before it may still count.
        places: all sinks to which the region has published since they were last emptied.
        unpublished: the keys of the last checkpoint's rows that are not published, by sink; a sink without keys is to
            be emptied.
        unshown: the error of the last failed attempt to publish the last checkpoint, by sink.
        emptying: resets to the initial state that the topic does not have yet; then their sinks must be emptied.
        made_as: the id of the last checkpoint before `adopt` renumbered it; 0: it was not renumbered.
        published: the id of the last checkpoint that is published in all sinks.
        shown: the last checkpoint that each sink is known to show; `shown_before`: as the topic had it when this term
            began.
        emptied: sinks that were emptied in this term.
        due: deadlines in ms, by the name of what is awaited.
        lone: the number of checkpoints in a row in which no member held a partition, by partition.
        waiting_to_register: connected members whose sink does not answer, so that they can't register yet, by
            connection.
    """

    def __init__(self, known: RegionFacts, config: RegionConfig, now_ms: int) -> None:
        self.config = config
        self.request: Callable[[Request], None] = _nobody_answers
        self.region, self.region_id, self.term = known.region, known.region_id, known.term
        self.epoch, self.floor, self.sequence = known.epoch, known.floor, known.sequence
        self.saved_floor, self.consecutive = known.floor, known.consecutive
        self.state = RegionState.STOPPED if known.stopped else RegionState.FORMING
        self.stopped = known.stopped
        self.now_ms = now_ms
        self.initial = {
            to_part(initial): Position(
                initial.group, initial.topic, initial.topic_id, initial.partition, initial.offset, initial.leader_epoch
            )
            for initial in known.initial
        }
        self.begun, self.began = set(self.initial), dict(known.began)
        self.positions = {to_part(position): position for position in known.positions}
        self.states, self.waiting = dict(known.states), dict(known.waiting)
        self.contributors = dict(known.contributors)
        self.reserved = dict(known.reserved)
        self.members: dict[str, RegisteredMember] = {}
        self.by_connection: dict[int, str] = {}
        self.expected = {name: known.processes.get(name, "") for name in sorted(known.expected)}
        self.ended: set[str] = set()
        self.stopped_members = dict(known.stopped_members)
        self.start_requests: list[PendingStartRequest] = []
        self.ongoing: OngoingCheckpoint | None = None
        self.attempts = 0
        self.wanted = False
        self.pending: ResetRequest | None = None
        self.stopping = self.resumes = False
        self.empties, self.made_as = known.empties, known.made_as
        self.emptying: list[Manifest] = []
        self.places = set(known.places)
        self.published = known.sequence - 1
        self.unpublished: dict[str, tuple[StagedKey, ...]] = {}
        self.shown, self.shown_before = dict(known.shown), dict(known.shown)
        self.emptied: set[str] = set()
        self.set_unpublished(known.unpublished_keys())
        self.due: dict[str, int] = {"forming": now_ms + config.register_ms} if known.expected else {}
        self.lone: dict[Part, int] = {}
        self.metrics = ControlPlaneMetrics()
        self.effects: list[Effect] = []
        self.waiting_to_register: dict[int, WaitingForSink] = {}
        self._tokens = 0
        self.unshown: dict[str, str] = {}
        self._saving: dict[int, tuple[int, Callable[[], None]]] = {}

    # -- effects

    def send(self, member: RegisteredMember, order: Order) -> None:
        """Send a message to a member, or drop it without a connection: what counts is sent again on the next one."""
        if member.connection != NOWHERE:
            self.effects.append(SendMessage(member.connection, order))

    def send_on_connection(self, connection: int, order: Order | ResetDeclined) -> None:
        """Send a message on a connection."""
        self.effects.append(SendMessage(connection, order))

    def send_to_all(self, order: Order) -> None:
        for member in self.members.values():
            self.send(member, order)

    def close_connection(self, connection: int) -> None:
        self.effects.append(EndMemberConnection(connection))

    def log(self, level: LogLevel, text: str) -> None:
        self.effects.append(WriteLogLine(level, text))

    def save_facts(self, facts: Iterable[Fact], on_committed: Callable[[], None]) -> None:
        """Write records to the region's metadata topic in one transaction, then call `on_committed`."""
        self._tokens += 1
        save = SaveFacts(self._tokens, tuple(facts))
        floor = max((fact.floor for fact in save.facts if isinstance(fact, EpochBegun)), default=0)
        self._saving[self._tokens] = (floor, on_committed)
        self.effects.append(save)

    def on_facts_saved(self, token: int) -> None:
        """Call the `on_committed` of the `save_facts` with this token, whose records are committed."""
        if token in self._saving:
            floor, then = self._saving.pop(token)
            self.saved_floor = max(self.saved_floor, floor)
            then()

    def registration_answer(self, member: RegisteredMember, *, fresh: bool = False) -> RegistrationAccepted:
        """Return the message that confirms a member's registration; `fresh`: it starts from its saved state."""
        state = self.states.get(member.name) if fresh else None
        ongoing = self.ongoing
        cut = ongoing.cut if ongoing is not None and member.name in ongoing.names else None
        counts = self.contributed_to_last_checkpoint(member.name, member.epoch)
        return RegistrationAccepted(
            self.term, member.epoch, self.sequence, self.member_names(), state, cut, counts, moves_state=True
        )

    def reset_order(self, member: RegisteredMember) -> ResetOrder:
        """Return the order by which a member resets to the last complete checkpoint."""
        return ResetOrder(self.term, member.epoch, self.sequence, self.states.get(member.name))

    def order_publications(self) -> None:
        """Order the publication of the last checkpoint: for each sink that lacks it, one connected member."""
        ends = tuple(position for _, position in sorted(self.positions.items()))
        for place, keys in self.unpublished.items():
            publisher = self.publishing_member(place)
            if publisher is not None:
                number = self.last_checkpoint_id_in_sink(place)
                self.send(publisher, PublishOrder(self.term, number, keys, self.saved_floor, self.empties, place, ends))

    # -- queries

    def is_commit_pending(self) -> bool:
        """Return whether the outcome of a commit is awaited; a refused commit that waits for a generation is not."""
        ongoing = self.ongoing
        return ongoing is not None and ongoing.manifest is not None and not ongoing.unidentified

    def resume_command(self) -> str:
        """Return the command that resumes a stopped region."""
        return f"`kohort region resume {self.region} --execute`, and start its members"

    def member_on_connection(self, connection: int) -> RegisteredMember | None:
        """Return the member that registered on a connection."""
        name = self.by_connection.get(connection)
        return None if name is None else self.members[name]

    def member_names(self) -> tuple[str, ...]:
        """Return the names of all registered members."""
        return tuple(sorted(self.members))

    def saved_position(self, part: Part) -> Position | None:
        """Return the position where reading of a partition continues; None: the region has never read it.

        That is the position of the last complete checkpoint, else the initial offset.
        """
        return self.positions.get(part) or self.initial.get(part)

    def owner_of(self, part: Part) -> RegisteredMember | None:
        """Return the member that was given a partition and has not released it; None: there is none."""
        return next((member for member in self.members.values() if part in member.handed), None)

    def all_positions(self) -> dict[Part, Position]:
        """Return the position of every partition that the region reads: the last checkpoint's, else the initial one."""
        return {**self.initial, **self.positions}

    def contributed_to_last_checkpoint(self, name: str, epoch: int) -> bool:
        """Return whether the last checkpoint has a contribution of this member in this epoch.

        One of an earlier process with the same name has another epoch.
        """
        return self.contributors.get(name) == epoch

    def checkpoint_participants(self) -> tuple[str, ...]:
        """Return the names of the members that take part in a checkpoint which begins now.

        A member without partitions that waits for the other members of its query does not take part.
        """
        able = ((name, self.members[name]) for name in self.member_names())
        return tuple(
            name for name, member in able if not member.left and (member.handed or self.has_all_query_members(member))
        )

    def query_members(self, member: RegisteredMember) -> list[RegisteredMember]:
        """Return the registered members of a member's Spark query: they checkpoint, leave and die together."""
        return [other for other in self.members.values() if other is member or (other.of and other.of == member.of)]

    def has_all_query_members(self, member: RegisteredMember) -> bool:
        """Return whether all members of a member's Spark query, one for each source, are registered."""
        return not member.of or len(self.query_members(member)) >= member.sources

    def await_query_members(self, member: RegisteredMember) -> None:
        """Start the registration deadline for missing members of a Spark query; cancel it if all or none are there."""
        if self.has_all_query_members(member) or not self.query_members(member):
            self.due.pop(f"siblings {member.of}", None)
        else:
            self.due.setdefault(f"siblings {member.of}", self.now_ms + self.config.register_ms)

    def publishing_member(self, sink_name: str) -> RegisteredMember | None:
        """Return the member that publishes to a sink: the first by name of its connected writers; None: none."""
        able = [
            member
            for _, member in sorted(self.members.items())
            if sink_name in member.sink_names and member.lost_ms is None
        ]
        return able[0] if able else None

    def needs_publication(self, sink_name: str) -> bool:
        """Return whether the last checkpoint is to be published to a sink, or the sink is to be emptied by a reset.

        The reset may be deferred, or on its way to the topic.
        """
        if self.pending is not None and self.pending.initial and self.sequence > 0:
            return True
        return sink_name in self.unpublished or any(sink_name in manifest.places for manifest in self.emptying)

    def set_unpublished(self, keys: Mapping[str, tuple[StagedKey, ...]]) -> None:
        """Set the keys of the last checkpoint's rows that are still to be published, by sink."""
        self.unpublished = dict(keys)
        if not self.unpublished:
            self.published = self.sequence

    def sink_id_bounds(self, sink_name: str) -> CheckpointIdBounds:
        """Return the range in which the id of a sink's last checkpoint must lie, if it was read in this term."""
        unpublished = self.unpublished if SOMEWHERE not in self.unpublished else {*self.unpublished, sink_name}
        now = id_bounds_of_sink(sink_name, self.last_checkpoint(), unpublished, self.shown)
        then = id_bounds_of_sink(sink_name, self.last_checkpoint(), unpublished, self.shown_before)
        return CheckpointIdBounds(then.least, now.most, then.emptied or now.emptied or sink_name in self.emptied)

    def last_checkpoint(self) -> LastCheckpoint:
        """The last complete checkpoint."""
        return LastCheckpoint(self.sequence, self.empties, self.made_as)

    def last_checkpoint_id_in_sink(self, sink_name: str) -> int:
        """Return the id under which a sink shows the last checkpoint, before or after `adopt` renumbered it."""
        return self.last_checkpoint().id_in_sink(self.shown.get(sink_name))

    def record_published(self, sink_name: str) -> None:
        """Record that the topic has the publication of the last checkpoint to this sink."""
        self.unpublished.pop(sink_name, None)
        self.unshown.pop(sink_name, None)
        if not self.unpublished:
            self.published = self.sequence

    def end_and_unregister(self, member: RegisteredMember) -> None:
        """Order a member to end, as it or an operator has requested, and unregister it."""
        stopped = ("the member was stopped", "start it again when it is wanted") if member.stop else ("", "")
        self.send(member, StopOrder(self.term, *stopped))
        self.log(LogLevel.INFO, f"region {self.region}: {member.name} has left")
        self.unregister(member)
        self.order_publications()

    def is_stop_saved(self, member: RegisteredMember) -> bool:
        """Return whether the topic records that an operator has told this member to leave."""
        return self.stopped_members.get(member.name) == member.incarnation

    def unregister(self, member: RegisteredMember) -> None:
        """Forget a registered member with its requests, and tell the others the new list of names."""
        del self.members[member.name]
        self.by_connection.pop(member.connection, None)
        self.start_requests = [request for request in self.start_requests if request.member != member.name]
        self.due.pop(f"lost {member.name}", None)
        self.await_query_members(member)
        self.send_to_all(MemberNamesChanged(self.term, self.member_names()))

    # -- description for operators

    def describe_region(self) -> RegionStatus:
        """Return the description of the region for operators: state, members, sinks, positions and metrics."""
        waits = {report.member: report for report in self.waiting_to_register.values()}
        members = [
            MemberStatus(
                member.name,
                member.group,
                "has just started" if member.epoch < 0 and member.phase is MemberPhase.READING else member.phase.value,
                member.epoch,
                tuple(sorted(member.handed)),
                member.lost_ms is None,
                member.sink,
                waits[member.name].cause if member.name in waits else member.waits_for,
                letters=member.letters,
                dead_letters=member.dead_letters,
                stop_unsaved=member.stop and not self.is_stop_saved(member),
            )
            for _, member in sorted(self.members.items())
        ]
        members += [
            MemberStatus(name, report.group, WAITS, -1, (), True, report.sink, report.cause, registered=False)
            for name, report in sorted(waits.items())
            if name not in self.members
        ]
        return RegionStatus(
            self.region,
            self.state.name,
            self.term,
            self.epoch,
            self.sequence,
            self.published,
            tuple(members),
            tuple(position for _, position in sorted(self.all_positions().items())),
            {why.name.lower(): count for why, count in self.metrics.resets.items()},
            self.metrics.sequence_ms,
            self.metrics.longest_ms,
            self.stopped,
            self._sinks(),
            self.region_id,
        )

    def sinks_with_rows(self) -> set[str]:
        """Return the names of the sinks that may contain rows of the region.

        It has published to them since they were last emptied. `places` may lack a sink that was adopted after a reset
        to the initial state, so `shown` counts too.
        """
        return self.places | {place for place, known in self.shown.items() if known.sequence and not known.empty}

    def _sinks(self) -> tuple[SinkStatus, ...]:
        written = {place for member in self.members.values() for place in member.sink_names}
        written |= {report.sink for report in self.waiting_to_register.values()}
        places = self.sinks_with_rows() | set(self.unpublished) | (written - {""})
        return tuple(
            SinkStatus(
                place,
                self.published if place in self.unpublished else self.sequence,
                "" if (publisher := self.publishing_member(place)) is None else publisher.name,
                self.unshown.get(place, "") if place in self.unpublished else "",
            )
            for place in sorted(places)
        )
