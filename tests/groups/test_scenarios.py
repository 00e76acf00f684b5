"""The scenarios that real groups have failed, by number, as far as they are the coordinator's alone."""

from __future__ import annotations

import pytest

from kohort.consumer_protocol import write_assignment
from kohort.errors import ErrorCode
from kohort.groups.events import ConnectionLost, DescribeGroups
from kohort.groups.records import GroupSaved
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, protocols


def state(trial: Trial) -> str:
    return str(trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0].state)


@pytest.mark.parametrize("requires_known_id", [False, True])
def test_scenario_1_the_reply_to_a_first_join_is_lost(requires_known_id: bool) -> None:
    """The client joins again without an id, on a new connection. The group waits for no unknown id."""
    trial = Trial()
    members, generation = trial.stable(1)
    trial.join(requires_known_id=requires_known_id, connection=1)
    trial.feed(ConnectionLost(1))
    request = trial.join(requires_known_id=requires_known_id, connection=2)
    if requires_known_id:
        request = trial.join(trial.reply(request).member_id, requires_known_id=True, connection=2)
    leader = trial.joined(members[0])
    assert leader.generation == trial.reply(request).generation
    assert len(leader.members) == 2
    assert leader.generation <= generation + 2


def test_scenario_1_a_connection_that_was_answered_drops_no_one() -> None:
    trial = Trial()
    members, generation = trial.stable(1, connection=5)
    trial.feed(ConnectionLost(5))
    assert trial.heartbeat(members[0], generation) is ErrorCode.NONE


