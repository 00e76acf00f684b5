"""The peers of benchmarks: other clients, Apache Kafka's performance tools, and both brokers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from tests.support.apache_kafka import SERVER_OPTIONS, ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable

from bench.harness import JVM_WARM_S, Contender, Figure, NotHere, Options, RunFailed, Sample, compare
from kohort import Admin, Broker
from kohort.client.admin.values import NewTopic

PARTITIONS = 4
_RUN_TIMEOUT_S = 600
_FREED_TIMEOUT_S = 20
_JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseG1GC")
# Kafka keeps a deleted topic's files for a minute. The next run then writes into memory that was not used before. On a
# virtual machine the host supplies each such page: 0.35 µs a record instead of 0.08.
KAFKA_SETTINGS = {"log.segment.delete.delay.ms": "100"}


@dataclass(frozen=True, slots=True)
class Place:
    """A broker that a benchmark runs against.

    Attributes:
        data: the folder of its topics, when this process runs it.
        command_config: the file with the settings that Java's tools need to connect.
        warm_s: how long it takes a load before that counts.
    """

    name: str
    servers: str
    data: Path | None = None
    warm_s: float = 0.0
    command_config: Path | None = None

    @property
    def tool_args(self) -> tuple[str, ...]:
        """The arguments with which Java's tools connect."""
        config = () if self.command_config is None else ("--command-config", str(self.command_config))
        return ("--bootstrap-server", self.servers, *config)


Prepare: TypeAlias = Callable[[Place, KafkaTools | None], AbstractContextManager[list[Contender]]]


@contextmanager
def brokers() -> Iterator[list[Place]]:
    """Our broker, and Apache Kafka where it can run, each with its data in a folder that is deleted in the end."""
    with ExitStack() as running:
        config = {"group.initial.rebalance.delay.ms": 0}
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-"))
        ours = running.enter_context(Broker(Path(folder), config))
        places = [Place("kohort", ours.bootstrap_servers, Path(folder))]
        with suppress(MavenUnavailable):
            kafka = running.enter_context(ApacheKafka(KAFKA_SETTINGS, SERVER_OPTIONS))
            places.append(Place("Apache Kafka", kafka.bootstrap_servers, kafka.log_dir, JVM_WARM_S))
        yield places


@contextmanager
def kafka_tools() -> Iterator[KafkaTools | None]:
    """Apache Kafka's tools, or None where they can't run."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-tools-") as folder:
        try:
            tools = KafkaTools(Path(folder))
        except MavenUnavailable:
            tools = None
        yield tools


def at_each_broker(what: str, prepare: Prepare, options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each broker, related to confluent-kafka.

    Args:
        what: is done, as "produce 100 B into"; the broker's name makes it the title.
        prepare: gives the contenders at a broker, and clears up after they have run.
        options: how often, how much, and which figures.
        console: shows progress.
    """
    with kafka_tools() as tools, brokers() as places:
        for place in places:
            title = f"{what} {place.name}"
            if options.only in title:
                with prepare(place, tools) as found:
                    contenders = [replace(contender, warm_s=place.warm_s) for contender in found[:1]] + found[1:]
                    yield compare(title, contenders, rounds=options.rounds, baseline="confluent-kafka", console=console)


def new_topic(place: Place, partitions: int = PARTITIONS) -> str:
    """A fresh topic."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(place.servers) as admin:
        admin.create_topics([NewTopic(name, partitions)]).all()
    return name


def drop_topic(place: Place, topic: str) -> None:
    """Frees the disk and the memory that a topic takes, and waits until they are free."""
    with Admin(place.servers) as admin:
        admin.delete_topics([topic]).all()
    until = time.monotonic() + _FREED_TIMEOUT_S
    while place.data is not None and any(place.data.rglob(f"*{topic}*")) and time.monotonic() < until:
        time.sleep(0.1)


def filled_topic(
    place: Place, records: int, size: int, partitions: int = PARTITIONS, client: str = "kohort-send-arrow"
) -> str:
    """Create a topic with `records` records of `size` bytes, written by a client of `bench.runners.produce`."""
    topic = new_topic(place, partitions)
    python_client("produce", client, place, topic, records, str(size))
    return topic


def python_client(job: str, client: str, place: Place, topic: str, records: int, *more: str) -> Sample:
    """One run of a Python client in a process of its own; see `runner`."""
    return runner(job, [client, place.servers, topic, str(records), *more], records)


def runner(job: str, args: list[str], records: int) -> Sample:
    """One run of a program of `bench.runners`, in a process of its own.

    Args:
        job: the program.
        args: its arguments; the first names the contender.
        records: what it must do, to count.

    Raises:
        NotHere: a package that it needs is not installed.
        RunFailed: it failed, or did less than it should.
    """
    command = [sys.executable, "-m", f"bench.runners.{job}", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        if "ModuleNotFoundError" in done.stderr:
            raise NotHere(done.stderr.strip().splitlines()[-1])
        raise RunFailed(f"{args[0]}: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["amount"] < records:
        raise RunFailed(f"{args[0]} got {result['amount']} of {records} records")
    return Sample(
        result["amount"],
        result["seconds"],
        {name: result[name] for name in result if name not in ("amount", "seconds")},
    )


def java_consumer(tools: KafkaTools | None, place: Place, topic: str, records: int) -> Sample:
    """Apache Kafka's ConsumerPerformance: whole time, and the rate while it fetched.

    Raises:
        NotHere: it can't run on this machine.
    """
    if tools is None:
        raise NotHere("no Maven or no Java 17")
    done = tools.run(
        tools.CONSUMER_PERFORMANCE,
        *place.tool_args,
        *("--topic", topic, "--num-records", str(records), "--hide-header"),
        timeout_s=_RUN_TIMEOUT_S,
        options=_JAVA_OPTIONS,
    )
    lines = [line.split(",") for line in done.stdout.splitlines() if line.count(",") >= 9]
    if done.returncode != 0 or not lines:
        raise RunFailed(f"ConsumerPerformance failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    fields = [field.strip() for field in lines[-1]]
    amount, rate, fetch_ms = float(fields[4]), float(fields[5]), float(fields[7])
    if amount < records:
        raise RunFailed(f"ConsumerPerformance got {amount:.0f} of {records} records from {place.name}")
    return Sample(amount, amount / rate, {"fetch only/s": amount / max(fetch_ms, 1) * 1000})


def java_producer(tools: KafkaTools | None, place: Place, topic: str, records: int, size: int) -> Sample:
    """Apache Kafka's ProducerPerformance.

    Raises:
        NotHere: it can't run on this machine.
    """
    if tools is None:
        raise NotHere("no Maven or no Java 17")
    done = tools.run(
        tools.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"),
        *place.tool_args,
        timeout_s=_RUN_TIMEOUT_S,
        options=_JAVA_OPTIONS,
    )
    lines = [line for line in done.stdout.splitlines() if "99.9th" in line]
    if done.returncode != 0 or not lines:
        raise RunFailed(f"ProducerPerformance failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    words = lines[-1].split()
    sent, rate = float(words[0]), float(words[3])
    latency = {"ms on average": float(lines[-1].split(",")[2].split()[0])}
    return Sample(sent, sent / rate, latency)
