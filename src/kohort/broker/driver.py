"""Drives the shards of group coordinators with an asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from kohort.coordinator.driver import Action, ShardMetrics
from kohort.groups.effects import Counted, LogLine, Now, Push, Rebalanced, Work
from kohort.groups.events import Event, GroupSettings, TopicImage

log = logging.getLogger("kohort.groups")

_PROOF_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ShardHost(Protocol):
    """What the shards need of their broker; see `coordinator.driver.Driver`."""

    @property
    def metrics(self) -> ShardMetrics:
        """Where the shards' times go."""

    def topic_image(self) -> TopicImage:
        """All topics now."""

    def unseen_topics(self, index: int) -> Sequence[str]:
        """Topics made since a shard's journal was last loaded."""

    def shard_loaded(self, index: int) -> None:
        """Note that what a shard's journal held of earlier topics is gone."""

    def shard_ended(self, index: int, error: Exception) -> None:
        """A shard was taken over, or can't be read: it will not serve again."""

    def own_settings(self, index: int) -> Mapping[str, GroupSettings]:
        """What groups of a shard have set for themselves."""

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work off the loop and hand its event to `done` on the loop."""

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure moved on."""


class LoopDriver:
    """The `Driver` of a broker's shards; what it need not translate, it hands through."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: ShardHost) -> None:
        self._loop = loop
        self.metrics: ShardMetrics = host.metrics
        self.clock = time.perf_counter
        self.soon = loop.call_soon
        self.topic_image = host.topic_image
        self.unseen_topics = host.unseen_topics
        self.shard_loaded = host.shard_loaded
        self.shard_ended = host.shard_ended
        self.own_settings = host.own_settings
        self.run_work = host.run_work
        self.push = host.push
        self.note = host.note

    def now(self) -> Now:
        """The clocks of this machine."""
        return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)

    def elapsed_ms(self) -> int:
        """By a clock that counts the machine's sleep, where there is one."""
        return time.clock_gettime_ns(_PROOF_CLOCK) // 1_000_000

    def at(self, mono_ms: int, action: Action) -> asyncio.TimerHandle:
        """Call it on the loop."""
        return self._loop.call_later(max(0.0, mono_ms / 1000 - time.monotonic()), action)

    def tell(self, line: LogLine) -> None:
        """To the log."""
        log.log(line.level, "group %s: %s", line.group_id, line.text, extra={"group_id": line.group_id})

    def error(self, text: str, fault: Exception | None = None) -> None:
        """To the log, a fault with its traceback."""
        log.error("%s", text, exc_info=fault)
