"""The run of one plan: applications on kohort's own clients, and faults between them and the brokers."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

from kohort.ids import TopicPartition
from simulation.checkers.property import ViolatedError
from simulation.clients.broker import TOPIC, Brokers
from simulation.clients.checkers import CHECKERS, ClientChecker, SentRecord, unfinished
from simulation.clients.partition import StoredBatch
from simulation.clients.plan import client_plan
from simulation.clients.reader import ReadingApplication
from simulation.clients.views import View
from simulation.clients.writer import WritingApplication
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import Plan, Step
from simulation.harness.world import World
from simulation.mutants.disk_mutants import planted
from simulation.run import Result

HEALING_MS = 45_000
"""The time after the last fault by which everything must be read and written: longer than every timeout of the
applications.
"""
LOOK_MS, LOOKS = 1_000, 3
"""The interval of checks, and the number of consecutive checks without unfinished work after which the run has healed.
"""


class ClientRun:
    """The world of one plan."""

    def __init__(
        self,
        plan: Plan | int,
        mutant: Any = None,
        kinds: Iterable[type[ClientChecker]] = CHECKERS,
        *,
        tells: bool = False,
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else client_plan(plan)
        self.world = World(self.plan.seed, tells=tells)
        version = self.world.stream("version").choice((1, 2, 2))
        self.brokers = Brokers(self.world, self.plan.partitions[TOPIC], version)
        self.checkers = [kind(self.world, self.brokers) for kind in kinds]
        self.readers: dict[str, ReadingApplication] = {}
        self.writers: dict[str, WritingApplication] = {}
        self._mutant = mutant
        self.brokers.on_append = self._on_append
        self.brokers.on_commit = self._on_commit
        self.brokers.coordinator.on_offsets = self._on_offsets

    def play(self) -> Result:
        """Run to the end, or to the first violation."""
        result = Result(self.plan.seed, faults=Counter(step.what for step in self.plan.steps))
        try:
            with planted(self._mutant):
                self._play()
        except ViolatedError as violated:
            result.failure, result.checker = str(violated), violated.checker
        except Exception as error:  # noqa: BLE001 - a fault is a finding, and shrinks like one
            result.failure, result.checker = traceback.format_exc(), type(error).__name__
        for application in self._applications():
            application.crash()
        result.trace = self.world.trace
        result.events, result.virtual_ms = self.world.happened, self.world.now_ms
        return result

    def _play(self) -> None:
        for step in self.plan.steps:
            if step.at_ms <= self.plan.heal_ms:
                self.world.after(step.at_ms, partial(self._take, step))
        self.world.run_until(self.plan.heal_ms)
        self._heal()
        end_ms = self.plan.heal_ms + HEALING_MS
        looks = 0
        while looks < LOOKS and self.world.now_ms < end_ms:
            self.world.run_until(self.world.now_ms + LOOK_MS)
            looks = looks + 1 if unfinished(self.brokers, *self._left()) is None else 0
        for checker in self.checkers:
            checker.at_end(*self._left())

    def _left(self) -> tuple[dict[TopicPartition, list[View]], list[SentRecord]]:
        views: dict[TopicPartition, list[View]] = defaultdict(list)
        for reader in self.readers.values():
            for partition, view in reader.views.items():
                views[partition].append(view)
        return views, [record for writer in self.writers.values() for record in writer.living]

    def _applications(self) -> list[ReadingApplication | WritingApplication]:
        return [*self.readers.values(), *self.writers.values()]

    def _take(self, step: Step) -> None:
        if self.world.tells:
            self.world.log(f"plan: {step}")
        getattr(self, f"do_{step.what}")(**step.details)

    def _heal(self) -> None:
        self.world.log("all faults end")
        self.brokers.network.faults = NetworkFaults()
        self.brokers.network.cut_off.clear()
        self.brokers.network.deaf.clear()
        self.brokers.heal()
        for application in self._applications():
            application.heal()

    # Events for the checkers.

    def _on_append(self, partition: TopicPartition, batch: StoredBatch) -> None:
        if self.world.tells:
            place = f"{partition} offset {batch.offset}, epoch {batch.epoch}, sequence {batch.sequence}"
            self.world.log(f"log: {place}: {', '.join(batch.values)} ({batch.fate.value})")
        for checker in self.checkers:
            checker.on_append(partition, batch)

    def _on_offsets(self, partition: TopicPartition) -> None:
        for checker in self.checkers:
            checker.on_offsets(partition)

    def _on_commit(self, client: str, partition: TopicPartition, offset: int, metadata: str) -> None:
        view = self.readers[client.partition(".")[0]].seen[client, partition]
        if self.world.tells:
            self.world.log(f"group: offset {offset} of {partition} is committed by {client}, call {metadata or 'none'}")
        for checker in self.checkers:
            checker.on_commit(partition, view, offset, int(metadata) if metadata else -1)

    # Steps.

    def do_read(self, name: str, partitions: tuple[int, ...]) -> None:
        """Start an application that reads these partitions."""
        reader = self.readers[name] = ReadingApplication(name, self.world, self.brokers, self.checkers)
        reader.assign(tuple(TopicPartition(TOPIC, number) for number in partitions))
        reader.start()

    def do_write(self, name: str, transactional: bool) -> None:
        """Start an application that writes, in transactions or without."""
        writer = WritingApplication(name, self.world, self.brokers, self.checkers, transactional=transactional)
        self.writers[name] = writer
        writer.start()

    def do_seek(self, name: str, partition: int, share: float) -> None:
        """Let an application seek to an offset between the beginning and the end."""
        if name in self.readers:
            self.readers[name].seek(TopicPartition(TOPIC, partition), share)

    def do_seek_to(self, name: str, partition: int, where: str) -> None:
        """Let an application seek to the beginning or the end of a partition."""
        if name in self.readers:
            self.readers[name].seek_to(TopicPartition(TOPIC, partition), where)

    def do_pause(self, name: str, partition: int, duration_ms: int) -> None:
        """Let an application pause a partition for a while."""
        if name in self.readers:
            self.readers[name].pause(TopicPartition(TOPIC, partition), duration_ms)

    def do_assign(self, name: str, partitions: tuple[int, ...]) -> None:
        """Assign other partitions to a reading application."""
        if name in self.readers:
            self.readers[name].assign(tuple(TopicPartition(TOPIC, number) for number in partitions))

    def do_restart_reader(self, name: str, down_ms: int) -> None:
        """Kill a reading application, and restart it after `down_ms`."""
        if name in self.readers:
            self.readers[name].restart(down_ms)

    def do_restart_writer(self, name: str, down_ms: int) -> None:
        """Kill a writing application, and restart it after `down_ms`."""
        if name in self.writers:
            self.writers[name].restart(down_ms)

    def do_faults(self, network: NetworkFaults, fails: float, late_ms: int) -> None:
        """Set other delays and faults of the network and the brokers."""
        self.brokers.network.faults, self.brokers.fails, self.brokers.late_ms = network, fails, late_ms

    def do_move(self, partition: int, away_ms: int) -> None:
        """Move a partition to another leader, after `away_ms` without any."""
        self.brokers.move(TopicPartition(TOPIC, partition), away_ms)

    def do_move_coordinator(self) -> None:
        """Make the other node the coordinator of the group and the transactions."""
        self.brokers.move_coordinator()

    def do_node_down(self, node: int, duration_ms: int) -> None:
        """Let a node refuse connections for a while."""
        self.brokers.down.add(node)
        self.world.after(duration_ms, lambda: self.brokers.down.discard(node))

    def do_cut_off(self, name: str, duration_ms: int) -> None:
        """Let no message pass between an application and the brokers for a while."""
        self.brokers.network.cut_off[self._client_of(name)] = self.world.now_ms + duration_ms

    def do_deafen(self, name: str, duration_ms: int) -> None:
        """Drop all responses to an application for a while; its requests still arrive."""
        self.brokers.network.deaf[self._client_of(name)] = self.world.now_ms + duration_ms

    def _client_of(self, name: str) -> str:
        application = self.readers.get(name) or self.writers.get(name)
        return str(getattr(application, "reader", getattr(application, "writer", "")))
