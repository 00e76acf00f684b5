"""One run: records go through a framework while its members and the broker are killed by a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from frameworks.account import Account, Numbered, account_of
from frameworks.brokers import FrameworkBroker
from frameworks.framework import KEYS, Framework, RecordInput, RecordOutput, Site
from kohort.io.java import start_dependent_child

STALL_S = 180.0
"""How long nothing may come out before a run counts as stuck; a machine that is shared by many is slow."""
FEED_BATCH = 20
FEED_PAUSE_S = 0.05
DOWN_S = (0.5, 3.0)
"""For how long a killed process stays away, from least to most."""
HIT_DELAY_S = (0.0, 1.0)
"""How long after the first progress a process is killed: somewhere in a commit interval."""
STOP_S = 30.0
REVIVE_S = 1.0
"""After what time a supervisor starts a member again that has ended by itself, as many do when the broker restarts."""
SETTLE_S = 2.0
"""How long after the members' end a run looks for repeated records."""
BROKER = -1


class FrameworkStuck(Exception):
    """Nothing came out for a long time, before all records were produced; the text says where the run stands."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: after how many produced records, of whom (a member's number, or `BROKER`), and for how long.

    Attributes:
        after: how many records have been produced before.
        target: number of the member, or `BROKER`.
        delay_s: how long the framework works before.
        down_s: how long the process stays away.
    """

    after: int
    target: int
    delay_s: float
    down_s: float


def kills_by_seed(seed: int, kills: int, records: int, members: int) -> list[Kill]:
    """Return the kills of a run: a third of them hit the broker, the others the members."""
    chance = random.Random(seed)
    of_broker = (kills + 1) // 3
    targets = [BROKER] * of_broker + [number % members for number in range(kills - of_broker)]
    chance.shuffle(targets)
    step = records * 0.8 / max(kills, 1)
    return [
        Kill(
            int(step * (number + chance.uniform(0.3, 1.0))),
            target,
            chance.uniform(*HIT_DELAY_S),
            chance.uniform(*DOWN_S),
        )
        for number, target in enumerate(targets)
    ]


@dataclass(slots=True)
class Outcome:
    """The outcome of one run.

    Attributes:
        kills: how many processes were killed, by `members` and `broker`.
        ended: how many times a member ended by itself, and was started again as a supervisor does.
        faults: what broke the framework's promise; empty for a good run.
        seconds: from the first member's start to the last record.
        broker_processor_s: processor time of the broker's processes.
        broker_peak_mib: the most resident memory of one of them.
        clean_seeds: seeds of the runs in a row without a fault, of the same versions; the last is this run's.
    """

    framework: str
    title: str
    version: str
    broker: str
    broker_version: str
    seed: int
    exactly_once: bool
    story: str
    settings: str
    account: Account
    kills: dict[str, int]
    ended: int
    seconds: float
    broker_processor_s: float
    broker_peak_mib: float
    faults: list[str] = field(default_factory=list)
    date: str = ""
    clean_seeds: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        return cls(**{**values, "account": Account(**values["account"])})


