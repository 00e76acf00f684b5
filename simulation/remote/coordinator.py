"""One of several coordinators: the released shard, journal and coordination, in a process that stops and crashes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kohort.broker.shards import GroupShards
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.journal.journal_partition import JournalSettings
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.cluster.shard_ownership import ShardOwnership
from kohort.cluster.zookeeper.service import SESSION_MS, ZooKeeperCoordination
from kohort.coordinator.shard import Phase, Shard
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects
from kohort.groups.events import TopicImage
from kohort.groups.machine import GroupMachine
from simulation.checkers.group_checkers import Checkers
from simulation.harness.driver import VirtualDriver
from simulation.harness.network import Connection, Network
from simulation.harness.push_gate import PushGate, Respond
from simulation.harness.server import Answer, Server
from simulation.harness.world import Chance, World
from simulation.remote.kafka import TOPIC, Kafka
from simulation.remote.kafka_client import KafkaClient
from simulation.remote.life import ProcessLife
from simulation.remote.loop import VirtualLoop, with_loop
from simulation.remote.partition import Author
from simulation.remote.zookeeper import VirtualSession, ZooKeeper

TOKENS = 10_000_000
"""The range of request numbers of one coordinator."""
SUSPECTED_MS = 300
"""The maximum time until coordinators notice that another's process refuses connections."""


