"""The shards that one coordinator owns: begun and ended as the placement changes.

| event | action |
|---|---|
| the placement assigns a shard to this coordinator | begin it, under a term that no shard had here before |
| the placement assigns it to another | serve until the new owner fences it, at most `LEAVING_S` |
| another coordinator has fenced it | refresh the placement after a pause; begin again if it is still assigned here |
| its journal can't be read | keep it as it is: its clients get the error, and somebody has to decide |

A fenced coordinator does not trust its old placement. Cut off from the coordination service, it would otherwise take
its shards back from their owner again and again. Two coordinators with different placements would fence each other for
ever, so the pause grows with each fence.

The placement names a shard's intended owner; the journal fence decides its actual owner. A coordinator that serves for
a moment longer therefore answers nothing wrong. It sends clients away when the new owner has begun to read, and not
already when the placement changes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kohort.broker.metrics import Histogram
from kohort.broker.shards import GroupShards
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.coordination.service import CoordinationService
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.errors import FencedError
from kohort.io.backoff import exponential_backoff

log = logging.getLogger("kohort.cluster")

PAUSE_S = 0.1
"""Pause after the first fence: the placement that assigned the shard elsewhere is usually on its way."""
PAUSE_MAX_S = 20.0
"""The longest pause. A transactional id has 32,767 epochs: coordinators fencing each other this often need a week."""
SETTLED_S = 60.0
"""A shard that served for this long was really owned here: the next pause is `PAUSE_S` again."""
LEAVING_S = 1.0
"""A new owner that has not fenced a shard this long after the placement changed may never come."""
LOOK_S = 0.02
"""Interval at which a shard that is handed over checks whether it was fenced."""


@dataclass(slots=True)
class OwnedShard:
    """One shard while this coordinator owns it.

    Attributes:
        index: the shard's number.
        journal: its journal, once opened.
        began_s: when it began to load, by the monotonic clock.
        load_s: how long the load took; None: it has not loaded.
        fences: how often another coordinator took it over since it was assigned to this one.
        pauses: the number of pauses since the shard last served for `SETTLED_S`.
        again: the timer or task that begins the next term.
        leaving: the timer that ends it, because the placement assigns it to another; None: it stays.
    """

    index: int
    journal: KafkaJournal | None = None
    began_s: float = 0.0
    load_s: float | None = None
    fences: int = 0
    pauses: int = 0
    again: asyncio.TimerHandle | asyncio.Task[None] | None = None
    leaving: asyncio.TimerHandle | None = None


class ShardOwnership:
    """The shards of one coordinator, which follow the placement and the journals' fences.

    Attributes:
        owned: the shards that are here, by number.
        append: the durations of appends, by shard; kept when a shard leaves and comes back.
        fences: how often each shard was taken over from here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        groups: GroupShards,
        coordination: CoordinationService,
        open_journal: Callable[[int], KafkaJournal],
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._coordination = coordination
        self._open_journal = open_journal
        self._terms = itertools.count(1)
        self._me: Candidate | None = None
        self._news = asyncio.Event()
        self.owned: dict[int, OwnedShard] = {}
        self.append: dict[int, Histogram] = {}
        self.fences: dict[int, int] = {}

    def start_owning(self, me: Candidate) -> None:
        """Start to own the shards that the placement assigns to this candidate."""
        self._me = me
        self.follow_placement()

    def assigned_shards(self) -> frozenset[int]:
        """Return the shards that the placement assigns to this process."""
        placement, me = self._coordination.placement, self._me
        if placement is None or me is None:
            return frozenset(self.owned) - self._leaving()  # without a placement the journal decides
        named = placement.candidate(me.id)
        same = named is not None and named.incarnation == me.incarnation
        return placement.shards_of(me.id) if same else frozenset()

    def follow_placement(self) -> None:
        """Begin and end shards to match the placement. Call this whenever it may have changed."""
        mine = self.assigned_shards()
        leaving = self._leaving()
        gone = sorted(self.owned.keys() - mine - leaving)
        new = sorted(mine - self.owned.keys())
        for index in gone:
            self._leave(self.owned[index])
        for index in mine & leaving:
            self._stay(self.owned[index])
        for index in new:
            self.owned[index] = OwnedShard(index)
            self._begin_term(self.owned[index])
        if gone or new:
            self._loop.call_soon(self._news.set)
            log.info(
                "shards of groups: %d newly assigned to this coordinator, %d revoked, %d owned now",
                len(new),
                len(gone),
                len(self.owned.keys() - self._leaving()),
            )

    async def wait_until_shards_serve(self) -> None:
        """Return once each shard that the placement assigns to this process serves, or can't."""
        while not self._is_settled():
            self._news.clear()
            await self._news.wait()

    def _is_settled(self) -> bool:
        here = {shard.index for shard in self._groups if shard.is_loaded or shard.phase.is_final}
        return self.assigned_shards() == self.owned.keys() == here

    async def wait_handed_over(self) -> None:
        """Wait until every shard that the placement assigns to another coordinator has left this one."""
        while leaving := self._leaving():
            for index in leaving:
                self._groups.check_ownership(index)  # an append that fails once the shard is fenced
            await asyncio.sleep(LOOK_S)

    def open_journal(self, index: int) -> KafkaJournal:
        """Create the journal of a shard whose ownership begins here."""
        tenure = self.owned[index]
        if tenure.journal is None:
            tenure.journal = self._open_journal(index)
        return tenure.journal

    def record_shard_loaded(self, index: int) -> None:
        """Record that a shard has loaded its journal."""
        tenure = self.owned.get(index)
        if tenure is not None:
            tenure.load_s = time.monotonic() - tenure.began_s
            self._loop.call_soon(self._news.set)  # the shard serves after this turn of the loop

    def record_ended_shard(self, index: int, error: Exception) -> None:
        """Record that a shard has ended by itself, and plan its next term if it was fenced."""
        self._loop.call_soon(self._news.set)
        tenure = self.owned.get(index)
        if tenure is None or not isinstance(error, FencedError):
            return
        if tenure.leaving is not None:
            self._drop_shard(index)
            return
        if tenure.load_s is not None and time.monotonic() - tenure.began_s > SETTLED_S:
            tenure.pauses = 0
        tenure.fences += 1
        tenure.pauses += 1
        pause_s = exponential_backoff(tenure.pauses, PAUSE_S, PAUSE_MAX_S)
        self.fences[index] = self.fences.get(index, 0) + 1
        log.warning(
            "shard %d: fenced by another coordinator; loading it again in %.2f s if it is still assigned to this one",
            index,
            pause_s,
        )
        tenure.again = self._loop.call_later(pause_s, self._schedule_next_term, tenure)

    def close(self) -> None:
        """End all shards that are here, because the coordinator closes."""
        for index in sorted(self.owned):
            self._drop_shard(index)

    def _schedule_next_term(self, owned: OwnedShard) -> None:
        owned.again = self._loop.create_task(self._begin_again(owned), name=f"next term of shard {owned.index}")

    async def _begin_again(self, owned: OwnedShard) -> None:
        """Begin a shard again if the refreshed placement still assigns it here."""
        await self._coordination.refresh_placement()
        owned.again = None
        self.follow_placement()
        if self.owned.get(owned.index) is owned:
            self._begin_term(owned)

    def _begin_term(self, owned: OwnedShard) -> None:
        owned.began_s, owned.load_s = time.monotonic(), None
        self._groups.take_over_shard(owned.index, next(self._terms))

    def _leaving(self) -> frozenset[int]:
        return frozenset(index for index, tenure in self.owned.items() if tenure.leaving is not None)

    def _leave(self, owned: OwnedShard) -> None:
        """Let a serving shard wait up to `LEAVING_S` for the next owner's fence; drop a shard that does not serve."""
        if self._groups.expect_takeover(owned.index):
            owned.leaving = self._loop.call_later(LEAVING_S, self._drop_shard, owned.index)
        else:
            self._drop_shard(owned.index)

    def _stay(self, owned: OwnedShard) -> None:
        """Keep a shard that was leaving, because the placement assigns it here again."""
        assert owned.leaving is not None
        owned.leaving.cancel()
        owned.leaving = None
        if not self._groups.cancel_takeover(owned.index):
            self._begin_term(owned)

    def _drop_shard(self, index: int) -> None:
        tenure = self.owned.pop(index)
        self._loop.call_soon(self._news.set)
        for timer in (tenure.again, tenure.leaving):
            if timer is not None:
                timer.cancel()
        self._groups.release_shard(index)
        if tenure.journal is not None:
            tenure.journal.end_term()
