"""A reader that polls the places all the time, as a dashboard or the next job would."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kohort.demo.history import SequenceStep
from kohort.demo.places import SinkPlace, Sums

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of a place: the number of rows of each partition, and the sum of their offsets."""

    place: str
    seen: Sums

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.seen)


class Watcher:
    """The reader's thread."""

    def __init__(self, places: Mapping[str, SinkPlace]) -> None:
        self._places = places
        self.looks: list[Look] = []
        self.count = 0
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Read the places until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a last reading."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                last = self._ended.wait(LOOK_S)
                for name, place in self._places.items():
                    look = Look(name, place.sums())
                    self.count += 1
                    if look not in self.looks[-len(self._places) :]:
                        self.looks.append(look)
                if last:
                    return
        except Exception as error:  # noqa: BLE001 - reported at the end: a reader that can't read is a fault
            self.error = error


def whole(steps: Sequence[SequenceStep], kinds: Mapping[str, str]) -> dict[str, list[Sums]]:
    """Return the valid readings of each place: nothing, or all rows up to some sequence.

    Args:
        steps: the region's sequences.
        kinds: the place of each member.
    """
    so_far: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    found: dict[str, list[Sums]] = {name: [frozenset()] for name in kinds.values()}
    for step in steps:
        for given in step.contributions:
            sums = so_far[kinds[given.member]]
            for span in given.spans:
                rows, total = sums.get(span.partition, (0, 0))
                count = span.end - span.begin
                sums[span.partition] = rows + count, total + (span.begin + span.end - 1) * count // 2
        for name in found:
            found[name].append(frozenset((at, rows, total) for at, (rows, total) in so_far[name].items() if rows))
    return found


def parts_seen(looks: Sequence[Look], steps: Sequence[SequenceStep], kinds: Mapping[str, str]) -> Iterator[str]:
    """Return the invalid readings: a part of a sequence, or fewer rows than before."""
    allowed = whole(steps, kinds)
    before: dict[str, int] = {}
    for look in looks:
        if look.seen not in allowed[look.place]:
            yield f"a reader of {look.place} saw {look.rows:,} rows, which is not what any sequence ends with"
        if look.rows < before.get(look.place, 0):
            yield f"a reader of {look.place} saw {look.rows:,} rows after {before[look.place]:,}"
        before[look.place] = look.rows
