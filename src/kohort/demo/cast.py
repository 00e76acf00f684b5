"""Who plays in a demo and on what: applications as processes, the replay, the group, and waiting for what they do."""

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
"""Why nothing moves for about 15 s after the Sparks are up."""
ASK_S = 0.5
"""How often the group is asked."""
PATIENCE_S = 120.0
"""How long nothing may move before the demo gives up; a machine that is merely slow still moves something."""
CPU_STEP_S = 5.0
"""A Spark that starts says nothing for long, but uses so many CPU seconds again and again; one that hangs does not."""


class Account(Protocol):
    """What came out, of whichever story."""

    @property
    def exact(self) -> bool:
        """Whether every flight is there once."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    def to_json(self) -> dict[str, Any]:
        """All of it."""

    def show(self, console: Console) -> None:
        """All of it, as tables."""


class Demo(ABC):
    """One run: the cast, the events they send, and the waits between the acts. A subclass says what happens."""

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

    # -- what happens

    @abstractmethod
    def play(self) -> None:
        """From the start of the members to the group with nothing left to read."""

    @abstractmethod
    def conclude(self) -> Account:
        """Read what was written, settle the account, draw the picture."""

    @abstractmethod
    def on_batch(self, name: str, facts: Mapping[str, Any]) -> None:
        """A member has written a batch."""

    @abstractmethod
    def look(self) -> None:
        """Now and then: see how far things are."""

    # -- the cast

    def create_topic(self) -> None:
        """The topic, with six partitions."""
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)]).all()
        self.scene.note(f"topic {self.topic} with {PARTITIONS} partitions, keyed by aircraft")

    def source_options(self) -> dict[str, str]:
        """Of the members' sources."""
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
        """SIGKILL to an application and all its processes."""
        self.orphans = {number for view in views for number in self.scene.members[view].held}
        self.killed_processes = self.members[name].kill()
        self.killed_at = time.monotonic()
        for view in views:
            self.scene.members[view].state, self.scene.members[view].held = "killed", ()
        self.scene.phase = "taking over"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take events in until something is so, for as long as anything moves.

        Raises:
            TimedOutError: nothing has moved for `PATIENCE_S`.
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
        found = (
            self.scene.produced,
            self.scene.lag,
            [(view.state, view.held, view.batches) for view in views.values()],
            [int(member.cpu_s() / CPU_STEP_S) for member in starting],
        )
        if found != self._moved:
            self._moved, self._moved_at = found, time.monotonic()

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
        self.scene.lag = sum(one.lag for one in shares)
        for name, view in self.scene.members.items():
            if view.state != "killed":
                view.held = tuple(one.partition for one in shares if one.owner == name)

    def shares(self) -> tuple[tuple[Share, ...], str]:
        """Every partition with its owner, and the group's state."""
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        description = self.admin.describe_consumer_groups([self.group]).values.get(self.group)
        owners: dict[TopicPartition, str] = {}
        for member in description.members if description is not None else ():
            name = member.client_id.rpartition("/")[2]  # a region's member is called REGION/NAME
            owners.update(dict.fromkeys(member.assignment or (), name))
        found = tuple(
            Share(where, owners.get(where.partition, "")) for where in group_lag(self.admin, self.group, partitions)
        )
        return found, description.state if description is not None else "unknown"

    def all_up(self) -> bool:
        """Whether every Spark has started."""
        return all(view.state != "starting Spark" for view in self.scene.members.values())

    def shared(self) -> bool:
        """Whether every member holds partitions."""
        return all(view.held for view in self.scene.members.values())

    def close(self) -> None:
        """End what still runs; leave a foreign cluster as it was."""
        self.feed.stop()
        for member in self.members.values():
            member.end()
        if self.options.bootstrap_server and not self.options.keep:
            self.admin.delete_consumer_groups([self.group])
            self.admin.delete_topics([self.topic])


def words(partitions: set[int]) -> str:
    """Partitions, for people."""
    return ", ".join(map(str, sorted(partitions))) or "none"
