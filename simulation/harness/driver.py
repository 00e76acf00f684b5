"""Drives the coordinator's shard in virtual time, as long as its process lives."""

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
    DividePartitions,
    FindOffsets,
    LogLine,
    MetricNote,
    Now,
    Push,
    ResolveRegexes,
)
from kohort.groups.events import GroupSettings, OffsetsFound, PushPosition, TopicImage
from kohort.groups.push import rebalance
from simulation.harness.world import Chance, Happening, World

TURN_MS = 2
"""The maximum delay of a turn after it was requested."""
LOOK_S = 0.004
"""What each look at the clock takes, so that a load of many records is one of several turns."""
WORK_MS = 60
SLOW_WORK, SLOW_WORK_MS = (0.1, 0.1, 0.5), 2_000
"""The probabilities of slow work, by the run, and its maximum time: its result may be stale by then, also of an earlier
coordinator."""


def match(regex: str, topics: Iterable[str]) -> list[str]:
    """Return the topics that a regular expression matches, in place of RE2."""
    return [topic for topic in topics if re.fullmatch(regex, topic)]


def carried_out(work: BackgroundTask) -> Any:
    """The event that comes of work."""
    if isinstance(work, ResolveRegexes):
        return assignment.resolve(work, match)
    if isinstance(work, DividePartitions):
        return rebalance.divide_partitions(work, match)
    if isinstance(work, FindOffsets):
        begins = tuple(PushPosition(topic, partition, 0) for topic, partition in work.partitions)
        return OffsetsFound(work.group_id, work.member_id, work.ticket, begins)
    if not isinstance(work, Computation):
        raise AssertionError(work)  # this world's topics and groups are all its own
    return assignment.compute(work)


class Unmeasured:
    """Where times go that no one reads."""

    def __init__(self) -> None:
        self.events = 0
        self.queue = self.step = self.append = self

    def observe(self, seconds: float) -> None:
        """One more."""


class Host(Protocol):
    """Where the topics are, and who is told of work that is done.

    Attributes:
        image: all of them.
        unseen: made since the journal was last loaded.
        push: sends a frame that no request asked for.
        on_shard_loaded: the shard begins to serve.
    """

    image: TopicImage
    unseen: set[str]
    push: Callable[[Push], None]
    on_shard_loaded: Action

    def worked(self, work: BackgroundTask, event: Any) -> None:
        """This event comes of that work."""


class VirtualDriver:
    """The `Driver` of one process.

    Attributes:
        alive: its process is; otherwise nothing more happens.
    """

    def __init__(self, world: World, chance: Chance, host: Host, turned: Action) -> None:
        """`turned` is called after every turn."""
        self.metrics = Unmeasured()
        self._host = host
        self.alive = True
        self._world = world
        self._chance = chance
        self._turned = turned
        self._slow = world.stream("slow work").choice(SLOW_WORK)
        self._looks = 0
        self._next_ms = 0

    def now(self) -> Now:
        """The process's two clocks."""
        return Now(self._world.now_ms, self._world.wall_ms)

    def clock(self) -> float:
        """Return the time, which advances with every look."""
        self._looks += 1
        return self._world.now_ms / 1000 + self._looks * LOOK_S

    def elapsed_ms(self) -> int:
        """The process's monotonic clock: no machine sleeps here."""
        return self._world.now_ms

    def soon(self, action: Action) -> None:
        """In order, at the same time or a little later."""
        self._next_ms = max(self._next_ms, self._world.now_ms + self._chance.upto(TURN_MS))
        self._world.after(self._next_ms - self._world.now_ms, partial(self.turn, action))

    def at(self, mono_ms: int, action: Action) -> Happening:
        """At this time."""
        return self._world.after(mono_ms - self._world.now_ms, partial(self.turn, action))

    def turn(self, action: Action) -> None:
        """One turn."""
        if self.alive:
            action()
            self._turned()

    def topic_image(self) -> TopicImage:
        """All topics now."""
        return self._host.image

    def unseen_topics(self, index: int) -> list[str]:
        """Topics made since the journal was last loaded."""
        return sorted(self._host.unseen)

    def shard_loaded(self, index: int) -> None:
        """Nothing of earlier topics is in the journal any more."""
        self._host.unseen.clear()
        self._host.on_shard_loaded()

    def shard_ended(self, index: int, error: Exception) -> None:
        """The server looks at the phase after each turn."""

    def own_settings(self, index: int) -> dict[str, GroupSettings]:
        """Groups have none of their own here."""
        return {}

    def run_work(self, work: BackgroundTask, done: Callable[[Any], None]) -> None:
        """Run background work; its result comes later, perhaps to another process than asked for it."""
        event = carried_out(work)
        self._host.worked(work, event)
        longest_ms = SLOW_WORK_MS if self._chance.likely(self._slow) else WORK_MS
        self._world.after(self._chance.upto(longest_ms), partial(self.turn, partial(done, event)))

    def push(self, push: Push) -> None:
        """To the member's connection, if there is one."""
        self._host.push(push)

    def record_metric(self, note: MetricNote) -> None:
        """Nobody counts."""

    def log_line(self, line: LogLine) -> None:
        """A line of the story."""
        if self._world.tells:
            self._world.log(f"coordinator: {line.group_id}: {line.text}")

    def log_error(self, text: str, fault: Exception | None = None) -> None:
        """A line of the story; a fault of ours is a finding."""
        if self.alive:
            self._world.log(f"coordinator: {text}")
            if fault is not None:
                raise fault
