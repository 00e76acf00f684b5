"""The run of one plan with several coordinators over a simulated Kafka: `simulation.run` with other servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from simulation.checkers.eviction_checker import EvictionChecker
from simulation.checkers.group_checkers import ALL, Checkers
from simulation.checkers.offset_checkers import TransactionChecker
from simulation.checkers.property import Checker, Holder
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import CLASSIC, MODERN, Draft, Plan, Step
from simulation.harness.push_steps import LITERAL, OWN
from simulation.harness.world import Chance
from simulation.remote.checkers import CoordinationChecker, KeptAliveChecker, OvertakenChecker, WholeAppendChecker
from simulation.remote.fleet import Fleet, Routes
from simulation.run import SHORTEST_MS, Run

OURS: tuple[type[Checker], ...] = (OvertakenChecker, KeptAliveChecker, WholeAppendChecker, CoordinationChecker)
REMOTE: tuple[type[Checker], ...] = (
    *(kind for kind in ALL if kind not in (TransactionChecker, EvictionChecker)),
    *OURS,
)
"""The checkers of runs with several coordinators. `TransactionChecker` does not apply: these coordinators reject
transactional commits. `KeptAliveChecker` replaces the less strict `EvictionChecker`.
"""
ELSEWHERE = {"coordinator", "reload", "create", "delete", "transact", "clock"}
"""Steps of a single server, or of requests that are rejected here."""
TROUBLE = {
    "kill": 20,
    "stop": 25,
    "cut_from_kafka": 15,
    "deafen": 10,
    "cut_from_zookeeper": 15,
    "elect": 15,
    "kafka_faults": 15,
    "forget": 4,
    "mistake": 8,
    "retire": 8,
    "zookeeper_down": 3,
}
MANY = 16
"""The number of coordinators in one run of ten: candidates without the shard, which all have to agree on its owner."""
EVERY_MS = 6_000
LOOK_MS = 500
PAUSES_MS = (300, 1_500, 4_000, 8_000, 20_000)
CUTS_MS = (500, 3_000, 8_000, 15_000)


def remote_plan(seed: int) -> Plan:
    """Return the plan of a seed: the members' faults of the same seed, and faults of the coordinators."""
    plan = Draft(seed).plan()
    steps = [placed_here(step) for step in plan.steps if step.what not in ELSEWHERE]
    chance, at_ms = Chance(f"{seed}/remote"), 3_000.0
    every_ms = chance.choice((EVERY_MS, EVERY_MS // 2, 3 * EVERY_MS))
    if Chance(f"{seed}/coordinators").likely(0.1):
        plan = replace(plan, coordinators=MANY)
    while (at_ms := at_ms + chance.expovariate(1 / every_ms)) < plan.heal_ms:
        number = 10_000 + len(steps)
        steps.append(Step(number, int(at_ms), *trouble(chance, plan.coordinators)))
    return replace(plan, steps=tuple(sorted(steps, key=lambda step: (step.at_ms, step.number))))


def placed_here(step: Step) -> Step:
    """Return a member's step as it is played here, where no member is kohort's own client."""
    kind = step.details.get("kind")
    if kind is None:
        return step
    other = LITERAL if kind in (OWN, LITERAL) else MODERN if kind.endswith(MODERN) else CLASSIC
    return replace(step, details={**step.details, "kind": other})


def trouble(chance: Chance, coordinators: int) -> tuple[str, dict[str, Any]]:
    """Draw one fault."""
    what = chance.choices(list(TROUBLE), list(TROUBLE.values()))[0]
    which = chance.upto(coordinators)
    if coordinators == MANY and chance.likely(0.5):
        which = coordinators  # else most of it would befall those that have nothing
    details: dict[str, dict[str, Any]] = {
        "kill": {"down_ms": chance.choice((0, 500, 3_000, 10_000))},
        "stop": {"which": which, "duration_ms": chance.choice(PAUSES_MS)},
        "cut_from_kafka": {"which": which, "duration_ms": chance.choice(CUTS_MS)},
        "deafen": {"which": which, "duration_ms": chance.choice(CUTS_MS)},
        "cut_from_zookeeper": {"which": which, "duration_ms": chance.choice(CUTS_MS)},
        "elect": {"away_ms": chance.choice((0, 300, 3_000)), "kills": chance.likely(0.5)},
        "kafka_faults": {
            "network": NetworkFaults(
                delay_ms=chance.choice((2, 20, 300)),
                breaks=chance.choice((0.0, 0.01)),
                linger_ms=chance.choice((10, 500)),
                late=chance.choice((0.0, 0.5)),
            ),
            "fails": chance.choice((0.0, 0.02, 0.1)),
            "late_ms": chance.choice((2, 50, 600)),
        },
        "forget": {},
        "mistake": {"which": which},
        "retire": {"which": which, "down_ms": chance.choice((0, 500, 3_000))},
        "zookeeper_down": {"duration_ms": chance.choice(CUTS_MS)},
    }
    return what, details[what]


class RemoteRun(Run):
    """The world of one plan, with several coordinators."""

    fleet: Fleet

    def __init__(
        self,
        plan: Plan | int,
        mutant: Any = None,
        kinds: Iterable[type[Checker]] = REMOTE,
        *,
        tells: bool = False,
        shortest_ms: int = SHORTEST_MS,
    ) -> None:
        plan = plan if isinstance(plan, Plan) else remote_plan(plan)
        super().__init__(plan, mutant, (), tells=tells, shortest_ms=shortest_ms)
        self.network = routes = Routes(self.world)
        holders: list[Holder] = self.members  # type: ignore[assignment]
        self.checkers = Checkers(self.world, holders, self.plan.config, kinds)
        machine = None if self._planted else mutant
        self.server = self.fleet = Fleet(self.world, routes, self.plan, self.checkers, machine)  # type: ignore[assignment]
        self._administrator.network = routes
        self.entrance = routes

    def _chosen(self, which: int) -> Any:
        """Return the coordinator with a number; the number after the last stands for the one that serves."""
        serving = [coordinator for coordinator in self.fleet.coordinators if coordinator.shard is not None]
        everyone = self.fleet.coordinators
        return everyone[which] if which < len(everyone) else (serving or everyone)[0]

    def do_kill(self, down_ms: int) -> None:
        """Crash a coordinator, most often the serving one, and restart it after `down_ms`."""
        self.fleet.crash(down_ms)

    def do_stop(self, which: int, duration_ms: int) -> None:
        """Stop a coordinator's process for a while (SIGSTOP, SIGCONT)."""
        self._chosen(which).pause(duration_ms)

    def do_cut_from_kafka(self, which: int, duration_ms: int) -> None:
        """Let no message pass between a coordinator and Kafka for a while."""
        self.fleet.kafka.network.cut_off[self._chosen(which).name] = self.world.now_ms + duration_ms

    def do_deafen(self, which: int, duration_ms: int) -> None:
        """Drop Kafka's responses to a coordinator for a while; its requests still arrive."""
        self.fleet.kafka.network.deaf[self._chosen(which).name] = self.world.now_ms + duration_ms

    def do_cut_from_zookeeper(self, which: int, duration_ms: int) -> None:
        """Let no message pass between a coordinator and ZooKeeper for a while."""
        self.fleet.zookeeper.cut_off[self._chosen(which).name] = self.world.now_ms + duration_ms

    def do_zookeeper_down(self, duration_ms: int) -> None:
        """Make ZooKeeper unavailable to all coordinators for a while."""
        self.fleet.zookeeper.cut_off[""] = self.world.now_ms + duration_ms

    def do_elect(self, away_ms: int, kills: bool) -> None:
        """Elect another leader of the journal's partition, after `away_ms` without any."""
        self.fleet.kafka.elect(away_ms, kills=kills)

    def do_kafka_faults(self, network: NetworkFaults, fails: float, late_ms: int) -> None:
        """Set other delays and faults of Kafka and of the network to it."""
        kafka = self.fleet.kafka
        kafka.network.faults, kafka.fails, kafka.late_ms = network, fails, late_ms

    def do_forget(self) -> None:
        """Let Kafka forget the transactional ids, as after `transactional.id.expiration.ms`."""
        self.fleet.kafka.forget()

    def do_mistake(self, which: int) -> None:
        """Let one or more coordinators wrongly suspect another that they cannot reach; it may still reach them."""
        one = self._chosen(which)
        for other in self.fleet.coordinators:
            if other is not one and self.fleet.chance.likely(0.6):
                other.suspect(one)

    def do_retire(self, which: int, down_ms: int) -> None:
        """Stop a coordinator cleanly: it hands its shard over first, and restarts after `down_ms`."""
        self._chosen(which).retire(down_ms)

    def do_compact(self, share: float) -> None:
        """Compact the log of the journal."""
        self.fleet.kafka.partition.compact(share)

    def do_faults(self, network: NetworkFaults, disk_fails: float, disk_tears: float, disk_late_ms: int = 0) -> None:
        """Set other delays and faults of the network between members and coordinators."""
        del disk_fails, disk_tears, disk_late_ms
        self.network.faults = network

    def _play(self) -> None:
        self._check_coordination()
        super()._play()
        self.checkers.on_coordination(self.fleet.coordinators, self.fleet.zookeeper, at_end=True)

    def _check_coordination(self) -> None:
        self.world.after(LOOK_MS, self._check_coordination)
        self.checkers.on_coordination(self.fleet.coordinators, self.fleet.zookeeper, at_end=False)

    def _heal(self) -> None:
        super()._heal()
        fleet = self.fleet
        fleet.kafka.network.faults = NetworkFaults()
        for cut in (fleet.kafka.network.cut_off, fleet.kafka.network.deaf, fleet.zookeeper.cut_off):
            cut.clear()
        fleet.kafka.heal()
        for coordinator in fleet.coordinators:
            coordinator.wake()
