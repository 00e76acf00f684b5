"""Waiting for a condition outside this process, with a bound and a story."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

STILL_S = 120.0
"""How long nothing may move before a wait is given up: a machine with ten times the work it can do still moves
something."""
LAST_RESORT = pytest.mark.timeout(1800)
"""For tests whose waits are bounded by what moves: it ends one that hangs where nothing waits."""
ATTEMPTS, TOO_SLOW = 40, "failed to connect back"
"""Spark's word for a Python process that was not up after its ten seconds, as happens on a busy machine;
how often it is tried."""
LOOK_S, MOVES_S = 0.05, 0.5


def until(
    condition: Callable[[], object],
    what: str,
    timeout_s: float = 60,
    moves: Callable[[], Mapping[str, Any]] | None = None,
) -> None:
    """Asks again and again until the condition holds; fails with `what` when it does not in time.

    Args:
        condition: what is waited for.
        what: the same in words.
        timeout_s: how long; with `moves`, how long nothing may move.
        moves: what can be seen of the work under way, by name. A wait is not over while any of it changes, so that a
            slow machine fails nothing; the failure says what moved last.
    """
    began = moved = looked = time.monotonic()
    seen = dict(moves()) if moves is not None else {}
    last = "nothing has moved at all"
    while not condition():
        now = time.monotonic()
        if moves is not None and now - looked >= MOVES_S:
            found = dict(moves())
            changed = [name for name in {**seen, **found} if seen.get(name) != found.get(name)]
            now = looked = time.monotonic()
            if changed:
                told = "; ".join(f"{name}: {seen.get(name)!r} -> {found.get(name)!r}" for name in changed)
                moved, seen, last = now, found, f"last moved, {now - began:.0f} s after the beginning, {told}"
        if now - moved > timeout_s:
            story = f"; {last}; now {seen}" if moves is not None else ""
            raise AssertionError(f"did not happen within {timeout_s:g} s: {what}{story}")
        time.sleep(LOOK_S)


def replace_time(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Replace functions of `time` in one module, not in the threads of others, whose waits would move the clock."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | functions))
