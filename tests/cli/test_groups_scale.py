"""`kohort groups scale`, against a broker with a member that can't keep up."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from typing import cast

import pytest
from tests.support.nursery import run_command
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.cli import scaling
from kohort.client.admin.values import GroupDescription, NewTopic
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.lag import GroupLag, LagReader, LagReport, PartitionLag
from kohort.lag.evaluation import UNAVAILABLE
from kohort.lag.scaling import ScalingTarget

COMMAND = [*KOHORT, "groups", "scale"]


def said(*args: str) -> subprocess.CompletedProcess[str]:
    return run_command([*COMMAND, *args], 120)


def test_slow_member_is_to_be_joined_by_others(our_broker: Broker) -> None:
    servers, name = our_broker.bootstrap_servers, f"scale-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 4, 1)]).all()
    ended = threading.Event()

    def write() -> None:
        with Producer(servers) as producer:
            while not ended.wait(0.1):
                for number in range(40):
                    producer.send(name, b"x", partition=number % 4)
                producer.flush()

    def read() -> None:
        with Consumer(servers, group_id=name, max_poll_records=50, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([name])
            while not ended.wait(0.5):
                consumer.poll(timeout_ms=100)
                consumer.commit()

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        with Admin(servers) as admin:  # rates are measured from the first commit on
            until(lambda: len(admin.list_consumer_group_offsets(name).all()) == 4, "the member has committed", 60)
        for look in ("25s", "60s"):  # on a busy machine the member pauses for longer, and so takes longer to measure
            asked = said(name, "--max-lag", "4s", "--look", look, "--json", "--bootstrap-server", servers)
            assert asked.returncode == 0, asked.stderr
            (row,) = json.loads(asked.stdout)
            if row["needed"] is not None:
                break
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert row["members"] == 1
    assert row["wanted"] > 1, row
    assert row["member_rate"] < row["written_rate"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--max-lag", "30s"], "name groups"),
        (["g"], "--max-lag TEXT is missing"),
        (["g", "--max-lag"], "--max-lag requires an argument"),
        (["g", "--max-lag", "soon"], "--max-lag soon: give a number"),
        (["g", "--max-lag", "30s", "--min", "5", "--max", "2"], "the most members must be"),
    ],
)
def test_wrong_options_are_refused(args: list[str], error: str) -> None:
    refused = said(*args)
    assert refused.returncode == 2
    assert error in refused.stderr


def test_group_that_is_not_there_is_named(our_broker: Broker) -> None:
    refused = said("nobody", "--max-lag", "30s", "--bootstrap-server", our_broker.bootstrap_servers)
    assert refused.returncode == 1
    assert "nobody" in refused.stderr and "no groups" not in refused.stderr


class ScriptedReader:
    """A lag reader that returns these reports, one for each read."""

    rebalances = 0
    listing: tuple[str, ...] = ()

    def __init__(self, *reports: LagReport) -> None:
        self.reports = list(reports)

    def read(self, groups: tuple[str, ...]) -> LagReport:
        return self.reports.pop(0)


def group_lag(*parts: PartitionLag) -> GroupLag:
    return GroupLag(GroupDescription("g", "Consumer", "Empty", "consumer", "uniform", ()), True, parts)


def errors_after(monkeypatch: pytest.MonkeyPatch, *reports: LagReport, look_s: float) -> dict[str, KafkaError]:
    """Return the errors of `kohort groups scale g` after these reads; there must be no decision."""
    monkeypatch.setattr(scaling, "LOOK_INTERVAL_S", 0.0)
    reader = cast(LagReader, ScriptedReader(*reports))
    decisions, errors = scaling._decided(reader, ("g",), ScalingTarget(1_000), look_s)
    assert not decisions
    return errors


@pytest.mark.parametrize("error", [error_for(ErrorCode.GROUP_ID_NOT_FOUND, "g"), None])
def test_group_that_the_last_read_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch, error: KafkaError | None) -> None:
    """The command ended with a KeyError when a group was deleted while its rates were measured."""
    there = LagReport(1_000, {"g": group_lag(PartitionLag(TopicPartition("t", 0), 5, log_start=0, log_end=5))})
    lacking = LagReport(2_000, {}, {} if error is None else {"g": error})
    (found,) = errors_after(monkeypatch, there, lacking, look_s=60).values()
    assert "was left out of the last read" in str(found) if error is None else found.code is error.code


def test_group_whose_partitions_are_unavailable_is_not_said_to_have_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = group_lag(PartitionLag(TopicPartition("t", 0), 5, cause=UNAVAILABLE, error="no leader"))
    (found,) = errors_after(monkeypatch, LagReport(1_000, {"g": lost}), look_s=0).values()
    assert str(found) == "the lag of group g is unknown: the offsets of t-0 are unavailable: no leader"
