"""Members of a region and its control plane, processes all, are killed in turn: the folder is the input.

`KOHORT_REGION_KILLS=20` kills as often as that, over all flights of the demo.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import pytest

from kohort import Admin, Producer
from kohort.client.admin.values import ConfigResource, ResourceType
from kohort.demo.flights import ALL, recorded_flights
from kohort.region.region import Region
from tests.region.conftest import make_topic
from tests.region.member_forks import COMMAND, MEMBER, start_module
from tests.region.member_process import key_of
from tests.region.s3_server import LossyProxy
from tests.region.test_parquet_s3 import options
from tests.support.waiting import until

LONG = os.environ.get("KOHORT_REGION_KILLS")
KILLS = int(LONG or "2")
ROWS = ALL if LONG else 3_000
PARTITIONS = 6
MEMBERS = ["m1", "m2", "m3"]
PLANE = "plane"
TURNS = ["m1", PLANE, "m2", PLANE, "m3", PLANE]
Where = tuple[int, int]
pytestmark = pytest.mark.timeout(3_600 if LONG else 120)


class Processes:
    """The members and the control plane, by name."""

    def __init__(self, servers: str, name: str, folder: Path, protocol: str, rebalance: str) -> None:
        self.more: list[str] = []
        self.forks = True
        self.arguments = (servers, name, name, str(folder), protocol, rebalance)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.log = (folder.parent / "log").open("w")
        self.said = folder.parent / "said"

    def start(self, process: str) -> None:
        servers, region, topic, folder, protocol, rebalance = self.arguments
        if process == PLANE:
            module, words = COMMAND, ["region", "serve", region, "--checkpoint-every", "500ms"]
            words += ["--bootstrap-server", servers]
        else:
            module, words = MEMBER, [servers, region, process, topic, folder, protocol, rebalance, *self.more]
        with (self.said if process == PLANE else Path(os.devnull)).open("w") as output:
            self.running[process] = start_module(module, words, stdout=output, stderr=self.log, forks=self.forks)

    def kill(self, process: str) -> None:
        killed = self.running.pop(process)
        killed.kill()
        killed.wait()

    def check(self) -> None:
        """All that were not killed still run; but a control plane may find that another has taken over."""
        for name, process in self.running.items():
            code = process.poll()
            gone = code is not None and not (name == PLANE and code == 0)
            assert not gone, f"{name} ended by itself, with {code}: {Path(self.log.name).read_text()[-2000:]}"

    def end(self) -> dict[str, int]:
        """Have all end by themselves, the control plane last: their exit codes."""
        codes: dict[str, int] = {}
        for names in (self.running.keys() - {PLANE}, self.running.keys() & {PLANE}):
            for name in names:
                self.running[name].terminate()
            codes |= {name: _ended(self.running[name]) for name in names}
        self.running.clear()
        self.log.close()
        return codes


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def rows_of(sequence: Path) -> Counter[Where]:
    """Of one folder: partitions and offsets, with how often each is there."""
    found: Counter[Where] = Counter()
    for file in sorted(sequence.glob("*.parquet")):
        table: Any = pq.ParquetFile(file).read(["partition", "offset"])
        found.update(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    return found


class Reader:
    """Reads each sequence as soon as it is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, Counter[Where]] = {}
        self.rows: int = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for sequence in self.folder.glob("sequence=*"):
                if sequence.name not in self.seen:
                    self.seen[sequence.name] = rows_of(sequence)
                    self.rows += self.seen[sequence.name].total()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class RowReader(Protocol):
    """Something that counts the rows that readers see."""

    @property
    def rows(self) -> int:
        """Return the number of rows that have been seen."""

    def close(self) -> None:
        """Read no more."""


