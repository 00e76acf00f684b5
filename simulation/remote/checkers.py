"""Checkers of responses from a coordinator that was replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kohort.cluster.coordination.placement import from_bytes, read_placement
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.cluster.zookeeper.nodes import IDS, PLACEMENT
from kohort.coordinator.shard import READING
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects
from kohort.groups.machine import GroupMachine
from kohort.groups.records import Record
from simulation.checkers.eviction_checker import EvictionChecker
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

if TYPE_CHECKING:
    from simulation.remote.coordinator import Coordinator
    from simulation.remote.zookeeper import ZooKeeper


class OvertakenChecker(Checker):
    """A replaced coordinator answers nothing that its successor may have changed.

    It does not answer reads that arrived after the takeover. It answers other requests only because the successor's
    sessions are longer by that time.
    """

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        late_ms = self.world.now_ms - since_ms
        if late_ms > KafkaJournal.ownership_proof_ms:
            self.fail(f"overtaken {late_ms} ms ago, and answers {event} with {value}")
        if type(event) in READING and came_ms > since_ms:
            self.fail(
                f"overtaken {late_ms} ms ago, and reads {event} as {value}, which came {came_ms - since_ms} ms after"
            )


class KeptAliveChecker(EvictionChecker):
    """No member is evicted while a replaced coordinator's late response may still extend its session."""

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        super().on_loaded(machine, outcome)
        for kept in self._kept.values():
            kept.heard_ms += KafkaJournal.ownership_proof_ms


class WholeAppendChecker(Checker):
    """A loaded journal ends with all records of one event, or with none of them."""

    REMEMBERED = 500
    """The newest steps: the last records of a journal belong to one of them."""

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._steps: deque[list[Record]] = deque(maxlen=self.REMEMBERED)

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if outcome.records:
            self._steps.append(list(outcome.records))

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        if outcome.records:
            self._steps.append(list(outcome.records))

    def on_journal(self, records: list[Record]) -> None:
        if not records:
            return
        last = records[-1]
        having = [step for step in self._steps if last in step]
        if having and not any(step[-1] == last for step in having):
            self.fail(f"the journal ends within what belongs together: {last} of {having[-1]}")


class CoordinationChecker(Checker):
    """Each registered coordinator holds its node by its own session; in the end all know one complete placement."""

    SETTLED_MS = 2_000
    """The duration of a steady connection after which a coordinator must have done all pending work."""

    def on_coordination(self, coordinators: Sequence[Coordinator], zookeeper: ZooKeeper, *, at_end: bool) -> None:
        if at_end:
            self._at_end(coordinators, zookeeper)
        for coordinator in coordinators:
            session = coordinator.session
            if session is None or coordinator.life.paused or self.world.now_ms - session.since_ms < self.SETTLED_MS:
                continue
            node = zookeeper.nodes.get(f"{IDS}/{coordinator.number}")
            if node is not None and session.id in zookeeper.sessions and node.owner != session.id:
                self.fail(
                    f"{coordinator.name} has a place of session {node.owner:#x}, and is in session {session.id:#x}"
                )

    def _at_end(self, coordinators: Sequence[Coordinator], zookeeper: ZooKeeper) -> None:
        there = read_placement(from_bytes(zookeeper.nodes[PLACEMENT].data))
        missing = {coordinator.candidate for coordinator in coordinators} - set(there.candidates)
        if missing:
            self.fail(f"{missing} have no place in {there}")
        for coordinator in coordinators:
            placement = coordinator.coordination and coordinator.coordination.placement
            if placement != there:
                self.fail(f"{coordinator.name} goes by {placement}, the map is {there}")
