"""Members that return, leave or are away: the control plane's machine with the member's own, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kohort.region import messages
from kohort.region.control_plane import events as plane_events
from kohort.region.member import events as does
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import CheckpointAttempt, Identity
from kohort.region.records import Position
from kohort.region.states import RegionState
from tests.region.test_plane import KNOWN, P0, P1, Driven, at, span, two


def begun_by(order: messages.Order) -> does.BeginEpoch:
    """How a member that has just started begins with an order."""
    machine = MemberMachine("r", "q", UUID(int=1), "etl", "s")
    machine.step(does.ControlPlaneConnected())
    [begin] = [
        effect
        for effect in machine.step(does.ControlPlaneMessageReceived(order))
        if isinstance(effect, does.BeginEpoch)
    ]
    return begin


@pytest.mark.parametrize("saved", [False, True])
def test_who_has_not_read_its_first_welcome_is_welcomed_again_with_its_state(saved: bool) -> None:
    """The member's connection ended before its epoch was saved, or before it had read its Welcome."""
    driven = Driven(replace(KNOWN, states={"q": b"what it has summed up"}, waiting={"q": 7}))
    driven.saves = saved
    driven.join(1, "q")
    driven.do(plane_events.ConnectionEnded(1))
    if not saved:
        driven.do(plane_events.FactsSaved(driven.machine.plane._tokens))
    driven.join(2, "q", incarnation=UUID(int=1))
    [order] = driven.orders(2, messages.RegistrationAccepted)
    assert begun_by(order).state == b"what it has summed up"
    assert driven.ask(2, P0) == (at(P0, 70),)


def says(machine: MemberMachine, *events: does.Event) -> list[messages.Report]:
    """Return a member's reports about events."""
    effects = [effect for event in events for effect in machine.step(event)]
    return [effect.report for effect in effects if isinstance(effect, does.SendReport)]


def test_who_leaves_while_its_starts_are_on_their_way_is_not_taken_for_dead() -> None:
    """The member has read nothing of its starts, and ends at once: others must not get its records before it has."""
    driven = two()
    machine = MemberMachine("r", "m3", UUID(int=3), "etl", "s")
    for report in says(machine, does.ControlPlaneConnected()):
        driven.say(3, report)
    driven.say(1, messages.AssignmentChanged(Identity("m1", 2), (P0,)))
    [welcome] = driven.orders(3, messages.RegistrationAccepted)
    for report in says(
        machine, does.ControlPlaneMessageReceived(welcome), does.PartitionsAssigned(Identity("m3", 2), (P0,))
    ):
        driven.say(3, report)
    assert driven.orders(3, messages.StartOffsetsAnswer)[-1].found == (at(P0, 70),), "on their way"
    for report in says(machine, does.CloseRequested()):
        driven.say(3, report)
    assert "m3" not in driven.machine.plane.members and driven.machine.plane.owner_of(P0) is None
    driven.do(plane_events.ConnectionEnded(3))
    driven.tick(10_000)
    assert driven.stands(RegionState.RUNNING), "nobody goes back"


def contributed(cut: CheckpointAttempt, *positions: Position) -> MemberMachine:
    """A member that reads P0 from 70 on, in epoch 5, and has contributed to sequence 8 under term 3."""
    machine = MemberMachine("r", "q", UUID(int=1), "etl", "s")
    orders: list[messages.Order] = [messages.RegistrationAccepted(3, 5, 7, ("q",))]
    machine.step(does.ControlPlaneConnected())
    machine.step(does.ControlPlaneMessageReceived(orders[0]))
    machine.step(does.PartitionsAssigned(Identity("q", 1), (P0,)))
    machine.step(does.ControlPlaneMessageReceived(messages.StartOffsetsAnswer(3, 1, (at(P0, 70),))))
    machine.step(does.RecordsFetched())
    machine.step(does.ControlPlaneMessageReceived(messages.DrainOrder(3, cut)))
    machine.step(does.DrainCompleted(cut))
    machine.step(does.ControlPlaneMessageReceived(messages.ContributeOrder(3, cut, ("q",))))
    [given] = [
        report
        for report in says(machine, does.StateSaved(cut, positions, (), b"s"))
        if isinstance(report, messages.ContributionReport)
    ]
    assert given.contribution.epoch == 5
    return machine


