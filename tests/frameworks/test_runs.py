"""Short runs of a Java and a Python framework on our broker; `make frameworks` has longer ones of all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from frameworks.brokers import KohortProcess
from frameworks.builds import FrameworkUnavailable
from frameworks.framework import INPUT, OUTPUT, Framework, Site
from frameworks.java_frameworks import KafkaStreams
from frameworks.python_frameworks import FastStreamAiokafka
from frameworks.run import BROKER, FrameworkRun, Kill, kills_by_seed, run_framework

from tests.support.waiting import LAST_RESORT

FORGETFUL = """
import sys
from kohort import Consumer, Producer
servers, source, target = sys.argv[1:]
with Producer(servers) as producer, Consumer(servers, group_id="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe([source])
    while True:
        for record in consumer.poll(timeout_ms=500):
            if record.value != b"5":
                producer.send(target, value=record.value, key=record.key)
"""


class ForgetfulFramework(Framework):
    """Loses each record with the number 5."""

    name = title = "forgetful"
    version = "1"
    exactly_once = True
    story = settings = ""
    members = 1

    def command(self, site: Site, member: int) -> list[str]:
        return [sys.executable, "-c", FORGETFUL, site.servers, INPUT, OUTPUT]


class OneStreamsInstance(KafkaStreams):
    """One instance, because each start of a JVM takes four seconds of processor time."""

    members = 1


def test_seed_decides_the_kills() -> None:
    kills = kills_by_seed(7, 6, 4000, 2)
    assert kills == kills_by_seed(7, 6, 4000, 2) != kills_by_seed(8, 6, 4000, 2)
    assert sorted(kill.target for kill in kills) == [BROKER, BROKER, 0, 0, 1, 1]
    assert all(0 < kill.after <= 3200 for kill in kills)


def test_framework_that_loses_records_is_noticed(tmp_path: Path) -> None:
    broker = KohortProcess(tmp_path)
    try:
        framework, site = ForgetfulFramework(), Site(broker.bootstrap_servers, tmp_path)
        framework.prepare(site)
        account, _ = FrameworkRun(framework, broker, site, print, stall_s=8).run(320, [])
    finally:
        broker.close()
    assert account.faults(exactly_once=True) == ["16 lost"]


@LAST_RESORT
@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("framework", [OneStreamsInstance, FastStreamAiokafka], ids=lambda framework: framework.name)
def test_framework_keeps_its_promise_while_a_member_and_the_broker_are_killed(
    framework: type[Framework], tmp_path: Path
) -> None:
    broker = KohortProcess(tmp_path)
    try:
        outcome = run_framework(framework(), broker, tmp_path, records=400, kills=2, seed=3, say=print)
    except FrameworkUnavailable as error:
        pytest.skip(f"{framework.title} can't run here: {error}")
    finally:
        broker.close()
    assert (outcome.faults, outcome.account.lost) == ([], 0)
    assert outcome.kills == {"members": 1, "broker": 1}


def test_kill_comes_after_progress(tmp_path: Path) -> None:
    """A kill before anything has come out waits for the first record."""
    broker = KohortProcess(tmp_path)
    said: list[str] = []
    try:
        framework, site = ForgetfulFramework(), Site(broker.bootstrap_servers, tmp_path)
        framework.prepare(site)
        FrameworkRun(framework, broker, site, said.append, stall_s=8).run(64, [Kill(20, BROKER, 0.0, 0.1)])
    finally:
        broker.close()
    (line,) = (line for line in said if line.startswith("kill the broker"))
    assert int(line.split(", ")[1].split()[0]) > 0
