"""Connections of static members, of classic members inside consumer groups, and of groups that change their kind."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.classic.members import ClassicMember
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import LogLine
from kohort.groups.events import Client, ConnectionLost
from tests.groups.harness import Trial, protocols
from tests.groups.test_conversion import make_trial, offer, plan

LEASE_MS = 5_000
SESSION_MS = 10_000
"""Of classic members, as the trial's joins ask for it."""


def lost(connection: int, process: str = "") -> ConnectionLost:
    return ConnectionLost(connection, noticed=True, lease_ms=LEASE_MS, ended=process)


def classic_member(trial: Trial, member: str) -> ClassicMember:
    return trial.classic_group().members[member]


def is_member(trial: Trial, member: str) -> bool:
    group = trial.machine.context.ledger.groups["g"]
    return member in {member_id for member_id, _, _ in group.membership.member_connections()}


def test_a_static_member_that_took_its_predecessors_place_is_bound_to_its_connection() -> None:
    trial = Trial()
    first = trial.joined(instance_id="i", connection=1)
    trial.sync(first.member_id, 1, {first.member_id: b"x"}, instance_id="i", connection=1)
    second = trial.joined(instance_id="i", connection=2)
    assert set(trial.machine.context.connections) == {2}
    trial.feed(lost(1))
    assert not classic_member(trial, second.member_id).is_gone
    for _ in range(3):
        trial.pass_time(3_000)
        assert trial.heartbeat(second.member_id, 1, instance_id="i", connection=2) is ErrorCode.NONE
    trial.feed(lost(2))
    assert classic_member(trial, second.member_id).is_gone, "nobody waits for it to be told of a rebalance"
    trial.pass_time(SESSION_MS - 1)
    assert is_member(trial, second.member_id), "it has its session in any case"


def test_a_new_static_member_is_bound_to_its_connection() -> None:
    trial = Trial()
    first = trial.joined(instance_id="i", connection=1)
    assert set(trial.machine.context.connections) == {1}
    trial.feed(lost(1))
    assert classic_member(trial, first.member_id).is_gone


@pytest.mark.parametrize("ends", ["it comes back on another connection", "it never comes"])
def test_the_connection_of_an_id_that_was_given_out_is_forgotten(ends: str) -> None:
    trial = Trial()
    given = trial.reply(trial.join(requires_known_id=True, connection=1))
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    if ends == "it never comes":
        trial.pass_time(SESSION_MS)
        assert not trial.machine.context.connections
    else:
        trial.join(given.member_id, connection=2)
        assert set(trial.machine.context.connections) == {2}


def mixed(instance: str | None = None, process: str = "") -> tuple[Trial, str, int]:
    """A consumer group: a member on connection 1, a settled classic one on connection 2; the latter's generation."""
    trial = make_trial()
    trial.beat("new", connection=1)
    client = Client("client", "/127.0.0.1", process)
    joined = trial.joined(protocols=offer(), instance_id=instance, connection=2, client=client)
    return trial, joined.member_id, joined.generation


