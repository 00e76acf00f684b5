"""The run of one plan: its world, its faults, and its end."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kohort.groups import events
from kohort.groups.events import OffsetToCommit, Topic, TopicImage
from kohort.ids import TopicId, TopicPartition
from simulation.checkers.group_checkers import ALL, Checkers, unhealthy
from simulation.checkers.property import Checker, Holder, ViolatedError
from simulation.harness.assigning import topic_id
from simulation.harness.disk import Disk, log_lines
from simulation.harness.gate import Gate
from simulation.harness.habits import Habits
from simulation.harness.network import Network, NetworkFaults
from simulation.harness.plan import CLASSIC, Draft, Plan, Step
from simulation.harness.push_gate import PushGate
from simulation.harness.server import Server
from simulation.harness.world import World
from simulation.members.classic_member import ClassicMember
from simulation.members.consumer_member import ConsumerMember
from simulation.members.literal_push import ByteClientGate, LiteralPushMember
from simulation.members.outsiders import Administrator, Hostile, Producer
from simulation.members.own_member import MEMBERSHIPS, OwnClassicMember, OwnConsumerMember, OwnMember, OwnPushMember
from simulation.members.process import Process
from simulation.mutants.disk_mutants import DiskMutant, planted

INTERNAL = "__consumer_offsets"
SHORTEST_MS = 120_000
"""The minimum virtual time of a run."""
LONGEST_HEALING_MS = 100_000
"""The time after the last fault by which every group must be stable."""
FEWEST_EVENTS = 200
"""The minimum number of events of a run."""
HEALTHY_LATE_MS = 20
"""The maximum delay of a healthy journal's answers."""
SOON_MS = 500
SETTLING_MS = 20_000
LOOK_MS = 5_000
WATCH_MS = 25_000
LOOKS = 3
"""The number of consecutive checks that find every group stable, after which the run has healed."""
MONITORED, MONITOR_MS = 0.2, 400
"""The share of runs in which a monitor reads all offsets, and its interval: offsets that it has read must not be lost
either.
"""
KINDS: dict[str, type[Process]] = {
    kind.__name__: kind
    for kind in (
        ClassicMember,
        ConsumerMember,
        OwnClassicMember,
        OwnConsumerMember,
        OwnPushMember,
        LiteralPushMember,
    )
}


@dataclass
class Result:
    """The outcome of one run.

    Attributes:
        events: the number of events.
        virtual_ms: its duration in virtual time.
        failure: the violation, None if there is none.
        trace: the last lines of the trace, if the run keeps one.
        faults: the number of steps by kind.
    """

    seed: int
    events: int = 0
    virtual_ms: int = 0
    failure: str | None = None
    checker: str | None = None
    trace: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


def racks_of(partitions: int) -> tuple[tuple[str, ...], ...]:
    """Return one replica for each partition, on two racks in turn."""
    return tuple((f"r{1 + number % 2}",) for number in range(partitions))