@pytest.mark.parametrize("end", [70, 80])
@pytest.mark.parametrize(
    ("contributors", "counts"),
    [({}, False), ({"q": 5}, True), ({"q": 6}, False), ({"a": 5}, False)],
)
def test_a_sequence_is_a_members_own_if_it_has_what_it_contributed(
    contributors: dict[str, int], counts: bool, end: int
) -> None:
    """The control plane died meanwhile; the next one may have completed 8 with other members."""
    machine = contributed(CheckpointAttempt(8, 1), at(P0, end))
    reached = end if counts else 70
    known = replace(KNOWN, term=4, sequence=8, positions=(at(P0, reached), at(P1, 71)), contributors=contributors)
    driven = Driven(known)
    for report in says(machine, does.ControlPlaneConnected()):
        driven.say(1, report)
    [welcome] = driven.orders(1, messages.RegistrationAccepted)
    retired = [
        effect
        for effect in machine.step(does.ControlPlaneMessageReceived(welcome))
        if isinstance(effect, does.RetireCheckpoints)
    ]
    assert [order.counts for order in retired] == [counts]
    assert machine.begins == {P0: reached} == driven.machine.plane.members["q"].handed


def test_what_is_complete_without_a_member_is_not_its_own() -> None:
    """Also where it hears of that while it waits to be welcomed, or to go back."""
    machine = contributed(CheckpointAttempt(8, 1), at(P0, 70))
    effects = machine.step(does.ControlPlaneMessageReceived(messages.CheckpointCompleted(4, 8, 6, counts=False)))
    assert [effect.counts for effect in effects if isinstance(effect, does.RetireCheckpoints)] == [False]


