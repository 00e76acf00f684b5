"""How a query's process ends by SIGTERM: in order, also when something swallows what it is ended by."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, threading, time
from kohort.spark.source import readers

readers.AGAIN_S, readers.LEAVING_S = 0.2, 0.2
ending = readers.SigtermHandler()
ending.install_handler()
swallow, leaves = int(sys.argv[1]), sys.argv[2]


def sleeps():
    time.sleep(60)


def say_when_it_sleeps():
    while sys._current_frames()[threading.main_thread().ident].f_code is not sleeps.__code__:
        time.sleep(0.001)
    print("ready", flush=True)


threading.Thread(target=say_when_it_sleeps, daemon=True).start()
try:
    while True:
        try:
            sleeps()
        except SystemExit:
            swallow -= 1
            if swallow < 0:
                raise
finally:
    ending.begin_stop()
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
    assert (out.strip(), process.returncode) == (says, code), err


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


RUNNER = """
import sys
from kohort.spark.source import readers

ending = readers.SigtermHandler()
ending.install_handler()
try:
    try:
        if sys.argv[1] == "SIGTERM":
            print("ready", flush=True)
            sys.stdin.read()
        raise {"EOF": EOFError, "error": ValueError}[sys.argv[1]]()
    finally:
        ending.begin_stop()
        print("stop")
        ending.end_stop()
except BaseException as error:
    print("the runner tells of", type(error).__name__)
    sys.exit(-1)
"""


@pytest.mark.parametrize(
    ("cause", "says", "code"),
    [("SIGTERM", ["stop"], 0), ("EOF", ["stop"], 0), ("error", ["stop", "the runner tells of ValueError"], 255)],
)
def test_a_stop_leaves_no_traceback_and_an_error_does(cause: str, says: list[str], code: int) -> None:
    """Spark's runner tells the JVM of whatever ends it, also of what ends it by the JVM's wish."""
    command = [sys.executable, "-c", RUNNER, cause]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        if cause == "SIGTERM":
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    assert (out.splitlines(), process.returncode, err) == (says, code, "")
