"""Members and control planes of a region as processes that tests kill: forks of one that has imported what they need.

Imports are two thirds of the processor time of such a process. In the long run, and outside of Linux, each starts as a
user's does.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

from tests.support.long_runs import IS_LONG
from tests.support.nursery import Nursery

MEMBER, COMMAND = "tests.region.member_process", "kohort"
FUNCTIONS = {MEMBER: f"{MEMBER}:main", COMMAND: "kohort.cli:main"}
PRELOADED = (MEMBER, "kohort.cli.region", "kohort.region.keyed_state.states")


@cache
def _nursery() -> Nursery:
    made = Nursery(PRELOADED)
    atexit.register(made.close)
    return made


def start_module(
    module: str,
    arguments: Sequence[str],
    *,
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | None = None,
    forks: bool = True,
) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE …`, as `subprocess.Popen` does.

    Args:
        module: a key of `FUNCTIONS`.
        arguments: what follows the module's name.
        stdout: a file, or PIPE; None: this process's.
        stderr: a file; None: this process's.
        forks: whether it may be a fork. PyArrow's files in S3 hang at the end of one: their threads are not forked.
    """
    if not forks or IS_LONG or sys.platform != "linux":
        return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=stdout, stderr=stderr)
    files: dict[int, Any] = {
        number: file for number, file in ((1, stdout), (2, stderr)) if file not in (None, subprocess.PIPE)
    }
    piped = (False, stdout == subprocess.PIPE, False)
    return _nursery().fork(FUNCTIONS[module], arguments, piped=piped, files=files)
