"""The common parts of both demos: applications as processes, the replay, the group, and waits for their progress."""

from __future__ import annotations

import queue
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.demo.feed import Feed
from kohort.demo.member_settings import MemberSettings
from kohort.demo.processes import MemberProcess
from kohort.demo.report import Share
from kohort.demo.scene import MemberView, Scene
from kohort.demo.settings import DemoOptions
from kohort.errors import KafkaError, RetriableError, TimedOutError
from kohort.ids import TopicPartition
from kohort.lag import group_lag

PARTITIONS = 6
SESSION_TIMEOUT_MS = 6_000
FIRST_BATCH = "each Spark starts its Python workers for a first batch, and the group waits for all its members"
"""The reason why nothing moves for about 15 s after the Sparks are up."""
ASK_S = 0.5
"""Interval between descriptions of the group."""
PATIENCE_S = 120.0
"""Timeout without any progress; a machine that is merely slow still makes some."""
CPU_STEP_S = 5.0
"""CPU seconds that count as progress of a starting Spark: it reports nothing for long, but one that hangs uses none."""


class DemoResult(Protocol):
    """The result of either demo."""

    @property
    def exact(self) -> bool:
        """Whether every flight was counted once."""

    @property
    def seconds(self) -> float:
        """The duration of the demo."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""

    def show(self, console: Console) -> None:
        """Print the result as tables."""


class Demo(ABC):
    """One run of a demo: its applications, their events, and the waits. A subclass is the script."""

    def __init__(self, options: DemoOptions, servers: str, admin: Admin, scene: Scene) -> None:
        self.options, self.servers, self.admin, self.scene = options, servers, admin, scene
        self.run = uuid.uuid4().hex[:8] if options.bootstrap_server else ""
        self.topic = f"flights-{self.run}".rstrip("-")
        self.group = f"flights-by-hour-{self.run}".rstrip("-")
        self.folder = options.folder
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.members: dict[str, MemberProcess] = {}
        self.feed = Feed(servers, options.client, self.topic, options.total, options.seconds)
        self.killed_at: float | None = None
        self.killed_processes = 0
        self.orphans: set[int] = set()
        self.takeover_s: float | None = None
        self._asked_at = 0.0
        self._moved: tuple[Any, ...] = ()
        self._moved_at = 0.0

    # -- the script

    @abstractmethod
    def play(self) -> None:
        """Run the demo from the start of the members until the group has nothing left to read."""

    @abstractmethod
    def conclude(self) -> DemoResult:
        """Read the written data, count it, and draw the picture."""

    @abstractmethod
    def on_batch(self, name: str, facts: Mapping[str, Any]) -> None:
        """Handle the report of a member that has written a batch."""

    @abstractmethod
    def look(self) -> None:
        """Update the display; called at intervals."""

    # -- applications and their events

    def create_topic(self) -> None:
        """Create the topic, with six partitions."""
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)]).all()
        self.scene.note(f"topic {self.topic} with {PARTITIONS} partitions, keyed by aircraft")

    def source_options(self) -> dict[str, str]:
        """Return the options of the members' Spark sources."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "group.id": self.group,
            "maxOffsetsPerTrigger": "40000",
            "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "kafka.heartbeat.interval.ms": "1000",
            **{f"kafka.{name}": str(value) for name, value in self.options.client.items()},
        }

    def start_member(self, settings: MemberSettings) -> None:
        """Start a Spark application."""
        for name in settings.views:
            self.scene.members.setdefault(name, MemberView()).state = "starting Spark"
        self.members[settings.name] = MemberProcess(settings, self.events)

    def kill(self, name: str, views: tuple[str, ...]) -> None:
        """Send SIGKILL to an application and all its processes."""
        self.orphans = {number for view in views for number in self.scene.members[view].held}
        self.killed_processes = self.members[name].kill()
        self.killed_at = time.monotonic()
        for view in views:
            self.scene.members[view].state, self.scene.members[view].held = "killed", ()
        self.scene.phase = "taking over"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Process events until a condition holds, for as long as there is progress.

        Raises:
            TimedOutError: there was no progress for `PATIENCE_S`.
            KafkaError: a member ended, or the replay failed.
        """
        self._moved_at = time.monotonic()
        self.scene.waits_until = what
        while not condition():
            if time.monotonic() - self._moved_at > PATIENCE_S:
                self.scene.waits_until = ""  # the error says it
                raise TimedOutError(
                    f"{what}: not so, and nothing has moved for {PATIENCE_S:g} s; {self.scene.line().strip()}; "
                    f"the logs are in {self.folder}"
                )
            self._take_event()
            self.scene.produced = self.feed.produced
            if self.feed.error is not None:
                raise KafkaError(f"the replay failed: {self.feed.error}") from self.feed.error
            self._look_around()
        self.scene.waits_until = ""

    def _take_event(self) -> None:
        try:
            name, facts = self.events.get(timeout=0.1)
        except queue.Empty:
            return
        views = self.members[name].settings.views
        match facts["event"]:
            case "started":
                for view in views:
                    self.scene.members[view].state = "joining"
                self.scene.note(f"{name}: Spark is up, joining the group {self.group}")
            case "batch":
                self.on_batch(name, facts)
            case "failed" | "ended":
                raise KafkaError(f"member {name} failed:\n{facts.get('error') or facts.get('log')}")
            case "stopped":
                for view in views:
                    self.scene.members[view].state = "ended"

    def _note_moves(self) -> None:
        views = self.scene.members
        starting = [
            member for member in self.members.values() if views[member.settings.views[0]].state == "starting Spark"
        ]
        progress = (
            self.scene.produced,
            self.scene.lag,
            [(view.state, view.held, view.batches) for view in views.values()],
            [int(member.cpu_s() / CPU_STEP_S) for member in starting],
        )
        if progress != self._moved:
            self._moved, self._moved_at = progress, time.monotonic()

    # -- the group

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < ASK_S:
            return
        self._asked_at = now
        self._note_moves()
        try:
            shares, _ = self.shares()
            self.look()
        except RetriableError:
            return
        self.scene.lag = sum(share.lag for share in shares)
        for name, view in self.scene.members.items():
            if view.state != "killed":
                view.held = tuple(share.partition for share in shares if share.owner == name)

    def shares(self) -> tuple[tuple[Share, ...], str]:
        """Return every partition with its owner, and the group's state."""
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        description = self.admin.describe_consumer_groups([self.group]).values.get(self.group)
        owners: dict[TopicPartition, str] = {}
        for member in description.members if description is not None else ():
            name = member.client_id.rpartition("/")[2]  # a region's member is called REGION/NAME
            owners.update(dict.fromkeys(member.assignment or (), name))
        shares = tuple(
            Share(where, owners.get(where.partition, "")) for where in group_lag(self.admin, self.group, partitions)
        )
        return shares, description.state if description is not None else "unknown"

    def all_up(self) -> bool:
        """Return whether every Spark has started."""
        return all(view.state != "starting Spark" for view in self.scene.members.values())

    def shared(self) -> bool:
        """Return whether every member holds partitions."""
        return all(view.held for view in self.scene.members.values())

    def close(self) -> None:
        """End the running processes, and delete the demo's topic and group from a user's cluster."""
        self.feed.stop()
        for member in self.members.values():
            member.end()
        if self.options.bootstrap_server and not self.options.keep:
            self.admin.delete_consumer_groups([self.group])
            self.admin.delete_topics([self.topic])


def words(partitions: set[int]) -> str:
    """Return partitions as text."""
    return ", ".join(map(str, sorted(partitions))) or "none"
