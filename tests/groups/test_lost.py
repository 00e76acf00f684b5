"""Crashes noticed by the closed connection: the lease, or a grace learned from the heartbeats, and what cancels it."""

from __future__ import annotations

import re

import pytest

from kohort.errors import ErrorCode
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import LogLine
from kohort.groups.events import Client, ConnectionLost
from tests.groups.harness import Trial, protocols
from tests.groups.test_conversion import make_classic, make_trial


def classic(interval_ms: int = 3_000) -> tuple[Trial, list[str], int]:
    """Two stable members on connections 1 and 2, which have been heard at this interval."""
    trial = Trial()
    members, generation = trial.stable(2)
    for _ in range(3):
        beat_both(trial, members, generation)
        trial.pass_time(interval_ms)
    beat_both(trial, members, generation)
    return trial, members, generation


def beat_both(trial: Trial, members: list[str], generation: int) -> None:
    for number, member in enumerate(members, 1):
        assert trial.heartbeat(member, generation, connection=number) is ErrorCode.NONE


def test_a_member_whose_connection_ended_is_evicted_after_its_grace() -> None:
    trial, members, generation = classic()
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(3_999)
    assert trial.heartbeat(members[0], generation, connection=1) is ErrorCode.NONE
    trial.pass_time(1)
    assert trial.heartbeat(members[0], generation, connection=1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_grace_follows_the_members_own_interval() -> None:
    trial, members, generation = classic(1_000)
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(1_500)
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_unnoticed_a_lost_connection_changes_nothing() -> None:
    trial, members, generation = classic()
    trial.feed(ConnectionLost(2))
    trial.pass_time(9_999)
    assert trial.heartbeat(members[1], generation, connection=9) is ErrorCode.NONE


@pytest.mark.parametrize("how", ["heartbeat", "join", "sync", "commit"])
def test_whatever_a_member_says_within_its_grace_cancels_it(how: str) -> None:
    trial, members, generation = classic()
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(3_000)
    if how == "heartbeat":
        assert trial.heartbeat(members[1], generation, connection=3) is ErrorCode.NONE
    elif how == "commit":
        assert trial.commit(7, members[1], generation) is ErrorCode.NONE
    elif how == "join":
        assert trial.reply(trial.join(members[1], connection=3)).error is ErrorCode.NONE
    else:
        assert trial.reply(trial.sync(members[1], generation, connection=3)).error is ErrorCode.NONE
    trial.pass_time(6_900)
    assert trial.heartbeat(members[1], generation, connection=3) is ErrorCode.NONE


def test_the_end_of_an_earlier_connection_is_no_hint() -> None:
    trial, members, generation = classic()
    assert trial.heartbeat(members[1], generation, connection=3) is ErrorCode.NONE
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(9_000)
    assert trial.heartbeat(members[1], generation, connection=3) is ErrorCode.NONE


def test_a_static_member_keeps_its_session() -> None:
    trial = Trial()
    reply = trial.joined(instance_id="i", connection=4)
    trial.sync(reply.member_id, 1, {reply.member_id: b"x"}, instance_id="i", connection=4)
    trial.feed(ConnectionLost(4, noticed=True))
    trial.pass_time(9_999)
    assert trial.heartbeat(reply.member_id, 1, instance_id="i", connection=5) is ErrorCode.NONE


def test_a_join_phase_does_not_wait_for_the_session_of_who_crashed() -> None:
    trial, members, _ = classic()
    rejoined = trial.join(members[0], protocols=protocols("range", topics=("u",)), connection=1)
    assert trial.reply(rejoined) is None
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(4_000)
    assert trial.reply(rejoined).error is ErrorCode.NONE


def test_who_crashed_while_it_waited_on_its_join_is_evicted_too() -> None:
    trial = Trial()
    members, _ = trial.stable(2)
    waiting = trial.join(members[0], connection=1)
    assert trial.reply(waiting) is None
    trial.feed(ConnectionLost(1, noticed=True))
    trial.pass_time(5_000)
    assert trial.reply(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(trial.joined(members[1]).members) == 1


def test_connections_are_forgotten_with_their_members() -> None:
    trial, members, generation = classic()
    context = trial.machine.context
    assert set(context.connections) == {1, 2}
    trial.leave(members[1])
    assert set(context.connections) == {1}
    assert trial.heartbeat(members[0], generation, connection=8) is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(context.connections) == {8}
    trial.feed(ConnectionLost(8, noticed=True))
    assert not context.connections


def test_a_consumer_member_is_evicted_after_the_interval_that_it_got() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1).member_epoch
    assert trial.beat("a", epoch, connection=1).heartbeat_interval_ms == 5_000
    trial.feed(ConnectionLost(1, noticed=True))
    trial.pass_time(6_499)
    assert "a" in trial.consumer_group().members
    trial.pass_time(1)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_consumer_member_that_is_back_in_time_stays() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1).member_epoch
    trial.beat("a", epoch, connection=1)
    trial.feed(ConnectionLost(1, noticed=True))
    trial.pass_time(6_000)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.NONE
    trial.pass_time(44_000)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.NONE


