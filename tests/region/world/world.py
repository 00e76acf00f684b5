"""A region in virtual time: the machines of its control planes and members, a group, a topic and connections that fail.

The coordinator and the sink are those that ship. The topic and its transactions are a model, as small as the machines
can see. A record is its partition and offset.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from kohort.errors import KafkaError
from kohort.region.control_plane.state import RegionConfig
from kohort.region.member import events as member_events
from kohort.region.records import Part
from kohort.region.states import RegionState
from tests.region.world.batches import BatchMember
from tests.region.world.bucket import StoreFaults
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.delta_disk import DeltaDisk
from tests.region.world.disk import Disk, Record
from tests.region.world.group import Group
from tests.region.world.iceberg_disk import IcebergDisk
from tests.region.world.lake_disk import LakeDisk
from tests.region.world.losses import Losses
from tests.region.world.member import Member
from tests.region.world.names import GROUP, TOPIC, TOPIC_ID
from tests.region.world.object_disk import ObjectDisk, Takes
from tests.region.world.plane import Plane
from tests.region.world.restoring import Restoring
from tests.region.world.sql_disk import SqlDisk
from tests.region.world.states import StatesDisk
from tests.region.world.topic import Stored
from tests.region.world.topic_disk import TopicDisk
from tests.region.world.transactions import Log, WorldPen

PARTITIONS = 4
WELL_MS = 30_000
READ_MS = 10_000
"""So long after the last fault nothing goes back any more, and so long records still come then."""
WHOLE_OF, SETTLES_MS, SETTLED = 6, 15_000, 2
"""Four fifths of a history's cost are in the good time. One world of so many, and each with a folder, plays all of it.
In the others no record comes once so many sequences were published since the last fault. They end when all is read,
after this time at the earliest: no request comes later, and nobody sleeps for longer."""
LONGEST_ENDS, AGAIN_MS = 3, 10_000
"""A history ends this many times later at the latest, if the backlog got shorter in each of such times."""
AWAY_OF, AWAY_IS, AWAY_MS = 7, 4, 12_000
"""In one world of so many, the one with this remainder, sinks are away for so long at the most."""
LOSES_OF, LOSES_IS = 9, 5
"""In one world of so many, the one with this remainder, the log loses records before they are read."""
TROUBLES = (
    *("start", "start", "kill", "cut", "close", "takeover", "sleep", "evict", "reset", "grow", "doze", "move"),
    *("plane dies", "power fails", "crash", "crash after", "fail", "hold", "hold"),
    *("back to the start", "leave at the start"),
    *("close", "break"),
)


RESTORED = 5
"""In every so-manyth world stores are brought back from older copies."""
LETTERS_OF, LETTERS_ARE, BAD_OF = 9, (1, 5), 5
"""Of so many worlds, in those with these remainders, members have a place of dead letters, which they share: there go
the records of which the sinks refuse every so-manyth."""
KEYED_OF, KEYED_IS = 11, 10
"""In one world of so many, the one with this remainder, members keep keyed states, if nothing is restored or lost."""
COMINGS = ("start", "start", "close")
"""Of most troubles in a restless world: partitions move all the time."""


def _new_folder(path: str, takes: Takes, faults: StoreFaults) -> Disk:
    del faults
    return Disk(path, takes)


KINDS: dict[str, Callable[[str, Takes, StoreFaults], Disk]] = {
    "folder": _new_folder,
    "delta": DeltaDisk,
    "ducklake": LakeDisk,
    "iceberg": IcebergDisk,
    "sql": SqlDisk,
    "topic": TopicDisk,
    "objects": ObjectDisk,
    "objects-parted": lambda path, takes, faults: ObjectDisk(path, takes, faults, ("partition",)),
}
"""The sinks that a world may have."""


class World:
    """A region with its members, for one seed."""

    def __init__(self, seed: int, config: RegionConfig | None = None, sinks: str = "folder") -> None:
        self.clock = Clock(seed)
        self.faults = StoreFaults(self.clock, seed)
        self.config = config or RegionConfig(
            checkpoint_every_ms=1_000, register_ms=2_000, drain_ms=6_000, reset_ms=3_000, resets_most=10**6
        )
        has_letters = seed % LETTERS_OF in LETTERS_ARE
        takes = _is_good if has_letters else _is_any
        new_disk = KINDS[sinks]
        paths = self.clock.chance.choice((["/out"], ["/out", "/two"]))
        self.sinks = [new_disk(path, takes, self.faults) for path in paths]
        self.letters = new_disk("/letters", lambda record: not _is_good(record), self.faults) if has_letters else None
        places = [*self.sinks, *([] if self.letters is None else [self.letters])]
        self.disks = {disk.place: disk for disk in places}
        self.losses = Losses(self, seed)
        self.stored = Stored(self.disks, passed=self.losses.passed)
        spared = seed % RESTORED == RESTORED - 1 or seed % LOSES_OF == LOSES_IS
        self.states = StatesDisk(self) if seed % KEYED_OF == KEYED_IS and not spared else None
        self.group = Group(self.clock, PARTITIONS - 1)
        self.log = Log(self, seed)
        self.ends = {Part(GROUP, TOPIC, number, TOPIC_ID): 20 for number in range(PARTITIONS)}
        self.members: dict[str, Member] = {}
        self.plane: Plane | None = None
        self.planes: list[Plane] = []
        self.connections = 0
        self.busy: dict[int, int] = {}
        self.seen: set[tuple[RegionState, RegionState]] = set()
        self.healed, self.well_ms, self.settled = False, 10**9, False
        self.ends_early = sinks != "folder" and seed % WHOLE_OF > 0
        self.publish_ms = self.clock.chance.choice((100, 100, 2_000))
        self.restless = self.clock.chance.random() < 0.3
        self.restoring = Restoring(self, seed)
        if seed % RESTORED == RESTORED - 1:
            self.restoring.start()
        self.clock.after(1, self._produce)
        self.besides = [actor for disk in self.disks.values() for actor in disk.besides(self.clock, seed, self._era)]
        for actor in self.besides:
            actor.start()
        if seed % LOSES_OF == LOSES_IS:
            self.losses.start()
        if seed % AWAY_OF == AWAY_IS:
            self._sinks_chance = random.Random(f"{seed}: sinks")
            self.clock.after(self._sinks_chance.randint(1, 5_000), self._lose_sink)

    def _era(self) -> tuple[int, int]:
        """Return what is another one when all that was shown may be void."""
        return self.stored.eras, self.restoring.adopted

    def _lose_sink(self) -> None:
        """A sink is away, for longer than five checkpoint intervals for the most part."""
        chance = self._sinks_chance
        if not self.healed:
            disk = chance.choice(list(self.disks.values()))
            disk.away_until_ms = self.clock.now_ms + chance.randint(1_000, AWAY_MS)
            self.clock.log(f"-- {disk.place} is away until {disk.away_until_ms / 1000:.3f}")
            self.clock.after(chance.randint(AWAY_MS, 2 * AWAY_MS), self._lose_sink)

    def _produce(self) -> None:
        if self.clock.now_ms < self.well_ms + READ_MS and not self.settled:
            part = self.clock.chance.choice(sorted(self.ends))
            self.ends[part] += self.clock.chance.randint(1, 10)
            self.clock.after(100, self._produce)

    def begin_plane(self) -> None:
        """A control plane takes over, whether or not the one before still runs; again, if the topic fails it."""
        pen = WorldPen(self.log)
        try:
            known = pen.begin("", 0, b"")
        except KafkaError as error:
            self.clock.log(f"no term begins: {error}")
            self.clock.after(self.clock.chance.randint(1, 500), self.begin_plane)
            return
        self.plane = Plane(self, pen, known)
        self.planes.append(self.plane)

    def begin_plane_for(self, before: Plane) -> None:
        """Another one takes over from one that is over, if none has."""
        if self.plane is before:
            self.begin_plane()

    def begin_member(self, name: str, disk: Disk | None = None) -> None:
        """With a sink by chance, if it is not said."""
        before = self.members.get(name)
        if before is not None and before.alive:
            return
        mode = self.clock.chance.random() < 0.5
        disk = disk or self.clock.chance.choice(self.sinks)
        kind = self.clock.chance.choice((Member, BatchMember)) if self.states is None else Member
        self.members[name] = kind(self, name, disk, holds_back=mode)
        self.members[name].start()
        what = "holds revocations" if mode else "resets at revocations"
        self.clock.log(f"{name} starts for {disk.place}, a {kind.__name__} that {what}")

    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def play(self, faults_ms: int = 30_000, healing_ms: int = 60_000) -> None:
        """A bad time, then a good one, in which everything is read to its end."""
        with self.sinks[0].in_virtual_time():
            self._play(faults_ms, healing_ms)

    def _play(self, faults_ms: int, healing_ms: int) -> None:
        self.begin_plane()
        self.begin_member("m0")
        self.clock.after(self.clock.chance.randint(1, 3_000), self._trouble)
        self.clock.run(faults_ms)
        self._heal()
        healed_ms = self.clock.now_ms  # later than the faults were to end, where something was held
        end_ms = healed_ms + healing_ms
        if not (self.ends_early and self._settles_by(end_ms)):
            self.clock.run(end_ms)
        left = self._left()
        while left and end_ms < healed_ms + LONGEST_ENDS * healing_ms:  # a backlog may be longer, if it gets shorter
            end_ms += AGAIN_MS
            self.clock.run(end_ms)
            before, left = left, self._left()
            if left >= before:
                break
        self._check_end()

    def _settles_by(self, end_ms: int) -> bool:
        """Let time pass until all is read and published, and nobody can come late; return whether that was in time."""
        first, least_ms = self.stored.sequence, self.clock.now_ms + SETTLES_MS
        while self.clock.now_ms < end_ms:
            self.clock.run(min(self.clock.now_ms + 500, end_ms))
            self.settled = self.settled or self.stored.sequence >= first + SETTLED
            if self.settled and self.clock.now_ms >= least_ms and self._is_done():
                return True
        return False

    def _is_done(self) -> bool:
        """Return whether all is read and published, and the region has nothing to do."""
        assert self.plane is not None
        leaves = any(member.machine.closing for member in self.living())
        runs = self.plane.machine.state is RegionState.RUNNING and not leaves
        return runs and not self._left() and not self.stored.unpublished

    def _left(self) -> int:
        """Records of the group's partitions that no sequence has yet."""
        read = self.stored.positions
        return sum(self.ends[part] - (read[part].offset if part in read else 0) for part in self.group.parts())

    def _trouble(self) -> None:
        if self.healed:
            return
        chance = self.clock.chance
        self.clock.after(chance.randint(1, 2_500 if not self.restless else 800), self._trouble)
        living = self.living()
        kind = chance.choice(TROUBLES if not self.restless or chance.random() < 0.2 else COMINGS)
        self.clock.log(f"-- {kind}")
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
            case "plane dies":
                if plane is not None:
                    plane.die()
                    self.clock.after(chance.randint(1, 3_000), self.begin_plane)
            case "power fails":
                self._lose_power()
            case "back to the start":
                if plane is not None:
                    plane.ask_for_the_initial_state()
            case "sleep":
                if plane is not None:
                    plane.sleeps_until_ms = self.clock.now_ms + chance.randint(100, 4_000)
            case "leave at the start":
                if plane is not None and member is not None:
                    plane.ask_for_the_initial_state()
                    self.clock.after(chance.randint(1, 100), lambda: self._close(member))
            case _ if member is not None:
                self._afflict(kind, member)

    def _close(self, member: Member) -> None:
        if member.alive:
            member.close()

    def _afflict(self, kind: str, member: Member) -> None:
        chance = self.clock.chance
        match kind:
            case "kill":
                member.die()
            case "cut":
                member.cut_off()
            case "close":
                self._close(member)
            case "evict":
                self.group.lose_heartbeats(member)
            case "doze":
                member.dozes_until_ms = self.clock.now_ms + chance.randint(1_000, 12_000)
            case "break":
                member.leave_loop()
            case "crash" | "crash after" | "fail" | "hold":
                member.trouble_at_a_call(kind)
            case "reset":
                member.step(member_events.ResetRequested("something behind it failed"))
            case _:
                raise AssertionError(kind)

    def end_all(self) -> None:
        """Members and control planes, at once."""
        for member in self.living():
            member.die()
        for plane in self.planes:
            if plane.alive:
                plane.die()

    def begin_everywhere(self) -> None:
        """A member for each sink."""
        for number, disk in enumerate(self.sinks):
            self.begin_member(f"m{9 - number}", disk)

    def _lose_power(self) -> None:
        """Of the machine with the disk, where all members and control planes run."""
        self.end_all()
        for disk in self.disks.values():
            disk.lose_power(self.clock.chance)
        if self.states is not None:
            self.states.volume.lose_power(self.clock.chance)
        self.clock.after(self.clock.chance.randint(1, 3_000), self.begin_plane)

    def _heal(self) -> None:
        self.clock.log("-- all faults end")
        self.healed, self.well_ms = True, self.clock.now_ms + WELL_MS
        self.faults.end()
        for disk in self.disks.values():
            disk.heal()
        if self.plane is None or not self.plane.alive or self.plane.term != self.stored.term:
            self.begin_plane()
        for member in self.living():
            if member.plane is not None and member.plane is not self.plane:
                member.cut_off()
        self.begin_everywhere()

    def unpublished(self) -> bool:
        """Whether what the last who left has staged was left to nobody."""
        return not self.living() and bool(self.stored.unpublished)

    def _check_end(self) -> None:
        assert self.plane is not None
        state = self.plane.machine.state
        if state not in (RegionState.RUNNING, RegionState.DRAINING, RegionState.CHECKPOINTING, RegionState.COMMITTING):
            raise ViolatedError(f"the region is {state.name} long after all faults have ended")
        stay = [member.name for member in self.living() if member.machine.closing]
        if stay:
            raise ViolatedError(f"{', '.join(stay)} wanted to leave, and is not told to")
        if self.unpublished():
            raise ViolatedError(f"sequence {self.stored.sequence} was never published to {self.stored.unpublished}")
        for place, disk in self.disks.items():
            disk.check_published(self.stored.sequence - (place in self.stored.unpublished))
        for part in self.group.parts():
            come = self.stored.positions.get(part)
            if come is None or come.offset != self.ends[part]:
                raise ViolatedError(f"{part} of {self.ends[part]} was read to {come}, long after all faults have ended")


def _is_good(record: Record) -> bool:
    """Whether the sinks take a record, where they refuse some."""
    return sum(record) % BAD_OF > 0


def _is_any(record: Record) -> bool:
    del record
    return True
