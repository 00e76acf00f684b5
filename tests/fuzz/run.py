"""A run: the corpus as it stands, then changed inputs and strangers in turn, and what must hold at the end."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.broker.security.mechanisms import LoginRefused
from kohort.errors import KafkaError
from kohort.wire.schema import WireError
from tests.broker.fuzz.cases import Finding
from tests.broker.fuzz.honest import PARTITIONS, Honest
from tests.broker.fuzz.watch import Taken
from tests.fuzz.corpus import KEPT_BYTES_MAX, keep_input, read_corpus
from tests.fuzz.parsers import PARSERS, ParserTarget
from tests.fuzz.strangers import ACTIONS, StrangersBroker, differences
from tests.support.waiting import until

INPUTS_PER_CASE = 40
"""Inputs of one target in a row: a connection costs as much as some dozens of them."""
CPU_S_MAX = 10.0
"""An input that takes this much time of a processor hangs; the slowest take milliseconds."""
GROWTH_KIB_MAX = 400_000
RESIDENT_KIB_MAX = 500_000
LEFT_MAX = 16
"""Descriptors and threads of the broker that may be more at the end: pools that have grown."""
LOOK_EVERY = 50
GROWN_BYTES_MAX, GROWN_MAX = 512, 120
"""The longest input that is added for a new outcome, and the size of a corpus to which none is added."""
NOTHING = Taken(0, 0, 0, 0)
_UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, KafkaError, LookupError, MemoryError, OSError, RecursionError,
    SystemError, TypeError, ValueError, LoginRefused, WireError,
)  # fmt: skip
"""Errors of a decoder beside the documented ones, which its check takes."""


@dataclass
class FuzzReport:
    """The result of a run.

    Attributes:
        inputs: how often each target, and each kind of stranger, was tried.
        outcomes: what became of inputs, by target; new ones are worth keeping.
        findings: each with the command that repeats it.
        resident_kib: the broker's memory during the run, at equal distances.
    """

    inputs: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    seconds: float = 0.0
    taken: Taken = NOTHING
    resident_kib: list[int] = field(default_factory=list)
    honest: int = 0

    def text(self) -> str:
        """A few lines."""
        counts = ", ".join(f"{name} {number}" for name, number in sorted(self.inputs.items()))
        taken, during = self.taken, self.resident_kib
        grown = ", ".join(f"{kib >> 10}" for kib in during[:: max(1, len(during) // 10)])
        return (
            f"{counts}\n{sum(map(len, self.outcomes.values()))} outcomes in {self.seconds:.0f} s; the slowest input "
            f"took {1000 * self.slowest[0]:.0f} ms ({self.slowest[1]}); the broker has {taken.resident_kib >> 10} MiB "
            f"(before {grown}), "
            f"{taken.descriptors} descriptors and {taken.threads} threads at the end; {self.honest} honest records; "
            f"{len(self.findings)} findings"
        )


class FuzzRun:
    """Inputs of every target, from one seed.

    Args:
        folder: takes the broker's data.
        seed: of all chance. A case depends on the seed, its number, and the corpus.
        say: takes each finding at once.
        grows: whether inputs with new outcomes are added to the corpus. Findings are added anyway if `keeps`.
        keeps: whether findings are added to the corpus.
    """

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None], *, grows: bool = False, keeps: bool = False
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._say = say
        self._grows, self._keeps = grows, keeps
        self._corpora = {target.name: list(read_corpus(target.name).values()) for target in PARSERS}
        self.report = FuzzReport()

    def replay(self) -> None:
        """Give every kept input to its target as it stands."""
        for target in PARSERS:
            for title, data in read_corpus(target.name).items():
                self._input(target, data, f"the kept input {title}")

    def go(self, cases: int, seconds: float, only: int | None = None) -> FuzzReport:
        """Run a number of cases, or as many as fit the time, or a single one."""
        began = time.monotonic()
        self.replay()
        resident_kib = _resident_kib()
        broker = StrangersBroker(self._folder)
        try:
            with Honest(broker.watched.address, self._stalled) as honest:
                # A partition has a folder from its first record on, and the folders are compared.
                until(lambda: honest.read >= PARTITIONS or honest.wrong, "honest records are read", 60)
                before, taken = broker.state(), broker.watched.taken()
                for number in itertools.islice(itertools.count(), cases) if only is None else (only,):
                    if time.monotonic() - began > seconds:
                        break
                    self._case(number, broker)
                    if number % LOOK_EVERY == 0:
                        self._look(broker, resident_kib)
                self._check_end(broker, before, taken)
            self._restart(broker, honest)
        finally:
            broker.watched.kill()
        self.report.findings += honest.wrong
        self.report.honest = honest.read
        self.report.seconds = time.monotonic() - began
        return self.report

    def _case(self, number: int, broker: StrangersBroker) -> None:
        pick = random.Random(f"{self._seed}/{number}")
        if number % 2:
            target = PARSERS[number // 2 % len(PARSERS)]
            for _ in range(INPUTS_PER_CASE):
                self._input(target, target.changed(pick, self._corpora[target.name]), f"case {number}")
            return
        (act,) = pick.choices([action for _, action in ACTIONS], [weight for weight, _ in ACTIONS])
        name = act.__name__
        self.report.inputs[name] += 1
        try:
            act(broker, pick).sock.close()
        except Finding as finding:
            self._found(f"case {number} ({name}): {finding}")
        except ConnectionError as error:
            self._found(f"case {number} ({name}): the broker takes no connection: {error}")
        complaint = broker.watched.complaint()
        if complaint:
            self._found(f"case {number} ({name}): the log says: {complaint[-4_000:]}")

    def _input(self, target: ParserTarget, data: bytes, where: str) -> None:
        began = time.thread_time()
        problem = outcome = ""
        try:
            outcome = target.check(data)
        except Finding as finding:
            problem = str(finding)
        except _UNEXPECTED as error:
            problem = f"an error that nobody expects: {error!r}"
        spent = time.thread_time() - began
        self.report.inputs[target.name] += 1
        self.report.slowest = max(self.report.slowest, (spent, target.name))
        if spent > CPU_S_MAX:
            problem = problem or f"it takes {spent:.1f} s of a processor"
        if problem:
            if self._keeps and len(data) <= KEPT_BYTES_MAX:
                keep_input(target.name, "found", data)
            self._found(f"{where} ({target.name}): {problem[:2_000]}\n  input: {data[:2_000]!r}")
            return
        known = self.report.outcomes.setdefault(target.name, set())
        if outcome not in known:
            known.add(outcome)
            corpus = self._corpora[target.name]
            if self._grows and len(data) <= GROWN_BYTES_MAX and len(corpus) < GROWN_MAX and data not in corpus:
                keep_input(target.name, "grown", data)
                corpus.append(data)

    def _found(self, text: str) -> None:
        finding = f"seed {self._seed} {text}"
        if len(self.report.findings) < 200:
            self.report.findings.append(finding)
            self._say(finding)

    def _stalled(self) -> None:
        self._say(f"seed {self._seed}: honest clients wait for long")

    def _look(self, broker: StrangersBroker, resident_kib: int) -> None:
        """Hold both processes to their bounds."""
        taken, own = broker.watched.taken(), _resident_kib()
        self.report.resident_kib.append(taken.resident_kib)
        if taken.resident_kib > RESIDENT_KIB_MAX:
            self._found(f"the broker takes {taken.resident_kib} KiB")
        if own > resident_kib + GROWTH_KIB_MAX:
            self._found(f"the decoders have taken {own - resident_kib} KiB")
        if broker.watched.process.poll() is not None:
            raise AssertionError(f"the broker has ended: {broker.watched.log.read_text()[-3_000:]}")

    def _check_end(self, broker: StrangersBroker, before: dict[str, Any], taken: Taken) -> None:
        """Nothing is left of the strangers."""

        def is_calm() -> bool:
            now = broker.watched.taken()
            return now.descriptors <= taken.descriptors + LEFT_MAX and now.threads <= taken.threads + LEFT_MAX

        try:
            until(is_calm, "descriptors and threads are as before", 60)
        except AssertionError:
            self._found(f"the broker took {taken}, and takes {broker.watched.taken()}")
        self.report.taken = broker.watched.taken()
        for difference in differences(before, broker.state()):
            self._found(f"refused requests have left something: {difference}")

    def _restart(self, broker: StrangersBroker, honest: Honest) -> None:
        code = broker.watched.end()
        if code != 0:
            self._found(f"the broker ended with {code} after SIGTERM")
        complaint = broker.watched.complaint()
        if complaint:
            self._found(f"at the end: {complaint[-4_000:]}")
        broker.watched.start()
        honest.check_after_restart(broker.watched.address)
        broker.watched.end()


def _resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
