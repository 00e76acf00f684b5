"""Groups under KIP-848: joining, moving, leaving, fencing, and what is durable of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kohort.errors import ErrorCode
from kohort.groups import client_quirks
from kohort.groups.effects import ComputeAssignment, ListedGroup, ResolveRegexes
from kohort.groups.events import (
    AssignmentComputed,
    Client,
    ConnectionLost,
    ConsumerGroupDescribe,
    DeleteGroups,
    DescribeGroups,
    GroupSettings,
    GroupSettingsChanged,
    ListGroups,
    OffsetDelete,
    OffsetFetch,
    ReleaseLongPolls,
)
from kohort.groups.records import EpochBumped, MemberSaved, ReconciliationState, RegexResolved
from kohort.ids import TopicPartition
from tests.groups import harness
from tests.groups.harness import Trial, owned, topic_id
from tests.groups.test_conversion import offer


def make_trial(**config: object) -> Trial:
    trial = Trial(**config)
    trial.set_topics(t=4)
    return trial


def held(reply: object) -> list[int]:
    """The partitions in a reply's assignment."""
    return [number for entry in reply.assignment for number in entry.partitions]  # type: ignore[attr-defined]


def epoch_of(trial: Trial) -> int:
    return int(describe(trial).epoch)


def describe(trial: Trial, group_id: str = "g") -> object:
    return trial.ask(ConsumerGroupDescribe(trial.request(), (group_id,))).groups[0]


def settle(trial: Trial, *members: str) -> dict[str, tuple[int, list[int]]]:
    """Let clients do what they are told until nothing changes; epoch and partitions by member."""
    state: dict[str, tuple[int, list[int]]] = dict.fromkeys(members, (0, []))
    for member in members:
        for entry in describe(trial).members:  # type: ignore[attr-defined]
            if entry.member_id == member:
                have = [number for topic in entry.assignment for number in topic.partitions]
                state[member] = (entry.member_epoch, have)
    for _ in range(10):
        for member in members:
            epoch, have = state[member]
            reply = trial.beat(member, epoch, owned=owned("t", *have))
            assert reply.error is ErrorCode.NONE
            state[member] = (reply.member_epoch, held(reply) if reply.assignment is not None else have)
    return state


def test_a_first_member_gets_everything_with_its_first_reply() -> None:
    trial = make_trial()
    reply = trial.beat("a")
    assert (reply.error, reply.member_id, reply.member_epoch) == (ErrorCode.NONE, "a", 2)
    assert held(reply) == [0, 1, 2, 3]
    assert reply.heartbeat_interval_ms == 5_000
    assert describe(trial).state == "Stable"  # type: ignore[attr-defined]
    later = trial.beat("a", 2)
    assert (later.member_epoch, later.assignment) == (2, None)


def test_a_second_member_gets_its_part_when_the_first_has_given_it_up() -> None:
    trial = make_trial()
    trial.beat("a")
    second = trial.beat("b")
    assert (second.member_epoch, held(second), second.heartbeat_interval_ms) == (3, [], 200)
    first = trial.beat("a", 2)
    kept = held(first)
    assert (first.member_epoch, len(kept), first.heartbeat_interval_ms) == (2, 2, 200)
    assert trial.beat("b", 3, owned=()).assignment is None
    still = trial.beat("a", 2, owned=owned("t", 0, 1, 2, 3))
    assert still.member_epoch == 2
    done = trial.beat("a", 2, owned=owned("t", *kept))
    assert done.member_epoch == 3
    second = trial.beat("b", 3)
    assert sorted(held(second) + kept) == [0, 1, 2, 3]
    assert describe(trial).state == "Stable"  # type: ignore[attr-defined]


def test_a_joiner_waits_for_its_target_to_be_computed() -> None:
    trial = make_trial()
    trial.works_at_once = False
    event = trial.consumer_event("a")
    trial.feed(event)
    assert trial.reply(event.request) is None
    assert len(trial.work) == 1
    trial.do_work()
    assert held(trial.reply(event.request)) == [0, 1, 2, 3]


