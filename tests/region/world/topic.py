"""Checks of a region's topic as its transactions are committed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kohort.region.records import (
    Contribution,
    InitialOffset,
    Manifest,
    Part,
    Position,
    PublishedCheckpoint,
    staged_keys_by_sink,
    to_part,
)
from kohort.region.sinks.bound import offsets_as_json
from tests.region.world.clock import ViolatedError
from tests.region.world.disk import Disk, Record


@dataclass
class Stored:
    """The region's records in the topic.

    Attributes:
        disks: by their place.
        writes: to which places a member of this name writes in an epoch: the sink, and that of its dead letters.
        unpublished: where the last sequence is still to be published, or to be emptied.
        differs: places that are of another history than this topic, until a person adopts what they show.
        eras: how often all went back to the initial state.
        numbers: places in which the last sequence has another number, since a person adopted one that is ahead.
        went_back_by: the last reset to the initial state.
        passed: what a member of this name could not read in an epoch, since the log had lost it.
    """

    disks: dict[str, Disk]
    writes: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    unpublished: set[str] = field(default_factory=set)
    places: frozenset[str] = frozenset()
    differs: set[str] = field(default_factory=set)
    eras: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    went_back_by: Manifest | None = None
    passed: dict[tuple[str, int], set[Record]] = field(default_factory=dict)
    term: int = 0
    sequence: int = 0
    initial: dict[Part, InitialOffset] = field(default_factory=dict)
    positions: dict[Part, Position] = field(default_factory=dict)
    empties: bool = False

    def show(self, fact: PublishedCheckpoint) -> None:
        """A place shows a sequence, as its control plane has it."""
        if fact.place in self.unpublished and fact.sequence == self.checkpoint_id_in(fact.place):
            raise ViolatedError(f"sequence {fact.sequence} is said to be in {fact.place}, and is not")

    def checkpoint_id_in(self, place: str) -> int:
        """Number of the last sequence in a place."""
        return self.numbers.get(place, self.sequence)

    def go_back(self, manifest: Manifest) -> None:
        """To the initial state."""
        if manifest.sequence <= self.sequence and manifest != self.went_back_by:  # one may be written again
            raise ViolatedError(f"the initial state is sequence {manifest.sequence}, after {self.sequence}")
        self.numbers.clear()
        self.went_back_by = manifest
        self.sequence, self.empties = manifest.sequence, manifest.empties
        self.eras += 1
        self.positions = {to_part(position): position for position in manifest.positions}
        self.unpublished, self.places = set(manifest.places), frozenset(manifest.places)
        for place, disk in self.disks.items():
            empties = manifest.empties and place in manifest.places
            if empties or place not in self.differs:  # the topic knows nothing of what a lost history wrote there
                disk.goes_back(empties=empties)

    def commit(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        """A sequence is complete."""
        self._check_spans(manifest, contributions)
        wrong = self.differs.intersection(place for given in contributions for place in (given.sink, given.letters))
        if wrong:
            raise ViolatedError(f"sequence {manifest.sequence} is complete, and {wrong} shows another history")
        if self.unpublished:
            raise ViolatedError(
                f"sequence {manifest.sequence} is complete before {self.sequence} is in {self.unpublished}"
            )
        ends = {to_part(position): position for position in manifest.positions}
        for place, disk in self.disks.items():
            if place in self.differs:
                continue  # what it shows under this number is of the other history
            disk.offsets[manifest.sequence] = offsets_as_json(manifest.positions)
            share = self._share(place, contributions)
            disk.complete(manifest.sequence, share, self._lost(place, contributions))
        self._check_shares(ends, contributions)
        self.sequence = manifest.sequence
        self.numbers.clear()
        self.positions, self.empties, self.places = ends, False, frozenset(manifest.places)
        self.unpublished = set(staged_keys_by_sink(contributions))

    def publish(self, disk: Disk, sequence: int) -> None:
        """A sink has said that it is published."""
        number = self.checkpoint_id_in(disk.place)
        if self.empties and sequence == number:
            self.differs.discard(disk.place)  # it is empty, whatever it was
        if disk.place in self.differs:
            raise ViolatedError(f"sequence {sequence} is taken for published in {disk.place}, of another history")
        disk.published = max(disk.published, sequence)
        if sequence == number:
            self.unpublished.discard(disk.place)
            if self.empties:
                disk.emptied()
        disk.check_published(disk.published)

    def _share(self, place: str, contributions: tuple[Contribution, ...]) -> dict[Part, tuple[int, int]]:
        """Return the partitions read by the members that write to a place."""
        those = [given for given in contributions if place in self.writes[given.member, given.epoch]]
        return {to_part(span): (span.begin, span.end) for given in those for span in given.spans}

    def _lost(self, place: str, contributions: tuple[Contribution, ...]) -> set[Record]:
        """Records that the members which write to a place could not read any more."""
        those = [(given.member, given.epoch) for given in contributions]
        return {lost for who in those if place in self.writes[who] for lost in self.passed.get(who, ())}

    def _check_shares(self, ends: dict[Part, Position], contributions: tuple[Contribution, ...]) -> None:
        """All shares together are what comes after the last sequence, and nothing else."""
        read = {to_part(span): (span.begin, span.end) for given in contributions for span in given.spans}
        for part, position in ends.items():
            come = self._come(part)
            if read.get(part, (come, come)) != (come, position.offset):
                raise ViolatedError(f"{part} was at {come}, {read.get(part)} was read, it is at {position.offset}")
        if not read.keys() <= ends.keys():
            raise ViolatedError(f"{read.keys() - ends.keys()} was read and is at no offset")

    def _come(self, part: Part) -> int:
        before = self.positions.get(part)
        return self.initial[part].offset if before is None else before.offset

    def _check_spans(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        if manifest.sequence != self.sequence + 1 or manifest.term != self.term:
            raise ViolatedError(f"sequence {manifest.sequence} of term {manifest.term} follows {self.sequence}")
        owners = Counter(to_part(span) for given in contributions for span in given.spans)
        if any(count > 1 for count in owners.values()):
            raise ViolatedError(f"two owners in sequence {manifest.sequence}: {owners}")