def test_a_member_that_contributed_learns_the_sequence() -> None:
    driven = two()
    cut = driven.cut()
    driven.join(3, "m3")
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    driven.do(plane_events.CommitEnded(cut))
    assert [driven.orders(member, messages.CheckpointCompleted)[-1].counts for member in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    driven.join(4, "m1", incarnation=UUID(int=1), epoch=driven.machine.plane.members["m1"].epoch)
    assert driven.orders(4, messages.RegistrationAccepted)[-1].counts, "and who comes back"


def owing() -> Driven:
    """Sequence 8 is published in `s` and not in `other`, where m2 alone writes."""
    driven = two("other")
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2", span(P1, 71, 75))))
    driven.do(plane_events.CommitEnded(cut))
    driven.say(1, messages.CheckpointPublished(8))
    assert set(driven.machine.plane.unpublished) == {"other"}
    return driven


def test_who_alone_can_publish_what_is_owed_leaves_when_it_has_though_it_holds_nothing() -> None:
    driven = owing()
    driven.say(99, messages.RegionResetRequest("a person asked for it", forced=True))
    epoch = driven.machine.plane.epoch
    driven.say(2, messages.MemberWasReset(epoch))
    driven.say(2, messages.LeaveRequest())
    assert "m2" in driven.machine.plane.members and not driven.orders(2, messages.StopOrder)
    driven.say(1, messages.MemberWasReset(epoch))
    assert driven.stands(RegionState.RUNNING)
    driven.say(1, messages.CheckpointRequest())
    assert (
        driven.orders(1, messages.DrainOrder)[-1].cut.sequence == 9 and len(driven.orders(2, messages.DrainOrder)) == 1
    )
    driven.say(2, messages.CheckpointPublished(8))
    assert driven.orders(2, messages.StopOrder) and "m2" not in driven.machine.plane.members


@pytest.mark.parametrize("drained", [False, True])
def test_a_cut_continues_without_a_member_that_stays_to_publish_alone(drained: bool) -> None:
    driven = owing()
    driven.say(2, messages.AssignmentChanged(Identity("m2", 2), (P1,)))
    cut = driven.cut()
    if drained:
        driven.say(1, messages.MemberDrained(cut))
        driven.say(2, messages.MemberDrained(cut))
    driven.say(2, messages.LeaveRequest())
    assert driven.machine.plane.members["m2"].left
    again = driven.orders(1, messages.DrainOrder)[-1].cut
    assert again != cut and driven.orders(2, messages.DrainOrder)[-1].cut == cut, "the other is asked no more"
    driven.say(1, messages.MemberDrained(again))
    driven.say(1, messages.ContributionReport(again, driven.give("m1", span(P0, 80, 80))))
    assert len(driven.commits) == 1, "the next waits until it has published"
    driven.say(2, messages.CheckpointPublished(8))
    assert driven.commits[-1].manifest.members == ("m1",)


def test_a_member_that_closes_while_it_publishes_waits_for_stop() -> None:
    """With nothing in its hands, too: it may be the only one who can."""
    machine = MemberMachine("r", "q", UUID(int=1), "etl", "s")
    machine.step(does.ControlPlaneConnected())
    machine.step(does.ControlPlaneMessageReceived(messages.RegistrationAccepted(3, 5, 7, ("q",))))
    machine.step(does.ControlPlaneMessageReceived(messages.PublishOrder(3, 7, ())))
    machine.step(does.PublishEnded(7, "the disk is full"))
    assert not ends(machine, does.CloseRequested())
    assert not ends(
        machine, does.ControlPlaneMessageReceived(messages.ResetOrder(3, 6, 7, None)), does.ApplicationReset(6)
    )
    machine.step(does.PublishEnded(7, ""))
    assert ends(machine, does.ControlPlaneMessageReceived(messages.StopOrder(3, "", "")))


def ends(machine: MemberMachine, *events: does.Event) -> bool:
    """Whether a member ends over events."""
    return any(isinstance(effect, does.EndMember) for event in events for effect in machine.step(event))


def test_who_leaves_while_what_it_gave_is_committed_stays_until_that_is_published() -> None:
    driven = two("other")
    driven.say(2, messages.AssignmentChanged(Identity("m2", 2), (P1,)))
    cut = driven.cut()
    for connection in (1, 2):
        driven.say(connection, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("m1", span(P0, 70, 80))))
    driven.say(2, messages.ContributionReport(cut, driven.give("m2")))
    driven.say(2, messages.LeaveRequest())
    assert driven.stands(RegionState.COMMITTING)
    driven.do(plane_events.CommitEnded(cut))
    assert driven.orders(2, messages.PublishOrder)[-1].sequence == 8 and not driven.orders(2, messages.StopOrder)
    machine = contributed(CheckpointAttempt(8, 1), at(P0, 70))
    machine.begins.clear()
    assert not ends(machine, does.CloseRequested()), "nor does it end by itself"


def test_what_left_a_members_hands_is_not_among_the_ends_that_it_registers_with() -> None:
    """A control plane that took over believed that it held it, and gave it to nobody."""
    machine = contributed(CheckpointAttempt(8, 1), at(P0, 80))
    machine.step(does.PartitionsAssigned(Identity("q", 2), ()))
    known = replace(KNOWN, term=4, sequence=8, positions=(at(P0, 80), at(P1, 71)), contributors={"q": 5})
    driven = Driven(known)
    for report in says(machine, does.ControlPlaneConnected()):
        driven.say(1, report)
    assert driven.machine.plane.owner_of(P0) is None
    driven.join(2, "m2")
    assert driven.ask(2, P0) == (at(P0, 80),)
