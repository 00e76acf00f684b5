"""A run: cases one after the other, honest clients beside them, bounds, the end and another start."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.broker.fuzz.cases import KINDS, Finding, Line
from tests.broker.fuzz.honest import Honest
from tests.broker.fuzz.watch import DESCRIPTORS, Taken, Watched

OPEN_MAX = 60
"""Connections that are left open while others come."""
RESIDENT_KIB_MAX = 400_000
"""Everything that was made by the fuzzer and may stay: topics, groups, what was produced in between."""
THREADS_MAX = 24
LOG_BYTES_MAX = 600_000
LOG_BYTES_PER_S_MAX = 1_500
LOOK_EVERY = 50


NOTHING = Taken(0, 0, 0, 0)


@dataclass
class Report:
    """The result of a run.

    Attributes:
        findings: each with the case's number and the bytes that were sent in it.
    """

    cases: int = 0
    findings: list[str] = field(default_factory=list)
    most: Taken = NOTHING
    last: Taken = NOTHING
    honest: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0

    def text(self) -> str:
        """One line."""
        most, last = self.most, self.last
        return (
            f"{self.cases} cases in {self.seconds:.0f} s; resident {most.resident_kib >> 10} MiB at most, "
            f"{last.resident_kib >> 10} at the end; descriptors {most.descriptors}, {last.descriptors}; "
            f"threads {most.threads}; log {last.log_bytes >> 10} KiB; {self.honest} honest records, "
            f"the slowest took {1000 * self.slowest_s:.0f} ms; {len(self.findings)} findings"
        )


class Run:
    """Cases against one broker."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._say = say
        self._broker = Watched(folder)
        self._open: list[tuple[int, str, Line]] = []
        self.report = Report()

    def go(self, cases: int, seconds: float, only: int | None = None) -> Report:
        """So many cases, or as many as can be had in the time, or a single one."""
        began = time.monotonic()
        try:
            with Honest(self._broker.address, self._stalled) as honest:
                for number in range(cases) if only is None else (only,):
                    if time.monotonic() - began > seconds:
                        break
                    self._case(number)
                    self.report.cases += 1
                    if number % LOOK_EVERY == 0:
                        self._look(time.monotonic() - began)
                while self._open:
                    self._settle_oldest()
            self._look(time.monotonic() - began)
            self.report.last = self._broker.taken()
            self._end_and_start_again(honest)
        finally:
            self._broker.kill()
        self.report.findings += honest.wrong
        self.report.honest, self.report.slowest_s = honest.read, honest.slowest_s
        self.report.seconds = time.monotonic() - began
        return self.report

    def _case(self, number: int) -> None:
        pick = random.Random(f"{self._seed}/{number}")
        (kind,) = pick.choices([kind for _, kind in KINDS], [weight for weight, _ in KINDS])
        host, _, port = self._broker.address.rpartition(":")
        line = Line((host, int(port)))
        stays = False
        try:
            stays = kind(line, pick)
        except Finding as finding:
            self._found(number, kind.__name__, line, str(finding))
        if stays and not line.ended:
            self._open.append((number, kind.__name__, line))
        else:
            line.close(reset=pick.random() < 0.2)
        said = self._broker.complaint()
        if said:
            self._found(number, kind.__name__, line, f"the log says: {said[-4_000:]}")
        while len(self._open) > OPEN_MAX:
            self._settle_oldest()

    def _stalled(self) -> None:
        """An honest client waits for long: have the broker say where it is."""
        place = self._broker.where()
        self._say(f"seed {self._seed} case {self.report.cases}: honest clients wait; the broker is in\n{place}")

    def _settle_oldest(self) -> None:
        number, kind, line = self._open.pop(0)
        try:
            line.settle()
        except Finding as finding:
            self._found(number, kind, line, str(finding))
        line.close()

    def _found(self, number: int, kind: str, line: Line, text: str) -> None:
        sent = bytes(line.sent)
        shown = sent.hex() if len(sent) < 2_000 else f"{sent[:2_000].hex()} … of {len(sent)} bytes"
        finding = f"seed {self._seed} case {number} ({kind}): {text}\n  sent: {shown}"
        self.report.findings.append(finding)
        self._say(finding)

    def _look(self, passed_s: float) -> None:
        """Hold the broker to its bounds."""
        taken = self._broker.taken()
        self.report.most = Taken(*map(max, self.report.most, taken))
        bounds = Taken(RESIDENT_KIB_MAX, DESCRIPTORS, THREADS_MAX, int(LOG_BYTES_MAX + passed_s * LOG_BYTES_PER_S_MAX))
        for name, value, bound in zip(Taken._fields, taken, bounds, strict=True):
            if value > bound and not any(name in finding for finding in self.report.findings):
                self.report.findings.append(f"{name}: {value}, the bound is {bound}")
        if self._broker.process.poll() is not None:
            raise AssertionError(f"the broker has ended: {self._broker.log.read_text()[-3_000:]}")

    def _end_and_start_again(self, honest: Honest) -> None:
        for _ in range(2):
            code = self._broker.end()
            if code != 0:
                self.report.findings.append(f"the broker ended with {code} after SIGTERM")
            said = self._broker.complaint()
            if said:
                self.report.findings.append(f"at the end or start: {said[-4_000:]}")
            self._broker.start()
            honest.check_after_restart(self._broker.address)
        if self._broker.end() != 0:
            self.report.findings.append("the broker did not end in order after another start")
