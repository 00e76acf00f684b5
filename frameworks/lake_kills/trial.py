"""One trial: a bounded stream of numbered records, workers killed by a schedule, and the account of the table."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.supervise import descendants

from frameworks.brokers import FrameworkBroker
from frameworks.framework import INPUT, Site
from frameworks.lake_kills.table import Look, NumbersTable, OtherWriters
from frameworks.lake_kills.writers import LakeWriter
from frameworks.run import DOWN_S, REVIVE_S, MemberProcess
from kohort import Producer
from kohort.client.producer.batches import Delivery

START_S = 240.0
"""The longest wait for a writer's first row."""
SETTLE_S = 35.0
"""How long the table is watched once every record is there: Connect's sink ends a commit after 30 s at the latest."""
STALL_S = 120.0
"""After this time without a new row, once all records are produced, what is missing counts as lost."""
LOOK_S = 1.0
READ_EVERY_S = 2.0
SEND_S = 0.05
FAULT_SPREAD = (0.5, 1.5)
"""The least and the greatest time between two faults, as a share of the mean."""
AWAY_S = {"kill": DOWN_S, "pause": (2.0, 12.0), "leave": (4.0, 20.0)}
"""The shortest and the longest absence: a paused worker's session (6 s) ends for half of the pauses."""


class WriterStuck(Exception):
    """A writer wrote no row at all; the text has its workers' last lines."""


@dataclass(frozen=True, slots=True)
class TimedFault:
    """A fault of one worker.

    Attributes:
        at_s: seconds after the writer's first row.
        worker: number of the worker.
        down_s: how long the worker stays away.
        kind: "kill" (SIGKILL), "pause" (SIGSTOP, then SIGCONT), or "leave" (SIGTERM: the group has a member less).
    """

    at_s: float
    worker: int
    down_s: float
    kind: str = "kill"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Stream and faults, the same for each writer.

    Attributes:
        seed: decides whom a fault hits when, and for how long.
        seconds: how long records are produced and workers disturbed after the writer's first row.
        every_s: mean time between two faults.
        rate: records a second.
        settle_s: how long the table must be at rest in the end when it has all records.
        stall_s: how long it must be at rest before missing records are lost.
        others: whether others append to the table and compact it meanwhile.
        kinds: the kinds of faults, one of which is drawn for each.
    """

    seed: int
    seconds: float
    every_s: float = 8.0
    rate: int = 200
    settle_s: float = SETTLE_S
    stall_s: float = STALL_S
    others: bool = False
    kinds: Sequence[str] = ("kill",)

    def faults(self, workers: int) -> list[TimedFault]:
        """Return the faults, at the same times for any number of workers."""
        faults: list[TimedFault] = []
        chance, kinds, at_s = random.Random(self.seed), random.Random(f"kinds-{self.seed}"), 0.0
        while True:
            at_s += self.every_s * chance.uniform(*FAULT_SPREAD)
            worker, share = int(chance.random() * workers), chance.uniform(0, 1)
            kind = kinds.choice(self.kinds)
            shortest_s, longest_s = AWAY_S[kind]
            if at_s > self.seconds:
                return faults
            away_s = shortest_s + (longest_s - shortest_s) * share
            faults.append(TimedFault(round(at_s, 3), worker, round(away_s, 3), kind))


@dataclass(frozen=True, slots=True)
class LakeAccount:
    """Account of a table against the records that were acknowledged to the producer.

    Attributes:
        acknowledged: records of which the producer knows that the broker has them.
        rows: rows of the topic's records.
        lost: acknowledged records without a row.
        doubled: rows beyond the first of their record.
        unknown: rows of numbers that nobody wrote.
        foreign: rows that other writers know to be in the table.
        foreign_faults: how many of those are missing or doubled.
    """

    acknowledged: int
    rows: int
    lost: int
    doubled: int
    unknown: int
    foreign: int = 0
    foreign_faults: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether each record and each foreign row is there once."""
        return not (self.lost or self.doubled or self.unknown or self.foreign_faults)


def account(
    acknowledged: Iterable[int], sent: int, found: Mapping[int, int], foreign: Iterable[int] = (), tried: int = 0
) -> LakeAccount:
    """Compare a table with what was produced.

    Args:
        acknowledged: the acknowledged numbers.
        sent: how many records were sent, numbered from 0. One that was not acknowledged may be in the table or not.
        found: how often each number is in the table.
        foreign: the negative numbers that other writers have appended.
        tried: how many they have tried to append, numbered from -1 downwards.
    """
    known, others = set(acknowledged), set(foreign)
    return LakeAccount(
        acknowledged=len(known),
        rows=sum(count for number, count in found.items() if number >= 0),
        lost=len(known - found.keys()),
        doubled=sum(count - 1 for number, count in found.items() if 0 <= number < sent),
        unknown=sum(count for number, count in found.items() if not -tried <= number < sent),
        foreign=len(others),
        foreign_faults=sum(found.get(number, 0) != 1 for number in others),
    )


