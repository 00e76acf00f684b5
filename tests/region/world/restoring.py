"""Stores that are brought back from an older copy: a sink, or the topic, so that sinks are ahead of it.

Whoever writes to a place of another history stops the region, before a sequence with its rows is complete. Then a
person ends all applications, adopts what the place shows, and starts them again.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kohort.errors import KafkaError
from kohort.groups.records import Record as Journaled
from kohort.region.fact_table import FactTable
from kohort.region.records import RegionStopped, staged_keys_by_sink
from kohort.region.region_topic import SavedFacts, facts_of_region
from tests.region.world.clock import ViolatedError
from tests.region.world.disk import Disk, Record
from tests.region.world.names import REGION
from tests.region.world.transactions import WorldPen, WorldReader

if TYPE_CHECKING:
    from tests.region.world.topic import Stored
    from tests.region.world.world import World

LOOK_MS = 200


@dataclass(frozen=True)
class Copy:
    """A backup of everything, at one moment."""

    stored: Stored
    table: FactTable
    group: list[Journaled]
    backups: dict[str, Any]
    wanted: dict[str, dict[int, Counter[Record]]]


class Restoring:
    """Makes copies, brings them back, and is the person who mends it. With chance of its own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.copy: Copy | None = None
        self.adopted, self.mends = 0, False

    def start(self) -> None:
        self.world.clock.after(self.chance.randint(1_000, 6_000), self._make_copy)
        self.world.clock.after(LOOK_MS, self._look)

    def _make_copy(self) -> None:
        world = self.world
        if world.healed:
            return
        void = any(disk.void for disk in world.disks.values())
        if not world.stored.differs and not void and not self._stopped():
            backups = {place: disk.backup() for place, disk in world.disks.items()}
            wanted = {place: dict(disk.wanted) for place, disk in world.disks.items()}
            stored, table = _copied(world.stored), copy.deepcopy(world.log.table)
            self.copy = Copy(stored, table, list(world.group.records), backups, wanted)
        world.clock.after(self.chance.randint(500, 8_000), self._bring_back)
        world.clock.after(self.chance.randint(1_000, 12_000), self._make_copy)

    def _bring_back(self) -> None:
        world, kept = self.world, self.copy
        void = any(disk.void for disk in world.disks.values())
        if world.healed or kept is None or void or world.stored.eras != kept.stored.eras or world.stored.differs:
            return
        unpublished = (
            self._saved().to_region_facts(REGION, 0).unpublished_keys()
        )  # without what is staged for it, the region would wait for a person
        places = sorted(place for place in world.disks if place not in unpublished)
        if self.chance.random() < 0.5 and places:
            place = self.chance.choice(places)
            world.clock.log(f"-- {place} is brought back from an older copy")
            self._end_all()
            world.log.abort(world.log.open)  # the end of one that came late would owe what was staged
            self._bring_sink_back(world.disks[place], kept.backups[place])
        else:
            world.clock.log(f"-- the topic is brought back from sequence {world.stored.sequence} to an older copy")
            self._end_all()
            self._bring_topic_back(kept)
        world.clock.log(f"of another history: {sorted(world.stored.differs)}")
        world.clock.after(self.chance.randint(1, 1_000), world.begin_plane)

    def _end_all(self) -> None:
        """End all processes, and wait for what they have asked for and nobody has answered yet."""
        self.world.end_all()
        self.world.clock.bring_late()
        for disk in self.world.disks.values():
            disk.settle()

    def _bring_sink_back(self, disk: Disk, backup: Any) -> None:
        before = disk.shows()
        disk.restore(backup)
        if disk.shows() != before:
            self.world.stored.differs.add(disk.place)

    def _bring_topic_back(self, kept: Copy) -> None:
        world, writes = self.world, self.world.stored.writes
        world.log.bring_back(kept.table)
        world.stored = stored = _copied(kept.stored)
        stored.writes = {**writes, **stored.writes}
        world.group.bring_back(kept.group)
        world.group.end(world.log.epoch, commit=False)  # a producer that begins aborts what was open in the copy
        saved = self._saved()
        stored.unpublished = set(saved.to_region_facts(REGION, 0).unpublished_keys())
        for place, disk in world.disks.items():
            last, known = disk.shows(), saved.shown.get(place)
            if last not in _histories(
                saved, place, 0 if known is None else known.sequence, stored.checkpoint_id_in(place)
            ):
                stored.differs.add(place)
            if place not in stored.differs:
                disk.staged.clear()  # nobody adopts it, so epochs come again
            comes = max(last, stored.sequence)
            disk.wanted = {sequence: rows for sequence, rows in disk.wanted.items() if sequence <= comes}
            if place in stored.unpublished and not stored.empties:  # a person may have given it up since
                number = stored.checkpoint_id_in(place)
                disk.wanted[number] = kept.wanted[place][number]

    # -- the person

    def _saved(self) -> SavedFacts:
        return facts_of_region(REGION, WorldReader(self.world.log).read_all_facts())

    def _stopped(self) -> str:
        stopped = self._saved().stopped
        return "" if stopped is None else stopped.cause

    def _look(self) -> None:
        world = self.world
        world.clock.after(LOOK_MS, self._look)
        stopped = self._stopped()
        if not stopped:
            return
        if not world.stored.differs and not self.mends:
            raise ViolatedError(f"the region has stopped, and its sinks agree with it: {stopped}")
        self._end_all()
        world.log.adopts = self.mends = True
        try:
            differs = sorted(world.stored.differs)
            for place in [place for place in differs if place in stopped] or differs:
                self._adopt(world.disks[place])
            WorldPen(world.log).save([RegionStopped(REGION, "", "", "", world.clock.now_ms)])
        except KafkaError as error:
            world.clock.log(f"a person tries again: {error}")
            return
        finally:
            world.log.adopts = False
        self.mends = False
        world.begin_plane()
        if world.healed:
            world.begin_everywhere()

    def _adopt(self, disk: Disk) -> None:
        stored, last = self.world.stored, disk.shows()
        WorldPen(self.world.log).adopt(disk.place, "", last)
        known = self._saved().to_region_facts(REGION, 0)
        numbers = {place: stored.checkpoint_id_in(place) for place in stored.unpublished if place != disk.place}
        owed = stored.unpublished | {disk.place}  # the topic may not know yet that a place has the sequence
        stored.numbers = {place: number for place, number in numbers.items() if number != known.sequence}
        stored.sequence, stored.places, stored.unpublished = (
            known.sequence,
            frozenset(known.places),
            owed.intersection(known.unpublished_keys()),
        )
        stored.empties = known.empties
        stored.differs.discard(disk.place)
        disk.lose_after(last)
        if (
            stored.empties and disk.place in stored.unpublished
        ):  # the last sequence is the initial state: it is emptied too
            disk.goes_back(empties=True)
        self.adopted += 1
        self.world.clock.log(f"a person adopts that {disk.place} shows {last}: sequence {stored.sequence}")
        if not known.sink_id_bounds(disk.place).allows_id(last):
            raise ViolatedError(f"{disk.place} shows {last} and was adopted, and is of another history still")


def _histories(saved: SavedFacts, place: str, known: int, number: int) -> set[int]:
    """The sequences that a place may show if it is of the topic's history: what it showed, or the last one.

    `number` is the last one's in this place.
    """
    manifest = saved.manifests.get(saved.last_complete_sequence)
    given = saved.contributions.get(saved.last_complete_sequence, {})
    staged = set(staged_keys_by_sink(given.values()))
    if manifest is not None and manifest.empties:
        staged = set(manifest.places)
    never_written = place in saved.shown and saved.shown[place].empty
    return {known} | ({number} if place in staged else set()) | ({0} if never_written else set())


def _copied(stored: Stored) -> Stored:
    return replace(
        stored, writes=dict(stored.writes), unpublished=set(stored.unpublished), differs=set(stored.differs),
        initial=dict(stored.initial), positions=dict(stored.positions), numbers=dict(stored.numbers),
    )  # fmt: skip
