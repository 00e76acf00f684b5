"""The delay until unmodified clients learn of a change, with and without long polling, and beside Apache Kafka.

`python -m bench.coordinator.notification` runs three members of every client (those of `make churn`) in classic eager
groups of their own, all at once. It runs against kohort with `group.notify.at.once` off and known, and against Apache
Kafka. A dynamic member joins and leaves each group again and again. With `--replace`, it crashes and another joins at
that moment. So every trigger's moment is known. Members that are notified together send their heartbeats in step from
then on. After each rebalance, therefore, every member's process is paused for a random part of the interval, as if the
group had lived for a while. Nothing is measured during the pause.

- whole: from the trigger until the last member has its assignment;
- downtime: from a member's revocation until its assignment, all members and triggers;
- commit, record: the duration of a commit; the time from a record's production until its member, which already owned
  the partition, had it;
- close: the time that a member takes to close.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.peers.churn import clients
from tests.peers.peers import PeerUnavailable
from tests.support.apache_kafka import SERVER_OPTIONS, ApacheKafka

from bench.coordinator.book import Book
from bench.coordinator.load import percentile, prepare_topic
from bench.coordinator.members import ClassicMember, Plan
from bench.coordinator.places import SETTINGS
from kohort import Broker, Producer
from kohort.io.java import start_dependent_child

CLIENTS = ("java", "librdkafka", "aiokafka", "kafka-python", "franz-go", "kohort")
PLACES = ("off", "known", "Apache Kafka")
MEMBERS, PARTITIONS = 3, 6
HEARTBEAT_MS, SESSION_MS, REBALANCE_MS = 3_000, 10_000, 30_000
QUIET_S = 2 * HEARTBEAT_MS / 1000
"""Before a trigger, and a random part of an interval: the group is settled, and in step with nothing."""
WITHIN_S = 30.0
LOOK_S = 0.02
NS = 1e9


@dataclass
class Measurements:
    """The results of one client, in seconds."""

    whole: list[float] = field(default_factory=list)
    downtime: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    record: list[float] = field(default_factory=list)
    close: list[float] = field(default_factory=list)
    refused: int = 0

    def summary(self) -> dict[str, float]:
        """Medians (of downtime the mean: of three members the last to be told hardly stands still), and the worst."""
        return {
            "triggers": len(self.whole),
            "whole_median_s": round(statistics.median(self.whole or [0.0]), 3),
            "whole_max_s": round(max(self.whole, default=0.0), 3),
            "downtime_mean_s": round(statistics.fmean(self.downtime or [0.0]), 3),
            "downtime_max_s": round(max(self.downtime, default=0.0), 3),
            "commit_p50_ms": round(percentile(self.commit, 0.5) * 1e3, 1),
            "commit_p99_ms": round(percentile(self.commit, 0.99) * 1e3, 1),
            "record_p50_ms": round(percentile(self.record, 0.5) * 1e3, 1),
            "record_p99_ms": round(percentile(self.record, 0.99) * 1e3, 1),
            "close_max_s": round(max(self.close, default=0.0), 3),
            "commits_refused": self.refused,
        }


class Group:
    """Three members of one client, their logs, and the one that comes and goes."""

    def __init__(self, client: str, servers: str, folder: Path) -> None:
        self.client = client
        self.name = client
        self.measurements = Measurements()
        self._servers = servers
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._steady: list[tuple[int, int]] = []
        self._logs: list[Path] = []

    def start(self, command: list[str]) -> None:
        """Start one more member."""
        number = len(self._processes)
        log = self._folder / f"{self.name}-{number}.log"
        orders = {
            "servers": self._servers,
            "group": self.name,
            "name": f"{self.name}-{number}",
            "instance": "",
            "topics": self.name,
            "protocol": "classic",
            "strategy": "range",
            "session": SESSION_MS,
            "heartbeat": HEARTBEAT_MS,
            "rebalance": REBALANCE_MS,
            "log": log,
        }
        words = [f"{name}={value}" for name, value in orders.items()]
        with (self._folder / f"{self.name}-{number}.err").open("wb") as errors:
            process = start_dependent_child(
                [*command, *words], stdin=subprocess.PIPE, stdout=errors, stderr=subprocess.STDOUT
            )
        self._processes.append(process)
        self._logs.append(log)

    def read_log(self, log: Path) -> Iterator[dict[str, Any]]:
        """Yield the reports of one member so far, complete lines only."""
        if log.exists():
            text = log.read_text()
            yield from map(json.loads, text[: text.rfind("\n") + 1].splitlines())

    def held(self, since_ns: int = 0) -> dict[int, tuple[set[str], int]]:
        """By member what it holds, and when it was given that last: members that were given some since then only."""
        found = {}
        for number, log in enumerate(self._logs):
            now: set[str] = set()
            at = 0
            for line in self.read_log(log):
                if line["e"] == "assigned":
                    now |= set(line["partitions"])
                    at = line["t"]
                elif line["e"] in ("revoked", "lost"):
                    now -= set(line["partitions"])
            if at > since_ns:
                found[number] = (now, at)
        return found

    async def assigned(self, since_ns: int, partitions: Callable[[int], bool]) -> int:
        """Wait until all have a newer assignment and own the expected partitions; return when the last was assigned."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            held = self.held(since_ns)
            count = sum(len(holding) for holding, _ in held.values())
            if len(held) == len(self._logs) and partitions(count):
                return max(at for _, at in held.values())
            await asyncio.sleep(LOOK_S)
        raise TimeoutError(f"{self.name}: {self.held(since_ns)}")

    async def play(self, triggers: int, plan: Plan, chance: random.Random) -> None:
        """Joins and leaves, in turn."""
        await self.assigned(0, lambda count: count == PARTITIONS)
        for _ in range(triggers):
            guest = ClassicMember(plan, self.name, "guest", Book())
            await self.settle(chance)
            await self.trigger(guest.start, lambda count: count < PARTITIONS)
            await self.settle(chance)
            leaves = guest.leave()
            await self.trigger(partial(asyncio.ensure_future, leaves), lambda count: count == PARTITIONS)

    async def play_replacements(self, triggers: int, plan: Plan, chance: random.Random) -> None:
        """A fourth member crashes and a new one takes its place, again and again."""
        await self.assigned(0, lambda count: count == PARTITIONS)
        guest = ClassicMember(plan, self.name, "guest", Book())
        began = time.monotonic_ns()
        guest.start()
        await self.assigned(began, lambda count: count < PARTITIONS)
        for _ in range(triggers):
            await self.settle(chance)
            newcomer = ClassicMember(plan, self.name, "guest", Book())
            swap = replace(guest, newcomer)
            await self.trigger(partial(asyncio.ensure_future, swap), lambda count: count < PARTITIONS)
            guest = newcomer
        await guest.leave()

    async def settle(self, chance: random.Random) -> None:
        """Bring the members out of step, and let their coordinator learn their interval."""
        await asyncio.sleep(chance.random() * HEARTBEAT_MS / 1000)
        await asyncio.gather(*(pause(process, chance.random() * HEARTBEAT_MS / 1000) for process in self._processes))
        await asyncio.sleep(HEARTBEAT_MS / 1000)
        self._steady.append((time.monotonic_ns(), 0))
        await asyncio.sleep(QUIET_S + chance.random() * HEARTBEAT_MS / 1000)

    async def trigger(self, act: Callable[[], Any], partitions: Callable[[int], bool]) -> None:
        """One change, and what comes of it."""
        began = time.monotonic_ns()
        doing = act()
        try:
            last = await self.assigned(began, partitions)
        except TimeoutError as error:
            print(f"a trigger is left out: {error}", file=sys.stderr)
            self._steady.pop()
            return
        if doing is not None:
            await doing
        self._steady[-1] = (self._steady[-1][0], time.monotonic_ns())
        self.measurements.whole.append((last - began) / NS)

    def stop(self) -> None:
        """Ask every member to close, and wait for it."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(WITHIN_S)
            process.kill()
            process.wait()

    def read(self) -> None:
        """Take the figures of the steady stretches and their triggers from all logs, and the closing after it."""
        for log in self._logs:
            stopped = closing = given = 0
            asked: dict[int, int] = {}
            for line in self.read_log(log):
                what, at = line["e"], line["t"]
                if what == "closing":
                    closing = at
                elif what == "closed":
                    self.measurements.close.append((at - closing) / NS)
                elif what == "assigned":
                    given = at
                if not any(began < at < ended for began, ended in self._steady):
                    continue
                if what in ("revoked", "lost"):
                    stopped = at
                elif what == "assigned" and stopped:
                    self.measurements.downtime.append((at - stopped) / NS)
                    stopped = 0
                elif what == "committing":
                    asked[line["id"]] = at
                elif what == "committed" and line["id"] in asked:
                    self.measurements.commit.append((at - asked[line["id"]]) / NS)
                elif what == "refused":
                    self.measurements.refused += 1
                elif what == "records":
                    self.measurements.record += [(at - value) / NS for value in line["values"] if value > given]


async def replace(guest: ClassicMember, newcomer: ClassicMember) -> None:
    """One crashes, and another joins at that moment."""
    await guest.crash()
    newcomer.start()


async def pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Stop a process for a while: its next heartbeat, and all after it, come so much later."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextmanager
def place(name: str) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """A fresh broker: its address, and how its held heartbeats ended so far."""
    if name == "Apache Kafka":
        with ApacheKafka(SETTINGS, SERVER_OPTIONS) as kafka:
            yield kafka.bootstrap_servers, dict
        return
    with Broker(config={**SETTINGS, "group.notify.at.once": name}) as broker:
        yield broker.bootstrap_servers, lambda: broker.metrics()["held"]


async def produce(servers: str, topics: list[str], every_s: float) -> None:
    """A record to every partition, again and again: its value is the moment."""
    with Producer(servers) as producer:
        while True:
            for topic in topics:
                for partition in range(PARTITIONS):
                    producer.send(topic, value=str(time.monotonic_ns()), partition=partition)
            await asyncio.sleep(every_s)


async def measure(
    options: argparse.Namespace, servers: str, commands: dict[str, list[str]], folder: Path
) -> list[Group]:
    """Every client's group against one broker, all at once."""
    host, _, port = servers.rpartition(":")
    groups = []
    for client in commands:
        topic_id = await prepare_topic((host, int(port)), (host, int(port)), client, PARTITIONS)
        plan = Plan(client, PARTITIONS, topic_id, HEARTBEAT_MS, SESSION_MS, REBALANCE_MS, lambda: (host, int(port)), "")
        groups.append((Group(client, servers, folder), plan))
    for _ in range(options.members):
        for group, _ in groups:
            group.start(commands[group.client])
        await asyncio.sleep(1)
    producing = None
    if options.produce_s:
        producing = asyncio.create_task(produce(servers, list(commands), options.produce_s))
    try:
        await asyncio.sleep(QUIET_S)
        chance = random.Random(options.seed)
        plays = [(group.play_replacements if options.replace else group.play, plan) for group, plan in groups]
        await asyncio.gather(*(play(options.triggers, plan, chance) for play, plan in plays))
        await asyncio.sleep(HEARTBEAT_MS / 1000 * 1.5)
    finally:
        if producing is not None:
            producing.cancel()
        await asyncio.gather(*(asyncio.to_thread(group.stop) for group, _ in groups))
    for group, _ in groups:
        group.read()
    return [group for group, _ in groups]