def test_scenario_2_the_leader_joins_and_never_syncs() -> None:
    trial = Trial()
    members, generation = trial.stable(3, rebalance_timeout_ms=20_000)
    for member in members:
        trial.join(member, rebalance_timeout_ms=20_000, protocols=protocols("range", topics=("u",)))
    leader, others = members[0], members[1:]
    waiting = [trial.sync(member, generation + 1) for member in others]
    for _ in range(4):
        for member in members:
            assert trial.heartbeat(member, generation + 1) is ErrorCode.NONE
        trial.pass_time(5_000)
    assert trial.heartbeat(leader, generation + 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [trial.reply(request).error for request in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    requests = [trial.join(member, rebalance_timeout_ms=20_000) for member in others]
    assert {trial.reply(request).generation for request in requests} == {generation + 2}
    assert len(trial.reply(requests[0]).members) == 2


@pytest.mark.parametrize("how", ["leaves", "dies", "is removed with a full group"])
def test_scenario_3_the_last_member_awaited_goes(how: str) -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    waiting = trial.join(members[0])
    assert trial.reply(waiting) is None
    if how == "leaves":
        trial.leave(members[1])
    elif how == "dies":
        trial.pass_time(10_000)
    else:
        trial.machine.context.config = type(trial.config)(initial_rebalance_delay_ms=0, group_max_size=1)
        assert trial.reply(trial.join(members[1])).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    reply = trial.reply(waiting)
    assert (reply.generation, len(reply.members)) == (generation + 1, 1)


def test_scenario_8_of_two_processes_with_one_instance_id_the_older_is_fenced() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i")
    waiting = trial.join("m1", instance_id="i", protocols=protocols("range", topics=("u",)))
    assert trial.reply(waiting).error is ErrorCode.NONE
    stuck = trial.sync("ghost", 2)
    assert trial.reply(stuck).error is ErrorCode.UNKNOWN_MEMBER_ID
    newer = trial.joined(instance_id="i")
    assert trial.heartbeat("m1", newer.generation, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert trial.heartbeat(newer.member_id, newer.generation, instance_id="i") is ErrorCode.NONE


def test_scenario_8_a_static_member_whose_join_reply_was_lost_never_fences_itself() -> None:
    trial = Trial(initial_rebalance_delay_ms=3_000)
    lost = trial.join(instance_id="i")
    again = trial.join(instance_id="i")
    assert trial.reply(lost).error is ErrorCode.FENCED_INSTANCE_ID
    trial.pass_time(3_000)
    reply = trial.reply(again)
    assert reply.error is ErrorCode.NONE
    assert len(reply.members) == 1
    assert trial.heartbeat(reply.member_id, 1, instance_id="i") is ErrorCode.NONE


def test_scenario_8_a_static_member_is_not_fenced_because_a_restart_forgot_its_newest_id() -> None:
    trial = Trial()
    members, generation = trial.stable(1, instance_id="i")
    trial.join()
    newest = trial.join(instance_id="i")
    reply = trial.reply(newest)
    assert reply.generation == generation + 1
    trial.restart()
    answer = trial.heartbeat(reply.member_id, reply.generation, instance_id="i")
    assert answer is ErrorCode.UNKNOWN_MEMBER_ID
    back = trial.join(instance_id="i")
    assert trial.heartbeat(members[0], generation, instance_id="i") in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    )
    assert trial.reply(back).error is ErrorCode.NONE


def test_scenario_9_a_static_join_while_the_group_syncs_begins_a_new_round() -> None:
    """Otherwise the leader's assignment would be for an id that no one has any more."""
    trial = Trial()
    trial.stable(1)
    request = trial.join(instance_id="i")
    trial.joined("m1")
    assert trial.reply(request).error is ErrorCode.NONE
    back = trial.join(instance_id="i")
    assert trial.reply(back) is None
    leader = trial.joined("m1")
    assert trial.reply(back).generation == leader.generation
    assert trial.reply(back).member_id in [member.member_id for member in leader.members]


def test_scenario_9_a_static_leader_that_restarts_learns_that_it_has_to_look_after_the_partitions() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i")
    reply = trial.joined(instance_id="i", can_skip_assignment=True)
    assert (reply.leader, reply.skip_assignment, len(reply.members)) == (reply.member_id, True, 1)
    assert trial.joined(reply.member_id, instance_id="i").generation == 2


def test_scenario_9_a_static_leader_that_was_away_while_partitions_were_added_assigns_anew() -> None:
    trial = Trial()
    trial.set_topics(t=2)
    trial.stable(1, instance_id="i")
    trial.set_topics(t=2, u=1)
    assert trial.joined(instance_id="i", can_skip_assignment=True).skip_assignment
    trial.set_topics(t=3, u=1)
    reply = trial.joined(instance_id="i", can_skip_assignment=True)
    assert (reply.generation, reply.skip_assignment, reply.leader) == (2, False, reply.member_id)


def test_scenario_9_the_coordinator_looks_for_a_static_leader_that_can_not_learn_that_it_leads() -> None:
    trial = Trial()
    trial.set_topics(t=2)
    trial.stable(1, instance_id="i")
    reply = trial.joined(instance_id="i")
    assert (reply.generation, reply.leader == reply.member_id) == (1, False)
    trial.set_topics(t=2, u=1)
    assert trial.heartbeat(reply.member_id, 1, instance_id="i") is ErrorCode.NONE
    trial.set_topics(t=3, u=1)
    assert trial.heartbeat(reply.member_id, 1, instance_id="i") is ErrorCode.REBALANCE_IN_PROGRESS
    again = trial.joined(reply.member_id, instance_id="i")
    assert (again.generation, again.leader) == (2, again.member_id)


def test_scenario_9_partitions_added_while_a_static_leader_hears_that_it_leads_are_found() -> None:
    """The leader compares the topics with those it sees then."""
    trial = Trial()
    trial.set_topics(t=2)
    trial.stable(1, instance_id="i")
    reply = trial.joined(instance_id="i", can_skip_assignment=True)
    assert reply.skip_assignment
    trial.set_topics(t=3)
    assert trial.heartbeat(reply.member_id, 1, instance_id="i") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_cooperative_static_member_replaced_before_it_joins_again_leaves_no_partition_to_nobody() -> None:
    """The member gave t-1 up in generation 2, to join again so that another gets it; its successor does not know."""
    trial = Trial()
    trial.set_topics(t=2)
    member = trial.joined(instance_id="i").member_id
    trial.sync(member, 1, {member: write_assignment(0, [TopicPartition("t", 0)])}, instance_id="i")
    request = trial.join(instance_id="i", can_skip_assignment=True)
    assert trial.reply(request).generation == 2
    assert not trial.reply(request).skip_assignment


def test_scenario_9_a_leader_that_knows_looks_after_the_topics_itself() -> None:
    trial = Trial()
    trial.set_topics(t=2)
    members, generation = trial.stable(1, instance_id="i")
    trial.set_topics(t=3)
    assert trial.heartbeat(members[0], generation, instance_id="i") is ErrorCode.NONE


@pytest.mark.parametrize(("assigned", "begins"), [((0, 1, 2), False), ((0, 1), True)])
def test_scenario_9_partitions_added_while_no_one_looked_are_found_after_a_restart(
    assigned: tuple[int, ...], begins: bool
) -> None:
    trial = Trial()
    trial.set_topics(t=3)
    leader = trial.joined(instance_id="i").member_id
    held = write_assignment(0, [TopicPartition("t", number) for number in assigned])
    trial.sync(leader, 1, {leader: held}, instance_id="i")
    trial.restart()
    expected = ErrorCode.REBALANCE_IN_PROGRESS if begins else ErrorCode.NONE
    assert trial.heartbeat(leader, 1, instance_id="i") is expected


def test_scenario_12_a_zombie_wakes_and_commits() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    for _ in range(3):
        trial.pass_time(4_000)
        trial.heartbeat(members[0], generation)
    trial.joined(members[0])
    assert trial.commit(5, members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.committed() == -1


def test_scenario_20_a_group_too_large_for_its_record_is_refused_at_the_join() -> None:
    trial = Trial(group_record_bytes_max=2_000)
    members, _ = trial.stable(10)
    refused = trial.reply(trial.join(protocols=(type(protocols("r")[0])("range", b"\0" * 2_000),)))
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert state(trial) == "Stable"
    assert len(members) == 10


def test_scenario_20_names_count_with_their_bytes() -> None:
    """The limit is one of bytes: 900 characters of three bytes each were taken for 900."""
    trial = Trial(group_record_bytes_max=2_000)
    client = type(trial.join_event().client)("日" * 900, "/127.0.0.1")
    assert trial.reply(trial.join(client=client)).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_scenario_20_an_assignment_too_large_is_refused_once_to_each_without_a_storm() -> None:
    trial = Trial(group_record_bytes_max=2_000)
    members, generation = trial.stable(2)
    for member in members:
        trial.join(member, protocols=protocols("range", topics=("u",)))
    saved = [record for record in trial.journal if isinstance(record, GroupSaved)]
    waiting = trial.sync(members[1], generation + 1)
    leader = trial.sync(members[0], generation + 1, {members[1]: b"\0" * 3_000})
    assert trial.reply(waiting).error is trial.reply(leader).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert trial.reply(trial.sync(members[1], generation + 1)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [record for record in trial.journal if isinstance(record, GroupSaved)] == saved
    assert trial.heartbeat(members[1], generation + 1) is ErrorCode.NONE


def test_scenario_20_five_thousand_members_with_long_ids_are_stable() -> None:
    trial = Trial(initial_rebalance_delay_ms=1_000)
    client = type(trial.join_event().client)("x" * 200, "/127.0.0.1")
    requests = [trial.join(client=client) for _ in range(5_000)]
    trial.pass_time(2_000)
    replies = [trial.reply(request) for request in requests]
    plan = {reply.member_id: b"\0" * 50 for reply in replies}
    for reply in replies:
        trial.sync(reply.member_id, 1, plan if reply.leader == reply.member_id else None)
    assert state(trial) == "Stable"
