"""Events of one history, drawn from its seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kohort.spark.source.batch_offset import FORM

Kind = Literal["member", "assign", "alone"]
TOPICS_HAVE_IDS = FORM >= 2
"""Whether the source tells a topic from one of its name that was made later; before that such a history loses data."""
FAULTS_MS = 1_200
"""For so long there are faults; then everything heals."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of an application's query while there are faults.

    Attributes:
        life: fields of `Life`.
        gap_ms: between the end of the run before and its start.
        lost: the checkpoint was lost meanwhile.
        ends_after_ms: it is ended from outside, by `ends_how`; 0: not.
        pause_ms: how long each of its pauses lasts.
        options: of this run alone.
    """

    life: dict[str, Any]
    gap_ms: int = 0
    lost: bool = False
    ends_after_ms: int = 0
    ends_how: str = "kill"
    pause_ms: int = 0
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Application:
    """A query with its checkpoint, and its runs.

    Attributes:
        returns: whether it comes back when the faults are over; at least one does.
        joins_ms: when its first run starts.
    """

    name: str
    options: dict[str, str]
    turns: tuple[Turn, ...]
    returns: bool = True
    joins_ms: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the topics or to the group.

    Attributes:
        what: produce (count), retention (share of what there is), grow (partitions more), recreate, reset (to a share
            of what there is; all applications are down meanwhile).
    """

    at_ms: int
    what: Literal["produce", "retention", "grow", "recreate", "reset"]
    much: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One history."""

    seed: int
    kind: Kind
    protocol: str
    partitions: int
    topics: int
    pattern: bool
    applications: tuple[Application, ...]
    events: tuple[Event, ...] = field(default_factory=tuple)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("abc"[: self.topics])


def draw(seed: int) -> Plan:
    """The history of a seed."""
    chance = random.Random(seed)
    kind: Kind = chance.choices(("member", "assign", "alone"), (86, 7, 7))[0]
    partitions, topics = chance.randint(1, 4), 2 if chance.random() < 0.2 else 1
    shared = {
        "kafka.session.timeout.ms": str(chance.choice((1_000, 1_500, 3_000))),
        "kafka.max.poll.interval.ms": str(chance.choice((700, 3_000, 10_000))),
        "kafka.heartbeat.interval.ms": "60",
        "kafka.metadata.max.age.ms": "150",
        "kafka.default.api.timeout.ms": "8000",
        "group.protocol": chance.choice(("classic", "consumer")),
        "joinTimeoutMs": "15000",
        "startingOffsets": "earliest",
        "plannedRanges": chance.choices(("owned", "all", "none"), (6, 2, 2))[0],
        "onRevocationTimeout": chance.choice(("fail", "release")),
        "failOnDataLoss": chance.choice(("true", "false")),
    }
    more = random.Random(f"{seed}, later additions")  # so that what was there stays as it was
    count = chance.choices((1, 2, 3), (3, 5, 3))[0] if kind == "member" else 1
    keeper = chance.randrange(count)
    applications = tuple(
        Application(
            name,
            {**shared, **_own_options(chance)},
            tuple(_added(more, _turn(chance, turn)) for turn in range(chance.randint(1, 4))),
            number == keeper or chance.random() < 0.6,
            chance.choice((0, 0, 50, 400)) if number else 0,
        )
        for number, name in enumerate("xyz"[:count])
    )
    applications = _with_later_faults(more, kind, applications)
    pattern = kind != "assign" and chance.random() < 0.25
    return Plan(seed, kind, shared["group.protocol"], partitions, topics, pattern, applications, _events(chance, kind))


def _own_options(chance: random.Random) -> dict[str, str]:
    options: dict[str, Any] = {}
    if chance.random() < 0.6:
        options["maxOffsetsPerTrigger"] = chance.choice((1, 7, 30))
    if chance.random() < 0.15:
        options |= {"minOffsetsPerTrigger": 6, "maxTriggerDelay": "60ms"}
        if "maxOffsetsPerTrigger" in options:
            options["maxOffsetsPerTrigger"] = max(6, options["maxOffsetsPerTrigger"])
    if chance.random() < 0.15:
        options["maxBytesPerTrigger"] = chance.choice((1, 60, 400))
    if chance.random() < 0.2:
        options["minPartitions"] = 5
    if chance.random() < 0.2:
        options["maxRecordsPerPartition"] = chance.choice((1, 4))
    return {name: str(value) for name, value in options.items()}


def _turn(chance: random.Random, number: int) -> Turn:
    life: dict[str, Any] = {
        "trigger": chance.choices(("interval", "availableNow", "once"), (7, 2, 1))[0],
        "interval_ms": chance.choice((2, 10, 40)),
        "sink_ms": chance.choice((0, 0, 3, 20)),
        "twice": chance.random() < 0.1,
        "ends_how": chance.choice(("kill", "kill", "stop")),
    }
    after_ms = 0
    if chance.random() < 0.75:
        life["ends_at"] = chance.randint(1, chance.choice((25, 60, 200)))
    elif chance.random() < 0.6:
        after_ms = chance.randint(1, 700)
    pause_ms = 0
    if chance.random() < 0.2:
        life["pauses"] = (chance.randint(1, chance.choice((25, 60))),)
        pause_ms = chance.choice((60, 500, 1_900))
    if chance.random() < 0.2:
        life |= {"fails_at": chance.randint(1, 5), "fails_with": chance.choice((0.0, 0.5, 1.0))}
    if chance.random() < 0.15:
        life |= {"slow_at": chance.randint(1, 4), "slow_ms": chance.choice((150, 900))}
    return Turn(
        life,
        gap_ms=chance.choice((0, 10, 80, 300)) if number else 0,
        lost=bool(number) and chance.random() < 0.12,
        ends_after_ms=after_ms,
        ends_how=life["ends_how"],
        pause_ms=pause_ms,
    )


def _with_later_faults(
    chance: random.Random, kind: Kind, applications: tuple[Application, ...]
) -> tuple[Application, ...]:
    """With chances for what seldom meets: a look in which others come, a batch that is left and comes again."""
    first, *others = applications
    if kind == "member" and others and chance.random() < 0.2:
        life = {"trigger": "availableNow", "look_ms": 200, "sink_ms": 3}
        first = replace(first, turns=(Turn(life), *first.turns[1:]))
        others = [replace(other, joins_ms=chance.randint(300, 900)) for other in others]
    if kind == "member" and chance.random() < 0.15:
        fails = {"trigger": "interval", "interval_ms": 5, "fails_at": 1}
        first = replace(
            first,
            options={**first.options, "plannedRanges": "owned"},
            turns=(*first.turns[:1], Turn(fails), Turn(fails, options={"plannedRanges": "none"})),
            returns=True,
        )
    return first, *others


def _added(chance: random.Random, turn: Turn) -> Turn:
    """The run with slow looks, as AvailableNow, and with another `plannedRanges`, as chance has it."""
    if chance.random() < 0.2:
        trigger = {"trigger": "availableNow"} if chance.random() < 0.5 else {}
        turn = replace(turn, life={**turn.life, **trigger, "look_ms": chance.choice((10, 60, 200))})
    if chance.random() < 0.2:
        turn = replace(turn, options={"plannedRanges": chance.choice(("owned", "none"))})
    return turn


def _events(chance: random.Random, kind: Kind) -> tuple[Event, ...]:
    events = [Event(0, "produce", chance.randint(1, 60))]
    events += [
        Event(chance.randint(0, FAULTS_MS), "produce", chance.randint(1, 40)) for _ in range(chance.randint(2, 6))
    ]
    if chance.random() < 0.25:
        events.append(Event(chance.randint(100, FAULTS_MS), "retention", chance.choice((0.2, 0.6, 1.0))))
    if chance.random() < 0.2 and kind != "assign":
        events.append(Event(chance.randint(50, FAULTS_MS), "grow", chance.randint(1, 3)))
    if chance.random() < 0.2 and kind != "alone":
        events.append(Event(chance.randint(100, FAULTS_MS), "reset", chance.choice((0.0, 0.3, 0.8, 1.0))))
    if TOPICS_HAVE_IDS and chance.random() < 0.15 and kind == "member":
        events.append(Event(chance.randint(100, FAULTS_MS), "recreate", 1))
    return tuple(sorted(events, key=lambda event: event.at_ms))


def source_options(plan: Plan, application: Application, servers: str, prefix: str) -> dict[str, str]:
    """The options of a query of the plan, at a broker; topics and group begin with the prefix."""
    names = [f"{prefix}-{name}" for name in plan.names]
    options = {
        **application.options,
        "kafka.bootstrap.servers": servers,
        "columns": "value,topic,partition,offset,generation,rangeStart,rangeEnd",
    }
    if plan.kind != "alone":
        options["group.id"] = prefix
    if plan.kind == "assign":
        options["assign"] = json.dumps({name: list(range(plan.partitions)) for name in names})
    elif plan.pattern:
        options["subscribePattern"] = f"{prefix}-[abc]"
    else:
        options["subscribe"] = ",".join(names)
    return options


def healthy(application: Application) -> dict[str, str]:
    """Return the query's options for the final phase without faults: more than one record at a time."""
    slow = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxRecordsPerPartition")
    return {name: value for name, value in application.options.items() if name not in slow}
