"""The wait before a retry: its growth, its bounds."""

from __future__ import annotations

from kohort.io.backoff import exponential_backoff


def test_backoff_doubles_with_every_failure_in_a_row() -> None:
    assert [exponential_backoff(failures, 100, 1_000) for failures in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_backoff_of_no_failure_is_that_of_the_first() -> None:
    assert exponential_backoff(0, 100, 1_000) == exponential_backoff(1, 100, 1_000) == 100


def test_backoff_grows_by_the_factor_that_is_asked_for() -> None:
    assert [exponential_backoff(failures, 50, 1e9, 10) for failures in (1, 2, 3)] == [50, 500, 5_000]


def test_backoff_stays_finite_after_failures_for_weeks() -> None:
    assert exponential_backoff(10**9, 0.05, 30.0) == 30.0
    assert exponential_backoff(10**9, 0.5, float("inf")) < float("inf")
