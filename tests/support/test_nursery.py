"""Brokers that the nursery forks are what a program's own start makes, and end as those do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.broker import embedded
from kohort.errors import InvalidInputError
from tests.support.nursery import Nursery, run_command
from tests.support.processes import KOHORT, ready
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt another's child")
ROOT = Path(__file__).resolve().parents[2]
OWN_START = embedded.start_process
"""The start of a broker's process in a user's program. This module is imported before a fixture replaces it."""
PROGRAM = """
import sys
from kohort import Broker
from kohort.broker import embedded
from tests.support.nursery import Nursery

nursery = Nursery()
if sys.argv[1] == "nursery":
    embedded.start_process = nursery.start_broker
broker = Broker()
print(broker.pid, broker.data_dir, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def surroundings(pid: int) -> dict[str, Any]:
    """Return the state that a process has from the one that started it."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return {
        "parent": int(status["PPid"]),
        "umask": status["Umask"].strip(),
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "has its own session": os.getsid(pid) == pid,
        "folder": os.readlink(folder / "cwd"),
        "files": resource.prlimit(pid, resource.RLIMIT_NOFILE),
        "descriptors": sorted(os.readlink(path).split(":")[0] for path in (folder / "fd").iterdir()),
    }


def test_broker_has_the_surroundings_of_its_program(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(embedded, "start_process", nursery.start_broker)
    with Broker():  # so that the nursery runs before the surroundings change
        pass
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o077)
    try:
        for start in (OWN_START, nursery.start_broker):
            monkeypatch.setattr(embedded, "start_process", start)
            with Broker("data") as broker:
                found.append(surroundings(broker.pid))
            shutil.rmtree("data")
    finally:
        os.umask(umask)
    assert found[0] == found[1]
    assert (found[0]["parent"], found[0]["folder"], found[0]["umask"]) == (os.getpid(), str(tmp_path), "0077")


def test_environment_is_the_programs_at_the_start(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker():  # so that the nursery runs before the environment changes
        pass
    monkeypatch.setenv("KOHORT_TEST_NOTE", "of this test")
    monkeypatch.setenv("TZ", "UTC-3")
    monkeypatch.delenv("HOME", raising=False)
    with nursery.fork(f"{__name__}:show_environment", piped=(False, True, False)) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.read()) == ["of this test", None, 3 * 3600]
    assert process.returncode == 0


def show_environment() -> None:
    """Print what this process knows from its environment."""
    print(json.dumps([os.environ.get("KOHORT_TEST_NOTE"), os.environ.get("HOME"), -time.timezone]))


def test_output_and_errors_go_into_the_given_files(tmp_path: Path) -> None:
    of_members = Nursery(["json"])
    with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
        files = {1: out, 2: errors}
        with of_members.fork(f"{__name__}:complain", ["twice"], piped=(False, False, False), files=files) as process:
            assert process.wait(60) == 3
    of_members.close()
    assert (tmp_path / "out").read_text() == "true twice\n"
    assert (tmp_path / "errors").read_text() == "no\n"


def complain() -> None:
    """Print whether a module was there at the start, and an argument; then fail."""
    print(json.dumps("json" in sys.modules), *sys.argv[1:])
    print("no", file=sys.stderr)
    sys.exit(3)


@pytest.mark.parametrize("arguments", [["--version"], ["nonsense"], ["broker", "--listen", "nowhere"]])
def test_command_ends_as_its_own_start_does(nursery: Nursery, arguments: list[str]) -> None:
    own = subprocess.run([*KOHORT, *arguments], capture_output=True, text=True, check=False)
    with nursery.start_command(arguments) as process:
        assert process.communicate(timeout=60) == (own.stdout, own.stderr)
    assert process.returncode == own.returncode and own.stdout + own.stderr
    ended = run_command([*KOHORT, *arguments], 60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (own.returncode, own.stdout, own.stderr)


def test_server_says_that_it_is_ready_and_ends_by_a_signal(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.start_command(["broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]) as process:
        ready(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "shutting down" in errors


@pytest.mark.parametrize("kind", ["nursery", "own start"])
def test_broker_ends_with_its_killed_program(kind: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True
    ) as program:
        assert program.stdout is not None
        pid, folder = program.stdout.readline().split()
        program.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the broker has ended")
    until(lambda: not Path(folder).exists(), "its folder is gone")


def test_error_of_the_start_is_raised(nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "start_process", nursery.start_broker)
    with Broker(tmp_path) as broker, pytest.raises(InvalidInputError, match=f"process {broker.pid}"):
        Broker(tmp_path)
