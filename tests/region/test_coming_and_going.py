"""Who comes back, leaves or is away: the control plane's machine with the member's own, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from tests.region.test_plane import KNOWN, P0, Driven, at

from kohort.region import messages as told
from kohort.region.member import events as does
from kohort.region.member.machine import MemberMachine
from kohort.region.plane import events as happens


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
