"""What the topic holds of a region."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kohort.region.facts import Contribution, Initial, Manifest, Position
from kohort.region.parts import Part, part_of
from kohort.region.plane.state import Known
from tests.region.world.clock import ViolatedError
from tests.region.world.disk import Disk
from tests.region.world.names import REGION, REGION_ID


@dataclass
class Stored:
    """What the topic holds of the region.

    Attributes:
        published: The last sequence that a sink has said to be.
    """

    disk: Disk

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
    empties: bool = False

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
            self.empties,
        )

    def go_back(self, manifest: Manifest) -> None:
        """To the initial state."""
        self.sequence, self.empties, self.contributions = manifest.sequence, manifest.empties, ()
        self.stay = manifest.stay
        self.positions = {part_of(position): position for position in manifest.positions}
        self.disk.goes_back()
        if not manifest.empties:
            self.publish(self.sequence)

    def commit(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        """A sequence is complete."""
        self._check_spans(manifest, contributions)
        if self.published != self.sequence:
            raise ViolatedError(f"sequence {manifest.sequence} is complete before {self.sequence} was published")
        ends = {part_of(position): position for position in manifest.positions}
        spans = {part: (self._come(part), position.offset) for part, position in ends.items()}
        self.disk.complete(manifest.sequence, spans)
        self.sequence, self.stay, self.contributions = manifest.sequence, manifest.stay, contributions
        self.positions, self.empties = ends, False
        self.consecutive = 0
        if not any(given.keys for given in contributions):
            self.published = self.sequence

    def publish(self, sequence: int) -> None:
        """A sink has said that it is published."""
        self.published = max(self.published, sequence)
        if self.empties and self.published == self.sequence:
            self.disk.emptied()
        self.disk.check_published(self.published)

    def _come(self, part: Part) -> int:
        before = self.positions.get(part)
        return self.initial[part].offset if before is None else before.offset

    def _check_spans(self, manifest: Manifest, contributions: tuple[Contribution, ...]) -> None:
        if manifest.sequence != self.sequence + 1 or manifest.term != self.term:
            raise ViolatedError(f"sequence {manifest.sequence} of term {manifest.term} follows {self.sequence}")
        owners = Counter(part_of(span) for given in contributions for span in given.spans)
        if any(count > 1 for count in owners.values()):
            raise ViolatedError(f"two owners in sequence {manifest.sequence}: {owners}")
