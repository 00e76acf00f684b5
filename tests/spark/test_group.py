"""Queries as members: sharing a group, giving partitions up between batches, being killed."""

from __future__ import annotations

import json
import os
import queue
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
from kohort.demo.member_settings import MemberSettings
from kohort.demo.processes import MemberProcess, session_processes

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


class Application:
    """A Spark application of its own that counts flights; the topic's records need not be any.

    Attributes:
        said: what it has said, oldest first.
        batches: of what it said, the batches that it wrote.
    """

    def __init__(self, stage: Stage, name: str, **more: Any) -> None:
        options = stage.options(**{"kafka.client.id": name, "columns": None} | more)
        self._events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.said: list[dict[str, Any]] = []
        self.process = MemberProcess(MemberSettings(name, str(stage.folder), options, 0.3), self._events)
        stage.signs[f"said by {name}"] = lambda: len(self.hear())
        stage.signs[f"start of {name}"] = self._started

    def hear(self) -> list[dict[str, Any]]:
        """Everything that it has said, with what is new; fails when it has failed."""
        while not self._events.empty():
            _, facts = self._events.get()
            assert facts["event"] not in ("failed", "ended"), facts
            self.said.append(facts)
        return self.said

    def _started(self) -> object:
        """While it says nothing, the CPU time that its processes have used.

        In steps that an idle one takes long for.
        """
        return "done" if self.said or not self.process.running else int(self.process.cpu_s() / CPU_STEP_S)

    @property
    def batches(self) -> list[dict[str, Any]]:
        return [facts for facts in self.hear() if facts["event"] == "batch"]

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """Partition, start and end of what it wrote."""
        return [
            (offset_range["partition"], offset_range["start"], offset_range["end"])
            for facts in self.batches
            for offset_range in facts["ranges"]
        ]


def java_of(process: MemberProcess) -> int:
    for pid in session_processes(process.pid):
        if (Path("/proc") / str(pid) / "cmdline").read_bytes().partition(b"\0")[0].endswith(b"java"):
            return pid
    raise AssertionError("the application has no JVM")


def test_the_death_of_the_jvm_alone_ends_the_source_and_its_membership(stage: Stage) -> None:
    application = Application(stage, "lonely")
    process = application.process
    try:
        stage.until(lambda: stage.members().get("lonely") == (0, 1, 2, 3), "it is a member")
        os.kill(java_of(process), signal.SIGKILL)
        stage.until(lambda: not stage.members(), "the group is told, long before the session's end")

        def sources() -> bool:
            listed = subprocess.run(["ps", "-eo", "sid,args"], capture_output=True, text=True, check=True).stdout
            return any(
                line.split()[0] == str(process.pid) and "python_streaming_source_runner" in line
                for line in listed.splitlines()
            )

        stage.until(lambda: not sources(), "its process ends")
    finally:
        process.kill()


def test_a_killed_application_loses_nothing(stage: Stage) -> None:
    """Two applications share the group; one is killed with SIGKILL right after it wrote a batch."""
    one, two = Application(stage, "one"), Application(stage, "two")
    try:
        stage.until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "both share the group")
        stage.produce(400)
        stage.until(lambda: two.ranges, "it writes a batch")
        assert two.process.kill() >= 3
        stage.produce(400)
        everything = stage.ends()
        stage.until(
            lambda: stage.members().get("one") == (0, 1, 2, 3) and stage.lag() == 0 and reach(one) == everything,
            "the other reads all",
        )
        covered = {(p, offset) for app in (one, two) for p, low, high in app.ranges for offset in range(low, high)}
        assert covered == {(p, offset) for p in range(4) for offset in range(200)}
        mine = [(p, offset) for p, low, high in one.ranges for offset in range(low, high)]
        assert len(mine) == len(set(mine))
    finally:
        for application in (one, two):
            application.process.end()
    assert json.loads(stage.committed()[0][1])["batch"] > 0


def reach(application: Application) -> dict[int, int]:
    """How far an application has read each partition."""
    return {number: max((end for p, _, end in application.ranges if p == number), default=0) for number in range(4)}