def test_a_target_for_an_older_epoch_is_progress() -> None:
    trial = make_trial()
    trial.works_at_once = False
    first, second = trial.consumer_event("a"), trial.consumer_event("b")
    trial.feed(first)
    trial.feed(second)
    assert len(trial.work) == 1
    trial.do_work()
    assert trial.reply(first.request).member_epoch == 2
    assert trial.reply(second.request).member_epoch == 3


def test_a_failed_computation_is_logged_and_tried_again() -> None:
    trial = make_trial()
    trial.works_at_once = False
    event = trial.consumer_event("a")
    trial.feed(event)
    work = trial.work.pop()
    trial.feed(AssignmentComputed("g", work.ticket, 1, {}, "it broke"))  # type: ignore[union-attr]
    reply = trial.reply(event.request)
    assert (reply.error, reply.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "it broke")
    trial.works_at_once = True
    assert held(trial.beat("a")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": owned("t", 1)}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topics": None}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 2, "member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 2, "group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1, "group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": 2, "member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": -1, "member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": 8}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"epoch": 2, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_is_refused(change: dict[str, object], error: ErrorCode) -> None:
    trial = make_trial()
    trial.beat("a")
    member = str(change.pop("member_id", "a"))
    epoch = int(str(change.pop("epoch", 0)))
    before = list(trial.machine.snapshot())
    reply = trial.beat(member, epoch, **change)
    assert reply.error is error
    assert reply.error_message
    assert list(trial.machine.snapshot()) == before


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        {"rack_id": "r" * 40_000},
        {"client": Client("\ufffd" * 20_000, "/h")},
        {"subscribed_regex": "r" * 40_000},
        {"subscribed_topics": ("ü" * 1_500,)},
    ],
)
def test_heartbeat_of_any_epoch_is_refused_when_its_record_would_be_too_large(
    change: dict[str, object], epoch: int
) -> None:
    trial = make_trial(group_record_bytes_max=2_000)
    trial.beat("a")
    before = list(trial.machine.snapshot())
    reply = trial.beat("a", epoch, **change)
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert list(trial.machine.snapshot()) == before


