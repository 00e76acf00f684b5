"""Queries as members of a push group: its coordinator says where partitions start, unless the query has said it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.spark.conftest import Stage
from tests.spark.queries import Checkpoint, Place, Run, own_signals, place
from tests.spark.test_group import Application
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort import Broker, Consumer
from kohort.java import start_tied

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), LAST_RESORT]
PUSH: dict[str, Any] = {"group.protocol": "push"}
SESSION_MS = 6_000


@pytest.fixture
def servers(spark_broker: Broker) -> str:
    return spark_broker.bootstrap_servers


@pytest.fixture
def filled(place: Place, own_signals: None) -> Place:
    place.make()
    place.produce(range(20))
    return place


def beside(place: Place, **settings: Any) -> Consumer:
    """A Python member of the group."""
    consumer = Consumer(
        place.servers,
        group_id=place.group,
        group_protocol="push",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )
    consumer.subscribe([place.topic()])
    return consumer


@pytest.mark.parametrize(
    ("starting", "first"),
    [("earliest", 0), ("latest", 20), ('{"t": {"0": 4, "1": -1}}', 4)],
)
def test_it_starts_where_its_options_say(filled: Place, starting: str, first: int) -> None:
    """The coordinator writes a start for who has none: the end, by a consumer's default, and all was passed over."""
    starting = starting.replace('"t"', f'"{filled.topic()}"')
    log = Checkpoint()
    with Run(filled.options(**PUSH, startingOffsets=starting), log) as run:
        before = {0: list(range(20)), 20: [], 4: [8, 10, 12, 14, 16, 18]}[first]
        assert run.read(len(before)) == before
        filled.produce(range(20, 40))
        assert run.read(20) == list(range(20, 40))
        assert filled.committed() == {0: 20, 1: 20}
    filled.produce(range(40, 44))
    with Run(filled.options(**PUSH, startingOffsets=starting), log) as run:
        assert run.read(4) == list(range(40, 44))


def test_in_a_group_that_others_have_begun_its_word_is_too_late(
    filled: Place, caplog: pytest.LogCaptureFixture
) -> None:
    filled.make("b")
    with beside(filled) as other:
        until(lambda: not other.poll(50) and len(other.assignment()) == 2, "it holds both", STILL_S)
        options = filled.options(**PUSH, startingOffsets="latest", subscribe=filled.topic("b"))
        filled.produce(range(20, 30), "b")
        with caplog.at_level(logging.WARNING, "kohort.spark"), Run(options) as run:
            assert run.read(10) == list(range(20, 30))
        assert "starts at its beginning, whatever startingOffsets says" in caplog.text


def test_a_clean_hand_over_to_a_python_member_and_back_repeats_nothing(filled: Place) -> None:
    seen: list[int] = []
    with Run(filled.options(**PUSH)) as run:
        assert run.read(20) == list(range(20))
        with beside(filled) as other:

            def shares() -> bool:
                run.plan()
                return not other.poll(50) and len(other.assignment()) == 1

            until(shares, "each holds one partition", STILL_S)
            filled.produce(range(20, 40))
            mine = run.read(10)

            def has_the_rest() -> bool:
                seen.extend(int(record.value) for record in other.poll(50))
                return len(seen) >= 10

            until(has_the_rest, "the other reads its partition", STILL_S)
            assert sorted(seen + mine) == list(range(20, 40))
            other.commit()
        filled.produce(range(40, 60))
        assert run.read(20) == list(range(40, 60))
        assert filled.committed() == {0: 30, 1: 30}


class Member:
    """A Python member of a stage's group, in a process of its own: it tells what it reads, then commits it."""

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

    def __init__(self, stage: Stage) -> None:
        arguments = [stage.servers, stage.group, stage.topic, str(SESSION_MS)]
        self.process = start_tied([sys.executable, "-c", self.PROGRAM, *arguments], stdout=subprocess.PIPE)
        self.read: set[tuple[int, int]] = set()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()
        stage.signs["read by the member"] = lambda: len(self.read)

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a last one may be a part
                partition, offset = map(int, line.split())
                self.read.add((partition, offset))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.spark
@pytest.mark.parametrize("killed", ["spark", "python"])
def test_what_one_that_is_killed_had_is_the_others(stage: Stage, killed: str) -> None:
    """A Spark application and a Python program; one is killed with SIGKILL right after it has read something."""
    application = Application(stage, "spark", **PUSH, **{"kafka.session.timeout.ms": SESSION_MS})
    member = Member(stage)
    try:
        stage.until(lambda: sorted(map(len, stage.members().values())) == [2, 2], "both share the group")
        stage.produce(400)
        stage.until(lambda: application.ranges and member.read, "both read")
        if killed == "spark":
            assert application.process.kill() >= 3
        else:
            member.kill()
        stage.produce(400)
        everything = {(partition, offset) for partition in range(4) for offset in range(200)}

        def covered() -> bool:
            ours = {(p, offset) for p, low, high in application.ranges for offset in range(low, high)}
            return member.read | ours == everything

        stage.until(covered, "every record is read")
        stage.until(lambda: stage.lag() == 0, "all is committed")
        alone = {"spark": "python", "python": "spark"}[killed]
        assert stage.members() == {alone: (0, 1, 2, 3)}
    finally:
        member.kill()
        application.process.end()
