"""A journal on a disk that fails, tears writes, and loses what was not acknowledged."""

from __future__ import annotations

from kohort.groups.records import Record
from simulation.world import World


class DiskFailedError(Exception):
    """The append was not acknowledged; perhaps some of its records are there all the same."""


class Disk:
    """The records that a restart would find.

    Attributes:
        fails: probability that an append fails and leaves nothing.
        tears: probability that an append leaves a prefix of its steps, and the process dies. The records of one step are
            one batch with one checksum: a torn one is cut off whole when the journal is opened again.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: list[Record] = []
        self.fails = 0.0
        self.tears = 0.0

    def append(self, steps: list[list[Record]]) -> None:
        """Write the records of several steps.

        Raises:
            DiskFailedError: not acknowledged.
        """
        steps = [step for step in steps if step]
        if steps and self.world.likely(self.fails):
            self.world.tell(f"disk: refused {len(steps)} batches")
            raise DiskFailedError
        if steps and self.world.likely(self.tears):
            kept = self.world.chance.randrange(len(steps) + 1)
            for step in steps[:kept]:
                self.records.extend(step)
            self.world.tell(f"disk: tore a write of {len(steps)} batches after {kept}")
            raise DiskFailedError
        for step in steps:
            self.records.extend(step)
