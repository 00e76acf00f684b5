"""Paired runs: every contender once, then every contender again, so that a noisy machine disturbs all alike.

A figure compares contenders that do the same job. Its result is the ratio of a contender to the baseline within the
same round. The table shows the ratio's median and spread, beside the median of the rate itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from bench.machine import QUIET_CORES, read_clock

T = TypeVar("T")
_MILLION = 1_000_000
FIGURE_LIMIT_S: ContextVar[float] = ContextVar("FIGURE_LIMIT_S", default=float("inf"))
"""How long the rounds of one figure may take: none begins that would end later, except the first."""

ENDS_AT_S: ContextVar[float] = ContextVar("ENDS_AT_S", default=float("inf"))
"""When the time of a benchmark is over, on time.monotonic()'s clock: no run begins after it."""


def time_is_over() -> bool:
    """Return whether the time of this benchmark is over."""
    return time.monotonic() >= ENDS_AT_S.get()


class NotHere(Exception):
    """A contender can't run on this machine; the text says why in a few words."""


class RunFailed(Exception):
    """A contender failed, or did less than it should; the text says how. The others go on."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line.

    Attributes:
        rounds: how often each contender runs.
        scale: multiplies the records of every run; small values try whether a benchmark works.
        only: figures whose titles have this text; empty for all.
    """

    rounds: int = 3
    scale: float = 1.0
    only: str = ""

    def records(self, count: int) -> int:
        """A count of records, scaled."""
        return max(1000, int(count * self.scale))


@dataclass(frozen=True, slots=True)
class Sample:
    """One run.

    Attributes:
        amount: what was done, in the figure's unit (records, requests …).
        seconds: how long it took.
        facts: other figures of this run, by name.
        others_cores: how many cores other processes kept busy meanwhile; None where that is not known.
    """

    amount: float
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)
    others_cores: float | None = None

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


JVM_WARM_S = 10.0
"""A JVM compiles what it runs often: Apache Kafka takes 12,400 commits/s in its first seconds, 26,000 after 8 s."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One that does the job.

    Attributes:
        run: does the job once.
        warm_s: how long the job is done without being counted, before the first round.
    """

    name: str
    run: Callable[[], Sample]
    warm_s: float = 0.0

    def warm(self) -> None:
        """Do the job until `warm_s` of it have passed; a failure is left to the first round to tell."""
        spent = 0.0
        while spent < self.warm_s and not time_is_over():
            try:
                spent += self.run().seconds
            except (NotHere, RunFailed):
                return


