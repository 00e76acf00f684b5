"""The plan of a seed: how many applications read and write, and every fault with its time."""

from __future__ import annotations

from typing import Any

from kohort.groups.config import GroupConfig
from simulation.clients.broker import NODES, TOPIC
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import Plan, Step
from simulation.harness.world import Chance

TROUBLE = {
    "seek": 20,
    "seek_to": 8,
    "pause": 6,
    "assign": 12,
    "restart_reader": 12,
    "restart_writer": 4,
    "faults": 12,
    "move": 12,
    "move_coordinator": 6,
    "node_down": 4,
    "cut_off": 6,
}
EVERY_MS = (300, 1_000, 3_000)
DEAFENED = 0.3
"""The probability that an application receives nothing for a while although its requests arrive."""
SHORTEST_MS, LONGEST_MS = 4_000, 20_000


def client_plan(seed: int) -> Plan:
    """Draw the plan of a seed: applications, and faults with their times."""
    chance = Chance(f"{seed}/clients")
    partitions = chance.choice((1, 2, 3))
    readers = [f"r{number}" for number in range(1 + chance.upto(1))]
    writers = [f"w{number}" for number in range(1 + chance.upto(1))]
    heal_ms = SHORTEST_MS + chance.upto(LONGEST_MS - SHORTEST_MS)
    steps: list[Step] = []

    def add(at_ms: float, what: str, **details: Any) -> None:
        steps.append(Step(len(steps), int(at_ms), what, details))

    for name in writers:
        add(chance.upto(1_000), "write", name=name, transactional=chance.likely(0.6))
    for name in readers:
        add(chance.upto(3_000), "read", name=name, partitions=some(chance, partitions))
    add(0, "faults", **bad_network(chance))
    at_ms, every_ms = 1_000.0, chance.choice(EVERY_MS)
    while (at_ms := at_ms + chance.expovariate(1 / every_ms)) < heal_ms:
        what = chance.choices(list(TROUBLE), list(TROUBLE.values()))[0]
        add(at_ms, what, **details_of(what, chance, readers, writers, partitions))
    deaf = Chance(f"{seed}/deaf")
    if deaf.likely(DEAFENED):
        name = deaf.choice([*readers, *writers])
        add(1_000 + deaf.upto(heal_ms - 2_000), "deafen", name=name, duration_ms=deaf.choice((1_000, 5_000, 9_000)))
    steps.sort(key=lambda step: (step.at_ms, step.number))
    return Plan(seed, GroupConfig(), {TOPIC: partitions}, (), tuple(steps), heal_ms)


def some(chance: Chance, partitions: int) -> tuple[int, ...]:
    """Draw some of the partitions, at least one."""
    return tuple(sorted(chance.sample(range(partitions), 1 + chance.upto(partitions - 1))))


def bad_network(chance: Chance) -> dict[str, Any]:
    """Draw a network and brokers with faults."""
    return {
        "network": NetworkFaults(
            delay_ms=chance.choice((2, 20, 300)),
            breaks=chance.choice((0.0, 0.01, 0.05)),
            linger_ms=chance.choice((10, 500)),
            late=chance.choice((0.0, 0.5)),
        ),
        "fails": chance.choice((0.0, 0.05, 0.2)),
        "late_ms": chance.choice((2, 50, 600)),
    }


def details_of(what: str, chance: Chance, readers: list[str], writers: list[str], partitions: int) -> dict[str, Any]:
    """Draw the arguments of a step."""
    reader, number = chance.choice(readers), chance.upto(partitions - 1)
    duration_ms = chance.choice((300, 2_000, 8_000))
    details: dict[str, dict[str, Any]] = {
        "seek": {"name": reader, "partition": number, "share": round(chance.random(), 2)},
        "seek_to": {"name": reader, "partition": number, "where": chance.choice(("earliest", "latest"))},
        "pause": {"name": reader, "partition": number, "duration_ms": duration_ms},
        "assign": {"name": reader, "partitions": some(chance, partitions)},
        "restart_reader": {"name": reader, "down_ms": chance.choice((0, 500, 3_000))},
        "restart_writer": {"name": chance.choice(writers), "down_ms": chance.choice((0, 500, 3_000))},
        "faults": bad_network(chance),
        "move": {"partition": number, "away_ms": chance.choice((0, 300, 3_000))},
        "move_coordinator": {},
        "node_down": {"node": chance.choice(NODES), "duration_ms": duration_ms},
        "cut_off": {"name": chance.choice([*readers, *writers]), "duration_ms": duration_ms},
    }
    return details[what]


def given_up_while_others_wait(seed: int) -> Plan:
    """Return a plan in which a partition lacks a leader beyond delivery.timeout.ms while others are retried."""
    bad = {"network": NetworkFaults(delay_ms=20, breaks=0.05), "fails": 0.3, "late_ms": 300}
    steps = (
        Step(0, 0, "write", {"name": "w0", "transactional": False}),
        Step(1, 1_000, "faults", bad),
        Step(2, 3_000 + 50 * (seed % 40), "move", {"partition": 0, "away_ms": 12_000}),
    )
    return Plan(seed, GroupConfig(), {TOPIC: 2}, (), steps, 20_000)


def answers_that_never_come(seed: int) -> Plan:
    """Return a plan in which an application gets no answers beyond delivery.timeout.ms while its writes arrive."""
    steps = (
        Step(0, 0, "write", {"name": "w0", "transactional": False}),
        Step(1, 2_000 + 50 * (seed % 40), "deafen", {"name": "w0", "duration_ms": 12_000}),
    )
    return Plan(seed, GroupConfig(), {TOPIC: 2}, (), steps, 18_000)
