"""A reading application: it polls, commits, seeks, pauses, and is killed and restarted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.effects import (
    AwaitCoroutine,
    CallApplication,
    DecodeRecordSets,
    RunningScript,
    Script,
    WaitUntil,
)
from kohort.client.consumer.records import Records
from kohort.client.consumer.subscription import FetchPosition
from kohort.client.offsets import OffsetAndMetadata
from kohort.client.settings import ConsumerConfig, client_config
from kohort.columns import decode
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from simulation.clients.broker import NODES, Brokers
from simulation.clients.checkers import ClientChecker, from_callback
from simulation.clients.views import COMMITTED, EARLIEST, LATEST, View
from simulation.harness.world import ScheduledCall, World
from simulation.remote.kafka import FIRST_PORT, HOST
from simulation.remote.kafka_client import KafkaClient
from simulation.remote.life import ProcessLife

GROUP = "g"
SERVERS = ",".join(f"{HOST}:{FIRST_PORT + node}" for node in NODES)
SETTINGS: dict[str, Any] = {
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 250,
    "retry_backoff_ms": 50,
    "socket_connection_setup_timeout_ms": 1_500,
    "request_timeout_ms": 4_000,
    "metadata_max_age_ms": 10_000,
}
POLL_MS = 400
DECODE_MS = 5
"""The maximum time of decoding, while the client's own thread continues."""
WORK_MS = (0, 0, 5, 300)
"""The maximum times of the application's work between two polls."""
COMMITS = (0.0, 0.2, 0.6)
"""The probabilities of a commit after a poll."""


