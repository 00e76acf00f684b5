"""Queries of a region in several applications are killed, paused and stopped: the folder is the input.

No reader ever sees part of a sequence, and the group's committed offsets are those of the newest one.

`KOHORT_REGION_KILLS=20` has so many things befall them, in both protocols, on our broker and on Apache Kafka.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.spark.region.query_process import STEPS
from tests.spark.region.trial import STILL_S, Application, Trial, rows_of_all_kinds
from tests.support.waiting import LAST_RESORT, until

from kohort import Broker
from kohort.spark.region.folders import TEMPORARY

LONG = os.environ.get("KOHORT_REGION_KILLS")
EVENTS = int(LONG or "1")
PORTION = 3_000 if LONG else 1_500
FEW = 800
"""Some batches, for who dies in one of the first."""
PAUSE_S = 20.0
"""Beyond the session, and beyond the time in which a member must be back at the control plane."""
pytestmark = LAST_RESORT


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
    """The first application's machine is gone with each kill; the second has a folder that other machines see."""
    chance = random.Random(0)
    first, second = trial.app("first", "a", "b", machine="machine 0"), trial.app("second", "c", fails=0.01)
    third = trial.app("third", "d", machine="of the third")
    trial.send(PORTION)
    first.start()
    second.start()
    trial.all_run()
    for number in range(EVENTS):
        trial.send(PORTION)
        happen = HAPPENINGS[number % len(HAPPENINGS)]
        time.sleep(chance.random())  # anywhere in the life of a batch or a sequence
        happen(trial, first, second, third)
        trial.all_run()
        trial.send(PORTION)
        trial.proceed(f"sequences go on after {happen.__name__}")
    last = first.options.machine
    assert len(checkpoints_of(trial, last)) == 1
    trial.ends_exactly()
    assert not checkpoints_of(trial, last), "it leaves what nobody needs"


def checkpoints_of(trial: Trial, machine: str) -> list[Path]:
    """The folders of checkpoints on a machine."""
    return list((trial.folder / machine).glob(f"kohort-spark-*/{TEMPORARY}*"))


def the_one_with_the_control_plane_is_killed(trial: Trial, first: Application, *_: Application) -> None:
    """All that the application had on its machine is gone, and it continues on another."""
    machine = first.options.machine
    assert len(checkpoints_of(trial, machine)) == 1
    first.kill()
    shutil.rmtree(trial.folder / machine)
    first.options = replace(first.options, machine=f"machine {int(machine.split()[1]) + 1}")
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
        before = first.log.read_text().count("resets to sequence") + second.log.read_text().count("resets to seq")
        assert third.stop() == 0
        now = first.log.read_text().count("resets to sequence") + second.log.read_text().count("resets to seq")
        failures = second.log.read_text().count("the device of this test takes nothing more")
        assert now == before or failures, "the region went back when one left"


def the_one_with_the_control_plane_sleeps(trial: Trial, first: Application, *_: Application) -> None:
    _sleeps(trial, first)


def _sleeps(trial: Trial, app: Application) -> None:
    """All others go back without it; when it wakes, it goes back too, and what it was about is void."""
    app.signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    said = len(app.log.read_text())
    app.signal(signal.SIGCONT)
    trial.until(
        lambda: f"query {app.options.queries[0]} goes back" in app.log.read_text()[said:], "the sleeper goes back"
    )


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
def test_sinks_of_three_kinds_are_together_the_input(trial: Trial) -> None:
    """A partition's rows are where its query wrote at the time; who dies takes nothing from any of them."""
    first = trial.app("first", "a", "b", sinks={"b": "sqlite"})
    second = trial.app("second", "c", sinks={"c": "delta"})
    found: Counter[tuple[int, int, str]] = Counter()

    def all_is_there() -> bool:
        found.clear()
        found.update(rows_of_all_kinds(trial.folder))
        return found.total() >= len(trial.sent)

    for app in (first, second):
        app.start()
    trial.all_run()
    for victim in (first, second):
        trial.send(PORTION)
        time.sleep(2.0)
        victim.kill()
        victim.start()
        trial.all_run()
        trial.send(PORTION)
        until(all_is_there, "all is published somewhere", STILL_S, lambda: {"rows": found.total()})
        assert found == Counter((*where, value) for where, value in trial.sent.items())
    assert not any(app.stop() for app in (second, first))
    assert not trial.watch.wrong, trial.watch.wrong


@pytest.mark.skipif(LONG is None, reason="a long one: make spark-region")
@pytest.mark.parametrize("keeps", [False, True], ids=["anew", "cloned"])
@pytest.mark.parametrize("step", STEPS)
def test_who_dies_at_any_step_has_done_nothing_or_all(trial: Trial, step: str, *, keeps: bool) -> None:
    """Killed by itself, alone in its region; and once more when it goes on from a checkpoint, or on another machine."""
    if step == "half derived" and not keeps:
        pytest.skip("no file of another checkpoint is needed")
    alone = trial.app("alone", "a", per_batch=200, keeps=keeps, machine="" if keeps else "first machine")
    trial.send(FEW)
    for nth in (2, 1) if step not in ("half derived", "derived") else (1, 1):
        if step == "half derived":
            alone.start()
            trial.proceed("there is a sequence to go back to")
            alone.kill()
            trial.send(FEW)
        alone.start(dies_at=step, dies_nth=nth)
        assert alone.process is not None
        assert alone.process.wait(STILL_S) == -signal.SIGKILL, "it did not come by there"
        alone.kill()
        trial.send(FEW)
    alone.start(machine="" if keeps else "another machine")
    trial.ends_exactly()
