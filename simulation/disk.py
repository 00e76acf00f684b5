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
        tears: probability that an append leaves a prefix, at any record boundary, and the process dies.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: list[Record] = []
        self.fails = 0.0
        self.tears = 0.0

    def append(self, records: list[Record]) -> None:
        """Write all records.

        Raises:
            DiskFailedError: not acknowledged.
        """
        if records and self.world.likely(self.fails):
            self.world.tell(f"disk: refused {len(records)} records")
            raise DiskFailedError
        if records and self.world.likely(self.tears):
            kept = self.world.chance.randrange(len(records) + 1)
            self.records.extend(records[:kept])
            self.world.tell(f"disk: tore a write of {len(records)} records after {kept}")
            raise DiskFailedError
        self.records.extend(records)
