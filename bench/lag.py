"""Lag of 500 groups of 50 partitions: processor time and memory of a read, the dashboard's page, and commands."""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.support.apache_kafka import KafkaTools

from bench.harness import Contender, Figure, NotHere, Options, RunFailed, Sample, compare
from bench.peers import Place, brokers, kafka_tools
from kohort import Admin, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.zookeeper import free_ports

GROUPS, PARTITIONS, TOPICS = 500, 50, 10
FEW_GROUPS, FEW_PARTITIONS = 200, 20
INTERVAL_S, READS = 10.0, 4
"""An exporter is scraped once in each interval, as Prometheus does; the first read warms it up."""
KMINION = "github.com/cloudhut/kminion/v2@v2.3.5"
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
ANSWERS = 100
READY_S, BUILD_S, COMMAND_S = 60.0, 900.0, 300.0
_KOHORT = [sys.executable, "-m", "kohort"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with groups that are behind.

    Attributes:
        place: The broker.
        groups: The number of groups.
        partitions: The partitions of each.
    """

    place: Place
    groups: int
    partitions: int

    def fill(self) -> None:
        """Make the topics and the groups: each has read one or two of three records in each of its partitions."""
        with Admin(self.place.servers) as admin, Producer(self.place.servers) as producer:
            admin.create_topics([NewTopic(self._topic(number), self.partitions) for number in range(TOPICS)]).all()
            for _ in range(3):
                for topic in range(TOPICS):
                    for partition in range(self.partitions):
                        producer.send(self._topic(topic), b"x", partition=partition)
            producer.flush()
        self.commit(1)

    def commit(self, offset: int) -> None:
        """Commit an offset in all partitions of all groups; for a third of the groups the next one."""
        with Admin(self.place.servers) as admin:
            for number in range(self.groups):
                parts = [TopicPartition(self._topic(number % TOPICS), part) for part in range(self.partitions)]
                at = dict.fromkeys(parts, offset + (number % 3 == 0))
                admin.alter_consumer_group_offsets(self._group(number), at).all()

    def _topic(self, number: int) -> str:
        return f"lag-{self.groups}-{number}"

    def _group(self, number: int) -> str:
        return f"readers-{self.groups}-{number}"


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Three figures at each broker: reads, the dashboard's answers, and commands."""
    groups, few = max(10, int(GROUPS * options.scale)), max(10, int(FEW_GROUPS * options.scale))
    prepared: dict[str, Callable[[Place, str, KafkaTools | None], Figure]] = {
        f"lag of {groups} groups of {PARTITIONS} partitions of": partial(_reads, groups, options, console),
        f"the dashboard's page of {groups} groups of": partial(_page, groups, options, console),
        f"commands about {few} groups of {FEW_PARTITIONS} partitions of": partial(_commands, few, options, console),
    }
    for title, measure in prepared.items():
        with kafka_tools() as tools, brokers() as places:
            for place in places:
                if options.only in f"{title} {place.name}":
                    yield measure(place, f"{title} {place.name}", tools)


# -- Reads


def _reads(
    groups: int, options: Options, console: Console, place: Place, title: str, tools: KafkaTools | None
) -> Figure:
    """Reads per second of one core: an exporter's and kminion's at work, and a run of Kafka's command."""
    cluster = Cluster(place, groups, PARTITIONS)
    cluster.fill()
    exporter = partial(_scraped, partial(_exporter, place), "kafka_consumergroup_group_lag{", groups * PARTITIONS)
    kminion = partial(
        _scraped, partial(_kminion, place), "kminion_kafka_consumer_group_topic_partition_lag{", groups * PARTITIONS
    )
    contenders = [
        Contender("Apache Kafka's command", partial(_described, place, tools, groups)),
        Contender("kohort exporter", exporter),
        Contender("kohort exporter, groups that move", partial(exporter, cluster.commit)),
        Contender("kminion", kminion),
    ]
    return compare(title, contenders, rounds=options.rounds, unit="reads/CPU s", console=console)


def _exporter(place: Place) -> tuple[list[str], str, dict[str, str]]:
    """Return the command of an exporter, its page's address, and its environment."""
    (port,) = free_ports(1)
    options = ("--listen", f"127.0.0.1:{port}", "--interval", str(int(INTERVAL_S * 1000)))
    return [*_KOHORT, "exporter", "--servers", f"c={place.servers}", *options], f"127.0.0.1:{port}", {}


def _kminion(place: Place) -> tuple[list[str], str, dict[str, str]]:
    """Return the same of kminion, which reads when it is scraped.

    Raises:
        NotHere: It can't be built.
    """
    (port,) = free_ports(1)
    CACHE.mkdir(parents=True, exist_ok=True)
    program, config = _built_kminion(), CACHE / f"kminion-{port}.yaml"
    config.write_text(
        f'kafka: {{brokers: ["{place.servers}"]}}\n'
        "minion:\n"
        "  consumerGroups: {enabled: true, scrapeMode: adminApi, granularity: partition, allowedGroups: ['.*']}\n"
        "  topics: {enabled: true, granularity: partition, allowedTopics: ['.*']}\n"
        "  logDirs: {enabled: false}\n"
        f"exporter: {{host: 127.0.0.1, port: {port}}}\n"
        "logger: {level: error}\n"
    )
    return [program], f"127.0.0.1:{port}", {"CONFIG_FILEPATH": str(config)}


def _built_kminion() -> str:
    """Return the path of kminion, which is built of its Go module once.

    Raises:
        NotHere: Go is missing, or the module can't be fetched or built.
    """
    installed = shutil.which("kminion")
    if installed is not None:
        return installed
    program, go = CACHE / "kminion", shutil.which("go")
    if not program.exists():
        if go is None:
            raise NotHere("go is not installed")
        environment = {**os.environ, "GOBIN": str(CACHE)}
        try:
            run = subprocess.run(
                [go, "install", KMINION], env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotHere(f"kminion was not built in {BUILD_S:.0f} s") from error
        if run.returncode:
            print(run.stderr, file=sys.stderr)
            raise NotHere(f"go can't build {KMINION} here")
    return str(program)


def _scraped(
    prepare: Callable[[], tuple[list[str], str, dict[str, str]]],
    metric: str,
    wanted: int,
    commit: Callable[[int], None] | None = None,
) -> Sample:
    """Scrape an exporter once in each interval, and return what its process took for it.

    Args:
        prepare: Returns the command, the page's address, and the environment.
        metric: How the samples of a partition's lag begin.
        wanted: How many of them a whole page has.
        commit: Commits an offset in all groups; called before each scrape.

    Raises:
        RunFailed: It ended, or a page was not whole.
    """
    command, address, environment = prepare()
    with _running(command, environment) as process:
        _until_page(process, address, metric, wanted)
        time.sleep(INTERVAL_S)
        before_s, began, took = _cpu_s(process.pid), time.monotonic(), []
        for number in range(READS):
            if commit is not None:
                commit(1 + number % 2)
            time.sleep(max(0.0, began + (number + 1) * INTERVAL_S - time.monotonic()))
            asked = time.perf_counter()
            count = _page_of(address).count(f"\n{metric}")
            took.append(time.perf_counter() - asked)
            if count < wanted:
                raise RunFailed(f"a page has {count} of {wanted} partitions")
        spent_s = _cpu_s(process.pid) - before_s
        facts = {
            "% of a core": 100 * spent_s / (READS * INTERVAL_S),
            "rss_mb": _memory_mb(process.pid, "VmRSS"),
            "most_mb": _memory_mb(process.pid, "VmHWM"),
            "page_s": statistics.median(took),
        }
        return Sample(READS, spent_s, facts)


def _described(place: Place, tools: KafkaTools | None, groups: int) -> Sample:
    """Run Kafka's command once for all groups."""
    sample, lines = _kafkas_command(place, tools, "--describe", "--all-groups")
    if lines < groups * PARTITIONS:
        raise RunFailed(f"it printed {lines} lines for {groups} groups of {PARTITIONS} partitions")
    return sample


def _kafkas_command(place: Place, tools: KafkaTools | None, *args: str) -> tuple[Sample, int]:
    """Run Kafka's command about groups; return processor time and memory, and how many lines it printed.

    Raises:
        NotHere: There is no Apache Kafka.
        RunFailed: The command failed.
    """
    if tools is None:
        raise NotHere("Apache Kafka can't run here")
    command = tools.program(KafkaTools.CONSUMER_GROUPS, [*place.tool_args, *args]).command_line()
    return _whole_run(command)


def _whole_run(command: Sequence[str]) -> tuple[Sample, int]:
    """Run a command to its end; the sample's time is processor time."""
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.perf_counter() - began
        if process.returncode:
            raise RunFailed(f"{command[0]} ended with {process.returncode}")
        out.seek(0)
        lines = sum(1 for _ in out)
    facts = {"most_mb": usage.ru_maxrss / 1024, "took_s": took_s}
    return Sample(1, usage.ru_utime + usage.ru_stime, facts), lines


# -- The dashboard


def _page(
    groups: int, options: Options, console: Console, place: Place, title: str, tools: KafkaTools | None
) -> Figure:
    """Answers per second to one browser that asks for the overview again and again."""
    del tools
    Cluster(place, groups, PARTITIONS).fill()
    contenders = [Contender("kohort dashboard", partial(_answered, place, groups))]
    return compare(title, contenders, rounds=options.rounds, unit="answers/s", console=console)


def _answered(place: Place, groups: int) -> Sample:
    """Ask a dashboard that has read all groups several times.

    Raises:
        RunFailed: It ended, or an answer was not whole.
    """
    (port,) = free_ports(1)
    command = [*_KOHORT, "dashboard", "--bootstrap-server", place.servers, "--listen", f"127.0.0.1:{port}"]
    with _running([*command, "--interval", "1000"], {}) as process:
        address, group = f"127.0.0.1:{port}", '"group":'
        _until_page(process, address, group, groups, path="/api/overview", is_line=False)
        time.sleep(INTERVAL_S)
        took = []
        for _ in range(ANSWERS):
            asked = time.perf_counter()
            if _page_of(address, "/api/overview").count(group) < groups:
                raise RunFailed("an answer has not all groups")
            took.append(time.perf_counter() - asked)
            time.sleep(0.02)
        took.sort()
        facts = {
            "median_ms": statistics.median(took) * 1000,
            "99_percent_ms": took[int(len(took) * 0.99) - 1] * 1000,
            "rss_mb": _memory_mb(process.pid, "VmRSS"),
            "most_mb": _memory_mb(process.pid, "VmHWM"),
        }
        return Sample(len(took), sum(took), facts)


# -- Commands


def _commands(
    groups: int, options: Options, console: Console, place: Place, title: str, tools: KafkaTools | None
) -> Figure:
    """Runs of commands per second, beside Kafka's for the lag of all groups."""
    Cluster(place, groups, FEW_PARTITIONS).fill()
    ours = partial(_timed_command, place)
    contenders = [
        Contender("Apache Kafka's --describe --all-groups", partial(_timed_kafka, place, tools, "--describe")),
        Contender("Apache Kafka's --list", partial(_timed_kafka, place, tools, "--list")),
        Contender("kohort groups lag", partial(ours, groups * FEW_PARTITIONS, "lag")),
        Contender("kohort groups list", partial(ours, groups, "list")),
    ]
    return compare(title, contenders, rounds=options.rounds, unit="runs/s", console=console)


def _timed_kafka(place: Place, tools: KafkaTools | None, what: str) -> Sample:
    more = ["--all-groups"] if what == "--describe" else []
    sample, _ = _kafkas_command(place, tools, what, *more)
    return _by_clock(sample)


def _timed_command(place: Place, lines: int, what: str) -> Sample:
    """Run one of our commands.

    Raises:
        RunFailed: It failed, or printed too little.
    """
    sample, printed = _whole_run([*_KOHORT, "groups", what, "--bootstrap-server", place.servers])
    if printed < lines:
        raise RunFailed(f"it printed {printed} lines of {lines}")
    return _by_clock(sample)


def _by_clock(sample: Sample) -> Sample:
    """Return a sample of processor time as one of the time that passed."""
    facts = {**sample.facts, "cpu_s": sample.seconds}
    return Sample(sample.amount, facts.pop("took_s"), facts)


# -- Processes


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, and end it."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _page_of(address: str, path: str = "/metrics") -> str:
    """Return a page, compressed on its way if the server can do that, as Prometheus asks for it."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=READY_S) as answer:
        body: bytes = answer.read()
        return (gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body).decode()


def _until_page(
    process: subprocess.Popen[Any],
    address: str,
    part: str,
    wanted: int,
    path: str = "/metrics",
    *,
    is_line: bool = True,
) -> None:
    """Wait until a page is whole.

    Raises:
        RunFailed: The process ended, or the page is not whole in time.
    """
    end_s, found = time.monotonic() + READY_S, 0
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RunFailed(f"it ended with {process.returncode}")
        try:
            found = _page_of(address, path).count(f"\n{part}" if is_line else part)
        except OSError:
            found = 0
        if found >= wanted:
            return
        time.sleep(0.5)
    raise RunFailed(f"its page has {found} of {wanted} after {READY_S:.0f} s")


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process by Linux's clock for it."""
    return time.clock_gettime(~pid << 3 | 2)


def _memory_mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