def test_a_held_heartbeat_on_a_lost_connection_does_not_prolong_the_session() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1).member_epoch
    trial.beat("a", epoch, connection=1)
    assert trial.beat("a", epoch, connection=1, delay_ms=4_000) is None
    trial.feed(ConnectionLost(1, noticed=True))
    assert not trial.machine.context.long_polls
    trial.pass_time(6_500)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.UNKNOWN_MEMBER_ID


LEASE_MS = 5_000


def lost(connection: int) -> ConnectionLost:
    return ConnectionLost(connection, noticed=True, lease_ms=LEASE_MS)


@pytest.mark.parametrize(("silent_ms", "grace_ms"), [(0, 5_000), (1_200, 3_800), (3_900, 1_250), (7_000, 1_250)])
def test_a_lease_runs_since_the_member_was_heard_and_leaves_time_to_rejoin(silent_ms: int, grace_ms: int) -> None:
    trial, members, generation = classic()
    trial.pass_time(silent_ms)
    trial.feed(lost(2))
    trial.pass_time(grace_ms - 1)
    assert members[1] in trial.classic_group().members
    trial.pass_time(1)
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lease_runs_since_a_sync_or_join_was_answered_too() -> None:
    trial, members, generation = classic()
    trial.pass_time(4_000)
    assert trial.reply(trial.sync(members[1], generation, connection=2)).error is ErrorCode.NONE
    trial.feed(lost(2))
    trial.pass_time(4_999)
    assert members[1] in trial.classic_group().members
    trial.pass_time(1)
    assert members[1] not in trial.classic_group().members


def test_a_lease_does_not_prolong_a_session() -> None:
    trial, members, generation = classic()
    trial.pass_time(9_000)
    trial.feed(ConnectionLost(2, noticed=True, lease_ms=60_000))
    trial.pass_time(999)
    assert members[1] in trial.classic_group().members
    trial.pass_time(1)
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lease_of_a_consumer_member_runs_since_its_last_heartbeat_held_or_not() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1).member_epoch
    trial.beat("a", epoch, connection=1)
    trial.pass_time(2_000)
    assert trial.beat("a", epoch, connection=1, delay_ms=1_800) is None
    trial.pass_time(1_000)
    trial.feed(lost(1))
    trial.pass_time(3_999)
    assert "a" in trial.consumer_group().members
    trial.pass_time(1)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.UNKNOWN_MEMBER_ID


def ended(connection: int, process: str) -> ConnectionLost:
    return ConnectionLost(connection, noticed=True, lease_ms=LEASE_MS, ended=process)


def of_process(name: str) -> Client:
    return Client("client", "/127.0.0.1", name)


def test_a_classic_member_whose_process_ended_is_evicted_at_once() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1, connection=1, client=of_process("p1"))
    assert trial.heartbeat(member, generation, connection=1) is ErrorCode.NONE
    trial.feed(ended(1, "p1"))
    trial.pass_time(0)
    assert trial.heartbeat(member, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_consumer_member_whose_process_ended_is_evicted_at_once_though_its_heartbeat_is_held() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1, client=of_process("p1")).member_epoch
    trial.beat("a", epoch, connection=1)
    assert trial.beat("a", epoch, connection=1, delay_ms=1_800) is None
    trial.feed(ended(1, "p1"))
    trial.pass_time(0)
    assert trial.beat("a", epoch, connection=2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_outlives_a_process_that_only_spoke_for_it() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1, connection=1, client=of_process("p1"))
    assert trial.heartbeat(member, generation, connection=2) is ErrorCode.NONE
    trial.feed(ended(2, "p2"))
    trial.pass_time(LEASE_MS - 1)
    assert trial.heartbeat(member, generation, connection=1) is ErrorCode.NONE


def test_a_consumer_member_outlives_a_process_that_only_spoke_for_it() -> None:
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", connection=1, client=of_process("p1")).member_epoch
    trial.beat("a", epoch, connection=2, client=of_process("p2"))
    trial.feed(ended(2, "p2"))
    trial.pass_time(LEASE_MS - 1)
    assert trial.beat("a", epoch, connection=1).error is ErrorCode.NONE


def test_a_member_that_is_heard_on_another_connection_outlives_the_end_of_its_old_one() -> None:
    trial = Trial()
    (member,), generation = trial.stable(1, connection=1, client=of_process("p1"))
    assert trial.heartbeat(member, generation, connection=3) is ErrorCode.NONE
    trial.feed(ended(1, "p1"))
    trial.pass_time(0)
    assert trial.heartbeat(member, generation, connection=3) is ErrorCode.NONE


