"""The short form of `make fuzz-listener`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.fuzz.run import Run

CASES = 800


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_broker_stays_within_its_bounds_whatever_is_sent(tmp_path: Path) -> None:
    """Seeds of other runs: KOHORT_FUZZ_SEED."""
    report = Run(tmp_path, int(os.environ.get("KOHORT_FUZZ_SEED", "1")), print).go(CASES, 120)
    assert not report.findings, "\n".join(report.findings)
    assert report.honest > 0
