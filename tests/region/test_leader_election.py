"""Leader election among several candidates: one at a time; a candidate that was replaced backs off."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kohort.errors import InvalidInputError
from kohort.region import leader_election
from kohort.region.control_plane.state import RegionConfig, RegionFacts
from kohort.region.leader_election import ControlPlaneAddress, LeaderElection, NoControlPlaneError
from kohort.region.server import RegionLog, TermOverError
from tests.support.waiting import replace_time


class Contested:
    """A topic without a term, where another is always quicker."""

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.tried: list[float] = []

    def newest_address(self) -> ControlPlaneAddress | None:
        return None

    def term_secret(self, term: int) -> bytes:
        return b"t" * 32

    def take_over(self, host: str, port: int, pin: bytes = b"") -> tuple[RegionLog, RegionFacts]:
        self.tried.append(self.now[0])
        raise TermOverError("another control plane has taken over")


def test_who_loses_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    replace_time(monkeypatch, leader_election, monotonic=lambda: now[0])
    place = Contested(now)
    loser = LeaderElection(place, RegionConfig())
    while len(place.tried) < 8:
        with pytest.raises(NoControlPlaneError, match="another application is taking over"):
            loser.connect_to_control_plane()
        now[0] += 0.1
    least, most = leader_election.ELECTION_DELAY_S
    for number, (earlier, other) in enumerate(pairwise(place.tried)):
        factor = 2 ** min(number, leader_election.LOSSES_MAX)
        assert least * factor <= other - earlier <= most * factor + 0.2
    loser.close()


def test_an_elected_leader_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    replace_time(monkeypatch, leader_election, sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    place = Contested(now)
    with pytest.raises(TermOverError):
        LeaderElection(place, RegionConfig()).become_control_plane()
    assert len(place.tried) == 1 + leader_election.LOSSES_MAX
    assert all(other - earlier >= leader_election.ELECTION_DELAY_S[0] for earlier, other in pairwise(place.tried))


def test_serve_after_close_begins_no_term() -> None:
    place = Contested([100.0])
    election = LeaderElection(place, RegionConfig())
    election.close()
    with pytest.raises(InvalidInputError, match="closed"):
        election.become_control_plane()
    assert place.tried == []
