"""A short churn of each protocol with every client that can be had here; `make churn` is the long form."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.peers.churn import clients
from tests.peers.churn.check import Violation, violations
from tests.peers.churn.places import Ours
from tests.peers.churn.plans import PLANS
from tests.peers.churn.run import Pace, Run
from tests.peers.churn.story import Reading, read
from tests.peers.peers import PeerUnavailable

CHURN_S = 20
SHORT = ("classic-range", "consumer")

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Churned:
    """What came of a run, and why clients took no part in it."""

    reading: Reading
    found: list[Violation]
    unavailable: dict[str, str]


@pytest.fixture(scope="module", params=SHORT)
def churned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Churned:
    plan = PLANS[request.param]
    unavailable = {}
    for kind in plan.kinds:
        try:
            clients.command(kind.client)
        except PeerUnavailable as error:
            unavailable[kind.client] = str(error)
    folder = tmp_path_factory.mktemp("churn")
    with Ours(folder / "data", plan.broker_settings) as place:
        pace = Pace(CHURN_S, event_s=(0.5, 1.5))
        reading = read(Run(plan, pace, place, folder, unavailable=frozenset(unavailable)).run())
    return Churned(reading, violations(reading), unavailable)


def test_no_property_is_violated(churned: Churned) -> None:
    assert churned.found == []


@pytest.mark.parametrize(
    ("churned", "client"),
    [(name, kind.client) for name in SHORT for kind in PLANS[name].kinds],
    indirect=["churned"],
)
def test_each_client_takes_part(churned: Churned, client: str) -> None:
    if client in churned.unavailable:
        pytest.skip(f"{client}: {churned.unavailable[client]}")
    assert any(tenure.records for tenure in churned.reading.tenures if tenure.member.client == client)
    assert any(commit.acknowledged for commit in churned.reading.commits if commit.member.client == client)
