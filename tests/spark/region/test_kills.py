"""Queries of a region in several applications are killed, paused and stopped: the folder is the input.

No reader ever sees part of a sequence, and the group's committed offsets are those of the newest one.

`KOHORT_REGION_KILLS=20` has so many things befall them, in both protocols, on our broker and on Apache Kafka.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.region.test_kills import Reader, Where, rows_of
from tests.spark.region.query_process import STEPS, Told
from tests.support.waiting import LAST_RESORT, until

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.demo.processes import session_processes
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.region.region import Region

LONG = os.environ.get("KOHORT_REGION_KILLS")
EVENTS = int(LONG or "1")
PARTITIONS, MORE = 6, 2
PORTION = 3_000 if LONG else 1_500
SESSION_S = 6.0
PAUSE_S = 20.0
"""Beyond the session, and beyond the time in which a member must be back at the control plane."""
STILL_S = 180.0
pytestmark = LAST_RESORT


class Application:
    """Its processes, one run after another."""

    def __init__(self, name: str, told: Told) -> None:
        self.name, self.told = name, told
        self.log = Path(told.folder) / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._said = 0

    def start(self, **changed: Any) -> None:
        told = replace(self.told, **changed)
        self._said = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.spark.region.query_process", told.to_json()],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def signal(self, number: int) -> None:
        """To every process of its session: the JVM and its Python processes included."""
        assert self.process is not None
        for pid in session_processes(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None

    def stop(self, *, wait: bool = True) -> int:
        """Have it end by itself; gives its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended() if wait else 0

    def ended(self) -> int:
        assert self.process is not None
        try:
            code = self.process.wait(STILL_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # what its threads do is in the log
            code = self.process.wait()
        self.signal(signal.SIGKILL)
        self.process = None
        return code

    def runs(self) -> bool:
        """Whether all of its queries have begun since it was started last."""
        said = self.log.read_bytes()[self._said :].decode()
        return all(f"query {query} runs in epoch" in said for query in self.told.queries)

    def check(self) -> None:
        code = None if self.process is None else self.process.poll()
        assert code is None, f"{self.name} ended by itself, with {code}: {self.log.read_text()[-4000:]}"


class Watch:
    """Sees that the group's committed offsets are those of the newest sequence."""

    PATIENCE_S = 5.0
    """On Apache Kafka the markers come after the commit, and a member that went back commits what was merged."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers, self.name = servers, name
        self.looks = 0
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Admin(self.servers) as admin, Region(self.name, self.servers, serves=False) as region:
            since, before, different = time.monotonic(), -1, ""
            while not self._ended.wait(0.1):
                try:
                    sequence, now = self._difference(admin, region)
                except (KafkaError, OSError):
                    continue  # the control plane is somewhere else now
                self.looks += 1
                if sequence != before or now != different or not now:
                    since, before, different = time.monotonic(), sequence, now
                elif time.monotonic() > since + self.PATIENCE_S:
                    self.wrong.append(f"sequence {sequence}: {now}")
                    return

    def _difference(self, admin: Admin, region: Region) -> tuple[int, str]:
        seen = region.describe()
        at = {TopicPartition(one.topic, one.partition): one.offset for one in seen.positions}
        told = admin.list_consumer_group_offsets(self.name, list(at)).all()
        found = {tp: told[tp].offset if told.get(tp) is not None else 0 for tp in at}
        return seen.sequence, "" if found == at else f"the group has {found}, the sequence {at}"

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Trial:
    """A topic, its input, the applications and who watches."""

    def __init__(self, servers: str, folder: Path, protocol: str) -> None:
        self.servers, self.folder = servers, folder
        self.name = f"k-{uuid.uuid4().hex[:8]}"
        self.partitions = PARTITIONS
        self.sent: dict[Where, str] = {}
        self.told = Told(servers, self.name, self.name, str(folder), [], protocol)
        self.apps: dict[str, Application] = {}
        (folder / "out").mkdir()
        self._prepare(protocol)
        self.reader, self.watch = Reader(folder / "out"), Watch(servers, self.name)

    def _prepare(self, protocol: str) -> None:
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(self.name, PARTITIONS)]).all()
            if protocol == "consumer":
                resource = ConfigResource(ResourceType.GROUP, self.name)
                admin.incremental_alter_configs(
                    {resource: {"consumer.session.timeout.ms": f"{SESSION_S:.0f}000"}}
                ).all()

    def app(self, name: str, *queries: str, **told: Any) -> Application:
        self.apps[name] = Application(name, replace(self.told, queries=list(queries), **told))
        return self.apps[name]

    def send(self, count: int = PORTION) -> None:
        first = len(self.sent)
        with Producer(self.servers) as producer:
            values = [f"v{number}" for number in range(first, first + count)]
            pieces = [
                (value, producer.send(self.name, value.encode(), partition=number % self.partitions))
                for number, value in enumerate(values, first)
            ]
            producer.flush()
            for value, delivery in pieces:
                at: Any = delivery.result()
                self.sent[at.partition, at.offset] = value

    def add_partitions(self) -> None:
        self.partitions += MORE
        with Admin(self.servers) as admin:
            admin.create_partitions({self.name: self.partitions}).all()

    def check(self) -> None:
        for app in self.apps.values():
            app.check()
        assert not self.watch.wrong, self.watch.wrong
        assert self.reader.rows <= len(self.sent), "more is published than was sent"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.check()
            return condition()

        until(holds, what, STILL_S, lambda: {"rows": self.reader.rows, "sequences": len(self.reader.seen)})

    def goes_on(self, what: str) -> None:
        before = self.reader.rows
        self.until(lambda: self.reader.rows > before, what)

    def all_run(self) -> None:
        running = [app for app in self.apps.values() if app.process is not None]
        self.until(lambda: all(app.runs() for app in running), "all queries run")

    def is_published(self) -> None:
        self.until(lambda: self.reader.rows == len(self.sent), "all that was sent is published")

    def ends_exactly(self) -> None:
        """All end by themselves; then the folder is the input."""
        self.is_published()
        running = [app for app in self.apps.values() if app.process is not None]
        for app in running:
            app.stop(wait=False)
        codes = {app.name: app.ended() for app in running}
        assert not any(codes.values()), (codes, [app.log.read_text()[-3000:] for app in running])
        self.close()
        assert not self.watch.wrong and self.watch.looks, self.watch.wrong
        values: dict[Where, str] = {}
        for sequence in sorted((self.folder / "out").glob("sequence=*")):
            assert rows_of(sequence) == self.reader.seen[sequence.name], f"{sequence.name} was seen before it was whole"
            for file in sequence.glob("*.parquet"):
                table: Any = pq.ParquetFile(file).read(["partition", "offset", "value"])
                for partition, offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    assert (partition, offset) not in values, f"{sequence.name} has rows that another has"
                    values[partition, offset] = value
        assert values == self.sent

    def close(self) -> None:
        for app in self.apps.values():
            if app.process is not None:
                app.kill()
        self.reader.close()
        self.watch.close()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": "0", "group.consumer.min.session.timeout.ms": "1000"}
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)] if LONG else ["own"])
def servers(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("own_broker" if request.param == "own" else "apache_kafka").bootstrap_servers)


@pytest.fixture(params=["classic", "consumer"] if LONG else ["consumer"])
def trial(request: pytest.FixtureRequest, servers: str, tmp_path: Path) -> Iterator[Trial]:
    running = Trial(servers, tmp_path, request.param)
    yield running
    running.close()


def test_whatever_befalls_the_applications_the_folder_is_the_input(trial: Trial) -> None:
    chance = random.Random(0)
    first, second = trial.app("first", "a", "b"), trial.app("second", "c", fails=0.01)
    third = trial.app("third", "d")
    trial.send()
    first.start()
    second.start()
    trial.all_run()
    for number in range(EVENTS):
        trial.send()
        happen = HAPPENINGS[number % len(HAPPENINGS)]
        time.sleep(chance.random())  # anywhere in the life of a batch or a sequence
        happen(trial, first, second, third)
        trial.all_run()
        trial.send()
        trial.goes_on(f"sequences go on after {happen.__name__}")
    trial.ends_exactly()


def the_one_with_the_control_plane_is_killed(trial: Trial, first: Application, *_: Application) -> None:
    first.kill()
    first.start()


def the_other_is_killed(trial: Trial, first: Application, second: Application, *_: Application) -> None:
    second.kill()
    second.start()


def a_fourth_query_joins(trial: Trial, first: Application, second: Application, third: Application) -> None:
    if third.process is None:
        third.start()


def one_sleeps_beyond_its_session(trial: Trial, first: Application, second: Application, *_: Application) -> None:
    _sleeps(trial, second)


def partitions_are_added(trial: Trial, *_: Application) -> None:
    trial.add_partitions()


def one_stops_cleanly(trial: Trial, first: Application, second: Application, third: Application) -> None:
    """With the last sequence, and without a reset of the others."""
    if third.process is not None:
        before = first.log.read_text().count("goes back to sequence") + second.log.read_text().count("goes back to seq")
        assert third.stop() == 0
        now = first.log.read_text().count("goes back to sequence") + second.log.read_text().count("goes back to seq")
        failures = second.log.read_text().count("no space left on a device of this test")
        assert now == before or failures, "the region went back when one left"


def the_one_with_the_control_plane_sleeps(trial: Trial, first: Application, *_: Application) -> None:
    _sleeps(trial, first)


def _sleeps(trial: Trial, app: Application) -> None:
    """All others go back without it; when it wakes, it goes back too, and what it was about is void."""
    app.signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    said = len(app.log.read_text())
    app.signal(signal.SIGCONT)
    trial.until(lambda: f"query {app.told.queries[0]} goes back" in app.log.read_text()[said:], "the sleeper goes back")


HAPPENINGS: list[Callable[..., None]] = [
    the_one_with_the_control_plane_is_killed,
    a_fourth_query_joins,
    one_sleeps_beyond_its_session,
    partitions_are_added,
    the_other_is_killed,
    one_stops_cleanly,
    the_one_with_the_control_plane_sleeps,
]


@pytest.mark.skipif(LONG is None, reason="a long one: make spark-region")
@pytest.mark.parametrize("step", STEPS)
def test_who_dies_at_any_step_has_done_nothing_or_all(trial: Trial, step: str) -> None:
    """Killed by itself, alone in its region; and once more when it goes on from a checkpoint."""
    alone = trial.app("alone", "a", per_batch=200)
    trial.send()
    for nth in (2, 1) if step not in ("half derived", "derived") else (1, 1):
        if step == "half derived":
            alone.start()
            trial.goes_on("there is a sequence to go back to")
            alone.kill()
            trial.send()
        alone.start(dies_at=step, dies_nth=nth)
        assert alone.process is not None
        assert alone.process.wait(STILL_S) == -signal.SIGKILL, "it did not come by there"
        alone.kill()
        trial.send()
    alone.start()
    trial.ends_exactly()