def half_looks(looks: Iterable[Look], records: Mapping[int, Sequence[int]]) -> int:
    """Return how often a reader saw other rows than those before the offsets that the table named.

    Args:
        looks: what the reader saw.
        records: the numbers of each partition, in the order of their offsets.
    """
    return sum(not _is_whole(look, records) for look in looks)


def _is_whole(look: Look, records: Mapping[int, Sequence[int]]) -> bool:
    before = [numbers[: look.offsets.get(partition, 0)] for partition, numbers in records.items()]
    return (look.rows, look.total) == (sum(map(len, before)), sum(map(sum, before)))


@dataclass(frozen=True, slots=True)
class LakeOutcome:
    """The outcome of a trial.

    Attributes:
        kills: workers that were killed.
        pauses: workers that were stopped for a while by SIGSTOP.
        leaves: workers that left and came back later: the group became smaller and larger.
        ended: how many times a worker ended by itself, and was started again as a supervisor does.
        snapshots: snapshots of the table.
        looks: how often a reader read a table that names its offsets.
        half_looks: how often it saw other rows than those before these offsets.
        compactions: how often another program has written all files of the table anew.
        worker_mib: the most resident memory of one worker with its children, looked at once a second and before kills.
        behind_s: seconds from the last record to the time when all records were in the table; None: never.
    """

    writer: str
    title: str
    version: str
    settings: str
    broker: str
    broker_version: str
    seed: int
    seconds: float
    account: LakeAccount
    kills: int
    pauses: int
    leaves: int
    ended: int
    snapshots: int
    looks: int
    half_looks: int
    compactions: int
    worker_mib: float
    behind_s: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class NumberedStream:
    """A thread that produces the numbers 0, 1, 2 … at a bounded rate until it is stopped.

    Attributes:
        sent: how many records were handed to the producer.
    """

    def __init__(self, servers: str, rate: int) -> None:
        self.sent = 0
        self._servers, self._rate = servers, rate
        self._deliveries: list[Delivery] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began_s = time.monotonic()
        with Producer(self._servers) as producer:
            while not self._stopped.wait(SEND_S):
                due = int((time.monotonic() - began_s) * self._rate)
                for number in range(self.sent, due):
                    self._deliveries.append(producer.send(INPUT, f'{{"number":{number}}}'))
                    self.sent += 1
            producer.flush()

    def stop(self) -> dict[int, tuple[int, int]]:
        """Send no more; return partition and offset of each number that the broker has acknowledged."""
        self._stopped.set()
        self._thread.join()
        known = {}
        for number, delivery in enumerate(self._deliveries):
            if delivery.exception() is None:
                where = delivery.result()
                known[number] = (where.partition, where.offset)
        return known


