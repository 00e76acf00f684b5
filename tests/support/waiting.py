"""Waiting for a condition outside this process, with a bound and a story."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    """Asks again and again until the condition holds; fails with `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s:g} s: {what}"
        time.sleep(0.05)
