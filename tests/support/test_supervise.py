"""An interrupted test run leaves no process behind, whatever its children did to live on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[2] == "deaf" else signal.default_int_handler)
other = subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(f"{os.getpid()} {other.pid}")
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(600)
time.sleep(600 if sys.argv[2] != "ends" else 1)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="Linux adopts orphans")
@pytest.mark.parametrize(("kind", "sent"), [("hears", signal.SIGINT), ("hears", signal.SIGTERM), ("ends", None)])
def test_no_process_is_left_behind(tmp_path: Path, kind: str, sent: signal.Signals | None) -> None:
    told = tmp_path / "pids"
    command = [sys.executable, "-m", "tests.support.supervise", sys.executable, "-c", CHILD, str(told), kind]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as supervisor:
        deadline = time.monotonic() + 60
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        processes = [int(process) for process in told.read_text().split()]
        if sent is not None:
            assert all(is_alive(process) for process in processes)
            os.kill(supervisor.pid, sent)
        _, errors = supervisor.communicate(timeout=60)
    assert not any(is_alive(process) for process in processes)
    assert "2 processes were left behind and killed" in errors
    assert supervisor.returncode == (0 if sent is None else 128 + sent)
