"""What the checker of lists and descriptions takes for a group's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.admin_checkers import DescriptionChecker
from simulation.checkers import Checkers
from simulation.property import ViolatedError
from simulation.world import World

from kohort.groups.config import GroupConfig
from kohort.groups.events import Client, JoinGroup, LeaveGroup, LeavingMember, ListGroups, TopicImage
from kohort.groups.machine import GroupMachine
from kohort.groups.outcome import GroupState, ListGroupsReply, Now, Outcome
from kohort.groups.records import ClassicProtocol

DELAY_MS = 3_000


class Trial:
    """A machine whose first join phase lasts, and the checker."""

    def __init__(self) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=DELAY_MS)
        self.checkers = Checkers(World(1), [], config, (DescriptionChecker,))
        self.machine = GroupMachine(config)
        self.checkers.on_replayed(self.machine)
        self.checkers.on_loaded(self.machine, self.machine.on_loaded(Now(0, 0), TopicImage()))
        client = Client("c", "/10.0.0.9")
        protocols = (ClassicProtocol("range", b""),)
        self.step(JoinGroup(1, "g", "", "m-1", client, "consumer", protocols, 6_000, 6_000, requires_known_id=False))

    def step(self, event: Any) -> Outcome:
        outcome = self.machine.step(event, Now(1_000, 1_000))
        self.checkers.on_stepped(event, outcome, {})
        return outcome


def test_a_first_join_phase_goes_on_when_all_have_left_again() -> None:
    trial = Trial()
    trial.step(LeaveGroup(2, "g", (LeavingMember("m-1"),)))
    (reply,) = trial.step(ListGroups(3)).replies
    assert isinstance(reply.value, ListGroupsReply)
    assert [group.state for group in reply.value.groups] == [GroupState.PREPARING_REBALANCE]


def test_a_group_with_members_is_not_listed_as_an_empty_one() -> None:
    trial = Trial()
    outcome = trial.machine.step(ListGroups(3), Now(1_000, 1_000))
    (reply,) = outcome.replies
    assert isinstance(reply.value, ListGroupsReply)
    outcome.replies[0] = reply._replace(
        value=ListGroupsReply(tuple(replace(one, state=GroupState.EMPTY) for one in reply.value.groups))
    )
    with pytest.raises(ViolatedError, match="there are"):
        trial.checkers.on_stepped(ListGroups(3), outcome, {})
