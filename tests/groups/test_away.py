"""Static members of consumer groups that left for a while (epoch -2): only a join moves them. Source: KIP-848."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.admission import LEFT_FOR_A_WHILE
from kohort.groups.consumer.members import CurrentAssignment
from kohort.groups.effects import DescribedConsumerGroup
from kohort.groups.events import ConnectionLost, ConsumerGroupDescribe, GroupSettings, ReleaseLongPolls, TimersDue
from tests.groups.harness import Trial, owned
from tests.groups.test_conversion import offer

SESSION_MS = 45_000
MAIN, ASIDE = 1, 2
"""Connections: a client sends its heartbeats on one and, as kohort's and others do, says goodbye on another."""


def make_trial(**config: Any) -> Trial:
    trial = Trial(**config)
    trial.set_topics(t=4)
    return trial


def enter(trial: Trial, member: str, instance: str | None = "i", connection: int = MAIN) -> int:
    """A member joins; its epoch."""
    reply = trial.beat(member, instance_id=instance, connection=connection)
    assert reply.error is ErrorCode.NONE
    return int(reply.member_epoch)


def hold(trial: Trial, member: str, epoch: int) -> int:
    """A heartbeat whose reply is held; its request."""
    event = trial.consumer_event(member, epoch, instance_id="i", delay_ms=4_500, short_interval=True, connection=MAIN)
    assert trial.ask(event) is None
    return event.request


def leave(trial: Trial, member: str, instance: str = "i") -> None:
    reply = trial.beat(member, LEFT_FOR_A_WHILE, instance_id=instance, connection=ASIDE)
    assert (reply.error, reply.member_epoch) == (ErrorCode.NONE, LEFT_FOR_A_WHILE)


def current_of(trial: Trial, member: str) -> CurrentAssignment:
    return trial.consumer_group().current_assignment(member)


def share(trial: Trial, member: str) -> list[int]:
    return sorted(number for _, number in current_of(trial, member).assigned)


def described(trial: Trial) -> DescribedConsumerGroup:
    group: DescribedConsumerGroup = trial.ask(ConsumerGroupDescribe(trial.request(), ("g",))).groups[0]
    return group


def the_hold_ends(trial: Trial, request: int) -> None:
    trial.pass_time(4_500)


def its_connection_ends(trial: Trial, request: int) -> None:
    trial.feed(ConnectionLost(MAIN, noticed=True, lease_ms=5_000))


def the_shell_asks_for_it(trial: Trial, request: int) -> None:
    trial.feed(ReleaseLongPolls((request,)))


def a_target_arrives(trial: Trial, request: int) -> None:
    enter(trial, "b", None, connection=3)


LATER = (the_hold_ends, its_connection_ends, the_shell_asks_for_it, a_target_arrives)


@pytest.mark.parametrize("what", LATER, ids=lambda what: what.__name__)
def test_a_member_that_left_while_a_heartbeat_was_held_stays_away(what: Callable[[Trial, int], None]) -> None:
    trial = make_trial()
    request = hold(trial, "a", enter(trial, "a"))
    leave(trial, "a")
    assert trial.reply(request).error is ErrorCode.FENCED_MEMBER_EPOCH, "as a heartbeat that comes now"
    what(trial, request)
    assert (current_of(trial, "a").member_epoch, share(trial, "a")) == (LEFT_FOR_A_WHILE, [0, 1, 2, 3])
    assert described(trial).state != "Stable"
    back = trial.beat("c", instance_id="i", connection=4)
    assert back.error is ErrorCode.NONE
    assert share(trial, "c"), "its successor has its place at once"


def test_what_it_has_is_its_own_for_the_rest_of_its_session() -> None:
    trial = make_trial()
    epoch = enter(trial, "a")
    trial.pass_time(10_000)
    hold(trial, "a", epoch)
    trial.pass_time(1_000)
    leave(trial, "a")
    trial.pass_time(SESSION_MS - 1_001)
    assert share(trial, "a") == [0, 1, 2, 3]
    trial.pass_time(1)
    assert described(trial).state == "Empty"


def test_a_member_that_left_before_there_was_a_target_for_it_stays_away() -> None:
    trial = make_trial()
    enter(trial, "a")
    trial.works_at_once = False
    first = trial.consumer_event("b", instance_id="j", connection=3)
    assert trial.ask(first) is None
    leave(trial, "b", "j")
    assert trial.reply(first.request).error is ErrorCode.FENCED_MEMBER_EPOCH
    trial.do_work()
    assert current_of(trial, "b").member_epoch == LEFT_FOR_A_WHILE


