"""The command as processes of its own; the fixture `start` makes them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

KOHORT = [sys.executable, "-m", "kohort"]
Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


def ready(process: subprocess.Popen[str]) -> str:
    """The address in the line that says clients can connect."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), process.communicate()
    return line.split()[1]