def test_a_member_without_an_id_yet_that_goes_turns_its_group_classic_again() -> None:
    trial = make_trial()
    member, generation = make_classic(trial)
    trial.works_at_once = False
    assert trial.beat("", connection=3) is None
    trial.feed(lost(3))
    assert trial.machine.context.ledger.groups["g"].membership_as(ConsumerGroup) is None
    assert trial.heartbeat(member, generation + 1, connection=1) is ErrorCode.REBALANCE_IN_PROGRESS


def log_lines(trial: Trial) -> list[str]:
    return [note.text for note in trial.notes if isinstance(note, LogLine) and note.text.startswith("member ")]


def test_the_log_tells_why_a_member_was_evicted() -> None:
    """The line names the member, its last request and its connection: a dead member differs from a cut-off one."""
    trial = make_trial()
    for number, member in enumerate(("silent", "cut-off"), 1):
        trial.beat(member, connection=number)
    trial.pass_time(40_000)
    trial.feed(ConnectionLost(2, noticed=True, lease_ms=5_000))
    trial.pass_time(5_000)
    who = "client client at /127.0.0.1"
    assert (
        f"member cut-off evicted: did not reconnect after its connection ended "
        f"({who}, heard 41250 ms ago, connection ended 1250 ms ago)" in log_lines(trial)
    )
    assert (
        f"member silent evicted: session timed out after 45000 ms ({who}, heard 45000 ms ago, connection stands)"
        in log_lines(trial)
    )


def test_the_log_tells_of_a_member_that_is_fenced_by_its_epoch_once() -> None:
    trial = make_trial()
    trial.beat("a", connection=1)
    for _ in range(3):
        assert trial.beat("a", 9, connection=1).error is ErrorCode.FENCED_MEMBER_EPOCH
    trial.beat("a", 2, connection=1)
    assert trial.beat("a", 9, connection=1).error is ErrorCode.FENCED_MEMBER_EPOCH
    fenced = [text for text in log_lines(trial) if " fenced: " in text]
    assert len(fenced) == 2 and fenced[0].startswith(
        "member a fenced: it sent epoch 9, its epoch is 2, the previous one was 0 ("
    )


def test_the_log_tells_why_a_classic_member_was_evicted() -> None:
    trial, members, _ = classic()
    trial.feed(ConnectionLost(2, noticed=True))
    trial.pass_time(20_000)
    assert any(
        text.startswith(f"member {members[1]} evicted: did not reconnect after its connection ended (client ")
        and re.search(r"connection ended \d+ ms ago\)$", text)
        for text in log_lines(trial)
    )
    assert any(
        f"member {members[0]} evicted: session timed out after " in text and text.endswith("connection stands)")
        for text in log_lines(trial)
    )


def test_a_new_member_that_is_back_on_another_connection_waits_for_its_first_round() -> None:
    """The member was heard again, so it has as long as any new one: its session begins with its first generation."""
    trial = Trial(initial_rebalance_delay_ms=25_000)
    asked = trial.reply(trial.join(requires_known_id=True, connection=1))
    assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
    trial.join(asked.member_id, requires_known_id=True, connection=1)
    trial.feed(ConnectionLost(1, noticed=True, lease_ms=5_000))
    again = trial.join(asked.member_id, requires_known_id=True, connection=2)
    trial.pass_time(25_000)
    assert trial.reply(again).error is ErrorCode.NONE


@pytest.mark.parametrize("state", ["stable", "waiting for the assignment"])
def test_the_end_of_a_client_that_never_joined_with_its_new_id_disturbs_nobody(state: str) -> None:
    """A client that is told its id (KIP-394) and dies before it joins is no member: the group has nothing to divide."""
    trial = Trial()
    if state == "stable":
        (member,), generation = trial.stable(1)
    else:
        joined = trial.joined()
        member, generation = joined.member_id, joined.generation
    asked = trial.reply(trial.join(requires_known_id=True, connection=7))
    assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
    trial.feed(ConnectionLost(7, noticed=True))
    assert trial.heartbeat(member, generation) is ErrorCode.NONE
    assert trial.reply(trial.sync(member, generation, {member: b"all"})).error is ErrorCode.NONE
    assert not trial.classic_group().pending
    late = trial.reply(trial.join(asked.member_id, requires_known_id=True, connection=8))
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID, "its client joins anew"


def test_a_join_phase_ends_without_a_client_that_never_joined_with_its_new_id() -> None:
    trial = Trial()
    (member,), _ = trial.stable(1)
    trial.join(requires_known_id=True, connection=7)
    again = trial.join(member)
    assert trial.reply(again) is None
    trial.feed(ConnectionLost(7, noticed=True))
    assert trial.reply(again).generation == 2
