"""`kohort doctor`: what a user of kohort lacks, and nothing that only its developers want."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import KOHORT

from kohort import Broker

DOCTOR = [*KOHORT, "doctor"]


def doctor(*args: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the findings by name."""
    env = {name: value for name, value in os.environ.items() if name != "KOHORT_BOOTSTRAP_SERVER"} | environment
    done = subprocess.run([*DOCTOR, "--json", *args], capture_output=True, text=True, env=env, check=False)
    assert done.stderr == ""
    return done.returncode, {row["what"]: row for row in json.loads(done.stdout)}


def test_it_looks_at_what_users_need() -> None:
    code, found = doctor("--listen", "127.0.0.1:0")
    assert code == int(any(row["state"] == "missing" for row in found.values()))
    for what in ("Python 3.11", "required packages", "compression", "port 127.0.0.1:0"):
        assert found[what]["state"] == "ok", found[what]
    assert {"compiled kernel", "PySpark", "Java 17", "open files", "uvloop"} <= set(found)
    assert not {"cc", "mvn", "node", "go", "kcat", "kazoo"} & set(found)
    assert all(row["get_it"] for row in found.values() if row["state"] != "ok")


def test_pyspark_without_java_is_a_lack(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    code, found = doctor("--listen", "127.0.0.1:0", PATH=str(tmp_path), JAVA_HOME="")
    assert found["Java 17"]["state"] == "missing"
    assert "JAVA_HOME" in found["Java 17"]["get_it"]
    assert code == 1


def test_a_folder_that_takes_no_files_is_a_lack(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, found = doctor("--data", str(tmp_path / "file" / "data"))
    assert found[f"folder {tmp_path / 'file' / 'data'}"]["state"] == "missing"
    assert code == 1
    _, found = doctor("--data", str(tmp_path / "made" / "later"))
    row = found[f"folder {tmp_path / 'made' / 'later'}"]
    assert row["found"].startswith("writable, ")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_port_in_use_is_reported_with_the_way_round_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        _, found = doctor("--listen", address)
    row = found[f"port {address}"]
    assert (row["state"], row["found"]) == ("optional", "something listens there")
    assert "--listen 127.0.0.1:0" in row["get_it"]


def test_doctor_reports_a_low_limit_of_open_files() -> None:
    command = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *DOCTOR, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (row,) = [row for row in json.loads(done.stdout) if row["what"] == "open files"]
    assert (row["state"], row["found"]) == ("optional", "up to 256")


def test_a_cluster_that_is_named_is_asked() -> None:
    with Broker() as broker:
        _, found = doctor("--bootstrap-server", broker.bootstrap_servers)
        assert found[f"cluster {broker.bootstrap_servers}"]["state"] == "ok"
    code, found = doctor("--bootstrap-server", broker.bootstrap_servers, "--timeout", "1000")
    assert found[f"cluster {broker.bootstrap_servers}"]["state"] == "missing"
    assert code == 1


def test_what_is_missing_is_said_in_one_line_to_a_person() -> None:
    done = subprocess.run(
        [*DOCTOR, "--data", "/dev/null/data"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("missing: ")
    assert "folder /dev/null/data" in done.stderr
