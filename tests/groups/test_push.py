"""Push groups: registration, pings, stops and starts. Source: spec 4.4-4.9, 4.12."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kohort.consumer_protocol import read_assignment
from kohort.errors import ErrorCode
from kohort.groups.effects import (
    ComputePushAssignment,
    CoordinatorMeter,
    FindOffsets,
    MirroredPushGroup,
    Rebalanced,
    StartConsumer,
)
from kohort.groups.events import (
    Client,
    DeleteGroups,
    DescribeGroups,
    DescribePushGroups,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetToCommit,
    OwnerNodesDeleted,
    PushAssignmentComputed,
    PushConsumerAnswered,
    PushRequestKind,
)
from kohort.groups.push.rebalance import compute_push_assignment
from kohort.groups.push.requests import first_ping_ms
from kohort.ids import NO_POSITION, TopicPartition
from tests.groups.harness import match
from tests.groups.push_harness import SESSION_MS, PushConsumer, PushTrial

THIRD_MS = SESSION_MS // 3


@pytest.fixture
def trial() -> PushTrial:
    return PushTrial()


def shares(*consumers: PushConsumer) -> list[int]:
    return sorted(len(consumer.reads) for consumer in consumers)


# -- registration (4.4)


def test_a_consumer_is_started_with_all_and_true_offsets(trial: PushTrial) -> None:
    a = trial.consumer("a")
    assert a.error is ErrorCode.NONE
    assert a.seen == ["START"], "a new consumer has nothing to stop"
    assert a.reads == {("t", number): 0 for number in range(6)}
    assert trial.committed() == 0, "the begin is written as the position"


def test_largest_starts_at_the_end(trial: PushTrial) -> None:
    assert set(trial.consumer("a", from_begin=False).reads.values()) == {100}


def test_largest_starts_at_the_begin_of_what_is_newer(trial: PushTrial) -> None:
    """The end would skip what was written before the coordinator learned of it."""
    a = trial.consumer("a", from_begin=False)
    trial.set_topics(t=8)
    trial.run()
    assert a.reads == {("t", number): 100 for number in range(6)} | {("t", 6): 0, ("t", 7): 0}
    b = trial.consumer("b", from_begin=False)
    assert set((a.reads | b.reads).items()) == {(("t", n), 100 if n < 6 else 0) for n in range(8)}


def test_who_finds_starts_itself_is_started_without_and_whoever_follows_has_what_it_commits(trial: PushTrial) -> None:
    a = trial.consumer("a", from_begin=None, auto_commit=False)
    assert a.reads == {("t", number): NO_POSITION for number in range(6)}
    assert trial.committed() == NO_POSITION, "nobody has read it"
    trial.consumer("c", from_begin=None, auto_commit=False).lose_connection()
    trial.pass_time(SESSION_MS * 2)
    assert len(a.reads) == 6
    assert set(a.reads.values()) == {NO_POSITION}, "who is out has committed nothing"
    assert trial.ask(OffsetCommit(trial.request(), "g", "a", -1, (OffsetToCommit("t", 0, 7),))).errors == (
        ErrorCode.NONE,
    )
    b = trial.consumer("b", auto_commit=False)
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    trial.run()
    assert b.reads == {("t", 0): 7} | {("t", number): 0 for number in range(1, 6)}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"session_timeout_ms": SESSION_MS - 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 10**8}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"client": Client("\ufffd" * 20_000, "/h")}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_registrations_that_are_refused(trial: PushTrial, more: dict[str, Any], error: ErrorCode) -> None:
    assert trial.consumer("a", **more).error is error
    assert not trial.machine.context.ledger.groups


def test_an_id_is_new_against_a_live_connection(trial: PushTrial) -> None:
    a = trial.consumer("a")
    rival = trial.consumer("a")
    assert rival.error is ErrorCode.FENCED_INSTANCE_ID
    assert a.seen == ["START", "PING"], "it was pinged first"
    a.answers = False
    second = trial.consumer("a")
    third = trial.consumer("a")
    assert (second.error, third.error) == (None, ErrorCode.FENCED_INSTANCE_ID), "one waits"
    trial.pass_time(THIRD_MS)
    assert second.error is ErrorCode.NONE
    assert a.dismissed is not None
    assert second.reads.keys() == a.reads.keys()


def test_a_conflicting_registration_whose_connection_ends_is_forgotten(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    rival = trial.consumer("a")
    rival.lose_connection()
    trial.pass_time(THIRD_MS)
    assert (rival.error, a.dismissed) == (None, None)


def test_full_groups_and_other_protocols(trial: PushTrial) -> None:
    trial.joined()
    assert trial.consumer("a").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    small = PushTrial(group_max_size=1)
    small.consumer("a")
    assert small.consumer("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert small.reply(small.join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    none = PushTrial(rebalance_protocols=("classic",))
    assert none.consumer("a").error is ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_group_is_whatever_joins_it(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.read(7)
    trial.pass_time(THIRD_MS)
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    joined = trial.joined()
    assert trial.classic_group().members.keys() == {joined.member_id}
    assert trial.committed() == 7
    assert trial.leave(joined.member_id) is ErrorCode.NONE
    assert set(trial.consumer("b").reads.values()) == {7}


# -- pings (4.5)


def test_pings_come_a_third_of_a_session_after_the_last_answer_and_carry_offsets(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.read(3)
    first_ms = first_ping_ms(trial.push.members["a"])
    assert THIRD_MS // 2 <= first_ms <= THIRD_MS
    trial.pass_time(first_ms - 1)
    assert a.seen == ["START"]
    trial.pass_time(1)
    assert a.seen == ["START", "PING"]
    assert trial.committed() == 3
    trial.pass_time(THIRD_MS - 1)
    assert a.seen == ["START", "PING"]
    commits = trial.counted(CoordinatorMeter.OFFSET_COMMITS)
    trial.pass_time(10 * THIRD_MS)
    assert a.seen == ["START"] + ["PING"] * 11, "one every third"
    assert trial.counted(CoordinatorMeter.OFFSET_COMMITS) == commits, "what has not moved is not written again"


def test_first_pings_are_spread(trial: PushTrial) -> None:
    for number in range(50):
        trial.consumer(f"c{number}", topics={"none": 1})
    due = {member.ping.due_ms for member in trial.push.present.values()}
    assert len(due) > 25


def test_only_a_ping_is_repeated_and_a_fresh_one_waits_for_all_answers(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    trial.pass_time(2 * THIRD_MS)
    assert a.seen == ["START", "PING", "PING1"]
    a.answer()
    trial.consumer("b")
    assert a.seen == ["START", "PING", "PING1"], "the stop waits for the second answer"
    a.answer()
    assert a.seen == ["START", "PING", "PING1", "STOP"]
    trial.pass_time(2 * THIRD_MS)
    assert a.seen[3:] == ["STOP"], "a stop is never repeated"


def test_who_answers_nothing_is_out_after_its_session(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    b.answers = False
    trial.pass_time(SESSION_MS - 1)
    assert shares(a, b) == [3, 3]
    trial.pass_time(1)
    assert shares(a) == [6]
    assert b.dismissed is not None


def test_the_bound_is_the_greater_of_session_and_failed_requests() -> None:
    trial = PushTrial(push_failed_requests_max=5)
    a, b = trial.consumer("a"), trial.consumer("b")
    b.answers = False
    trial.pass_time(5 * THIRD_MS - 1)
    assert shares(a) == [3]
    trial.pass_time(1)
    assert shares(a) == [6]


def test_answers_on_another_connection_say_nothing(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    trial.pass_time(THIRD_MS)
    trial.feed(PushConsumerAnswered("g", "a", 99, PushRequestKind.PING))
    trial.pass_time(SESSION_MS)
    assert a.dismissed is not None


# -- rebalances (4.6, 4.7)


def test_a_second_consumer_takes_half_and_nothing_is_read_twice(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.read(5)
    b = trial.consumer("b")
    assert shares(a, b) == [3, 3]
    assert a.seen == ["START", "STOP", "PING", "START"]
    assert b.seen == ["START"]
    assert set(b.reads.values()) == {5}, "it begins at the last positions of the other"


def test_no_start_names_a_partition_whose_owner_has_not_answered_its_stop(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    assert (a.seen, b.seen) == (["START", "STOP"], [])
    a.answer()
    assert (a.seen[-1], b.seen) == ("PING", []), "the last positions are awaited too"
    a.answer()
    trial.run()
    assert b.seen == ["START"]
    assert shares(b) == [3]


def test_a_stop_that_is_never_answered_frees_nothing_before_the_session_is_over(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    trial.pass_time(SESSION_MS - 1)
    assert b.reads == {}
    trial.pass_time(1)
    assert shares(b) == [6]


def test_who_neither_gains_nor_loses_is_not_stopped(trial: PushTrial) -> None:
    trial = PushTrial(partitions=2)
    a, b, c = (trial.consumer(name) for name in "abc")
    assert sorted(len(consumer.reads) for consumer in (a, b, c)) == [0, 1, 1]
    before = [list(consumer.seen) for consumer in (a, b)]
    trial.consumer("d")
    assert [consumer.seen for consumer in (a, b)] == before


def test_all_are_stopped_where_the_text_is_followed() -> None:
    trial = PushTrial(partitions=2, push_rebalance="all")
    a = trial.consumer("a")
    b = trial.consumer("b")
    c = trial.consumer("c")
    for consumer in (a, b):
        assert consumer.seen[-3:] == ["STOP", "PING", "START"]
    assert c.seen == ["START"]
    assert c.reads == {}


def test_a_change_during_a_rebalance_is_not_lost(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    c = trial.consumer("c")
    assert trial.push.again
    a.answers = True
    trial.run()
    assert shares(a, b, c) == [2, 2, 2]


def test_topics_that_grow_and_come_are_divided(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b", topics={"t": 1, "u": 1})
    trial.set_topics(t=8)
    trial.run()
    assert shares(a, b) == [4, 4]
    trial.set_topics(t=8, u=1)
    trial.run()
    assert ("u", 0) in b.reads
    trial.set_topics(u=1)
    trial.run()
    assert (a.reads, b.reads.keys()) == ({}, {("u", 0)})


def test_a_topic_that_nobody_reads_changes_nothing(trial: PushTrial) -> None:
    a = trial.consumer("a")
    trial.set_topics(t=6, other=3)
    trial.run()
    assert a.seen == ["START"]


def test_wildcards_find_topics_as_they_come_and_leave_internal_ones_out(trial: PushTrial) -> None:
    a = trial.consumer("a", topics={}, regex="f.*")
    b = trial.consumer("b", topics={}, regex="f.*", excluding=True)
    assert (a.reads, len(b.reads)) == ({}, 6)
    trial.set_topics(t=6, f1=1, __f=1)
    trial.run()
    assert a.reads.keys() == {("f1", 0)}
    assert {topic for topic, _ in b.reads} == {"t"}
    assert trial.push.is_subscribed("f1")
    assert not trial.push.is_subscribed("__f")


def test_streams_count(trial: PushTrial) -> None:
    a, b = trial.consumer("a", topics={"t": 2}), trial.consumer("b")
    assert (len(a.reads), len(b.reads)) == (4, 2)


def test_own_topics_of_members(trial: PushTrial) -> None:
    trial.set_topics(t=2, u=2)
    a, b = trial.consumer("a"), trial.consumer("b", topics={"u": 1})
    assert {topic for topic, _ in a.reads} == {"t"}
    assert {topic for topic, _ in b.reads} == {"u"}


def test_range() -> None:
    trial = PushTrial(push_assignor="range")
    a, b = trial.consumer("a"), trial.consumer("b")
    assert (a.partitions, b.partitions) == ({0, 1, 2}, {3, 4, 5})


def test_a_failed_assignment_is_tried_again_and_logged(trial: PushTrial) -> None:
    trial.works_at_once = False
    a = trial.consumer("a")
    (work,) = trial.work
    trial.work.clear()
    trial.feed(PushAssignmentComputed("g", work.ticket, {}, {}, "ValueError: no"))  # type: ignore[union-attr]
    trial.works_at_once = True
    trial.pass_time(trial.config.push_rebalance_backoff_ms)
    assert shares(a) == [6]


def test_a_rebalance_that_never_ends_is_given_up_and_said_so() -> None:
    trial = PushTrial(push_rebalance_retries=1, push_rebalance_backoff_ms=100)
    long = {"session_timeout_ms": 60_000}
    a = trial.consumer("a", **long)
    a.answers = False
    trial.consumer("b", **long)
    trial.pass_time(59_000)
    assert trial.counted(CoordinatorMeter.PUSH_FAILED) == 0
    a_late = PushTrial(push_rebalance_retries=0, push_rebalance_backoff_ms=100, push_failed_requests_max=9)
    a = a_late.consumer("a")
    a.answers = False
    b = a_late.consumer("b")
    a_late.pass_time(3 * THIRD_MS)
    assert a_late.counted(CoordinatorMeter.PUSH_FAILED) == 1
    assert a.dismissed is not None
    assert b.reads == {}, "its lease is not over"
    a_late.pass_time(9 * THIRD_MS)
    assert shares(b) == [6]


def test_an_error_in_answer_to_a_start_stops_it_again(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    trial.consumer("b").answers = False
    a.answer()
    a.answer()
    assert isinstance(a.owed[0], StartConsumer)
    a.answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert a.seen[-1] == "STOP"
    a.answers = True
    trial.run()
    assert shares(a) == [3]


def test_who_refuses_everything_is_dismissed_and_out_after_its_session(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    for _ in range(trial.config.push_failed_requests_max):
        a.answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert a.dismissed is not None
    assert b.reads == {}
    trial.pass_time(SESSION_MS)
    assert shares(b) == [6]


def test_rebalances_are_counted_with_their_downtime(trial: PushTrial) -> None:
    trial.consumer("a")
    trial.consumer("b")
    notes = [note for note in trial.notes if isinstance(note, Rebalanced)]
    assert [(note.protocol, note.members) for note in notes] == [("push", 1), ("push", 2)]


# -- returns and takeovers (4.12)


def test_a_member_whose_connection_ended_rejoins_with_what_it_owns(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    before = list(b.seen)
    a.lose_connection()
    trial.pass_time(1_000)
    again = trial.consumer("a")
    assert again.seen == ["PING", "START"]
    assert again.reads.keys() == a.reads.keys()
    assert b.seen == before, "nobody else hears of it"


def test_a_connection_that_ends_frees_nothing_before_the_session_is_over(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    a.lose_connection()
    trial.pass_time(SESSION_MS - 1)
    assert shares(b) == [3]
    trial.pass_time(1)
    assert shares(b) == [6]


def test_a_process_that_ended_is_out_at_once(trial: PushTrial) -> None:
    a = trial.consumer("a", client=Client("client", "/h", "p1"))
    b = trial.consumer("b")
    a.lose_connection(noticed=True, ended="p1")
    assert shares(b) == [6]


def test_who_leaves_is_out_at_once(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    (left,) = trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),))).members
    trial.run()
    assert left.error is ErrorCode.NONE
    assert shares(b) == [6]
    assert a.dismissed is not None


def test_after_a_takeover_members_rejoin_and_no_one_is_stopped(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    a.read(4)
    b.read(4)
    trial.restart()
    for consumer in (a, b):
        consumer.answers = False
        consumer.stopped = True  # the connection is another now
    again = [trial.consumer(name) for name in "ab"]
    for consumer, before in zip(again, (a, b), strict=True):
        assert consumer.seen == ["PING", "START"]
        assert consumer.reads.keys() == before.reads.keys()
    trial.pass_time(2 * SESSION_MS)
    assert all("STOP" not in consumer.seen for consumer in again)


def test_a_takeover_in_the_middle_of_a_rebalance_continues_it(trial: PushTrial) -> None:
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    for answered in range(5):
        trial.restart()
        a.stopped = b.stopped = True
        a.dismissed = b.dismissed = "another coordinator"
        a, b = trial.consumer("a"), trial.consumer("b")
        a.answers = False
        for _ in range(min(answered, len(a.owed))):
            a.answer()
    a.answers = True
    trial.run()
    assert shares(a, b) == [3, 3]


def test_a_member_that_does_not_rejoin_is_expired(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    trial.restart()
    a.dismissed = b.dismissed = "another coordinator"
    b = trial.consumer("b")
    trial.pass_time(SESSION_MS)
    assert shares(b) == [6]


# -- commits and administration


def commit(
    trial: PushTrial, member_id: str, partition: int, generation: int = 0, offset: int = 9, metadata: str = ""
) -> ErrorCode:
    said = OffsetToCommit("t", partition, offset, metadata=metadata)
    error: ErrorCode = trial.ask(OffsetCommit(trial.request(), "g", member_id, generation, (said,))).errors[0]
    return error


def test_commits_by_hand_are_taken_of_what_is_owned_until_the_stop_is_answered(trial: PushTrial) -> None:
    a = trial.consumer("a", auto_commit=False)
    assert commit(trial, "a", 0) is ErrorCode.NONE
    assert commit(trial, "x", 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(trial, "", 0, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    a.answers = False
    trial.consumer("b")
    assert commit(trial, "a", 0) is ErrorCode.NONE
    a.answer()
    assert commit(trial, "a", 0, offset=10) is ErrorCode.ILLEGAL_GENERATION
    a.answers = True
    trial.run()
    owned = min(a.partitions)
    assert commit(trial, "a", owned) is ErrorCode.NONE
    assert commit(trial, "b", owned, offset=10) is ErrorCode.ILLEGAL_GENERATION


def test_where_another_s_partition_is_may_be_said_again_with_metadata(trial: PushTrial) -> None:
    a = trial.consumer("a", auto_commit=False)
    trial.consumer("b")
    owned = min(a.partitions)
    assert commit(trial, "a", owned) is ErrorCode.NONE
    assert commit(trial, "b", owned, offset=9, metadata="left to a") is ErrorCode.NONE
    assert trial.saved(owned) == (9, "left to a")
    for offset in (8, 10):
        assert commit(trial, "b", owned, offset=offset, metadata="moved") is ErrorCode.ILLEGAL_GENERATION
    assert commit(trial, "x", owned, offset=9, metadata="nobody's") is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.saved(owned) == (9, "left to a")


def test_of_a_partition_that_nobody_reads_anyone_in_the_group_may_say_where_it_begins(trial: PushTrial) -> None:
    trial.consumer("a")
    trial.set_topics(t=6, unread=1)
    for partition, error in ((0, ErrorCode.NONE), (1, ErrorCode.ILLEGAL_GENERATION)):
        said = OffsetToCommit("unread", partition, 5)
        assert trial.ask(OffsetCommit(trial.request(), "g", "a", 0, (said,))).errors == (error,)
    moved = OffsetToCommit("unread", 0, 6)
    assert trial.ask(OffsetCommit(trial.request(), "g", "a", 0, (moved,))).errors == (ErrorCode.ILLEGAL_GENERATION,)


def test_the_first_offset_of_a_partition_is_its_owner_s_to_say(trial: PushTrial) -> None:
    a = trial.consumer("a", auto_commit=False, from_begin=None)
    trial.consumer("b", auto_commit=False, from_begin=None)
    owned = min(a.partitions)
    assert commit(trial, "b", owned) is ErrorCode.ILLEGAL_GENERATION
    assert commit(trial, "a", owned) is ErrorCode.NONE


def test_a_commit_is_taken_per_partition(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    ours, theirs = min(a.partitions), min(b.partitions)
    offsets = tuple(OffsetToCommit("t", number, 9) for number in (ours, theirs))
    errors = trial.ask(OffsetCommit(trial.request(), "g", "a", 0, offsets)).errors
    assert errors == (ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION)
    assert (trial.committed(partition=ours), trial.committed(partition=theirs)) == (9, 0)


def test_offsets_are_deleted_and_expire_as_others_do() -> None:
    trial = PushTrial(offsets_retention_minutes=60, offsets_retention_check_ms=600_000)
    trial.consumer("a")
    delete = OffsetDelete(trial.request(), "g", (TopicPartition("t", 0),))
    assert trial.ask(delete).errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NON_EMPTY_GROUP,)
    trial.pass_time(4_000_000)
    assert trial.committed() == 0, "it is read"
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    trial.pass_time(3_000_000)
    assert trial.committed() == 0, "its time starts when the group is empty"
    trial.pass_time(1_300_000)
    assert trial.ask(ListGroups(trial.request())).groups == ()
    assert list(trial.machine.snapshot()) == []


def test_a_ping_commits_no_position_of_a_partition_that_another_member_owns(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    own, others = set(a.partitions), set(b.partitions)
    a.read(5)
    a.reads |= dict.fromkeys(b.reads, 77)
    a.stopped = True  # the trial compares what running fetchers read; this test compares positions
    b.answers = False  # the answer to its own Ping would put back what the other one had changed
    trial.pass_time(THIRD_MS)
    assert a.seen[-1] == "PING"
    assert {trial.committed(partition=number) for number in own} == {5}
    assert {trial.committed(partition=number) for number in others} == {0}


def test_a_found_begin_replaces_no_position_that_was_committed_meanwhile(trial: PushTrial) -> None:
    trial.works_at_once = False
    a = trial.consumer("a", auto_commit=False)
    division = trial.work.pop()
    assert isinstance(division, ComputePushAssignment)
    trial.feed(compute_push_assignment(division, match))
    search = trial.work.pop()
    assert isinstance(search, FindOffsets)
    assert commit(trial, "a", 0, offset=42) is ErrorCode.NONE, "anyone in the group may say where it begins"
    trial.feed(trial.offsets_found(search))
    trial.run()
    assert a.reads == {("t", 0): 42} | {("t", number): 0 for number in range(1, 6)}
    assert trial.committed() == 42


def test_groups_are_listed_and_described_as_classic_ones(trial: PushTrial) -> None:
    a = trial.consumer("a")
    (listed,) = trial.ask(ListGroups(trial.request())).groups
    assert (listed.protocol_type, listed.state, listed.type) == ("consumer", "Stable", "classic")
    (described,) = trial.ask(DescribeGroups(trial.request(), ("g",))).groups
    assert (described.protocol_type, described.protocol) == ("consumer", "push")
    assignment = read_assignment(described.members[0].assignment)
    assert assignment is not None
    assert set(assignment.partitions) == {TopicPartition("t", number) for number in a.partitions}


def test_a_snapshot_replays(trial: PushTrial) -> None:
    for name in "abc":
        trial.consumer(name)
    records = list(trial.machine.snapshot())
    copy = trial.make_machine()
    for record in records:
        copy.apply(record)
    assert list(copy.snapshot()) == records


def test_nothing_is_owned_twice_whatever_the_order(trial: PushTrial) -> None:
    """Each consumer answers late or at once; the check runs after each answer."""
    for pattern in itertools.product((True, False), repeat=4):
        trial = PushTrial(partitions=4)
        consumers = []
        for name, answers in zip("abcd", pattern, strict=True):
            each = trial.consumer(name)
            each.answers = answers
            consumers.append(each)
        for consumer in consumers:
            consumer.answers = True
        trial.run()
        assert shares(*consumers) == [1, 1, 1, 1]


# -- what is shown elsewhere (4.7)


def shown(trial: PushTrial) -> MirroredPushGroup:
    request = trial.request()
    trial.feed(DescribePushGroups(request))
    (group,) = trial.reply(request).groups
    assert isinstance(group, MirroredPushGroup)
    return group


def test_ownership_is_shown_with_streams_and_offsets(trial: PushTrial) -> None:
    trial.consumer("a", topics={"t": 4})
    found = shown(trial)
    assert found.settled
    assert found.owners[TopicPartition("t", 0)] == "a-0"
    assert sorted(found.owners.values()) == ["a-0", "a-0", "a-1", "a-1", "a-2", "a-3"]
    assert {part: record.offset for part, record in found.offsets.items()} == {("t", number): 0 for number in range(6)}


def test_who_owns_what_was_deleted_is_stopped_and_started(trial: PushTrial) -> None:
    a, b = trial.consumer("a"), trial.consumer("b")
    part = TopicPartition(*next(iter(b.reads)))
    before, seen = dict(b.reads), len(a.seen)
    b.seen.clear()
    trial.feed(OwnerNodesDeleted("g", (part, TopicPartition("gone", 3))))
    assert not shown(trial).settled
    trial.run()
    assert b.seen == ["STOP", "PING", "START"]
    assert b.reads == before
    assert len(a.seen) == seen, "a keeps what it has, and hears nothing"
    assert shown(trial).settled


def test_owners_of_a_group_that_is_gone_say_nothing(trial: PushTrial) -> None:
    trial.feed(OwnerNodesDeleted("g", (TopicPartition("t", 0),)))
    assert not trial.machine.context.ledger.groups
