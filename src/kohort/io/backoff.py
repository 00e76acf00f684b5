"""The wait before a retry, which grows with every failure in a row. Pure: callers bring the clock and the chance."""

from __future__ import annotations

from typing import Final

_DOUBLINGS_MAX: Final = 64
"""Bounds the exponent, so that a failure that lasts for weeks overflows nothing."""


def exponential_backoff(failures: int, first: float, longest: float, growth: float = 2.0) -> float:
    """Return the wait after this many failures in a row.

    Args:
        failures: 1 after the first failure; 0 counts as 1.
        first: the wait after the first failure, in any unit.
        longest: the longest wait, in the same unit.
        growth: the factor by which each further failure extends the wait.
    """
    return min(longest, first * growth ** min(_DOUBLINGS_MAX, max(0, failures - 1)))