class ReadingApplication:
    """A reading application, with one consumer at a time.

    Attributes:
        name: the application's name.
        views: the partitions that it reads.
        life: the number of its current process.
    """

    def __init__(self, name: str, world: World, brokers: Brokers, checkers: list[ClientChecker]) -> None:
        self.name = name
        self.world = world
        self.brokers = brokers
        self.checkers = checkers
        self.chance = world.stream(name)
        self.views: dict[TopicPartition, View] = {}
        self.seen: dict[tuple[str, TopicPartition], View] = {}
        self.healthy = False
        self._committed_only = self.chance.likely(0.6)
        self._reset = self.chance.choice((EARLIEST, EARLIEST, LATEST))
        self._commits = self.chance.choice(COMMITS)
        self._auto = self.chance.likely(0.3)
        self._work_ms = self.chance.choice(WORK_MS)
        self._limit = self.chance.choice((5, 20, 500, None))
        self._lives = 0
        self._partitions: tuple[TopicPartition, ...] = ()
        self._paused: set[TopicPartition] = set()
        self._started = False
        self.life = ProcessLife(world, lambda: None)

    # Steps.

    def start(self) -> None:
        """Start a new process with a new consumer."""
        self._lives += 1
        self.reader = f"{self.name}.{self._lives}"
        self.life = ProcessLife(self.world, self._turned)
        settings = {
            **SETTINGS,
            "group_id": GROUP,
            "client_id": self.reader,
            "isolation_level": "read_committed" if self._committed_only else "read_uncommitted",
            "auto_offset_reset": self._reset,
            "enable_auto_commit": self._auto,
            "auto_commit_interval_ms": 700,
            "max_poll_records": 500 if self._limit is None else self._limit,
            "fetch_max_wait_ms": 200,
            "default_api_timeout_ms": 15_000,
        }
        config = client_config(ConsumerConfig, SERVERS, settings)
        self._client = KafkaClient(self.world, self.chance, self.brokers, self.life, self.reader, config)
        self._core = ConsumerCore(self._client.cluster, config)
        self._queue: list[Callable[[], None]] = []
        self._waiting: tuple[WaitUntil, Callable[[Any], None]] | None = None
        self._deadline: ScheduledCall | None = None
        self._number = 0
        self.views = {}
        self._paused = set()
        self._started = True
        self._do(partial(self._assign, self._partitions))
        self.life.turn(self._between_polls)

    def crash(self) -> None:
        """Kill the process."""
        if self._started:
            self.world.log(f"{self.reader}: is killed")
            self.life.die()
            self._client.die()
            self._started = False

    def assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Read these partitions from now on."""
        self._partitions = partitions
        self._do(lambda: self._assign(partitions))

    def seek(self, partition: TopicPartition, share: float) -> None:
        """Seek to a place between the beginning and the end."""

        def seek() -> None:
            if partition not in self.views:
                return
            offset = int(self.brokers.partitions[partition].end * share)
            self.world.log(f"{self.reader}: seeks to {offset} of {partition}")
            self._core.seek(partition, FetchPosition(offset))
            self.views[partition].expect(offset)

        self._do(seek)

    def seek_to(self, partition: TopicPartition, where: str) -> None:
        """Seek to the beginning or the end."""

        def seek() -> None:
            if partition in self.views:
                self.world.log(f"{self.reader}: seeks to the {where} of {partition}")
                self._core.seek_to([partition], where)
                self.views[partition].begin(where, self.world.now_ms)

        self._do(seek)

    def pause(self, partition: TopicPartition, duration_ms: int) -> None:
        """Pause a partition for a while."""

        def pause() -> None:
            if partition in self.views:
                self._core.pause([partition])
                self._paused.add(partition)
                self.life.after(duration_ms, lambda: self._queue.append(partial(self._resume, partition)))

        self._do(pause)

    def _do(self, action: Callable[[], None]) -> None:
        """Run an action before the next poll: only one thread may use a consumer."""
        if self._started:
            self._queue.append(action)

    # Its loop.

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        if not partitions:
            return
        self.world.log(f"{self.reader}: reads {', '.join(map(str, partitions))}")
        self._core.assign(partitions)
        kept = {partition: view for partition, view in self.views.items() if partition in partitions}
        for partition in partitions:
            if partition not in kept:
                view = View(self.reader, self._committed_only, self._reset)
                before = self.seen.get((self.reader, partition))
                view.reach = 0 if before is None else before.reach
                view.begin(COMMITTED, self.world.now_ms)
                kept[partition] = self.seen[self.reader, partition] = view
        self.views = kept

    def _between_polls(self) -> None:
        self._client.cluster.runtime.set_time(self.world.now_ms)
        queue, self._queue = self._queue, []
        for action in queue:
            action()
        if not self.views:
            self.life.after(POLL_MS, self._between_polls)
            return
        if self._limit is not None and (taken := self._core.poll_without_waiting(self._limit)):
            self._returned(taken)
        else:
            self._run(self._core.poll(self._limit, self.world.now_ms + POLL_MS), self._returned)
        self._client.wake()

    def _returned(self, slices: Any) -> None:
        for record in Records(slices):
            partition = TopicPartition(record.topic, record.partition)
            view = self.views[partition]
            value = bytes(record.value or b"").decode()
            for checker in self.checkers:
                checker.on_returned(partition, view, record.offset, value)
            view.expect(record.offset + 1)
        self._look_at_positions()
        if slices and not self._auto and self.chance.likely(self._commits):
            self._commit()
        work_ms = self.chance.upto(self._work_ms)
        self.life.after(work_ms, self._between_polls)

    def _commit(self) -> None:
        self._number += 1
        number = self._number
        offsets = {
            partition: OffsetAndMetadata(position.offset, f"{number}", position.leader_epoch)
            for partition, position in self._core.partitions.positions().items()
        }

        def reported(committed: Any, error: KafkaError | None) -> None:
            if error is None:
                for checker in self.checkers:
                    from_callback(self.world, partial(checker.on_acknowledged, self.reader, list(committed), number))

        self.world.log(f"{self.reader}: commit {number}: { ({str(p): v.offset for p, v in offsets.items()}) }")
        self._core.commit_async(offsets, reported)

    # The driver of its consumer.

    def _run(self, script: Script[Any], then: Callable[[Any], None]) -> None:
        self._step(RunningScript(script), then)

    def _step(self, running: RunningScript[Any], then: Callable[[Any], None]) -> None:
        try:
            effect = running.step()
        except KafkaError as error:
            self.world.log(f"{self.reader}: poll failed: {error}")
            self.life.after(50, self._between_polls)
            return
        if effect is None:
            then(running.value)
            return

        def resume_core(outcome: Any) -> None:
            running.store_result(outcome)
            self._step(running, then)
            self._client.wake()

        if isinstance(effect, DecodeRecordSets):
            given = effect
            self.life.after(self.chance.upto(DECODE_MS), lambda: resume_core(decode(given.sets, given.options)))
        elif isinstance(effect, CallApplication):
            resume_core(effect.function(effect.argument))
        elif isinstance(effect, AwaitCoroutine):
            task = self._client.cluster.runtime.spawn(effect.coro)
            task.on_done(lambda done: resume_core(done.result()))
        else:
            self._waiting = (effect, resume_core)
            self._deadline = self.life.after(effect.deadline_ms - self.world.now_ms, partial(self._ready, late=True))
            self._ready()

    def _ready(self, *, late: bool = False) -> None:
        if self._waiting is None:
            return
        effect, resume_core = self._waiting
        if (ready := effect.ready()) or late:
            self._waiting = None
            if self._deadline is not None:
                self._deadline.cancel()
            self.life.after(0, lambda: resume_core(ready))

    def _turned(self) -> None:
        """Pass the consumer's positions to the checkers after each event of its process."""
        self._look_at_positions()
        self._ready()

    def _look_at_positions(self) -> None:
        for partition, position in self._core.partitions.positions().items():
            view = self.views.get(partition)
            if view is None:
                continue
            if view.expected is None:
                for checker in self.checkers:
                    checker.on_found(partition, view, position.offset)
                view.expect(position.offset)
            else:
                for checker in self.checkers:
                    checker.on_position(partition, view, position.offset)

    def restart(self, down_ms: int) -> None:
        """Kill the process, and start another a while later."""
        if self._started:
            self.crash()
            self.world.after(down_ms, lambda: None if self._started else self.start())

    def heal(self) -> None:
        """After the fault phase, start the application if it has not begun, and resume all paused partitions."""
        if not self._started:
            self.start()
        for partition in list(self._paused):
            self._do(partial(self._resume, partition))

    def _resume(self, partition: TopicPartition) -> None:
        self._paused.discard(partition)
        if partition in self.views:
            self._core.resume([partition])
