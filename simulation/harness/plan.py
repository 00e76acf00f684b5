"""The plan of a seed: the participants, and every fault with its time, drawn before the run begins.

A plan can be played with some of its steps only (`keep`) and with a shorter fault phase (`heal_ms`). Shrinking does
that with a seed that failed. Steps about a missing member do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kohort.groups.config import GroupConfig
from simulation.harness.assigning import COOPERATIVE, EAGER
from simulation.harness.habits import Habits
from simulation.harness.network import NetworkFaults
from simulation.harness.push_steps import SHARE, PushSteps, push_knobs
from simulation.harness.world import Chance

INT_MAX = 2**31 - 1
DAY_MS = 86_400_000

MODERN, CLASSIC = "ConsumerMember", "ClassicMember"
MORE = {"reload": 3, "subscribe": 3}
"""Kinds of faults drawn from a random stream of their own."""
MORE_OFTEN = 0.15
SOON_MS = 200
"""The maximum delay of half of these steps after another step, so that they hit its unfinished work."""
STRATEGIES: dict[str, tuple[tuple[str, ...], ...]] = {
    EAGER: ((EAGER,), (EAGER,), (COOPERATIVE, EAGER), (EAGER, COOPERATIVE)),
    COOPERATIVE: ((COOPERATIVE,), (COOPERATIVE,), (COOPERATIVE, EAGER), (EAGER, COOPERATIVE)),
}
"""The assignors that members of a mixed group may list, by the one that all of them have."""
CLEANS_MS = (1_500, 5_000, 15_000)
"""The intervals of compaction in some runs, as if by a busy cleaner."""
TROUBLE = {
    "start": 20,
    "crash": 12,
    "leave": 12,
    "pause": 15,
    "cut": 12,
    "cut_off": 8,
    "twin": 5,
    "coordinator": 10,
    "faults": 5,
    "grow": 4,
    "clock": 2,
    "weeks": 4,
    "desert": 3,
    "commit": 4,
    "compact": 5,
    "create": 3,
    "delete": 3,
    "transact": 8,
    "look": 2,
    "delete_group": 3,
    "delete_offsets": 2,
    "remove": 3,
    "hostile": 2,
}


@dataclass(frozen=True)
class Step:
    """One action of a plan, at a time.

    Attributes:
        number: its name in `keep`.
        what: the name of the method of `Run`, without its `do_`.
        details: that method's arguments.
    """

    number: int
    at_ms: int
    what: str
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        reported = ", ".join(f"{name} {shown(value)}" for name, value in self.details.items())
        return f"{self.number:4d}  {self.at_ms / 1000:8.3f} s  {self.what}: {reported}"


def shown(value: Any) -> str:
    """Return a step's argument for people; of settings only those that differ from their defaults."""
    if not isinstance(value, Habits | NetworkFaults):
        return str(value)
    texts = [
        f"{field.name}={getattr(value, field.name)!r}"
        for field in fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"({', '.join(texts)})"


@dataclass(frozen=True)
class Scale:
    """The size of a run.

    Attributes:
        weight: how many of 100 runs have this size.
        groups, first, living, topics, partitions: the maximum numbers of groups, of members of each at the start, of
            members at any time, of topics, and of partitions of each.
        every_ms: the mean time between two steps.
        faults_ms: the longest fault phase.
    """

    weight: int
    groups: int
    first: int
    living: int
    topics: int
    partitions: int
    every_ms: int
    faults_ms: int


SCALES = (
    Scale(86, groups=1, first=3, living=4, topics=2, partitions=4, every_ms=3_500, faults_ms=60_000),
    Scale(12, groups=2, first=4, living=8, topics=3, partitions=6, every_ms=2_500, faults_ms=90_000),
    Scale(2, groups=2, first=8, living=16, topics=3, partitions=12, every_ms=1_500, faults_ms=90_000),
)
SHORTEST_FAULTS_MS = 20_000
RETURNS = 0.7
"""The probability that a closed static member is started again, after one of these times."""
AWAY_MS = (200, 2_000, 5_000)


@dataclass(frozen=True)
class Plan:
    """One run before it is played.

    Attributes:
        partitions: topics at the start, with their partition counts.
        group_ids: the groups.
        steps: in the order of their times.
        heal_ms: the time when all faults end.
        kept: numbers of the steps to play; None: all.
        coordinators: the number of coordinators in a run over Kafka.
    """

    seed: int
    config: GroupConfig
    partitions: dict[str, int]
    group_ids: tuple[str, ...]
    steps: tuple[Step, ...]
    heal_ms: int
    kept: tuple[int, ...] | None = None
    coordinators: int = 3

    def keep(self, numbers: Iterable[int]) -> Plan:
        """Return the plan with these steps only."""
        kept = tuple(sorted(numbers))
        return replace(self, steps=tuple(step for step in self.steps if step.number in kept), kept=kept)

    def until(self, heal_ms: int) -> Plan:
        """Return the plan with a shorter fault phase."""
        return replace(self, heal_ms=heal_ms)


@dataclass
class Known:
    """The state of a member as far as the plan can know it."""

    name: str
    kind: str
    habits: Habits


class Draft:
    """The draw of one seed's plan."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Chance(f"{seed}/plan")
        self.seed = seed
        self.late = Chance(f"{seed}/late")
        self.more = Chance(f"{seed}/more")
        self.scale = chance.choices(SCALES, [scale.weight for scale in SCALES])[0]
        self.partitions = {
            f"t{number}": 1 + chance.upto(self.scale.partitions - 1)
            for number in range(1 + chance.upto(self.scale.topics - 1))
        }
        self.topics = (*self.partitions, f"t{len(self.partitions)}")
        self.group_ids = [f"g{number}" for number in range(1 + chance.upto(self.scale.groups - 1))]
        self.manners = {group: chance.choice(((EAGER,), (COOPERATIVE,))) for group in self.group_ids}
        self.modern = {group: chance.choice((0.0, 0.5, 1.0)) for group in self.group_ids}
        self.assignors = chance.choice(((None,), (None, "uniform"), ("range",), ("range", "uniform", None)))
        self.racks = chance.choice(((None,), (None, "r1", "r2")))
        self.heal_ms = SHORTEST_FAULTS_MS + chance.upto(self.scale.faults_ms - SHORTEST_FAULTS_MS)
        self.only_ours = False
        self.own_share = {MODERN: chance.choice((0.0, 0.5, 1.0)), CLASSIC: chance.choice((0.0, 0.0, 0.0, 0.0, 0.7))}
        more = self.more
        self.differ = more.likely(0.35)
        self.common = {group: more.choice((None, None, EAGER, COOPERATIVE)) for group in self.group_ids}
        self.read_by: dict[tuple[str, str | None], tuple[str, ...]] = {}
        self.cleans_ms = more.choice((None, None, *CLEANS_MS))
        self.living: list[Known] = []
        self.started = 0
        self.steps: list[Step] = []
        self.pushing = PushSteps(
            Chance(f"{seed}/push"), Chance(f"{seed}/push starts"), self.add, tuple(self.partitions)
        )

    def plan(self) -> Plan:
        """Draw the whole plan."""
        chance = self.chance
        is_mixed = 0.5 in self.modern.values()  # a full group of one protocol refuses the other's members for ever
        size = INT_MAX if is_mixed else chance.choice((INT_MAX, INT_MAX, INT_MAX, 3))
        config = GroupConfig(
            initial_rebalance_delay_ms=chance.choice((0, 0, 500, 3_000)),
            group_max_size=size,
            consumer_max_size=size,
            new_member_timeout_ms=30_000,
            offsets_retention_minutes=chance.choice((60, 1_440, 10_080)),
            offsets_retention_check_ms=20_000,
            consumer_session_timeout_ms=chance.choice((6_000, 9_000)),
            consumer_heartbeat_interval_ms=chance.choice((1_500, 2_500)),
            notice_disconnects=chance.choice(("off", "known", "known", "all")),
            disconnect_lease_ms=chance.choice((2_000, 3_000, 5_000)),
            **push_knobs(Chance(f"{self.seed}/push knobs")),
        )
        self.only_ours = config.notice_disconnects == "all"  # of others some would own too long: that is what it says
        self.add_faults(0)
        for group_id in self.group_ids:
            for _ in range(1 + chance.upto(self.scale.first - 1)):
                self.add_member(chance.upto(2_000), group_id)
        at_ms = 0.0
        while (at_ms := at_ms + chance.expovariate(1 / self.scale.every_ms)) < self.heal_ms:
            self.add_trouble(int(at_ms))
            if self.more.likely(MORE_OFTEN):
                self.add_more(int(at_ms) + self.more.upto(self.more.choice((SOON_MS, self.scale.every_ms))))
        for at in range(self.cleans_ms or self.heal_ms, self.heal_ms, self.cleans_ms or 1):
            self.add(at, "compact", share=self.more.choice((0.9, 1.0)))
        group_ids = (*self.group_ids, *self.mix())
        steps = sorted(self.steps, key=lambda step: (step.at_ms, step.number))
        return Plan(self.seed, config, self.partitions, group_ids, tuple(steps), self.heal_ms)

    def mix(self) -> tuple[str, ...]:
        """Draw whether push groups are part of the plan, and which groups they are."""
        if not self.pushing.chance.likely(SHARE):
            return ()
        return self.pushing.draw(self.heal_ms, self.group_ids)

    def add(self, at_ms: int, what: str, **details: Any) -> None:
        """Add a step."""
        self.steps.append(Step(len(self.steps), at_ms, what, details))

    def add_member(self, at_ms: int, group_id: str, instance_id: str | None = None) -> None:
        """Add a member, perhaps with another member's instance id."""
        chance = self.chance
        self.started += 1
        if instance_id is None and chance.likely(0.25):
            instance_id = f"i{1 + chance.upto(2)}"
        kind = MODERN if chance.likely(self.modern[group_id]) else CLASSIC
        is_kohort_client = chance.likely(self.own_share[kind])
        ours = is_kohort_client or self.only_ours or chance.likely(0.6)
        habits = Habits(
            group_id,
            self.topics,
            self.manners[group_id],
            instance_id,
            session_timeout_ms=chance.choice((6_000, 8_000)),
            heartbeat_ms=chance.choice((1_500, 2_500)),
            commit_ms=chance.choice((1_000, 5_000, 5_000)),
            callback_ms=chance.choice((0, 50, 2_000)),
            requires_known_id=chance.likely(0.8),
            require_stable=chance.likely(0.5),
            commits_on_revocation=chance.likely(0.7),
            delay_ms=chance.choice((0, 1_200)),
            short_interval=chance.likely(0.5),
            assignor=chance.choice(self.assignors),
            rack=chance.choice(self.racks),
            keeps_lease=ours,
            clock_rate=chance.choice((0.985, 1.0, 1.0, 1.015)) if ours else 1.0,
        )
        known = Known(f"c{self.started}", f"Own{kind}" if is_kohort_client else kind, self.varied(habits))
        self.living.append(known)
        self.add(at_ms, "start", name=known.name, kind=known.kind, habits=habits)

    def varied(self, habits: Habits) -> Habits:
        """Return these habits with other topics and assignors, as members of one group may differ.

        The successor of a static member has the same subscription: Kafka's classic groups do not rebalance for it
        either.
        """
        common = self.common[habits.group_id]
        if self.differ:
            topics, key = self.some_topics(), (habits.group_id, habits.instance_id)
            if habits.instance_id is not None:
                topics = self.read_by.setdefault(key, topics)
            habits = replace(habits, topics=topics)
        return habits if common is None else replace(habits, strategies=self.more.choice(STRATEGIES[common]))

    def some_topics(self) -> tuple[str, ...]:
        """Draw topics, at least one of which exists at the start."""
        first = self.more.choice(list(self.partitions))
        return tuple(topic for topic in self.topics if topic == first or self.more.likely(0.5))

    def add_more(self, at_ms: int) -> None:
        """Add a step beside the planned faults."""
        more = self.more
        what = more.choices(list(MORE), list(MORE.values()))[0]
        if what == "reload":
            self.add(at_ms, what, away_ms=more.choice((0, 0, 200, 3_000)))
        elif self.differ and (dynamic := [member for member in self.living if member.habits.instance_id is None]):
            self.add(at_ms, what, name=more.choice(dynamic).name, topics=self.some_topics())

    def add_faults(self, at_ms: int) -> None:
        """Change the faults of the network and the disk."""
        chance = self.chance
        network = NetworkFaults(
            delay_ms=chance.choice((5, 20, 200, 1_000)),
            breaks=chance.choice((0.0, 0.0, 0.005, 0.03)),
            linger_ms=chance.choice((10, 200, 5_000)),
            late=chance.choice((0.0, 0.5)),
        )
        fails, tears = chance.choice((0.0, 0.0, 0.01)), chance.choice((0.0, 0.01, 0.05))
        late_ms = self.late.choice((0, 0, 10, 100, 600))
        self.add(at_ms, "faults", network=network, disk_fails=fails, disk_tears=tears, disk_late_ms=late_ms)

    def add_trouble(self, at_ms: int) -> None:
        """Add a step of any kind."""
        chance = self.chance
        what = chance.choices(list(TROUBLE), list(TROUBLE.values()))[0]
        one = chance.choice(self.living) if self.living else None
        if what == "start":
            if len(self.living) < self.scale.living:
                self.add_member(at_ms, chance.choice(self.group_ids))
        elif what == "coordinator":
            self.add(at_ms, "coordinator", down_ms=chance.choice((0, 200, 3_000, 8_000)))
        elif what == "faults":
            self.add_faults(at_ms)
        elif what in ("grow", "create", "delete"):
            self.add(at_ms, what, topic=chance.choice(self.topics))
        elif what == "clock":
            self.add(at_ms, "clock", jump_ms=chance.choice((-3_600_000, 3_600_000)))
        elif what == "compact":
            self.add(at_ms, "compact", share=chance.choice((0.3, 0.9, 1.0)))
        elif what == "weeks":
            self.add_weeks(at_ms)
        elif what == "desert":
            self.add_desert(at_ms)
        elif what == "look":
            self.add(at_ms, "look")
        elif what == "hostile":
            self.add(at_ms, "hostile", name=f"h{len(self.steps)}", group_id=chance.choice(self.group_ids))
        elif what in ("transact", "delete_group", "delete_offsets", "commit"):
            self.trouble_group(at_ms, what, one)
        elif one is not None:
            self.trouble_member(at_ms, what, one)

    def add_weeks(self, at_ms: int) -> None:
        """Let the wall clock pass about the time of offset retention."""
        self.add(at_ms, "weeks", jump_ms=self.chance.choice((DAY_MS // 2, 6 * DAY_MS, 8 * DAY_MS, 30 * DAY_MS)))

    def add_desert(self, at_ms: int) -> None:
        """Close all members, let weeks pass, and start a member again."""
        chance = self.chance
        for member in self.living:
            self.add(at_ms + chance.upto(1_000), chance.choice(("leave", "leave", "crash")), name=member.name)
        self.living.clear()
        self.add_weeks(at_ms + chance.choice((2_000, 12_000)))
        self.add_member(at_ms + chance.choice((14_000, 40_000)), chance.choice(self.group_ids))

    def trouble_group(self, at_ms: int, what: str, member: Known | None) -> None:
        """Add a step that concerns a group's offsets."""
        chance = self.chance
        group_id = chance.choice(self.group_ids)
        if what == "delete_group":
            self.add(at_ms, what, group_id=group_id)
        elif what == "commit":
            self.add(
                at_ms,
                what,
                group_id=chance.choice((group_id, "alone")),
                topic=chance.choice(self.topics),
                retention_ms=chance.choice((-1, -1, 5_000, DAY_MS)),
            )
        elif what == "delete_offsets":
            self.add(at_ms, what, group_id=group_id, topic=chance.choice(self.topics))
        else:
            self.add(
                at_ms,
                what,
                name=f"x{len(self.steps)}",
                group_id=group_id if member is None else member.habits.group_id,
                topic=chance.choice(self.topics),
                member=None if member is None or chance.likely(0.3) else member.name,
                commit=chance.likely(0.6),
                delay_ms=chance.choice((0, 500, 4_000, 20_000)),
            )

    def trouble_member(self, at_ms: int, what: str, member: Known) -> None:
        """Add a step that concerns one member."""
        if what == "twin":
            if member.habits.instance_id is not None:
                self.add_member(at_ms, member.habits.group_id, member.habits.instance_id)
        elif what == "pause":
            self.add(at_ms, what, name=member.name, duration_ms=self.chance.choice((500, 4_000, 12_000, 40_000)))
        elif what == "cut_off":
            self.add(at_ms, what, name=member.name, duration_ms=self.chance.choice((2_000, 6_000, 15_000)))
        else:
            self.add(at_ms, what, name=member.name)
            if what in ("crash", "leave"):
                self.living.remove(member)
            if what == "leave" and member.habits.instance_id is not None and self.chance.likely(RETURNS):
                back_ms = at_ms + self.chance.choice(AWAY_MS)
                self.add_member(back_ms, member.habits.group_id, member.habits.instance_id)


PUSH_MORE = ("half_open", "half_open", "freeze", "freeze", "twin")
MORE_EVERY_MS = 5_000


class PushDraft(Draft):
    """The draw of one seed's plan with push members only.

    The faults are the same, and those of push members, at shorter intervals.
    """

    def add_member(self, at_ms: int, group_id: str, instance_id: str | None = None) -> None:
        """Add a push member; the protocol has no instance ids."""
        known = self.pushing.start(at_ms, group_id)
        self.living.append(Known(known.name, known.kind, known.habits))

    def mix(self) -> tuple[str, ...]:
        """Draw no other groups, and faults of push members only."""
        chance, at_ms = self.pushing.chance, 0.0
        while (at_ms := at_ms + chance.expovariate(1 / MORE_EVERY_MS)) < self.heal_ms:
            self.pushing.trouble_member(int(at_ms), chance.choice(PUSH_MORE), chance.choice(self.pushing.living))
        return ()
