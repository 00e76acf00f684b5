"""Every program of `examples/` runs as it stands, in a folder of its own, and does what its first lines say."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

import pytest

from kohort import Admin, Broker, Consumer, NewTopic, Producer, TopicPartition
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import ATTEMPTS, LAST_RESORT, TOO_SLOW, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LINES_MIN, LINES_MAX = 20, 60
PARTITIONS = 3
SENT = 90
READ = {
    "asyncio_service.py": "requests",
    "dead_letters.py": "orders",
    "foreach_batch_upsert.py": "prices",
    "push_consumer.py": "jobs",
    "region_to_iceberg.py": "payments",
    "spark_shared_topic.py": "events",
}
"""The programs that read records of others, with their topics."""
START_S = 900
"""How long a Spark application may take to start on a busy machine, without a sign of it."""


class Program:
    """A program of `examples/` that runs, and the lines that it has printed."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            cwd=folder,
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        streams = ((self.process.stdout, self._lines), (self.process.stderr, self._errors))
        self._readers = [Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            lines.extend(line.rstrip() for line in stream)  # a list grows while others read it

    def lines(self) -> list[str]:
        """Return the lines printed so far."""
        return list(self._lines)

    def errors(self) -> str:
        """Return the lines of standard error."""
        return "\n".join(self._errors)

    def kill(self) -> None:
        """Kills it, and reads what is left."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()

    def ended(self, code: int = 0) -> list[str]:
        """Waits for its end; returns all that it has printed."""
        found = self.process.wait()
        for reader in self._readers:
            reader.join()
        assert found == code, self.errors()
        return self.lines()


Run = Callable[..., Program]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Run]:
    """Starts programs; what still runs at the end is killed."""
    started: list[Program] = []

    def start(name: str, *arguments: str) -> Program:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Program(name, folder, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.kill()


@pytest.fixture(scope="module")
def servers(our_broker: Broker) -> str:
    return our_broker.bootstrap_servers


def fill(servers: str, topic: str, values: Sequence[str], *, keys: int = 5, partitions: int = PARTITIONS) -> None:
    """Makes a topic if it is not there, and sends records with some keys."""
    with Admin(servers) as admin, Producer(servers) as producer:
        if topic not in {info.name for info in admin.list_topics()}:
            admin.create_topics([NewTopic(topic, partitions)]).all()
        for number, value in enumerate(values):
            producer.send(topic, value, key=f"k{number % keys}")


def values_of(servers: str, topic: str, count: int, **settings: str) -> list[bytes]:
    """So many values of a topic, sorted."""
    found: list[bytes] = []
    with Consumer(servers, auto_offset_reset="earliest", **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
        while len(found) < count:
            found += [record.value for record in consumer.poll(timeout_ms=1000) if record.value is not None]
    return sorted(found)


def committed(servers: str, group: str) -> int:
    """The sum of a group's offsets."""
    with Admin(servers) as admin:
        return sum(found.offset for found in admin.list_consumer_group_offsets(group).all().values())


def test_programs_are_short_listed_and_tested() -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    page = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[(\w+\.py)\]\(\1\)", page, re.MULTILINE)) == programs
    tests = Path(__file__).read_text()
    assert [name for name in programs if f'"{name}"' not in tests] == []
    lengths = {name: len((EXAMPLES / name).read_text().splitlines()) for name in programs}
    assert {name: length for name, length in lengths.items() if not LINES_MIN <= length <= LINES_MAX} == {}


def test_records_that_a_program_reads_are_written_by_the_commands_in_its_first_lines(tmp_path: Path) -> None:
    """A reader would else wait before a program that prints nothing."""
    kohort = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, topic in READ.items():
        docstring = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
        commands = [command for command in re.findall(r"`([^`]+)`", docstring) if "kohort" in command]
        with Broker() as broker, Consumer(broker.bootstrap_servers) as consumer:
            environment = {**os.environ, **kohort, "KOHORT_BOOTSTRAP_SERVER": broker.bootstrap_servers}
            for command in commands[: 1 + next(i for i, text in enumerate(commands) if "produce" in text)]:
                subprocess.run(command, shell=True, env=environment, check=True, cwd=tmp_path, capture_output=True)
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            assert sum(consumer.end_offsets(partitions).values()) >= 2, name


@LAST_RESORT
def test_asyncio_service_answers_and_ends_cleanly(program: Run, servers: str) -> None:
    fill(servers, "requests", [f"request {number}" for number in range(SENT)])
    service = program("asyncio_service.py", servers)
    replies = values_of(servers, "replies", SENT)
    assert replies == sorted(b"REQUEST %d" % number for number in range(SENT))
    until(lambda: committed(servers, "shouting") == SENT, "it has committed what it answered")
    service.process.send_signal(signal.SIGTERM)
    assert service.ended() == ["ready", "ended"]


@LAST_RESORT
def test_dead_letters_have_reason_and_place(program: Run, servers: str) -> None:
    orders = [json.dumps({"id": number, "price": 2, "count": number}) for number in range(20)]
    fill(servers, "orders", [*orders, "no order", '{"id": 1}'])
    program("dead_letters.py", servers).ended()
    totals = values_of(servers, "totals", 20, isolation_level="read_committed")
    assert sorted(json.loads(total)["total"] for total in totals) == [2 * number for number in range(20)]
    assert values_of(servers, "orders-dead-letters", 2) == [b"no order", b'{"id": 1}']
    assert committed(servers, "order-totals") == 22
    assert program("dead_letters.py", servers).ended() == [], "a second run finds nothing new"


@LAST_RESORT
def test_typed_avro_reads_both_versions(program: Run, servers: str) -> None:
    assert sorted(program("typed_avro.py", servers).ended()) == ["1 no total", "2 no total", "3 9.5"]


@LAST_RESORT
def test_lag_alert_names_group_and_cause(program: Run, servers: str) -> None:
    fill(servers, "invoices", ["one", "two"])
    with Consumer(servers, group_id="accounting", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["invoices"])
        read = 0
        while read < 2:
            read += sum(1 for _ in consumer.poll(timeout_ms=1000))
        consumer.commit()
        assert program("lag_alert.py", servers, "60", "accounting").ended() == []
    fill(servers, "invoices", ["three"])
    (line,) = program("lag_alert.py", servers, "0.001", "accounting").ended(1)
    assert re.fullmatch(r"accounting is STOP: 1 records are unread; .* has waited for \d+ s \(no members\)", line)


@LAST_RESORT
def test_push_consumer_gets_what_a_killed_one_had(program: Run, servers: str) -> None:
    fill(servers, "jobs", ["first"])
    first = program("push_consumer.py", servers, "first")
    until(lambda: "first reads first" in first.lines(), "the first one reads")
    second = program("push_consumer.py", servers, "second")
    until(lambda: any(line.startswith("second has") for line in second.lines()), "the second one has a share")
    first.process.kill()
    fill(servers, "jobs", [f"job {number}" for number in range(9)])
    wanted = {f"second reads job {number}" for number in range(9)}
    until(lambda: wanted <= set(second.lines()), "the second one reads every partition")
    second.process.send_signal(signal.SIGTERM)
    second.ended()


@LAST_RESORT
def test_region_to_iceberg_is_read_by_duckdb(program: Run, servers: str) -> None:
    pytest.importorskip("duckdb_extensions", reason="duckdb and its extension packages read the table")
    fill(servers, "payments", [str(number) for number in range(SENT)], keys=2)
    sums = program("region_to_iceberg.py", servers, str(SENT)).ended()
    assert sums == [f"k0 {sum(range(0, SENT, 2))}", f"k1 {sum(range(1, SENT, 2))}"]


@LAST_RESORT
def test_billing_tests_pass_and_notice_a_fault_in_the_code(tmp_path: Path) -> None:
    name = "test_billing_with_faults.py"
    text = (EXAMPLES / name).read_text()
    assert text.count("        consumer.commit()\n") == 1
    (tmp_path / name).write_text(text)
    forgets = text.replace("        consumer.commit()\n", "").replace("lost.wait()", "lost.wait(timeout_ms=2_000)")
    (tmp_path / "test_forgets.py").write_text(forgets)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--tb=line"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, name, "test_forgets.py::test_commit_whose_answer_is_lost_counts"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.kafka
@LAST_RESORT
def test_coordinator_over_kafka_keeps_the_group(program: Run, apache_kafka: ApacheKafka) -> None:
    lines = program("coordinator_over_kafka.py", apache_kafka.bootstrap_servers).ended()
    assert re.fullmatch(r"coordinator at 127\.0\.0\.1:\d+", lines[0])
    assert lines[1:] == ["committed 100"]


@pytest.mark.spark
@pytest.mark.usefixtures("forked_spark")
@LAST_RESORT
def test_upsert_keeps_the_latest_price(program: Run, servers: str, tmp_path: Path) -> None:
    table = tmp_path / "prices.db"
    fill(servers, "prices", [str(number) for number in range(SENT)])
    program("foreach_batch_upsert.py", servers, str(table)).ended()
    with sqlite3.connect(table) as database:
        prices = dict(database.execute("SELECT product, price FROM prices"))
    assert prices == {f"k{key}": SENT - 5 + key for key in range(5)}


@pytest.fixture
def own_servers() -> Iterator[str]:
    """A broker of the test's own, for programs whose topic and group are those of another test."""
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers


def records_of(running: Sequence[Program]) -> dict[str, int]:
    """How many records the applications have read, by partition; fails if one of them has ended."""
    counts = dict.fromkeys(map(str, range(PARTITIONS)), 0)
    for run in running:
        for line in run.lines():
            if found := re.fullmatch(r"\d\d:\d\d:\d\d app-\d: partition (\d): (\d+) records", line):
                counts[found[1]] += int(found[2])
    return counts


def members(admin: Admin) -> int:
    """How many members the Spark group has."""
    return len(admin.describe_consumer_groups(["shared"]).all()["shared"].members)


@pytest.mark.spark
@pytest.mark.usefixtures("forked_spark")
@LAST_RESORT
@pytest.mark.parametrize("applications", [1, 3])
def test_applications_share_the_topic(program: Run, own_servers: str, applications: int) -> None:
    """With three, one is killed at the end, and the others read its partitions."""
    values = [str(number) for number in range(SENT)]
    fill(own_servers, "events", values, keys=SENT)
    names = [f"app-{number}" for number in range(applications)]
    running = [program("spark_shared_topic.py", own_servers, name) for name in names]
    ended: list[Program] = []

    def has_read(count: int) -> bool:
        """Whether so many records are read; starts an application again for which this machine was too slow."""
        for at, run in enumerate(running):
            if run.process.poll() is not None:
                run.kill()
                assert TOO_SLOW in run.errors(), run.errors()
                ended.append(run)
                assert len(ended) < ATTEMPTS
                running[at] = program("spark_shared_topic.py", own_servers, names[at])
        return sum(records_of([*ended, *running]).values()) >= count

    until(lambda: has_read(SENT), "every record is read", START_S, lambda: records_of(running))
    with Admin(own_servers) as admin:
        until(lambda: members(admin) == applications, "all are members", START_S)
    if applications > 1:
        running[0].kill()
        ended.append(running.pop(0))
        names.pop(0)
        read = sum(records_of([*ended, *running]).values())
        fill(own_servers, "events", values, keys=SENT)
        until(lambda: has_read(read + SENT), "the others read every partition", START_S, lambda: records_of(running))
    for run in running:
        run.process.send_signal(signal.SIGTERM)
