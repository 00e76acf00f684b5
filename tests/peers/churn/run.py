"""One run: a group is started, churned, left to heal, and told as a story."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import string
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.errors import KafkaError
from kohort.io.java import start_dependent_child
from tests.peers.churn import clients
from tests.peers.churn.places import Place
from tests.peers.churn.plans import CLASSIC, CONSUMER, GROWN, GROWS_AT, TOPICS, Kind, Plan
from tests.peers.churn.producing import Stream
from tests.peers.churn.story import Member, Outage, Pause, Story, read

GROUP = "churn"
HEAL_S = 90
STOP_S = 40
LEARN_S = 8
"""Of two processes with one instance id, one is refused and learns of it, or is ended."""
_LIVING_MIN = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """How long and how hard.

    Attributes:
        churn_s: how long members come and go.
        event_s: the shortest and the longest time between two events.
        records_per_s: produced, over all partitions.
        outage_every_s: how often the broker is killed; 0: never.
        seed: of the events; the rest of a run is not repeatable.
    """

    churn_s: float
    event_s: tuple[float, float] = (1.0, 3.0)
    records_per_s: float = 200
    outage_every_s: float = 0
    seed: int = 0


@dataclass(slots=True)
class _Process:
    """A member under way."""

    member: Member
    kind: Kind
    process: subprocess.Popen[bytes]
    wake_at: float = 0.0
    asked_to_stop: float = 0.0
    superseded: float = 0.0

    @property
    def paused(self) -> bool:
        return self.wake_at > 0

    @property
    def leaving(self) -> bool:
        return self.asked_to_stop > 0

    @property
    def counts(self) -> bool:
        """Whether the group is to have it."""
        return not self.leaving and not self.superseded


class Run:
    """The driver.

    Args:
        place: the broker, running.
        folder: takes the members' logs and what they print.
        unavailable: clients that can't be had here are left out.
        log: is called with each thing that is done.
    """

    def __init__(
        self,
        plan: Plan,
        pace: Pace,
        place: Place,
        folder: Path,
        log: Callable[[str], None] = lambda _: None,
        unavailable: frozenset[str] = frozenset(),
    ) -> None:
        self.plan, self.pace, self.place, self.folder, self._log = plan, pace, place, folder, log
        self._kinds = [kind for kind in plan.kinds if kind.client not in unavailable]
        self._commands = {kind.client: clients.command(kind.client) for kind in self._kinds}
        self._random = random.Random(pace.seed)
        self._living: list[_Process] = []
        self._count = 0
        self.story = Story(plan.session_ms, plan.heartbeat_ms)

    def run(self) -> Story:
        """Does it all. Every process that it started is gone afterwards."""
        story = self.story
        story.began_ns = time.monotonic_ns()
        self._note(f"began at {story.began_ns} ns")
        with Admin(self.place.servers) as admin:
            admin.create_topics([NewTopic(topic, count) for topic, count in TOPICS.items()]).all()
            stream = Stream(self.place.servers, TOPICS, self.pace.records_per_s)
            try:
                self._churn(admin, stream)
                story.churned_ns = time.monotonic_ns()
                for process in self._living:
                    self._wake(process)
                for kind in self._kinds:
                    for _ in range(kind.count - self._number_of(kind)):
                        self._start(kind, 1.0)
                story.unsettled = self._wait(lambda: self._idle(stream))
                story.produced = stream.finish()
                story.unsettled = story.unsettled or self._wait(lambda: self._missing(admin))
                self._stop_all()
                story.committed = self._committed(admin)
                story.ended_ns = time.monotonic_ns()
            finally:
                stream.stop()
                for process in list(self._living):
                    self._end(process)
        for member in story.members:
            member.read()
        return story

    # Churn.

    def _churn(self, admin: Admin, stream: Stream) -> None:
        started, grown = time.monotonic(), False
        next_event, next_outage = started, started + (self.pace.outage_every_s or 1e9)
        for kind in self._kinds:
            for _ in range(kind.count):
                self._start(kind, 0.0)
        while (now := time.monotonic()) < started + self.pace.churn_s:
            self._look(now)
            if now >= next_outage:
                self._outage()
                next_outage = time.monotonic() + self.pace.outage_every_s
            elif now >= next_event:
                self._event((now - started) / self.pace.churn_s)
                next_event = time.monotonic() + self._random.uniform(*self.pace.event_s)
            elif not grown and now >= started + GROWS_AT * self.pace.churn_s:
                grown = self._grow(admin, stream)
            time.sleep(0.02)

    def _grow(self, admin: Admin, stream: Stream) -> bool:
        """A topic gets more partitions."""
        admin.create_partitions({GROWN[0]: GROWN[1]}).all()
        stream.grow(*GROWN)
        self._note(f"{GROWN[0]} has {GROWN[1]} partitions")
        return True

    def _look(self, now: float) -> None:
        """Wakes who slept enough, and notes who is gone."""
        for process in list(self._living):
            if process.paused and now >= process.wake_at:
                self._wake(process)
            if process.process.poll() is not None:
                self._gone(process)
            elif process.leaving and now > process.asked_to_stop + STOP_S and not process.paused:
                process.member.died = f"did not close within {STOP_S} s"
                self._kill(process)
            elif process.superseded and not process.paused and now > process.superseded + LEARN_S:
                self._kill(process)

    def _event(self, share: float) -> None:
        """One thing happens to the group."""
        protocols = self.plan.protocols(share)
        missing = [kind for kind in self._kinds if self._number_of(kind) < kind.count]
        awake = [process for process in self._living if not process.paused and process.counts]
        strangers = [process for process in awake if process.member.protocol not in protocols]
        if missing and (len(awake) <= _LIVING_MIN or self._random.random() < 0.5):
            self._start(self._random.choice(missing), share)
        elif self.plan.static and self._random.random() < 0.2:
            twin = self._random.choice([process for process in self._living if process.counts])
            self._start(twin.kind, share, twin)
        elif len(awake) > _LIVING_MIN:
            victim = self._random.choice(strangers or awake)
            roll = self._random.random()
            if roll < 0.35:
                self._stop(victim)
            elif roll < 0.65:
                self._kill(victim)
            elif roll < 0.85:
                self._pause(victim, self.plan.session_ms / 1000 + self._random.uniform(0.5, 4))
            else:
                self._pause(victim, self._random.uniform(0.3, 2))

    def _number_of(self, kind: Kind) -> int:
        """A static member's id is free again only when each process that has it is gone."""
        mine = [process for process in self._living if process.kind == kind]
        if self.plan.static:
            return len({process.member.instance for process in mine})
        return sum(process.counts for process in mine)

    def _instance(self, kind: Kind) -> str:
        """An instance id of this kind that no process has now."""
        if not self.plan.static:
            return ""
        taken = {process.member.instance for process in self._living}
        return next(name for n in range(kind.count) if (name := f"{kind.client}-{n}") not in taken)

    def _start(self, kind: Kind, share: float, twin: _Process | None = None) -> None:
        """Starts a member, or a second process with the instance id of a living one."""
        self._count += 1
        protocol = self._random.choice(self.plan.protocols(share))
        # Member ids begin with the client id: chance decides who comes first when a leader sorts them.
        name = f"{self._random.choice(string.ascii_lowercase)}{self._count}-{kind.client}-{protocol}"
        log = self.folder / f"{name}.log"
        orders = {
            "servers": self.place.servers,
            "group": GROUP,
            "topics": ",".join(TOPICS),
            "protocol": protocol,
            "strategy": self.plan.strategy,
            "name": name,
            "instance": self._instance(kind) if twin is None else twin.member.instance,
            "log": log,
            "session": self.plan.session_ms,
            "heartbeat": self.plan.heartbeat_ms,
            "rebalance": self.plan.rebalance_ms,
        }
        member = Member(name, kind.client, protocol, log, time.monotonic_ns(), instance=str(orders["instance"]))
        command = [*self._commands[kind.client], *(f"{key}={value}" for key, value in orders.items())]
        with self._errors(member).open("wb") as errors:
            process = start_dependent_child(command, stdin=subprocess.PIPE, stdout=errors, stderr=subprocess.STDOUT)
        self.story.members.append(member)
        self._living.append(_Process(member, kind, process))
        if twin is not None and protocol == CLASSIC:  # the older is fenced
            twin.member.superseded_ns, twin.superseded = member.started_ns, time.monotonic()
        elif protocol == CONSUMER and (twin is not None or self._may_be_member(member)):
            # The younger is refused for as long as the older is a member.
            self._living[-1].superseded = time.monotonic()
        self._note(f"start {name}" + (f" with the instance id of {twin.member.name}" if twin is not None else ""))

    def _may_be_member(self, member: Member) -> bool:
        """Whether one that was killed with this one's instance id may not have been missed yet."""
        still_ns = member.started_ns - (self.plan.session_ms + 3_000) * 1_000_000
        before = [other for other in self.story.members if other.instance == member.instance != ""]
        return any(other.killed and (other.ended_ns or 0) > still_ns for other in before)

    def _errors(self, member: Member) -> Path:
        return self.folder / f"{member.name}.err"

    def _stop(self, process: _Process) -> None:
        """Asks it to close."""
        process.asked_to_stop = time.monotonic()
        assert process.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.process.stdin.close()
        self._note(f"stop {process.member.name}")

    def _kill(self, process: _Process) -> None:
        process.member.killed, process.member.ended_ns = True, time.monotonic_ns()  # others have its share at once
        self._end(process)
        self._note(f"kill {process.member.name}")

    def _end(self, process: _Process) -> None:
        process.process.kill()
        process.process.wait()
        process.member.ended_ns = process.member.ended_ns or time.monotonic_ns()
        self._forget(process)

    def _forget(self, process: _Process) -> None:
        assert process.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.process.stdin.close()
        self._living.remove(process)

    def _pause(self, process: _Process, seconds: float) -> None:
        process.member.pauses.append(Pause(time.monotonic_ns()))
        os.kill(process.process.pid, signal.SIGSTOP)
        process.wake_at = time.monotonic() + seconds
        self._note(f"pause {process.member.name} for {seconds:.1f} s")

    def _wake(self, process: _Process) -> None:
        if process.paused:
            process.member.pauses[-1].until_ns = time.monotonic_ns()  # first: it may speak before we run again
            os.kill(process.process.pid, signal.SIGCONT)
            process.wake_at = 0.0
            self._note(f"wake {process.member.name}")

    def _gone(self, process: _Process) -> None:
        member, code = process.member, process.process.returncode
        member.ended_ns = time.monotonic_ns()
        self._forget(process)
        if process.counts or (code != 0 and not process.superseded):
            last = self._errors(member).read_text(errors="replace").split("\n")[-8:]
            member.died = f"ended with code {code}: {' | '.join(last)}"[:600]
        self._note(f"gone {member.name} {member.died}")

    def _outage(self) -> None:
        since = time.monotonic_ns()
        self._note("kill the broker")
        self.place.kill()
        time.sleep(self._random.uniform(0, 2))
        started = time.monotonic_ns()
        self.place.start()
        self.story.outages.append(Outage(since, started, time.monotonic_ns()))
        self._note("the broker is back")

    def _note(self, text: str) -> None:
        self._log(f"{(time.monotonic_ns() - self.story.began_ns) / 1e9:8.3f} s  {text}")

    # Healing.

    def _wait(self, look: Callable[[], str]) -> str:
        """Waits until nothing is missing any more; what still is when it takes too long."""
        deadline = time.monotonic() + HEAL_S
        while True:
            self._look(time.monotonic())
            missing = look()
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.5)

    def _idle(self, stream: Stream) -> str:
        """Partitions without exactly one owner, and members that have nothing or have not worked since churn ended."""
        unowned = self._unowned(list(stream.acknowledged))
        if unowned:
            return unowned
        idle = [process.member.name for process in self._living if process.counts and not self._works(process.member)]
        return f"without work: {idle}" if idle else ""

    def _works(self, member: Member) -> bool:
        return any(event["e"] == "records" and event["t"] > self.story.churned_ns for event in member.events)

    def _missing(self, admin: Admin) -> str:
        """Return records not consumed and committed, and partitions without exactly one owner."""
        try:
            committed = self._committed(admin)
        except KafkaError as error:
            return f"the group can't be asked: {error}"
        behind = {
            where: len(records) - committed.get(where, 0)
            for where, records in self.story.produced.items()
            if committed.get(where, 0) != len(records)
        }
        if behind:
            return f"not committed yet: {behind}"
        if any(not process.counts for process in self._living):
            return "members are still leaving"
        return self._unowned(list(self.story.produced))

    def _unowned(self, partitions: Sequence[str]) -> str:
        """Partitions without exactly one owner among the living, by their own word."""
        now_ns = time.monotonic_ns()
        view = Story(self.plan.session_ms, self.plan.heartbeat_ms, ended_ns=now_ns)
        for process in self._living:
            member = process.member
            member.read()
            view.members.append(member)
        owners: dict[str, list[str]] = {where: [] for where in partitions}
        for ownership in read(view).ownerships:
            if ownership.how == "held":
                owners[ownership.partition].append(ownership.member.name)
        wrong = {where: names for where, names in owners.items() if len(names) != 1}
        return f"without exactly one owner: {wrong}" if wrong else ""

    def _stop_all(self) -> None:
        for process in self._living:
            if not process.leaving:
                self._stop(process)
        deadline = time.monotonic() + STOP_S + 1
        while self._living and time.monotonic() < deadline:
            self._look(time.monotonic())
            time.sleep(0.02)

    def _committed(self, admin: Admin) -> dict[str, int]:
        found = admin.list_consumer_group_offsets(GROUP).all()
        return {f"{part.topic}/{part.partition}": value.offset for part, value in found.items() if value is not None}