class LifeDriver(VirtualDriver):
    """The `Driver` of a process that may be stopped."""

    def __init__(self, world: World, chance: Chance, host: Coordinator, life: ProcessLife) -> None:
        super().__init__(world, chance, host, lambda: None)
        self._life = life
        self._coordinator = host

    def turn(self, action: Callable[[], object]) -> None:
        """Run an action as one turn of the process; while the process is stopped, postpone it."""
        self._life.turn(action)

    def handle_shard_loaded(self, index: int) -> None:
        """Implement `Driver.handle_shard_loaded`: pass the event on to the ownership of shards."""
        self._coordinator.ownership.record_shard_loaded(index)
        self._coordinator.on_shard_loaded()

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Implement `Driver.handle_shard_ended`: pass the event on to the ownership of shards."""
        self._world.log(f"{self._coordinator.name}: the shard has ended: {error}")
        self._coordinator.ownership.record_ended_shard(index, error)


class Coordinator(Server):
    """A candidate's process, with the only shard when the placement names it.

    Attributes:
        number: its candidate id.
        life: its process.
        coordination: its view of the placement.
        groups, ownership: its shard, as the placement assigns and removes it.
    """

    groups: GroupShards
    ownership: ShardOwnership

    def __init__(
        self,
        number: int,
        world: World,
        network: Network,
        places: tuple[Kafka, ZooKeeper],
        config: GroupConfig,
        checkers: Checkers,
        mutant: Any,
    ) -> None:
        """`places` are the Kafka cluster and the ZooKeeper that it uses."""
        super().__init__(world, network, None, config, checkers, mutant)  # type: ignore[arg-type]  # it has no disk
        self.number = number
        self.name = f"k{number}"
        self.chance = world.stream(self.name)
        self.kafka, self.zookeeper = places
        self.life = ProcessLife(world, self._turned)
        self.life.alive = False
        self.coordination: ZooKeeperCoordination | None = None
        self.session: VirtualSession | None = None
        self._token = number * TOKENS
        self._pushing = PushGate(self, f"10.0.1.{number}", 9_092)
        self._client: KafkaClient | None = None
        self._kafka_journal: KafkaJournal | None = None
        self._loop: VirtualLoop | None = None

    @property
    def candidate(self) -> Candidate:
        """Return the candidate as the other coordinators see it."""
        return Candidate(self.number, f"{self.number}-{self.incarnation}", f"10.0.1.{self.number}", 9_092)

    # -- the process

    def start(self) -> None:
        """Start the process."""
        self.incarnation += 1
        self.world.log(f"{self.name}: up, incarnation {self.incarnation}")
        life = self.life = ProcessLife(self.world, self._turned)
        self._driver = LifeDriver(self.world, self.chance, self, life)
        self._loop = loop = VirtualLoop(self.world, life)  # type: ignore[abstract]  # what it lacks is not called
        self._client = KafkaClient(self.world, self.chance, self.kafka, life, self.name)
        self.groups = GroupShards(self._next_token, self._make)
        self.groups.on_end = self._given_up
        with_loop(loop, lambda: loop.create_task(self._enter(loop, life)))

    async def _enter(self, loop: VirtualLoop, life: ProcessLife) -> None:
        while True:
            coordination = ZooKeeperCoordination("zookeeper:2181", SESSION_MS)
            session = VirtualSession(self.zookeeper, self.name, life, loop, coordination._session_changed)
            coordination.session = session  # type: ignore[assignment]  # it stands for one
            coordination._mirror._session = session  # type: ignore[assignment]
            self.coordination, self.session = coordination, session
            try:
                await coordination.open(self.candidate, 1)
            except KafkaError as error:
                self.world.log(f"{self.name}: no place: {error.message}")
                continue
            self.ownership = ShardOwnership(loop, self.groups, coordination, self._open_journal)
            coordination.on_changes(partial(loop.call_soon, self._follow))  # type: ignore[arg-type]  # what it gives is not used
            self.ownership.start_owning(self.candidate)
            return

    def pause(self, duration_ms: int) -> None:
        """Stop the process for a while (SIGSTOP, SIGCONT)."""
        if self.life.alive and not self.life.paused:
            self.world.log(f"{self.name}: stopped for {duration_ms} ms")
            self.life.pause()
            self.world.after(duration_ms, partial(self.wake, self.life))

    def wake(self, life: ProcessLife | None = None) -> None:
        """Resume the process."""
        if life is None or life is self.life:
            if self.life.paused:
                self.world.log(f"{self.name}: wakes")
            self.life.wake()

    def crash(self, down_ms: int) -> None:
        """Crash, and restart after `down_ms`."""
        if not self.life.alive:
            return
        self.world.log(f"{self.name}: crashed, down for {down_ms} ms")
        self.life.die()
        assert self._client is not None
        assert self._loop is not None
        self._client.die()
        self._loop.die()
        self.coordination = self.session = self.shard = self._kafka_journal = None
        self.waiting.clear()
        self._holding.clear()
        for connection in list(self._connections.values()):
            connection.break_()
        self._connections.clear()
        self.world.after(down_ms, self.start)

    def retire(self, down_ms: int) -> None:
        """Hand the shard over, stop, and restart after `down_ms`."""
        coordination, loop, life = self.coordination, self._loop, self.life

        async def leave() -> None:
            assert coordination is not None
            await coordination.hand_over_and_leave()
            await self.ownership.wait_handed_over()
            self.world.after(0, lambda: self.crash(down_ms) if life is self.life else None)

        if coordination is not None and loop is not None and coordination.placement is not None:
            self.world.log(f"{self.name}: hands over")
            self.life.turn(lambda: with_loop(loop, lambda: loop.create_task(leave())))

    def suspect(self, other: Coordinator) -> None:
        """Notice that another coordinator's process refuses connections."""
        candidate, coordination, loop = other.candidate, self.coordination, self._loop

        def refuse() -> None:
            if (
                coordination is not None
                and loop is not None
                and coordination is self.coordination
                and coordination.placement is not None
            ):
                with_loop(loop, lambda: coordination.remove_dead_candidate(candidate))

        self.life.after(self.chance.upto(SUSPECTED_MS), refuse)

    # -- the shard

    def _follow(self) -> None:
        """Begin or end the shard, as the placement requires."""
        self.ownership.follow_placement()

    def _given_up(self, index: int) -> None:
        self.world.log(f"{self.name}: gives the shard up")
        self.shard = None

    def _open_journal(self, index: int) -> KafkaJournal:
        assert self._client is not None
        me = self.candidate
        settings = JournalSettings(
            coordinator=me.id, incarnation=me.incarnation, host=me.host, port=me.port, topic=TOPIC.name, partitions=1
        )
        self._kafka_journal = KafkaJournal(self._client, TOPIC, index, settings)
        return self._kafka_journal

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _make(self, index: int, term: int) -> Shard:
        assert self._driver is not None
        self.world.log(f"{self.name}: takes the shard over")
        journal = self.ownership.open_journal(index)
        self.shard = self.make_shard(index, journal, term, self.config, self._driver, self._watched)
        return self.shard

    @property
    def author(self) -> Author:
        """Return the producer id and epoch of its journal writes."""
        assert self._kafka_journal is not None
        figures = self._kafka_journal.metrics
        return Author(figures.producer_id, figures.epoch)

    @property
    def overtaken_ms(self) -> int | None:
        """Return the time since which another coordinator owns this one's journal; None: no other does."""
        return None if self._kafka_journal is None else self.kafka.partition.overtaken_ms(self.author)

    # -- what the checkers see: what one does that was overtaken, and can't be durable, counts for nothing

    def _seen(self, event: Any, do: Callable[[], Effects]) -> Effects:
        if self.overtaken_ms is None:
            return super()._seen(event, do)
        return do()

    def _on_loaded(self, machine: GroupMachine, on_loaded: Callable[[], Effects]) -> Effects:
        if self.overtaken_ms is None:
            self.checkers.on_journal(self.kafka.partition.records)
            return super()._on_loaded(machine, on_loaded)
        self._machine = machine
        return on_loaded()

    def _answered(self, token: int, value: Any) -> None:
        overtaken_ms = self.overtaken_ms
        if overtaken_ms is None or isinstance(value, ErrorCode):
            super()._answered(token, value)
            return
        known = self.waiting.pop(token, None)
        self._holding.pop(token, None)
        if known is None:
            return
        event, answer, came_ms = known
        try:
            self.checkers.on_overtaken(event, value, came_ms, overtaken_ms)
        except Exception as fault:
            self._fault = self._fault or fault
            raise
        answer(value)

    def _turned(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._loop is not None and self._loop.faults:
            raise self._loop.faults[0]
        shard = self.shard
        machine = self.machine
        if shard is None or machine is None or not self._stepped or shard.phase is not Phase.SERVING:
            return
        if shard.is_idle and self.overtaken_ms is None:
            self._stepped = False
            self.checkers.on_durable(machine, self.kafka.partition.records, self.waiting)

    # -- requests

    def receive(self, connection: Connection, event: Any, answer: Answer) -> None:
        """Receive a request, unless the process is stopped."""
        if not self.life.alive:
            connection.break_()
            return
        self.life.turn(partial(self._take, connection, event, answer))

    def _take(self, connection: Connection, event: Any, answer: Answer) -> None:
        if self.shard is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            super().receive(connection, event, answer)

    def receive_frame(self, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a push member's frame, unless the process is stopped."""
        if not self.life.alive:
            connection.break_()
            return
        self.life.turn(partial(self._pushing.receive, connection, memoryview(frame)[4:], respond))

    def on_closed(self, connection_id: int) -> None:
        """Notice the end of a connection at the coordinator's side."""
        if self.life.alive:
            self.life.turn(partial(super().on_closed, connection_id))

    def change_topics(self, image: TopicImage, deleted: str | None = None) -> None:
        """Change the topics; the coordinator notices at its next poll."""
        self.life.turn(partial(super().change_topics, image, deleted))
        self.image = image
