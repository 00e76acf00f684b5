"""How a commit that is out ends, and what waits for that."""

from __future__ import annotations

import pytest

from kohort.region import messages
from kohort.region.control_plane import events as plane_events
from kohort.region.control_plane.state import RegionConfig
from kohort.region.messages import CheckpointAttempt, Identity
from kohort.region.records import RegionStopped
from kohort.region.states import RegionState
from tests.region.test_plane import P0, P1, Driven, at, span, two


def committing() -> tuple[Driven, CheckpointAttempt]:
    """Sequence 8, to which all have contributed, is being committed."""
    driven = two()
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    assert driven.stands(RegionState.COMMITTING)
    return driven, cut


@pytest.mark.parametrize("why", ["it is dead", "another of its name", "it asks"])
def test_no_reset_waits_while_a_generation_is_asked_for(why: str) -> None:
    """The commit was refused: its outcome is known, and none is out that a reset would have to wait for."""
    driven, cut = committing()
    driven.do(plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    assert driven.orders(1, messages.GroupGenerationRequest)
    if why == "it is dead":
        driven.do(plane_events.ConnectionEnded(1))
        driven.tick(10_000)
    elif why == "another of its name":
        driven.join(3, "m1")
    else:
        driven.say(2, messages.RegionResetRequest("the disk is full"))
    assert driven.stands(RegionState.RESETTING)
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2)))
    assert len(driven.commits) == 1, "nothing of the cut goes on"


def test_the_region_resets_when_who_was_asked_for_its_generation_has_released_all_and_died() -> None:
    """Nobody waited for the dead member any more, and its deadline was set again for ever."""
    driven, cut = committing()
    driven.do(plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.do(plane_events.ConnectionEnded(1))
    known = driven.machine.plane.members["m1"]
    driven.say(
        3, messages.RegistrationRequest("m1", known.incarnation, "etl", Identity("m1", 2), known.epoch, (), sink="s")
    )
    driven.do(plane_events.ConnectionEnded(3))
    driven.tick(10_000)
    assert "m1" not in driven.machine.plane.members
    assert driven.stands(RegionState.RESETTING)
    assert len(driven.commits) == 1, "nothing of the cut goes on"


def test_a_reset_waits_again_once_the_commit_is_tried_again() -> None:
    driven, cut = committing()
    driven.do(plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2)))
    assert len(driven.commits) == 2
    driven.say(2, messages.RegionResetRequest("the disk is full"))
    assert driven.stands(RegionState.COMMITTING)
    driven.do(plane_events.CommitEnded(cut))
    assert driven.stands(RegionState.RESETTING) and driven.machine.plane.sequence == 8


def test_a_commit_that_takes_long_is_waited_for() -> None:
    """The commit may have succeeded: a member that reset meanwhile would go on from the checkpoint before it."""
    driven, cut = committing()
    driven.tick(RegionConfig().drain_ms)
    driven.tick(RegionConfig().drain_ms)
    assert driven.stands(RegionState.COMMITTING)
    assert driven.machine.next_deadline_ms() is None, "no clock that would have to be looked at again and again"
    driven.do(plane_events.CommitEnded(cut))
    assert driven.machine.plane.sequence == 8


def test_a_member_that_does_not_say_its_generation_in_time_resets_the_region() -> None:
    driven, cut = committing()
    driven.tick(RegionConfig().drain_ms)
    driven.do(plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.tick(RegionConfig().drain_ms - 1)
    assert driven.stands(RegionState.COMMITTING)
    driven.tick(1)
    assert driven.stands(RegionState.RESETTING)


def stopped() -> tuple[Driven, CheckpointAttempt]:
    """The region has stopped while sequence 8 is being committed."""
    driven, cut = committing()
    driven.say(2, messages.UnrecoverableFailure("what no reset mends", "mend it"))
    assert driven.stands(RegionState.STOPPED)
    return driven, cut


@pytest.mark.parametrize("first", ["the outcome", "the person"])
def test_a_resumed_region_begins_at_the_sequence_whose_commit_was_out_when_it_stopped(first: str) -> None:
    driven, cut = stopped()
    if first == "the person":
        driven.do(plane_events.ResumeRequested())
        assert driven.stands(RegionState.STOPPED), "it is not known yet from where it goes on"
        driven.do(plane_events.CommitEnded(cut))
    else:
        driven.do(plane_events.CommitEnded(cut))
        assert driven.stands(RegionState.STOPPED)
        driven.do(plane_events.ResumeRequested())
    assert driven.stands(RegionState.FORMING) and driven.machine.plane.sequence == 8
    driven.join(3, "m1")
    assert driven.ask(3, P0) == (at(P0, 80),)
    assert [order.sequence for order in driven.orders(3, messages.PublishOrder)][-1] == 8, (
        "and it is still to be published"
    )


@pytest.mark.parametrize("first", ["the outcome", "the person"])
def test_of_a_commit_that_was_refused_when_it_had_stopped_nothing_is_there(first: str) -> None:
    driven, cut = stopped()
    refused = plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset())
    events = (
        [refused, plane_events.ResumeRequested()]
        if first == "the outcome"
        else [plane_events.ResumeRequested(), refused]
    )
    for event in events:
        driven.do(event)
    assert driven.stands(RegionState.FORMING) and driven.machine.plane.sequence == 7
    driven.join(3, "m1")
    assert driven.ask(3, P0) == (at(P0, 70),)


def test_a_region_that_stops_while_a_generation_is_asked_for_waits_for_no_outcome() -> None:
    driven, cut = committing()
    driven.do(plane_events.CommitEnded(cut, {"m1": "an old generation"}, frozenset()))
    driven.say(2, messages.UnrecoverableFailure("what no reset mends", "mend it"))
    driven.do(plane_events.ResumeRequested())
    assert driven.stands(RegionState.FORMING)


def test_who_resumes_before_the_topic_has_it_that_it_stopped_waits_for_that() -> None:
    """A member that registered in between would have been stopped with the earlier ones."""
    driven = two()
    driven.saves = False
    driven.say(2, messages.UnrecoverableFailure("what no reset mends", "mend it"))
    driven.do(plane_events.ResumeRequested())
    driven.join(3, "m3")
    assert driven.stands(RegionState.STOPPED) and driven.orders(3, messages.StopOrder) and 3 in driven.closed
    driven.saves = True
    driven.do(plane_events.FactsSaved(driven.machine.plane._tokens))
    assert driven.orders(1, messages.StopOrder) and driven.orders(2, messages.StopOrder)
    assert driven.stands(RegionState.FORMING)
    assert [fact.cause for fact in driven.facts if isinstance(fact, RegionStopped)] == ["m2: what no reset mends", ""]
    driven.join(4, "m4")
    assert driven.orders(4, messages.RegistrationAccepted) and not driven.orders(4, messages.StopOrder)
