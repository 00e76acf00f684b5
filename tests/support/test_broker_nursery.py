"""Brokers that the nursery forks are what a program's own start makes, and end as those do."""

from __future__ import annotations

import json
import os
import resource
import shutil
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
from tests.support.broker_nursery import BrokerNursery
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt another's child")
ROOT = Path(__file__).resolve().parents[2]
OWN_START = embedded.start_process
"""As a user's program has it: when tests are collected, no fixture has replaced it."""
PROGRAM = """
import sys
from kohort import Broker
from kohort.broker import embedded
from tests.support.broker_nursery import BrokerNursery

nursery = BrokerNursery()
if sys.argv[1] == "nursery":
    embedded.start_process = nursery.start_process
broker = Broker()
print(broker.pid, broker.data_dir, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nursery() -> Iterator[BrokerNursery]:
    nursery = BrokerNursery()
    yield nursery
    nursery.close()


def surroundings(pid: int) -> dict[str, Any]:
    """What a process has from the one that started it."""
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
    nursery: BrokerNursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(embedded, "start_process", nursery.start_process)
    with Broker():  # so that the nursery runs before the surroundings change
        pass
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o077)
    try:
        for start in (OWN_START, nursery.start_process):
            monkeypatch.setattr(embedded, "start_process", start)
            with Broker("data") as broker:
                found.append(surroundings(broker.pid))
            shutil.rmtree("data")
    finally:
        os.umask(umask)
    assert found[0] == found[1]
    assert (found[0]["parent"], found[0]["folder"], found[0]["umask"]) == (os.getpid(), str(tmp_path), "0077")


def test_environment_is_the_programs_at_the_start(nursery: BrokerNursery, monkeypatch: pytest.MonkeyPatch) -> None:
    with nursery.start_process():  # so that the nursery runs before the environment changes
        pass
    monkeypatch.setenv("KOHORT_TEST_NOTE", "of this test")
    monkeypatch.setenv("TZ", "UTC-3")
    monkeypatch.delenv("HOME", raising=False)
    with nursery.fork(f"{__name__}:show_environment") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.read()) == ["of this test", None, 3 * 3600]
    assert process.returncode == 0


def show_environment() -> None:
    """Print what this process knows from its environment."""
    print(json.dumps([os.environ.get("KOHORT_TEST_NOTE"), os.environ.get("HOME"), -time.timezone]))


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


def test_error_of_the_start_is_raised(nursery: BrokerNursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "start_process", nursery.start_process)
    with Broker(tmp_path) as broker, pytest.raises(InvalidInputError, match=f"process {broker.pid}"):
        Broker(tmp_path)
