"""A region in virtual time: the machines of its control planes and members, a group, a topic and connections that fail.

What a coordinator, a topic and a sink do is modelled in as little as the machines can see of it. A record is its
partition and offset; what a member stages names the records that it submitted.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from kohort.region.facts import Contribution, Epoch, Initial, Manifest, Position, Stopped
from kohort.region.member import events as member_events
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import Cut, Identity, Order, Report
from kohort.region.parts import Part, part_of
from kohort.region.plane import events as plane_events
from kohort.region.plane.config import RegionConfig
from kohort.region.plane.machine import RegionMachine
from kohort.region.plane.state import Known
from kohort.region.staged import StagedKey
from kohort.region.states import MemberState, RegionState
from tests.region.group import Group, wrong_offsets
from tests.region.seats import GROUP, TOPIC, TOPIC_ID

REGION, REGION_ID = "flights", UUID(int=7)
PARTITIONS = 4
NOTICE_MS = 800
"""So late an ended connection is noticed at the most."""
TROUBLES = (
    *("start", "start", "kill", "cut", "close", "takeover", "sleep", "evict", "reset", "grow", "doze", "move"),
    "plane-dies",
)
Record = tuple[Part, int]


class ViolatedError(Exception):
    """A property does not hold."""


class Clock:
    """Virtual time: what is to happen, in order."""

    def __init__(self, seed: int) -> None:
        self.now_ms = 0
        self.chance = random.Random(seed)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.story: list[str] = []

    def after(self, delay_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._count), do))

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now_ms / 1000:8.3f} {text}")

    def run(self, until_ms: int) -> None:
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, do = heapq.heappop(self._due)
            do()
        self.now_ms = until_ms


@dataclass
class Stored:
    """What the topic holds of the region, and what its sink was given."""

    term: int = 0
    epoch: int = 0
    floor: int = 0
    sequence: int = 0
    consecutive: int = 0
    initial: dict[Part, Initial] = field(default_factory=dict)
    positions: dict[Part, Position] = field(default_factory=dict)
    stay: tuple[str, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    stopped: str = ""
    published: int = 0
    staged: dict[StagedKey, tuple[Record, ...]] = field(default_factory=dict)
    output: Counter[Record] = field(default_factory=Counter)

    def known(self) -> Known:
        """What a new control plane reads."""
        return Known(
            REGION,
            REGION_ID,
            self.term,
            self.epoch,
            self.floor,
            self.sequence,
            self.consecutive,
            frozenset(self.stay),
            tuple(self.initial.values()),
            tuple(self.positions.values()),
            tuple(key for one in self.contributions for key in one.keys),
            {one.member: one.state for one in self.contributions},
            self.stopped,
        )

    def commit(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        """A sequence is complete."""
        self._check_spans(manifest, contributions)
        if self.published != self.sequence:
            raise ViolatedError(f"sequence {manifest.sequence} is complete before {self.sequence} was published")
        self.sequence, self.stay, self.contributions = manifest.sequence, manifest.stay, contributions
        self.positions = {part_of(position): position for position in manifest.positions}
        self.consecutive = 0
        if not any(given.keys for given in contributions):
            self.published = self.sequence

    def publish(self, sequence: int, keys: tuple[StagedKey, ...]) -> None:
        """Each record below the sequence's positions is in the output once, however often it is published."""
        if sequence <= self.published:
            return
        if sequence != self.sequence:
            raise ViolatedError(f"sequence {sequence} is published where {self.sequence} is the last")
        self.published = sequence
        for key in keys:
            self.output.update(self.staged[key])
        for record, count in self.output.items():
            if count != 1:
                raise ViolatedError(f"{record} is in the output {count} times after sequence {self.sequence}")
        for part, position in self.positions.items():
            there = {offset for read, offset in self.output if read == part}
            first = self.initial[part].offset
            if there != set(range(first, position.offset)):
                missing = set(range(first, position.offset)) - there
                more = there - set(range(first, position.offset))
                raise ViolatedError(f"{part} to {position.offset}: missing {missing}, too many {more}")

    def _check_spans(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        if manifest.sequence != self.sequence + 1 or manifest.term != self.term:
            raise ViolatedError(f"sequence {manifest.sequence} of term {manifest.term} follows {self.sequence}")
        owners = Counter(part_of(span) for given in contributions for span in given.spans)
        if any(count > 1 for count in owners.values()):
            raise ViolatedError(f"two owners in sequence {manifest.sequence}: {owners}")


class Member:
    """A member's machine, and what carries its effects out."""

    def __init__(self, world: World, name: str, *, holds_back: bool) -> None:
        self.world, self.clock, self.name = world, world.clock, name
        self.incarnation = UUID(int=self.clock.chance.getrandbits(128))
        self.machine = MemberMachine(REGION, name, self.incarnation, GROUP, publishes=True, holds_back=holds_back)
        self.alive = True
        self.plane: Plane | None = None
        self.connection = self.term = -1
        self.polls = False
        self.positions: dict[Part, int] = {}
        self.unstaged: list[Record] = []
        self.keys: list[StagedKey] = []
        self.given = 0
        self.units = self.told_ms = self.dozes_until_ms = 0
        self.back: set[Part] = set()
        self.ended = ""

    def start(self) -> None:
        self.clock.after(1, self.look_for_plane)
        self.clock.after(5, lambda: self.world.group.join(self) if self.alive else None)
        self.clock.after(10, self.read)

    def in_turn(self, do: Callable[[], None]) -> None:
        """After what its coordinator has said before."""
        self.told_ms = max(self.told_ms, self.clock.now_ms + self.clock.chance.randint(1, 100), self.dozes_until_ms)
        self.clock.after(self.told_ms - self.clock.now_ms, lambda: do() if self.alive else None)

    def later(self, do: Callable[[], None]) -> None:
        wait_ms = max(self.clock.chance.randint(1, 100), self.dozes_until_ms - self.clock.now_ms)
        self.clock.after(wait_ms, lambda: do() if self.alive else None)

    # -- the control plane

    def look_for_plane(self) -> None:
        """Connect to the control plane that the topic names, if this one's connection has ended."""
        plane = self.world.plane
        if not self.alive:
            return
        if self.plane is None and plane is not None and plane.term == self.world.stored.term:
            self.plane = self._perhaps_an_older(plane)
            self.connection = self.plane.accept(self)
            self.step(member_events.Connected())
        self.clock.after(200, self.look_for_plane)

    def _perhaps_an_older(self, plane: Plane) -> Plane:
        """Now and then what it has read of the topic is not the last word."""
        older = [one for one in self.world.planes if one.alive]
        stale = older and not self.world.healed and self.clock.chance.random() < 0.1
        return self.clock.chance.choice(older) if stale else plane

    def cut_off(self) -> None:
        """Its connection ends; each side notices in its own time."""
        plane, connection = self.plane, self.connection
        if plane is not None:
            self.clock.after(self.clock.chance.randint(1, NOTICE_MS), lambda: plane.hang_up(connection))
            self.disconnect(connection)

    def disconnect(self, connection: int) -> None:
        if self.connection == connection:
            self.plane, self.connection = None, -1

    def hear(self, connection: int, order: Order) -> None:
        if self.clock.now_ms < self.dozes_until_ms:
            self.clock.after(self.dozes_until_ms - self.clock.now_ms, lambda: self.hear(connection, order))
        elif self.alive and connection == self.connection:
            before, acted = self.term, self.step(member_events.Ordered(order))
            self.term = max(before, order.term)
            if acted and order.term < before:
                raise ViolatedError(f"{self.name} has heard of term {before}, and does what {order} says")

    # -- the group

    def hear_of_eviction(self) -> None:
        if self.alive:
            self.step(member_events.Lost(tuple(self.machine.assigned)))
            self.step(member_events.Assigned(Identity(), ()))
            self.world.group.join(self)

    # -- records

    def read(self) -> None:
        if not self.alive:
            return
        chance = self.clock.chance
        self.clock.after(chance.randint(20, 120), self.read)
        able = [part for part in sorted(self.positions) if self.positions[part] < self.world.ends[part]]
        if not self.polls or not able or self.clock.now_ms < self.dozes_until_ms:
            return
        part = chance.choice(able)
        stop = min(self.positions[part] + chance.randint(1, 5), self.world.ends[part])
        self.step(member_events.Fetched())
        self.unstaged += [(part, offset) for offset in range(self.positions[part], stop)]
        self.positions[part] = stop
        if chance.random() < 0.3:
            self.stage()

    def stage(self) -> None:
        key = StagedKey(REGION_ID, self.machine.epoch, self.name, self.units)
        self.units += 1
        if key in self.world.stored.staged:
            raise ViolatedError(f"{key} was staged twice")
        self.world.stored.staged[key] = tuple(self.unstaged)
        self.unstaged = []
        self.keys.append(key)

    # -- what the machine wants

    def step(self, event: member_events.Event) -> bool:
        """Whether anything was to be done."""
        effects = self.machine.step(event)
        for effect in effects:
            if self.alive:
                self.carry_out(effect)
        return bool(effects)

    def carry_out(self, effect: member_events.Effect) -> None:
        match effect:
            case member_events.Say(report):
                if self.plane is not None:
                    self.plane.send_in(self.connection, report)
            case member_events.Poll():
                self.polls = True
            case member_events.StopPolling():
                self.polls = False
            case member_events.Quiesce(cut):
                self.polls = False
                bad = not self.world.healed and self.clock.chance.random() < 0.02
                quiet = member_events.NotQuiet(cut, "a commit failed") if bad else member_events.Quiet(cut)
                self.later(lambda: self.step(quiet))
            case member_events.SaveState(cut):
                self.later(lambda: self.save(cut))
            case member_events.GoBack(epoch):
                self.unstaged, self.keys, self.given = [], [], 0
                self.positions.clear()
                self.units = 0
                self.later(lambda: self.step(member_events.WentBack(epoch)))
            case member_events.Seek(positions):
                for one in positions:
                    self.positions[part_of(one)] = one.offset
            case member_events.LookUp(number, first, added):
                found = [self.begin(part, 0 if part in added else None) for part in (*first, *added)]
                self.later(lambda: self.step(member_events.LookedUp(number, tuple(found))))
            case member_events.Release(parts):
                for part in parts:
                    self.positions.pop(part, None)
                    self.back.discard(part)
                self.world.group.released(self, parts)
            case member_events.Retire():
                if effect.counts:
                    self.keys, self.given = self.keys[self.given :], 0
            case member_events.PublishKeys(sequence):
                self.later(lambda: self.publish(sequence, effect.keys))
            case member_events.End():
                self.ended = effect.cause or "closed"
                self.die()
            case _:
                pass

    def publish(self, sequence: int, keys: tuple[StagedKey, ...]) -> None:
        if not self.world.healed and self.clock.chance.random() < 0.1:
            self.step(member_events.PublishEnded(sequence, "the disk is full"))
            self.clock.after(500, lambda: self.publish(sequence, keys) if self.alive else None)
            return
        self.world.stored.publish(sequence, keys)
        self.later(lambda: self.step(member_events.PublishEnded(sequence)))

    def begin(self, part: Part, offset: int | None) -> Position:
        at = self.clock.chance.randint(0, 3) if offset is None else offset
        return Position(part.group, part.topic, part.topic_id, part.partition, min(at, self.world.ends[part]))

    def save(self, cut: Cut) -> None:
        if cut != self.machine.cut or self.machine.state is not MemberState.DRAINED:
            return
        self.stage()
        self.given = len(self.keys)
        ends = tuple(
            Position(part.group, part.topic, part.topic_id, part.partition, self.positions[part])
            for part in sorted(self.machine.begins)
        )
        self.step(member_events.StateSaved(cut, ends, tuple(self.keys), b"state"))

    def die(self) -> None:
        """At once, without a word; the coordinator and the control plane notice later."""
        self.alive = False
        self.cut_off()
        self.clock.after(self.clock.chance.randint(1, 2_000), lambda: self.world.group.leave(self))
        self.world.clock.tell(f"{self.name} is gone ({self.ended or 'killed'})")


class Plane:
    """A control plane's machine, and what carries its effects out."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, world.clock
        world.stored.term += 1
        self.term = world.stored.term
        self.alive = True
        self.sleeps_until_ms = self.cutting_since_ms = 0
        self.clients: dict[int, Member] = {}
        self.clock.tell(f"control plane of term {self.term} begins at sequence {world.stored.sequence}")
        self.machine = RegionMachine(world.stored.known(), world.config, self.clock.now_ms)
        self._writes: list[Callable[[], None]] = []
        self._tick()

    def accept(self, member: Member) -> int:
        self.world.connections += 1
        self.clients[self.world.connections] = member
        return self.world.connections

    def _tick(self) -> None:
        if not self.alive:
            return
        self._check_cut()
        due = self.machine.due_ms()
        if due is not None and due <= self.clock.now_ms and self.clock.now_ms >= self.sleeps_until_ms:
            self.step(plane_events.Tick())
        self.clock.after(50, self._tick)

    def _check_cut(self) -> None:
        """No cut waits longer for its members than it may."""
        asleep = self.clock.now_ms < self.sleeps_until_ms + 500
        unpublished = self.machine.plane.published < self.machine.plane.sequence
        if self.machine.state not in (RegionState.DRAINING, RegionState.CHECKPOINTING) or asleep or unpublished:
            self.cutting_since_ms = self.clock.now_ms
        elif self.clock.now_ms > self.cutting_since_ms + self.world.config.drain_ms + 500:
            raise ViolatedError(f"{self.machine.state.name} since {self.cutting_since_ms} ms")

    def send_in(self, connection: int, report: Report) -> None:
        self._in_order(connection, lambda: self.step(plane_events.Heard(connection, report)))

    def hang_up(self, connection: int) -> None:
        self._in_order(connection, lambda: self._hung_up(connection))

    def _hung_up(self, connection: int) -> None:
        if self.clients.pop(connection, None) is not None:
            self.step(plane_events.Disconnected(connection))

    def _in_order(self, connection: int, do: Callable[[], None]) -> None:
        """After what came before on the connection, and when this process is awake."""
        at_ms = max(self.clock.now_ms + self.clock.chance.randint(1, 40), self.world.busy.get(connection, 0))
        self.world.busy[connection] = at_ms

        def arrive() -> None:
            if self.alive and self.clock.now_ms < self.sleeps_until_ms:
                self.clock.after(self.sleeps_until_ms - self.clock.now_ms, arrive)
            elif self.alive and connection in self.clients:
                do()

        self.clock.after(at_ms - self.clock.now_ms, arrive)

    def step(self, event: plane_events.Event) -> None:
        before = self.machine.state
        effects = self.machine.step(event, self.clock.now_ms)
        if self.machine.state is not before:
            self.clock.tell(f"term {self.term}: {before.name} to {self.machine.state.name} by {type(event).__name__}")
            self.world.seen.add((before, self.machine.state))
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: plane_events.Effect) -> None:
        match effect:
            case plane_events.Say(connection, order):
                client = self.clients.get(connection)
                if client is not None:
                    key = -connection
                    at_ms = max(self.clock.now_ms + self.clock.chance.randint(1, 40), self.world.busy.get(key, 0))
                    self.world.busy[key] = at_ms
                    self.clock.after(at_ms - self.clock.now_ms, partial(client.hear, connection, order))
            case plane_events.Close(connection):
                client = self.clients.pop(connection, None)
                if client is not None:
                    self.clock.after(100, lambda: client.disconnect(connection))
            case plane_events.Save():
                self._write(lambda: self._save(effect))
            case plane_events.Commit():
                self._write(lambda: self._commit(effect))
            case plane_events.Told(_, text):
                self.clock.tell(f"term {self.term}: {text}")
            case plane_events.LookAt(group):
                self.clock.after(20, lambda: self.step(plane_events.GroupSeen(group, ())) if self.alive else None)

    def _write(self, do: Callable[[], None]) -> None:
        """One transaction after the other."""
        self._writes.append(do)
        if len(self._writes) == 1:
            self.clock.after(self.clock.chance.randint(1, 60), self._next_write)

    def _next_write(self) -> None:
        if not self.alive:
            return
        if self.term != self.world.stored.term:
            self.clock.tell(f"term {self.term}: is over")
            self.die()
            return
        do = self._writes.pop(0)
        do()
        if self._writes and self.alive:
            self.clock.after(self.clock.chance.randint(1, 60), self._next_write)

    def _answer(self, event: plane_events.Event) -> None:
        """The answer to a write takes its time, and is lost when the process dies meanwhile."""

        def arrive() -> None:
            if self.alive and self.clock.now_ms < self.sleeps_until_ms:
                self.clock.after(self.sleeps_until_ms - self.clock.now_ms, arrive)
            elif self.alive:
                self.step(event)

        self.clock.after(self.clock.chance.randint(1, 60), arrive)

    def _save(self, effect: plane_events.Save) -> None:
        stored = self.world.stored
        for fact in effect.facts:
            match fact:
                case Epoch():
                    stored.epoch, stored.floor, stored.consecutive = fact.epoch, fact.floor, fact.consecutive
                case Initial():
                    stored.initial.setdefault(part_of(fact), fact)
                case Stopped():
                    stored.stopped = fact.cause
                case _:
                    raise AssertionError(fact)
        self._answer(plane_events.Saved(effect.token))

    def _commit(self, effect: plane_events.Commit) -> None:
        stored = self.world.stored
        refused = self.world.group.commit(effect.offsets, self.term)
        if not refused:
            stored.commit(effect.manifest, effect.contributions)
            wrong = wrong_offsets(self.world.group.offsets(), stored.positions, stored.initial)
            if wrong:
                raise ViolatedError(f"sequence {stored.sequence}: {wrong}")
            self.clock.tell(f"term {self.term}: sequence {effect.manifest.sequence} is complete")
        gone = frozenset(name for name, why in refused.items() if why == "UNKNOWN_MEMBER_ID")
        self._answer(plane_events.CommitEnded(effect.cut, refused, gone))

    def die(self) -> None:
        """Its clients notice in their own time."""
        self.alive = False
        for connection, client in self.clients.items():
            self.clock.after(
                self.clock.chance.randint(1, NOTICE_MS),
                partial(client.disconnect, connection),
            )


class World:
    """A region with its members, for one seed."""

    def __init__(self, seed: int, config: RegionConfig | None = None) -> None:
        self.clock = Clock(seed)
        self.config = config or RegionConfig(
            checkpoint_every_ms=1_000, register_ms=2_000, drain_ms=6_000, reset_ms=3_000, resets_most=10**6
        )
        self.stored = Stored()
        self.group = Group(self.clock, PARTITIONS - 1)
        self.ends = {Part(GROUP, TOPIC, number, TOPIC_ID): 20 for number in range(PARTITIONS)}
        self.members: dict[str, Member] = {}
        self.plane: Plane | None = None
        self.planes: list[Plane] = []
        self.connections = 0
        self.busy: dict[int, int] = {}
        self.seen: set[tuple[RegionState, RegionState]] = set()
        self.healed = False
        self.clock.after(1, self._produce)

    def _produce(self) -> None:
        if not self.healed:
            part = self.clock.chance.choice(sorted(self.ends))
            self.ends[part] += self.clock.chance.randint(1, 10)
            self.clock.after(100, self._produce)

    def begin_plane(self) -> None:
        """A control plane takes over, whether or not the one before still runs."""
        self.plane = Plane(self)
        self.planes.append(self.plane)

    def begin_member(self, name: str) -> None:
        before = self.members.get(name)
        if before is not None and before.alive:
            return
        mode = self.clock.chance.random() < 0.5
        self.members[name] = Member(self, name, holds_back=mode)
        self.members[name].start()
        self.clock.tell(f"{name} starts, {'holds revocations' if mode else 'resets at revocations'}")

    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def play(self, faults_ms: int = 30_000, healing_ms: int = 60_000) -> None:
        """A bad time, then a good one, in which everything is read to its end."""
        self.begin_plane()
        self.begin_member("m0")
        self.clock.after(self.clock.chance.randint(1, 3_000), self._trouble)
        self.clock.run(faults_ms)
        self._heal()
        self.clock.run(faults_ms + healing_ms)
        self._check_end()

    def _trouble(self) -> None:
        if self.healed:
            return
        chance = self.clock.chance
        self.clock.after(chance.randint(1, 2_500), self._trouble)
        living = self.living()
        kind = chance.choice(TROUBLES)
        self.clock.tell(f"-- {kind}")
        self._bring(kind, chance.choice(living) if living else None)

    def _bring(self, kind: str, member: Member | None) -> None:
        chance, plane = self.clock.chance, self.plane
        match kind:
            case "start":
                self.begin_member(f"m{chance.randint(0, 3)}")
            case "takeover":
                self.begin_plane()
            case "grow":
                self.group.grow(PARTITIONS)
            case "move":
                self.group.move()
            case "plane-dies":
                if plane is not None:
                    plane.die()
                    self.clock.after(chance.randint(1, 3_000), self.begin_plane)
            case "sleep":
                if plane is not None:
                    plane.sleeps_until_ms = self.clock.now_ms + chance.randint(100, 4_000)
            case _ if member is not None:
                self._afflict(kind, member)

    def _afflict(self, kind: str, member: Member) -> None:
        chance = self.clock.chance
        match kind:
            case "kill":
                member.die()
            case "cut":
                member.cut_off()
            case "close":
                member.step(member_events.Closing())
            case "evict":
                self.group.lose_heartbeats(member)
            case "doze":
                member.dozes_until_ms = self.clock.now_ms + chance.randint(1_000, 12_000)
            case "reset":
                member.step(member_events.ResetWanted("something behind it failed"))
            case _:
                raise AssertionError(kind)

    def _heal(self) -> None:
        self.clock.tell("-- all faults end")
        self.healed = True
        if self.plane is None or not self.plane.alive or self.plane.term != self.stored.term:
            self.begin_plane()
        for member in self.living():
            if member.plane is not None and member.plane is not self.plane:
                member.cut_off()
        self.begin_member("m9")

    def unpublished(self) -> bool:
        """Whether what the last who left has staged was left to nobody."""
        return not self.living() and self.stored.published < self.stored.sequence

    def _check_end(self) -> None:
        assert self.plane is not None
        state = self.plane.machine.state
        if state not in (RegionState.RUNNING, RegionState.DRAINING, RegionState.CHECKPOINTING, RegionState.COMMITTING):
            raise ViolatedError(f"the region is {state.name} long after all faults have ended")
        if self.stored.published < self.stored.sequence - 1 or self.unpublished():
            raise ViolatedError(f"sequence {self.stored.published + 1} was never published")
        for part in self.group.parts():
            come = self.stored.positions.get(part)
            if come is None or come.offset != self.ends[part]:
                raise ViolatedError(f"{part} of {self.ends[part]} was read to {come}, long after all faults have ended")
