"""The short forms of other projects' suites; `make suites` runs them whole."""

from __future__ import annotations

import pytest

from tests.peers.peers import PeerUnavailable
from tests.peers.suites.run import run
from tests.peers.suites.suites import SUITES

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.short])
def test_a_suite_passes(name: str) -> None:
    try:
        outcome = run(SUITES[name], short=True)
    except PeerUnavailable as error:
        pytest.skip(f"{name}: {error}")
    assert outcome.whole
    assert outcome.unexpected == {}
    assert len(outcome.passed) > 10
