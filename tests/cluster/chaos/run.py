"""One run: two groups on coordinators, faults one after the other, then all heals and is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from kohort import Admin, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import KafkaError
from tests.cluster.chaos.check import stale, unstable
from tests.cluster.chaos.crowd import Crowd
from tests.cluster.chaos.faults import Fault, Faults
from tests.cluster.chaos.ledger import PARTITIONS as LEDGER_PARTITIONS
from tests.cluster.chaos.ledger import Ledger
from tests.cluster.chaos.servers import Servers
from tests.peers.churn.check import evicted, violations
from tests.peers.churn.plans import CLASSIC, CONSUMER, PUSH
from tests.peers.churn.producing import Stream
from tests.peers.churn.story import read

PARTITIONS = 6
STABLE_S = 90.0
"""A bound, not a figure: Kafka's election, a placement session and a member's, on a machine that does other work."""
LOOK_S = 0.1


class Run:
    """See the module's text.

    Args:
        folder: takes the members' logs.
        members: of each group.
        seed: of the faults.
        log: is called with each thing that is done.

    Attributes:
        happened: the faults so far.
    """

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        members: int,
        seed: int,
        log: Callable[[str], object] = print,
        records_per_s: float = 60,
    ) -> None:
        self.servers, self._log, self._began_s = servers, log, time.monotonic()
        self._members, self._records_per_s = members, records_per_s
        self.crowds = [
            Crowd(servers.servers, f"{protocol}-{servers.name}", PARTITIONS, protocol, folder)
            for protocol in (CLASSIC, CONSUMER, PUSH)
        ]
        self.ledger = Ledger(servers.servers, f"ledger-{servers.name}")
        self.faults = Faults(servers, self.crowds, [self.ledger], seed)
        self.happened: list[Fault] = []
        self._lost: list[str] = []

    def play(self, chosen: Iterable[list[Fault]]) -> list[str]:
        """Let all these happen, one after the other; gives what was violated."""
        with ExitStack() as stack, Admin(self.servers.brokers) as kafka:
            topics = {crowd.topic: PARTITIONS for crowd in self.crowds}
            every = {**topics, self.ledger.topic: LEDGER_PARTITIONS}
            kafka.create_topics([NewTopic(topic, count) for topic, count in every.items()]).all()
            self.ledger.start()
            stack.callback(self.ledger.end)
            stream = Stream(self.servers.brokers, topics, self._records_per_s)
            stack.callback(stream.stop)
            for crowd in self.crowds:
                stack.callback(crowd.close)
                for _ in range(self._members):
                    crowd.start()
            missing = self._settle(0)
            if missing:
                return [f"not stable at the start: {missing}"]
            for faults in chosen:
                self._befall(faults)
                if self.happened[-1].missing:
                    break
            return self._heal(stream)

    def _note(self, text: str) -> None:
        self._log(f"{time.monotonic() - self._began_s:8.3f} s  {text}")

    def _befall(self, faults: list[Fault]) -> None:
        self.happened += faults
        ends: list[tuple[float, Fault]] = []
        for fault in faults:
            fault.since_ns = time.monotonic_ns()
            self._note(fault.name)
            fault.begin()
            ends.append((time.monotonic() + fault.seconds, fault))
        if any(fault.family == "coordinator" and fault.kind in ("kill", "stop") for fault in faults):
            self._look_for_lost(faults)  # others have its groups at once
        for at_s, fault in sorted(ends, key=lambda end: end[0]):
            while (left_s := at_s - time.monotonic()) > 0:
                time.sleep(min(left_s, LOOK_S))
            fault.end()
            fault.until_ns = time.monotonic_ns()
            self._note(f"over: {fault.kind} {fault.target}")
            for asked in fault.asked:
                self._note(f"  {asked}")
        until_ns = time.monotonic_ns()
        missing = self._settle(until_ns)
        for fault in faults:
            fault.missing = missing
            fault.stable_ns = 0 if missing else time.monotonic_ns()
        self._look_for_lost(faults)
        self._note(missing or f"stable {(time.monotonic_ns() - until_ns) / 1e9:.1f} s later")

    def _look_for_lost(self, faults: list[Fault]) -> None:
        what = ", ".join(fault.name for fault in faults)
        self._lost += [f"after {what}: {text}" for text in self.ledger.wrong()]

    def _settle(self, since_ns: int) -> str:
        """Wait until all groups are stable; what is missing when the bound is reached."""
        bound_s = time.monotonic() + STABLE_S
        while True:
            self.servers.check()
            missing = " | ".join(filter(None, (crowd.missing(since_ns) for crowd in self.crowds)))
            if not missing or time.monotonic() > bound_s:
                return missing
            time.sleep(LOOK_S)

    def _heal(self, stream: Stream) -> list[str]:
        """Have all be consumed and committed; everything that is wrong."""
        for crowd in self.crowds:
            crowd.story.churned_ns = time.monotonic_ns()
        stream.flush()
        found = [*unstable(self.happened), *self._lost]
        for fault in self.happened:
            found += [text for asked in fault.asked for text in stale(asked)]
        for crowd in self.crowds:
            story = crowd.story
            story.produced = self._produced(crowd)
            story.unsettled = self._wait_committed(crowd)
            for process in list(crowd.living):
                crowd.leave(process)
            story.committed = self._committed(crowd)
            story.ended_ns = time.monotonic_ns()
            for member in story.members:
                member.read()
            reading = read(story)
            found += [f"{crowd.group}: {violation}" for violation in violations(reading)]
            commits = sum(commit.acknowledged for commit in reading.commits)
            self._note(f"{crowd.group}: {commits} commits acknowledged, {len(evicted(reading))} times a member lost")
        return found

    def _produced(self, crowd: Crowd) -> dict[str, list[tuple[int, int]]]:
        """Return the records in Kafka: a record that was sent twice is acknowledged without its offset."""
        found: dict[str, list[tuple[int, int]]] = {}
        with RangeReader(self.servers.brokers, columns=("value",)) as reader:
            for name in crowd.partitions:
                at = TopicPartition(crowd.topic, int(name.rpartition("/")[2]))
                batches = reader.read(at, 0, reader.end_offsets([at])[at])
                found[name] = [(0, int(value)) for batch in batches for value in batch.column(0).to_pylist()]
        return found

    def _wait_committed(self, crowd: Crowd) -> str:
        bound_s = time.monotonic() + STABLE_S
        wanted = {partition: len(records) for partition, records in crowd.story.produced.items()}
        while crowd.acknowledged != wanted and time.monotonic() < bound_s:
            crowd.look()
            time.sleep(LOOK_S)
        behind = {p: (n, crowd.acknowledged.get(p)) for p, n in wanted.items() if crowd.acknowledged.get(p) != n}
        return f"produced, committed: {behind}" if behind else ""

    def _committed(self, crowd: Crowd) -> dict[str, int]:
        """The group's offsets, by whichever coordinator has it."""
        bound_s = time.monotonic() + STABLE_S
        while True:
            try:
                with Admin(self.servers.servers) as admin:
                    found = admin.list_consumer_group_offsets(crowd.group).all()
            except KafkaError:
                if time.monotonic() > bound_s:
                    raise
                continue
            return {f"{at.topic}/{at.partition}": value.offset for at, value in found.items() if value is not None}
