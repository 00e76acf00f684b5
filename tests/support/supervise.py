"""Run a command and leave no process of it behind: `python -m tests.support.supervise COMMAND …`.

Tests start brokers, Kafkas, ZooKeepers and Spark drivers, many of them in sessions of their own, which Ctrl-C does not
reach. This process adopts every orphan below it (`PR_SET_CHILD_SUBREAPER`) and kills what is left when the command
ends or is interrupted. Linux only; elsewhere the command simply runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING_S = 30.0
"""Time that an interrupted command has to end its own fixtures."""
KILL_ROUNDS = 50
"""Rounds of killing: a process may start another between the look and the kill."""


def descendants(of: int) -> list[int]:
    """Every living process below one, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: list[int] = []
    below = children.get(of, [])
    while below:
        found += below
        below = [child for process in below for child in children.get(process, [])]
    return found


def name_of(process: int) -> str:
    """The command line of a process, shortened."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return "?"


def kill_all_below() -> list[str]:
    """Kill every process below this one; the command lines of those that were there."""
    names: list[str] = []
    for round_number in range(KILL_ROUNDS):
        left = descendants(os.getpid())
        if not left:
            break
        if round_number == 0:
            names = [name_of(process) for process in left]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
        reaped(0)
    return names


def reaped(child: int) -> int | None:
    """Reap every process that has ended, so that none stays a zombie; the child's exit code if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def main(command: list[str]) -> int:
    """Run the command; its exit code, or 128 and the number of the signal that interrupted it."""
    if sys.platform != "linux":
        return subprocess.call(command)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    interrupts = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    awaited = {*interrupts, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)

    def follow_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in awaited:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)

    child = subprocess.Popen(command, preexec_fn=follow_parent, process_group=0)  # noqa: PLW1509 - no threads here
    code, interrupted, deadline_s = None, 0, float("inf")
    while code is None and time.monotonic() < deadline_s:
        happened = signal.sigtimedwait(awaited, 1.0)
        code = reaped(child.pid)
        if code is None and happened is not None and happened.si_signo in interrupts:
            if not interrupted:
                deadline_s = time.monotonic() + ENDING_S
            interrupted = happened.si_signo
            os.killpg(child.pid, signal.SIGINT)
    left = kill_all_below()
    if left:
        print(f"{len(left)} processes were left behind and killed:", *left, sep="\n  ", file=sys.stderr)
    if interrupted:
        return 128 + interrupted
    return code if code is not None and code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
