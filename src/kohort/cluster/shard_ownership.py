"""The shards that one coordinator has, as the door's map gives and takes them.

| what happens | what is done |
|---|---|
| the map gives a shard | it begins, under a term that no shard had here before |
| the map takes a shard | it serves until the next owner fences it, `LEAVING_S` at most: clients look for it then |
| another coordinator has fenced it | after a pause the door is asked, and the shard begins if the map still gives it |
| its journal can't be read | it stays as it is: its clients are told, and somebody has to decide |

Who was fenced goes by no map from before: one that is cut off from the door would take its shards back from their owner
for as long as it is. Two that the door tells different things would fence each other for ever; the pause grows with
each fence.

Who serves on for a moment answers nothing that is not so: the journal says whose a shard is, the map whose it is to be.
Clients are sent away when the next owner has begun to read, and not already when the map has changed.
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
from kohort.cluster.coordination.service import Door
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.errors import FencedError

log = logging.getLogger("kohort.cluster")

PAUSE_S = 0.1
"""After the first fence: the map that gave the shard to the other one is mostly on its way."""
PAUSE_MAX_S = 20.0
"""Epochs of a transactional id are 32,767: two that fence each other this often use them up in a week."""
SETTLED_S = 60.0
"""A shard that served for so long was ours: the next pause is the first one again."""
LEAVING_S = 1.0
"""An owner that has not fenced a shard so long after the map gave it to it may never come."""
LOOK_S = 0.02
"""Who waits to be fenced looks this often."""


@dataclass(slots=True)
class Tenure:
    """One shard while this coordinator has it.

    Attributes:
        began_s: when it began to load, by the monotonic clock.
        load_s: how long that took; None: it has not loaded.
        fences: how often another coordinator took it over since it was given to this one.
        pauses: those that were not followed by a time of peace.
        leaving: ends it; the map gives it to another. None: it is to stay.
    """

    index: int
    journal: KafkaJournal | None = None
    began_s: float = 0.0
    load_s: float | None = None
    fences: int = 0
    pauses: int = 0
    again: asyncio.TimerHandle | asyncio.Task[None] | None = None
    leaving: asyncio.TimerHandle | None = None


class Tenures:
    """See the module's text.

    Attributes:
        held: by shard.
        append: how long appends took, by shard; kept when a shard goes and comes back.
        fences: how often each shard was taken over here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        groups: GroupShards,
        door: Door,
        open_journal: Callable[[int], KafkaJournal],
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._door = door
        self._open_journal = open_journal
        self._terms = itertools.count(1)
        self._me: Candidate | None = None
        self._news = asyncio.Event()
        self.held: dict[int, Tenure] = {}
        self.append: dict[int, Histogram] = {}
        self.fences: dict[int, int] = {}

    def begin(self, me: Candidate) -> None:
        """Go by the map from now on."""
        self._me = me
        self.follow()

    def mine(self) -> frozenset[int]:
        """The shards that the map gives to this process."""
        placement, me = self._door.placement, self._me
        if placement is None or me is None:
            return frozenset(self.held) - self._leaving()  # nobody says anything else: the journal decides
        named = placement.candidate(me.id)
        same = named is not None and named.incarnation == me.incarnation
        return placement.of(me.id) if same else frozenset()

    def follow(self) -> None:
        """Begin and end shards as the map says; to be called whenever it may have changed."""
        mine = self.mine()
        leaving = self._leaving()
        gone = sorted(self.held.keys() - mine - leaving)
        new = sorted(mine - self.held.keys())
        for index in gone:
            self._leave(self.held[index])
        for index in mine & leaving:
            self._stay(self.held[index])
        for index in new:
            self.held[index] = Tenure(index)
            self._begin(self.held[index])
        if gone or new:
            self._loop.call_soon(self._news.set)
            log.info("shards: %d here, %d came, %d went", len(self.held), len(new), len(gone))

    async def settled(self) -> None:
        """Return once all shards that the map gives to this process serve, or can't."""
        while not self._is_settled():
            self._news.clear()
            await self._news.wait()

    def _is_settled(self) -> bool:
        here = {shard.index for shard in self._groups if shard.loaded or shard.phase.ended}
        return self.mine() == self.held.keys() == here

    async def handed_over(self) -> None:
        """Return once no shard is here that the map gives to another."""
        while leaving := self._leaving():
            for index in leaving:
                self._groups.prove(index)  # it hears of a fence
            await asyncio.sleep(LOOK_S)

    def open_journal(self, index: int) -> KafkaJournal:
        """The journal of a shard that begins."""
        tenure = self.held[index]
        if tenure.journal is None:
            tenure.journal = self._open_journal(index)
        return tenure.journal

    def loaded(self, index: int) -> None:
        """A shard has loaded."""
        tenure = self.held.get(index)
        if tenure is not None:
            tenure.load_s = time.monotonic() - tenure.began_s
            self._loop.call_soon(self._news.set)  # it serves once this turn is over

    def lost(self, index: int, error: Exception) -> None:
        """A shard has ended by itself."""
        self._loop.call_soon(self._news.set)
        tenure = self.held.get(index)
        if tenure is None or not isinstance(error, FencedError):
            return
        if tenure.leaving is not None:
            self._end(index)
            return
        if tenure.load_s is not None and time.monotonic() - tenure.began_s > SETTLED_S:
            tenure.pauses = 0
        pause_s = min(PAUSE_S * 2**tenure.pauses, PAUSE_MAX_S)
        tenure.fences += 1
        tenure.pauses += 1
        self.fences[index] = self.fences.get(index, 0) + 1
        log.warning("shard %d: it begins again in %.2f s if the map gives it here then", index, pause_s)
        tenure.again = self._loop.call_later(pause_s, self._ask, tenure)

    def close(self) -> None:
        """End all of them."""
        for index in sorted(self.held):
            self._end(index)

    def _ask(self, tenure: Tenure) -> None:
        tenure.again = self._loop.create_task(self._begin_again(tenure), name=f"next term of shard {tenure.index}")

    async def _begin_again(self, tenure: Tenure) -> None:
        """Begin it, if what the door says now is that it is ours still."""
        await self._door.ask()
        tenure.again = None
        self.follow()
        if self.held.get(tenure.index) is tenure:
            self._begin(tenure)

    def _begin(self, tenure: Tenure) -> None:
        tenure.began_s, tenure.load_s = time.monotonic(), None
        self._groups.begin(tenure.index, next(self._terms))

    def _leaving(self) -> frozenset[int]:
        return frozenset(index for index, tenure in self.held.items() if tenure.leaving is not None)

    def _leave(self, tenure: Tenure) -> None:
        """Let the next owner have it."""
        if self._groups.let_go(tenure.index):
            tenure.leaving = self._loop.call_later(LEAVING_S, self._end, tenure.index)
        else:
            self._end(tenure.index)

    def _stay(self, tenure: Tenure) -> None:
        """The map has given it back."""
        assert tenure.leaving is not None
        tenure.leaving.cancel()
        tenure.leaving = None
        if not self._groups.keep(tenure.index):
            self._begin(tenure)

    def _end(self, index: int) -> None:
        tenure = self.held.pop(index)
        self._loop.call_soon(self._news.set)
        for waited in (tenure.again, tenure.leaving):
            if waited is not None:
                waited.cancel()
        self._groups.end(index)
        if tenure.journal is not None:
            tenure.journal.close()
