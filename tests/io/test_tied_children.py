"""Children that end with the process that started them, and not with the thread that did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kohort.io.java import start_dependent_child
from kohort.io.processes import has_process_ended, own_identity

ECHOES = [sys.executable, "-c", "import sys; [print(line, end='', flush=True) for line in sys.stdin]"]
STARTS_ONE = """
import subprocess, sys, threading
from kohort.io.java import start_dependent_child
says = "import sys; from kohort.io.processes import own_identity; print(own_identity(), flush=True); sys.stdin.read()"
def start():
    global child
    child = start_dependent_child([sys.executable, "-c", says], stdin=subprocess.PIPE)
{way}
sys.stdin.read()
"""
WAYS = {"first-thread": "start()", "other-thread": "one = threading.Thread(target=start); one.start(); one.join()"}

pytestmark = pytest.mark.skipif(not own_identity(), reason="processes have no names here: /proc is needed")


def echoes(child: subprocess.Popen[bytes], line: bytes) -> bool:
    """Return whether the child repeats a line."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(line)
    child.stdin.flush()
    return child.stdout.readline() == line


def test_a_child_outlives_the_thread_that_started_it() -> None:
    made: list[tuple[subprocess.Popen[bytes], int]] = []

    def start() -> None:
        child = start_dependent_child(ECHOES, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert echoes(child, b"you run, so you are tied\n")
        made.append((child, threading.get_native_id()))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    ((child, thread_id),) = made
    with child:
        while Path(f"/proc/self/task/{thread_id}").exists():
            time.sleep(0.001)
        assert echoes(child, b"are you there?\n")
        child.kill()


def test_an_error_reaches_the_thread_that_starts() -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            start_dependent_child(ECHOES, cwd=Path("/no/such/folder"))
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [FileNotFoundError]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child of a killed parent")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_child_ends_with_its_process(way: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE.format(way=way)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = parent.stdout.readline().strip()
        assert child and not has_process_ended(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        while not has_process_ended(child):
            time.sleep(0.01)
