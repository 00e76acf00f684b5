"""How a commit that is out ends, and what waits for that."""

from __future__ import annotations

import pytest

from kohort.region import messages as told
from kohort.region.messages import Cut, Identity
from kohort.region.plane import events as happens
from kohort.region.plane.config import RegionConfig
from kohort.region.states import RegionState
from tests.region.test_plane import P0, P1, Driven, span, two


def committing() -> tuple[Driven, Cut]:
    """Sequence 8, to which all have contributed, is being committed."""
    driven = two()
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, told.Drained(cut))
    driven.say(1, told.Contributed(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, told.Contributed(cut, driven.give("m2", span(P1, 71, 75))))
    assert driven.stands(RegionState.COMMITTING)
    return driven, cut


@pytest.mark.parametrize("why", ["it is dead", "another of its name", "it asks"])
def test_no_reset_waits_while_a_generation_is_asked_for(why: str) -> None:
    """The commit was refused: its outcome is known, and none is out that a reset would have to wait for."""
    driven, cut = committing()
    driven.do(happens.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    assert driven.orders(1, told.Identify)
    if why == "it is dead":
        driven.do(happens.Disconnected(1))
        driven.tick(10_000)
    elif why == "another of its name":
        driven.join(3, "m1")
    else:
        driven.say(2, told.AskReset("the disk is full"))
    assert driven.stands(RegionState.RESETTING)
    driven.say(1, told.Moved(Identity("m1", 2)))
    assert len(driven.commits) == 1, "nothing of the cut goes on"


def test_a_reset_waits_again_once_the_commit_is_tried_again() -> None:
    driven, cut = committing()
    driven.do(happens.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.say(1, told.Moved(Identity("m1", 2)))
    assert len(driven.commits) == 2
    driven.say(2, told.AskReset("the disk is full"))
    assert driven.stands(RegionState.COMMITTING)
    driven.do(happens.CommitEnded(cut))
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.sequence == 8


def test_a_commit_that_takes_long_is_waited_for() -> None:
    """It may stand: whoever went back meanwhile would go on from the sequence before it."""
    driven, cut = committing()
    driven.tick(RegionConfig().drain_ms)
    driven.tick(RegionConfig().drain_ms)
    assert driven.stands(RegionState.COMMITTING)
    assert driven.machine.due_ms() is None, "no clock that would have to be looked at again and again"
    driven.do(happens.CommitEnded(cut))
    assert driven.machine.plane.sequence == 8


def test_who_does_not_tell_its_generation_in_time_has_all_go_back() -> None:
    driven, cut = committing()
    driven.tick(RegionConfig().drain_ms)
    driven.do(happens.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.tick(RegionConfig().drain_ms - 1)
    assert driven.stands(RegionState.COMMITTING)
    driven.tick(1)
    assert driven.stands(RegionState.RESETTING)
