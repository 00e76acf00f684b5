"""Commands that run as processes of their own: the broker, ZooKeeper, and how quickly help comes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.support.processes import KOHORT, Start, ready

from kohort import Admin
from kohort.client.admin.values import NewTopic


def test_broker_serves_and_ends_cleanly(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = start("broker", "--listen", "127.0.0.1:0", "--data", str(data), "--set", "num.partitions=5")
    with Admin(ready(process)) as admin:
        assert admin.create_topics([NewTopic("kept")]).result("kept").num_partitions == 5
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0

    again = start("broker", "--listen", "127.0.0.1:0", "--data", str(data))
    address = ready(again)
    with Admin(address) as admin:
        assert len(admin.describe_topics(["kept"]).result("kept").partitions) == 5

    second = start("broker", "--listen", "127.0.0.1:0", "--data", str(data))
    _, error = second.communicate(timeout=20)
    assert second.returncode == 1
    assert str(data) in error
    assert "Traceback" not in error

    taken = start("broker", "--listen", address, "--data", str(tmp_path / "other"))
    _, error = taken.communicate(timeout=20)
    assert taken.returncode == 1
    assert address.rpartition(":")[2] in error
    assert "Traceback" not in error
    again.send_signal(signal.SIGINT)
    assert again.wait(20) == 0


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        (("--set", "num.partition=5"), "num.partitions"),
        (("--set", "num.partitions=many"), "num.partitions"),
        (("--set", "nonsense"), "nonsense"),
        (("--listen", "nowhere"), "nowhere"),
    ],
)
def test_broker_names_what_is_wrong(start: Start, tmp_path: Path, option: tuple[str, str], reported: str) -> None:
    process = start("broker", "--data", str(tmp_path / "data"), *option)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert reported in error
    assert "Traceback" not in error
    assert not (tmp_path / "data").exists()


def test_zookeeper_answers(start: Start) -> None:
    pytest.importorskip("pyspark")
    process = start("zookeeper", "--listen", "127.0.0.1:0")
    host, _, port = ready(process).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"ruok")
        assert connection.recv(4) == b"imok"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_doctor_speaks_json() -> None:
    done = subprocess.run([*KOHORT, "doctor", "--json"], capture_output=True, text=True, check=False)
    found = {row["what"]: row for row in json.loads(done.stdout)}
    assert found["Python 3.11 or newer"]["state"] == "ok"
    assert done.returncode == int(any(row["state"] == "missing" for row in found.values()))
