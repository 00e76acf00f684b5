"""Metrics of KIP-848 groups: completed rebalances, and offsets. Source: spec 1.7."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.effects import CoordinatorMeter, Rebalanced
from kohort.groups.events import DeleteGroups, OffsetDelete, OffsetToCommit, TxnOffsetCommit
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, owned
from tests.groups.test_consumer import settle


def make_trial(**config: Any) -> Trial:
    trial = Trial(**config)
    trial.set_topics(t=4)
    return trial


def rebalances(trial: Trial) -> list[Rebalanced]:
    """Those that were told of; as many as were counted."""
    reported = [note for note in trial.notes if isinstance(note, Rebalanced)]
    assert trial.counted(CoordinatorMeter.COMPLETED_REBALANCES) == len(reported)
    return reported


def test_a_rebalance_is_complete_when_the_last_member_has_all_of_its_target() -> None:
    trial = make_trial()
    first = trial.beat("a").member_epoch
    assert [(rebalance.protocol, rebalance.members) for rebalance in rebalances(trial)] == [("consumer", 1)]
    trial.beat("a", first, owned=owned("t", 0, 1, 2, 3))
    trial.pass_time(1_000)
    second = trial.beat("b").member_epoch
    trial.beat("a", first, owned=owned("t", 0, 1, 2, 3))
    trial.pass_time(300)
    assert trial.beat("a", first, owned=owned("t", 0, 1)).member_epoch == second
    assert len(rebalances(trial)) == 1, "one waits for its part still"
    trial.pass_time(200)
    trial.beat("b", second, owned=())
    newest = rebalances(trial)[1]
    assert (newest.group_id, newest.protocol, newest.members) == ("g", "consumer", 2)
    assert (newest.duration_ms, newest.downtime_ms, newest.downtime_max_ms) == (500, 500.0, 500)
    for member, epoch in (("a", second), ("b", second)):
        trial.beat(member, epoch)
    assert len(rebalances(trial)) == 2, "and it is counted once"


@pytest.mark.parametrize("goes", ["the last to move", "another"])
def test_who_goes_is_not_waited_for(goes: str) -> None:
    trial = make_trial()
    first = trial.beat("a").member_epoch
    trial.beat("b")
    trial.beat("b" if goes == "the last to move" else "a", -1)
    assert len(rebalances(trial)) == 1
    stays = "a" if goes == "the last to move" else "b"
    epoch = first if stays == "a" else first + 1
    held = (0, 1, 2, 3) if stays == "a" else ()
    trial.beat(stays, epoch, owned=owned("t", *held))
    assert [rebalance.members for rebalance in rebalances(trial)] == [1, 1]


def test_a_static_member_that_is_back_in_its_place_is_no_rebalance() -> None:
    trial = make_trial()
    trial.beat("a", instance_id="i")
    trial.beat("a", -2, instance_id="i")
    assert trial.beat("b", instance_id="i").error is ErrorCode.NONE
    assert len(rebalances(trial)) == 1


def test_the_predecessor_of_a_static_member_is_not_waited_for() -> None:
    trial = make_trial(notify_at_once="off")  # else its return would be another rebalance
    trial.beat("a")
    trial.beat("b", instance_id="i")
    settle(trial, "a", "b")
    before = len(rebalances(trial))
    trial.beat("d")
    trial.beat("b", -2, instance_id="i")
    assert trial.beat("c", instance_id="i").error is ErrorCode.NONE
    settle(trial, "a", "c", "d")
    assert len(rebalances(trial)) == before + 1


def test_a_group_that_is_empty_completes_nothing() -> None:
    trial = make_trial()
    trial.beat("a")
    trial.beat("a", -1)
    trial.pass_time(60_000)
    assert len(rebalances(trial)) == 1


def test_offsets_are_counted_by_partition_and_refused_ones_are_not() -> None:
    trial = make_trial()
    epoch = trial.beat("a").member_epoch
    for partition in range(3):
        assert trial.commit(partition, "a", epoch, partition=partition) is ErrorCode.NONE
    assert trial.commit(9, "a", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert trial.commit(9, "nobody", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert trial.commit(9, "a", epoch, metadata="x" * 5_000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert trial.counted(CoordinatorMeter.OFFSET_COMMITS) == 3
    both = (OffsetToCommit("t", 0, 7), OffsetToCommit("t", 1, 7, metadata="x" * 5_000))
    sent = TxnOffsetCommit(trial.request(), "g", 9, 0, both, member_id="a", generation=epoch)
    assert trial.ask(sent).errors == (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert trial.counted(CoordinatorMeter.OFFSET_COMMITS) == 4


def test_deleted_offsets_are_counted_where_there_were_any() -> None:
    trial = make_trial()
    trial.set_topics(t=4, old=2)
    epoch = trial.beat("a").member_epoch
    trial.commit(1, "a", epoch)
    trial.commit(1, "a", epoch, topic="old")
    asked = tuple(TopicPartition(topic, number) for topic in ("t", "old") for number in (0, 1))
    answers = trial.ask(OffsetDelete(trial.request(), "g", asked)).errors
    assert answers == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,) * 2 + (ErrorCode.NONE,) * 2
    assert trial.counted(CoordinatorMeter.OFFSET_DELETIONS) == 1
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NON_EMPTY_GROUP,)
    trial.beat("a", -1)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)
    assert trial.counted(CoordinatorMeter.OFFSET_DELETIONS) == 2
