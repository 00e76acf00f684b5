"""The coordinators under load: ours and Apache Kafka's, each a process that can be killed and started again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.apache_kafka import SERVER_OPTIONS, ApacheKafka
from tests.support.maven import MavenUnavailable

from bench.harness import JVM_WARM_S, RunFailed
from kohort import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "3000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "10000",
}
"""The same for both: heartbeats every 3 s, sessions of 10 s."""


def shorter(session_ms: int) -> dict[str, str]:
    """Return the common settings with shorter sessions, and three heartbeats in each."""
    session, interval = str(session_ms), str(session_ms // 3)
    return {
        **SETTINGS,
        "group.min.session.timeout.ms": session,
        "group.consumer.min.heartbeat.interval.ms": interval,
        "group.consumer.heartbeat.interval.ms": interval,
        "group.consumer.min.session.timeout.ms": session,
        "group.consumer.session.timeout.ms": session,
    }


TICKS_S = os.sysconf("SC_CLK_TCK")


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


@dataclass(frozen=True, slots=True)
class Coordinator:
    """One coordinator.

    Attributes:
        pid: of the process that runs now.
        warm_s: how long it takes a load before that counts: a JVM compiles what it runs often.
    """

    name: str
    servers: str
    kill: Callable[[], None]
    start: Callable[[], None]
    pid: Callable[[], int]
    warm_s: float = 0.0

    def cpu_s(self) -> float:
        """Return the CPU seconds of the coordinator's process."""
        return cpu_s_of(self.pid())

    def memory_mib(self) -> float:
        """Return the resident memory of the coordinator's process.

        Raises:
            RunFailed: it has ended.
        """
        for line in Path(f"/proc/{self.pid()}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RunFailed(f"the process of {self.name} has ended")


@contextmanager
def coordinators(
    more: Mapping[str, str] | None = None, settings: Mapping[str, str] = SETTINGS
) -> Iterator[list[Coordinator]]:
    """Ours, and Apache Kafka where it can run, both fresh.

    Args:
        more: settings of ours alone.
        settings: of both.
    """
    with ExitStack() as running:
        ours = running.enter_context(Broker(config={**settings, **(more or {})}))
        found = [Coordinator("kohort", ours.bootstrap_servers, ours.kill, ours.restart, lambda: ours.pid)]
        with suppress(MavenUnavailable):
            kafka = running.enter_context(ApacheKafka(settings, SERVER_OPTIONS))
            peer = ("Apache Kafka", kafka.bootstrap_servers, kafka.kill, kafka.start)
            found.append(Coordinator(*peer, lambda: kafka.pid, JVM_WARM_S))
        yield found
