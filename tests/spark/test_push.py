"""Queries as members of a push group, beside Python members of it; where they start, queries find themselves."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.spark.conftest import Sink, Stage
from tests.spark.queries import Checkpoint, Place, Run, own_signals, place
from tests.spark.test_group import FlightsApplication
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort import Broker, Consumer
from kohort.errors import CommitFailedError, OffsetError
from kohort.io.java import start_dependent_child

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), LAST_RESORT]
PUSH: dict[str, Any] = {"group.protocol": "push"}
SESSION_MS = 1_500
"""Of queries whose batch is to outlive it."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"push.min.session.timeout.ms": SESSION_MS, "log.retention.ms": -1}
    with Broker(tmp_path_factory.mktemp("push"), settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def filled(place: Place, own_signals: None) -> Place:
    place.make()
    place.produce(range(20))
    return place


def beside(place: Place, letter: str = "a", **settings: Any) -> Consumer:
    """A Python member of the group."""
    consumer = Consumer(
        place.servers, group_id=place.group, group_protocol="push", auto_offset_reset="earliest", **settings
    )
    consumer.subscribe([place.topic(letter)])
    return consumer


def read_on(consumer: Consumer, count: int) -> list[int]:
    """So many values, and no more for now."""
    values: list[int] = []

    def read() -> bool:
        records = consumer.poll(50)
        values.extend(int(record.value) for record in records)
        return not records and len(values) >= count

    until(read, f"the consumer reads {count}", STILL_S)
    return sorted(values)


def share(run: Run, consumer: Consumer, count: int = 1) -> None:
    """The query and the consumer go on, with nothing to read, until the latter holds so many partitions."""

    def shared() -> bool:
        assert run.plan() is None
        return not consumer.poll(50) and len(consumer.assignment()) == count

    until(shared, f"the consumer holds {count}", STILL_S)


def shares(place: Place) -> list[int]:
    """How many partitions each member has."""
    described = place.admin.describe_consumer_groups([place.group]).all()[place.group]
    return sorted(len(member.assignment or ()) for member in described.members)


def plan(run: Run) -> tuple[Any, list[Any]]:
    """A batch."""
    planned: list[tuple[Any, list[Any]]] = []

    def is_planned() -> bool:
        found = run.plan()
        if found is not None:
            planned.append(found)
        return bool(planned)

    until(is_planned, "a batch is planned", STILL_S)
    return planned[0]


JSON = '{"%s": {"0": 4, "1": -1}}'


@pytest.mark.parametrize(
    ("starting", "first"),
    [("earliest", list(range(20))), ("latest", []), (JSON, [8, 10, 12, 14, 16, 18])],
    ids=["earliest", "latest", "offsets"],
)
def test_a_fresh_query_starts_where_its_options_say_and_continues_there(
    filled: Place, starting: str, first: list[int]
) -> None:
    starting = starting.replace("%s", filled.topic())
    log = Checkpoint()
    with Run(filled.options(**PUSH, startingOffsets=starting), log) as run:
        assert run.read(len(first)) == first
        filled.produce(range(20, 40))
        assert run.read(20) == list(range(20, 40))
        assert filled.committed() == {0: 20, 1: 20}
    filled.produce(range(40, 44))
    with Run(filled.options(**PUSH, startingOffsets=starting), log) as run:
        assert run.read(4) == list(range(40, 44))


@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", 20)])
def test_its_options_count_in_a_group_that_others_have_begun(filled: Place, starting: str, first: int) -> None:
    filled.make("b")
    filled.produce(range(20), "b")
    with beside(filled) as other:
        assert read_on(other, 20) == list(range(20))
        options = filled.options(**PUSH, startingOffsets=starting, subscribe=filled.topic("b"))
        with Run(options) as run:
            assert run.read(20 - first) == list(range(first, 20))
            filled.produce(range(20, 30), "b")
            assert run.read(10) == list(range(20, 30))


def test_a_group_without_offsets_has_none_to_start_at(filled: Place) -> None:
    options = filled.options(**PUSH, startingOffsets="committed", **{"kafka.auto.offset.reset": "none"})
    with Run(options) as run, pytest.raises(OffsetError, match="has no offset for"):
        run.read(1)
    assert filled.committed() == {}


def test_a_new_partition_is_read_from_its_beginning(filled: Place) -> None:
    filled.make("b")
    options = filled.options(**PUSH, startingOffsets="latest", subscribe=None, subscribePattern=f"t-{filled.name}-.*")
    with Run(options) as run:
        assert run.read(0) == []
        filled.make("c")
        filled.produce(range(10), "c")
        assert run.read(10) == list(range(10))


def test_a_clean_hand_over_there_and_back_is_every_record_once(filled: Place) -> None:
    with Run(filled.options(**PUSH)) as run:
        assert run.read(20) == list(range(20))
        with beside(filled) as other:
            share(run, other)
            filled.produce(range(20, 40))
            assert sorted(run.read(10) + read_on(other, 10)) == list(range(20, 40))
        filled.produce(range(40, 60))
        assert run.read(20) == list(range(40, 60))
    with beside(filled) as other:
        filled.produce(range(60, 70))
        assert read_on(other, 10) == list(range(60, 70))


def test_a_running_batch_is_handed_over_when_it_is_committed(filled: Place) -> None:
    with Run(filled.options(**PUSH)) as run:
        planned = plan(run)
        with beside(filled) as other:
            until(lambda: len(shares(filled)) == 2, "the consumer has registered", STILL_S)
            assert not other.poll(1_000)
            assert not other.assignment()
            values = run.finish(planned)
            share(run, other)
        assert values + run.read(0) == list(range(20))


def test_a_batch_that_keeps_a_stop_waiting_for_a_session_is_read_again_and_says_why(filled: Place) -> None:
    session = {"kafka.session.timeout.ms": SESSION_MS}
    with Run(filled.options(**PUSH, **session)) as run:
        planned, began_s = plan(run), time.monotonic()
        with beside(filled) as other:
            assert read_on(other, 20) == list(range(20)), "all of it, after the session"
            # On a busy machine the session may have ended before, for want of a heartbeat.
            time.sleep(max(0.0, began_s + SESSION_MS / 1000 + 0.1 - time.monotonic()))
            assert run.finish(planned) == list(range(20))
            with pytest.raises(CommitFailedError, match="waits for kafka.session.timeout.ms=1500: raise it above"):
                run.plan()


class Member:
    """A Python member of a group, in a process of its own: it tells what it reads, then commits it."""

    PROGRAM = """
import sys
from kohort import Consumer
servers, group, topic, session = sys.argv[1:]
settings = {"group_protocol": "push", "client_id": "python", "session_timeout_ms": int(session)}
with Consumer(servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **settings) as consumer:
    consumer.subscribe([topic])
    while True:
        for record in consumer.poll(50):
            print(record.partition, record.offset, flush=True)
        consumer.commit()
"""

    def __init__(self, servers: str, group: str, topic: str, session_ms: int) -> None:
        arguments = [servers, group, topic, str(session_ms)]
        self.process = start_dependent_child([sys.executable, "-c", self.PROGRAM, *arguments], stdout=subprocess.PIPE)
        self.read: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a last one may be a part
                partition, offset = map(int, line.split())
                self.read.append((partition, offset))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_a_python_member_that_is_killed_leaves_its_partitions_to_the_query(filled: Place) -> None:
    with Run(filled.options(**PUSH)) as run:
        assert run.read(20) == list(range(20))
        member = Member(filled.servers, filled.group, filled.topic(), 45_000)
        try:

            def shared() -> bool:
                assert run.plan() is None
                return shares(filled) == [1, 1]

            until(shared, "both share the group", STILL_S)
            filled.produce(range(20, 40))
            until(lambda: member.read, "it reads", STILL_S)
        finally:
            member.kill()
        filled.produce(range(40, 60))
        before = {partition + 2 * offset for partition, offset in member.read}
        values = run.read(40 - len(before))
        assert set(values) | before == set(range(20, 60))
        assert filled.committed() == {0: 30, 1: 30}


@pytest.mark.spark
def test_with_spark_a_clean_hand_over_there_and_back_is_every_record_once(
    run: Callable[..., Any], stage: Stage
) -> None:
    sink, values = Sink(), list[int]()
    query = run(sink, "spark", **PUSH)
    stage.produce(400)
    stage.until(lambda: len(sink.values()) == 400, "the query reads all")
    with Consumer(
        stage.servers,
        group_id=stage.group,
        group_protocol="push",
        client_id="python",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe([stage.topic])
        stage.signs["read by the consumer"] = lambda: len(values)

        def read(count: int) -> bool:
            values.extend(int(record.value) for record in consumer.poll(50))
            return len(values) + len(sink.values()) >= count

        def shared() -> bool:
            return not read(401) and sorted(map(len, stage.members().values())) == [2, 2]

        stage.until(shared, "both share the group")
        stage.produce(400)
        stage.until(lambda: read(800), "both read")
        assert (len(values), len(sink.values())) == (200, 600)
        query.stop()
        stage.until(lambda: not read(801) and stage.members() == {"python": (0, 1, 2, 3)}, "the query is gone")
        stage.produce(400)
        stage.until(lambda: read(1200), "the consumer reads all")
    run(sink, "spark", **PUSH)
    stage.produce(400)
    stage.until(lambda: len(sink.values()) + len(values) >= 1600, "the query reads all again")
    assert sorted(sink.values() + values) == list(range(1600))
    stage.until(lambda: stage.lag() == 0, "all is committed")


@pytest.mark.spark
@pytest.mark.parametrize("killed", ["spark", "python"])
def test_with_spark_what_one_that_is_killed_had_the_other_reads(stage: Stage, killed: str) -> None:
    """Killed right after it has read something, and noticed long before its session ends."""
    application = FlightsApplication(stage, "spark", PUSH)
    member = Member(stage.servers, stage.group, stage.topic, 1_000_000)
    stage.signs["read by the member"] = lambda: len(member.read)
    try:
        stage.until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "both share the group")
        stage.produce(400)
        stage.until(lambda: application.places() and member.read, "both read")
        if killed == "spark":
            assert application.kill() >= 3
        else:
            member.kill()
        stage.produce(400)

        def covered() -> bool:
            return set(application.places()) | set(member.read) == {
                (p, offset) for p in range(4) for offset in range(200)
            }

        stage.until(covered, "every record is read")
        stage.until(lambda: stage.lag() == 0, "all is committed")
        assert stage.members() == {"python" if killed == "spark" else "spark": (0, 1, 2, 3)}
    finally:
        member.kill()
        application.end()
