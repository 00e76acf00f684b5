"""A step: what a group may use and do while it handles one event.

A `Step` carries the time, the settings and the topics, and collects the effects. Groups know no more of their shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    BackgroundTask,
    Cause,
    CoordinatorMeter,
    CounterIncreased,
    Downtime,
    Effects,
    Level,
    LogLine,
    Now,
    Push,
    Pushed,
    RebalanceCaused,
    Rebalanced,
    RebalanceLeftNoMembers,
    Reply,
    ReplyValue,
)
from kohort.groups.events import NO_CONNECTION, GroupSettings, JoinGroup, Topic, TopicImage
from kohort.groups.records import OffsetCommitted, Record
from kohort.groups.timers import Deadlines, Timer
from kohort.ids import TopicId

_NEW_REPLY: Final[Callable[[tuple[int, ReplyValue]], Reply]] = partial(tuple.__new__, Reply)
"""`Reply` without its Python frame, since every request has one."""
_NEW_COUNT: Final[Callable[[tuple[CoordinatorMeter, int]], CounterIncreased]] = partial(tuple.__new__, CounterIncreased)
LONGEST_DOWNTIMES = 10
"""How many members' downtimes a `Rebalanced` lists, the longest ones."""


class Step(ABC):
    """The step of one event: its time, its effects, and the timers and connections of the shard's members.

    Attributes:
        now: the time of the step.
        effects: the effects of the step.
        image: the topics.
        connections: by connection, the (group, member id) pairs last heard on it, or awaiting their id on it.
        long_polls: the timers of the delayed heartbeats, by request.
        settings: the groups' own settings.
        sessions_from_ms: until this time an earlier owner may have heard members; sessions are extended accordingly.
    """

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.deadlines = Deadlines()
        self.image = TopicImage()
        self.now = Now(0, 0)
        self.effects = Effects()
        self.connections: dict[int, dict[tuple[str, str], None]] = {}
        self.long_polls: dict[int, Timer] = {}
        self.settings: dict[str, GroupSettings] = {}
        self.sessions_from_ms = 0
        self._ticket = 0
        self._ids_of: TopicImage | None = None
        self._by_id: dict[TopicId, Topic] = {}

    def begin_step(self, now: Now) -> None:
        """Begin the step of one event at this time, without effects yet."""
        self.now = now
        self.effects = Effects()

    @abstractmethod
    def emit(self, record: Record) -> None:
        """Apply a record to the hard state now, and append it with the step's effects."""

    @abstractmethod
    def offsets_of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitted]:
        """Return the committed offsets of an existing group, by topic and partition."""

    @abstractmethod
    def mark_for_zookeeper(self, group_id: str) -> None:
        """Mark a push group as changed, because soft state that ZooKeeper's mirror shows has changed."""

    @abstractmethod
    def convert_to_classic(
        self, group_id: str, leaving: str | None = None, joining: tuple[JoinGroup, str] | None = None
    ) -> bool:
        """Convert a consumer group to a classic one if only classic members are left and the policy permits it.

        Args:
            group_id: a consumer group.
            leaving: a member that leaves with the conversion.
            joining: a JoinGroup that waits for the first rebalance, with its member's id in the group.
        """

    def reply(self, request: int, value: ReplyValue) -> None:
        """Answer a request as soon as the records so far are durable."""
        self.effects.replies.append(_NEW_REPLY((request, value)))

    def send_push_frame(self, connection: int, value: Pushed) -> None:
        """Send a frame on a member's connection, after the replies."""
        self.effects.pushes.append(Push(connection, value))

    def begin_task(self, task: BackgroundTask) -> None:
        """Start a background task; its result returns as an event."""
        self.effects.work.append(task)

    def start_timer(self, timer: Timer, delay_ms: int) -> None:
        """Start or move a timer, to be due `delay_ms` from now."""
        self.deadlines.set_timer(timer, self.now.mono_ms + delay_ms)

    def count_meter(self, meter: CoordinatorMeter, amount: int = 1) -> None:
        """Add an increase of a counter to the step's effects."""
        if amount:
            self.effects.notes.append(_NEW_COUNT((meter, amount)))

    def record_rebalance_cause(self, group_id: str, cause: Cause) -> None:
        """Record a cause of the rebalance that begins now, or of the one under way, for metrics and history."""
        self.effects.notes.append(RebalanceCaused(group_id, cause, self.now.wall_ms))

    def record_group_emptied(self, group_id: str, generation: int = -1) -> None:
        """Record that a rebalance ended without members."""
        self.effects.notes.append(RebalanceLeftNoMembers(group_id, generation, self.now.wall_ms))

    def report_rebalance(
        self, group_id: str, protocol: str, began_ms: int | None, still: list[Downtime], members: int, generation: int
    ) -> None:
        """Report that a rebalance is finished: count it and record its duration.

        Args:
            group_id: the group.
            protocol: the group's protocol.
            began_ms: when the first change came; None counts as now.
            still: the downtimes of members or partitions, in ms.
            members: the number of members now.
            generation: the generation, or the epoch; -1 for push groups.
        """
        now_ms = self.now.mono_ms
        self.count_meter(CoordinatorMeter.COMPLETED_REBALANCES)
        whole = now_ms - (now_ms if began_ms is None else began_ms)
        mean = sum(downtime for _, downtime in still) / len(still) if still else 0.0
        of_members: dict[str, int] = {}
        for member_id, downtime_ms in still:
            of_members[member_id] = max(downtime_ms, of_members.get(member_id, 0))
        by_length = sorted(of_members.items(), key=lambda found: (-found[1], found[0]))
        longest = tuple(Downtime(*found) for found in by_length[:LONGEST_DOWNTIMES])
        longest_ms = longest[0].downtime_ms if longest else 0
        self.effects.notes.append(
            Rebalanced(group_id, protocol, whole, mean, longest_ms, members, self.now.wall_ms, generation, longest)
        )

    def log(self, group_id: str, text: str, level: Level = Level.INFO) -> None:
        """Add a log line to the effects."""
        self.effects.notes.append(LogLine(level, group_id, text))

    def remember_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """Record that a member's last request came on this connection."""
        if connection != NO_CONNECTION:
            self.connections.setdefault(connection, {})[group_id, member_id] = None

    def forget_connection(self, connection: int, group_id: str, member_id: str) -> None:
        """Drop a member that is gone, or that was heard on another connection since."""
        of_connection = self.connections.get(connection)
        if of_connection is not None:
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                del self.connections[connection]

    def next_task_number(self) -> int:
        """Return a number for a background task that no earlier task of this process has had.

        That includes tasks of a machine that was discarded since.
        """
        self._ticket = max(self._ticket + 1, self.now.mono_ms << 10)
        return self._ticket

    def topics_by_id(self) -> Mapping[TopicId, Topic]:
        """Return the topics of the image by their ids."""
        if self._ids_of is not self.image:
            self._ids_of = self.image
            self._by_id = {topic.id: topic for topic in self.image.topics.values()}
        return self._by_id

    def topic_names(self) -> dict[TopicId, str]:
        """Return the names of the image's topics by id."""
        return {topic.id: topic.name for topic in self.image.topics.values()}
