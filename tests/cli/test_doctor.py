"""`kohort doctor`: what a user of kohort lacks, and nothing that only its developers want."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import KOHORT

from kohort import Broker
from kohort.cli.doctor import EXTRAS, _extras, _for_pip, _kernel, _requirements

ROOT = Path(__file__).resolve().parents[2]

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
    for what in ("Python 3.11 or newer", "required packages", "compression", "port 127.0.0.1:0"):
        assert found[what]["state"] == "ok", found[what]
    assert {"compiled kernel", "PySpark", "Java 17 or newer", "open files"} <= set(found)
    assert not {"cc", "mvn", "node", "go", "kcat", "kazoo"} & set(found)
    assert all(row["get_it"] for row in found.values() if row["state"] != "ok")


def test_each_extra_has_a_row_with_its_packages_and_how_to_get_it(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS) == set(extras)
    _, found = doctor("--listen", "127.0.0.1:0")
    assert [what for what in found if what.startswith("extra ")] == [f"extra {name}" for name in EXTRAS]
    for name, packages in extras.items():
        row = found[f"extra {name}"]
        lacking = [package for package in packages if re.split(r"[^A-Za-z0-9-]", package)[0] not in row["found"]]
        assert lacking == [] or row["state"] == "optional", row
        assert row["get_it"] == ("" if row["state"] == "ok" else f"pip install 'kohort[{name}]'")


@pytest.mark.parametrize(
    ("version", "state", "found"),
    [
        ("2.10.1", "optional", "kazoo 2.10.1 is older than 2.11"),
        ("2.11", "ok", "kazoo 2.11"),
        ("2.11.0rc1", "ok", "kazoo 2.11.0rc1"),
        (None, "optional", "no kazoo"),
    ],
    ids=["older", "least", "candidate", "absent"],
)
def test_a_package_that_is_absent_or_too_old_is_named(
    version: str | None, state: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["cramjam>=2.11", "kazoo[sasl]<3,>=2.11; extra == 'zookeeper'"]
    monkeypatch.setattr("kohort.cli.doctor.requires", lambda _: wanted)
    monkeypatch.setattr("kohort.cli.doctor._installed", lambda package: version if package == "kazoo" else "3.0")
    rows = {row.what: row for row in [*_extras(), *_requirements()]}
    assert (rows["extra zookeeper"].state, rows["extra zookeeper"].found) == (state, found)
    assert rows["required packages"].state == "ok"


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, "kohort"),
        ({"url": "{folder}", "dir_info": {}}, "'{path}'"),
        ({"url": "{folder}", "dir_info": {"editable": True}}, "-e '{path}'"),
        ({"url": "file:///gone/kohort.whl", "archive_info": {}}, "kohort"),
        ({"url": "https://files.example/kohort.whl", "archive_info": {}}, "kohort"),
        ({"url": f"file:///{'x' * 300}", "dir_info": {}}, "kohort"),  # fails as one that can't be looked into
    ],
    ids=["index", "folder", "editable", "gone", "address", "unreadable"],
)
def test_remedy_names_what_pip_installed(
    origin: dict[str, Any] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package index does not have kohort yet: `pip install kohort` would find nothing."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    text = origin and json.dumps(origin | {"url": origin["url"].replace("{folder}", folder.as_uri())})
    metadata = tmp_path / "kohort-1.0.dist-info"
    metadata.mkdir()
    if text:
        (metadata / "direct_url.json").write_text(text)
    monkeypatch.setattr("kohort.cli.doctor.distribution", lambda _: PathDistribution(metadata))
    assert _for_pip() == words.replace("{path}", str(folder))


def test_kernel_that_is_absent_is_built_anew_and_not_taken_from_the_cache_of_pip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache of pip keeps the wheel that was built without a compiler, also for `--no-binary`."""
    monkeypatch.setattr("kohort.wire.record_walk.COMPILED", False)
    (row,) = _kernel()
    assert row.state == "optional"
    assert row.remedy.endswith(f"pip install --no-cache-dir --force-reinstall --no-deps {_for_pip()}")


def test_pyspark_without_java_is_a_lack(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    code, found = doctor("--listen", "127.0.0.1:0", PATH=str(tmp_path), JAVA_HOME="")
    assert found["Java 17 or newer"]["state"] == "missing"
    assert "JAVA_HOME" in found["Java 17 or newer"]["get_it"]
    assert code == 1


def test_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    _, found = doctor("--listen", "127.0.0.1:0", JAVA_HOME=str(tmp_path))
    assert found["Java 17 or newer"]["found"].startswith(f"JAVA_HOME is {tmp_path}, which has no bin/java")


@pytest.mark.parametrize(
    ("version", "state", "advice"),
    [
        ("1.8.0_402", "missing", "JAVA_HOME"),
        ("21.0.2", "ok", ""),
        ("30", "optional", "Spark is made for Java 17, 21 and 25"),
    ],
    ids=["too-old", "fits", "newer-than-spark-knows"],
)
def test_java_that_spark_does_not_run_on_is_named(tmp_path: Path, version: str, state: str, advice: str) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    _, found = doctor("--listen", "127.0.0.1:0", JAVA_HOME=str(tmp_path))
    row = found["Java 17 or newer"]
    assert row["state"] == state and advice in row["get_it"]
    assert str(java) in row["found"]


def test_a_folder_that_takes_no_files_is_a_lack(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, found = doctor("--data", str(tmp_path / "file" / "data"))
    assert found[f"folder {tmp_path / 'file' / 'data'}"]["state"] == "missing"
    assert code == 1
    _, found = doctor("--data", str(tmp_path / ("x" * 300)))  # fails as a folder under an unreadable one, for root too
    assert found[f"folder {tmp_path / ('x' * 300)}"]["found"] == "can't be written: File name too long"
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


@pytest.mark.parametrize(
    ("limit", "state"), [(256, "optional"), (64, "missing")], ids=["few", "too-few-for-a-broker-to-start"]
)
def test_doctor_reports_a_low_limit_of_open_files(limit: int, state: str) -> None:
    command = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *DOCTOR, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (row,) = [row for row in json.loads(done.stdout) if row["what"] == "open files"]
    assert (row["state"], row["found"]) == (state, f"up to {limit}")


def test_a_cluster_that_is_named_is_asked() -> None:
    with Broker() as broker:
        _, found = doctor("--bootstrap-server", broker.bootstrap_servers)
        assert found[f"cluster {broker.bootstrap_servers}"]["state"] == "ok"
    code, found = doctor("--bootstrap-server", broker.bootstrap_servers, "--timeout", "1000")
    row = found[f"cluster {broker.bootstrap_servers}"]
    assert row["state"] == "missing"
    assert "--command-config" in row["get_it"], "a broker that wants a login may look as one that is away"
    assert code == 1


def test_what_is_missing_is_said_in_one_line_to_a_person() -> None:
    done = subprocess.run(
        [*DOCTOR, "--data", "/dev/null/data"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("missing: ")
    assert "folder /dev/null/data" in done.stderr
