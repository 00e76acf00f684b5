"""Random numbers for the waits before retries, for ids, and for the choice of partitions."""

from __future__ import annotations

from random import SystemRandom
from typing import Final

CHANCE: Final = SystemRandom()
"""A generator of this package's own. Python's common one belongs to the application: one that seeds it would give all
its processes the same waits, and Hypothesis reports a thread that uses it during a test.
"""