def test_a_classic_member_of_a_consumer_group_is_evicted_after_its_lease() -> None:
    trial, member, generation = mixed()
    trial.pass_time(1_000)
    assert trial.heartbeat(member, generation, connection=2) is ErrorCode.NONE
    trial.pass_time(500)
    trial.feed(lost(2))
    trial.pass_time(LEASE_MS - 501)
    assert is_member(trial, member)
    trial.pass_time(1)
    assert not is_member(trial, member)
    assert trial.heartbeat(member, generation, connection=3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_one_that_keeps_no_lease_is_evicted_after_a_third_of_its_session_and_a_little() -> None:
    trial, member, _ = mixed()
    trial.feed(ConnectionLost(2, noticed=True))
    grace_ms = SESSION_MS // 3 * 5 // 4 + 250
    trial.pass_time(grace_ms - 1)
    assert is_member(trial, member)
    trial.pass_time(1)
    assert not is_member(trial, member)


def test_one_whose_process_ended_is_evicted_at_once() -> None:
    trial, member, _ = mixed(process="p1")
    trial.feed(lost(2, "p1"))
    trial.pass_time(0)
    assert not is_member(trial, member)


def test_unnoticed_and_static_members_keep_their_session() -> None:
    for instance, event in ((None, ConnectionLost(2)), ("i", lost(2))):
        trial, member, _ = mixed(instance)
        trial.feed(event)
        trial.pass_time(SESSION_MS - 1)
        assert is_member(trial, member)
        trial.pass_time(1)
        assert not is_member(trial, member)


@pytest.mark.parametrize("how", ["heartbeat", "join", "sync", "commit"])
def test_whatever_it_says_in_time_cancels_that(how: str) -> None:
    trial, member, generation = mixed()
    trial.feed(lost(2))
    trial.pass_time(LEASE_MS - 1)
    answers: dict[str, Any] = {
        "heartbeat": lambda: trial.heartbeat(member, generation, connection=3),
        "join": lambda: trial.reply(trial.join(member, protocols=offer(), connection=3)).error,
        "sync": lambda: trial.reply(trial.sync(member, generation, connection=3)).error,
        "commit": lambda: trial.commit(7, member, generation),
    }
    assert answers[how]() is ErrorCode.NONE
    trial.pass_time(SESSION_MS - 1)
    assert is_member(trial, member)


def test_a_join_that_waits_on_a_lost_connection_gives_no_new_session() -> None:
    trial, member, _ = mixed()
    trial.works_at_once = False
    trial.beat("newer", connection=4)
    waiting = trial.join(member, protocols=offer(), connection=2)
    trial.pass_time(1_000)
    trial.feed(lost(2))
    trial.do_work()
    assert trial.reply(waiting) is not None
    trial.pass_time(LEASE_MS - 1_000)
    assert not is_member(trial, member)


def test_a_classic_member_whose_id_is_in_no_reply_yet_goes_with_its_connection() -> None:
    trial = make_trial()
    trial.beat("new", connection=1)
    trial.works_at_once = False
    waiting = trial.join(protocols=offer(), connection=2)
    assert trial.reply(waiting) is None
    trial.feed(ConnectionLost(2))
    assert trial.reply(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(trial.consumer_group().members) == {"new"}


def classic(trial: Trial, connection: int, process: str = "") -> str:
    """A stable classic group of one member."""
    client = Client("client", "/127.0.0.1", process)
    reply = trial.joined(protocols=offer(), connection=connection, client=client)
    trial.sync(reply.member_id, reply.generation, {reply.member_id: plan(0, 1, 2, 3)}, connection=connection)
    return reply.member_id


@pytest.mark.parametrize("process", ["", "p1"])
def test_a_group_that_becomes_a_consumer_group_knows_where_its_classic_members_are(process: str) -> None:
    trial = make_trial()
    member = classic(trial, 2, process)
    trial.beat("new", connection=1)
    trial.feed(lost(2, process))
    trial.pass_time(0 if process else LEASE_MS)
    assert not is_member(trial, member)


@pytest.mark.parametrize("process", ["", "p1"])
def test_a_group_that_becomes_classic_knows_where_its_members_are(process: str) -> None:
    trial, member, _ = mixed(process=process)
    trial.beat("new", -1, connection=1)
    assert trial.machine.context.ledger.groups["g"].membership_as(ConsumerGroup) is None
    trial.feed(lost(2, process))
    trial.pass_time(0 if process else LEASE_MS)
    assert not is_member(trial, member)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_conversion_gives_no_new_session_to_who_is_lost(way: str) -> None:
    if way == "up":
        trial = make_trial()
        member = classic(trial, 2)
    else:
        trial, member, _ = mixed()
    trial.feed(lost(2))
    trial.pass_time(2_000)
    trial.beat("new", 0 if way == "up" else -1, connection=1)
    assert is_member(trial, member)
    trial.pass_time(LEASE_MS - 2_001)
    assert is_member(trial, member)
    trial.pass_time(1)
    assert not is_member(trial, member)


def test_what_a_member_was_to_do_in_one_protocol_is_not_expected_of_it_in_the_other() -> None:
    trial, member, generation = mixed()
    trial.beat("newer", connection=4)
    assert trial.heartbeat(member, generation, connection=2) is ErrorCode.REBALANCE_IN_PROGRESS
    epoch = trial.beat(member, generation, connection=2).member_epoch
    for _ in range(4):
        trial.pass_time(20_000)
        reply = trial.beat(member, epoch, connection=2)
        assert reply.error is ErrorCode.NONE, "it speaks the consumer protocol now and has no JoinGroup to send"
        epoch = reply.member_epoch


def test_held_heartbeats_of_a_static_member_end_with_its_connection() -> None:
    trial = Trial()
    first = trial.joined(instance_id="i", connection=1)
    trial.sync(first.member_id, 1, {first.member_id: b"x"}, instance_id="i", connection=1)
    member = trial.joined(instance_id="i", protocols=protocols("range"), connection=2).member_id
    for _ in range(3):
        assert trial.heartbeat(member, 1, instance_id="i", connection=2) is ErrorCode.NONE
        trial.pass_time(2_000)
    with pytest.raises(AttributeError):  # no answer: it is held
        trial.heartbeat(member, 1, instance_id="i", connection=2, delay_ms=4_000)
    assert trial.machine.context.long_polls
    trial.feed(ConnectionLost(2))
    assert not trial.machine.context.long_polls


def test_the_log_tells_when_the_connection_ended_though_the_group_has_changed_its_protocol_since() -> None:
    trial = make_trial()
    member = classic(trial, 1)
    trial.feed(lost(1))
    trial.pass_time(1_000)
    trial.beat("new", connection=2)
    trial.pass_time(LEASE_MS - 1_000)
    texts = [
        note.text
        for note in trial.notes
        if isinstance(note, LogLine) and f"member {member} evicted: did not reconnect" in note.text
    ]
    assert texts and all("connection ended 5000 ms ago" in text for text in texts)
