"""Drivers without a folder that others see: killed and started on another machine, and two of one query at once.

A machine is a folder of temporary files, which is removed with it. The sink's folder stands for a store.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from tests.spark.region.in_process import Application, application, lines
from tests.spark.region.test_face import once
from tests.spark.region.test_kills import checkpoints_of
from tests.spark.region.trial import Trial
from tests.support.waiting import LAST_RESORT

from kohort import Broker, NewTopic

__all__ = ["application"]
pytestmark = LAST_RESORT
PORTION = 1_500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": "0", "group.consumer.min.session.timeout.ms": "1000"}
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture
def trial(broker: Broker, tmp_path: Path) -> Iterator[Trial]:
    running = Trial(broker.bootstrap_servers, tmp_path, "consumer")
    yield running
    running.close()


def test_a_driver_that_is_killed_continues_on_another_machine(trial: Trial) -> None:
    """All that it had on its machine is gone, twice. In `make test`, `test_kills.py` does so beside others."""
    app = trial.app("app", "a", "b", machine="machine 0")
    trial.send(PORTION)
    for number in range(2):
        machine = f"machine {number}"
        app.start(machine=machine)
        trial.all_run()
        trial.send(PORTION)
        trial.proceed("sequences go on")
        trial.send(PORTION)
        trial.proceed("a batch is done or under way")
        assert len(checkpoints_of(trial, machine)) == 1
        app.kill()
        shutil.rmtree(trial.folder / machine)
    app.start(machine="the last machine")
    trial.ends_exactly()
    assert not checkpoints_of(trial, "the last machine"), "it leaves what nobody needs"
    assert not (trial.folder / "checkpoints").exists()


@pytest.mark.parametrize("asleep", [False, True], ids=["alive", "asleep"])
def test_of_two_drivers_of_one_query_the_later_one_counts(trial: Trial, *, asleep: bool) -> None:
    """The earlier one, which is alive or wakes later, ends itself: nothing that it does counts any more."""
    first = trial.app("first", "a", machine="here", batch_s=0.2)
    second = trial.app("second", "a", machine="there", batch_s=0.2)
    trial.send(PORTION)
    first.start()
    trial.until(first.runs, "the first runs")
    trial.proceed("the first publishes")
    trial.send(PORTION)
    if asleep:
        first.signal(signal.SIGSTOP)
    del trial.apps["first"]  # it ends by itself
    try:
        second.start()
        trial.until(lambda: trial.send(10) or second.runs(), "the second runs")  # type: ignore[func-returns-value]
        trial.send(PORTION)
        trial.proceed("the second publishes")
        if asleep:
            first.signal(signal.SIGCONT)
        trial.send(PORTION)
        assert first.ended() != 0
    finally:
        if first.process is not None:
            first.kill()
    refused = re.search("another member of region .* has (registered|begun) as 'a'", first.log.read_text())
    assert refused is not None, first.log.read_text()[-2000:]
    trial.ends_exactly()


def test_a_folder_may_come_and_go(application: Application) -> None:
    """A query without state needs none of its earlier folder, also after a reset; Spark's id of it stays."""
    app, stage = application, application.stage
    ids = set()
    for folder in (None, stage.folder / "a b%20c", None, stage.folder / "other"):
        region = app.region(folder=folder)
        app.query(region, "q", lines, "out")
        stage.produce(20)
        region.start()
        app.until(lambda: sum(app.lines("out").values()) == stage.sent, "all is published")
        ids |= {query.id for query in app.spark.streams.active}
        region.reset("a trial")
        stage.produce(20)
        app.until(lambda: sum(app.lines("out").values()) == stage.sent, "all is published after a reset")
        ids |= {query.id for query in app.spark.streams.active}
        region.close()
        assert app.lines("out") == once(range(stage.sent))
    assert len(ids) == 1


def union(first: DataFrame, *others: DataFrame) -> DataFrame:
    rows = lines(first)
    for other in others:
        rows = rows.union(lines(other))
    return rows


def test_a_query_moves_and_gets_further_topics(application: Application) -> None:
    """Sources may change, as anything in a query without state: no checkpoint names them."""
    app, stage = application, application.stage
    topics = [stage.topic, f"{stage.topic}-2", f"{stage.topic}-3"]
    stage.admin.create_topics([NewTopic(topic, 2) for topic in topics[1:]]).all()
    for number in (1, 2, 3):
        for topic in topics:
            app.send(topic, *(f"{topic} {value}" for value in range(10 * number - 10, 10 * number)), partition=0)
        region = app.region(folder=None)
        sources = [app.source(topic=topic, group=f"{topic}-group") for topic in topics[:number]]
        app.query(region, "q", union, "out", source=sources)
        region.run(until="caught-up")
        wanted = {f"{topic} {value}" for topic in topics[:number] for value in range(10 * number)}
        assert set(app.lines("out")) == wanted and max(app.lines("out").values()) == 1
