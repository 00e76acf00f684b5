"""A short churn of each protocol with every client that can be had here; `make churn` is the long form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.peers.churn import clients
from tests.peers.churn.check import Violation, violations
from tests.peers.churn.places import Ours
from tests.peers.churn.plans import PLANS, Plan
from tests.peers.churn.run import Pace, Run
from tests.peers.churn.story import Reading, read
from tests.peers.peers import PeerUnavailable
from tests.support.long_runs import IS_LONG

CHURN_S = 20 if IS_LONG else 12
SHORT = ("classic-range", "consumer")

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Churned:
    """The result of a run, and the reasons why clients took no part in it."""

    reading: Reading
    found: list[Violation]
    unavailable: dict[str, str]


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Churned]:
    """Runs a plan the first time it is asked for."""
    return functools.cache(lambda name: churn(PLANS[name], tmp_path_factory.mktemp("churn")))


def churn(plan: Plan, folder: Path) -> Churned:
    """One run with every client that can be had here."""
    unavailable = {}
    for kind in plan.kinds:
        try:
            clients.command(kind.client)
        except PeerUnavailable as error:
            unavailable[kind.client] = str(error)
    with Ours(folder / "data", plan.broker_settings) as place:
        pace = Pace(CHURN_S, event_s=(0.5, 1.5))
        reading = read(Run(plan, pace, place, folder, unavailable=frozenset(unavailable)).run())
    return Churned(reading, violations(reading), unavailable)


@pytest.mark.parametrize("name", SHORT)
def test_no_property_is_violated(name: str, churned: Callable[[str], Churned]) -> None:
    assert churned(name).found == []


@pytest.mark.parametrize(("name", "client"), [(name, kind.client) for name in SHORT for kind in PLANS[name].kinds])
def test_each_client_takes_part(name: str, client: str, churned: Callable[[str], Churned]) -> None:
    run = churned(name)
    if client in run.unavailable:
        pytest.skip(f"{client}: {run.unavailable[client]}")
    assert any(ownership.records for ownership in run.reading.ownerships if ownership.member.client == client)
    assert any(commit.acknowledged for commit in run.reading.commits if commit.member.client == client)
