"""Faults of servers and members: each begins, lasts and is undone; chance draws the next one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.cluster.chaos.crowd import Crowd
from tests.cluster.chaos.probe import Asked, Known
from tests.cluster.chaos.servers import PLACEMENT_MS, SESSION_MS, Servers, stop, wake

LONG_S = PLACEMENT_MS / 1000 + 3
"""Beyond the session of a coordinator, and what it takes others to notice."""


@dataclass(slots=True)
class Fault:
    """Something that befalls one process.

    Attributes:
        family: two of one family do not come together, but for coordinators.
        seconds: how long it lasts.
        since_ns, until_ns: from when to when; 0: not yet.
        stable_ns: when all groups were stable afterwards; 0: they were not within the bound.
        missing: what was missing then.
        asked: what a coordinator was asked while it stood still.
    """

    family: str
    kind: str
    target: str
    seconds: float
    begin: Callable[[], object]
    end: Callable[[], object]
    since_ns: int = 0
    until_ns: int = 0
    stable_ns: int = 0
    missing: str = ""
    asked: list[Asked] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target} for {self.seconds:.1f} s"


class Faults:
    """Draws them.

    Args:
        beside: groups without members, of which a coordinator that stands still is asked too.
        seed: of what comes, and for how long.
    """

    def __init__(self, servers: Servers, crowds: Sequence[Crowd], beside: Sequence[Known], seed: int) -> None:
        self._servers, self._crowds, self._known = servers, crowds, (*crowds, *beside)
        self._random = random.Random(seed)

    def next(self) -> list[Fault]:
        """One, or two that come together."""
        count = len(self._servers.coordinators)
        families = ["coordinator"] * 6 + ["member"] * 2
        families += ["kafka"] * 2 * (len(self._servers.kafka) > 1) + ["zookeeper"] * 2 * bool(self._servers.zookeepers)
        first = self._of(self._random.choice(families))
        if first.family == "member" or self._random.random() > 0.3:
            return [first]
        beside = [name for name in set(families) - {"member"} if name != first.family]
        if first.family == "coordinator" and count > 2:
            beside.append("coordinator")
        if not beside:
            return [first]
        second = self._of(self._random.choice(sorted(beside)), first.target)
        return [first, second]

    def _of(self, family: str, but: str = "") -> Fault:
        drawn: Iterator[Fault] = (getattr(self, f"_{family}")() for _ in iter(int, 1))
        return next(fault for fault in drawn if fault.target != but)

    def coordinator(self, number: int, kind: str) -> Fault:
        """One that is named: `kill`, `stop` (cleanly), `blink` (stands still for a moment), `sleep` (for long)."""
        servers, target = self._servers, f"coordinator {number}"
        if kind in ("kill", "stop"):
            begin = servers.kill_coordinator if kind == "kill" else servers.stop_coordinator
            seconds = self._random.uniform(0, 6)
            return Fault(
                "coordinator", kind, target, seconds,
                lambda: begin(number), lambda: servers.restart_coordinator(number),
            )  # fmt: skip
        seconds = self._random.uniform(LONG_S, LONG_S + 4) if kind == "sleep" else self._random.uniform(0.2, 4)
        asked = [Asked(known) for known in self._known]

        def begin_pause() -> None:
            for probe in asked:
                probe.connect(servers.addresses[number])
            stop(servers.coordinators[number].process.pid)

        def end_pause() -> None:
            for probe in asked:
                probe.send()
            sleeper = servers.coordinators[number]  # another process may have its number later
            said = len(sleeper.lines)
            wake(sleeper.process.pid)
            for probe in asked:
                probe.receive()
                probe.said = lambda: "".join(sleeper.lines[said:])

        return Fault("coordinator", kind, target, seconds, begin_pause, end_pause, asked=asked)

    def _coordinator(self) -> Fault:
        number = self._random.randrange(len(self._servers.coordinators))
        if self._random.random() < 0.7:
            owner = self._servers.has(self._random.choice(self._crowds).group)
            number = number if owner is None else owner
        return self.coordinator(number, self._random.choice(("kill", "kill", "stop", "blink", "sleep", "sleep")))

    def _kafka(self) -> Fault:
        servers, number = self._servers, self._random.randrange(len(self._servers.kafka))
        node, target = servers.kafka[number], f"Kafka {number}"
        if self._random.random() < 0.6:
            seconds = self._random.uniform(0, 8)
            return Fault("kafka", "kill", target, seconds, node.kill, lambda: servers.restart_kafka(number))
        seconds = self._random.uniform(0.5, 8)
        return Fault("kafka", "sleep", target, seconds, lambda: stop(node.pid), lambda: wake(node.pid))

    def _zookeeper(self) -> Fault:
        servers = self._servers
        assert servers.zookeepers is not None
        ensemble = servers.zookeepers
        number, seconds = self._random.randrange(len(ensemble.servers)), self._random.uniform(0.5, 8)
        server, target = ensemble.servers[number], f"ZooKeeper {number}"
        if self._random.random() < 0.5:
            return Fault("zookeeper", "kill", target, seconds, server.kill, lambda: servers.restart_zookeeper(number))
        return Fault("zookeeper", "sleep", target, seconds, lambda: stop(server.pid), lambda: wake(server.pid))

    def _member(self) -> Fault:
        crowd = self._random.choice(self._crowds)
        process = self._random.choice(crowd.living)
        kind = self._random.choice(("kill", "leave", "sleep"))
        seconds = self._random.uniform(0, 3)
        if kind == "sleep":
            seconds += SESSION_MS / 1000 + 1
            return Fault(
                "member", kind, process.member.name, seconds,
                lambda: crowd.pause(process), lambda: crowd.wake(process),
            )  # fmt: skip
        begin = crowd.kill if kind == "kill" else crowd.leave
        return Fault("member", kind, process.member.name, seconds, lambda: begin(process), crowd.start)