class Run:
    """The world of one plan.

    Attributes:
        partitions: the existing topics, with their partition counts.
        members: all members that were ever started.
    """

    def __init__(
        self,
        plan: Plan | int,
        mutant: Any = None,
        kinds: Iterable[type[Checker]] = ALL,
        *,
        tells: bool = False,
        shortest_ms: int = SHORTEST_MS,
    ) -> None:
        """`plan` is a plan or its seed; `mutant` a faulty machine, shard or disk; `kinds` the checkers."""
        self._shortest_ms = shortest_ms
        self.plan = plan if isinstance(plan, Plan) else Draft(plan).plan()
        self.world = World(self.plan.seed, tells=tells)
        self.network = Network(self.world)
        self.disk = Disk(self.world)
        self.members: list[Process] = []
        self._by_name: dict[str, Process] = {}
        holders: list[Holder] = self.members  # type: ignore[assignment]
        self.checkers = Checkers(self.world, holders, self.plan.config, kinds)
        self._planted = mutant if isinstance(mutant, type) and issubclass(mutant, DiskMutant) else None
        machine = None if self._planted else mutant
        self.server = Server(self.world, self.network, self.disk, self.plan.config, self.checkers, machine)
        self._leases_ignored = getattr(mutant, "members_ignore_leases", False)
        pushing = getattr(mutant, "push_gate", PushGate)
        self.gate = Gate(self.world, self.server, tells_leases=not self._leases_ignored, pushing=pushing)
        self.entrance: ByteClientGate = self.gate
        self._memberships = getattr(mutant, "memberships", MEMBERSHIPS)
        self.partitions = dict(self.plan.partitions)
        self._made = dict.fromkeys(self.partitions, 0)
        self._hostiles: list[Hostile] = []
        self._visitors: list[str] = []
        self._administrator = Administrator("administrator", self.world, self.network)

    def play(self) -> Result:
        """Run to the end, or to the first violation."""
        result = Result(self.plan.seed, faults=Counter(step.what for step in self.plan.steps))
        try:
            with planted(self._planted), log_lines(self.world):
                self._play()
        except ViolatedError as violated:
            result.failure, result.checker = str(violated), violated.checker
        except Exception as error:  # noqa: BLE001 - a fault is a finding, and shrinks like one
            result.failure, result.checker = traceback.format_exc(), type(error).__name__
        for member in self.members:
            if isinstance(member, OwnMember):
                member.end()
        result.trace = self.world.trace
        result.events, result.virtual_ms = self.world.happened, self.world.now_ms
        return result

    def _play(self) -> None:
        heal_ms = self.plan.heal_ms
        self._publish_topics()
        self.server.start()
        if self.world.stream("monitor").likely(MONITORED):
            self._monitor()
        for step in self.plan.steps:
            if step.at_ms <= heal_ms:
                self.world.after(step.at_ms, partial(self._take, step))
        self._look_now_and_then()
        self.world.run_until(heal_ms)
        self._heal()
        looks = 0
        while looks < LOOKS and self.world.now_ms < heal_ms + LONGEST_HEALING_MS:
            start_ms = max(heal_ms + SETTLING_MS, self._shortest_ms - LOOKS * LOOK_MS)
            self.world.run_until(max(start_ms, self.world.now_ms) + LOOK_MS)
            looks = looks + 1 if unhealthy(self.members, self.partitions) is None else 0
        while self.world.happened < FEWEST_EVENTS:
            self._people_groups()
            self.world.run_until(self.world.now_ms + LOOK_MS)
        self.checkers.at_end(self.server.waiting, self.partitions)

    def _take(self, step: Step) -> None:
        do: Callable[..., None] = getattr(self, f"do_{step.what}")
        if self.world.tells:
            self.world.log(f"plan: {step}")
        do(**step.details)

    def do_start(self, name: str, kind: str, habits: Habits) -> None:
        """Start a member of a group."""
        member = KINDS[kind](name, habits, self.world, self.network, self.checkers)
        if isinstance(member, OwnMember):
            member.gate, member.memberships = self.gate, self._memberships
        elif isinstance(member, LiteralPushMember):
            member.gate = self.entrance
        if isinstance(member, ConsumerMember | OwnConsumerMember):
            member.session_ms = self.server.config.consumer_session_timeout_ms
        if self.plan.config.notice_disconnects != "off" and habits.keeps_lease:
            member.set_lease(self.plan.config.disconnect_lease_ms, keeps=not self._leases_ignored)
        member.learn_topics(self.partitions)
        self.members.append(member)
        self._by_name[name] = member
        member.start()

    def do_visit(self, name: str, kind: str, habits: Habits, stay_ms: int) -> None:
        """Start a member of another protocol, which tries to join a group for `stay_ms`."""
        self._visitors.append(name)
        self.do_start(name, kind, habits)
        self.world.after(stay_ms, partial(self.do_crash, name))

    def _living(self, name: str) -> Process | None:
        member = self._by_name.get(name)
        return None if member is None or member.dead else member

    def do_crash(self, name: str) -> None:
        """Kill a member's process."""
        if (member := self._living(name)) is not None:
            member.crash()

    def do_leave(self, name: str) -> None:
        """Close a member, which leaves its group."""
        if (member := self._living(name)) is not None:
            member.leave()

    def do_pause(self, name: str, duration_ms: int) -> None:
        """Stop a member's process for a while (SIGSTOP, SIGCONT)."""
        member = self._living(name)
        if member is not None and not member.paused:
            member.pause(duration_ms)

    def do_cut(self, name: str) -> None:
        """Break a member's connection."""
        if (member := self._living(name)) is not None:
            member.cut()

    def do_cut_off(self, name: str, duration_ms: int) -> None:
        """Let no message pass between a member and the coordinator for a while."""
        self.network.cut_off[name] = self.world.now_ms + duration_ms

    def do_half_open(self, name: str, duration_ms: int, up: bool) -> None:
        """Delay the messages of a member in one direction for a while; the other direction works."""
        held = self.network.held_up if up else self.network.held_down
        held[name] = self.world.now_ms + duration_ms

    def do_freeze(self, name: str, looks: int, duration_ms: int) -> None:
        """Stop a member's process between two readings of its clock, when it has already read data from its sockets."""
        member = self._living(name)
        if isinstance(member, OwnMember):
            member.freeze(looks, duration_ms)
        elif member is not None and not member.paused:
            member.pause(duration_ms)

    def do_coordinator(self, down_ms: int) -> None:
        """Kill the coordinator's process, and restart it after `down_ms`."""
        self.server.crash(down_ms)

    def do_reload(self, away_ms: int) -> None:
        """Unload the coordinator's shard and load it again after `away_ms`, in the same process."""
        self.server.reload(away_ms)

    def do_subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        """Change a member's subscription."""
        if (member := self._living(name)) is not None:
            member.subscribe(topics)

    def do_faults(self, network: NetworkFaults, disk_fails: float, disk_tears: float, disk_late_ms: int = 0) -> None:
        """Set other delays and faults of the network and the disk."""
        self.network.faults = network
        self.disk.fails, self.disk.tears, self.disk.late_ms = disk_fails, disk_tears, disk_late_ms
        self.disk.apply_fault_rates()

    def do_clock(self, jump_ms: int) -> None:
        """Let the wall clock jump by `jump_ms`."""
        self.world.skew_ms += jump_ms

    def do_weeks(self, jump_ms: int) -> None:
        """Advance the wall clock by weeks, so that committed offsets expire; nothing else happens meanwhile."""
        self.world.skew_ms += jump_ms
        self.server.pass_weeks()

    def do_commit(self, group_id: str, topic: str, retention_ms: int) -> None:
        """Commit an offset by a client outside the group, perhaps with an explicit retention time."""
        offset = OffsetToCommit(topic, self._administrator.chance.upto(3), self.checkers.fresh_offset())
        self._administrator.send(events.OffsetCommit(0, group_id, "", -1, (offset,), retention_ms=retention_ms))

    def do_compact(self, share: float) -> None:
        """Compact the log of the journal."""
        self.disk.compact(share)

    def do_grow(self, topic: str) -> None:
        """Add a partition to a topic."""
        if topic in self.partitions:
            self.partitions[topic] += 1
            self._publish_topics()

    def do_create(self, topic: str) -> None:
        """Create a topic, perhaps with the name of a deleted topic.

        It waits until the coordinator has noted that the last was deleted.
        """
        if topic in self.partitions:
            return
        if not self.server.may_create(topic):
            self.world.after(self.server.chance.upto(SOON_MS), partial(self.do_create, topic))
        else:
            self.partitions[topic] = 2
            self._made[topic] = self._made.get(topic, -1) + 1
            self._publish_topics()

    def do_delete(self, topic: str) -> None:
        """Delete a topic, unless the coordinator is down, which is part of the broker that deletes topics."""
        if self.server.shard is None:
            self.world.after(LOOK_MS, partial(self.do_delete, topic))
        elif topic in self.partitions:
            del self.partitions[topic]
            self.checkers.on_deleted(topic)
            self._publish_topics(deleted=topic)

    def do_transact(
        self, name: str, group_id: str, topic: str, member: str | None, commit: bool, delay_ms: int
    ) -> None:
        """Let a producer commit offsets of a group in a transaction."""
        producer = Producer(name, self.world, self.network, self.server, self.checkers)
        producer.run(group_id, topic, None if member is None else self._living(member), commit, delay_ms)

    def do_look(self) -> None:
        """Let an administrator list and describe all groups."""
        self._administrator.look(self.plan.group_ids)

    def _monitor(self) -> None:
        """Begin to read all committed offsets at intervals."""
        self._administrator.read(self.plan.group_ids)
        self.world.after(MONITOR_MS, self._monitor)

    def _look_now_and_then(self) -> None:
        """List and describe all groups at intervals, as monitoring tools do."""
        self.world.after(WATCH_MS, self._look_now_and_then)
        self._administrator.look(self.plan.group_ids)

    def do_delete_group(self, group_id: str) -> None:
        """Let an administrator delete a group, which succeeds if the group is empty."""
        self._administrator.send(events.DeleteGroups(0, (group_id,)))

    def do_delete_offsets(self, group_id: str, topic: str) -> None:
        """Let an administrator delete a group's offsets of a topic, which succeeds if no member reads the topic."""
        partitions = tuple(TopicPartition(topic, number) for number in range(self.partitions.get(topic, 0)))
        self._administrator.send(events.OffsetDelete(0, group_id, partitions))

    def do_remove(self, name: str) -> None:
        """Let an administrator remove a member."""
        if (member := self._living(name)) is not None:
            self._administrator.remove(member.group_id, member)

    def do_hostile(self, name: str, group_id: str) -> None:
        """Start a client that sends malformed and stale requests for the rest of the fault phase."""
        hostile = Hostile(name, self.world, self.network, (group_id,), self.members, self.checkers)
        self._hostiles.append(hostile)
        hostile.start()

    def _publish_topics(self, deleted: str | None = None) -> None:
        version = self.server.image.version + 1
        ids = {name: topic_id(name, self._made[name]) for name in self.partitions}
        self.world.topic_ids = ids
        topics = {name: Topic(name, ids[name], count, racks_of(count)) for name, count in self.partitions.items()}
        topics[INTERNAL] = Topic(INTERNAL, TopicId(int=2**100), 1)
        self.server.change_topics(TopicImage(version, topics), deleted)
        for member in self.members:
            member.learn_topics(self.partitions)

    def _heal(self) -> None:
        self.world.log("all faults end")
        self.network.faults = NetworkFaults()
        for faults in (self.network.cut_off, self.network.held_up, self.network.held_down):
            faults.clear()
        self.disk.fails = self.disk.tears = 0.0
        self.disk.late_ms = min(self.disk.late_ms, HEALTHY_LATE_MS)
        self.disk.apply_fault_rates()
        for hostile in self._hostiles:
            hostile.crash()
        for name in self._visitors:
            self.do_crash(name)
        for member in self.members:
            member.heal()
            member.wake()
            member.learn_topics(self.partitions)
        self._people_groups()

    def _people_groups(self) -> None:
        """Start a member in each group that has none."""
        for group_id in self.plan.group_ids:
            mine = [member for member in self.members if member.group_id == group_id]
            if all(member.dead for member in mine):
                self.do_start(f"last-{group_id}-{len(mine)}", CLASSIC, Habits(group_id, tuple(self.partitions)))
