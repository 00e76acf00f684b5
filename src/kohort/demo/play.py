"""A run of the demo: a broker, the replay, two applications of which one is killed, and the account.

The run sees the applications as an operator would: by the owners of the group's partitions, their committed offsets and
the lag.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.demo.account import (
    compare_with_topic,
    draw_delays,
    duckdb_query_of,
    print_result,
    read_batches,
    read_iceberg,
    sum_differences,
    worst_connections,
)
from kohort.demo.flights import ALL, FlightReplay, flights_path
from kohort.errors import InvalidInputError, KafkaError, NotFoundError, RetriableError, TimedOutError
from kohort.ids import TopicPartition
from kohort.io.java import java_path, start_dependent_child
from kohort.lag import LagReader
from kohort.region.region import Region

SURVIVOR, VICTIM = APPLICATIONS = ("anna", "bela")
PARTITIONS = 6
REPLAY_S, REPLAY_MIN_S = 40.0, 8.0
"""Duration of the full replay, and the least for fewer flights: long enough to watch."""
KILL_AT = 0.45
"""The share of the flights after which the victim is killed."""
KILLED_BY = 0.6
"""The share at which the replay waits until the victim's partitions are taken over, on a slow machine."""
ASK_S, LINE_S = 0.5, 5.0
"""Intervals between two descriptions of the group, and between two lines about the progress."""
STALLED_S = 300.0
"""Timeout without any progress: a slow machine starts two Sparks in a minute."""
FAULTS_MAX = 5
"""The most differences that are listed."""
END_S = 30.0
"""Timeout of an application's shutdown, in which a region makes its last checkpoint."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of `kohort demo`, which describes them; without `bootstrap_server` a broker is embedded."""

    bootstrap_server: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    output: Path | None = None
    rows: int | None = None
    replay_s: float | None = None
    least: int = 100
    json: bool = False
    keep: bool = False
    region: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None and not 1_000 <= self.rows <= ALL:
            raise InvalidInputError(f"rows must be from 1000 to {ALL}, not {self.rows}")
        if self.replay_s is not None and not 0 < self.replay_s <= 3_600:
            raise InvalidInputError(f"replay_s must be from 0 to 3600 seconds, not {self.replay_s:g}")


def check_requirements(region: bool) -> None:
    """Check everything that the demo needs before it begins, also for the picture at its end.

    Raises:
        NotFoundError: a package or Java is missing.
    """
    flights_path()
    for package in ("pyspark", "matplotlib", *(("pyiceberg", "sqlalchemy") if region else ())):
        if importlib.util.find_spec(package) is None:
            raise NotFoundError(f"the demo needs the package {package}: pip install 'kohort[demo]'")
    java_path()


def run(options: DemoOptions) -> int:
    """Run the demo from start to end.

    Returns:
        0 if every flight was counted once, 1 otherwise.

    Raises:
        KafkaError: something that the demo needs is missing or did not come up; the text says what.
    """
    check_requirements(options.region)
    folder = (options.output or Path("kohort-demo")).absolute()
    for name in ("batches", "warehouse", "region", *(f"checkpoint-{name}" for name in APPLICATIONS)):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "region").mkdir(parents=True)
    with ExitStack() as stack:
        servers = options.bootstrap_server
        if servers is None:
            from kohort import Broker

            config = {"group.initial.rebalance.delay.ms": "0", "num.partitions": str(PARTITIONS)}
            servers = stack.enter_context(Broker(config=config)).bootstrap_servers
        admin = stack.enter_context(Admin(servers, **options.client))
        play = Play(options, servers, admin, stack.enter_context(LagReader(servers, **options.client)), folder)
        try:
            play.play()
            outcome = play.conclude()
        finally:
            play.close()
        (folder / "outcome.json").write_text(
            msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode() + "\n"
        )
        if options.json:
            sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        else:
            play.console.print()
            print_result(outcome, play.console)
            play.print_event("done")
        if options.keep:
            play.print_event(f"the broker stays at {servers} until Ctrl-C (process {os.getpid()})")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return 0 if outcome["exact"] else 1


@dataclass(frozen=True, slots=True)
class Share:
    """One partition of the group: its offsets, and the member that owns it ("": nobody)."""

    partition: int
    committed: int
    log_end: int
    owner: str

    @property
    def lag(self) -> int:
        """The number of records after the committed offset."""
        return self.log_end - self.committed


