"""A process that publishes what somebody was told to publish: beside others, or when it is done long since."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from kohort.errors import CorruptDataError
from kohort.region.records import Position
from kohort.region.sinks import publish_rows
from kohort.region.sinks.availability import AWAY
from kohort.region.staged import StagedKey
from tests.region.volume import Died
from tests.region.world.clock import Clock

COMES_BACK_MS: Final = 3_000
RESTORED_OF, RESTORED_IS = 5, 4
"""No process comes late in a world whose stores are brought back: a person ends all of them."""
Orders = tuple[int, list[StagedKey], list[Position]]
"""A sequence that somebody was told to publish, its keys, and where it ends."""
NO_ORDERS: Final[Orders] = (0, [], [])


def orders(sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position] = ()) -> Orders:
    """Return orders for a late publisher."""
    return sequence, list(keys), list(positions)


class LatePublisher:
    """A process that comes late, with a chance of its own.

    The place, `disk`, has `ordered`, and its sinks have `die_after`.
    """

    def __init__(self, clock: Clock, disk: Any, seed: int, era: Callable[[], object]) -> None:
        self._clock, self._disk, self._era = clock, disk, era
        self._chance = random.Random(f"{seed}: late publisher into {disk.path}")
        self._comes = seed % RESTORED_OF != RESTORED_IS
        self.done = 0

    def start(self) -> None:
        """Publish again and again."""
        if self._comes:
            self._clock.after(self._chance.randint(1, COMES_BACK_MS), self._publish)

    def _publish(self) -> None:
        chance, disk = self._chance, self._disk
        self._clock.after(chance.randint(100, COMES_BACK_MS), self._publish)
        (sequence, keys, positions), is_bad = disk.ordered, disk.faults.is_bad
        if not sequence:
            return
        sink, era = disk.open_sink(is_bad), self._era()
        if is_bad() and chance.random() < 0.3:
            sink.die_after(chance.randint(1, 40), is_bad)
        self.done += 1
        try:
            publish_rows(sink, sequence, keys, positions)
        except (Died, *AWAY) as error:
            self._clock.log(f"a late publisher of {disk.place} ends by {error!r}")
        except CorruptDataError:
            if era == self._era() and sequence in disk.wanted:
                raise
