"""The coordinator's shell in the simulation: steps a batch, appends once, releases replies when durable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.consumer import targets
from kohort.groups.events import (
    ConnectionLost,
    OffsetCommit,
    ReleaseHeld,
    Tick,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import Now, OffsetCommitReply, Outcome, Reply, ResolveRegexes, Told
from kohort.ids import NO_TOPIC_ID
from simulation.checkers import Checkers
from simulation.disk import Disk, DiskFailedError
from simulation.network import Connection, Network
from simulation.world import Happening, World


def match(regex: str, topics: Iterable[str]) -> list[str]:
    """What stands in for RE2."""
    return [topic for topic in topics if re.fullmatch(regex, topic)]


Answer = Callable[[Any], None]
WORK_MS = 60
SLOW_WORK, SLOW_WORK_MS = 0.1, 2_000
"""So often work takes up to so long: its result may be stale by then, also of an earlier coordinator."""


class Server:
    """One shard of a coordinator that crashes and comes back.

    Attributes:
        machine: None while the process is down.
        waiting: requests without an answer yet: token to (event, answer).
        incarnation: how often it has started.
    """

    def __init__(
        self, world: World, network: Network, disk: Disk, config: GroupConfig, checkers: Checkers, mutant: Any
    ) -> None:
        self.world = world
        self.chance = world.stream("server")
        self.network = network
        self.disk = disk
        self.config = config
        self.checkers = checkers
        self.make_machine: Callable[[GroupConfig], GroupMachine] = mutant or GroupMachine
        self.releases_before_durable = getattr(mutant, "releases_before_durable", False)
        self.machine: GroupMachine | None = None
        self.image = TopicImage()
        self.waiting: dict[int, tuple[Any, Answer, int]] = {}
        self.incarnation = 0
        self._connections: dict[int, Connection] = {}
        self._queue: list[Any] = []
        self._token = 0
        self._holding: dict[int, int] = {}
        self._producer_id = 0
        self._transactions: set[int] = set()
        self._ending: dict[int, bool] = {}
        self._tick: Happening | None = None
        self._draining = False
        network.receive = self.receive
        network.server_sees_close = self.on_closed

    @property
    def now(self) -> Now:
        """The shell's two clocks."""
        return Now(self.world.now_ms, self.world.wall_ms)

    def start(self) -> None:
        """Replay the journal and serve."""
        self.incarnation += 1
        machine = self.make_machine(self.config)
        for record in self.disk.records:
            machine.apply(record)
        self.checkers.on_replayed(machine)
        outcome = machine.on_loaded(self.now, self.image)
        self.checkers.on_loaded(machine, outcome)
        self.machine = machine
        self.world.tell(f"coordinator: up, incarnation {self.incarnation}, {len(self.disk.records)} records")
        self._finish([outcome])
        for producer_id in list(self._ending):
            if self.machine is not None:
                self._put_marker(producer_id)

    def crash(self, down_ms: int) -> None:
        """Die with everything that is not on disk; be back in `down_ms`."""
        if self.machine is None:
            return
        self.world.tell(f"coordinator: crashed, down for {down_ms} ms")
        self.machine = None
        self.waiting.clear()
        self._holding.clear()
        self._queue.clear()
        self._set_tick()
        for connection in list(self._connections.values()):
            connection.break_()
        self._connections.clear()
        self.world.after(down_ms, self.start)

    def receive(self, connection: Connection, event: Any, answer: Answer) -> None:
        """A request arrives."""
        if self.machine is None:
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
        self.waiting[self._token] = (event, answer, self.world.now_ms)
        if getattr(event, "hold_ms", 0):
            self._holding[self._token] = connection.id
        if held:
            self._put(ReleaseHeld(held))
        self._put(event)

    def _refused(self, event: OffsetCommit | TxnOffsetCommit) -> tuple[ErrorCode, ...]:
        """What the shell answers by itself: unknown topics, and a transaction that is not under way."""
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
        """The coordinator's end of a connection ends."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None and self.machine is not None:
            for token, (event, _, _) in list(self.waiting.items()):
                if getattr(event, "connection", None) == connection_id:
                    del self.waiting[token]
                    self._holding.pop(token, None)
            lease_ms = connection.lease_ms
            noticed = lease_ms > 0 or self.config.notice_disconnects == "all"
            ended = connection.process if noticed and connection.ended else ""
            self._put(ConnectionLost(connection_id, noticed, lease_ms, ended))

    def change_topics(self, image: TopicImage, deleted: str | None = None) -> None:
        """Topics were made, grew, or one was deleted."""
        self.image = image
        if self.machine is not None:
            self._put(TopicsChanged(image))
            if deleted is not None:
                self._put(TopicsDeleted((deleted,)))

    def begin_transaction(self) -> int:
        """A producer's transaction begins; its producer id. The transactions' own log is never lost here."""
        self._producer_id += 1
        self._transactions.add(self._producer_id)
        return self._producer_id

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Have the end marker written, however often that takes."""
        if producer_id in self._transactions:
            self._transactions.remove(producer_id)
            self._ending[producer_id] = commit
            if self.machine is not None:
                self._put_marker(producer_id)

    def _put_marker(self, producer_id: int) -> None:
        self._token += 1
        event = TransactionEnded(producer_id, 0, self._ending[producer_id], self._token)
        done = partial(self._ended, producer_id)
        self.waiting[self._token] = (event, done, self.world.now_ms)
        self._put(event)

    def _ended(self, producer_id: int, value: object) -> None:
        self._ending.pop(producer_id, None)

    def feed(self, event: Any) -> None:
        """An event of the shell's own."""
        if self.machine is not None:
            self._put(event)

    def _put(self, event: Any) -> None:
        self._queue.append(event)
        if not self._draining:
            self._draining = True
            self.world.after(self.chance.upto(2), self._drain)

    def _drain(self) -> None:
        self._draining = False
        machine = self.machine
        if machine is None:
            return
        events, self._queue = self._queue, []
        outcomes = []
        for event in events:
            outcome = machine.step(event, self.now)
            self.checkers.on_stepped(event, outcome, self.waiting)
            outcomes.append(outcome)
            self._retell(outcome)
        self._finish(outcomes)

    def _finish(self, outcomes: list[Outcome]) -> None:
        replies = [reply for outcome in outcomes for reply in outcome.replies]
        if self.releases_before_durable:
            self._release(replies)
        try:
            self.disk.append([outcome.records for outcome in outcomes])
        except DiskFailedError:
            self.crash(self.chance.upto(500))
            return
        if not self.releases_before_durable:
            self._release(replies)
        self._work(outcomes)
        if self.machine is not None:
            self.checkers.on_durable(self.machine, self.disk.records, self.waiting)
        self._set_tick()

    def _release(self, replies: list[Reply]) -> None:
        for token, value in replies:
            known = self.waiting.pop(token, None)
            self._holding.pop(token, None)
            if known is None:
                continue
            event, answer, _ = known
            self.checkers.on_released(event, value)
            answer(value)

    def _retell(self, outcome: Outcome) -> None:
        if not self.world.tells:
            return
        for note in outcome.notes:
            if isinstance(note, Told):
                self.world.tell(f"coordinator: {note.group_id}: {note.text}")

    def _work(self, outcomes: list[Outcome]) -> None:
        """Long work leaves the loop and comes back later, perhaps to another machine than asked for it."""
        for outcome in outcomes:
            for work in outcome.work:
                if isinstance(work, ResolveRegexes):
                    event: Any = targets.resolve(work, match)
                else:
                    event = targets.compute(work)
                longest_ms = SLOW_WORK_MS if self.chance.likely(SLOW_WORK) else WORK_MS
                self.world.after(self.chance.upto(longest_ms), partial(self.feed, event))

    def _set_tick(self) -> None:
        due = None if self.machine is None else self.machine.next_deadline_ms()
        tick = self._tick
        if tick is not None:
            if tick.at_ms == due and tick.action is not None:
                return
            tick.cancel()
        self._tick = None if due is None else self.world.after(due - self.world.now_ms, self._put_tick)

    def _put_tick(self) -> None:
        self._put(Tick())


def stamped(event: Any, token: int, connection: int) -> Any:
    """The request under its token; a client's own object, which no one else has, so that it may be written to."""
    if isinstance(event, tuple):
        return event._replace(request=token, connection=connection)  # type: ignore[attr-defined]
    object.__setattr__(event, "request", token)
    if hasattr(event, "connection"):
        object.__setattr__(event, "connection", connection)
    return event
