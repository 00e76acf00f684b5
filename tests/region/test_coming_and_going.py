"""Who comes back, leaves or is away: the control plane's machine with the member's own, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kohort.region import messages as told
from kohort.region.member import events as does
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import Identity
from kohort.region.plane import events as happens
from kohort.region.states import RegionState
from tests.region.test_plane import KNOWN, P0, Driven, at, two


def begun_by(order: told.Order) -> does.Begin:
    """How a member that has just started begins with an order."""
    machine = MemberMachine("r", "q", UUID(int=1), "etl", "s")
    machine.step(does.Connected())
    [begin] = [effect for effect in machine.step(does.Ordered(order)) if isinstance(effect, does.Begin)]
    return begin


@pytest.mark.parametrize("saved", [False, True])
def test_who_has_not_read_its_first_welcome_is_welcomed_again_with_its_state(saved: bool) -> None:
    """Its connection ended before its epoch was saved, or before it had read what it was told."""
    driven = Driven(replace(KNOWN, states={"q": b"what it has summed up"}, waiting={"q": 7}))
    driven.saves = saved
    driven.join(1, "q")
    driven.do(happens.Disconnected(1))
    if not saved:
        driven.do(happens.Saved(driven.machine.plane._tokens))
    driven.join(2, "q", incarnation=UUID(int=1))
    [order] = driven.orders(2, told.Welcome)
    assert begun_by(order).state == b"what it has summed up"
    assert driven.ask(2, P0) == (at(P0, 70),)


def says(machine: MemberMachine, *events: does.Event) -> list[told.Report]:
    """What a member says about events."""
    effects = [effect for event in events for effect in machine.step(event)]
    return [effect.report for effect in effects if isinstance(effect, does.Say)]


def test_who_leaves_while_its_starts_are_on_their_way_is_not_taken_for_dead() -> None:
    """It has read nothing of them, and ends at once: what it may have been given must leave its hands before."""
    driven = two()
    machine = MemberMachine("r", "m3", UUID(int=3), "etl", "s")
    for report in says(machine, does.Connected()):
        driven.say(3, report)
    driven.say(1, told.Moved(Identity("m1", 2), (P0,)))
    [welcome] = driven.orders(3, told.Welcome)
    for report in says(machine, does.Ordered(welcome), does.Assigned(Identity("m3", 2), (P0,))):
        driven.say(3, report)
    assert driven.orders(3, told.Starts)[-1].found == (at(P0, 70),), "on their way"
    for report in says(machine, does.Closing()):
        driven.say(3, report)
    assert "m3" not in driven.machine.plane.members and driven.machine.plane.holder_of(P0) is None
    driven.do(happens.Disconnected(3))
    driven.tick(10_000)
    assert driven.stands(RegionState.RUNNING), "nobody goes back"
