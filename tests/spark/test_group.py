"""Queries as members: sharing a group, giving partitions up between batches, being killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Sink, Stage
from tests.support.waiting import LAST_RESORT

from kohort.client.group.member import GroupMember
from kohort.demo.account import read_batches
from kohort.demo.play import DemoApplication, session_processes

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
CPU_STEP_S = 5.0


def test_two_queries_share_a_group_and_one_takes_the_others_partitions(run: Callable[..., Any], stage: Stage) -> None:
    one, other = Sink(), Sink()
    first = run(one, "one")
    stage.until(lambda: list(stage.members().values()) == [(0, 1, 2, 3)], "the first holds all")
    run(other, "other")
    stage.until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "each holds two partitions")
    stage.produce(400)
    stage.until(lambda: len(one.values()) + len(other.values()) >= 400, "all records are read")
    stage.until(lambda: stage.lag() == 0, "all is committed")
    assert sorted(one.values() + other.values()) == list(range(400))
    assert len(one.values()) == len(other.values()) == 200
    first.stop()
    stage.until(lambda: list(stage.members().values()) == [(0, 1, 2, 3)], "the other takes over")
    stage.produce(100)
    stage.until(lambda: len(other.values()) >= 300, "it reads all partitions")
    assert sorted(one.values() + other.values()) == list(range(500))
    stage.until(lambda: stage.lag() == 0, "all is committed")


class Gate:
    """Holds a query's first batch with records until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, number: int, rows: int) -> None:
        if rows and not self.reached.is_set():
            self.reached.set()
            self.open.wait()


@pytest.fixture
def gate(run: Callable[..., Any]) -> Iterator[Gate]:
    """Opened at the end, before the queries are stopped."""
    gate = Gate()
    yield gate
    gate.open.set()


def test_a_revocation_waits_for_the_running_batch_and_its_commit(
    run: Callable[..., Any], stage: Stage, gate: Gate
) -> None:
    stage.produce(40)
    sink = Sink()
    sink.before = gate
    run(sink)
    stage.until(gate.reached.is_set, "the first batch is handed to the sink")
    with GroupMember(stage.servers, stage.group, topics=[stage.topic], client_id="newcomer") as newcomer:
        stage.until(lambda: "newcomer" in stage.members(), "the newcomer asks to join")
        assert newcomer.assignment().partitions == ()
        assert {offset for offset, _ in stage.committed().values()} == {0}
        assert sink.batches.get(0, []) == []
        gate.open.set()
        assignment = stage.assigned(newcomer, 2)
        found = newcomer.committed(assignment.partitions)
        assert [position.offset for position in found.values() if position is not None] == [10, 10]
    assert sink.values() == list(range(40))


@pytest.mark.parametrize("then", ["fail", "release"])
def test_a_batch_that_outlives_the_rebalance_timeout(
    run: Callable[..., Any], stage: Stage, gate: Gate, then: str
) -> None:
    stage.produce(40)
    sink = Sink()
    sink.before = gate
    query = run(sink, onRevocationTimeout=then, **{"kafka.max.poll.interval.ms": 1_500})
    stage.until(gate.reached.is_set, "the first batch is handed to the sink")
    with GroupMember(
        stage.servers, stage.group, topics=[stage.topic], client_id="newcomer", max_poll_interval_ms=1_500
    ) as newcomer:
        assert stage.assigned(newcomer, PARTITIONS).partitions == tuple(stage.partitions)
        gate.open.set()
        if then == "fail":
            with pytest.raises(Exception, match="onRevocationTimeout=release goes on"):
                stage.finished(query)
            assert {offset for offset, _ in stage.committed().values()} == {0}
            return
        stage.assigned(newcomer, 2)
    stage.until(lambda: stage.lag() == 0, "what the newcomer left is read again")
    assert query.isActive
    assert set(sink.values()) == set(range(40))


class FlightsApplication(DemoApplication):
    """The demo's Spark application; the topic's records need not be any flights."""

    def __init__(self, stage: Stage, name: str, client: dict[str, str] | None = None) -> None:
        self.folder = stage.folder / name
        self.folder.mkdir()
        names = {"servers": stage.servers, "topic": stage.topic, "group": stage.group}
        command = ["kohort.demo.group_query", *(word for key, value in names.items() for word in (f"--{key}", value))]
        command += [word for key, value in (client or {}).items() for word in ("--client", f"{key}={value}")]
        super().__init__(name, self.folder, command)
        stage.signs[f"batches of {name}"] = lambda: len(self.places())
        stage.signs[f"start of {name}"] = self._started

    def _started(self) -> object:
        """Before its first batch, the CPU time that its processes have used, in steps that an idle one takes long for.

        Fails when it has ended by itself.
        """
        if self.killed:
            return "killed"
        self.check()
        return "done" if self.places() else int(cpu_s(self.process.pid) / CPU_STEP_S)

    killed = False

    def kill(self) -> int:
        self.killed = True
        return super().kill()

    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of every row that it wrote, in the order of nothing."""
        rows = read_batches(self.folder)
        return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def cpu_s(session: int) -> float:
    """CPU seconds of the living processes of a session; 0 where there is no /proc."""
    ticks = 0
    for pid in session_processes(session):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def java_of(session: int) -> int:
    for pid in session_processes(session):
        if (Path("/proc") / str(pid) / "cmdline").read_bytes().partition(b"\0")[0].endswith(b"java"):
            return pid
    raise AssertionError("the application has no JVM")


def test_the_death_of_the_jvm_alone_ends_the_source_and_its_membership(stage: Stage) -> None:
    application = FlightsApplication(stage, "lonely")
    session = application.process.pid
    try:
        stage.until(lambda: stage.members().get("lonely") == (0, 1, 2, 3), "it is a member")
        os.kill(java_of(session), signal.SIGKILL)
        stage.until(lambda: not stage.members(), "the group is told, long before the session's end")

        def sources() -> bool:
            listed = subprocess.run(["ps", "-eo", "sid,args"], capture_output=True, text=True, check=True).stdout
            return any(
                line.split()[0] == str(session) and "python_streaming_source_runner" in line
                for line in listed.splitlines()
            )

        stage.until(lambda: not sources(), "its process ends")
    finally:
        application.kill()


def test_a_killed_application_loses_nothing(stage: Stage) -> None:
    """Two applications share the group; one is killed with SIGKILL right after it wrote a batch."""
    one, two = FlightsApplication(stage, "one"), FlightsApplication(stage, "two")
    try:
        stage.until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "both share the group")
        stage.produce(400)
        stage.until(two.places, "it writes a batch")
        assert two.kill() >= 3
        stage.produce(400)
        everything = stage.ends()
        stage.until(
            lambda: stage.members().get("one") == (0, 1, 2, 3) and stage.lag() == 0 and reach(one) == everything,
            "the other reads all",
        )
        mine = one.places()
        assert {*mine, *two.places()} == {(p, offset) for p in range(4) for offset in range(200)}
        assert len(mine) == len(set(mine))
    finally:
        one.end()
        two.kill()
    assert json.loads(stage.committed()[0][1])["batch"] > 0


def reach(application: FlightsApplication) -> dict[int, int]:
    """How far an application has read each partition."""
    places = application.places()
    return {number: max((offset + 1 for p, offset in places if p == number), default=0) for number in range(4)}
