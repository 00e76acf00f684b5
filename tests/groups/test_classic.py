"""The classic protocol's requests, each with the answer Kafka's coordinator gives."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.effects import CoordinatorMeter, JoinedMember, JoinGroupReply, LeftMember, SyncGroupReply
from kohort.groups.events import ConnectionLost, DescribeGroups, LeaveGroup, LeavingMember, SyncGroup
from kohort.groups.records import GenerationStarted, GroupSaved
from tests.groups.harness import Trial, protocols, subscription


def state(trial: Trial, group_id: str = "g") -> str:
    reply = trial.ask(DescribeGroups(trial.request(), (group_id,)))
    return str(reply.groups[0].state)


def test_a_first_member_leads_generation_one() -> None:
    trial = Trial()
    reply = trial.joined()
    assert reply == JoinGroupReply(
        ErrorCode.NONE,
        member_id="m1",
        generation=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="m1",
        members=(JoinedMember("m1", None, subscription("t")),),
    )
    assert trial.outcome.records == [GenerationStarted("g", 1)] or GenerationStarted("g", 1) in trial.journal
    assert state(trial) == "CompletingRebalance"
    synced = trial.reply(trial.sync("m1", 1, {"m1": b"x", "stranger": b"y"}))
    assert synced == SyncGroupReply(ErrorCode.NONE, b"x", "consumer", "range")
    assert state(trial) == "Stable"
    saved = trial.journal[-1]
    assert isinstance(saved, GroupSaved)
    assert (saved.generation, saved.leader, saved.members[0].assignment) == (1, "m1", b"x")
    assert trial.counted(CoordinatorMeter.COMPLETED_REBALANCES) == 1


def test_followers_learn_the_leader_but_not_the_members() -> None:
    trial = Trial()
    trial.stable(1)
    request = trial.join()
    assert trial.reply(request) is None
    leader = trial.joined("m1")
    follower = trial.reply(request)
    assert len(leader.members) == 2
    assert (follower.members, follower.leader, follower.generation) == ((), "m1", 2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("sticky")}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "m1", "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_is_refused(change: dict[str, object], error: ErrorCode) -> None:
    trial = Trial()
    trial.stable(1)
    reply = trial.reply(trial.join(**change))
    assert reply == JoinGroupReply(error, member_id=change.get("member_id", ""))
    assert state(trial) == "Stable"


def test_a_dynamic_member_is_sent_back_for_its_id() -> None:
    trial = Trial()
    reply = trial.reply(trial.join(requires_known_id=True))
    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    assert trial.joined("m1", requires_known_id=True).generation == 1


def test_ids_that_are_given_out_and_not_used_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each JoinGroup without an id was kept for half an hour, with an id of 8,000 characters."""
    monkeypatch.setattr(admission, "GIVEN_ID_CHARS_MAX", 5)
    trial = Trial()
    members, _ = trial.stable(1)
    for _ in range(100):
        assert trial.reply(trial.join(requires_known_id=True)).error is ErrorCode.MEMBER_ID_REQUIRED
    group = trial.classic_group()
    assert list(group.pending) == ["m101"], "as long as two ids were"
    late = trial.reply(trial.join("m2", requires_known_id=True))
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID, "its client joins anew"
    newest = trial.join("m101", requires_known_id=True)
    trial.join(members[0])
    assert trial.reply(newest).error is ErrorCode.NONE
    assert not group.pending


def test_a_pending_member_is_awaited_until_its_session_ends() -> None:
    trial = Trial()
    trial.stable(1)
    trial.join(requires_known_id=True)
    first = trial.join("m1")
    assert trial.reply(first) is None
    trial.pass_time(9_999)
    assert trial.reply(first) is None
    trial.pass_time(1)
    assert trial.reply(first).generation == 2


def test_joins_that_arrive_in_one_moment_are_one_generation_without_an_initial_delay_too() -> None:
    """Apache Kafka's delay of nothing is a timer all the same, which goes off behind the requests that are there."""
    trial = Trial(initial_rebalance_delay_ms=0)
    events = [trial.join_event() for _ in range(5)]
    trial.feed_together(*events)
    replies = [trial.reply(event.request) for event in events]
    assert [(reply.error, reply.generation) for reply in replies] == [(ErrorCode.NONE, 1)] * 5
    assert [len(reply.members) for reply in replies] == [5, 0, 0, 0, 0]


