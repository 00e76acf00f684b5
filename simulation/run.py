"""One seed, one run: who is there, what goes wrong, and how it ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kohort.groups.config import GroupConfig
from kohort.groups.events import Topic, TopicImage
from simulation.checkers import ALL, Checker, Checkers, Holder, ViolatedError
from simulation.classic_member import ClassicMember
from simulation.consumer_member import ConsumerMember
from simulation.disk import Disk
from simulation.network import Network, Weather
from simulation.process import Habits, Process
from simulation.server import Server
from simulation.world import World

HEALING_MS = 100_000


@dataclass
class Result:
    """How one run ended.

    Attributes:
        events: how many things happened.
        virtual_ms: how long it took in there.
        failure: what was violated, None when nothing was.
        trace: the last lines of the story, of a failed run.
    """

    seed: int
    events: int = 0
    virtual_ms: int = 0
    failure: str | None = None
    checker: str | None = None
    trace: list[str] = field(default_factory=list)


class Run:
    """The world of one seed.

    Attributes:
        partitions: topics that exist, with their partition counts.
    """

    def __init__(self, seed: int, mutant: Any = None, kinds: Iterable[type[Checker]] = ALL) -> None:
        self.world = World(seed)
        chance = self.world.chance
        self.network = Network(self.world)
        self.disk = Disk(self.world)
        self.members: list[Process] = []
        holders: list[Holder] = self.members  # type: ignore[assignment]
        self.checkers = Checkers(self.world, holders, kinds)
        config = GroupConfig(
            initial_rebalance_delay_ms=chance.choice((0, 0, 500, 3_000)),
            new_member_timeout_ms=30_000,
            offsets_retention_check_ms=20_000,
            consumer_session_timeout_ms=chance.choice((6_000, 9_000)),
            consumer_heartbeat_interval_ms=1_500,
        )
        self.server = Server(self.world, self.network, self.disk, config, self.checkers, mutant)
        self.partitions = {f"t{number}": chance.randint(1, 6) for number in range(chance.randint(1, 3))}
        self.group_ids = [f"g{number}" for number in range(chance.choice((1, 1, 2)))]
        self.manners = {group: chance.choice((("eager",), ("cooperative",))) for group in self.group_ids}
        self.modern = {group: chance.choice((0.0, 0.5, 1.0)) for group in self.group_ids}
        self._started = 0
        self._faults_end_ms = chance.randint(20_000, 90_000)

    def play(self) -> Result:
        """Run to the end, or to the first violation."""
        result = Result(self.world.seed)
        try:
            self._play()
        except ViolatedError as violated:
            result.failure, result.checker = str(violated), violated.checker
            result.trace = self.world.trace
        result.events, result.virtual_ms = self.world.happened, self.world.now_ms
        return result

    def _play(self) -> None:
        self._publish_topics()
        self.server.start()
        for group_id in self.group_ids:
            for _ in range(self.world.chance.randint(1, 4)):
                self._start_member(group_id)
        self._worsen()
        self._schedule_trouble()
        self.world.run_until(self._faults_end_ms)
        self._heal()
        self.world.run_until(self._faults_end_ms + HEALING_MS)
        self.checkers.at_end(self.server.waiting, self.partitions)

    def _start_member(self, group_id: str, instance_id: str | None = None) -> None:
        chance = self.world.chance
        self._started += 1
        if instance_id is None and chance.random() < 0.25:
            instance_id = f"i{chance.randint(1, 3)}"
        known = chance.random() < 0.8
        habits = Habits(
            group_id,
            tuple(self.partitions),
            self.manners[group_id],
            instance_id,
            session_timeout_ms=chance.choice((6_000, 8_000)),
            callback_ms=chance.choice((0, 50, 2_000)),
            requires_known_id=known,
            commits_on_revocation=chance.random() < 0.7,
            hold_ms=chance.choice((0, 1_200)),
            short_interval=chance.random() < 0.5,
        )
        kind = ConsumerMember if chance.random() < self.modern[group_id] else ClassicMember
        member = kind(f"c{self._started}", habits, self.world, self.network, self.checkers)
        if isinstance(member, ConsumerMember):
            member.session_ms = self.server.config.consumer_session_timeout_ms
        member.learn_topics(self.partitions)
        self.members.append(member)
        self.world.after(chance.randint(0, 2_000), member.start)

    def _worsen(self) -> None:
        chance = self.world.chance
        self.network.weather = Weather(
            delay_ms=chance.choice((5, 20, 200, 1_000)),
            breaks=chance.choice((0.0, 0.0, 0.005, 0.03)),
            linger_ms=chance.choice((10, 200, 5_000)),
        )
        self.disk.fails = chance.choice((0.0, 0.0, 0.01))
        self.disk.tears = chance.choice((0.0, 0.01, 0.05))

    def _schedule_trouble(self) -> None:
        delay = self.world.chance.expovariate(1 / 2_500)
        if self.world.now_ms + delay < self._faults_end_ms:
            self.world.after(delay, self._trouble)

    def _trouble(self) -> None:
        chance = self.world.chance
        living = [member for member in self.members if not member.dead]
        one = chance.choice(living) if living else None
        what = chance.choices(
            ("start", "crash", "leave", "pause", "cut", "twin", "coordinator", "weather", "topics", "clock"),
            (20, 12, 12, 15, 12, 5, 10, 5, 4, 2),
        )[0]
        if what == "start" and len(living) < 8:
            self._start_member(chance.choice(self.group_ids))
        elif what == "coordinator":
            self.server.crash(chance.choice((0, 200, 3_000, 8_000)))
        elif what == "weather":
            self._worsen()
        elif what == "topics":
            self._grow()
        elif what == "clock":
            self.world.skew_ms += chance.choice((-3_600_000, 3_600_000))
        elif one is not None and what == "crash":
            one.crash()
        elif one is not None and what == "leave":
            one.leave()
        elif one is not None and what == "pause" and not one.paused:
            one.pause(chance.choice((500, 4_000, 12_000, 40_000)))
        elif one is not None and what == "cut":
            one.cut()
        elif one is not None and what == "twin" and one.habits.instance_id is not None:
            self._start_member(one.group_id, one.habits.instance_id)
        self._schedule_trouble()

    def _grow(self) -> None:
        topic = self.world.chance.choice(sorted(self.partitions))
        self.partitions[topic] += 1
        self.world.tell(f"topic {topic} has {self.partitions[topic]} partitions")
        self._publish_topics()
        for member in self.members:
            member.learn_topics(self.partitions)

    def _publish_topics(self) -> None:
        version = self.server.image.version + 1
        topics = {
            name: Topic(name, uuid.UUID(int=at + 1), count) for at, (name, count) in enumerate(self.partitions.items())
        }
        self.server.change_topics(TopicImage(version, topics))

    def _heal(self) -> None:
        self.world.tell("all faults end")
        self.network.weather = Weather()
        self.disk.fails = self.disk.tears = 0.0
        for member in self.members:
            member.wake()
            member.learn_topics(self.partitions)