def available(names: list[str]) -> dict[str, list[str]]:
    """The commands of the clients that can be had here."""
    found = {}
    for name in names:
        try:
            found[name] = clients.command(name)
        except PeerUnavailable as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def main() -> None:
    """Measure, print a table or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--triggers", type=int, default=4, help="joins, and as many leaves")
    parser.add_argument("--replace", action="store_true", help="a member crashes and another joins in its place")
    parser.add_argument("--produce-s", type=float, default=5.0, help="a record and so a commit this often; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = available(options.clients.split(","))
    table = Table("client", "broker", "whole", "downtime", "commit p50; p99", "record p50; p99", "close")
    for name in options.places.split(","):
        with tempfile.TemporaryDirectory(prefix="kohort-notification-") as folder, place(name) as (servers, held):
            groups = asyncio.run(measure(options, servers, commands, Path(folder)))
            ends = held()
        print(f"{name}: {ends}", file=sys.stderr)
        for group in groups:
            found = group.measurements.summary()
            if options.json:
                print(json.dumps({"client": group.client, "broker": name} | found), flush=True)
            table.add_row(
                group.client,
                name,
                f"{found['whole_median_s']:.2f}; max {found['whole_max_s']:.2f} s",
                f"{found['downtime_mean_s']:.2f}; max {found['downtime_max_s']:.2f} s",
                f"{found['commit_p50_ms']:.0f}; {found['commit_p99_ms']:.0f} ms",
                f"{found['record_p50_ms']:.0f}; {found['record_p99_ms']:.0f} ms",
                f"{found['close_max_s']:.2f} s",
            )
    if not options.json:
        Console().print(table)


if __name__ == "__main__":
    main()
