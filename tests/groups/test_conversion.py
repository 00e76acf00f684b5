"""Scenario 15: a group moves between the classic and the consumer protocol while its members live."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kohort.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
    read_topics,
    write_assignment,
)
from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.effects import GroupState, Level, LogLine
from kohort.groups.events import Client, ConsumerGroupDescribe, DescribeGroups, LeaveGroup, LeavingMember, ListGroups
from kohort.groups.records import GroupSaved, OfferedProtocol
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, owned, subscription


def classic_metadata(*partitions: int, rack: str | None = None, generation: int = -1) -> bytes:
    """A subscription of version 3 to topic t by a member that has these partitions."""
    raw = subscription("t", version=3)
    if partitions:
        raw += struct.pack(">ih", 1, 1) + b"t" + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    else:
        raw += struct.pack(">i", 0)
    raw += struct.pack(">i", generation)
    return raw + (struct.pack(">h", -1) if rack is None else struct.pack(">h", len(rack)) + rack.encode())


def offer(*partitions: int) -> tuple[OfferedProtocol, ...]:
    return (OfferedProtocol("range", classic_metadata(*partitions)),)


def plan(*partitions: int) -> bytes:
    return write_assignment(3, [TopicPartition("t", number) for number in partitions])


def make_trial(**config: Any) -> Trial:
    trial = Trial(**config)
    trial.set_topics(t=4)
    return trial


def make_classic(trial: Trial, protocols: tuple[OfferedProtocol, ...] | None = None) -> tuple[str, int]:
    """A stable classic group of one member that has all four partitions."""
    reply = trial.joined(protocols=protocols or offer())
    trial.sync(reply.member_id, reply.generation, {reply.member_id: plan(0, 1, 2, 3)})
    return reply.member_id, reply.generation


def types(trial: Trial) -> list[str]:
    return [group.type for group in trial.ask(ListGroups(trial.request())).groups]


def assignment(trial: Trial, member: str, generation: int) -> list[int]:
    reply = trial.reply(trial.sync(member, generation))
    assert reply.error is ErrorCode.NONE
    assignment = read_assignment(reply.assignment)
    return [] if assignment is None else [number for _, number in assignment.partitions]


def test_scenario_15_a_classic_group_becomes_a_consumer_group_and_no_partition_has_two_owners() -> None:
    trial = make_trial()
    member, generation = make_classic(trial)
    trial.commit(7, member, generation)
    joined = trial.beat("new")
    assert (joined.error, joined.member_epoch, joined.assignment) == (ErrorCode.NONE, generation + 1, ())
    assert types(trial) == ["consumer"]
    assert trial.committed() == 7
    assert trial.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.commit(8, member, generation) is ErrorCode.NONE
    again = trial.joined(member, protocols=offer(0, 1, 2, 3))
    kept = assignment(trial, member, again.generation)
    assert len(kept) == 2
    assert trial.beat("new", generation + 1).assignment is None
    done = trial.joined(member, protocols=offer(*kept))
    assert assignment(trial, member, done.generation) == kept
    assert trial.heartbeat(member, done.generation) is ErrorCode.NONE
    taken = [number for entry in trial.beat("new", generation + 1).assignment for number in entry.partitions]
    assert sorted(kept + taken) == [0, 1, 2, 3]
    group = trial.ask(ConsumerGroupDescribe(trial.request(), ("g",))).groups[0]
    assert (group.state, sorted(member.member_type for member in group.members)) == ("Stable", [0, 1])


def test_scenario_15_the_last_member_of_the_consumer_protocol_leaves_a_classic_group() -> None:
    trial = make_trial()
    member, _ = make_classic(trial)
    trial.beat("new")
    again = trial.joined(member, protocols=offer())
    trial.beat("new", -1)
    assert types(trial) == ["classic"]
    assert any(isinstance(record, GroupSaved) for record in trial.journal)
    assert trial.heartbeat(member, again.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    trial.restart()  # the rebalance is not forgotten with the coordinator
    assert trial.heartbeat(member, again.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    reply = trial.joined(member, protocols=offer())
    assert reply.generation > again.generation
    assert reply.leader == member
    trial.restart()
    assert types(trial) == ["classic"]


def test_a_dying_member_of_the_consumer_protocol_leaves_a_classic_group() -> None:
    trial = make_trial(consumer_session_timeout_ms=5_000)
    member, _ = make_classic(trial)
    trial.beat("new")
    trial.joined(member, protocols=offer(), session_timeout_ms=30_000)
    trial.pass_time(5_000)
    assert types(trial) == ["classic"]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_scenario_15_the_way_up_is_closed(policy: str) -> None:
    trial = make_trial(consumer_migration_policy=policy)
    member, generation = make_classic(trial)
    before = list(trial.machine.snapshot())
    reply = trial.beat("new")
    assert (reply.error, reply.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")
    assert list(trial.machine.snapshot()) == before
    assert trial.heartbeat(member, generation) is ErrorCode.NONE


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_way_down_is_closed(policy: str) -> None:
    trial = make_trial(consumer_migration_policy=policy)
    trial.beat("new")
    trial.joined(protocols=offer())
    trial.beat("new", -1)
    assert types(trial) == ["consumer"]


def test_a_group_of_another_type_stays_what_it_is() -> None:
    trial = make_trial()
    trial.stable(1, protocol_type="connect")
    assert trial.beat("new").error is ErrorCode.GROUP_ID_NOT_FOUND


def test_unreadable_members_keep_their_group_classic() -> None:
    trial = make_trial()
    trial.stable(1, protocols=(OfferedProtocol("range", b"?"),))
    assert trial.beat("new").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert types(trial) == ["classic"]


def test_an_empty_group_is_whatever_joins_it() -> None:
    trial = make_trial()
    trial.commit(5)
    trial.beat("new")
    assert (types(trial), trial.committed()) == (["consumer"], 5)
    trial.beat("new", -1)
    member, _ = make_classic(trial)
    assert (types(trial), trial.committed()) == (["classic"], 5)
    trial.leave(member)
    trial.beat("new")
    assert types(trial) == ["consumer"]


@pytest.mark.parametrize(
    "more",
    [
        {"session_timeout_ms": 1},
        {"protocols": ()},
        {"protocol_type": ""},
        {"protocols": (OfferedProtocol("range", bytes(3_000)),)},
        {"member_id": "stranger"},
    ],
)
def test_a_join_that_is_refused_leaves_an_empty_consumer_group_as_it_is(more: dict[str, Any]) -> None:
    trial = make_trial(group_record_bytes_max=2_000)
    trial.beat("new")
    trial.beat("new", -1)
    before = list(trial.machine.snapshot())
    reply = trial.reply(trial.join(**more))
    assert reply.error is not ErrorCode.NONE
    assert types(trial) == ["consumer"]
    assert list(trial.machine.snapshot()) == before


def test_members_that_wait_for_a_round_are_asked_to_join_again() -> None:
    trial = make_trial(initial_rebalance_delay_ms=3_000)
    waiting = trial.join(protocols=offer())
    trial.beat("new")
    assert trial.reply(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.joined("m1", protocols=offer()).error is ErrorCode.NONE


def test_classic_members_of_a_consumer_group_are_checked() -> None:
    trial = make_trial()
    trial.beat("new")
    reply = trial.reply(trial.join(protocols=offer(), requires_known_id=True))
    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    joined = trial.joined("m1", protocols=offer(), requires_known_id=True)
    assert (joined.leader, joined.members, joined.protocol_name) == ("", (), "range")
    assert trial.heartbeat("m1", 1) is ErrorCode.ILLEGAL_GENERATION
    assert trial.heartbeat("new", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.reply(trial.sync("m1", 99)).error is ErrorCode.ILLEGAL_GENERATION
    wrong = trial.sync("m1", joined.generation, protocol_name="sticky")
    assert trial.reply(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = trial.reply(trial.join(protocols=(OfferedProtocol("sticky", classic_metadata()),)))
    assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert trial.commit(1, "m1", 99) is ErrorCode.ILLEGAL_GENERATION
    gone = LeaveGroup(trial.request(), "g", (LeavingMember("m1"), LeavingMember("none"), LeavingMember("", "i")))
    errors = [member.error for member in trial.ask(gone).members]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]


def test_administrator_removes_members_of_the_consumer_protocol() -> None:
    trial = make_trial()
    trial.beat("new")
    trial.beat("static", instance_id="i")
    epoch = trial.beat("last").member_epoch
    leaving = (LeavingMember("other", "i"), LeavingMember("", "i"), LeavingMember("new"), LeavingMember("new"))
    reply = trial.ask(LeaveGroup(trial.request(), "g", leaving))
    assert [member.error for member in reply.members] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert trial.beat("new", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.beat("static", 2, instance_id="i").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.beat("last", epoch).member_epoch == epoch + 1


def test_group_turns_classic_when_leave_group_removes_its_last_consumer_member() -> None:
    """KAFKA-18150."""
    trial = make_trial()
    trial.beat("new")
    trial.joined(protocols=offer())
    assert trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("new"),))).members[0].error is ErrorCode.NONE
    assert types(trial) == ["classic"]


def test_member_gets_its_id_before_its_malformed_metadata_is_refused() -> None:
    trial = make_trial()
    trial.beat("new")
    malformed = (OfferedProtocol("range", b""),)
    first = trial.reply(trial.join(protocols=malformed, requires_known_id=True))
    assert (first.error, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    again = trial.reply(trial.join("m1", protocols=malformed, requires_known_id=True))
    assert again.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_classic_member_that_was_evicted_gets_an_error_before_it_joins_again() -> None:
    """Else it would go on with partitions that others have by now."""
    trial = make_trial(consumer_session_timeout_ms=100_000)
    trial.beat("new")
    joined = trial.joined(protocols=offer())
    trial.pass_time(10_000)
    again = trial.reply(trial.join(joined.member_id, protocols=offer(0, 1)))
    assert (again.error, again.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, joined.member_id)


def test_an_id_given_out_is_good_for_a_session() -> None:
    trial = make_trial()
    trial.beat("new")
    first = trial.reply(trial.join(protocols=offer(), requires_known_id=True)).member_id
    second = trial.reply(trial.join(protocols=offer(), requires_known_id=True)).member_id
    assert trial.joined(first, protocols=offer(), requires_known_id=True).member_id == first
    trial.pass_time(10_000)
    late = trial.reply(trial.join(second, protocols=offer(), requires_known_id=True))
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_that_a_consumer_group_has_given_out_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GIVEN_ID_CHARS_MAX", 5)
    trial = make_trial()
    trial.beat("new")
    ids = [trial.reply(trial.join(protocols=offer(), requires_known_id=True)).member_id for _ in range(9)]
    assert list(trial.consumer_group().given_ids) == ids[-2:]
    first, last = (trial.reply(trial.join(given, protocols=offer(), requires_known_id=True)) for given in ids[::8])
    assert (first.error, last.error) == (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE)
    assert len(trial.consumer_group().given_ids) == 1


def test_a_join_that_waits_is_fenced_by_a_newer_process_with_its_instance_id() -> None:
    trial = make_trial()
    trial.beat("new")
    trial.works_at_once = False
    waiting = trial.join(protocols=offer(), instance_id="i")
    newer = trial.join(protocols=offer(), instance_id="i")
    assert trial.reply(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    trial.do_work()
    assert trial.reply(newer).error is ErrorCode.NONE


def test_a_join_that_waits_for_a_target_is_kept_when_the_group_turns_classic() -> None:
    trial = make_trial()
    trial.beat("new")
    trial.works_at_once = False
    waiting = trial.join(protocols=offer())
    trial.beat("new", -1)
    reply = trial.reply(waiting)
    assert (reply.error, reply.leader) == (ErrorCode.NONE, reply.member_id)


def test_a_classic_member_that_never_syncs_or_joins_is_evicted() -> None:
    trial = make_trial(consumer_session_timeout_ms=100_000)
    trial.beat("new")
    joined = trial.joined(protocols=offer(), rebalance_timeout_ms=15_000)
    for _ in range(3):
        trial.pass_time(5_000)
        last = trial.heartbeat(joined.member_id, joined.generation)
    assert last is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_goes_from_one_protocol_to_the_other_and_back() -> None:
    trial = make_trial()
    first = trial.joined(protocols=offer(), instance_id="i")
    trial.sync(first.member_id, first.generation, {first.member_id: plan(0, 1, 2, 3)}, instance_id="i")
    up = trial.beat("new", instance_id="i")
    assert up.error is ErrorCode.NONE
    assert len(up.assignment[0].partitions) == 4
    assert trial.heartbeat(first.member_id, first.generation, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    down = trial.reply(trial.join(protocols=offer(), instance_id="i"))
    assert (down.error, down.leader) == (ErrorCode.NONE, down.member_id)
    assert types(trial) == ["classic"]
    reply = trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0]
    assert [member.instance_id for member in reply.members] == ["i"]


def test_a_round_that_is_under_way_continues_when_a_static_member_turns_its_group_into_a_consumer_group() -> None:
    """The one that takes its place changes nothing, and what a member left behind has no other owner."""
    trial = make_trial()
    first = trial.join(protocols=offer(), instance_id="i")
    second = trial.join(protocols=offer())
    while trial.reply(second) is None or trial.reply(first).generation < trial.reply(second).generation:
        first = trial.join(trial.reply(first).member_id, protocols=offer(), instance_id="i")
    (one, two), generation = (
        (trial.reply(member).member_id for member in (first, second)),
        trial.reply(second).generation,
    )
    trial.sync(one, generation, {one: plan(0, 1), two: plan(2, 3)}, instance_id="i")
    assert trial.leave(two) is ErrorCode.NONE
    trial.beat("new", instance_id="i")
    consumer = trial.consumer_group()
    assert list(consumer.members) == ["new"]
    assert sorted(number for _, number in consumer.targets["new"]) == [0, 1, 2, 3]


def test_a_member_that_waits_for_a_round_has_a_share_when_its_group_becomes_a_consumer_group() -> None:
    """Every partition has an owner, so that only the round under way tells that another member is to have some."""
    trial = make_trial()
    first = trial.joined(protocols=offer(), instance_id="i")
    trial.sync(first.member_id, first.generation, {first.member_id: plan(0, 1, 2, 3)}, instance_id="i")
    waiting = trial.join(protocols=offer())
    assert trial.reply(waiting) is None
    trial.beat("new", instance_id="i")
    second = trial.reply(waiting)
    assert second.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert {member: len(target) for member, target in trial.consumer_group().targets.items()} == {
        "new": 2,
        second.member_id: 2,
    }


def test_partitions_that_the_leader_has_not_seen_are_assigned_when_the_group_becomes_a_consumer_group() -> None:
    trial = make_trial()
    first = trial.joined(protocols=offer(), instance_id="i")
    trial.sync(first.member_id, first.generation, {first.member_id: plan(0, 1, 2, 3)}, instance_id="i")
    trial.set_topics(t=6)
    assert trial.classic_group().state is GroupState.STABLE
    trial.beat("new", instance_id="i")
    assert sorted(number for _, number in trial.consumer_group().targets["new"]) == [0, 1, 2, 3, 4, 5]


def test_subscriptions_of_every_version_are_read() -> None:
    raw = classic_metadata(1, 2, rack="a")
    assert read_subscription(raw) == ConsumerProtocolSubscription(
        3, ("t",), (TopicPartition("t", 1), TopicPartition("t", 2)), "a", -1, b""
    )
    assert read_subscription(subscription("t", version=0)) == ConsumerProtocolSubscription(0, ("t",), user_data=b"")
    assert read_subscription(raw[:-1]) is None
    assert read_topics(raw[:9]) == ("t",)


def test_assignments_are_written_as_they_are_read() -> None:
    partitions = (TopicPartition("t", 3), TopicPartition("u", 0), TopicPartition("u", 2))
    assert read_assignment(write_assignment(9, partitions)) == ConsumerProtocolAssignment(partitions)
    assert write_assignment(9, partitions)[:2] == b"\0\3"
    assert read_assignment(b"") == ConsumerProtocolAssignment()
    assert read_assignment(b"\0\0\0") is None
    assert owned("t") == ()


def test_a_static_member_replaced_while_its_target_is_computed_gets_its_share() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.works_at_once = False
    trial.beat("b", instance_id="i")
    trial.beat("b", -2, instance_id="i")
    trial.beat("c", instance_id="i")
    trial.do_work()
    consumer = trial.consumer_group()
    assert consumer.target_epoch == consumer.epoch
    owned = sorted(number for target in consumer.targets.values() for _, number in target)
    assert (sorted(consumer.members), owned) == (["a", "c"], [0, 1, 2, 3])


def test_a_static_member_replaced_while_an_older_target_is_computed_keeps_partitions() -> None:
    """The target of the older epoch names the id that it had, and has nothing for the new one."""
    trial = Trial()
    trial.set_topics(t=8)
    trial.beat("a")
    trial.beat("z", instance_id="i")
    before = trial.consumer_group().targets["z"]
    trial.works_at_once = False
    trial.feed(trial.consumer_event("b"))
    trial.beat("z", -2, instance_id="i")
    trial.feed(trial.consumer_event("c", instance_id="i"))
    trial.feed(trial.consumer_event("d"))
    trial.do_work()
    consumer = trial.consumer_group()
    assert consumer.target_epoch == consumer.epoch
    assert {len(target) for target in consumer.targets.values()} == {2}
    assert consumer.targets["c"] < before


def test_scenario_8_of_two_processes_with_one_instance_id_and_different_protocols_the_older_is_fenced() -> None:
    """Each would fence the other for ever if it were told anything that lets it join again."""
    trial = make_trial()
    first = trial.joined(protocols=offer(), instance_id="i")
    trial.sync(first.member_id, first.generation, {first.member_id: plan(0, 1, 2, 3)}, instance_id="i")
    up = trial.beat("new", instance_id="i")
    assert trial.commit(1, first.member_id, first.generation, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert trial.commit(2, "new", up.member_epoch, instance_id="i") is ErrorCode.NONE
    trial.join(protocols=offer(), instance_id="i")
    assert types(trial) == ["classic"]
    assert trial.beat("new", up.member_epoch, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert trial.beat("new", -2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert trial.beat("other", 5, instance_id=None).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_commit_is_a_sign_of_life_of_a_classic_member_whatever_its_group_is() -> None:
    trial = make_trial(consumer_session_timeout_ms=100_000)
    trial.beat("new")
    joined = trial.joined(protocols=offer())
    trial.sync(joined.member_id, joined.generation)
    trial.pass_time(9_000)
    assert trial.commit(1, joined.member_id, joined.generation) is ErrorCode.NONE
    trial.pass_time(9_000)
    assert trial.heartbeat(joined.member_id, joined.generation) is not ErrorCode.UNKNOWN_MEMBER_ID


def mixed_pair(trial: Trial) -> tuple[str, int, list[int]]:
    """A classic member beside one of the consumer protocol, settled; its id, its epoch, and what it has: a half."""
    member, _ = make_classic(trial)
    trial.beat("new")
    joined = trial.reply(trial.join(member, protocols=offer(0, 1, 2, 3)))
    kept = assignment(trial, member, joined.generation)
    joined = trial.reply(trial.join(member, protocols=offer(*kept)))
    assert assignment(trial, member, joined.generation) == kept
    trial.beat("new", joined.generation)
    return member, joined.generation, kept


def has(trial: Trial, member: str) -> list[int]:
    """The partitions that a member of the consumer group has not given up, as the coordinator knows."""
    holders = trial.consumer_group().holders
    return sorted(number for (_, number), holder in holders.items() if holder == member)


def test_a_join_that_comes_again_and_late_is_not_waited_for_to_sync() -> None:
    trial = make_trial()
    member, generation, kept = mixed_pair(trial)
    trial.join(member, protocols=offer(*kept))
    for _ in range(40):
        trial.pass_time(2_000)
        assert trial.heartbeat(member, generation) is ErrorCode.NONE
        trial.beat("new", generation)
    assert has(trial, member) == kept


@pytest.mark.parametrize(("said", "left"), [(1, 2), (2, 1), (0, 1), (-1, 1)])
def test_a_join_of_an_older_epoch_gives_nothing_up(said: int, left: int) -> None:
    """The join was sent before the member had its current partitions. A join without a generation counts as it is."""
    trial = make_trial()
    member, generation, kept = mixed_pair(trial)
    assert (generation, len(kept)) == (2, 2)
    trial.beat("third")
    trial.beat("fourth")
    trial.join(member, protocols=(OfferedProtocol("range", classic_metadata(generation=said)),))
    assert len(has(trial, member)) == left


@pytest.mark.parametrize("beats", [True, False])
def test_a_classic_member_that_does_not_join_in_time_keeps_its_partitions_for_its_session(beats: bool) -> None:
    trial = make_trial(consumer_session_timeout_ms=200_000)
    member, generation, kept = mixed_pair(trial)
    trial.beat("third")
    for _ in range(13):  # its rebalance timeout, since it heard that it is to join
        trial.pass_time(5_000)
        last = trial.heartbeat(member, generation)
    assert last is ErrorCode.UNKNOWN_MEMBER_ID
    for _ in range(4):
        trial.pass_time(1_000)
        if beats:
            assert trial.heartbeat(member, generation) is ErrorCode.UNKNOWN_MEMBER_ID
            assert trial.commit(5, member, generation, topic="t", partition=kept[0]) is ErrorCode.NONE
    assert has(trial, member) == kept
    trial.pass_time(1_000)
    assert has(trial, member) == []


def test_a_classic_member_that_was_too_late_continues_when_it_joins() -> None:
    trial = make_trial(consumer_session_timeout_ms=200_000)
    member, generation, kept = mixed_pair(trial)
    trial.beat("third")
    for _ in range(13):
        trial.pass_time(5_000)
        trial.heartbeat(member, generation)
    joined = trial.reply(trial.join(member, protocols=offer(*kept)))
    assert joined.error is ErrorCode.NONE
    assert trial.heartbeat(member, joined.generation) is not ErrorCode.UNKNOWN_MEMBER_ID


def test_a_dynamic_member_does_not_take_the_place_of_one_with_an_empty_instance_id() -> None:
    trial = make_trial()
    trial.beat("new")
    static = trial.reply(trial.join(protocols=offer(), instance_id="")).member_id
    dynamic = trial.reply(trial.join(protocols=offer(), requires_known_id=False)).member_id
    assert {"new", static, dynamic} == set(trial.consumer_group().members)


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"instance_id": "i" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"client": Client("\ufffd" * 20_000, "/h")}, ErrorCode.INVALID_REQUEST),
        ({"session_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        (
            {"protocols": (OfferedProtocol("range", classic_metadata() + bytes(2_000)),)},
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        ),
    ],
    ids=["long instance id", "long client id", "endless session", "no session", "large metadata"],
)
def test_a_consumer_group_takes_no_join_that_a_classic_group_would_refuse(more: Any, refused: ErrorCode) -> None:
    """Otherwise, once the group turns classic, its record could not be written or its member never be evicted."""
    trial = make_trial(group_record_bytes_max=1_000)
    trial.beat("new", subscribed_topics=("t",))
    reply = trial.reply(trial.join(**{"protocols": offer(), **more}))
    assert reply.error is refused


def wide(user_data: int) -> tuple[OfferedProtocol, ...]:
    """A subscription that takes so many bytes more than it must."""
    return (OfferedProtocol("range", subscription("t", version=0, user_data=bytes(user_data))),)


def warnings(trial: Trial) -> list[str]:
    return [note.text for note in trial.notes if isinstance(note, LogLine) and note.level is Level.WARNING]


def test_a_group_that_would_outgrow_its_record_as_a_classic_one_stays_a_consumer_group() -> None:
    trial = make_trial(group_record_bytes_max=1_000)
    trial.beat("new")
    members = [trial.joined(protocols=wide(500)).member_id for _ in range(2)]
    trial.beat("new", -1)
    assert types(trial) == ["consumer"]
    assert not any(isinstance(record, GroupSaved) for record in trial.journal)
    assert [text for text in warnings(trial) if "stays a consumer group" in text and "group.record.max.bytes" in text]
    epochs = [trial.joined(member, protocols=wide(500)).generation for member in members]
    shares = [assignment(trial, member, epoch) for member, epoch in zip(members, epochs, strict=True)]
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3]
    trial.restart()
    assert types(trial) == ["consumer"]
    assert trial.leave(members[0]) is ErrorCode.NONE


def test_a_group_that_just_fits_into_its_record_turns_classic() -> None:
    trial = make_trial(group_record_bytes_max=1_000)
    trial.beat("new")
    for _ in range(2):
        trial.joined(protocols=wide(350))
    trial.beat("new", -1)
    assert types(trial) == ["classic"]
    assert trial.classic_group().size <= 1_000
    assert not warnings(trial)


def test_a_member_whose_strategies_fit_no_record_of_its_own_keeps_its_group_classic() -> None:
    """A classic group's record holds one of them, a consumer group's record of the member all."""
    trial = make_trial(group_record_bytes_max=1_000)
    names = ("range", "sticky", "roundrobin")
    offers = tuple(OfferedProtocol(name, wide(400)[0].metadata) for name in names)
    member, generation = make_classic(trial, offers)
    assert trial.beat("new").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert types(trial) == ["classic"]
    assert [
        text
        for text in warnings(trial)
        if "cannot become a consumer group" in text and "group.record.max.bytes" in text
    ]
    assert trial.heartbeat(member, generation) is ErrorCode.NONE


@pytest.mark.parametrize("others", [0, 1])
def test_a_static_member_that_goes_back_to_the_classic_protocol_counts_for_the_groups_record(others: int) -> None:
    """With what it is assigned it is more than it said when it joined."""
    trial = make_trial(group_record_bytes_max=1_000)
    trial.beat("new", instance_id="i")
    for _ in range(others):
        trial.joined(protocols=wide(500))
    down = trial.reply(trial.join(protocols=wide(500 if others else 950), instance_id="i"))
    assert (down.error, down.leader) == (ErrorCode.NONE, "")
    assert types(trial) == ["consumer"]
    assert not any(isinstance(record, GroupSaved) for record in trial.journal)
    assert len(warnings(trial)) == 1


def test_a_classic_group_whose_members_left_before_its_first_round_becomes_a_consumer_group() -> None:
    trial = Trial(initial_rebalance_delay_ms=3_000)
    trial.set_topics(t=4)
    request = trial.join(protocols=offer())
    member = next(iter(trial.classic_group().members))
    trial.leave(member)
    assert trial.reply(request).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.classic_group().state is GroupState.PREPARING_REBALANCE
    assert trial.beat("new").error is ErrorCode.NONE
    assert set(trial.consumer_group().members) == {"new"}
