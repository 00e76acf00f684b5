"""Every way into a group asks `groups.admission`: a member that passes it by fails these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulation.harness.plan import Draft, PushDraft
from simulation.run import Run

from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.effects import GroupState
from kohort.groups.events import ConsumerGroupHeartbeat, JoinGroup, RegisterConsumer
from kohort.groups.group import Group
from kohort.groups.machine import PROTOCOLS, GroupMachine
from kohort.groups.push.group import PushGroup
from kohort.groups.table import Trigger
from tests.groups.harness import Trial
from tests.groups.push_harness import PushTrial

RUNS = 12
WAYS_IN = {JoinGroup, ConsumerGroupHeartbeat, RegisterConsumer}


def members_of(group: Group | None) -> set[str]:
    """Return the ids of a group's members."""
    membership = None if group is None else group.membership
    assert membership is None or isinstance(membership, ClassicGroup | ConsumerGroup | PushGroup)
    return set() if membership is None else set(membership.members)


def test_tables_have_no_other_way_into_an_empty_group() -> None:
    ways = {
        trigger for kind in PROTOCOLS for trigger, reactions in kind.table.items() if reactions[GroupState.EMPTY].to
    }
    assert ways == WAYS_IN


def no_place(limit: int, taken: int, *, has_place: bool = False) -> ErrorCode:
    """Refuse every member, also those with a place."""
    return ErrorCode.GROUP_MAX_SIZE_REACHED


def classic_into_stable(trial: Trial) -> Any:
    trial.stable(2)
    return trial.join


def static_into_stable(trial: Trial) -> Any:
    trial.stable(2)
    return lambda: trial.join(instance_id="i")


def classic_with_a_given_id(trial: Trial) -> Any:
    trial.stable(1)
    given = trial.reply(trial.join(requires_known_id=True)).member_id
    return lambda: trial.join(given)


def consumer_into_missing(trial: Trial) -> Any:
    return lambda: trial.beat("c")


def consumer_into_consumer(trial: Trial) -> Any:
    trial.beat("a")
    return lambda: trial.beat("c")


def consumer_into_classic(trial: Trial) -> Any:
    trial.stable(1)
    return lambda: trial.beat("c")


def classic_into_consumer(trial: Trial) -> Any:
    trial.beat("a")
    return trial.join


def static_into_consumer(trial: Trial) -> Any:
    trial.beat("a")
    return lambda: trial.join(instance_id="i")


def classic_into_missing_group(trial: Trial) -> Any:
    return trial.join


@pytest.mark.parametrize(
    "way",
    [
        classic_into_missing_group,
        classic_into_stable,
        static_into_stable,
        classic_with_a_given_id,
        consumer_into_missing,
        consumer_into_consumer,
        consumer_into_classic,
        classic_into_consumer,
        static_into_consumer,
    ],
)
def test_no_member_joins_a_group_without_a_place(
    way: Callable[[Trial], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(consumer_migration_policy="bidirectional")
    trial.set_topics(t=2)
    join = way(trial)
    groups = trial.machine.context.ledger.groups
    before = members_of(groups.get("g"))
    monkeypatch.setattr(admission, "group_full_error", no_place)
    join()
    assert members_of(groups.get("g")) <= before


def test_no_push_consumer_registers_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = PushTrial()
    trial.set_topics(t=2)
    trial.consumer("a")
    monkeypatch.setattr(admission, "group_full_error", no_place)
    assert trial.consumer("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert trial.consumer("c", group_id="other").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    groups = trial.machine.context.ledger.groups
    assert members_of(groups["g"]) == {"a"}
    assert members_of(groups.get("other")) == set()


class WatchedContext(Context):
    """The state of a shard, which notes every group that has more members after an event than admission let in."""

    passed_by: list[str]
    places: list[ErrorCode]

    def handle_event(self, group: Group, trigger: Trigger, *arguments: Any) -> None:
        """Let a group handle an event, and count its members."""
        before, asked = len(members_of(group)), len(self.places)
        super().handle_event(group, trigger, *arguments)
        came = len(members_of(group)) - before
        if came > self.places[asked:].count(ErrorCode.NONE):
            self.passed_by.append(f"{group.group_id}: {came} by {trigger}")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[ErrorCode]:
    """The verdicts of `group_full_error`, as they are given."""
    given: list[ErrorCode] = []
    real = admission.group_full_error

    def noted(limit: int, taken: int, *, has_place: bool = False) -> ErrorCode:
        error = real(limit, taken, has_place=has_place)
        given.append(error)
        return error

    monkeypatch.setattr(admission, "group_full_error", noted)
    return given


@pytest.mark.parametrize("draft", [Draft, PushDraft])
def test_no_member_of_a_simulation_passes_admission_by(draft: type[Draft], places: list[ErrorCode]) -> None:
    passed_by: list[str] = []
    fields = {"passed_by": passed_by, "places": places}

    class Watched(GroupMachine):
        def __init__(self, config: GroupConfig) -> None:
            super().__init__(config)
            self.context.__class__ = type("Watching", (WatchedContext,), fields)

    for seed in range(RUNS):
        Run(draft(seed).plan(), Watched, (), shortest_ms=0).play()
    assert passed_by == []
    assert places.count(ErrorCode.NONE) > RUNS
