"""Answers of push consumers that come late: after the group has decided otherwise. Source: spec 4.4-4.6."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups.events import LeaveGroup, LeavingMember, PushConsumerAnswered, PushRequestKind
from tests.groups.push_harness import SESSION_MS, PushConsumer, PushTrial

THIRD_MS = SESSION_MS // 3


def test_who_answers_its_stop_after_the_change_was_taken_back_is_started_again() -> None:
    """The attempt was over, and the division after it leaves to the member what it has: it is stopped all the same."""
    trial = PushTrial(push_failed_requests_max=9, push_rebalance_backoff_ms=100)
    a = trial.consumer("a")
    a.answers = False
    trial.consumer("b")
    assert a.seen[-1] == "STOP"
    trial.feed(LeaveGroup(trial.request(), "g", (LeavingMember("b"),)))
    trial.pass_time(3 * THIRD_MS + 200)
    assert a.seen[-1] == "STOP"
    a.answers = True
    trial.run()
    trial.pass_time(THIRD_MS)
    assert a.partitions == set(range(6))
    assert not a.stopped
    assert trial.push.owned.keys() == {"a"}


def test_an_answer_from_before_a_conflicting_registration_says_nothing_of_now() -> None:
    """The answer may come from the very process that has connected again since."""
    trial = PushTrial()
    a = trial.consumer("a")
    a.answers = False
    trial.pass_time(THIRD_MS)
    assert a.seen[-1] == "PING"
    again = trial.consumer("a", connection=7)
    assert again.error is None
    a.answer()
    assert again.error is None, "what came was on its way before"
    assert a.seen[-1] == "PING"
    trial.pass_time(THIRD_MS + 1)
    assert again.error is ErrorCode.NONE
    assert again.partitions == set(range(6))


def test_a_member_that_answers_after_a_conflicting_registration_keeps_its_id() -> None:
    trial = PushTrial()
    a = trial.consumer("a")
    a.answers = False
    trial.pass_time(THIRD_MS)
    rival = trial.consumer("a", connection=7)
    a.answer()
    a.answer()
    assert rival.error is ErrorCode.FENCED_INSTANCE_ID
    assert a.dismissed is None


def test_a_topic_that_grows_while_it_is_not_known_what_an_expression_finds_is_divided() -> None:
    """After a takeover the first division may be under way: it knows the topic as it was."""
    trial = PushTrial()
    trial.consumer("a", topics={}, regex="t").dismissed = "another coordinator"
    trial.works_at_once = False
    trial.restart()
    again = trial.consumer("a", topics={}, regex="t")
    trial.set_topics(t=8)
    trial.works_at_once = True
    trial.do_work()
    trial.run()
    assert again.partitions == set(range(8))


@pytest.mark.parametrize("asked_last_positions", [False, True], ids=["before its last Ping", "at its last Ping"])
def test_a_member_that_rejoins_after_its_stop_is_stopped_again(asked_last_positions: bool) -> None:
    """The registration may come from a new process under the old id, whose fetchers have never been stopped."""
    trial = PushTrial(push_failed_requests_max=9)
    a = trial.consumer("a")
    a.answers = False
    b = trial.consumer("b")
    assert a.seen[-1] == "STOP"
    if asked_last_positions:
        a.answer()
        assert a.seen[-1] == "PING"
    else:
        trial.feed(PushConsumerAnswered("g", "a", a.connection, PushRequestKind.STOP, ErrorCode.NONE, ()))
        a.owed.clear()
    a.lose_connection()
    again = PushConsumer(trial, "a", 7)
    assert "STOP" in again.seen
    assert again.seen.index("PING") < again.seen.index("STOP") < again.seen.index("START")
    assert sorted((len(again.reads), len(b.reads))) == [3, 3]
    assert not (again.partitions & b.partitions)


def test_a_member_that_rejoins_after_its_stop_and_keeps_all_is_started_again() -> None:
    trial = PushTrial(push_failed_requests_max=9)
    a = trial.consumer("a")
    a.answers = False
    trial.consumer("b")
    a.answer()
    a.lose_connection()
    trial.works_at_once = False
    trial.feed(LeaveGroup(trial.request(), "g", (LeavingMember("b"),)))
    again = PushConsumer(trial, "a", 7)
    trial.works_at_once = True
    trial.do_work()
    trial.run()
    trial.pass_time(3 * THIRD_MS)
    assert again.partitions == set(range(6))
    assert not again.stopped