def test_revoked_partitions_are_free_at_once_and_the_member_is_not_late() -> None:
    trial = make_trial(notify_at_once="off")
    epoch = enter(trial, "a")
    second = enter(trial, "b", None, connection=3)
    trial.beat("a", epoch, instance_id="i", connection=MAIN)
    assert len(current_of(trial, "a").pending) == 2
    leave(trial, "a")
    assert len(trial.beat("b", second, connection=3).assignment[0].partitions) == 2
    trial.pass_time(44_000)
    trial.beat("b", epoch_of(trial), connection=3)
    assert trial.beat("c", instance_id="i", connection=4).error is ErrorCode.NONE


def epoch_of(trial: Trial) -> int:
    return described(trial).epoch


def test_member_may_rejoin_under_its_own_id_and_then_has_its_place_again() -> None:
    trial = make_trial()
    epoch = enter(trial, "a")
    leave(trial, "a")
    trial.works_at_once = False
    trial.set_topics(t=5)
    back = trial.consumer_event("a", instance_id="i", connection=4)
    assert trial.ask(back) is None, "there is no target yet"
    assert current_of(trial, "a").member_epoch == 0
    rival = trial.beat("c", instance_id="i", connection=5)
    assert rival.error is ErrorCode.UNRELEASED_INSTANCE_ID, "it is not away any more"
    trial.do_work()
    reply = trial.reply(back.request)
    assert (reply.error, reply.member_epoch) == (ErrorCode.NONE, epoch + 1)
    assert reply.assignment == owned("t", 0, 1, 2, 3, 4)


def test_its_heartbeats_are_refused_until_it_joins() -> None:
    trial = make_trial()
    epoch = enter(trial, "a")
    leave(trial, "a")
    for late in (epoch, 1):
        reply = trial.beat("a", late, instance_id="i", connection=MAIN)
        assert reply.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert current_of(trial, "a").member_epoch == LEFT_FOR_A_WHILE


def test_a_coordinator_that_starts_again_finds_it_away() -> None:
    trial = make_trial()
    hold(trial, "a", enter(trial, "a"))
    leave(trial, "a")
    trial.restart()
    trial.set_topics(t=4)
    trial.feed(TimersDue())
    assert (current_of(trial, "a").member_epoch, share(trial, "a")) == (LEFT_FOR_A_WHILE, [0, 1, 2, 3])
    trial.pass_time(SESSION_MS)
    assert described(trial).state == "Empty"


@pytest.mark.parametrize("own_ms", [20_000, 60_000])
def test_after_a_restart_it_is_away_for_its_groups_own_session(own_ms: int) -> None:
    trial = make_trial()
    enter(trial, "a")
    leave(trial, "a")
    trial.restart(settings={"g": GroupSettings(session_timeout_ms=own_ms)})
    trial.pass_time(own_ms - 1)
    assert share(trial, "a") == [0, 1, 2, 3]
    trial.pass_time(1)
    assert described(trial).state == "Empty"


def test_a_classic_member_may_take_its_place() -> None:
    trial = make_trial()
    hold(trial, "a", enter(trial, "a"))
    enter(trial, "b", None, connection=3)
    leave(trial, "a")
    joined = trial.joined(instance_id="i", protocols=offer(), connection=5)
    assert joined.generation == epoch_of(trial)


@pytest.mark.parametrize("speaks", ["classic", "consumer"])
def test_a_classic_member_that_left_by_the_other_protocol_waits_for_nothing(speaks: str) -> None:
    """Odd, but a member id and an instance id are all that a request has."""
    trial = make_trial()
    enter(trial, "b", None, connection=3)
    joined = trial.joined(instance_id="i", protocols=offer(), connection=MAIN)
    trial.works_at_once = False
    enter_event = trial.consumer_event("x", connection=6)
    trial.feed(enter_event)
    again = trial.join(joined.member_id, instance_id="i", protocols=offer(0), connection=MAIN)
    assert trial.reply(again) is None
    if speaks == "classic":
        leave(trial, joined.member_id)
        assert current_of(trial, joined.member_id).member_epoch == LEFT_FOR_A_WHILE
    else:
        reply = trial.beat(joined.member_id, joined.generation, instance_id="i", connection=MAIN)
        assert reply.error is ErrorCode.NONE
    assert trial.reply(again).error is ErrorCode.UNKNOWN_MEMBER_ID
    trial.do_work()
    trial.works_at_once = True
    trial.pass_time(9_999)  # of its session of 10 s
    if speaks == "classic":
        assert current_of(trial, joined.member_id).member_epoch == LEFT_FOR_A_WHILE
        assert trial.joined(joined.member_id, instance_id="i", protocols=offer(0, 1)).generation == epoch_of(trial)
    else:
        reply = trial.beat(joined.member_id, current_of(trial, joined.member_id).member_epoch, instance_id="i")
        assert reply.error is ErrorCode.NONE
