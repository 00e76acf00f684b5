"""Committing, fetching and deleting positions, with and without members and transactions."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import CoordinatorMeter, FetchedOffset, OffsetDeleteReply
from kohort.groups.events import (
    DeleteGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
    TopicImage,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.offsets import all_accepted_reply
from kohort.groups.records import OffsetCommitted, RecordKind, Tombstone, TransactionMarked
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, protocols


def hold(trial: Trial, offset: int, producer: int = 9, **more: object) -> ErrorCode:
    event = TxnOffsetCommit(
        trial.request(),
        "g",
        producer,
        0,
        (OffsetToCommit("t", 0, offset),),
        **more,  # type: ignore[arg-type]
    )
    error: ErrorCode = trial.ask(event).errors[0]
    return error


def end(trial: Trial, commit: bool, producer: int = 9) -> None:
    trial.feed(TransactionEnded(producer, 0, commit))


def delete(trial: Trial, topic: str = "t", group_id: str = "g") -> OffsetDeleteReply:
    reply: OffsetDeleteReply = trial.ask(OffsetDelete(trial.request(), group_id, (TopicPartition(topic, 0),)))
    return reply


def test_a_commit_keeps_offset_epoch_and_metadata() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    one = OffsetToCommit("t", 3, 42, 7, "note")
    trial.feed(OffsetCommit(trial.request(), "g", members[0], generation, (one,)))
    assert trial.journal[-1] == OffsetCommitted("g", "t", 3, 42, 7, "note", trial.wall_ms)
    reply = trial.ask(OffsetFetch(trial.request(), "g", (TopicPartition("t", 3), TopicPartition("t", 4))))
    assert reply.offsets == (FetchedOffset("t", 3, 42, 7, "note"), FetchedOffset("t", 4))
    assert trial.ask(OffsetFetch(trial.request(), "g")).offsets == (FetchedOffset("t", 3, 42, 7, "note"),)
    assert trial.counted(CoordinatorMeter.OFFSET_COMMITS) == 1


def test_a_group_without_offsets_is_no_error() -> None:
    trial = Trial()
    assert trial.committed() == -1
    assert trial.ask(OffsetFetch(trial.request(), "g")).offsets == ()


@pytest.mark.parametrize(
    ("member", "generation", "more", "error"),
    [
        ("m1", 2, {}, ErrorCode.NONE),
        ("m1", 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("m1", -1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("", -1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ghost", 2, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 2, {"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 2, {"group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ("m1", 2, {"group_id": "none", "knows_stale_epoch": False}, ErrorCode.ILLEGAL_GENERATION),
        ("m1", 2, {"metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("m1", 2, {"metadata": "x" * 4096}, ErrorCode.NONE),
    ],
)
def test_who_may_commit(member: str, generation: int, more: dict[str, str], error: ErrorCode) -> None:
    trial = Trial()
    trial.stable(2)
    assert trial.commit(1, member, generation, **more) is error


def test_commits_while_the_group_rebalances() -> None:
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    assert trial.commit(1, members[1], generation) is ErrorCode.NONE
    trial.join(members[1], protocols=protocols("range", topics=("u",)))
    assert trial.commit(2, members[1], generation) is ErrorCode.ILLEGAL_GENERATION
    assert trial.commit(2, members[1], generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.committed() == 1


def test_a_commit_is_a_sign_of_life() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    for _ in range(3):
        trial.pass_time(9_000)
        assert trial.commit(1, members[0], generation) is ErrorCode.NONE


def test_anyone_commits_to_an_empty_group() -> None:
    trial = Trial()
    assert trial.commit(5) is ErrorCode.NONE
    assert trial.committed() == 5
    members, _ = trial.stable(1)
    assert trial.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    trial.leave(members[0])
    assert trial.commit(7) is ErrorCode.NONE


def test_old_clients_retention_is_kept() -> None:
    trial = Trial()
    trial.commit(5, retention_ms=1_000)
    assert trial.journal[-1].expire_ms == trial.wall_ms + 1_000


def test_transactional_offsets_count_when_the_transaction_commits() -> None:
    trial = Trial()
    trial.commit(1)
    assert hold(trial, 2) is ErrorCode.NONE
    assert trial.committed() == 1
    wanted = (TopicPartition("t", 0),)
    reply = trial.ask(OffsetFetch(trial.request(), "g", wanted, require_stable=True))
    assert reply.offsets == (FetchedOffset("t", 0, error=ErrorCode.UNSTABLE_OFFSET_COMMIT),)
    end(trial, commit=True)
    assert trial.journal[-1] == TransactionMarked(9, 0, True)
    assert trial.committed(require_stable=True) == 2


def test_an_aborted_transaction_leaves_nothing() -> None:
    trial = Trial()
    trial.commit(1)
    hold(trial, 2)
    end(trial, commit=False)
    assert trial.committed(require_stable=True) == 1


def test_a_later_plain_commit_outlives_an_earlier_transaction() -> None:
    trial = Trial()
    hold(trial, 2)
    trial.commit(3)
    end(trial, commit=True)
    assert trial.committed() == 3


def test_of_two_transactions_the_later_position_stays() -> None:
    trial = Trial()
    hold(trial, 1, producer=1)
    hold(trial, 2, producer=2)
    end(trial, commit=True, producer=2)
    end(trial, commit=True, producer=1)
    assert trial.committed() == 2


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"member_id": "m1", "generation": 1}, ErrorCode.NONE),
        ({"member_id": "m1", "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "ghost", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit_in_a_transaction(more: dict[str, object], error: ErrorCode) -> None:
    trial = Trial()
    trial.stable(1)
    assert hold(trial, 1, **more) is error


def test_a_transaction_may_not_name_a_generation_of_a_missing_group() -> None:
    trial = Trial()
    assert hold(trial, 1, member_id="m1", generation=1) is ErrorCode.GROUP_ID_NOT_FOUND
    before_version_6 = {"knows_stale_epoch": False}
    assert hold(trial, 1, member_id="m1", generation=1, **before_version_6) is ErrorCode.ILLEGAL_GENERATION


def test_deleting_positions_of_topics_no_one_reads() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    trial.commit(1, members[0], generation)
    trial.commit(2, members[0], generation, topic="old")
    assert delete(trial) == OffsetDeleteReply(ErrorCode.NONE, (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,))
    assert delete(trial, "old") == OffsetDeleteReply(ErrorCode.NONE, (ErrorCode.NONE,))
    assert delete(trial, "never") == OffsetDeleteReply(ErrorCode.NONE, (ErrorCode.NONE,))
    assert (trial.committed("old"), trial.committed()) == (-1, 1)
    assert trial.counted(CoordinatorMeter.OFFSET_DELETIONS) == 1


def test_deleting_positions_needs_a_group_that_allows_it() -> None:
    trial = Trial()
    assert delete(trial) == OffsetDeleteReply(ErrorCode.GROUP_ID_NOT_FOUND)
    members, _ = trial.stable(1, protocol_type="connect")
    assert delete(trial) == OffsetDeleteReply(ErrorCode.NON_EMPTY_GROUP)
    trial.leave(members[0])
    assert delete(trial) == OffsetDeleteReply(ErrorCode.NONE, (ErrorCode.NONE,))


def test_an_unreadable_subscription_counts_as_all_topics() -> None:
    trial = Trial()
    unreadable = tuple(type(protocols("range")[0])("range", raw) for raw in (b"",))
    trial.stable(1, protocols=unreadable)
    assert delete(trial, "any").errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_deleting_takes_pending_positions_too() -> None:
    trial = Trial()
    hold(trial, 2)
    assert delete(trial).errors == (ErrorCode.NONE,)
    end(trial, commit=True)
    assert trial.committed() == -1


def test_deleting_a_group_takes_its_positions() -> None:
    trial = Trial()
    members, _ = trial.stable(1)
    assert trial.ask(DeleteGroups(trial.request(), ("g", "none"))).errors == (
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )
    trial.leave(members[0])
    trial.commit(1)
    hold(trial, 5)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.NONE,)
    assert trial.ask(DeleteGroups(trial.request(), ("g",))).errors == (ErrorCode.GROUP_ID_NOT_FOUND,)
    assert list(trial.machine.snapshot()) == []
    end(trial, commit=True)
    assert trial.committed() == -1


def test_positions_of_a_topic_that_was_deleted_while_no_coordinator_looked_go_when_it_loads() -> None:
    trial = Trial()
    trial.set_topics(t=1, u=1)
    trial.commit(1)
    trial.commit(2, topic="u")
    hold(trial, 3)
    trial.image = TopicImage(9, {"u": trial.image.topics["u"]})
    trial.restart()
    end(trial, commit=True)
    assert (trial.committed(), trial.committed("u")) == (-1, 2)


def test_a_group_that_held_offsets_only_does_not_go_with_them_when_it_has_members() -> None:
    """Else those who wait for the join phase would never be answered."""
    trial = Trial(initial_rebalance_delay_ms=3_000)
    trial.set_topics(t=1)
    hold(trial, 1)
    end(trial, commit=True)
    trial.beat("a", instance_id=None)
    trial.beat("a", -1)
    waiting = trial.join()
    trial.feed(TopicsDeleted(("t",)))
    trial.pass_time(3_000)
    assert trial.reply(waiting).error is ErrorCode.NONE


def test_scenario_14_positions_of_a_deleted_topic_go_with_it() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    trial.commit(1, members[0], generation)
    trial.commit(2, members[0], generation, topic="u")
    trial.feed(TopicsDeleted(("t",)))
    assert trial.outcome.records == [Tombstone((RecordKind.OFFSET, "g", "t", 0))]
    assert (trial.committed(), trial.committed("u")) == (-1, 2)


def test_replies_to_large_commits_are_not_kept() -> None:
    """The number of a commit's positions is the client's choice."""
    assert all_accepted_reply(3).errors == (ErrorCode.NONE,) * 3
    tracemalloc.start()
    try:
        for count in range(4_000, 4_100):
            assert len(all_accepted_reply(count).errors) == count
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


class CountedTransactions(dict[int, Any]):
    """A group's open transactions, which count the passes over them."""

    passes = 0

    def values(self) -> Any:
        self.passes += 1
        return super().values()

    def items(self) -> Any:
        self.passes += 1
        return super().items()


