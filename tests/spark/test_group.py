"""Queries as members: sharing a group, giving partitions up between batches, being killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import LONG_SESSION, Sink, Stage
from tests.support.waiting import until

from kohort.client.group.member import GroupMember
from kohort.demo.member_settings import MemberSettings
from kohort.demo.processes import MemberProcess, session_processes

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(240)]
WAIT_S = 90


def test_two_queries_share_a_group_and_one_takes_the_others_partitions(run: Callable[..., Any], stage: Stage) -> None:
    one, other = Sink(), Sink()
    first = run(one, "one")
    until(lambda: list(stage.members().values()) == [(0, 1, 2, 3)], "the first holds all", WAIT_S)
    run(other, "other")
    until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "each holds two partitions", WAIT_S)
    stage.produce(400)
    until(lambda: len(one.values()) + len(other.values()) >= 400, "all records are read", WAIT_S)
    until(lambda: stage.lag() == 0, "all is committed", WAIT_S)
    assert sorted(one.values() + other.values()) == list(range(400))
    assert len(one.values()) == len(other.values()) == 200
    first.stop()
    until(lambda: list(stage.members().values()) == [(0, 1, 2, 3)], "the other takes over", 30)
    stage.produce(100)
    until(lambda: len(other.values()) >= 300, "it reads all partitions", WAIT_S)
    assert sorted(one.values() + other.values()) == list(range(500))
    until(lambda: stage.lag() == 0, "all is committed", WAIT_S)


class Gate:
    """Holds a query's first batch with records until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, number: int, rows: int) -> None:
        if rows and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(WAIT_S)


def test_a_revocation_waits_for_the_running_batch_and_its_commit(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(40)
    gate, sink = Gate(), Sink()
    sink.before = gate
    run(sink)
    assert gate.reached.wait(WAIT_S)
    with GroupMember(stage.servers, stage.group, topics=[stage.topic], client_id="newcomer") as newcomer:
        until(lambda: "newcomer" in stage.members(), "the newcomer asks to join", 20)
        assert newcomer.assignment().partitions == ()
        assert {offset for offset, _ in stage.committed().values()} == {0}
        assert sink.batches.get(0, []) == []
        gate.open.set()
        assignment = newcomer.wait_assignment(20_000)
        assert len(assignment.partitions) == 2
        found = newcomer.committed(assignment.partitions)
        assert [one.offset for one in found.values() if one is not None] == [10, 10]
    assert sink.values() == list(range(40))


@pytest.mark.parametrize("then", ["fail", "release"])
def test_a_batch_that_outlives_the_rebalance_timeout(run: Callable[..., Any], stage: Stage, then: str) -> None:
    stage.produce(40)
    gate, sink = Gate(), Sink()
    sink.before = gate
    query = run(sink, onRevocationTimeout=then, **{"kafka.max.poll.interval.ms": 1_500})
    assert gate.reached.wait(WAIT_S)
    with GroupMember(
        stage.servers, stage.group, topics=[stage.topic], client_id="newcomer", max_poll_interval_ms=1_500
    ) as newcomer:
        assert newcomer.wait_assignment(30_000).partitions == tuple(stage.partitions)
        gate.open.set()
        if then == "fail":
            with pytest.raises(Exception, match="onRevocationTimeout=release goes on"):
                query.awaitTermination(WAIT_S)
            assert {offset for offset, _ in stage.committed().values()} == {0}
            return
        until(lambda: newcomer.revocation() is not None, "the query joins again", WAIT_S)
        newcomer.release()
        assert len(newcomer.wait_assignment(20_000).partitions) == 2
    until(lambda: stage.lag() == 0, "what the newcomer left is read again", WAIT_S)
    assert query.isActive
    assert set(sink.values()) == set(range(40))


def member(stage: Stage, name: str, events: queue.Queue[tuple[str, dict[str, Any]]], **more: str) -> MemberProcess:
    """A Spark application of its own that counts flights; the topic's records need not be any."""
    options = stage.options(**{"kafka.client.id": name, "columns": None, **more})
    return MemberProcess(MemberSettings(name, str(stage.folder), options, 0.3), events)


def java_of(process: MemberProcess) -> int:
    for pid in session_processes(process.pid):
        if (Path("/proc") / str(pid) / "cmdline").read_bytes().partition(b"\0")[0].endswith(b"java"):
            return pid
    raise AssertionError("the application has no JVM")


def test_the_death_of_the_jvm_alone_ends_the_source_and_its_membership(stage: Stage) -> None:
    events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    process = member(stage, "lonely", events, **LONG_SESSION)
    try:
        until(lambda: stage.members().get("lonely") == (0, 1, 2, 3), "it is a member", WAIT_S)
        os.kill(java_of(process), signal.SIGKILL)
        until(lambda: not stage.members(), "the group is told, long before the session's end", 30)

        def sources() -> bool:
            listed = subprocess.run(["ps", "-eo", "sid,args"], capture_output=True, text=True, check=True).stdout
            return any(
                line.split()[0] == str(process.pid) and "python_streaming_source_runner" in line
                for line in listed.splitlines()
            )

        until(lambda: not sources(), "its process ends", 10)
    finally:
        process.kill()


def test_a_killed_application_loses_nothing(stage: Stage) -> None:
    """Two applications share the group; one is killed with SIGKILL right after it wrote a batch."""
    events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    processes = {name: member(stage, name, events) for name in ("one", "two")}
    written: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}

    def read_until(condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, what
            try:
                name, facts = events.get(timeout=0.1)
            except queue.Empty:
                continue
            assert facts["event"] not in ("failed", "ended"), facts
            if facts["event"] == "batch":
                written[name].append(facts)

    def ranges(name: str) -> list[tuple[int, int, int]]:
        return [(r["partition"], r["start"], r["end"]) for facts in written[name] for r in facts["ranges"]]

    try:
        read_until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "both share the group")
        stage.produce(400)
        read_until(lambda: bool(ranges("two")), "it writes a batch")
        assert processes["two"].kill() >= 3
        stage.produce(400)
        read_until(lambda: stage.members().get("one") == (0, 1, 2, 3) and stage.lag() == 0, "one reads all")
        covered = {(p, offset) for name in written for p, low, high in ranges(name) for offset in range(low, high)}
        assert covered == {(p, offset) for p in range(4) for offset in range(200)}
        mine = [(p, offset) for p, low, high in ranges("one") for offset in range(low, high)]
        assert len(mine) == len(set(mine))
    finally:
        for process in processes.values():
            process.end()
    assert json.loads(stage.committed()[0][1])["batch"] > 0
