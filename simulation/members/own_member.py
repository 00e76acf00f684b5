"""Members that are kohort's own client: its state machines and its frames, in virtual time on the faulty network."""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from kohort.client.group.classic import ClassicMembership
from kohort.client.group.kip848 import ConsumerMembership
from kohort.client.group.membership import Membership, Subscription
from kohort.client.group.push import PushMembership
from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import CloseConnection, OpenConnection, SendFrame
from kohort.client.net.runtime import Task
from kohort.client.offsets import OffsetAndMetadata, commit_offsets
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.ids import TopicPartition
from simulation.checkers.group_checkers import Checkers
from simulation.checkers.property import ViolatedError
from simulation.harness.assigning import pattern_of
from simulation.harness.gate import HOST, PORT, Gate
from simulation.harness.habits import Habits
from simulation.harness.network import Connection, Network
from simulation.harness.world import ScheduledCall, World
from simulation.members.client import FAREWELL_MS
from simulation.members.process import FINDING_MS, Process

logging.getLogger("kohort.client").addHandler(logging.NullHandler())
MEMBERSHIPS: Mapping[str, type[Membership]] = {
    "classic": ClassicMembership,
    "consumer": ConsumerMembership,
    "push": PushMembership,
}


class OwnMember(Process):
    """A `kohort.Consumer` of one of the protocols, without the fetching of records.

    Attributes:
        gate: the coordinator's entrance; set before the start.
        memberships: the client's membership classes by protocol, or faulty ones.
        leaving: whether it was closed.
        frozen_until_ms: the process is stopped until then, since it last read its clock.
        unplaced: its partitions without a start position yet.
    """

    gate: Gate
    memberships: Mapping[str, type[Membership]] = MEMBERSHIPS
    protocol = "classic"

    def __init__(self, name: str, habits: Habits, world: World, network: Network, checkers: Checkers) -> None:
        super().__init__(name, habits, world, network, checkers)
        self.leaving = False
        self._sockets: dict[int, Connection] = {}
        self._due: ScheduledCall | None = None
        self._driving = False
        self._releasing = False
        self._membership: Membership | None = None
        self._cluster: Cluster | None = None
        self._tasks: list[Task[Any]] = []
        self.frozen_until_ms = 0
        self.unplaced: frozenset[TopicPartition] = frozenset()
        self._freeze_after = self._freeze_ms = 0
        self._unsent: list[Any] = []

    def _begin(self) -> None:
        habits = self.habits
        settings = {
            "group_id": habits.group_id,
            "group_instance_id": habits.instance_id,
            "client_id": self.name,
            "session_timeout_ms": self.session_ms,
            "heartbeat_interval_ms": habits.heartbeat_ms,
            "max_poll_interval_ms": habits.rebalance_timeout_ms,
            "partition_assignment_strategy": list(habits.strategies),
            "group_protocol": self.protocol,
            "client_rack": habits.rack or "",
            "metadata_max_age_ms": 10_000,
            "request_timeout_ms": 5_000,
        }
        if habits.finds_starts:
            settings["auto_offset_reset"] = "none"
        if self.protocol == "consumer":
            settings["group_remote_assignor"] = habits.assignor
        config = client_config(ConsumerConfig, f"{HOST}:{PORT}", settings)
        self._cluster = cluster = Cluster(config)
        cluster.runtime.set_time(self._clock_ms)
        cluster.runtime.clock_with_sleep_ms = self._elapsed_ms
        spawn = cluster.runtime.spawn

        def remembered(coro: Coroutine[Any, Any, Any], name: str = "") -> Task[Any]:
            task = spawn(coro, name)
            self._tasks.append(task)
            return task

        cluster.runtime.spawn = remembered  # type: ignore[method-assign]
        cluster.connections.jitter = self.chance.random
        more = {} if self.protocol == "classic" else {"new_member_id": self._new_member_id}
        kind = self.memberships.get(self.protocol, MEMBERSHIPS[self.protocol])
        self._membership = kind(cluster, config, changed=self._changed, requires_polling=False, **more)
        self._subscribed()

    def _subscribed(self) -> None:
        if self._membership is None or self.leaving:
            return
        pattern = f"^{pattern_of(self.topics)}$" if len(self.name) % 2 == 0 else None
        self._membership.subscribe(Subscription(() if pattern is not None else self.topics, pattern=pattern))
        self._drive()

    def _new_member_id(self) -> str:
        return f"{self.name}-{self.chance.getrandbits(32):08x}"

    def leave(self) -> None:
        """Close the consumer."""
        self.world.log(f"{self.name}: leaves")
        if self._membership is None:
            self.dead = True
            return
        self.leaving = True
        self._spawn(self._commit_held(self.held))
        self._spawn(self._membership.leave("closed"))
        self._drive()
        self.world.after(FAREWELL_MS, self.crash)

    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Request fresh metadata."""
        if self._cluster is not None and not self.dead:
            self._cluster.request_metadata()
            self._awake(self._drive)

    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """Ignore the error of a commit; only the membership decides."""

    def owns(self, partition: TopicPartition) -> bool:
        """Return whether it would process this partition now: it is assigned, and the lease has not expired.

        Partitions of an expired session are not assigned any more.
        """
        membership = self._membership
        if partition not in self.held or self.dead or self.paused or self.leaving or membership is None:
            return False
        return membership.owns and partition.topic not in membership.recreated_topics()

    @property
    def _clock_ms(self) -> float:
        """Return the member's own clock."""
        return self.world.now_ms * self.habits.clock_rate

    def freeze(self, looks: int, duration_ms: int) -> None:
        """Stop the process after a number of readings of the clock, with the data taken from its sockets."""
        self._freeze_after, self._freeze_ms = looks, duration_ms

    def _elapsed_ms(self) -> float:
        """Return the member's clock; the process may have been stopped since the last reading."""
        if self._freeze_after:
            self._freeze_after -= 1
            if not self._freeze_after:
                self.frozen_until_ms = self.world.now_ms + self._freeze_ms
        return max(self.world.now_ms, self.frozen_until_ms) * self.habits.clock_rate

    @property
    def _is_frozen(self) -> bool:
        return self.world.now_ms < self.frozen_until_ms

    # The client's levels, as its application sees them.

    def _changed(self) -> None:
        membership = self._membership
        if membership is None:
            return
        identity = membership.identity()
        self.member_id, self.generation = identity.member_id, identity.generation
        held = frozenset(membership.assignment.partitions)
        if membership.revocation is not None and membership.revocation.lost:
            held = frozenset()
        if held != self.held:
            self._hold(held)
            if self.habits.finds_starts:
                self.unplaced = held - membership.starts.keys()
                if self.unplaced:
                    self._later(self.chance.upto(FINDING_MS), self._find_starts)
        if membership.revocation is not None and not self._releasing:
            self._releasing = True
            revocation = membership.revocation
            if not revocation.lost and self.habits.commits_on_revocation:
                self._spawn(self._commit_held(frozenset(revocation.partitions)))
            self._later(self.chance.upto(self.habits.callback_ms), self._release)

    def _find_starts(self) -> None:
        """Choose start positions for partitions started without an offset, and commit them."""
        found, self.unplaced = self.unplaced, frozenset()
        self._commit(found)

    def _release(self) -> None:
        self._releasing = False
        if self._membership is not None:
            self._membership.release()
            self._drive()

    def _look(self) -> None:
        """Check the membership after each step: take its error, and end the process if it was fenced."""
        membership = self._membership
        if membership is None:
            return
        error = membership.take_error()
        if error is not None and isinstance(error.__cause__, ViolatedError):
            raise error.__cause__  # what a checker finds while the client works is no error of the client's
        if isinstance(error, FencedError) or (error is not None and error.code is ErrorCode.GROUP_MAX_SIZE_REACHED):
            self._fatal(error.code)
            self.crash()
        self.stable = membership.holds_assignment and not self.leaving
        identity = membership.identity()
        self.member_id, self.generation = identity.member_id, identity.generation

    def _commit(self, partitions: frozenset[TopicPartition]) -> None:
        if self._membership is not None and not self.leaving:
            self._spawn(self._commit_held(partitions))
            self._drive()

    async def _commit_held(self, partitions: frozenset[TopicPartition]) -> None:
        if self._cluster is None or self._membership is None:
            return
        replaced = self._membership.recreated_topics()  # of those a consumer has no position
        kept = sorted(partition for partition in partitions - self.unplaced if partition.topic not in replaced)
        if not kept:
            return
        values = {partition: OffsetAndMetadata(self.checkers.fresh_offset()) for partition in kept}
        with suppress(KafkaError):  # the checkers look at what was acknowledged
            await commit_offsets(self._cluster, self.group_id, values, self._membership.identity(), 5_000)

    # The driver: sockets and time.

    def _spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        if self._cluster is None:
            coro.close()
        else:
            self._cluster.runtime.spawn(coro)

    def wake(self) -> None:
        """Resume, reading the clock first, as every driver does."""
        if self._is_frozen:
            return  # its clock has gone on already
        super().wake()
        if not self.dead and not self.paused:
            self._drive()

    def _drive(self) -> None:
        cluster = self._cluster
        if cluster is None or self._driving or self.dead or self.paused:
            return
        self._driving = True
        runtime = cluster.runtime
        runtime.advance(self._clock_ms)
        while commands := self._unsent + cluster.connections.take_commands():
            self._unsent = []
            if self._is_frozen:
                self._unsent = commands
                break
            for command in commands:
                self._do(command)
            runtime.advance(self._clock_ms)
        self._driving = False
        if self._is_frozen and not self.paused:
            self.pause(self.frozen_until_ms - self.world.now_ms)
        self._look()
        due = runtime.next_deadline_ms()
        if self._due is not None:
            self._due.cancel()
        if due is None:
            self._due = None
        else:
            self._due = self.world.after(math.ceil((due - self._clock_ms) / self.habits.clock_rate), self._on_time)

    def _on_time(self) -> None:
        self._awake(self._drive)

    def _do(self, command: Any) -> None:
        if isinstance(command, OpenConnection):
            link = command.link
            connection = self._sockets[link] = self.network.connect(
                self.name, partial(self._link_closed, link), self.chance, self.process
            )
            self.world.after(
                self.chance.upto(self.network.faults.delay_ms), partial(self._link_opened, link, connection)
            )
        elif isinstance(command, CloseConnection):
            if (closed := self._sockets.pop(command.link, None)) is not None:  # it may have ended while all stood still
                closed.break_()
        elif isinstance(command, SendFrame) and command.link in self._sockets:
            link, connection = command.link, self._sockets[command.link]
            frame = b"".join(bytes(part) for part in command.parts)

            def respond(answer: memoryview) -> None:
                connection.send_down(lambda: self._awake(partial(self._received, link, answer)))

            connection.send_up(lambda: self.gate.receive_frame(connection, frame, respond))

    def _link_opened(self, link: int, connection: Connection) -> None:
        def opened() -> None:
            if connection.open and link in self._sockets and self._cluster is not None:
                self._cluster.connections.on_link_opened(link)
                self._drive()

        self._awake(opened)

    def _received(self, link: int, answer: memoryview) -> None:
        if link in self._sockets and self._cluster is not None:
            self._cluster.connections.on_frame_received(link, answer)
            self._drive()

    def _link_closed(self, link: int) -> None:
        def closed() -> None:
            if self._sockets.pop(link, None) is not None and self._cluster is not None:
                self._cluster.connections.on_link_closed(link, "the connection was reset")
                self._drive()

        self._awake(closed)

    def crash(self) -> None:
        """Die without a word."""
        if not self.dead:
            self.world.log(f"{self.name}: {'is gone' if self.leaving else 'crashes'}")
        self.dead = True
        for connection in list(self._sockets.values()):
            connection.ended = True
            connection.break_()
        self.end()

    def end(self) -> None:
        """Cancel what is unfinished: nothing runs on in a process that has ended."""
        tasks, self._tasks = self._tasks, []
        for task in reversed(tasks):
            task.cancel()

    def cut(self) -> None:
        """Break the member's connections."""
        for connection in list(self._sockets.values()):
            connection.break_()


class OwnClassicMember(OwnMember):
    """A `kohort.Consumer` that speaks the classic protocol."""


class OwnConsumerMember(OwnMember):
    """A `kohort.Consumer` that speaks the consumer protocol."""

    protocol = "consumer"


class OwnPushMember(OwnMember):
    """A `kohort.Consumer` that speaks the push protocol."""

    protocol = "push"
    keeps_its_id = True