class Sent:
    """The topic's records: the values, by partition and offset."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.source = recorded_flights(ROWS)
        self.values: dict[Where, bytes] = {}

    def send(self, count: int) -> None:
        with Producer(self.servers) as producer:
            pieces = [
                (piece, producer.send(self.topic, piece.value, piece.tail)) for piece in islice(self.source, count)
            ]
            producer.flush()
            self.values |= {self._where(delivery): piece.value for piece, delivery in pieces}

    def _where(self, delivery: Any) -> Where:
        told = delivery.result()
        return (told.partition, told.offset)


@pytest.fixture(params=["classic-reset", "consumer-checkpoint"])
def how(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param.split("-")
    return words


@pytest.fixture
def processes(
    request: pytest.FixtureRequest, servers: str, name: str, how: list[str], tmp_path: Path
) -> Iterator[Processes]:
    if "apache" in request.node.callspec.id and "consumer" in how and LONG is None:
        pytest.skip("a long one, for its sessions are 6 s: make region")
    make_topic(servers, name, PARTITIONS)
    if "consumer" in how:
        with Admin(servers) as admin:
            admin.incremental_alter_configs(
                {ConfigResource(ResourceType.GROUP, name): {"consumer.session.timeout.ms": "6000"}}
            ).all()
    (tmp_path / "out").mkdir()
    running = Processes(servers, name, tmp_path / "out", *how)
    yield running
    running.end()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reading = Reader(tmp_path / "out")
    yield reading
    reading.close()


def test_whoever_is_killed_the_folder_is_the_input(
    processes: Processes, reader: Reader, servers: str, name: str, tmp_path: Path
) -> None:
    sent = kill_in_turn(processes, reader, servers, name)
    values: dict[Where, bytes] = {}
    for sequence, rows in rows_by_sequence(tmp_path / "out", reader, "value"):
        assert not rows.keys() & values.keys(), f"{sequence} has rows that another has"
        values |= rows
    assert len(sent.values) == ROWS and values == sent.values


def test_whoever_is_killed_each_row_has_the_count_that_its_partition_has_come_to(
    processes: Processes, reader: Reader, servers: str, name: str, tmp_path: Path, states: str
) -> None:
    """Keyed states move with partitions, and go back with them."""
    processes.more = ["--states", states]
    sent = kill_in_turn(processes, reader, servers, name)
    assert counts_in(tmp_path / "out", reader) == counts_of(sent)


def test_member_that_is_killed_while_it_loads_a_state_loses_nothing(
    request: pytest.FixtureRequest, processes: Processes, reader: Reader, servers: str, name: str, tmp_path: Path
) -> None:
    if "apache" in request.node.callspec.id:
        pytest.skip("our own broker is enough for the store")
    stalls, loading, released = threading.Event(), threading.Event(), threading.Event()

    def stall(method: str, path: str) -> bool:
        if stalls.is_set() and method == "GET" and ".state" in path:
            loading.set()
            released.wait(60)
        return False

    proxy = LossyProxy(request.getfixturevalue("store"), lambda method, path: False, before=stall)
    try:
        processes.more = ["--states", place_in_store(proxy.address, name)]
        sent = Sent(servers, name)
        for process in (PLANE, "m1"):
            processes.start(process)
        sent.send(500)
        until(lambda: reader.rows == 500, "the first one has made states")
        first = processes.running.pop("m1")
        first.terminate()
        assert first.wait(60) == 0
        stalls.set()
        sent.send(500)
        processes.start("m2")
        assert loading.wait(60), "the second one loads"
        processes.kill("m2")
        stalls.clear()
        released.set()
        processes.start("m3")
        until(lambda: reader.rows == 1000, "the third one goes on")
        assert counts_in(tmp_path / "out", reader) == counts_of(sent)
        processes.check()
    finally:
        processes.end()
        proxy.close()


def counts_of(sent: Sent) -> dict[Where, int]:
    """The counts that the records should have, by partition and offset."""
    wanted, so_far = dict[Where, int](), Counter[tuple[int, bytes]]()
    for where, value in sorted(sent.values.items()):
        so_far[where[0], key_of(value)] += 1
        wanted[where] = so_far[where[0], key_of(value)]
    return wanted


def counts_in(folder: Path, reader: Reader) -> dict[Where, int]:
    """The counts that the rows have."""
    counts: dict[Where, int] = {}
    for _, rows in rows_by_sequence(folder, reader, "count"):
        counts |= rows
    return counts


@pytest.fixture(params=["folder", "store"])
def states(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> str:
    """A place of keyed states, as an argument of a member."""
    if request.param == "folder":
        return str(tmp_path / "states")
    if "apache" in request.node.callspec.id:
        pytest.skip("our own broker is enough for the store")
    return place_in_store(request.getfixturevalue("store"), name)


def place_in_store(address: str, name: str) -> str:
    """A place of keyed states in an object store, as an argument of a member."""
    return ",".join((f"s3://lake/{name}", *(f"{option}={value}" for option, value in options(address).items())))


def rows_by_sequence(folder: Path, reader: Reader, column: str) -> Iterator[tuple[str, dict[Where, Any]]]:
    """Of each sequence a column by partition and offset; each was seen whole or not at all."""
    for sequence in sorted(folder.glob("sequence=*")):
        assert rows_of(sequence) == reader.seen[sequence.name], f"{sequence.name} was seen before it was whole"
        for file in sequence.glob("*.parquet"):
            table: Any = pq.ParquetFile(file).read()
            columns = [table.column(name).to_pylist() for name in ("partition", "offset", column)]
            yield sequence.name, {(partition, offset): value for partition, offset, value in zip(*columns, strict=True)}


def kill_in_turn(processes: Processes, reader: RowReader, servers: str, name: str) -> Sent:
    """Kill members and the control plane while records come, until all is in the folder; what was sent."""
    chance, sent = random.Random(name), Sent(servers, name)
    for process in (PLANE, *MEMBERS):
        processes.start(process)
    for kill in range(KILLS + 1):
        before = reader.rows  # while they are sent, all of them may be published
        sent.send(-(-ROWS // (KILLS + 1)))

        def progressed(before: int = before) -> bool:
            processes.check()
            return reader.rows > before

        until(progressed, f"sequences go on after {kill} kills")
        if kill < KILLS:
            time.sleep(chance.random())
            victim = TURNS[kill % len(TURNS)]
            processes.kill(victim)
            if chance.random() < 0.5:
                time.sleep(chance.random() * 2)
            processes.start(victim)

    def whole() -> bool:
        processes.check()
        assert reader.rows <= ROWS, "there is more in the folder than in the topic"
        return reader.rows == ROWS

    until(whole, "all is there", moves=lambda: {"rows": reader.rows})
    with Region(name, servers, serves=False) as region:
        until(lambda: [member.name for member in region.describe().members] == MEMBERS, "the last one killed is back")
    until(lambda: "ready" in processes.said.read_text(), "the control plane is back too")
    assert set(processes.end().values()) == {0}
    reader.close()
    return sent
