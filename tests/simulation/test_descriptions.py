"""The checker of lists and descriptions: the group states that it derives."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from simulation.checkers.admin_checkers import DescriptionChecker
from simulation.checkers.group_checkers import Checkers
from simulation.checkers.property import ViolatedError
from simulation.harness.world import World

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects, GroupState, JoinGroupReply, ListGroupsReply, Now
from kohort.groups.events import (
    Client,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    SyncGroup,
    TimersDue,
    TopicImage,
)
from kohort.groups.machine import GroupMachine
from kohort.groups.records import OfferedProtocol

DELAY_MS = 3_000
PROTOCOLS = (OfferedProtocol("range", b""),)


class Trial:
    """A machine whose first join phase lasts, and the checker."""

    def __init__(self) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=DELAY_MS)
        self.checkers = Checkers(World(1), [], config, (DescriptionChecker,))
        self.machine = GroupMachine(config)
        self.checkers.on_replayed(self.machine)
        self.checkers.on_loaded(self.machine, self.machine.on_loaded(Now(0, 0), TopicImage()))
        client = Client("c", "/10.0.0.9")
        self.step(JoinGroup(1, "g", "", "m-1", client, "consumer", PROTOCOLS, 6_000, 6_000, requires_known_id=False))

    def step(self, event: Any, at_ms: int = 1_000) -> Effects:
        outcome = self.machine.step(event, Now(at_ms, at_ms))
        self.checkers.on_stepped(event, outcome, {})
        return outcome

    def listed(self, at_ms: int) -> list[GroupState]:
        (reply,) = self.step(ListGroups(9), at_ms).replies
        assert isinstance(reply.value, ListGroupsReply)
        return [group.state for group in reply.value.groups]


def test_a_first_join_phase_continues_when_all_have_left_again() -> None:
    trial = Trial()
    trial.step(LeaveGroup(2, "g", (LeavingMember("m-1"),)))
    assert trial.listed(1_000) == [GroupState.PREPARING_REBALANCE]


def test_a_join_phase_continues_without_members_while_one_with_a_new_id_is_awaited() -> None:
    """Kafka: ClassicGroup.hasAllMembersJoined asks for pending members too."""
    trial = Trial()
    later = 1_000 + DELAY_MS
    joined, *_ = trial.step(TimersDue(), later).replies
    assert isinstance(joined.value, JoinGroupReply)
    trial.step(SyncGroup(2, "g", joined.value.generation, "m-1", (("m-1", b""),)), later)
    assert trial.listed(later) == [GroupState.STABLE]
    joins = JoinGroup(3, "g", "", "m-2", Client("d", "/10.0.0.9"), "consumer", PROTOCOLS, 6_000, 6_000)
    (given,) = trial.step(replace(joins, requires_known_id=True), later).replies
    assert isinstance(given.value, JoinGroupReply)
    assert given.value.error is ErrorCode.MEMBER_ID_REQUIRED
    trial.step(replace(joins, request=4, new_member_id="m-3", requires_known_id=False), later)
    trial.step(LeaveGroup(5, "g", (LeavingMember("m-1"), LeavingMember("m-3"))), later)
    assert trial.listed(later) == [GroupState.PREPARING_REBALANCE]
    trial.step(LeaveGroup(6, "g", (LeavingMember(given.value.member_id),)), later)
    assert trial.listed(later) == [GroupState.EMPTY]


def test_a_group_with_members_is_not_listed_as_an_empty_one() -> None:
    trial = Trial()
    outcome = trial.machine.step(ListGroups(3), Now(1_000, 1_000))
    (reply,) = outcome.replies
    assert isinstance(reply.value, ListGroupsReply)
    outcome.replies[0] = reply._replace(
        value=ListGroupsReply(tuple(replace(group, state=GroupState.EMPTY) for group in reply.value.groups))
    )
    with pytest.raises(ViolatedError, match="there are"):
        trial.checkers.on_stepped(ListGroups(3), outcome, {})