def test_the_protocol_with_most_votes_among_the_common_ones_wins() -> None:
    trial = Trial(initial_rebalance_delay_ms=1)
    requests = [
        trial.join(protocols=protocols("sticky", "range", "a")),
        trial.join(protocols=protocols("b", "range", "sticky")),
        trial.join(protocols=protocols("range", "sticky")),
    ]
    trial.pass_time(5)
    assert {trial.reply(request).protocol_name for request in requests} == {"range"}


def test_a_rolling_upgrade_from_one_strategy_to_another() -> None:
    trial = Trial()
    trial.stable(2, protocols=protocols("range"))
    both = protocols("cooperative-sticky", "range")
    first = trial.join("m1", protocols=both)
    trial.join("m2")
    assert trial.reply(first).protocol_name == "range"
    trial.sync("m1", trial.reply(first).generation)
    first = trial.join("m1", protocols=both)
    trial.join("m2", protocols=both)
    assert trial.reply(first).protocol_name == "cooperative-sticky"


def test_an_unchanged_retry_gets_the_current_generation() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    reply = trial.joined(members[1])
    assert (reply.generation, reply.members, state(trial)) == (generation, (), "Stable")
    trial.join(members[0])
    assert state(trial) == "PreparingRebalance"


def test_an_unchanged_retry_while_syncing_tells_the_leader_the_members_again() -> None:
    trial = Trial()
    first = trial.joined()
    assert trial.joined("m1") == first


