"""A soak: records are produced, faults befall the parts, and in the end every record is accounted for."""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.dataset as ds
from frameworks.account import Account, Numbered, account_of

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from tests.soak.programs import INPUT, OUTPUTS, PARTITIONS, objects_of, properties_of, table_of
from tests.soak.system import Part, build_system, pages

KEYS = 16
SAMPLE_S = 5.0
PAUSE_S = 12.0
"""Longer than the sessions of 6 s: whoever is paused loses its partitions, and comes back."""
SETTLE_S = 240.0
"""How long nothing may come out in the end while records are missing."""
EXACT = {"transactions", "region"}
GROWTH, GROWTH_MIB = 1.15, 24.0


@dataclass(slots=True)
class Report:
    """The findings of a soak.

    Attributes:
        produced: how many records of each key.
        accounts: of each output.
        faults: how often each befell each part, by `part: fault`.
        ended: why parts ended by themselves.
        exits: exit codes of the end that were not 0.
        memory: MiB of each part: of the second quarter, of the last half (medians), and at most.
        samples: of each part, pairs of the second and the MiB of its processes.
        befallen: the second, the part and the kind of each fault.
        answered: answers of the exporter and of the dashboard, and those that failed.
        violations: what broke a promise.
    """

    seconds: float = 0.0
    seed: int = 0
    produced: Counter[str] = field(default_factory=Counter)
    accounts: dict[str, Account] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    ended: dict[str, list[str]] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    memory: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    befallen: list[tuple[float, str, str]] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Soak:
    """One run."""

    def __init__(self, folder: Path, *, seed: int, rate: float, spark: bool, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._rate, self._say = rate, say
        self._parts, self._properties = build_system(folder, spark=spark)
        self._spark = spark
        self._began = time.monotonic()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.report = Report(seed=seed)

    def run(self, *, minutes: float, fault_s: float) -> Report:
        """Play it; every process has ended when it returns."""
        try:
            self._play(minutes * 60, fault_s)
        finally:
            for part in self._parts:
                part.kill()
        return self.report

    def _play(self, duration_s: float, fault_s: float) -> None:
        self._parts[0].start()
        settings = properties_of(self._properties)
        with Admin(**settings) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS) for name in (INPUT, *OUTPUTS.values())]).all()
        for part in self._parts[1:]:
            part.start()
        self._began = time.monotonic()
        with Producer(**settings, delivery_timeout_ms=300_000) as producer:
            self._disturb(producer, duration_s, fault_s)
            self._say("producing has ended")
            self._recover()
            producer.flush()
        self._settle(settings)
        stores = [part for part in self._parts if part.name in ("broker", "objects")]
        for part in reversed(self._parts):
            if part not in stores:
                self._stop(part)
        self.report.accounts = {
            name: account_of(self.report.produced, self._records(settings, name)) for name in self._names
        }
        for part in reversed(stores):
            self._stop(part)
        self._judge(duration_s)

    @property
    def _names(self) -> list[str]:
        return ["transactions", "consumer", "push", "coordinated", "region", *(["query"] if self._spark else [])]

    def _disturb(self, producer: Producer, duration_s: float, fault_s: float) -> None:
        next_fault, next_sample, sent = fault_s, 0.0, 0
        while (now := time.monotonic() - self._began) < duration_s:
            while sent < now * self._rate:
                key = f"key-{self._random.randrange(KEYS)}"
                producer.send(INPUT, key=key, value=str(self.report.produced[key]))
                self.report.produced[key] += 1
                sent += 1
            if now >= next_fault:
                self._befall()
                next_fault += fault_s
            if now >= next_sample:
                self._look(now)
                next_sample += SAMPLE_S
            self._tend()
            time.sleep(0.1)
        self.report.seconds = time.monotonic() - self._began

    def _befall(self) -> None:
        running = [part for part in self._parts if part.kinds and part.process is not None]
        part = self._random.choice(running)
        kind = self._random.choice(part.kinds)
        self.report.faults[f"{part.name}: {kind}"] += 1
        self.report.befallen.append((time.monotonic() - self._began, part.name, kind))
        self._say(f"{kind} of {part.name}")
        after_s = self._random.uniform(0.5, 5.0)
        if kind == "SIGKILL":
            part.kill()
            self._later(after_s, part.start)
        elif kind == "SIGTERM":
            self._stop(part)
            self._later(after_s, part.start)
        else:
            part.send(signal.SIGSTOP)
            self._later(PAUSE_S, lambda: part.send(signal.SIGCONT))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, action))

    def _tend(self) -> None:
        """Do what is due; start what has ended by itself again, as a supervisor does."""
        self._do_due()
        for part in self._parts:
            if part.has_ended():
                self._say(f"{part.name} ended by itself: {part.ended[-1]}")
                part.process = None
                self._later(1.0, part.start)

    def _do_due(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._due if at <= now]
        self._due = [(at, action) for at, action in self._due if at > now]
        for action in due:
            action()

    def _recover(self) -> None:
        """Do all that is still to come: in the end every part runs."""
        while self._due or any(part.process is None for part in self._parts):
            self._tend()
            time.sleep(0.1)

    def _look(self, second: float) -> None:
        for part in self._parts:
            part.sample(second)
        for name, address in pages(self._parts).items():
            try:
                with urllib.request.urlopen(address, timeout=10) as answer:
                    answer.read()
                self.report.answered[name] += 1
            except OSError:
                self.report.answered[f"{name}, failed"] += 1

    def _settle(self, settings: Mapping[str, str]) -> None:
        """Wait until every record has come out, or nothing has come for a while."""
        wanted, seen, moved = sum(self.report.produced.values()), {}, time.monotonic()
        while time.monotonic() - moved < SETTLE_S:
            self._tend()
            found = {name: len({(r.key, r.number) for r in self._records(settings, name)}) for name in self._names}
            if found != seen:
                seen, moved = found, time.monotonic()
                self._say("came out of " + f"{wanted:,}: " + ", ".join(f"{name} {n:,}" for name, n in found.items()))
            if all(number >= wanted for number in found.values()):
                return
            time.sleep(2)
        self._say("not everything came out")

    def _records(self, settings: Mapping[str, str], name: str) -> list[Numbered]:
        if name == "region":
            return self._rows()
        topic = OUTPUTS[name]
        found: list[Numbered] = []
        with Consumer(**settings, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(parts)
            ends = consumer.end_offsets(parts)
            while any(consumer.position(part) < ends[part] for part in parts):
                records = consumer.poll(timeout_ms=1000)
                found += [Numbered.parse((rec.key or b"").decode(), (rec.value or b"").decode()) for rec in records]
        return found

    def _rows(self) -> list[Numbered]:
        """The rows of the region's table, in the order of their offsets."""
        files = [str(file.path) for file in table_of(self._folder).published_files()]
        if not files:
            return []
        store = None if files[0].startswith("/") else objects_of(self._folder)
        rows = (
            ds.dataset([file.removeprefix("s3://") for file in files], filesystem=store)
            .to_table()
            .sort_by([("partition", "ascending"), ("offset", "ascending")])
        )
        pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        return [Numbered.parse(key.decode(), value.decode()) for key, value in pairs]

    def _stop(self, part: Part) -> None:
        if (code := part.stop(self._do_due)) not in (0, -signal.SIGTERM):
            self.report.exits[part.name] = code
            self._say(f"{part.name} ended with {code} after SIGTERM: {part.last_line()}")

    def _judge(self, duration_s: float) -> None:
        report = self.report
        for name, account in report.accounts.items():
            report.violations += [f"{name}: {fault}" for fault in account.faults(exactly_once=name in EXACT)]
        report.ended = {part.name: part.ended for part in self._parts if part.ended}
        report.violations += [f"{name} ended with {code} after SIGTERM" for name, code in report.exits.items()]
        for part in self._parts:
            report.memory[part.name] = memory = _memory(part, duration_s)
            report.samples[part.name] = [(round(sample.second), round(sample.mib, 1)) for sample in part.samples]
            early, late, _ = memory
            if duration_s >= 600 and late > early * GROWTH + GROWTH_MIB:
                report.violations.append(f"{part.name} grew from {early:.0f} to {late:.0f} MiB")
        report.violations += [f"{name}: a traceback in its log" for name in self._tracebacks()]

    def _tracebacks(self) -> list[str]:
        """The parts of ours whose log has a traceback, other than of an end that is listed."""
        return [
            part.name for part in self._parts if not part.ended and "Traceback" in part.log.read_text(errors="replace")
        ]


def _memory(part: Part, duration_s: float) -> tuple[float, float, float]:
    early = [s.mib for s in part.samples if duration_s / 4 <= s.second < duration_s / 2]
    late = [s.mib for s in part.samples if s.second >= duration_s / 2]
    if not early or not late:
        return 0.0, 0.0, max((s.mib for s in part.samples), default=0.0)
    return median(early), median(late), max(s.mib for s in part.samples)
