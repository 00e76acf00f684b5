"""The steps of push groups in a plan: their members and faults, drawn from a random stream of their own.

They live on the same shard as the groups of the other protocols. Visitors are members that try to join a group of
another protocol. A group keeps its protocol while it has members; an empty one takes the protocol of its next member.
Visitors are gone when faults end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.harness.habits import Habits
from simulation.harness.world import Chance

OWN, LITERAL = "OwnPushMember", "LiteralPushMember"
OTHERS = ("ClassicMember", "ConsumerMember", "OwnClassicMember", "OwnConsumerMember")
SHARE = 0.3
"""The share of plans with push groups."""
EVERY_MS = 4_000
FINDERS = 0.25
"""The share of members that choose their start position themselves: the coordinator finds no offsets for them."""
FIRST, LIVING = 3, 4
"""The maximum number of members of each group at the start, and of all of them at any time."""
HALF_OPEN_MS = (2_000, 5_000, 9_000, 20_000)
PAUSES_MS = (500, 4_000, 12_000, 40_000)
TROUBLE = {
    "start": 16,
    "crash": 10,
    "leave": 8,
    "pause": 8,
    "cut": 8,
    "cut_off": 5,
    "half_open": 14,
    "freeze": 10,
    "twin": 6,
    "visit": 8,
    "subscribe": 4,
    "remove": 2,
    "delete_group": 3,
    "delete_offsets": 2,
    "commit": 2,
    "transact": 3,
    "hostile": 1,
}


def push_knobs(chance: Chance) -> dict[str, Any]:
    """Draw the coordinator's settings for push groups."""
    return {
        "push_rebalance": chance.choice(("changed", "changed", "all")),
        "push_assignor": chance.choice(("sticky", "sticky", "range")),
        "push_rebalance_retries": chance.choice((0, 1, 4, 4)),
        "push_rebalance_backoff_ms": chance.choice((200, 2_000)),
        "push_failed_requests_max": chance.choice((3, 3, 5)),
    }


@dataclass(frozen=True)
class PushKnown:
    """The state of a push member as far as the plan can know it."""

    name: str
    kind: str
    habits: Habits