class MemberProcess:
    """A member of the framework: one process at a time, whose output goes to `member.log` in its folder."""

    def __init__(self, command: Callable[[], list[str]], folder: Path) -> None:
        self._command = command
        self.log = folder / "member.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = start_dependent_child(
                self._command(), stdout=output, stderr=subprocess.STDOUT, cwd=self.log.parent
            )

    @property
    def pid(self) -> int:
        """The process that was started last."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process and its children by SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Stop the process and its children by SIGSTOP: they keep what they have and do nothing."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask the process to end by SIGTERM, without waiting for it."""
        self._process.terminate()

    def stop(self) -> None:
        """End the process by SIGTERM, as a deployment would, and by SIGKILL if it does not end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()


class FrameworkRun:
    """A run under way.

    Args:
        framework: what runs; it is prepared.
        broker: where it runs.
        site: its folder and address.
        say: takes a line about progress.
        stall_s: how long nothing may come out.
    """

    def __init__(
        self,
        framework: Framework,
        broker: FrameworkBroker,
        site: Site,
        say: Callable[[str], None],
        stall_s: float = STALL_S,
    ) -> None:
        self._framework = framework
        self._broker = broker
        self._site = site
        self._say = say
        self._stall_s = stall_s
        self._members: list[MemberProcess] = []
        self._seen: list[Numbered] = []
        self._missing: set[tuple[str, int]] = set()
        self._returns: list[tuple[float, int]] = []
        self._last_progress_s = time.monotonic()
        self.kills = {"members": 0, "broker": 0}
        self.ended = 0

    def run(self, records: int, plan: Sequence[Kill]) -> tuple[Account, float]:
        """Feed the records, carry out the kills, wait for what comes out; return the account and the seconds.

        Records that have not come out when nothing moves any more are lost.

        Raises:
            FrameworkStuck: nothing came out for a long time, before all records were produced.
        """
        with ExitStack() as open_things:
            began = self._last_progress_s = time.monotonic()
            for number in range(self._framework.members):
                command = partial(self._framework.command, self._site, number)
                member = MemberProcess(command, self._site.member_folder(number))
                open_things.callback(member.kill)
                self._members.append(member)
            self._framework.begin(self._site)
            source = self._framework.open_input(self._site)
            open_things.callback(source.close)
            output = self._framework.open_output(self._site)
            open_things.callback(output.close)
            produced = self._feed(source, output, records, plan)
            while (self._missing or self._returns) and not self._is_stalled():
                self._look(output)
            if self._missing:
                self._say(self._story())
            seconds = time.monotonic() - began
            for member in self._members:
                member.stop()
            self._read_rest(output)
            return account_of(produced, self._seen), seconds

    def _feed(self, source: RecordInput, output: RecordOutput, records: int, plan: Sequence[Kill]) -> Counter[str]:
        produced: Counter[str] = Counter()
        due = sorted(plan, key=lambda kill: kill.after)
        while (total := produced.total()) < records or due:
            if due and total >= due[0].after:
                self._hit(due.pop(0), output)
            if self._is_stalled():
                raise FrameworkStuck(f"nothing came out for {self._stall_s:.0f} s; {self._story()}")
            batch = []
            for number in range(total, min(total + FEED_BATCH, records)):
                key = f"key-{number % KEYS}"
                batch.append(Numbered(key, produced[key]))
                produced[key] += 1
            source.write(batch)
            self._missing |= {(record.key, record.number) for record in batch}
            self._look(output)
            time.sleep(FEED_PAUSE_S)
        source.flush()
        return produced

    def _hit(self, kill: Kill, output: RecordOutput) -> None:
        """Kill a process while the framework works: after something has come out, and a part of a commit interval."""
        before = len(self._seen)
        while ((len(self._seen) == before and self._missing) or self._returns) and not self._is_stalled():
            self._look(output)
        if self._is_stalled():
            return
        time.sleep(kill.delay_s)
        if kill.target == BROKER:
            self._say(f"kill the broker for {kill.down_s:.1f} s, {len(self._seen)} records are out")
            self._broker.kill()
            self.kills["broker"] += 1
            time.sleep(kill.down_s)  # nobody produces meanwhile: a producer without metadata would block this thread
            self._broker.start()
        else:
            self._say(f"kill member {kill.target} for {kill.down_s:.1f} s, {len(self._seen)} records are out")
            self._members[kill.target].kill()
            self.kills["members"] += 1
            self._returns.append((time.monotonic() + kill.down_s, kill.target))

    def _look(self, output: RecordOutput) -> None:
        """Read what has come out, start what is due to return, and find members that have ended by themselves."""
        now = time.monotonic()
        for due_s, target in [entry for entry in self._returns if entry[0] <= now]:
            self._members[target].start()
            self._returns.remove((due_s, target))
        for number, member in enumerate(self._members):
            if member.exit_code is not None and number not in {target for _, target in self._returns}:
                self._say(f"member {number} ended by itself with code {member.exit_code}, and is started again")
                self.ended += 1
                self._returns.append((time.monotonic() + REVIVE_S, number))
        found = output.read_more()
        if found:
            self._last_progress_s = time.monotonic()
            self._seen += found
            self._missing -= {(record.key, record.number) for record in found}

    def _is_stalled(self) -> bool:
        return time.monotonic() - self._last_progress_s > self._stall_s

    def _read_rest(self, output: RecordOutput) -> None:
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            self._seen += output.read_more()

    def _story(self) -> str:
        codes = [member.exit_code for member in self._members]
        ends = [member.log.read_text(errors="replace")[-1500:] for member in self._members if member.log.exists()]
        return (
            f"{len(self._seen)} records are out, {len(self._missing)} missing, exit codes {codes}; "
            f"the members' last lines:\n" + "\n---\n".join(ends)
        )


def run_framework(
    framework: Framework,
    broker: FrameworkBroker,
    folder: Path,
    *,
    records: int,
    kills: int,
    seed: int,
    say: Callable[[str], None],
) -> Outcome:
    """Run a framework on a broker that has just been started.

    Raises:
        FrameworkUnavailable: it can't be had here.
        FrameworkStuck: nothing came out for a long time.
    """
    site = Site(broker.bootstrap_servers, folder)
    try:
        framework.prepare(site)
        run = FrameworkRun(framework, broker, site, say)
        account, seconds = run.run(records, kills_by_seed(seed, kills, records, framework.members))
    finally:
        framework.close()
    broker.measure_usage()
    return Outcome(
        framework=framework.name,
        title=framework.title,
        version=framework.version,
        broker=broker.name,
        broker_version=broker.version,
        seed=seed,
        exactly_once=framework.exactly_once,
        story=framework.story,
        settings=framework.settings,
        account=account,
        kills=run.kills,
        ended=run.ended,
        seconds=round(seconds, 1),
        broker_processor_s=round(broker.processor_s, 1),
        broker_peak_mib=round(broker.peak_mib, 0),
        faults=account.faults(exactly_once=framework.exactly_once),
    )
