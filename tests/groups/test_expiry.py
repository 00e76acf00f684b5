"""Scenario 13 and spec 1.5-1.6: which positions expire, and from when."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups.effects import CoordinatorMeter
from kohort.groups.events import ListGroups, OffsetDelete, OffsetToCommit, TransactionEnded, TxnOffsetCommit
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, protocols

HOUR_MS = 3_600_000
CHECK_MS = 60_000


def make_trial() -> Trial:
    return Trial(offsets_retention_minutes=60, offsets_retention_check_ms=CHECK_MS, max_session_timeout_ms=24 * HOUR_MS)


def is_gone(trial: Trial) -> bool:
    return "g" not in [group.group_id for group in trial.ask(ListGroups(trial.request())).groups]


def assert_expires_from_now(trial: Trial) -> None:
    """The group's one position is there for its time from now on, and then nothing of the group is left."""
    trial.pass_time(HOUR_MS - CHECK_MS)
    assert trial.committed() == 1
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed() == -1
    assert trial.counted(CoordinatorMeter.OFFSET_EXPIRATIONS) == 1
    assert is_gone(trial)
    assert list(trial.machine.snapshot()) == []


def test_scenario_13_an_empty_groups_positions_expire_from_the_moment_it_became_empty() -> None:
    trial = make_trial()
    members, generation = trial.stable(1, session_timeout_ms=10 * HOUR_MS)
    trial.commit(1, members[0], generation)
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed() == 1
    trial.leave(members[0])
    assert_expires_from_now(trial)


def test_scenario_13_a_stable_group_loses_only_positions_of_topics_it_does_not_read() -> None:
    trial = make_trial()
    members, generation = trial.stable(1, session_timeout_ms=10 * HOUR_MS)
    trial.commit(1, members[0], generation)
    trial.commit(2, members[0], generation, topic="old")
    trial.pass_time(HOUR_MS + CHECK_MS)
    assert (trial.committed(), trial.committed("old")) == (1, -1)


@pytest.mark.parametrize("kind", ["rebalancing", "other type", "unreadable"])
def test_scenario_13_no_position_expires(kind: str) -> None:
    trial = make_trial()
    more: dict[str, object] = {"session_timeout_ms": 10 * HOUR_MS, "rebalance_timeout_ms": 10 * HOUR_MS}
    if kind == "other type":
        more["protocol_type"] = "connect"
    if kind == "unreadable":
        more["protocols"] = (type(protocols("range")[0])("range", b"\x00"),)
    members, generation = trial.stable(2, **more)
    trial.commit(2, members[0], generation, topic="old")
    if kind == "rebalancing":
        trial.join(members[0], **more)
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed("old") == 2


def test_scenario_13_pending_positions_keep_theirs_and_their_group() -> None:
    trial = make_trial()
    trial.commit(1)
    trial.feed(TxnOffsetCommit(trial.request(), "g", 9, 0, (OffsetToCommit("t", 0, 2),)))
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed() == 1


def test_a_group_that_has_only_offsets_of_an_open_transaction_stays() -> None:
    """The generation stays too: one that is issued twice could not fence a member of the first one."""
    trial = make_trial()
    members, generation = trial.stable(1)
    trial.leave(members[0])
    trial.feed(TxnOffsetCommit(trial.request(), "g", 9, 0, (OffsetToCommit("t", 0, 2),)))
    trial.pass_time(3 * HOUR_MS)
    assert not is_gone(trial)
    trial.feed(TransactionEnded(9, 0, commit=True))
    assert trial.committed() == 2
    assert trial.stable(1)[1] > generation


def test_a_group_whose_only_member_has_an_id_and_has_not_joined_with_it_yet_stays() -> None:
    """A group that went meanwhile would refuse the join with the id that it gave out."""
    trial = make_trial()
    first = trial.reply(trial.join(requires_known_id=True, session_timeout_ms=3 * HOUR_MS))
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    trial.commit(1)
    trial.pass_time(2 * HOUR_MS)
    assert trial.committed() == -1 and not is_gone(trial)
    assert trial.joined(first.member_id, requires_known_id=True).member_id == first.member_id


