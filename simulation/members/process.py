"""A member's process: its partitions, its commits, and stops of the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from kohort.client.group.membership import Lease
from kohort.errors import ErrorCode
from kohort.groups.events import ConsumerGroupHeartbeat, Heartbeat, OffsetCommit, OffsetFetch, OffsetToCommit
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition
from kohort.io.processes import CLOCK_MARGIN, long_poll_max_ms
from simulation.checkers.group_checkers import Checkers
from simulation.harness.habits import Habits
from simulation.harness.network import Connection, Network
from simulation.harness.world import World
from simulation.members.client import Client

HEALTHY_MS = 2_000
"""The maximum time in which a healthy application releases its partitions."""
FINDING_MS = 3_000
"""The maximum time in which a member chooses its own start positions."""


class Process(Client, ABC):
    """The common part of members of all protocols.

    Attributes:
        held: its partitions.
        generation: the generation or member epoch in its commits.
        session_end_ms: when its session, or its lease before that, ends by its own clock.
        lease: the lease that ends ownership before the session, if a response named one.
        coordinator_lease_ms: the lease that the coordinator counts on, 0: none.
        stable: it owns its last assignment, and has no request to rejoin.
        keeps_its_id: as `Holder.keeps_its_id`.
    """

    keeps_its_id = False

    def __init__(self, name: str, habits: Habits, world: World, network: Network, checkers: Checkers) -> None:
        super().__init__(name, world, network)
        self.habits = habits
        self.checkers = checkers
        self.join_timeout_ms = habits.rebalance_timeout_ms + 5_000
        self.member_id = ""
        self.generation = -1
        self.held: frozenset[TopicPartition] = frozenset()
        self.session_ms = habits.session_timeout_ms
        self.session_end_ms = -1.0
        self.lease = Lease()
        self.coordinator_lease_ms = 0
        self.stable = False
        self.started_ms = -1
        self._round = 0
        self._ids: dict[str, TopicId] = {}
        self._taken: dict[TopicPartition, TopicId] = {}

    def start(self) -> None:
        """Start the process."""
        kind = type(self).__name__
        self.world.log(f"{self.name}: starts as {kind} in {self.group_id}, instance {self.instance_id}")
        self.started_ms = self.world.now_ms
        self._later(0, self._begin)
        self._later(self.habits.commit_ms, self._commit_now_and_then)

    @abstractmethod
    def _begin(self) -> None:
        """Join the group, and stay in it."""

    @abstractmethod
    def leave(self) -> None:
        """Revoke everything and leave the group."""

    @abstractmethod
    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Take fresh metadata."""

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Change the subscription."""

        def change() -> None:
            self.world.log(f"{self.name}: reads {', '.join(topics)}")
            self.habits = replace(self.habits, topics=topics)
            self._subscribed()

        self._awake(change)

    @abstractmethod
    def _subscribed(self) -> None:
        """Act on a changed subscription."""

    @abstractmethod
    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """Handle the error of a commit."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the member reads."""
        return self.habits.topics

    @property
    def instance_id(self) -> str | None:
        """The member's static id."""
        return self.habits.instance_id

    @property
    def group_id(self) -> str:
        """The member's group."""
        return self.habits.group_id

    def topic_of(self, partition: TopicPartition) -> TopicId:
        """Return the id that the partition's topic had when this partition was assigned."""
        return self._taken.get(partition, NO_TOPIC_ID)

    def owns(self, partition: TopicPartition) -> bool:
        """Return whether it would process this partition now."""
        exempt = self.dead or self.paused
        return partition in self.held and not exempt and self.world.now_ms < self.session_end_ms

    def pause(self, duration_ms: int) -> None:
        """Stop the process for a while (SIGSTOP, SIGCONT)."""
        self.world.log(f"{self.name}: paused for {duration_ms} ms")
        self.paused = True
        self.world.after(duration_ms, self.wake)

    def wake(self) -> None:
        """Resume, beginning with interrupted actions such as a commit."""
        if not self.paused or self.dead:
            return
        self.world.log(f"{self.name}: wakes")
        self.paused = False
        self._commit(self.held)
        self.checkers.on_hold(self)
        waiting, self._asleep = self._asleep, []
        for action in waiting:
            action()

    def heal(self) -> None:
        """Let the application behave well from now on."""
        self.habits = replace(self.habits, callback_ms=min(self.habits.callback_ms, HEALTHY_MS), never_stops=False)

    def set_lease(self, lease_ms: int, *, keeps: bool) -> None:
        """Take the lease from a response: the coordinator counts on it from then on."""
        self.coordinator_lease_ms = lease_ms
        self.lease.adopt_length(lease_ms if keeps else None)

    def _connect(self, channel: str) -> Connection:
        connection = super()._connect(channel)
        connection.lease_ms = self.coordinator_lease_ms
        return connection

    def _timeout_ms(self, event: Any) -> float:
        timeout = super()._timeout_ms(event)
        return (
            self.lease.response_timeout_ms(timeout)
            if isinstance(event, Heartbeat | ConsumerGroupHeartbeat)
            else timeout
        )

    def _hold_ms(self) -> int:
        """Return the maximum delay of a heartbeat's response."""
        return (
            min(self.habits.delay_ms, long_poll_max_ms(self.coordinator_lease_ms))
            if self.coordinator_lease_ms
            else self.habits.delay_ms
        )

    def _alive(self, sent_ms: int) -> None:
        """Renew the session from the time at which an accepted request was sent."""
        before, rate = self.session_end_ms, self.habits.clock_rate
        self.lease.renew(sent_ms * rate)
        session_ms = self.session_ms * (1 - CLOCK_MARGIN) if self.habits.keeps_lease else self.session_ms
        self.session_end_ms = max(before, min(sent_ms + session_ms / rate, self.lease.end_ms / rate))
        if before <= self.world.now_ms < self.session_end_ms:
            self.checkers.on_hold(self)

    def _hold(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions != self.held and self.world.tells:
            self.world.log(f"{self.name}: holds {sorted(map(str, partitions))} at generation {self.generation}")
        for partition in partitions - self.held:
            topic = partition.topic
            self._taken[partition] = self._ids.get(topic) or self.world.topic_ids.get(topic, NO_TOPIC_ID)
        self.held = partitions
        self.checkers.on_hold(self)

    def _fatal(self, error: ErrorCode) -> None:
        self.world.log(f"{self.name}: ends with {error.name}")
        self._hold(frozenset())
        self.dead = True

    def _commit_now_and_then(self) -> None:
        self._later(self.habits.commit_ms, self._commit_now_and_then)
        if self.stable:
            self._commit(self.held)

    def _commit(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit an offset of each partition, different from all committed before."""
        if not partitions or self.generation < 0:
            return
        event = self._to_commit(partitions)
        number, sent_ms = self._round, self.world.now_ms

        def take(reply: Any) -> None:
            if number == self._round and self.stable and reply.errors[0] is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._on_error(reply.errors[0], sent_ms)

        self._ask(event, take, self._nothing)

    def _to_commit(self, partitions: frozenset[TopicPartition]) -> OffsetCommit:
        offsets = tuple(
            OffsetToCommit(
                tp.topic, tp.partition, self.checkers.fresh_offset(), topic_id=self._ids.get(tp.topic, NO_TOPIC_ID)
            )
            for tp in sorted(partitions)
        )
        habits = self.habits
        return OffsetCommit(0, habits.group_id, self.member_id, self.generation, offsets, habits.instance_id)

    def _fetch_positions(self, partitions: frozenset[TopicPartition]) -> None:
        """Fetch committed offsets; the checkers examine the reply."""
        if partitions:
            named = self._named()
            fetch = OffsetFetch(0, self.habits.group_id, tuple(sorted(partitions)), self.habits.require_stable, *named)
            self._ask(fetch, self._nothing, self._nothing)

    def _named(self) -> tuple[str | None, int]:
        """Return the member id and epoch for OffsetFetch: the classic protocol names none."""
        return None, -1
