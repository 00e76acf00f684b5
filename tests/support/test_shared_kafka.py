"""All workers of a run use one Apache Kafka, which ends with the last of them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kohort import Admin
from tests.support.apache_kafka import kafka_jars
from tests.support.maven import MavenUnavailable
from tests.support.shared_kafka import kafka_of_the_run
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).resolve().parents[2]
_ANOTHER_WORKER = """
import sys
from pathlib import Path
from tests.support.shared_kafka import kafka_of_the_run

with kafka_of_the_run({}, Path(sys.argv[1])) as kafka:
    print(kafka.pid, kafka.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def test_workers_share_a_node_that_ends_with_the_last_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        kafka_jars()
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)
    with kafka_of_the_run({}, tmp_path) as kafka:
        pid = kafka.pid
        other = subprocess.Popen(
            [sys.executable, "-c", _ANOTHER_WORKER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert other.stdout is not None
        assert other.stdout.readline().split() == [str(pid), kafka.bootstrap_servers]
        with pytest.raises(AssertionError, match="other workers use this node"):
            kafka.kill()
    with Admin(kafka.bootstrap_servers) as admin:
        admin.describe_cluster()
    other.kill()
    other.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the node has ended")


def test_node_is_of_its_own_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, str]] = []

    class Node:
        def __init__(self, settings: dict[str, str]) -> None:
            made.append(settings)

        def __enter__(self) -> Node:
            return self

        def __exit__(self, *_: object) -> None:
            made.append({})

    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    monkeypatch.setattr("tests.support.shared_kafka.ApacheKafka", Node)
    with kafka_of_the_run({"a": "1"}, tmp_path):
        assert made == [{"a": "1"}]
    assert made == [{"a": "1"}, {}]