def test_a_changed_subscription_begins_a_round() -> None:
    trial = Trial()
    members, _ = trial.stable(2)
    trial.join(members[1], protocols=protocols("range", topics=("t", "u")))
    assert state(trial) == "PreparingRebalance"
    assert trial.heartbeat(members[0], 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_new_member_aborts_a_running_sync() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.join(members[1], protocols=protocols("range", topics=("u",)))
    waiting = trial.sync(members[1], generation + 1)
    assert trial.reply(waiting) is None
    trial.join()
    assert trial.reply(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member", "generation", "more", "error"),
    [
        ("m1", 2, {"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ("m1", 2, {"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ghost", 2, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("m1", 2, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m1", 2, {"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m1", 2, {"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_is_refused(member: str, generation: int, more: dict[str, str], error: ErrorCode) -> None:
    trial = Trial()
    trial.stable(2)
    assert trial.reply(trial.sync(member, generation, **more)).error is error


def test_a_sync_of_a_stable_group_repeats_the_assignment() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    assert trial.reply(trial.sync(members[1], generation)).assignment == b"a-m2"


@pytest.mark.parametrize(
    ("member", "generation", "more", "error"),
    [
        ("m1", 1, {}, ErrorCode.NONE),
        ("m1", 0, {}, ErrorCode.ILLEGAL_GENERATION),
        ("ghost", 1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 1, {"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 1, {"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ("m1", 1, {"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeats(member: str, generation: int, more: dict[str, str], error: ErrorCode) -> None:
    trial = Trial()
    trial.stable(1)
    assert trial.heartbeat(member, generation, **more) is error


def test_a_session_without_heartbeats_ends_and_a_heartbeat_starts_it_again() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    for _ in range(4):
        trial.pass_time(5_000)
        assert trial.heartbeat(members[0], generation) in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.joined(members[0]).generation == generation + 1


def test_a_member_that_waits_on_its_join_is_not_silent() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    waiting = trial.join(members[0])
    for _ in range(5):
        trial.pass_time(9_000)
        assert trial.heartbeat(members[1], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.reply(waiting) is None
    trial.join(members[1])
    assert trial.reply(waiting).generation == generation + 1


def test_who_does_not_rejoin_in_time_is_evicted() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    waiting = trial.join(members[0])
    for _ in range(12):
        trial.heartbeat(members[1], generation)
        trial.pass_time(5_000)
    reply = trial.reply(waiting)
    assert (reply.generation, len(reply.members)) == (generation + 1, 1)
    assert trial.heartbeat(members[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_leaves_an_empty_group_with_a_generation_of_its_own() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    assert trial.leave(members[0], reason="done") is ErrorCode.NONE
    saved = trial.journal[-1]
    assert saved == GroupSaved("g", "consumer", generation + 1, None, None, trial.wall_ms, ())
    assert state(trial) == "Empty"
    assert trial.joined(protocol_type="connect").generation == generation + 2


def test_several_members_leave_at_once() -> None:
    trial = Trial()
    members, generation = trial.stable(3)
    request = trial.request()
    gone = (LeavingMember("m1"), LeavingMember("ghost"), LeavingMember("m2", "i"), LeavingMember("", "i"))
    reply = trial.ask(LeaveGroup(request, "g", gone))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert reply.members == (
        LeftMember("m1", None, ErrorCode.NONE),
        LeftMember("ghost", None, unknown),
        LeftMember("m2", "i", unknown),
        LeftMember("", "i", unknown),
    )
    assert trial.heartbeat(members[1], generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_initial_delay_is_started_again_by_joiners_and_capped() -> None:
    trial = Trial(initial_rebalance_delay_ms=3_000)
    requests = [trial.join(rebalance_timeout_ms=10_000)]
    for _ in range(4):
        trial.pass_time(2_500)
        if trial.reply(requests[0]) is None:
            requests.append(trial.join(rebalance_timeout_ms=10_000))
    assert trial.reply(requests[0]).generation == 1
    assert len(trial.reply(requests[0]).members) == len(requests) == 4


def test_without_newcomers_one_delay_is_enough() -> None:
    trial = Trial(initial_rebalance_delay_ms=3_000)
    request = trial.join()
    trial.pass_time(2_999)
    assert trial.reply(request) is None
    trial.pass_time(1)
    assert trial.reply(request).generation == 1


def test_a_full_group_refuses_new_members() -> None:
    trial = Trial(group_max_size=2)
    trial.stable(2)
    reply = trial.reply(trial.join())
    assert reply == JoinGroupReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert state(trial) == "Stable"


def test_a_static_member_returns_without_a_round() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i")
    reply = trial.joined(instance_id="i", can_skip_assignment=True)
    assert (reply.generation, reply.leader, reply.skip_assignment) == (1, reply.member_id, True)
    assert [member.member_id for member in reply.members] == [reply.member_id]
    assert state(trial) == "Stable"
    assert trial.heartbeat("m1", 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert trial.heartbeat("m1", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.reply(trial.sync(reply.member_id, 1, instance_id="i")).assignment == b"a-m1"
    assert trial.commit(1, "m1", 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert trial.leave("m1", instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_of_an_old_client_does_not_learn_that_it_leads() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i")
    reply = trial.joined(instance_id="i")
    assert (reply.leader, reply.members) == ("m1", ())


def test_a_static_member_with_another_strategy_begins_a_round() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i", protocols=protocols("range", "sticky"))
    reply = trial.joined(instance_id="i", protocols=protocols("sticky"))
    assert (reply.generation, reply.protocol_name) == (2, "sticky")


def test_a_static_leader_that_rejoins_to_read_other_topics_is_soon_asked_to_assign_them() -> None:
    trial = Trial()
    trial.set_topics(t=1, u=1)
    trial.stable_with("i", t=1)
    reply = trial.joined(instance_id="i", protocols=protocols("range", topics=("t", "u")), can_skip_assignment=True)
    assert (reply.generation, reply.skip_assignment, state(trial)) == (1, True, "Stable"), "as Apache Kafka"
    beat = trial.heartbeat(reply.member_id, 1, instance_id="i")
    assert (beat, state(trial)) == (ErrorCode.REBALANCE_IN_PROGRESS, "PreparingRebalance")


@pytest.mark.parametrize("topics", [("t",), ("u", "t", "none")])
def test_a_static_member_that_rejoins_to_what_its_group_has_is_left_in_peace(topics: tuple[str, ...]) -> None:
    trial = Trial()
    trial.set_topics(t=1, u=1)
    trial.stable_with("i", t=1, u=1)
    reply = trial.joined(instance_id="i", protocols=protocols("range", topics=topics))
    assert trial.heartbeat(reply.member_id, 1, instance_id="i") is ErrorCode.NONE
    assert state(trial) == "Stable"


def test_a_round_completes_without_one_with_a_new_id_whom_the_full_group_refused() -> None:
    """As by the coordinator that Kafka had before 4.0, which tried to complete the round behind every JoinGroup."""
    trial = Trial(group_max_size=2)
    (member,), _ = trial.stable(1, requires_known_id=False)
    first, second, third = (trial.reply(trial.join(requires_known_id=True)).member_id for _ in range(3))
    waiting = [trial.join(first), trial.join(second)]
    refused = JoinGroupReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert trial.reply(trial.join(member)) == refused
    assert [trial.reply(request) for request in waiting] == [None, None]
    assert trial.reply(trial.join(third)) == refused
    assert [trial.reply(request).generation for request in waiting] == [2, 2]


def test_an_empty_instance_id_is_not_that_of_every_dynamic_member() -> None:
    trial = Trial(group_max_size=2, initial_rebalance_delay_ms=1_000)
    trial.join(instance_id="")
    trial.join(requires_known_id=False)
    refused = trial.reply(trial.join(requires_known_id=False))
    assert refused is not None and refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i")
    assert trial.leave("", instance_id="i") is ErrorCode.NONE
    assert state(trial) == "Empty"


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_static_members_without_a_rebalance_timeout_do_not_keep_the_coordinator_busy(timeout_ms: int) -> None:
    trial = Trial()
    name = trial.joined(instance_id="i").member_id
    trial.sync(name, 1, {name: b"x"}, instance_id="i")
    again = trial.join_event(name, instance_id="i", rebalance_timeout_ms=timeout_ms)
    trial.feed_together(again, SyncGroup(trial.request(), "g", 2, name, ((name, b"x"),), "i"))
    join = trial.join_event(rebalance_timeout_ms=timeout_ms, requires_known_id=False, connection=9)
    trial.feed_together(join, ConnectionLost(9))
    assert state(trial) == "PreparingRebalance"
    assert trial.heartbeat(name, 2, instance_id="i") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_keeps_its_place_through_a_join_phase() -> None:
    trial = Trial()
    trial.stable(1, instance_id="i", rebalance_timeout_ms=1_000)
    request = trial.join(rebalance_timeout_ms=1_000)
    trial.pass_time(1_000)
    assert len(trial.reply(request).members or trial.replies) >= 1
    assert trial.heartbeat("m1", 2, instance_id="i") is ErrorCode.NONE


def test_other_protocol_types_stay_opaque() -> None:
    trial = Trial()
    members, generation = trial.stable(1, protocol_type="connect", protocols=protocols("v1"))
    assert trial.commit(3, members[0], generation) is ErrorCode.NONE
    group = trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0]
    assert (group.protocol_type, group.protocol, group.members[0].assignment) == ("connect", "v1", b"a-m1")


def test_a_second_sync_of_one_member_answers_the_first() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.join(members[1], protocols=protocols("range", topics=("u",)))
    first = trial.sync(members[1], generation + 1)
    second = trial.sync(members[1], generation + 1)
    assert trial.reply(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    trial.sync(members[0], generation + 1, {members[1]: b"now"})
    assert trial.reply(second).assignment == b"now"


def test_a_member_of_an_old_client_whose_connection_ends_is_dropped_before_it_is_notified() -> None:
    trial = Trial()
    members, _ = trial.stable(1)
    trial.join(connection=7)
    trial.feed(ConnectionLost(7))
    assert len(trial.joined(members[0]).members) == 1


def test_too_many_groups_are_refused() -> None:
    trial = Trial(groups_max=1)
    trial.stable(1)
    assert trial.reply(trial.join(group_id="h")).error is ErrorCode.POLICY_VIOLATION
    assert trial.commit(1, group_id="h") is ErrorCode.POLICY_VIOLATION
    refused = trial.beat("m", group_id="h")
    text = "The shard has 1 groups already (group.coordinator.max.groups)."
    assert (refused.error, refused.error_message) == (ErrorCode.POLICY_VIOLATION, text)


def test_sync_without_a_member_of_the_leader_gets_an_empty_assignment() -> None:
    trial = Trial()
    trial.joined()
    assert trial.ask(SyncGroup(trial.request(), "g", 1, "m1")).assignment == b""


def test_a_protocol_that_a_member_names_twice_counts_once() -> None:
    trial = Trial()
    reply = trial.joined(protocols=protocols("range", "range"))
    assert reply.protocol_name == "range"


@pytest.mark.parametrize(
    ("strategy", "expected"), [("range", ErrorCode.REBALANCE_IN_PROGRESS), ("cooperative-sticky", ErrorCode.NONE)]
)
def test_a_commit_behind_its_members_join_group(strategy: str, expected: ErrorCode) -> None:
    """Eager members have given up what they had; of cooperative ones it is theirs still."""
    trial = Trial()
    (a, b), generation = trial.stable(2, protocols=protocols(strategy))
    trial.join(a, connection=1, protocols=protocols(strategy))
    assert trial.commit(1, a, generation, connection=1) is expected
    assert trial.commit(2, a, generation, connection=2) is ErrorCode.NONE, "as by Kafka"
    assert trial.commit(3, b, generation, connection=1) is ErrorCode.NONE