class PushSteps:
    """The draw of the steps of push groups.

    Attributes:
        living: members that were started and not ended.
    """

    def __init__(self, chance: Chance, finders: Chance, add: Callable[..., None], partitions: Sequence[str]) -> None:
        """`add` adds a step; `partitions` names the first topics; `finders` draws who chooses its own start."""
        self.chance = chance
        self._finders = finders
        self._add = add
        self._first_topics = tuple(partitions)
        self.topics = (*partitions, f"t{len(partitions)}")
        self.living: list[PushKnown] = []
        self._started = 0

    def draw(self, heal_ms: int, others: Sequence[str]) -> tuple[str, ...]:
        """Draw all steps of push groups beside these other groups; return the push groups' names."""
        chance = self.chance
        groups = ("p0", "p1") if chance.likely(0.2) else ("p0",)
        for group_id in groups:
            for _ in range(1 + chance.upto(FIRST - 1)):
                self.start(chance.upto(2_000), group_id)
        at_ms = 0.0
        while (at_ms := at_ms + chance.expovariate(1 / EVERY_MS)) < heal_ms:
            self.trouble(int(at_ms), groups, others)
        return groups

    def habits(self, group_id: str, **more: Any) -> Habits:
        """Draw the configuration of a push member."""
        chance = self.chance
        settings = {
            "session_timeout_ms": chance.choice((6_000, 8_000)),
            "commit_ms": chance.choice((1_000, 5_000)),
            "callback_ms": chance.choice((0, 50, 2_000, 2_000, 12_000)),
            "commits_on_revocation": chance.likely(0.7),
            "keeps_lease": True,
            "clock_rate": chance.choice((0.985, 1.0, 1.0, 1.015)),
            "auto_commit": chance.likely(0.7),
            "streams": chance.choice((0, 1, 2, 3)),
            "reading_ms": chance.choice((0, 20, 600)),
            "never_stops": chance.likely(0.1),
            "finds_starts": self._finders.likely(FINDERS),
        }
        return Habits(group_id, self._some_topics(), **(settings | more))

    def _some_topics(self) -> tuple[str, ...]:
        if self.chance.likely(0.65):
            return self.topics
        first = self.chance.choice(self._first_topics)
        return tuple(topic for topic in self.topics if topic == first or self.chance.likely(0.5))

    def start(self, at_ms: int, group_id: str, consumer_id: str | None = None) -> PushKnown:
        """Start a member, perhaps with the id of another."""
        self._started += 1
        kind = LITERAL if consumer_id is not None or self.chance.likely(0.5) else OWN
        name = f"p{self._started}"
        if kind == LITERAL and consumer_id is None and self.chance.likely(0.3):
            consumer_id = f"{group_id}-{self.chance.upto(1)}"
        known = PushKnown(name, kind, self.habits(group_id, consumer_id=consumer_id))
        self.living.append(known)
        self._add(at_ms, "start", name=name, kind=kind, habits=known.habits)
        return known

    def trouble(self, at_ms: int, groups: Sequence[str], others: Sequence[str]) -> None:
        """Add a step of any kind."""
        chance = self.chance
        what = chance.choices(list(TROUBLE), list(TROUBLE.values()))[0]
        group_id = chance.choice(groups)
        if what == "start":
            if len(self.living) < LIVING * len(groups):
                self.start(at_ms, group_id)
        elif what == "visit":
            self.visit(at_ms, group_id, others)
        elif what == "delete_group":
            self._add(at_ms, what, group_id=group_id)
        elif what == "delete_offsets":
            self._add(at_ms, what, group_id=group_id, topic=chance.choice(self.topics))
        elif what == "commit":
            self._add(at_ms, what, group_id=group_id, topic=chance.choice(self.topics), retention_ms=-1)
        elif what == "hostile":
            self._add(at_ms, what, name=f"hp{at_ms}", group_id=group_id)
        elif what == "transact":
            details = {"topic": chance.choice(self.topics), "member": None, "commit": chance.likely(0.6)}
            delay_ms = chance.choice((0, 500, 4_000))
            self._add(at_ms, what, name=f"xp{at_ms}", group_id=group_id, delay_ms=delay_ms, **details)
        elif self.living:
            self.trouble_member(at_ms, what, chance.choice(self.living))

    def trouble_member(self, at_ms: int, what: str, member: PushKnown) -> None:
        """Add a step that concerns one member."""
        chance = self.chance
        if what == "twin":
            self.twin(at_ms, member)
        elif what == "half_open":
            self._add(at_ms, what, name=member.name, duration_ms=chance.choice(HALF_OPEN_MS), up=chance.likely(0.6))
        elif what == "freeze":
            self._add(at_ms, what, name=member.name, looks=1 + chance.upto(4), duration_ms=chance.choice(PAUSES_MS))
        elif what == "pause":
            self._add(at_ms, what, name=member.name, duration_ms=chance.choice(PAUSES_MS))
        elif what == "cut_off":
            self._add(at_ms, what, name=member.name, duration_ms=chance.choice((2_000, 6_000, 15_000)))
        elif what == "subscribe":
            self._add(at_ms, what, name=member.name, topics=self._some_topics())
        else:
            self._add(at_ms, what, name=member.name)
            if what in ("crash", "leave"):
                self.living.remove(member)

    def twin(self, at_ms: int, member: PushKnown) -> None:
        """Start another process with the id of a member that has not ended, or is about to."""
        if member.habits.consumer_id is not None:
            if self.chance.likely(0.4):
                self._add(at_ms, self.chance.choice(("crash", "cut")), name=member.name)
            self.start(at_ms + self.chance.upto(500), member.habits.group_id, member.habits.consumer_id)

    def visit(self, at_ms: int, group_id: str, others: Sequence[str]) -> None:
        """Let a member of another protocol try to join a group for a while, sometimes after all members left."""
        chance = self.chance
        stay_ms = chance.choice((1_000, 5_000, 15_000))
        self._started += 1
        name = f"v{self._started}"
        if others and chance.likely(0.4):
            habits, kind = self.habits(chance.choice(others)), chance.choice((OWN, LITERAL))
        else:
            habits, kind = Habits(group_id, self.topics, heartbeat_ms=1_500), chance.choice(OTHERS)
            if chance.likely(0.4):
                for member in [known for known in self.living if known.habits.group_id == group_id]:
                    self._add(at_ms, "leave", name=member.name)
                    self.living.remove(member)
                self.start(at_ms + stay_ms + chance.upto(3_000), group_id)
                at_ms += chance.choice((0, 2_000, 10_000))
        self._add(at_ms, "visit", name=name, kind=kind, habits=habits, stay_ms=stay_ms)