def test_a_request_of_many_partitions_does_not_look_at_each_transaction_for_each_of_them() -> None:
    """300 open transactions of a group made a commit of 100,000 partitions 300 times as long, for all groups."""
    trial = Trial()
    trial.set_topics(t=500)
    producers = range(100, 400)
    for producer in producers:
        assert hold(trial, producer, producer) is ErrorCode.NONE
    group = trial.machine.context.find("g")
    assert group is not None
    group.pending = counted = CountedTransactions(group.pending)
    wanted = tuple(TopicPartition("t", number) for number in range(500))
    trial.feed(OffsetCommit(trial.request(), "g", "", -1, tuple(OffsetToCommit(*part, 7) for part in wanted)))
    reply = trial.ask(OffsetFetch(trial.request(), "g", wanted, require_stable=True))
    assert [offset.error for offset in reply.offsets] == [ErrorCode.UNSTABLE_OFFSET_COMMIT] + [ErrorCode.NONE] * 499
    removed = trial.ask(OffsetDelete(trial.request(), "g", wanted[1:]))
    assert set(removed.errors) == {ErrorCode.NONE}
    end(trial, commit=True, producer=producers[0])
    assert trial.committed() == 7, "the commit came after the transaction's"
    assert not counted.keys() & {producers[0]} and len(counted) == 299
    assert counted.passes < 10


def test_topics_that_members_read_are_looked_up_once_for_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that selects 10,000 topics was sorted for each of a deletion's 30,000 partitions: 90 s for everyone."""
    trial = Trial()
    trial.set_topics(**{f"t{number}": 1 for number in range(20)})
    trial.beat("a", subscribed_topics=(), subscribed_regex="t.*")
    calls: list[ConsumerGroup] = []
    for name in ("subscribed", "topics_of"):
        real = getattr(ConsumerGroup, name)
        monkeypatch.setattr(ConsumerGroup, name, lambda group, *of, real=real: calls.append(group) or real(group, *of))
    reply = trial.ask(OffsetDelete(trial.request(), "g", (TopicPartition("t7", 0), TopicPartition("old", 0)) * 500))
    assert reply.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE) * 500
    assert len(calls) < 10
