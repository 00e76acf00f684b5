"""Why groups rebalance, as the coordinator notes it: classic and KIP-848 groups."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.groups.effects import RebalanceCaused, Rebalanced, RebalanceLeftNoMembers, RebalanceReason
from tests.groups.harness import Trial, owned, protocols
from tests.groups.push_harness import PushTrial


def make_trial() -> Trial:
    trial = Trial()
    trial.set_topics(t=4)
    return trial


def story(trial: Trial) -> list[str]:
    """The causes and ends since the last call, in order."""
    told = []
    for note in trial.notes:
        if isinstance(note, RebalanceCaused):
            told.append(f"{note.cause.reason.value} {note.cause.member_id}".strip())
        elif isinstance(note, Rebalanced):
            told.append(f"done {note.members}")
        elif isinstance(note, RebalanceLeftNoMembers):
            told.append("empty")
    trial.notes.clear()
    return told


def test_kip848_group_names_joins_leaves_and_expired_sessions() -> None:
    trial = make_trial()
    first = trial.beat("a").member_epoch
    assert story(trial) == ["joined a", "done 1"]
    trial.beat("b")
    trial.beat("a", first, owned=owned("t", 0, 1, 2, 3))
    assert story(trial) == ["joined b"]
    trial.beat("b", -1)
    assert story(trial)[:1] == ["left b"]
    trial.pass_time(trial.config.consumer_session_timeout_ms + 1)
    assert story(trial) == ["session-expired a", "empty"]


def test_kip848_rebalance_begins_anew_in_a_group_that_was_empty() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("a", -1)
    trial.pass_time(3_600_000)
    trial.notes.clear()
    trial.beat("b")
    (done,) = [note for note in trial.notes if isinstance(note, Rebalanced)]
    assert (done.duration_ms, done.downtime_max_ms) == (0, 0), "an hour without members is no downtime"


def test_kip848_group_names_changed_subscriptions_topics_and_assignors() -> None:
    trial = make_trial()
    trial.set_topics(t=4, u=2)
    epoch = trial.beat("a").member_epoch
    story(trial)
    epoch = trial.beat("a", epoch, subscribed_topics=("t", "u")).member_epoch
    assert story(trial)[0] == "subscription-changed a"
    trial.set_topics(t=6, u=2)
    (note,) = [note for note in trial.notes if isinstance(note, RebalanceCaused)]
    assert note.cause == (RebalanceReason.TOPICS_CHANGED, "subscribed topics changed: t", "", ("t",))
    story(trial)
    trial.beat("a", epoch, server_assignor="range")
    assert story(trial)[0] == "assignor-changed a"


def test_kip848_downtime_names_the_member_that_waited() -> None:
    trial = make_trial()
    first = trial.beat("a").member_epoch
    trial.beat("a", first, owned=owned("t", 0, 1, 2, 3))
    second = trial.beat("b").member_epoch
    trial.beat("a", first, owned=owned("t", 0, 1, 2, 3))
    trial.beat("a", first, owned=owned("t", 0, 1))
    trial.notes.clear()
    trial.pass_time(200)
    trial.beat("b", second, owned=())
    (done,) = [note for note in trial.notes if isinstance(note, Rebalanced)]
    assert done.longest == (("b", 200),)
    assert done.generation == second


def test_classic_downtime_of_a_static_member_does_not_begin_with_its_return_an_hour_before() -> None:
    """Back without a rebalance, a member is at work again with its next SyncGroup."""
    trial = make_trial()
    trial.stable_with("i", t=4)
    back = trial.joined(instance_id="i")
    trial.sync(back.member_id, back.generation, instance_id="i")
    for _ in range(400):
        trial.pass_time(9_000)
        trial.heartbeat(back.member_id, back.generation, instance_id="i")
    trial.notes.clear()
    again = trial.joined(back.member_id, instance_id="i", protocols=protocols("range", topics=("t", "u")))
    trial.pass_time(200)
    trial.sync(again.member_id, again.generation, {again.member_id: b""}, instance_id="i")
    (done,) = [note for note in trial.notes if isinstance(note, Rebalanced)]
    assert done.longest == ((back.member_id, 200),)


def test_classic_group_names_joins_leaves_and_expired_sessions() -> None:
    trial = make_trial()
    (first, second), _ = trial.stable(2)
    told = story(trial)
    assert told[0] == f"joined {first}"
    assert f"joined {second}" in told
    assert told[-1] == "done 2"
    trial.leave(second, reason="the consumer is being closed")
    assert story(trial) == [f"left {second}"]
    generation = trial.joined(first).generation
    trial.sync(first, generation, {first: b""})
    assert story(trial) == ["done 1"], "joining again is what the group waited for, and no cause"
    trial.pass_time(60_000)
    assert story(trial) == [f"session-expired {first}", "empty"]


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (protocols("range", topics=("t", "u")), "subscription-changed"),
        (protocols("roundrobin", "range"), "assignor-changed"),
        (protocols("range"), "rejoined"),
    ],
)
def test_classic_leader_that_joins_again_names_what_changed(again: Any, reason: str) -> None:
    trial = make_trial()
    (leader,), _ = trial.stable(1)
    story(trial)
    trial.join(leader, protocols=again)
    assert story(trial)[0] == f"{reason} {leader}"


def test_classic_leader_that_joins_again_after_topics_changed_says_so() -> None:
    trial = make_trial()
    (leader,), _ = trial.stable(1)
    trial.set_topics(t=8)
    story(trial)
    trial.join(leader)
    assert story(trial)[0] == f"topics-changed {leader}"


def test_classic_member_that_does_not_join_in_time_is_named_as_evicted() -> None:
    trial = make_trial()
    (leader, other), generation = trial.stable(2)
    story(trial)
    trial.join(leader, protocols=protocols("range", topics=("t", "u")))
    for _ in range(20):
        trial.pass_time(3_500)
        trial.heartbeat(other, generation)
    assert f"evicted {other}" in story(trial)


def test_classic_leave_keeps_the_reason_that_the_member_gave() -> None:
    trial = make_trial()
    (_, other), _ = trial.stable(2)
    trial.notes.clear()
    trial.leave(other, reason="consumer poll timeout has expired")
    (note,) = [note for note in trial.notes if isinstance(note, RebalanceCaused)]
    assert note.cause.text == f"{other} left (reason: consumer poll timeout has expired)"


def test_push_group_names_changes_during_a_rebalance_as_causes_of_the_next() -> None:
    trial = PushTrial()
    trial.consumer("a")
    assert story(trial) == ["joined a", "done 1"]
    trial.consumers[1].answers = False
    trial.consumer("b")
    trial.consumer("c")
    assert story(trial) == ["joined b"], "c waits for the next rebalance"
    trial.consumers[1].answers = True
    trial.run()
    assert story(trial) == ["done 3", "joined c", "done 3"], "all three are members by then"