class Trial:
    """A trial under way.

    Args:
        writer: what writes; it is prepared.
        site: its folder and address.
        table: what it writes.
        plan: what is done to it.
        say: takes a line about progress.
    """

    def __init__(
        self, writer: LakeWriter, site: Site, table: NumbersTable, plan: TrialPlan, say: Callable[[str], None]
    ) -> None:
        self._writer, self._site, self._table, self._plan, self._say = writer, site, table, plan, say
        self._workers: list[MemberProcess] = []
        self._returns: dict[int, float] = {}
        self._resumes: dict[int, float] = {}
        self.faults: Counter[str] = Counter()
        self.ended = self.half_looks = self.compactions = 0
        self.worker_mib = self._measured_s = 0.0
        self.behind_s: float | None = None

    def run(self) -> LakeAccount:
        """Produce for some seconds after the writer's first row, carry out the faults, and wait for the rest.

        Raises:
            WriterStuck: no row came in time.
        """
        try:
            for number in range(self._writer.members):
                command = partial(self._writer.command, self._site, number)
                self._workers.append(MemberProcess(command, self._site.member_folder(number)))
            self._writer.begin(self._site)
            stream = NumberedStream(self._site.servers, self._plan.rate)
            others = OtherWriters(self._site.folder) if self._plan.others else None
            try:
                self._wait_for_first_row()
                self._disturb_by_schedule()
            finally:
                self._resume(math.inf)
                acknowledged = stream.stop()
                if others is not None:
                    others.stop()
            self._wait_for_all(set(acknowledged))
            for worker in self._workers:
                worker.stop()
            foreign, tried = (set[int](), 0) if others is None else (others.appended, others.tried)
            self.compactions = 0 if others is None else others.compactions
            found = account(acknowledged, stream.sent, self._table.read(), foreign, tried)
            if len(acknowledged) == stream.sent:
                self.half_looks = half_looks(self._table.looks, _by_partition(acknowledged))
            return found
        finally:
            for worker in self._workers:
                worker.kill()

    def _wait_for_first_row(self) -> None:
        until_s = time.monotonic() + START_S
        while not self._table.read():
            self._supervise()
            if time.monotonic() > until_s:
                raise WriterStuck(f"no row in {START_S:.0f} s; {self._last_lines()}")
            time.sleep(LOOK_S)

    def _disturb_by_schedule(self) -> None:
        began_s, due, look_s = time.monotonic(), self._plan.faults(self._writer.members), 0.0
        while (now_s := time.monotonic() - began_s) < self._plan.seconds:
            self._supervise()
            if due and now_s >= due[0].at_s:
                self._disturb(due.pop(0))
            if now_s > look_s:
                self._table.read()
                look_s = now_s + READ_EVERY_S
            time.sleep(SEND_S)

    def _disturb(self, fault: TimedFault) -> None:
        worker = self._workers[fault.worker]
        if worker.exit_code is not None or fault.worker in self._resumes or fault.worker in self._returns:
            self._say(f"worker {fault.worker} is away already")
            return
        self._say(f"{fault.kind} worker {fault.worker} for {fault.down_s:.1f} s")
        self._measure()
        self.faults[fault.kind] += 1
        until_s = time.monotonic() + fault.down_s
        if fault.kind == "pause":
            worker.pause()
            self._resumes[fault.worker] = until_s
            return
        if fault.kind == "kill":
            worker.kill()
        else:
            worker.terminate()
        self._returns[fault.worker] = until_s

    def _resume(self, now_s: float) -> None:
        """Let paused workers go on whose time has come."""
        for number, until_s in list(self._resumes.items()):
            if until_s <= now_s:
                del self._resumes[number]
                self._workers[number].resume()

    def _supervise(self) -> None:
        """Start workers that are due to return; those that ended by themselves return after a moment too."""
        now_s = time.monotonic()
        if now_s - self._measured_s > LOOK_S:
            self._measured_s = now_s
            self._measure()
        self._resume(now_s)
        for number, worker in enumerate(self._workers):
            if number in self._returns:
                if self._returns[number] <= now_s:
                    del self._returns[number]
                    worker.kill()  # one that should have left by now
                    worker.start()
            elif worker.exit_code is not None:
                self._say(f"worker {number} ended by itself with code {worker.exit_code}, and is started again")
                self.ended += 1
                self._returns[number] = now_s + REVIVE_S

    def _measure(self) -> None:
        """Measure the memory of each worker with the processes below it."""
        for worker in self._workers:
            if worker.exit_code is None:
                total = sum(map(resident_mib, (worker.pid, *descendants(worker.pid))))
                self.worker_mib = max(self.worker_mib, total)

    def _wait_for_all(self, acknowledged: set[int]) -> None:
        """Wait until all records are in the table and the table is at rest, or until nothing moves any more."""
        began_s = moved_s = time.monotonic()
        before: Counter[int] = Counter()
        while True:
            self._supervise()
            found, now_s = self._table.read(), time.monotonic()
            if found != before:
                before, moved_s = found, now_s
            is_whole = acknowledged <= found.keys()
            if is_whole and self.behind_s is None:
                self.behind_s = round(now_s - began_s, 1)
                self._say(f"all {len(acknowledged)} records are there after {self.behind_s} s")
            if now_s - moved_s > (self._plan.settle_s if is_whole else self._plan.stall_s):
                return
            time.sleep(LOOK_S)

    def _last_lines(self) -> str:
        ends = [worker.log.read_text(errors="replace")[-1500:] for worker in self._workers]
        return "the workers' last lines:\n" + "\n---\n".join(ends)


def _by_partition(acknowledged: Mapping[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Return the numbers of each partition, in the order of their offsets."""
    found: dict[int, list[int]] = {}
    for number, (partition, _) in sorted(acknowledged.items(), key=lambda entry: entry[1]):
        found.setdefault(partition, []).append(number)
    return found


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 when it has ended."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def run_trial(
    writer: LakeWriter, broker: FrameworkBroker, site: Site, plan: TrialPlan, say: Callable[[str], None]
) -> LakeOutcome:
    """Run a writer on a broker that has just been started.

    Raises:
        FrameworkUnavailable: the writer can't be had here.
        WriterStuck: no row came in time.
    """
    table = writer.open_table(site)
    try:
        writer.prepare(site)
        trial = Trial(writer, site, table, plan, say)
        found = trial.run()
        snapshots = table.count_snapshots()
    finally:
        writer.close()
        table.close()
    return LakeOutcome(
        writer=writer.name,
        title=writer.title,
        version=writer.version,
        settings=writer.settings,
        broker=broker.name,
        broker_version=broker.version,
        seed=plan.seed,
        seconds=plan.seconds,
        account=found,
        kills=trial.faults["kill"],
        pauses=trial.faults["pause"],
        leaves=trial.faults["leave"],
        ended=trial.ended,
        snapshots=snapshots,
        looks=len(table.looks),
        half_looks=trial.half_looks,
        compactions=trial.compactions,
        worker_mib=round(trial.worker_mib),
        behind_s=trial.behind_s,
    )