def warmed(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the contenders with a JVM behind them, so that each is warmed before it counts."""
    return [replace(contender, warm_s=JVM_WARM_S) for contender in contenders]


class Parts(Generic[T]):
    """Runs of which several contenders or figures show a part: each is made once, by who asks for it first."""

    def __init__(self, run: Callable[[], T]) -> None:
        self._run = run
        self._made: list[T | NotHere | RunFailed] = []

    def showing(self, part: Callable[[T], Sample]) -> Callable[[], Sample]:
        """A contender's function: it shows this part of one run after the other, from the first on."""
        numbers = count()
        return lambda: part(self._of(next(numbers)))

    def _of(self, number: int) -> T:
        if number == len(self._made):
            try:
                self._made.append(self._run())
            except (NotHere, RunFailed) as error:
                self._made.append(error)
        found = self._made[number]
        if isinstance(found, NotHere | RunFailed):
            raise found
        return found


@dataclass(slots=True)
class Row:
    """A contender's runs.

    Attributes:
        absent: why it did not run; None when it did.
        ratios: its rate over the baseline's in each round.
    """

    name: str
    samples: list[Sample] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    absent: str | None = None

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON and for the table."""
        if self.absent is not None:
            return {"name": self.name, "absent": self.absent}
        rates = [sample.rate for sample in self.samples]
        facts = sorted({name for sample in self.samples for name in sample.facts})
        busy = [sample.others_cores for sample in self.samples if sample.others_cores is not None]
        return {
            "name": self.name,
            "runs": len(self.samples),
            "others_cores": round(statistics.median(busy), 2) if busy else None,
            "rate_median": statistics.median(rates),
            "rate_min": min(rates),
            "rate_max": max(rates),
            "ratio_median": statistics.median(self.ratios) if self.ratios else None,
            "ratio_min": min(self.ratios, default=None),
            "ratio_max": max(self.ratios, default=None),
            "facts": {
                name: statistics.median([sample.facts[name] for sample in self.samples if name in sample.facts])
                for name in facts
            },
        }


@dataclass(slots=True)
class Figure:
    """The result of one comparison.

    Attributes:
        unit: of the rates, as "records/s".
        baseline: the contender whose ratio is 1.
    """

    title: str
    unit: str
    baseline: str
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """The figure as plain values."""
        return {
            "title": self.title,
            "unit": self.unit,
            "baseline": self.baseline,
            "rows": [row.summary() for row in self.rows],
        }


def compare(
    title: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    unit: str = "records/s",
    baseline: str | None = None,
    console: Console | None = None,
) -> Figure:
    """Runs every contender once in each round, in turn, and relates them to the baseline.

    Args:
        title: what is compared.
        contenders: who; one that raises `NotHere` or `RunFailed` is left out of the later rounds.
        rounds: how many.
        unit: of the rates.
        baseline: a contender's name; the first when not given.
        console: shows progress.
    """
    rows = {contender.name: Row(contender.name) for contender in contenders}
    reference = baseline or contenders[0].name
    for contender in contenders:
        if contender.warm_s and console is not None:
            console.print(f"[dim]{title}: warming {contender.name}[/dim]", highlight=False)
        contender.warm()
    began_s = time.monotonic()
    for number in range(1, rounds + 1):
        spent_s = time.monotonic() - began_s
        if number > 1 and (time_is_over() or spent_s * number / (number - 1) > FIGURE_LIMIT_S.get()):
            break
        rates = {}
        for contender in contenders:
            row = rows[contender.name]
            if row.absent is not None:
                continue
            if time_is_over() and not row.samples:
                row.absent = "not measured: the time was over"
                continue
            if console is not None:
                console.print(f"[dim]{title}: round {number} of {rounds}: {contender.name}[/dim]", highlight=False)
            try:
                sample = _observed(contender)
            except NotHere as error:
                row.absent = f"not here: {error}"
                continue
            except RunFailed as error:
                row.absent = f"FAILED: {error}"
                continue
            row.samples.append(sample)
            rates[contender.name] = sample.rate
        if reference in rates:
            for name, rate in rates.items():
                rows[name].ratios.append(rate / rates[reference])
    return Figure(title, unit, reference, list(rows.values()))


def _observed(contender: Contender) -> Sample:
    """Run a contender once, with a look at what other processes take meanwhile."""
    before = read_clock()
    sample = contender.run()
    after = read_clock()
    if before is None or after is None:
        return sample
    return replace(sample, others_cores=after.others_cores(before))


def show(figure: Figure, console: Console) -> None:
    """Prints a figure as a table."""
    table = Table(title=figure.title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column(figure.unit, justify="right")
    table.add_column("least to most", justify="right")
    table.add_column(f"× {figure.baseline}", justify="right")
    table.add_column("spread", justify="right")
    table.add_column("besides")
    for row in figure.rows:
        values = row.summary()
        if row.absent is not None:
            table.add_row(row.name, "-", "", "", "", row.absent)
            continue
        ratio = values["ratio_median"]
        table.add_row(
            row.name,
            rate_text(values["rate_median"]),
            f"{rate_text(values['rate_min'])} to {rate_text(values['rate_max'])}",
            "-" if ratio is None else f"{ratio:.2f}",
            "-" if ratio is None else f"{values['ratio_min']:.2f} to {values['ratio_max']:.2f}",
            "  ".join([*busy_words(values), *(f"{name} {value:,.6g}" for name, value in values["facts"].items())]),
        )
    console.print(table)


def busy_words(values: dict[str, Any]) -> list[str]:
    """Return the mark of a row that was not measured on a quiet machine; none for others."""
    cores = values.get("others_cores")
    return [f"not quiet ({cores:.2f} cores used by others)"] if cores is not None and cores > QUIET_CORES else []


def rate_text(value: float) -> str:
    """Write a rate with three digits or whole, millions as M."""
    if value >= _MILLION / 10:
        return f"{value / _MILLION:.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
