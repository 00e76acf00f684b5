"""`kohort groups scale`, against a broker with a member that can't keep up."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid

import pytest
from tests.support.nursery import run_command
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.admin.values import NewTopic

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
