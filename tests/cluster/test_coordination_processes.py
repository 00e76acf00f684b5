"""Candidates as processes, through both services: killed, stopped and woken, ended cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Broker
from kohort.zookeeper import ZooKeeper
from tests.cluster.coordination_process import SHARDS
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LONG_MS = 60_000
"""A session that outlasts every wait here: who is out before was not waited for."""
SHORT_MS = 6_000


class Candidate:
    """One process, and the last line that it wrote."""

    def __init__(self, kind: str, address: str, number: int, session_ms: int) -> None:
        self.number = number
        command = [
            sys.executable,
            "-m",
            "tests.cluster.coordination_process",
            kind,
            address,
            str(number),
            str(session_ms),
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.is_leader = False
        self.elected = -1
        self.owners: list[int] = []
        self.incarnations: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.is_leader, self.elected, self.owners, self.incarnations = json.loads(line)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Candidates:
    """Processes at one door."""

    def __init__(self, kind: str, address: str) -> None:
        self._service_at = kind, address
        self._all: list[Candidate] = []

    def begin(self, number: int, session_ms: int) -> Candidate:
        self._all.append(one := Candidate(*self._service_at, number, session_ms))
        return one

    def end(self) -> None:
        for process in self._all:
            process.end()


@pytest.fixture(params=["zookeeper", "group"])
def candidates(request: pytest.FixtureRequest) -> Iterator[Candidates]:
    name = uuid.uuid4().hex[:8]
    if request.param == "zookeeper":
        zookeeper: ZooKeeper = request.getfixturevalue("zookeeper")
        found = Candidates("zookeeper", f"{zookeeper.address}/{name}")
    else:
        broker: Broker = request.getfixturevalue("our_broker")
        found = Candidates("group", f"{broker.bootstrap_servers}/{name}")
    yield found
    found.end()


def agreed(*some: Candidate) -> None:
    """All say one map, in which each of them has a share, and one of them is in office."""
    ids = {process.number for process in some}

    def agree() -> bool:
        first = some[0]
        alike = all((process.owners, process.incarnations) == (first.owners, first.incarnations) for process in some)
        office = [service.number for service in some if service.is_leader]
        return alike and set(first.owners) == ids and len(first.incarnations) == len(ids) and office == [first.elected]

    def seen() -> dict[str, object]:
        return {f"process {service.number}": (service.is_leader, service.elected, service.owners) for service in some}

    until(agree, f"one map for {sorted(ids)}", 40, seen)


def test_killed_is_out_before_its_session(candidates: Candidates) -> None:
    """The elected one is killed, and then started again: neither waits for a session."""
    some = [candidates.begin(number, LONG_MS) for number in (1, 2, 3)]
    agreed(*some)
    elected = next(service for service in some if service.is_leader)
    others = [process for process in some if process is not elected]
    before = {
        process.number: {shard for shard in range(SHARDS) if process.owners[shard] == process.number}
        for process in others
    }
    elected.process.kill()
    agreed(*others)
    for process in others:
        assert before[process.number] <= {shard for shard in range(SHARDS) if process.owners[shard] == process.number}
    agreed(*others, candidates.begin(elected.number, LONG_MS))


def test_stopped_coordinator_is_out_with_its_session_and_returns(candidates: Candidates) -> None:
    """The elected one sleeps beyond its session: the others take its shards; awake, it is one of them again."""
    some = [candidates.begin(number, SHORT_MS) for number in (1, 2, 3)]
    agreed(*some)
    elected = next(service for service in some if service.is_leader)
    others = [process for process in some if process is not elected]
    elected.process.send_signal(signal.SIGSTOP)
    agreed(*others)
    assert elected.number in elected.owners
    elected.process.send_signal(signal.SIGCONT)
    agreed(*some)


def test_stopped_cleanly_hands_over_first(candidates: Candidates) -> None:
    """The last that it says is a map in which it has nothing, and all is the others'."""
    some = [candidates.begin(number, LONG_MS) for number in (1, 2, 3)]
    agreed(*some)
    elected = next(service for service in some if service.is_leader)
    others = [process for process in some if process is not elected]
    elected.process.terminate()
    assert elected.process.wait(40) == 0
    until(lambda: elected.number not in elected.owners, "its last line is read")
    assert set(elected.owners) == {process.number for process in others}
    agreed(*others)