class DemoApplication:
    """One of the example programs as a process, in a session of its own that ends with this process."""

    def __init__(self, name: str, folder: Path, command: Sequence[str]) -> None:
        self.name, self.log = name, folder / f"application-{name}.log"
        with self.log.open("wb") as log:
            program = [sys.executable, "-W", "ignore", "-m", *command, "--name", name, "--folder", str(folder)]
            self.process = start_dependent_child(program, stdout=log, stderr=log, env={"SPARK_LOCAL_IP": "127.0.0.1"})

    def check(self) -> None:
        """Raise KafkaError if the process has ended, with the last line of its log."""
        if (code := self.process.poll()) is not None:
            lines = self.log.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it has written nothing")
            raise KafkaError(
                f"the application {self.name} ended with exit code {code}: {last} (all of it is in {self.log}; `kohort "
                "doctor` looks for what is missing on this machine)"
            )

    def kill(self) -> int:
        """Send SIGKILL to all its processes, the JVM and its Python workers included; return their number."""
        found = session_processes(self.process.pid)
        self.process.kill()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return len(found)

    def terminate(self) -> None:
        """Terminate the process, wait for its end, and kill what is left of its session."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.kill()


def session_processes(session: int) -> list[int]:
    """Return the processes of a session, from /proc; without /proc only the session's leader."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(entry.name))
    return found if Path("/proc").is_dir() else [session]


