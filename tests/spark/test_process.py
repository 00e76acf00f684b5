"""How a query's process ends by SIGTERM: in order, also when something swallows what it is ended by."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, time
from kohort.spark import process

process.AGAIN_S, process.LEAVING_S = 0.05, 0.2
ending = process.Ending()
ending.install()
swallow, leaves = int(sys.argv[1]), sys.argv[2]
try:
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except SystemExit:
            swallow -= 1
            if swallow < 0:
                raise
finally:
    ending.begin()
    print("stop", flush=True)
    if leaves == "never":
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("swallowed", "leaves", "says", "code"),
    [
        (0, "at once", "stop", 0),
        (2, "at once", "stop", 0),
        (99, "at once", "", 1),
        (0, "never", "stop", 1),
    ],
    ids=["in order", "though it was swallowed", "at once in the end", "though stop hangs"],
)
def test_a_process_ends_by_sigterm(swallowed: int, leaves: str, says: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(swallowed), leaves]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    assert (out.replace("ready\n", "").strip(), process.returncode) == (says, code), err


def test_a_second_signal_does_not_interrupt_the_first() -> None:
    command = [sys.executable, "-c", PROGRAM.replace('print("stop", flush=True)', "time.sleep(0.1); print('stop')")]
    with subprocess.Popen([*command, "0", "at once"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        out, _ = process.communicate(timeout=100)
    assert (out.strip(), process.returncode) == ("stop", 0)
