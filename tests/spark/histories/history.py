"""Plays one history: topics, applications and what befalls them, on a broker; then everything heals."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.histories.check import violations
from tests.spark.histories.nursery import Nursery
from tests.spark.histories.plan import Application, Event, Plan, Turn, draw, healthy, source_options
from tests.spark.histories.settings import Life
from tests.spark.histories.story import JOURNAL, Story, read_application, read_journal

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import OffsetRange

BROKER = {
    "auto.create.topics.enable": False,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 1 << 30,
    "group.min.session.timeout.ms": 100,
    "group.consumer.session.timeout.ms": 1_500,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.heartbeat.interval.ms": 60,
    "group.consumer.min.heartbeat.interval.ms": 20,
    "group.unsettled.heartbeat.interval.ms": 20,
    "group.disconnect.lease.ms": 1_000,
}
"""Sessions that a pause outlasts; those who are killed are missed at once. The groups' journal is one segment, which
compaction leaves alone: the checker reads all of it."""
FAULTS_MOST_S = 8.0
"""Turns that take longer are cut short."""
HEAL_STILL_S = 40.0
"""How long nothing may move while everything heals."""
RESTARTS_MOST = 20
LOOK_S = 0.04


@dataclass(slots=True)
class Outcome:
    """The result of a history."""

    seed: int
    violations: list[str]
    seconds: float
    metrics: dict[str, int]
    folder: str = ""


class Place:
    """A broker, its clients and the nursery: what several histories share, each with topics and a group of its own."""

    def __init__(self, broker: Broker, nursery: Nursery) -> None:
        self.servers, self.nursery = broker.bootstrap_servers, nursery
        self.admin, self.producer = Admin(self.servers), Producer(self.servers, linger_ms=0)

    def close(self) -> None:
        self.producer.close()
        self.admin.close()

    def journal_end(self) -> int:
        found = self.admin.list_offsets({JOURNAL: "latest"}).values.get(JOURNAL)
        return found.offset if found is not None else 0


@contextlib.contextmanager
def place(folder: Path | None = None) -> Iterator[Callable[[], Place]]:
    """Makes places on one broker, a place for each thread."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Broker(folder, BROKER))
        nursery = Nursery()
        stack.callback(nursery.close)

        def make() -> Place:
            made = Place(broker, nursery)
            stack.callback(made.close)
            return made

        yield make


@dataclass(slots=True)
class _Living:
    """An application as it is now."""

    application: Application
    folder: Path
    turns: list[Turn]
    checkpoint: int = 0
    runs: int = 0
    id: int = 0
    pause_ms: int = 0
    tolerates: bool = False
    restarts: int = 0


