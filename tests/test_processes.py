"""Which process a client is, and whether it has ended: only what the kernel is sure of counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kohort.io.processes import NAME_MAX_LENGTH, has_process_ended, own_identity

SAYS_ITS_NAME = (
    "import sys; from kohort.io.processes import own_identity; print(own_identity(), flush=True); sys.stdin.read()"
)
LEADER_ENDS = """
import ctypes, sys, threading
from kohort.io.processes import own_identity
threading.Thread(target=sys.stdin.read).start()
print(own_identity(), flush=True)
ctypes.CDLL(None).syscall(60 if __import__("os").uname().machine == "x86_64" else 93, 0)
"""

pytestmark = pytest.mark.skipif(not own_identity(), reason="processes have no names here: /proc is needed")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SAYS_ITS_NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_process_lives_until_it_is_killed(other: subprocess.Popen[str]) -> None:
    name = said(other)
    assert not has_process_ended(name) and not has_process_ended(own_identity())
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert has_process_ended(name), "a zombie"
    other.wait()
    assert has_process_ended(name), "nobody waits for it any more"


def test_a_process_whose_first_thread_has_ended_lives() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER_ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        name = said(process)
        with open(f"/proc/{process.pid}/stat") as file:
            while file.read().rpartition(")")[2].split()[0] != "Z":
                file.seek(0)
        assert not has_process_ended(name)
        process.kill()
        process.wait()
        assert has_process_ended(name)


def test_another_process_with_its_number_is_another() -> None:
    *rest, started = own_identity().split("/")
    assert has_process_ended("/".join([*rest, str(int(started) - 1)]))


@pytest.mark.parametrize("place", [0, 1])
def test_nothing_is_known_of_another_machine_or_namespace(place: int, other: subprocess.Popen[str]) -> None:
    name = said(other)
    other.kill()
    other.wait()
    words = name.split("/")
    words[place] = "elsewhere"
    assert has_process_ended(name) and not has_process_ended("/".join(words))


@pytest.mark.parametrize(
    "change", ["", "x", "{0}/{1}/0/{3}", "{0}/{1}/-1/{3}", "{0}/{1}/99999999999/{3}", "{0}/{1}/x/{3}"]
)
def test_what_is_no_name_says_nothing(change: str) -> None:
    assert not has_process_ended(change.format(*own_identity().split("/")))


def test_a_name_has_a_bound() -> None:
    assert len(own_identity()) <= NAME_MAX_LENGTH and not has_process_ended(own_identity() + "0" * NAME_MAX_LENGTH)


def test_a_forked_child_has_a_name_of_its_own() -> None:
    mine = own_identity()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, own_identity().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 200).decode()
    os.close(reading)
    os.close(writing)
    assert theirs.split("/")[:2] == mine.split("/")[:2] and theirs != mine
    assert has_process_ended(theirs)
