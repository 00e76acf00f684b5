"""The driver of the coordinator's shard in virtual time, while its process lives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from kohort.coordinator.driver import Action
from kohort.groups.consumer import assignment
from kohort.groups.effects import (
    BackgroundTask,
    Computation,
    ComputePushAssignment,
    FindOffsets,
    LogLine,
    MetricNote,
    Now,
    Push,
    ResolveRegexes,
)
from kohort.groups.events import GroupSettings, OffsetsFound, PushPosition, TopicImage
from kohort.groups.push import rebalance
from simulation.harness.world import Chance, ScheduledCall, World

TURN_MS = 2
"""The maximum delay of a turn after its request."""
LOOK_S = 0.004
"""The time that each reading of the clock takes, so that a load of many records needs several turns."""
WORK_MS = 60
SLOW_WORK, SLOW_WORK_MS = (0.1, 0.1, 0.5), 2_000
"""The probabilities of slow background work, one per run, and its maximum time: its result may be stale by then, or
belong to an earlier coordinator.
"""


def match(regex: str, topics: Iterable[str]) -> list[str]:
    """Return the topics that a regular expression matches, in place of RE2."""
    return [topic for topic in topics if re.fullmatch(regex, topic)]


def carried_out(work: BackgroundTask) -> Any:
    """Return the event that results from background work."""
    if isinstance(work, ResolveRegexes):
        return assignment.resolve_regexes(work, match)
    if isinstance(work, ComputePushAssignment):
        return rebalance.compute_push_assignment(work, match)
    if isinstance(work, FindOffsets):
        begins = tuple(PushPosition(topic, partition, 0) for topic, partition in work.partitions)
        return OffsetsFound(work.group_id, work.member_id, work.ticket, begins)
    if not isinstance(work, Computation):
        raise AssertionError(work)  # this world's topics and groups are all its own
    return assignment.compute_target_assignment(work)


class DiscardedMetrics:
    """Metrics that discard every measurement."""

    def __init__(self) -> None:
        self.events = 0
        self.queue = self.step = self.append = self

    def observe(self, seconds: float) -> None:
        """Discard a measurement."""


class Host(Protocol):
    """The owner of the topics, who also learns of finished background work.

    Attributes:
        image: all topics.
        unseen: topics created since the journal was last loaded.
        push: sends a frame that no request asked for.
        on_shard_loaded: called when the shard begins to serve.
    """

    image: TopicImage
    unseen: set[str]
    push: Callable[[Push], None]
    on_shard_loaded: Action

    def worked(self, work: BackgroundTask, event: Any) -> None:
        """Take note of the event that background work has produced."""


class VirtualDriver:
    """The `Driver` of one process.

    Attributes:
        alive: whether its process lives; after its end no turn runs.
    """

    def __init__(self, world: World, chance: Chance, host: Host, turned: Action) -> None:
        """`turned` is called after every turn."""
        self.metrics = DiscardedMetrics()
        self._host = host
        self.alive = True
        self._world = world
        self._chance = chance
        self._turned = turned
        self._slow = world.stream("slow work").choice(SLOW_WORK)
        self._looks = 0
        self._next_ms = 0

    def now(self) -> Now:
        """Return the process's two clocks."""
        return Now(self._world.now_ms, self._world.wall_ms)

    def clock(self) -> float:
        """Return the time, which advances with every reading."""
        self._looks += 1
        return self._world.now_ms / 1000 + self._looks * LOOK_S

    def clock_with_sleep_ms(self) -> int:
        """Return the process's monotonic clock: machines never sleep here."""
        return self._world.now_ms

    def call_soon(self, action: Action) -> None:
        """Run an action soon, in the order of these calls."""
        self._next_ms = max(self._next_ms, self._world.now_ms + self._chance.upto(TURN_MS))
        self._world.after(self._next_ms - self._world.now_ms, partial(self.turn, action))

    def call_at(self, mono_ms: int, action: Action) -> ScheduledCall:
        """Run an action at a time."""
        return self._world.after(mono_ms - self._world.now_ms, partial(self.turn, action))

    def turn(self, action: Action) -> None:
        """Run an action as one turn of the process, if it lives."""
        if self.alive:
            action()
            self._turned()

    def topic_image(self) -> TopicImage:
        """Return all topics."""
        return self._host.image

    def topics_since_load(self, index: int) -> list[str]:
        """Return the topics created since the journal was last loaded."""
        return sorted(self._host.unseen)

    def handle_shard_loaded(self, index: int) -> None:
        """Forget the topics created before: no record of an earlier topic of the same name is left in the journal."""
        self._host.unseen.clear()
        self._host.on_shard_loaded()

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Do nothing: the server reads the shard's phase after each turn."""

    def group_settings_of_shard(self, index: int) -> dict[str, GroupSettings]:
        """Return no settings: groups have none of their own here."""
        return {}

    def run_background_task(self, work: BackgroundTask, done: Callable[[Any], None]) -> None:
        """Run background work; its result comes later, perhaps after the shard has loaded again."""
        event = carried_out(work)
        self._host.worked(work, event)
        longest_ms = SLOW_WORK_MS if self._chance.likely(self._slow) else WORK_MS
        self._world.after(self._chance.upto(longest_ms), partial(self.turn, partial(done, event)))

    def send_to_push_consumer(self, push: Push) -> None:
        """Send to the member's connection, if there is one."""
        self._host.push(push)

    def record_metric(self, note: MetricNote) -> None:
        """Discard a metric."""

    def log_line(self, line: LogLine) -> None:
        """Add a log line to the trace."""
        if self._world.tells:
            self._world.log(f"coordinator: {line.group_id}: {line.text}")

    def log_error(self, text: str, fault: Exception | None = None) -> None:
        """Add an error to the trace; an exception in the coordinator ends the run."""
        if self.alive:
            self._world.log(f"coordinator: {text}")
            if fault is not None:
                raise fault
