"""A journal on a disk that fails, tears writes, loses what was not acknowledged, and is compacted."""

from __future__ import annotations

from kohort.groups.records import Kind, Record, Tombstone
from simulation.world import World


class DiskFailedError(Exception):
    """The append was not acknowledged; perhaps some of its records are there all the same."""


class Disk:
    """The records that a restart would find.

    Attributes:
        fails: probability that an append fails and leaves nothing.
        tears: probability that an append leaves a prefix of its steps, and the process dies. The records of one step are
            one append of the journal: a torn one is cut off whole when the journal is opened again.
        tears_after: once, the process dies when so many records were ever written; -1: never.
        loses: it dies before the append that would pass them; otherwise also after one that just reaches them, before its
            replies are out.
        appended: records ever written.
        torn: what the last torn write was to hold, and how many of those records are there; None before one.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("disk")
        self.records: list[Record] = []
        self.fails = 0.0
        self.tears = 0.0
        self.tears_after = -1
        self.loses = False
        self.appended = 0
        self.torn: tuple[list[Record], int] | None = None

    def append(self, steps: list[list[Record]]) -> None:
        """Write the records of several steps.

        Raises:
            DiskFailedError: not acknowledged.
        """
        steps = [step for step in steps if step]
        if not steps:
            return
        if self.fails and self.chance.likely(self.fails):
            self.world.tell(f"disk: refused {len(steps)} batches")
            raise DiskFailedError
        kept = len(steps) + 1
        if self.tears and self.chance.likely(self.tears):
            kept = self.chance.upto(len(steps))
        for number, step in enumerate(steps):
            if number == kept or 0 <= self.tears_after < self.appended + len(step):
                kept = number
                break
            self.records.extend(step)
            self.appended += len(step)
        if kept <= len(steps) or (self.tears_after == self.appended and not self.loses):
            self.tears_after = -1
            self.torn = [record for step in steps for record in step], sum(map(len, steps[:kept]))
            self.world.tell(f"disk: tore a write of {len(steps)} batches after {min(kept, len(steps))}")
            raise DiskFailedError

    def compact(self, share: float) -> None:
        """Keep only the last record of each key in this share of the journal, up to the first transaction; no tombstones."""
        pending = (at for at, record in enumerate(self.records) if record.key[0] is Kind.PENDING)
        cut = min(int(len(self.records) * share), next(pending, len(self.records)))
        old, new = self.records[:cut], self.records[cut:]
        last = {record.key: at for at, record in enumerate(old)}
        kept = [record for at, record in enumerate(old) if last[record.key] == at and not isinstance(record, Tombstone)]
        self.world.tell(f"disk: compacted {cut} records to {len(kept)}")
        self.records = kept + new