class History:
    """One history under way."""

    def __init__(self, plan: Plan, place: Place, folder: Path, mutant: str = "") -> None:
        self.plan, self.place, self.folder, self.mutant = plan, place, folder, mutant
        self.prefix = f"h{uuid.uuid4().hex[:10]}"
        self.story = Story()
        self._heard: queue.Queue[tuple[int, str, int]] = queue.Queue()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ids = itertools.count()
        self._living = [
            _Living(application, self.folder / application.name, list(application.turns))
            for application in self.plan.applications
        ]
        self._partitions = {f"{self.prefix}-{name}": self.plan.partitions for name in self.plan.names}
        self._began = time.monotonic()
        self._held_back = self._healing = False
        self._pending = 0

    def play(self) -> Outcome:
        """From its topics to the checker."""
        plan, story, place = self.plan, self.story, self.place
        story.grouped = plan.kind != "alone"
        since = place.journal_end()
        place.admin.create_topics([NewTopic(topic, count) for topic, count in self._partitions.items()]).all()
        for event in plan.events:
            self._later(event.at_ms, lambda event=event: self._event(event))
        for living in self._living:
            living.folder.mkdir(parents=True)
            self._later(living.application.joins_ms, lambda living=living: self._turn(living))
        try:
            self._run(lambda: not self._pending and not self._due and not self._running(), FAULTS_MOST_S)
            self._end_all(signal.SIGKILL if plan.seed % 2 else signal.SIGTERM)
            self._heal()
        finally:
            self._end_all(signal.SIGKILL)
        for living in self._living:
            read_application(story, living.application.name, living.folder)
        read_journal(
            story, place.servers, self.prefix, OffsetRange(since, place.journal_end()), self.folder / "journal.txt"
        )
        place.admin.delete_topics(list(self._partitions))
        return Outcome(plan.seed, violations(story), time.monotonic() - self._began, self._metrics(), str(self.folder))

    # The loop.

    def _later(self, in_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + in_ms / 1000, next(self._count), what))

    def _running(self) -> list[_Living]:
        return [living for living in self._living if living.id]

    def _run(self, over: Callable[[], bool], most_s: float) -> bool:
        """Does what is due and hears of lives until it is over, or time is."""
        until = time.monotonic() + most_s
        while not over():
            now = time.monotonic()
            if now > until:
                return False
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            wait = min(LOOK_S, self._due[0][0] - now if self._due else LOOK_S)
            with contextlib.suppress(queue.Empty):
                self._hear(*self._heard.get(timeout=max(0.001, wait)))
        return True

    def _hear(self, number: int, what: str, status: int) -> None:
        living = next((living for living in self._living if living.id == number), None)
        if living is None:
            return
        if what == "paused":
            self._later(living.pause_ms, lambda: self.place.nursery.signal(number, signal.SIGCONT))
            return
        living.id = 0
        if "failOnDataLoss=false" in self._last_error(living):
            living.tolerates = True
        if self._healing:
            if status and living.restarts < RESTARTS_MOST:
                living.restarts += 1
                self._well(living)
        elif living.turns:
            self._pending += 1
            self._later(living.turns[0].gap_ms, lambda: self._next_turn(living))

    def _next_turn(self, living: _Living) -> None:
        self._pending -= 1
        if not self._healing:
            self._turn(living)

    def _last_error(self, living: _Living) -> str:
        story = Story()
        read_application(story, living.application.name, living.folder)
        return story.runs[-1].error if story.runs else ""

    # Applications.

    def _turn(self, living: _Living) -> None:
        """Starts an application's next run, if it has one."""
        if not living.turns or living.id:
            return
        if self._held_back:
            self._pending += 1
            self._later(20, lambda: self._next_turn(living))
            return
        turn = living.turns.pop(0)
        if turn.lost:
            living.checkpoint += 1
        living.pause_ms = turn.pause_ms
        self._start(living, living.application.options | turn.options, **turn.life)
        if turn.ends_after_ms:
            number, how = living.id, signal.SIGKILL if turn.ends_how == "kill" else signal.SIGTERM
            self._later(turn.ends_after_ms, lambda: self._signal(number, how))

    def _start(self, living: _Living, options: dict[str, str], **fields: Any) -> None:
        living.runs += 1
        name = living.application.name
        given = source_options(self.plan, Application(name, options, ()), self.place.servers, self.prefix)
        given["kafka.client.id"] = f"{name}-{living.runs}"
        if living.tolerates:
            given["failOnDataLoss"] = "false"
        life = Life(given, str(living.folder), living.checkpoint, living.runs, mutant=self.mutant, **fields)
        living.id = self.place.nursery.start(life.to_json(), living.folder / "log", self._heard)

    def _signal(self, number: int, which: int) -> None:
        self.place.nursery.signal(number, which)
        if which != signal.SIGKILL:
            self.place.nursery.signal(number, signal.SIGCONT)

    def _end_all(self, which: int) -> None:
        self._due.clear()
        self._pending = 0
        self._healing, healing = False, self._healing
        turns = [living.turns for living in self._living]
        for living in self._living:
            living.turns = []
            if living.id:
                self._signal(living.id, which)
        if not self._run(lambda: not self._running(), HEAL_STILL_S):
            for living in self._running():
                self.story.unsettled = f"{living.application.name}'s run {living.runs} does not end when it is stopped"
                self._signal(living.id, signal.SIGKILL)
            self._run(lambda: not self._running(), HEAL_STILL_S)
        for living, left in zip(self._living, turns, strict=True):
            living.turns = left
        self._healing = healing

    def _well(self, living: _Living) -> None:
        trigger = "interval" if self.plan.kind == "member" else "availableNow"
        self._start(living, healthy(living.application), trigger=trigger)

    # Events.

    def _event(self, event: Event) -> None:
        with contextlib.suppress(KafkaError):
            getattr(self, f"_{event.what}")(event.much)

    def _produce(self, much: float) -> None:
        places = [TopicPartition(topic, number) for topic, count in self._partitions.items() for number in range(count)]
        sent = []
        for _ in range(int(much)):
            number = next(self._ids)
            at = places[(number * 7 + self.plan.seed) % len(places)]
            sent.append((number, at, self.place.producer.send(at.topic, b"%d" % number, partition=at.partition)))
        for number, at, delivery in sent:
            self.story.produced[number] = (at, delivery.result().offset)

    def _places(self) -> dict[TopicPartition, tuple[int, int]]:
        """First and end offset of each partition."""
        every = [TopicPartition(topic, number) for topic, count in self._partitions.items() for number in range(count)]
        first = self.place.admin.list_offsets(dict.fromkeys(every, "earliest")).all()
        last = self.place.admin.list_offsets(dict.fromkeys(every, "latest")).all()
        return {tp: (first[tp].offset, last[tp].offset) for tp in every}

    def _retention(self, much: float) -> None:
        before = {tp: first + int((end - first) * much) for tp, (first, end) in self._places().items()}
        self.story.removed |= {
            number for number, (tp, offset) in self.story.produced.items() if offset < before.get(tp, 0)
        }
        self.place.admin.delete_records(before).all()

    def _grow(self, much: float) -> None:
        topic = next(iter(self._partitions))
        self.place.admin.create_partitions({topic: self._partitions[topic] + int(much)}).all()
        self._partitions[topic] += int(much)

    def _recreate(self, _much: float) -> None:
        topic = next(iter(self._partitions))
        self.story.removed |= {n for n, (tp, _) in self.story.produced.items() if tp.topic == topic}
        self.story.remade.add(topic)
        self.place.admin.delete_topics([topic]).all()
        self.place.admin.create_topics([NewTopic(topic, self._partitions[topic])]).all()

    def _reset(self, much: float) -> None:
        """All applications end, and an administrator sets the group's offsets."""
        self._held_back = True
        for living in self._running():
            self._signal(living.id, signal.SIGKILL if living.runs % 2 else signal.SIGTERM)
        self._pending += 1
        self._reset_when_empty(much, time.monotonic() + 6)

    def _reset_when_empty(self, much: float, until: float) -> None:
        offsets = {tp: int(first + (end - first) * much) for tp, (first, end) in self._places().items()}
        done = False
        if not self._running():
            with contextlib.suppress(KafkaError):  # the group is not empty yet
                self.place.admin.alter_consumer_group_offsets(self.prefix, offsets).all()
                done = True
        if done or time.monotonic() > until:
            self._pending -= 1
            self._held_back = False
        else:
            self._later(25, lambda: self._reset_when_empty(much, until))

    # The end.

    def _heal(self) -> None:
        """Those that return run until all is committed; nothing befalls them any more."""
        self._healing, self._held_back = True, False
        for living in self._living:
            if living.application.returns:
                self._well(living)
        moved, seen = time.monotonic(), None
        over = self._drained if self.plan.kind == "member" else lambda: not self._running()
        while not self._run(over, 1.0):
            now = [(living.runs, self._size(living)) for living in self._living]
            if now != seen:
                moved, seen = time.monotonic(), now
            elif time.monotonic() - moved > HEAL_STILL_S or not self._running():
                self.story.unsettled = f"nothing moves, and not all is committed: {self._lag()}"
                break
        self._end_all(signal.SIGTERM)

    @staticmethod
    def _size(living: _Living) -> int:
        file = living.folder / "story.jsonl"
        return file.stat().st_size if file.exists() else 0

    def _lag(self) -> dict[TopicPartition, tuple[int, int]]:
        """Committed and end offset of partitions where they differ; a partition without records needs no commit."""
        places = self._places()
        found = self.place.admin.list_consumer_group_offsets(self.prefix, list(places)).all()
        committed = {tp: position.offset for tp, position in found.items() if position is not None}
        return {tp: (committed.get(tp, 0), end) for tp, (_, end) in places.items() if committed.get(tp, 0) != end}

    def _drained(self) -> bool:
        with contextlib.suppress(KafkaError):
            return not self._lag()
        return False

    def _metrics(self) -> dict[str, int]:
        story = self.story
        rows = sum(len(found) for write in story.writes for ranges in write.rows.values() for _, found in ranges)
        kept = {number for write in story.writes for _, _, number in write.ids()}
        return {
            "runs": len(story.runs),
            "batches": len({tasks.batch for tasks in story.tasks}),
            "batches repeated": len({tasks.batch for tasks in story.tasks if tasks.repeated}),
            "records": len(story.produced),
            "rows repeated": rows - len(kept),
            "commits": sum(map(len, story.commits.values())),
            "members put out or gone": len(story.evictions),
        }


def play(seed: int, where: Place, mutant: str = "", folder: Path | None = None) -> Outcome:
    """One seed; its folder stays where one is given."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return History(draw(seed), where, folder, mutant).play()
    with tempfile.TemporaryDirectory(prefix="kohort-history-") as temporary:
        return History(draw(seed), where, Path(temporary), mutant).play()
