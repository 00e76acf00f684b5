"""The wait between two looks at what a query may read."""

from __future__ import annotations

import types

import pytest

from kohort.spark.source import offset_coordinator


def test_lookups_that_fail_without_an_end_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(offset_coordinator, "time", types.SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    again = offset_coordinator.AssignmentRetry()
    for _ in range(290):
        again.wait_and_warn()
    assert not caplog.messages
    for _ in range(300):
        again.wait_and_warn()
    assert len(caplog.messages) == 1
    assert "was changing at each of 30" in caplog.text


def test_a_few_lookups_that_take_long_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = iter(range(0, 10_000, 60))
    monkeypatch.setattr(
        offset_coordinator, "time", types.SimpleNamespace(monotonic=lambda: next(now), sleep=lambda seconds: None)
    )
    again = offset_coordinator.AssignmentRetry()
    for _ in range(19):
        again.wait_and_warn()
    assert not caplog.messages