def test_a_group_goes_when_the_id_that_it_gave_out_was_never_used() -> None:
    trial = make_trial()
    trial.join(requires_known_id=True, session_timeout_ms=HOUR_MS // 2)
    trial.pass_time(HOUR_MS)
    assert is_gone(trial)
    assert list(trial.machine.snapshot()) == []


def test_positions_without_group_management_expire_from_their_commit() -> None:
    trial = make_trial()
    trial.commit(1)
    trial.pass_time(HOUR_MS // 2)
    trial.commit(2, partition=1)
    trial.pass_time(HOUR_MS // 2 + CHECK_MS)
    assert (trial.committed(), trial.committed(partition=1)) == (-1, 2)
    trial.pass_time(HOUR_MS)
    assert is_gone(trial)


def test_an_expire_timestamp_of_its_own_wins() -> None:
    trial = make_trial()
    trial.commit(1, retention_ms=5_000)
    trial.commit(2, partition=1, retention_ms=5 * HOUR_MS)
    trial.pass_time(CHECK_MS + 1)
    assert trial.committed() == -1
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed(partition=1) == 2


def test_a_commit_to_an_empty_group_starts_its_own_time() -> None:
    trial = make_trial()
    members, _ = trial.stable(1)
    trial.leave(members[0])
    trial.commit(1, topic="keeps", retention_ms=10 * HOUR_MS)
    trial.pass_time(2 * HOUR_MS)
    trial.commit(5)
    trial.pass_time(HOUR_MS // 2)
    assert trial.committed() == 5


def test_thousands_of_positions_expire_over_several_steps() -> None:
    trial = make_trial()
    for number in range(30):
        for partition in range(400):
            trial.commit(1, group_id=f"g{number}", partition=partition)
    trial.notes.clear()
    trial.pass_time(HOUR_MS + 2 * CHECK_MS)
    assert trial.counted(CoordinatorMeter.OFFSET_EXPIRATIONS) == 12_000
    assert list(trial.machine.snapshot()) == []


def make_consumer_trial(**topics: int) -> Trial:
    """For groups under KIP-848, whose members are not silent for a day."""
    trial = Trial(
        offsets_retention_minutes=60, offsets_retention_check_ms=CHECK_MS, consumer_session_timeout_ms=24 * HOUR_MS
    )
    trial.set_topics(t=1, **topics)
    return trial


@pytest.mark.parametrize("how", ["by name", "by a regular expression"])
def test_scenario_13_a_consumer_group_with_members_loses_only_positions_of_topics_it_does_not_read(how: str) -> None:
    trial = make_consumer_trial(old=1, other=1)
    reads = (
        {"subscribed_topics": ("t",)} if how == "by name" else {"subscribed_topics": None, "subscribed_regex": "t.*"}
    )
    epoch = trial.beat("a", **reads).member_epoch
    trial.beat("b", subscribed_topics=("other",))
    for number, topic in enumerate(("t", "old", "other")):
        assert trial.commit(number, "a", epoch, topic=topic) is ErrorCode.NONE
    trial.pass_time(HOUR_MS - 2 * CHECK_MS)
    assert trial.committed("old") == 1, "not before its retention"
    assert trial.counted(CoordinatorMeter.OFFSET_EXPIRATIONS) == 0
    trial.pass_time(3 * CHECK_MS)
    assert [trial.committed(topic) for topic in ("t", "old", "other")] == [0, -1, 2]
    assert trial.counted(CoordinatorMeter.OFFSET_EXPIRATIONS) == 1
    trial.beat("b", -1)
    trial.pass_time(2 * CHECK_MS)
    assert [trial.committed(topic) for topic in ("t", "other")] == [0, -1], "whose last reader has gone"


def test_scenario_13_positions_of_a_consumer_group_expire_while_it_rebalances() -> None:
    """Unlike those of a classic one: what its members read is known at any time."""
    trial = make_consumer_trial(old=1)
    epoch = trial.beat("a").member_epoch
    trial.commit(5, "a", epoch)
    trial.commit(1, "a", epoch, topic="old")
    trial.works_at_once = False
    assert trial.beat("b") is None, "there is no target yet, and there will be none"
    trial.pass_time(HOUR_MS + CHECK_MS)
    assert (trial.committed(), trial.committed("old")) == (5, -1)


@pytest.mark.parametrize("ends", ["its member leaves", "its member is evicted"])
def test_scenario_13_an_empty_consumer_groups_positions_expire_from_the_moment_it_became_empty(ends: str) -> None:
    trial = make_consumer_trial()
    epoch = trial.beat("a").member_epoch
    trial.commit(1, "a", epoch)
    if ends == "its member leaves":
        trial.pass_time(3 * HOUR_MS)
        trial.beat("a", -1)
    else:
        trial.pass_time(24 * HOUR_MS)
    assert_expires_from_now(trial)


def test_scenario_13_an_empty_consumer_group_is_as_old_after_a_restart() -> None:
    trial = make_consumer_trial()
    trial.commit(1, "a", trial.beat("a").member_epoch)
    trial.pass_time(3 * HOUR_MS)
    trial.beat("a", -1)
    trial.pass_time(HOUR_MS // 2)
    trial.restart()
    trial.pass_time(HOUR_MS // 2 - CHECK_MS)
    assert trial.committed() == 1
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed() == -1


@pytest.mark.parametrize("members", [0, 1])
def test_scenario_13_pending_positions_of_a_consumer_group_keep_theirs(members: int) -> None:
    trial = make_consumer_trial(old=1)
    epoch = trial.beat("a").member_epoch
    trial.commit(1, "a", epoch, topic="old")
    pending = (OffsetToCommit("old", 0, 2),)
    sent = TxnOffsetCommit(trial.request(), "g", 9, 0, pending, member_id="a", generation=epoch)
    assert trial.ask(sent).errors == (ErrorCode.NONE,)
    if not members:
        trial.beat("a", -1)
    trial.pass_time(3 * HOUR_MS)
    assert trial.committed("old") == 1
    assert trial.counted(CoordinatorMeter.OFFSET_EXPIRATIONS) == 0
    trial.feed(TransactionEnded(9, 0, commit=False, request=trial.request()))
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed("old") == -1
    assert is_gone(trial) is (members == 0)


def test_no_position_goes_while_it_is_not_known_what_a_pattern_matches() -> None:
    session_ms = 10 * HOUR_MS
    trial = Trial(
        offsets_retention_minutes=60,
        offsets_retention_check_ms=CHECK_MS,
        consumer_session_timeout_ms=session_ms,
        consumer_max_session_timeout_ms=session_ms,
    )
    trial.set_topics(t=1)
    trial.commit(1)
    trial.pass_time(HOUR_MS - CHECK_MS)
    trial.works_at_once = False
    trial.beat("a", subscribed_topics=(), subscribed_regex="t.*")
    trial.pass_time(3 * CHECK_MS)
    assert trial.committed() == 1
    deleted = trial.ask(OffsetDelete(trial.request(), "g", (TopicPartition("t", 0),)))
    assert deleted.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
    trial.do_work()
    assert trial.committed() == 1


@pytest.mark.parametrize("own_time", [False, True], ids=["retention of the shard", "retention of the commit"])
def test_clock_that_is_set_forward_for_less_than_an_hour_expires_nothing(own_time: bool) -> None:
    trial = make_trial()
    trial.commit(1, **({"retention_ms": HOUR_MS} if own_time else {}))
    trial.wall_ms += 10 * 365 * 24 * HOUR_MS
    trial.pass_time(HOUR_MS // 2)
    assert trial.committed() == 1
    trial.wall_ms -= 10 * 365 * 24 * HOUR_MS
    trial.pass_time(HOUR_MS // 2 - CHECK_MS)
    assert trial.committed() == 1
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed() == -1, "the time that has passed counts"


def test_clock_that_is_set_back_expires_nothing_early() -> None:
    trial = make_trial()
    trial.wall_ms -= 10 * 24 * HOUR_MS
    trial.commit(1)
    trial.pass_time(HOUR_MS - CHECK_MS)
    assert trial.committed() == 1
    trial.pass_time(2 * CHECK_MS)
    assert trial.committed() == -1
