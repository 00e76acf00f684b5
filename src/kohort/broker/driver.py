"""The driver of group coordinator shards on an asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kohort.coordinator.driver import Action, ShardMetrics
from kohort.groups.effects import BackgroundTask, LogLine, MetricNote, Now, Push
from kohort.groups.events import Event, GroupSettings, TopicImage

log = logging.getLogger("kohort.groups")

_NEW_NOW: Final[Callable[[tuple[int, int]], Now]] = partial(tuple.__new__, Now)
_ELAPSED_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_with_sleep_ms() -> int:
    """Return the time of a monotonic clock that also counts system sleep, where there is one."""
    return time.clock_gettime_ns(_ELAPSED_CLOCK) // 1_000_000


class ShardServices(Protocol):
    """The services of a broker that its shards use; see `coordinator.driver.Driver`."""

    @property
    def metrics(self) -> ShardMetrics:
        """The metrics object in which shards record durations and counts."""

    def topic_image(self) -> TopicImage:
        """Return all topics that exist now."""

    def topics_since_load(self, index: int) -> Sequence[str]:
        """Return the names of topics created since a shard's journal was last loaded."""

    def handle_shard_loaded(self, index: int) -> None:
        """Record that a shard is loaded: its journal holds no committed offsets of deleted topics any more."""

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Handle the end of a shard that was fenced or can't be read and will not serve again."""

    def group_settings_of_shard(self, index: int) -> Mapping[str, GroupSettings]:
        """Return the settings of single groups (not the broker's defaults) for a shard's groups, by group id."""

    def run_background_task(self, work: BackgroundTask, done: Callable[[Event], None]) -> None:
        """Run a background task off the loop and pass its event to `done` on the loop."""

    def send_to_push_consumer(self, push: Push) -> None:
        """Send a Ping, Stop or Start to a push consumer, or close its connection."""

    def record_metric(self, note: MetricNote) -> None:
        """Update the broker's metrics from a measurement that a shard reports."""


class LoopDriver:
    """The `Driver` of a broker's shards: clocks, timers and log lines of the event loop; the host does the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: ShardServices) -> None:
        self._loop = loop
        self.metrics: ShardMetrics = host.metrics
        self.clock = time.perf_counter
        self.call_soon = loop.call_soon
        self.topic_image = host.topic_image
        self.topics_since_load = host.topics_since_load
        self.handle_shard_loaded = host.handle_shard_loaded
        self.handle_shard_ended = host.handle_shard_ended
        self.group_settings_of_shard = host.group_settings_of_shard
        self.run_background_task = host.run_background_task
        self.send_to_push_consumer = host.send_to_push_consumer
        self.record_metric = host.record_metric

    def now(self) -> Now:
        """Return the current time by this machine's clocks."""
        return _NEW_NOW((time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000))

    def clock_with_sleep_ms(self) -> int:
        """Return the time of a clock that also counts system sleep, where there is one."""
        return clock_with_sleep_ms()

    def call_at(self, mono_ms: int, action: Action) -> asyncio.TimerHandle:
        """Schedule an action on the event loop at a monotonic time in ms."""
        return self._loop.call_later(max(0.0, mono_ms / 1000 - time.monotonic()), action)

    def log_line(self, line: LogLine) -> None:
        """Write a log line about a group."""
        log.log(line.level, "group %s: %s", line.group_id, line.text, extra={"group_id": line.group_id})

    def log_error(self, text: str, fault: Exception | None = None) -> None:
        """Log an error of a group shard, with the traceback of an exception if there is one."""
        log.error("group coordinator: %s", text, exc_info=fault)
