"""Throttles of single log lines; `tests/broker/test_log_lines.py` has that of a broker's whole log."""

from __future__ import annotations

import sys
from itertools import pairwise

from kohort.io.log_throttle import (
    FAILURE_KINDS_MAX,
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    FailureThrottle,
    IntervalThrottle,
    PrintableFormatter,
)


class Clock:
    now_ms = 0.0


def throttle() -> tuple[FailureThrottle, Clock]:
    clock = Clock()
    return FailureThrottle(lambda: clock.now_ms), clock


def test_lasting_failure_is_due_ever_more_rarely() -> None:
    failures, clock = throttle()
    due = []
    for second in range(4 * 3600):
        clock.now_ms = second * 1000.0
        if failures.should_log("a"):
            due.append(second)
    pauses = [later - earlier for earlier, later in pairwise(due)]
    assert due[0] == 0
    assert pauses[0] == FIRST_PAUSE_MS / 1000
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_MS / 1000


def test_kinds_do_not_share_their_pauses() -> None:
    failures, _ = throttle()
    assert [failures.should_log(kind) for kind in ("a", "b", "a", "b")] == [True, True, False, False]


def test_failure_that_ended_is_due_at_once_when_it_returns() -> None:
    failures, _ = throttle()
    assert not failures.end_failure("a")
    failures.should_log("a")
    assert failures.end_failure("a")
    assert failures.should_log("a")


def test_throttle_forgets_the_oldest_kinds() -> None:
    failures, _ = throttle()
    for number in range(FAILURE_KINDS_MAX + 1):
        failures.should_log(number)
    assert failures.should_log(0)
    assert not failures.should_log(FAILURE_KINDS_MAX)


def test_interval_throttle_says_how_many_events_there_were_since_the_last_line() -> None:
    clock = Clock()
    events = IntervalThrottle(30.0, lambda: clock.now_ms)
    assert [events.count_event("a"), events.count_event("a"), events.count_event("a", 5), events.count_event("b")] == [
        1,
        0,
        0,
        1,
    ]
    clock.now_ms = 29.9
    assert events.count_event("a") == 0
    clock.now_ms = 30.0
    assert [events.count_event("a"), events.count_event("a")] == [8, 0]


def test_interval_throttle_is_due_at_once_for_a_kind_that_it_forgets() -> None:
    events = IntervalThrottle(30.0, lambda: 0.0, kinds_max=2)
    assert [events.count_event(kind) for kind in ("a", "b", "c", "b", "a")] == [1, 1, 1, 0, 1]
    events.forget("b")
    assert events.count_event("b") == 1


def test_traceback_does_nothing_to_a_terminal() -> None:
    try:
        raise ValueError("a client's \x1b[2Jname")
    except ValueError:
        shown = PrintableFormatter("%(message)s").formatException(sys.exc_info())
    assert shown.startswith("Traceback (most recent call last):\n  File ")
    assert shown.endswith("\nValueError: a client's \\x1b[2Jname")
