"""A journal on a disk: it answers at once or late, fails, dies within a write, passes to others, and is compacted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kohort.coordinator.driver import Action
from kohort.errors import ErrorCode, FencedError
from kohort.groups.records import Kind, Record, Tombstone
from kohort.journal.protocol import Owner
from simulation.world import World

READ_RECORDS = 50
"""Records that are read in one piece."""
WAITS = 0.3
"""So often a read, where answers come late, finds nothing at first; and an append is answered at once all the same."""
SMALL_APPENDS = (None, None, 600)
"""Bounds on an append's bytes; the last makes what is gathered more than one append."""
FULL, UNSURE, FENCED = "is full", "does not say whether it wrote", "has been taken over"
FAILURES = (FULL, FULL, UNSURE, UNSURE, FENCED)


class Disk:
    """The records that a restart would find.

    Attributes:
        fails: probability that an append fails, and a load.
        tears: probability that the process dies in an append, which then is there or not.
        late_ms: up to so long an append takes; 0: it is answered at once.
        tears_after: once, the process dies when so many records were ever written; -1: never.
        loses: it dies before the append that would pass them; otherwise also after one that just reaches them, before
            its replies are out.
        appended: records ever written.
        term: the newest that has begun.
        torn: what the last torn write was to hold, and how many of those records are there; None before one.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("disk")
        self.records: list[Record] = []
        self.fails = 0.0
        self.tears = 0.0
        self.late_ms = 0
        self.tears_after = -1
        self.loses = False
        self.appended = 0
        self.term = 0
        self.torn: tuple[list[Record], int] | None = None
        self.append_bytes_max = world.stream("appends").choice(SMALL_APPENDS)

    def write(self, records: Sequence[Record]) -> None:
        """They are there."""
        self.records.extend(records)
        self.appended += len(records)

    def kills(self, records: Sequence[Record]) -> bool:
        """Whether the process dies in this append, which then has been written or not: all of it, or nothing."""
        there, after = self.appended + len(records), self.tears_after
        if 0 <= after < there:
            written = False
        elif after == there and not self.loses:
            written = True
        elif self.tears and self.chance.likely(self.tears):
            written = self.chance.likely(0.5)
        else:
            return False
        self.tears_after = -1
        self.torn = list(records), len(records) if written else 0
        self.world.tell(
            f"disk: the process dies in an append of {len(records)} records, which is {'' if written else 'not '}there"
        )
        if written:
            self.write(records)
        return True

    def compact(self, share: float) -> None:
        """Keep only each key's last record in this share of the journal, up to the first transaction; no tombstones."""
        pending = (at for at, record in enumerate(self.records) if record.key[0] is Kind.PENDING)
        cut = min(int(len(self.records) * share), next(pending, len(self.records)))
        old, new = self.records[:cut], self.records[cut:]
        last = {record.key: at for at, record in enumerate(old)}
        kept: list[Record] = [
            record for at, record in enumerate(old) if last[record.key] == at and not isinstance(record, Tombstone)
        ]
        self.world.tell(f"disk: compacted {cut} records to {len(kept)}")
        self.records = kept + new


class DiskJournal:
    """The `Journal` of one process on this disk."""

    holds_transactions = True

    def __init__(self, disk: Disk, turn: Callable[[Action], None], die: Action) -> None:
        """`turn` gives the process a turn, `die` ends it."""
        self.disk = disk
        self._turn = turn
        self.append_bytes_max = disk.append_bytes_max
        self._world = disk.world
        self._chance = disk.chance
        self._die = die
        self._owner: Owner | None = None
        self._tokens = 0
        self._on_way: tuple[int, Sequence[Record], int] | None = None

    def begin(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """See `Journal`."""
        self.abandon()
        if term < self.disk.term:
            raise FencedError(f"term {term} is over", ErrorCode.FENCED_LEADER_EPOCH)
        self.disk.term, self._owner = term, owner
        return self._read(owner)

    def _read(self, owner: Owner) -> Iterator[Sequence[Record] | None]:
        disk = self.disk
        if disk.late_ms and self._chance.likely(WAITS):
            self._world.after(self._chance.upto(disk.late_ms), partial(self._turn, owner.more))
            yield None
        if disk.fails and self._chance.likely(disk.fails):
            raise OSError(errno.EIO, "Input/output error")
        records = disk.records
        for at in range(0, len(records), READ_RECORDS):
            yield records[at : at + READ_RECORDS]

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int | None:
        """See `Journal`."""
        del now_ms
        disk = self.disk
        if term != disk.term:
            raise FencedError(f"term {term} is over", ErrorCode.FENCED_LEADER_EPOCH)
        if not disk.late_ms or self._chance.likely(WAITS):
            failure = self._write(records)
            if failure is not None:
                raise failure
            return None
        self._tokens += 1
        self._on_way = self._tokens, records, self._world.now_ms
        self._world.after(1 + self._chance.upto(disk.late_ms), partial(self._turn, partial(self._answer, self._tokens)))
        return self._tokens

    def abandon(self) -> None:
        """Nobody waits for the append on its way any more; it is there or not."""
        if self._on_way is not None:
            (_, records, _), self._on_way = self._on_way, None
            if self._chance.likely(0.5):
                self.disk.write(records)

    def _answer(self, token: int) -> None:
        on_way, owner = self._on_way, self._owner
        if on_way is None or owner is None or on_way[0] != token:
            return
        self._on_way = None
        failure = self._write(on_way[1])
        if failure is None:
            owner.durable(token, on_way[2])
        else:
            owner.lost(failure)

    def _write(self, records: Sequence[Record]) -> Exception | None:
        """Write, or say why not."""
        disk, chance = self.disk, self._chance
        if disk.kills(records):
            self._die()
            return OSError("nobody is left to hear of it")
        if not disk.fails or not chance.likely(disk.fails):
            disk.write(records)
            return None
        failure = chance.choice(FAILURES)
        self._world.tell(f"disk: {failure}, at an append of {len(records)} records")
        if failure is FENCED:
            disk.term += 1
            return FencedError("a later term has begun", ErrorCode.FENCED_LEADER_EPOCH)
        if failure is UNSURE and chance.likely(0.5):
            disk.write(records)
        return OSError(errno.ENOSPC if failure is FULL else errno.EIO, failure)
