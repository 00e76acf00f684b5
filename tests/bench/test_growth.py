"""The growth bench: each line runs against a real broker, and its samples are of what it says."""

from __future__ import annotations

import resource

import pytest
from bench.growth import LINES, Line
from bench.harness import NotHere

from bench import growth


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.thing)
def test_line_measures_its_three_samples(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "ASKED", 100)
    monkeypatch.setattr(growth, "POSITIONS", 200)
    grown = growth._run(line, 20)
    assert grown.came.amount == grown.memory.amount == 20
    assert grown.asked.amount in (100, 200)
    assert 0 < grown.came.seconds < 60
    assert 0 < grown.asked.seconds < 60


def test_more_connections_than_descriptors_are_not_here() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("descriptors are not limited")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(NotHere, match="descriptors needed"):
        growth._raise_file_limit(2**40)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