def test_a_full_group_refuses_new_members() -> None:
    trial = make_trial(consumer_max_size=1)
    trial.beat("a")
    assert trial.beat("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert trial.beat("a", 2).error is ErrorCode.NONE


@pytest.mark.parametrize("subscribed", [{"subscribed_topics": ("t",)}, {"subscribed_regex": "t.*"}])
def test_a_member_that_had_no_answer_gets_its_target_again(subscribed: dict[str, Any]) -> None:
    """The member's heartbeat repeats its state; the lost answer may be the one that took partitions away."""
    trial = Trial()
    trial.set_topics(t=4)
    epoch = trial.beat("a", **({"subscribed_topics": None} | subscribed)).member_epoch
    trial.beat("b", **({"subscribed_topics": None} | subscribed))
    lost = trial.beat("a", epoch)
    assert len(lost.assignment[0].partitions) == 2
    assert trial.beat("a", epoch).assignment is None
    again = trial.beat("a", epoch, rebalance_timeout_ms=60_000, owned=owned("t", 0, 1, 2, 3), **subscribed)
    assert again.assignment == lost.assignment


def test_a_lost_reply_is_forgiven_once_the_member_says_what_it_has() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    first = trial.beat("a", 2)
    trial.beat("a", 2, owned=owned("t", *held(first)))
    assert trial.beat("a", 2, owned=owned("t", 0, 1, 2, 3)).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert trial.beat("a", 2).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert trial.beat("a", 2, owned=owned("t", *held(first))).member_epoch == 3


def test_scenario_6_a_partition_is_assigned_anew_while_its_revocation_is_pending() -> None:
    """While "a" has not given it up, no one else gets it, whatever epochs come and go."""
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    pending = {0, 1, 2, 3} - set(held(trial.beat("a", 2)))
    trial.beat("b", -1)
    trial.beat("c")
    for _ in range(3):
        reply = trial.beat("c", trial.consumer_group().current_assignment("c").member_epoch)
        assert reply.assignment is None or not pending & set(held(reply))
    assert trial.beat("a", 2).member_epoch == 2
    state = settle(trial, "a", "c")
    assert sorted(state["a"][1] + state["c"][1]) == [0, 1, 2, 3]


def test_scenario_7_a_fenced_member_joins_again_with_epoch_0() -> None:
    trial = make_trial()
    trial.beat("a")
    assert trial.beat("a", 6).error is ErrorCode.FENCED_MEMBER_EPOCH
    again = trial.beat("a")
    assert (again.error, held(again), again.member_epoch) == (ErrorCode.NONE, [0, 1, 2, 3], 2)


def test_scenario_7_the_last_member_leaves_and_epochs_agree() -> None:
    trial = make_trial()
    trial.beat("a")
    assert trial.beat("a", -1).member_epoch == -1
    group = describe(trial)
    assert (group.state, group.epoch, group.assignment_epoch) == ("Empty", 3, 3)  # type: ignore[attr-defined]
    assert trial.beat("a").member_epoch == 4


def test_a_member_without_heartbeats_is_evicted() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    for _ in range(10):
        trial.pass_time(5_000)
        trial.beat("b", 3)
    assert trial.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert held(trial.beat("b")) == [0, 1, 2, 3]


def make_overdue(trial: Trial) -> None:
    """Member "a" was told 10 s ago to give half of its partitions to "b", and did not."""
    trial.beat("a", rebalance_timeout_ms=10_000)
    trial.beat("b")
    trial.beat("a", 2)
    for _ in range(2):
        trial.pass_time(5_000)
        trial.beat("b", 3)
        late = trial.beat("a", 2)
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_must_join_again() -> None:
    trial = make_trial()
    make_overdue(trial)
    again = trial.beat("a")
    assert (again.error, len(held(again))) == (ErrorCode.NONE, 2)
    state = settle(trial, "a", "b")
    assert sorted(state["a"][1] + state["b"][1]) == [0, 1, 2, 3]
    assert trial.beat("a", again.member_epoch).error is ErrorCode.NONE


def test_a_member_that_may_not_have_heard_that_it_must_revoke_keeps_its_partitions_for_its_session() -> None:
    """Refused heartbeats prove nothing: they neither extend the member's session nor end it."""
    trial = make_trial()
    make_overdue(trial)  # it was heard 5 s ago
    for _ in range(7):
        trial.pass_time(5_000)
        assert trial.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert not held(trial.beat("b"))
    trial.pass_time(5_000)
    assert held(trial.beat("b")) == [0, 1, 2, 3]
    assert trial.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_did_not_revoke_in_time_may_leave() -> None:
    trial = make_trial()
    make_overdue(trial)
    assert trial.beat("a", -1).error is ErrorCode.NONE
    assert held(trial.beat("b")) == [0, 1, 2, 3]


def test_a_static_member_rejoins_to_what_it_had() -> None:
    trial = make_trial()
    trial.beat("a", instance_id="i")
    assert trial.beat("b", instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert trial.beat("a", -2, instance_id="i").member_epoch == -2
    epoch = epoch_of(trial)
    back = trial.beat("b", instance_id="i")
    assert (held(back), back.member_epoch, epoch_of(trial)) == ([0, 1, 2, 3], epoch, epoch)
    assert trial.beat("a", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert trial.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.beat("a", -1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("first", ["i", None], ids=["static", "dynamic"])
def test_a_member_does_not_change_its_instance_id(first: str | None) -> None:
    """A second one outlived the member, and the next who used it broke the shard (apache/kafka #23542)."""
    trial = make_trial()
    trial.beat("a", instance_id=first)
    refused = trial.beat("a", instance_id="j")
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "cannot change its instance id" in str(refused.error_message)
    assert trial.beat("a", 2, instance_id=first).error is ErrorCode.NONE
    assert trial.beat("a", -1, instance_id=first).error is ErrorCode.NONE
    for instance_id in ("i", "j"):
        assert trial.beat(f"new-{instance_id}", instance_id=instance_id).error is ErrorCode.NONE


@pytest.mark.parametrize("first", ["i", None], ids=["static", "dynamic"])
def test_a_member_does_not_take_the_place_of_a_static_member_that_is_away(first: str | None) -> None:
    """The member had that one's partitions, and nobody had its own."""
    trial = make_trial()
    for member_id, instance_id in (("a", first), ("c", "j")):
        assert trial.beat(member_id, instance_id=instance_id).error is ErrorCode.NONE
    assert trial.beat("c", -2, instance_id="j").error is ErrorCode.NONE
    refused = trial.beat("a", instance_id="j")
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "cannot change its instance id" in str(refused.error_message)
    assert trial.beat("new-c", instance_id="j").error is ErrorCode.NONE
    assert trial.beat("a", instance_id=first).error is ErrorCode.NONE


def test_a_member_that_had_another_instance_id_in_an_older_journal_is_known_by_its_last_one() -> None:
    trial = make_trial()
    trial.beat("a", instance_id="i")
    (saved,) = [record for record in trial.journal if isinstance(record, MemberSaved)]
    trial.journal.append(replace(saved, instance_id="j"))
    trial.restart()
    assert trial.beat("b", instance_id="i").error is ErrorCode.NONE
    assert trial.beat("c", instance_id="j").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert trial.beat("a", -1, instance_id="j").error is ErrorCode.NONE
    assert trial.beat("c", instance_id="j").error is ErrorCode.NONE


def test_a_static_member_that_stays_away_is_evicted() -> None:
    trial = make_trial()
    trial.beat("a", instance_id="i")
    trial.beat("a", -2, instance_id="i")
    trial.pass_time(45_000)
    assert describe(trial).state == "Empty"  # type: ignore[attr-defined]


def test_topics_that_grow_appear_or_go_begin_an_epoch() -> None:
    trial = make_trial()
    trial.beat("a", subscribed_topics=("t", "u"))
    trial.set_topics(t=4, x=1)
    assert epoch_of(trial) == 2
    trial.set_topics(t=5, x=1)
    assert held(trial.beat("a", 2)) == [0, 1, 2, 3, 4]
    trial.set_topics(t=5, x=1, u=1)
    assert epoch_of(trial) == 4
    assert len(held(trial.beat("a", 3))) == 6
    trial.set_topics(x=1, u=1)
    assert len(held(trial.beat("a", 4))) == 1
    last = trial.beat("a", 4, owned=owned("u", 0))
    assert (last.member_epoch, held(last)) == (5, [0])


def test_a_regular_expression_is_resolved_and_resolved_again() -> None:
    trial = make_trial()
    trial.set_topics(t=4, flights=2, trains=3)
    reply = trial.beat("a", subscribed_topics=None, subscribed_regex="f.*")
    assert held(reply) == [0, 1]
    trial.set_topics(t=4, flights=2, trains=3, ferries=1)
    assert len(held(trial.beat("a", reply.member_epoch))) == 3
    changed = trial.beat("a", epoch_of(trial), subscribed_regex="tr.*")
    assert changed.error is ErrorCode.NONE
    assert settle(trial, "a")["a"][0] == epoch_of(trial)
    patterns = [record.regex for record in trial.machine.snapshot() if hasattr(record, "regex")]
    assert patterns == ["tr.*"]


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_a_topic_made_while_a_pattern_is_resolved_is_matched(known: bool) -> None:
    """The resolution under way has the names of before; no later event asks for another one."""
    trial = Trial()
    trial.set_topics(t1=1)
    if known:
        trial.beat("a", subscribed_topics=None, subscribed_regex="t.*")
    trial.works_at_once = False
    if known:
        trial.set_topics(t1=1, u=1)
    else:
        trial.beat("a", subscribed_topics=None, subscribed_regex="t.*")
    assert [type(work) for work in trial.work] == [ResolveRegexes]
    trial.set_topics(t1=1, t2=1)
    trial.works_at_once = True
    trial.do_work()
    assert {topic for topic, _ in trial.consumer_group().targets["a"]} == {topic_id("t1"), topic_id("t2")}


@pytest.mark.parametrize("change", ["grown", "made"])
def test_topics_that_change_while_a_target_is_computed_are_in_the_next_target(change: str) -> None:
    trial = Trial()
    trial.set_topics(t=1)
    trial.works_at_once = False
    trial.beat("a", subscribed_topics=("t", "u"))
    assert [type(work) for work in trial.work] == [ComputeAssignment]
    trial.set_topics(**({"t": 2} if change == "grown" else {"t": 1, "u": 1}))
    trial.works_at_once = True
    trial.do_work()
    assert len(trial.consumer_group().targets["a"]) == 2


@pytest.mark.parametrize(
    ("session_ms", "interval_ms"), [(5_000, 1_666), (4_000, 1_333), (5_001, 5_000), (2, 1)], ids=str
)
def test_heartbeat_interval_is_shorter_than_the_session(session_ms: int, interval_ms: int) -> None:
    trial = make_trial(consumer_session_timeout_ms=session_ms)
    assert trial.beat("a").heartbeat_interval_ms == interval_ms


def test_a_pattern_is_resolved_again_after_the_refresh_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights that change meanwhile decide what it selects; no event of the group tells of them."""
    trial = Trial(consumer_regex_refresh_ms=20_000)
    trial.set_topics(t1=1, t2=1)
    member = {"subscribed_topics": None, "subscribed_regex": "t.*"}
    assert len(trial.beat("a", **member).assignment) == 2
    monkeypatch.setattr(harness, "match", lambda regex, topics: ["t1"])
    for _ in range(4):
        trial.pass_time(4_000)
        trial.beat("a", epoch_of(trial))
    before = epoch_of(trial)
    trial.pass_time(4_000)
    trial.beat("a", epoch_of(trial))
    assert epoch_of(trial) == before + 1
    resolved = [record.topics for record in trial.machine.snapshot() if isinstance(record, RegexResolved)]
    assert resolved == [("t1",)]


def test_topics_that_came_while_no_one_read_the_pattern_are_found() -> None:
    """Neither an empty group's patterns nor a stopped coordinator's are looked after."""
    trial = Trial()
    trial.set_topics(t=1)
    trial.beat("a", subscribed_topics=None, subscribed_regex="t.*")
    trial.beat("a", -1)
    trial.set_topics(t=1, t2=1)
    assert len(trial.beat("b", subscribed_topics=None, subscribed_regex="t.*").assignment) == 2
    grown = Trial()
    grown.set_topics(t=1, t2=1, t3=1)
    trial.image = grown.image
    trial.restart()
    assert len(trial.beat("b", subscribed_topics=None, subscribed_regex="t.*").assignment) == 3


def test_the_assignor_that_most_members_wish_for() -> None:
    trial = make_trial()
    trial.beat("a", server_assignor="range")
    assert describe(trial).assignor == "range"  # type: ignore[attr-defined]


def test_a_wish_for_another_assignor_begins_an_epoch_when_the_group_prefers_it_now() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    epoch = describe(trial).epoch  # type: ignore[attr-defined]
    trial.beat("a", epoch, server_assignor="uniform")
    assert describe(trial).epoch == epoch, "it is preferred already"  # type: ignore[attr-defined]
    trial.beat("b", epoch, server_assignor="range")
    trial.beat("a", epoch, server_assignor="range")
    assert describe(trial).epoch == epoch + 1  # type: ignore[attr-defined]
    assert describe(trial).assignor == "range"  # type: ignore[attr-defined]


def test_a_held_heartbeat_is_answered_when_something_changes() -> None:
    trial = make_trial()
    trial.beat("a")
    waiting = trial.consumer_event("a", 2, delay_ms=4_500, short_interval=True)
    trial.feed(waiting)
    assert trial.reply(waiting.request) is None
    trial.beat("b")
    reply = trial.reply(waiting.request)
    assert (reply.member_epoch, len(held(reply))) == (2, 2)


def test_a_held_heartbeat_is_answered_when_its_time_is_over_or_the_shell_asks() -> None:
    trial = make_trial()
    trial.beat("a")
    first = trial.consumer_event("a", 2, delay_ms=4_500, short_interval=True)
    trial.feed(first)
    trial.pass_time(4_499)
    assert trial.reply(first.request) is None
    trial.pass_time(1)
    assert trial.reply(first.request).error is ErrorCode.NONE
    second = trial.consumer_event("a", 2, delay_ms=4_500, short_interval=True)
    trial.feed(second)
    trial.feed(ReleaseLongPolls((second.request,)))
    assert trial.reply(second.request).error is ErrorCode.NONE


def test_a_client_that_waits_the_interval_is_long_polled_for_a_part_of_it() -> None:
    trial = make_trial()
    trial.beat("a")
    event = trial.consumer_event("a", 2, delay_ms=30_000)
    trial.feed(event)
    trial.pass_time(4_499)
    assert trial.reply(event.request) is None
    trial.pass_time(1)
    assert trial.reply(event.request).heartbeat_interval_ms == 5_000


@pytest.mark.parametrize(("interval_ms", "delay_ms"), [(5_000, 4_500), (3_000, 2_600), (1_000, 600), (200, -200)])
def test_longest_delay_leaves_time_for_a_late_response(interval_ms: int, delay_ms: int) -> None:
    assert client_quirks.max_response_delay_ms(interval_ms) == delay_ms


def test_a_client_that_is_long_polled_anyway_gets_a_short_interval() -> None:
    trial = make_trial()
    assert trial.beat("a", short_interval=True, delay_ms=4_500).heartbeat_interval_ms == 200


@pytest.mark.parametrize(
    ("mode", "software", "expected"),
    [
        ("known", "apache-kafka-java", (4_500, True)),
        ("known", "librdkafka", (30_000, False)),
        ("known", "KafkaJS", (0, False)),
        ("known", None, (0, False)),
        ("off", "apache-kafka-java", (0, False)),
        ("all", "anything", (30_000, False)),
    ],
)
def test_who_is_held(mode: str, software: str | None, expected: tuple[int, bool]) -> None:
    assert client_quirks.delay_tolerance(mode, software) == expected


def test_unsettled_members_get_the_plain_interval_when_long_polling_is_off() -> None:
    trial = make_trial(notify_at_once="off")
    trial.beat("a")
    assert trial.beat("b").heartbeat_interval_ms == 5_000


def test_a_groups_own_settings() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.feed(GroupSettingsChanged("g", GroupSettings(50_000, 7_000)))
    assert trial.beat("a", 2).heartbeat_interval_ms == 7_000
    trial.restart()
    assert trial.beat("a", 2).heartbeat_interval_ms == 5_000, "a new coordinator is given them: no record has them"
    trial.restart(settings={"g": GroupSettings(50_000, 8_000)})
    assert trial.beat("a", 2).heartbeat_interval_ms == 8_000
    trial.feed(GroupSettingsChanged("g", GroupSettings()))
    assert trial.beat("a", 2).heartbeat_interval_ms == 5_000


@pytest.mark.parametrize("before", ["nothing", "an empty classic group", "a classic group", "a deleted group"])
def test_a_groups_own_settings_may_come_before_it(before: str) -> None:
    trial = make_trial()
    trial.feed(GroupSettingsChanged("g", GroupSettings(50_000, 7_000)))
    if before == "an empty classic group":
        trial.commit(1)
    elif before == "a classic group":
        classic = trial.joined(protocols=offer())
    elif before == "a deleted group":
        trial.beat("a")
        trial.beat("a", -1)
        assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)
    epoch = trial.beat("a").member_epoch
    if before == "a classic group":
        assert trial.leave(classic.member_id) is ErrorCode.NONE
        epoch = settle(trial, "a")["a"][0]
    assert trial.beat("a", epoch).heartbeat_interval_ms == 7_000
    trial.pass_time(49_999)
    assert trial.beat("a", epoch).error is ErrorCode.NONE


def test_a_joiner_without_an_id_whose_connection_ends_is_dropped() -> None:
    trial = make_trial()
    trial.works_at_once = False
    trial.feed(trial.consumer_event("", connection=3))
    trial.feed(ConnectionLost(3))
    trial.do_work()
    assert describe(trial).members == ()  # type: ignore[attr-defined]


def test_who_may_commit_and_fetch() -> None:
    trial = make_trial()
    trial.beat("a")
    assert trial.commit(1, "a", 2) is ErrorCode.NONE
    assert trial.commit(1, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(1, "a", 2, knows_stale_epoch=False) is ErrorCode.UNSUPPORTED_VERSION
    assert trial.commit(1, "ghost", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.commit(1) is ErrorCode.UNKNOWN_MEMBER_ID
    wanted = (TopicPartition("t", 0),)
    for member, epoch, error in [
        (None, -1, ErrorCode.NONE),
        ("a", 2, ErrorCode.NONE),
        ("a", 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("ghost", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        reply = trial.ask(OffsetFetch(trial.request(), "g", wanted, member_id=member, member_epoch=epoch))
        assert reply.error is error
    trial.beat("a", -1)
    assert trial.commit(2) is ErrorCode.NONE


@pytest.mark.parametrize("restarted", [False, True], ids=["live", "replayed"])
def test_a_commit_with_an_older_epoch_counts_for_what_was_held_then_and_still_is(restarted: bool) -> None:
    """The member's epoch may have moved on while the commit was on its way, also by a heartbeat not yet answered."""
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    kept, *_ = had = held(trial.beat("a", 2))
    (gone, *_) = sorted({0, 1, 2, 3} - set(had))
    if restarted:
        trial.restart()
    assert trial.commit(1, "a", 2, partition=gone) is ErrorCode.NONE
    assert trial.beat("a", 2, owned=owned("t", *had)).member_epoch == 3
    taken = held(trial.beat("b", 3))
    if restarted:
        trial.restart()
    assert gone in taken
    assert trial.commit(2, "a", 2, partition=kept) is ErrorCode.NONE
    assert trial.commit(2, "a", 2, partition=gone) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(2, "b", 2, partition=gone) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(2, "a", 1, partition=kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(2, "a", 4, partition=kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(2, "a", 2, topic="unknown") is ErrorCode.STALE_MEMBER_EPOCH
    assert (trial.committed(partition=kept), trial.committed(partition=gone)) == (2, 1)


def test_administration_of_a_consumer_group() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.commit(1, "a", 2)
    trial.commit(1, "a", 1, topic="old")
    assert trial.ask(ListGroups(trial.request(), types=("Consumer",))).groups == (
        ListedGroup("g", "consumer", "Stable", "consumer"),
    )
    assert trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0].error is ErrorCode.GROUP_ID_NOT_FOUND
    gone = OffsetDelete(trial.request(), "g", (TopicPartition("t", 0), TopicPartition("old", 0)))
    assert trial.ask(gone).errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NON_EMPTY_GROUP,)
    trial.beat("a", -1)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)
    assert list(trial.machine.snapshot()) == []
    assert describe(trial).error is ErrorCode.GROUP_ID_NOT_FOUND  # type: ignore[attr-defined]


def test_a_restart_at_every_record_ends_in_a_whole_group() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("b")
    settle(trial, "a", "b")
    trial.beat("c", instance_id="i")
    settle(trial, "a", "b")
    whole = list(trial.journal)
    for cut in range(len(whole) + 1):
        again = make_trial()
        again.journal = list(whole)
        again.restart(cut=cut)
        for member, more in (("a", {}), ("b", {}), ("c", {"instance_id": "i"})):
            again.beat(member, **more)
        state = settle_with(again)
        assert sorted(number for _, have in state.values() for number in have) == [0, 1, 2, 3], cut


def settle_with(trial: Trial) -> dict[str, tuple[int, list[int]]]:
    """Settle the group like `settle`, with one static member."""
    state: dict[str, tuple[int, list[int]]] = {}
    for entry in describe(trial).members:  # type: ignore[attr-defined]
        state[entry.member_id] = (entry.member_epoch, [n for topic in entry.assignment for n in topic.partitions])
    for _ in range(10):
        for member, (epoch, have) in list(state.items()):
            more = {"instance_id": "i"} if member == "c" else {}
            reply = trial.beat(member, epoch, owned=owned("t", *have), **more)
            assert reply.error is ErrorCode.NONE
            state[member] = (reply.member_epoch, held(reply) if reply.assignment is not None else have)
    return state


def test_a_snapshot_replays_to_the_same_state() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("b", subscribed_topics=None, subscribed_regex="t")
    trial.beat("a", 2)
    trial.journal[:] = list(trial.machine.snapshot())
    trial.restart()
    assert list(trial.machine.snapshot()) == trial.journal
    current = trial.consumer_group()
    assert current.current_assignment("a").state is ReconciliationState.UNREVOKED_PARTITIONS
    assert len(current.holders) == 4


def test_topics_that_changed_during_a_restart_are_noticed() -> None:
    trial = make_trial()
    trial.beat("a")
    grown = Trial()
    grown.set_topics(t=6)
    trial.image = grown.image
    trial.restart()
    assert trial.journal[-2:] != []
    assert any(isinstance(record, EpochBumped) and record.epoch == 3 for record in trial.journal)
    assert len(held(trial.beat("a", 2))) == 6


def test_a_thousand_members_join_at_once_and_are_stable() -> None:
    trial = make_trial()
    trial.set_topics(t=2_000)
    trial.works_at_once = False
    events = [trial.consumer_event(f"m{number}") for number in range(1_000)]
    for event in events:
        trial.feed(event)
    trial.do_work()
    state = {
        event.member_id: (reply.member_epoch, held(reply)) for event in events if (reply := trial.reply(event.request))
    }
    assert len(state) == 1_000
    for _ in range(6):
        for member, (epoch, have) in list(state.items()):
            reply = trial.beat(member, epoch, owned=owned("t", *have))
            state[member] = (reply.member_epoch, held(reply) if reply.assignment is not None else have)
    assert describe(trial).state == "Stable"  # type: ignore[attr-defined]
    assert sorted(number for _, have in state.values() for number in have) == list(range(2_000))


def test_members_of_a_large_group_are_heard_one_after_the_other() -> None:
    trial = Trial()
    trial.set_topics(t=1)
    trial.works_at_once = False
    joins = {f"m{number}": trial.consumer_event(f"m{number}") for number in range(600)}
    for event in joins.values():
        trial.feed(event)
    while any(trial.reply(event.request) is None for event in joins.values()):
        trial.do_work()
    _, *reported = [trial.reply(event.request).heartbeat_interval_ms for event in joins.values()]
    assert 2_500 < min(reported) < 3_000 and 4_500 < max(reported) <= 5_000
    epochs = {name: trial.reply(event.request).member_epoch for name, event in joins.items() if name != "m0"}
    assert {trial.beat(name, epoch).heartbeat_interval_ms for name, epoch in epochs.items()} == {5_000}
