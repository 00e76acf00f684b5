"""The coordinator's process in the simulation: the released shard, in a process that crashes and restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import force_setattr

from kohort.coordinator.shard import Phase, Shard
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import BackgroundTask, Effects, Now, OffsetCommitReply, Push
from kohort.groups.events import (
    ConnectionLost,
    GroupSettings,
    OffsetCommit,
    ReleaseLongPolls,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import Record
from kohort.ids import NO_TOPIC_ID
from kohort.io.age_clock import AgeClock
from simulation.harness.disk import Disk, DiskJournal
from simulation.harness.driver import VirtualDriver
from simulation.harness.network import Connection, Network
from simulation.harness.world import World

Answer = Callable[[Any], None]
Waiting = Mapping[int, tuple[Any, Any, int]]
"""Unanswered requests: token to (event, answer, time of arrival)."""
AGAIN_MS = 200
"""The delay before a request of the process itself is repeated after a rejection."""
AWAY_MS = 2_000
"""The maximum time until a fenced coordinator becomes the leader again."""


class Observer(Protocol):
    """The checkers of a run, which are shown every step of the coordinator."""

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        """Check a step before its records are durable."""

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        """Check the state after an append is durable."""

    def on_released(self, event: Any, value: Any) -> None:
        """Check a reply that leaves."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        """Check the refusal of a request."""

    def on_replayed(self, machine: GroupMachine) -> None:
        """Check a machine that has replayed the journal."""

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        """Check the first step after a load."""

    def on_worked(self, work: Any, event: Any) -> None:
        """Check the result of a background task."""

    def on_journal(self, records: list[Record]) -> None:
        """Check the records of a journal on Kafka before they are loaded."""

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """Check a reply of a coordinator that another one has replaced, since `since_ms`."""


class Server:
    """A coordinator with one shard that crashes and restarts.

    Attributes:
        shard: None while the process is down.
        waiting: unanswered requests: token to (event, answer, time of arrival).
        incarnation: the number of its starts.
        unseen: topics created while the shard did not serve, as the broker's catalog names them.
    """

    def __init__(
        self, world: World, network: Network, disk: Disk, config: GroupConfig, checkers: Observer, mutant: Any
    ) -> None:
        """`mutant` is a faulty machine, or a faulty shard."""
        self.world = world
        self.chance = world.stream("server")
        self.network = network
        self.disk = disk
        self.config = config
        self.checkers = checkers
        is_shard = isinstance(mutant, type) and issubclass(mutant, Shard)
        self.make_shard: type[Shard] = mutant if is_shard else Shard
        self.make_machine: Callable[[GroupConfig], GroupMachine] = GroupMachine if is_shard or not mutant else mutant
        self.shard: Shard | None = None
        self.image = TopicImage()
        self.unseen: set[str] = set()
        self.push: Callable[[Push], None] = lambda push: None
        self.on_shard_loaded: Callable[[], object] = lambda: None
        self.waiting: dict[int, tuple[Any, Answer, int]] = {}
        self.incarnation = 0
        self._driver: VirtualDriver | None = None
        self._journal: DiskJournal | None = None
        self._machine: GroupMachine | None = None
        self._deposed: Shard | None = None
        self._stepped = False
        self._fault: Exception | None = None
        self._connections: dict[int, Connection] = {}
        self._token = 0
        self._holding: dict[int, int] = {}
        self._producer_id = 0
        self._transactions: set[int] = set()
        self._ending: dict[int, bool] = {}
        network.receive = self.receive
        network.server_sees_close = self.on_closed

    def pass_weeks(self) -> None:
        """Let the process take a jump of the wall clock for time that has passed."""
        if self._machine is not None:
            self._machine.context.ages = AgeClock(self.world.wall_ms, self.world.now_ms)

    @property
    def machine(self) -> GroupMachine | None:
        """Return the machine that serves; None while it loads, and while the process is down."""
        return self._machine if self.shard is not None and self.shard.is_loaded else None

    def may_create(self, topic: str) -> bool:
        """Return whether a topic can be created now: the broker is up, and earlier deletions have been answered.

        The topic counts as created from then on.
        """
        shard, driver = self.shard, self._driver
        if shard is None or driver is None:
            return False
        pending: list[bool] = []
        driver.turn(lambda: pending.append(shard.process_queued_events()))
        if self.shard is None or pending[0]:
            return False
        if not self.shard.is_loaded:
            self.unseen.add(topic)
        return True

    def start(self) -> None:
        """Start the process."""
        self.incarnation += 1
        self.world.log(f"coordinator: up, incarnation {self.incarnation}, {len(self.disk.records)} records")
        driver = self._driver = VirtualDriver(self.world, self.chance, self, self._turned)
        try:
            log = self.disk.start(self._die)
        except OSError as error:
            self.world.log(f"coordinator: can't open its log, {error}")
            self._die()
            return
        self._journal = DiskJournal(self.disk, log, driver.turn)
        driver.turn(self._become_leader)
        for producer_id in list(self._ending):
            driver.turn(partial(self._put_marker, producer_id))

    def _become_leader(self) -> None:
        """Begin a term of the shard, also in a process whose last term has ended."""
        assert self._driver is not None
        assert self._journal is not None
        self.shard = self.make_shard(
            0, self._journal, self._journal.next_term, self.config, self._driver, self._watched
        )
        self.shard.start_loading()

    def _watched(self, config: GroupConfig) -> GroupMachine:
        """Make a machine whose steps the checkers see."""
        machine = self.make_machine(config)
        step, on_loaded = machine.step, machine.on_loaded

        def loaded(
            now: Now,
            image: TopicImage,
            settings: Mapping[str, GroupSettings] = MappingProxyType({}),
            ownership_proof_ms: int = 0,
        ) -> Effects:
            load = partial(on_loaded, now, image, settings, ownership_proof_ms)
            return self._seen(None, lambda: self._on_loaded(machine, load))

        def stepped(event: Any, now: Now) -> Effects:
            return self._seen(event, lambda: step(event, now))

        machine.on_loaded, machine.step = loaded, stepped  # type: ignore[method-assign]
        return machine

    def _on_loaded(self, machine: GroupMachine, on_loaded: Callable[[], Effects]) -> Effects:
        self.checkers.on_replayed(machine)
        self._machine = machine
        outcome = on_loaded()
        self.checkers.on_loaded(machine, outcome)
        return outcome

    def _seen(self, event: Any, do: Callable[[], Effects]) -> Effects:
        """Run a step; an exception in it, or a violation, ends the run, whatever the shard does with it."""
        self._stepped = True
        try:
            outcome = do()
            if event is not None:
                self.checkers.on_stepped(event, outcome, self.waiting)
        except Exception as fault:
            self._fault = self._fault or fault
            raise
        return outcome

    def _turned(self) -> None:
        """Check the shard after each of its turns."""
        if self._fault is not None:
            raise self._fault
        shard = self.shard
        if shard is None:
            return
        if shard.phase is Phase.FENCED and shard is not self._deposed:
            self._deposed = shard
            self._later(self.chance.upto(AWAY_MS), self._become_leader)
        if self._stepped and self.machine is not None and shard.is_idle:
            self._stepped = False
            self.checkers.on_durable(self.machine, self.disk.records, self.waiting)

    def worked(self, work: BackgroundTask, event: Any) -> None:
        """Implement `Host.worked`."""
        self.checkers.on_worked(work, event)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run an action as a turn of this process, if it lives that long."""
        assert self._driver is not None
        self.world.after(delay_ms, partial(self._driver.turn, action))

    def _die(self) -> None:
        self.crash(self.chance.upto(500))

    def crash(self, down_ms: int) -> None:
        """Crash: lose everything that is not on disk; restart after `down_ms`."""
        if self._driver is None or not self._driver.alive:
            return
        self.world.log(f"coordinator: crashed, down for {down_ms} ms")
        self._driver.alive = False
        if self._journal is not None:
            self._journal.abandon()
        self._journal = None
        self.disk.stop()
        self.shard = None
        self.waiting.clear()
        self._holding.clear()
        for connection in list(self._connections.values()):
            connection.break_()
        self._connections.clear()
        self.world.after(down_ms, self.start)

    def reload(self, away_ms: int) -> None:
        """Lose the shard and load it again in the same process, at once or later: all connections stay."""
        shard, driver = self.shard, self._driver
        if shard is None or driver is None or not shard.is_loaded:
            return
        self.world.log(f"coordinator: the shard is lost, and loads again in {away_ms} ms")
        if away_ms:
            self._later(away_ms, self._become_leader)
        driver.turn(shard.close if away_ms else shard.start_loading)

    def receive(self, connection: Connection, event: Any, answer: Answer) -> None:
        """Receive a request."""
        if self.shard is None:
            connection.break_()
            return
        self._connections[connection.id] = connection
        if isinstance(event, OffsetCommit | TxnOffsetCommit):
            refused = self._refused(event)
            if any(refused):
                answer(OffsetCommitReply(refused))
                return
        self._token += 1
        event = stamped(event, self._token, connection.id)
        held = tuple([token for token, on in self._holding.items() if on == connection.id]) if self._holding else ()
        if getattr(event, "delay_ms", 0):
            self._holding[self._token] = connection.id
        if held:
            self.shard.queue_event(ReleaseLongPolls(held))
        self._ask(event, answer)

    def _ask(self, event: Any, answer: Answer) -> None:
        """Pass an event that has its token to the shard."""
        assert self.shard is not None
        self.waiting[event.request] = (event, answer, self.world.now_ms)
        self.shard.ask(event, partial(self._answered, event.request))

    def _answered(self, token: int, value: Any) -> None:
        """Take the shard's answer: a reply, or the code that rejects the request."""
        known = self.waiting.pop(token, None)
        self._holding.pop(token, None)
        if known is None or self.shard is None:
            return
        event, answer, _ = known
        try:
            if isinstance(value, ErrorCode):
                self.checkers.on_refused(event, value, self.shard.phase)
            else:
                self.checkers.on_released(event, value)
        except Exception as fault:
            self._fault = self._fault or fault
            raise
        answer(value)

    def _refused(self, event: OffsetCommit | TxnOffsetCommit) -> tuple[ErrorCode, ...]:
        """Return the errors that the broker itself reports: unknown topics, and a transaction that is not open."""
        if isinstance(event, TxnOffsetCommit) and event.producer_id not in self._transactions:
            return (ErrorCode.INVALID_TXN_STATE,) * len(event.offsets)
        topics = self.image.topics
        errors = []
        for offset in event.offsets:
            topic = topics.get(offset.topic)
            if topic is None:
                errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif offset.topic_id not in (NO_TOPIC_ID, topic.id):
                errors.append(ErrorCode.UNKNOWN_TOPIC_ID)
        return tuple(errors[:1]) * len(event.offsets)

    def on_closed(self, connection_id: int) -> None:
        """Notice the end of a connection at the coordinator's side."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None and self.shard is not None:
            for token, (event, _, _) in list(self.waiting.items()):
                if getattr(event, "connection", None) == connection_id:
                    del self.waiting[token]
                    self._holding.pop(token, None)
            lease_ms = connection.lease_ms
            noticed = lease_ms > 0 or self.config.notice_disconnects == "all"
            ended = connection.process if noticed and connection.ended else ""
            self.shard.queue_event(ConnectionLost(connection_id, noticed, lease_ms, ended))

    def change_topics(self, image: TopicImage, deleted: str | None = None) -> None:
        """Publish the topics after a creation, growth or deletion."""
        self.image = image
        if self.shard is not None:
            self.shard.queue_event(TopicsChanged(image))
            if deleted is not None:
                self.shard.queue_event(TopicsDeleted((deleted,)))

    def begin_transaction(self) -> int:
        """Begin a transaction; return its producer id. The transaction coordinator's own log is never lost."""
        self._producer_id += 1
        self._transactions.add(self._producer_id)
        return self._producer_id

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Write the end marker, with as many attempts as necessary."""
        if producer_id in self._transactions:
            self._transactions.remove(producer_id)
            self._ending[producer_id] = commit
            if self.shard is not None:
                self._put_marker(producer_id)

    def _put_marker(self, producer_id: int) -> None:
        self._token += 1
        event = TransactionEnded(producer_id, 0, self._ending[producer_id], self._token)
        self._ask(event, partial(self._ended, producer_id))

    def _ended(self, producer_id: int, value: object) -> None:
        if isinstance(value, ErrorCode):
            self._later(AGAIN_MS, partial(self._put_marker, producer_id))
        else:
            del self._ending[producer_id]


def stamped(event: Any, token: int, connection: int) -> Any:
    """Set a request's token and connection; a client's own object is changed in place, because no one else has it."""
    if isinstance(event, tuple):
        return event._replace(request=token, connection=connection)  # type: ignore[attr-defined]
    force_setattr(event, "request", token)
    if hasattr(event, "connection"):
        force_setattr(event, "connection", connection)
    return event
