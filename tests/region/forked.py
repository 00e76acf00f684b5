"""Forks a process for each line of standard input, for programs whose processes tests kill."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def fork_for_each_line(act: Callable[[str], None], *, prints_process: bool = False) -> None:
    """Run `act` on each line in a process of its own, and print its exit code when it has ended.

    With `prints_process`, print its id before, for a test that ends it.
    """
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                act(line)
            except BaseException as error:  # noqa: BLE001 - the parent tells it
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if prints_process:
            print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