class Play:
    """The script of the demo, and the waits for its progress."""

    def __init__(self, options: DemoOptions, servers: str, admin: Admin, lag_reader: LagReader, folder: Path) -> None:
        self.options, self.servers, self.admin, self.folder = options, servers, admin, folder
        self.lag_reader = lag_reader
        self.console, self.began_s = Console(stderr=options.json), time.monotonic()
        own = f"-{uuid.uuid4().hex[:8]}" if options.bootstrap_server else ""
        self.topic, self.group = f"flights{own}", f"flights-by-hour{own}"
        self.home = folder / "region" if options.region else folder
        self.total = options.rows or ALL
        seconds = options.replay_s or max(REPLAY_MIN_S, REPLAY_S * self.total / ALL)
        self.replay = FlightReplay(servers, options.client, self.topic, self.total, seconds)
        self.pool = ThreadPoolExecutor(1, "replay")
        self.replaying = self.pool.submit(self.replay.run)
        self.applications: dict[str, DemoApplication] = {}
        self.region: Region | None = None
        if options.region:
            self.region = Region(self.topic, servers, serves=False, **dict(options.client))
        self.region_facts: dict[str, Any] = {}
        self.shares: tuple[Share, ...] = ()
        self.state = "unknown"
        self.is_over = False
        self.asked_s = self.said_s = 0.0
        self.killed_processes, self.takeover_s = 0, 0.0

    def print_event(self, text: str) -> None:
        """Print an event."""
        line = f"{time.monotonic() - self.began_s:5.1f} s  {text}"
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    # -- the script

    def play(self) -> None:
        """Run the demo from the start of the applications until the group has nothing left to read."""
        self.print_event(f"broker at {self.servers}")
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)]).all()
        self.print_event(f"topic {self.topic} with {PARTITIONS} partitions, keyed by aircraft")
        program = f"kohort.demo.{'region' if self.options.region else 'group'}_query"
        command = [program, "--servers", self.servers, "--topic", self.topic, "--group", self.group]
        command += [f"--client={name}={value}" for name, value in self.options.client.items()]
        for name in APPLICATIONS:
            self.applications[name] = DemoApplication(name, self.home, command)
        self.print_event(f"two Spark applications are starting: python -m {program}")
        self.wait_until(lambda: {share.owner for share in self.shares} == set(APPLICATIONS), "both hold partitions")
        self.print_event(f"both are members of one group ({self.held_partitions()}); the replay begins")
        self.replay.limit = round(KILLED_BY * self.total)
        self.wait_until(lambda: self.replay.sent >= KILL_AT * self.total, "the replay comes to the kill")
        self._kill()
        self.replay.limit = self.total
        self.wait_until(self.replaying.done, "the replay ends")
        self.print_event("all flights are replayed")
        self.wait_until(self._is_drained, "everything is read and committed")
        self.print_event("nothing is left to read")
        self.is_over = True
        self.applications[SURVIVOR].terminate()

    def _kill(self) -> None:
        """Kill the victim, and wait until another member commits records of its partitions.

        In a plain group the moment is when the victim has written a batch and not yet committed it.
        """
        batches = f"batches/member={VICTIM}/*/_SUCCESS"
        before = len(list(self.home.glob(batches)))
        if self.options.region:
            self.wait_until(lambda: all(share.committed for share in self.shares), "every partition is in a checkpoint")
        else:
            self.wait_until(lambda: len(list(self.home.glob(batches))) > before, f"{VICTIM} writes a batch")
        killed_s = time.monotonic()
        self.killed_processes = self.applications.pop(VICTIM).kill()
        orphans = {share.partition for share in self.shares if share.owner == VICTIM}
        self.print_event(
            f"SIGKILL to {VICTIM}, {self.killed_processes} processes; it held partitions {partitions_text(orphans)}"
        )
        self.refresh_state()
        committed = {share.partition: share.committed for share in self.shares if share.partition in orphans}
        self.wait_until(
            lambda: any(share.committed > committed.get(share.partition, share.committed) for share in self.shares),
            f"{SURVIVOR} takes over",
        )
        self.takeover_s = time.monotonic() - killed_s
        self.print_event(f"{SURVIVOR} has committed records of these partitions now, {self.takeover_s:.1f} s after")

    def conclude(self) -> dict[str, Any]:
        """Read what the applications wrote, count every flight once, and draw the picture; return the result."""
        how = "published once by Spark queries of a region" if self.options.region else "counted once by Spark queries"
        metadata = ""
        if self.options.region:
            rows, metadata = read_iceberg(self.home)
        else:
            rows = read_batches(self.home)
        account = compare_with_topic(rows, {share.partition: share.log_end for share in self.shares})
        lag, picture = sum(share.lag for share in self.shares), self.folder / "delay-by-hour.png"
        draw_delays(account.once, picture, f"each {how} sharing one consumer group")
        faults = list(islice(sum_differences(account.once, self.total), FAULTS_MAX))
        wrong = account.missing or account.unknown or faults or lag or (self.options.region and account.repeated)
        shares = [asdict(share) | {"lag": share.lag} for share in self.shares]
        return {
            "exact": not wrong and account.once.num_rows == self.replay.sent,
            "flights": self.replay.sent,
            "account": {
                "written": account.written,
                "repeated": account.repeated,
                "missing": account.missing,
                "unknown": account.unknown,
                "counted": account.once.num_rows,
                "faults": faults,
            },
            "group": {"id": self.group, "state": self.state, "lag": lag, "partitions": shares},
            "region": self.region_facts,
            "killed": {
                "member": VICTIM,
                "processes": self.killed_processes,
                "takeover_s": round(self.takeover_s, 2),
            },
            "worst": worst_connections(account.once, self.options.least),
            "picture": str(picture),
            "query": duckdb_query_of(metadata) if metadata else "",
            "seconds": round(time.monotonic() - self.began_s, 1),
        }

    def close(self) -> None:
        """End the running processes, and delete the demo's topic, group and region from a user's cluster."""
        self.replay.stopped.set()
        self.pool.shutdown()
        for application in self.applications.values():
            application.terminate()
        if self.options.bootstrap_server and not self.options.keep:
            if self.region is not None and self.is_over:
                self.region.delete()
            self.admin.delete_consumer_groups([self.group])
            self.admin.delete_topics([self.topic])
        if self.region is not None:
            self.region.close()

    # -- observations

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, for as long as there is progress.

        Raises:
            TimedOutError: there was no progress for `STALLED_S`.
            KafkaError: an application ended, or the replay failed.
        """
        progress, progress_s = None, time.monotonic()
        while not condition():
            time.sleep(0.02)
            if time.monotonic() - self.asked_s < ASK_S:
                continue
            self.refresh_state()
            if self.replaying.done():
                self.replaying.result()
            for application in self.applications.values():
                application.check()
            if (now := (self.replay.sent, self.shares)) != progress:
                progress, progress_s = now, time.monotonic()
            if time.monotonic() - progress_s > STALLED_S:
                raise TimedOutError(
                    f"{what}: not so, and nothing has moved for {STALLED_S:g} s; {self.progress_line()}; "
                    f"the logs are in {self.home}"
                )
            if time.monotonic() - self.said_s > LINE_S:
                self.said_s = time.monotonic()
                self.print_event(f"{self.progress_line()}; waits until {what}")

    def progress_line(self) -> str:
        """Return the progress in a line."""
        lag = sum(share.lag for share in self.shares)
        return f"replaying: {self.replay.sent:,} of {self.total:,} flights, lag {lag:,}; {self.held_partitions()}"

    def refresh_state(self) -> None:
        """Request every partition's owner and offsets, and the group's state."""
        self.asked_s = time.monotonic()
        with contextlib.suppress(RetriableError):
            partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            report = self.lag_reader.read([self.group], also=partitions)
            group = report.groups.get(self.group)
            found = {} if group is None else {part.partition: part for part in group.partitions}
            shares = []
            for partition in partitions:
                part, bounds = found.get(partition), report.bounds.get(partition)
                owner = "" if part is None or part.owner is None else part.owner.client_id
                shares.append(
                    Share(
                        partition.partition,
                        0 if part is None else part.committed or 0,
                        0 if bounds is None else bounds.log_end,
                        owner.rpartition("/")[2],  # a region's member is called REGION/NAME
                    )
                )
            self.shares = tuple(shares)
            self.state = "unknown" if group is None else group.description.state

    def held_partitions(self) -> str:
        """Return the members with their partitions, in words."""
        held: dict[str, list[int]] = {}
        for share in self.shares:
            held.setdefault(share.owner or "nobody", []).append(share.partition)
        return ", ".join(f"{owner} [{partitions_text(held[owner])}]" for owner in sorted(held))

    def _is_drained(self) -> bool:
        """Return whether everything is read and committed, and in a region published by all its sinks."""
        if self.state != "Stable" or sum(share.log_end - share.lag for share in self.shares) < self.total:
            return False
        if self.region is None:
            return True
        try:
            seen = self.region.describe()
        except KafkaError:  # its control plane is moving
            return False
        self.region_facts = {"name": seen.name, "sequence": seen.sequence, "epoch": seen.epoch, "term": seen.term}
        return seen.published >= seen.sequence


def partitions_text(partitions: Iterable[int]) -> str:
    """Return partitions as text."""
    return " ".join(map(str, sorted(partitions)))
