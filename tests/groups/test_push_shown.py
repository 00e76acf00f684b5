"""Changes of push groups since the last report: complete, and nothing else."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups.effects import DescribePushGroupsReply
from kohort.groups.events import (
    DeleteGroups,
    DescribePushGroups,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetToCommit,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.ids import TopicPartition
from tests.groups.push_harness import SESSION_MS, PushTrial


@pytest.fixture
def trial() -> PushTrial:
    trial = PushTrial()
    trial.set_topics(t=6, u=2)
    trial.consumer("a", auto_commit=False)
    trial.consumer("far", group_id="other", topics={"u": 1}, auto_commit=False)
    assert show(trial).whole, "who asks first knows nothing yet"
    return trial


def show(trial: PushTrial, *, whole: bool = False) -> DescribePushGroupsReply:
    request = trial.request()
    trial.feed(DescribePushGroups(request, whole))
    reply = trial.reply(request)
    assert isinstance(reply, DescribePushGroupsReply)
    assert not trial.machine.has_unpublished_push_groups
    return reply


def changed(trial: PushTrial) -> list[str]:
    reply = show(trial)
    assert not reply.whole
    return [*(group.group_id for group in reply.groups), *(f"no {name}" for name in reply.gone)]


def commit(trial: PushTrial, offset: int, group: str = "g", member: str = "a") -> None:
    offsets = (OffsetToCommit("t", 0, offset),)
    trial.ask(OffsetCommit(trial.request(), group, member, -1, offsets))


def test_pings_change_nothing(trial: PushTrial) -> None:
    trial.pass_time(SESSION_MS * 3)
    assert not trial.machine.has_unpublished_push_groups
    assert changed(trial) == []


def test_a_group_whose_offsets_move_is_shown_and_no_other(trial: PushTrial) -> None:
    commit(trial, 7)
    assert trial.machine.has_unpublished_push_groups
    (group,) = show(trial).groups
    assert (group.group_id, group.offsets["t", 0].offset) == ("g", 7)
    assert changed(trial) == [], "it has been shown"
    auto = trial.consumer("auto", group_id="other", topics={"u": 1})
    changed(trial)
    auto.read(5)
    trial.pass_time(SESSION_MS)
    assert changed(trial) == ["other"]


def test_offsets_of_a_transaction_and_offsets_that_are_deleted_are_shown(trial: PushTrial) -> None:
    for name, group in (("a", "g"), ("far", "other")):
        trial.ask(LeaveGroup(trial.request(), group, (LeavingMember(name),)))
    assert changed(trial) == ["g", "other"]
    sent = (OffsetToCommit("t", 0, 50),)
    trial.ask(TxnOffsetCommit(trial.request(), "g", 5, 0, sent, "", -1, None))
    changed(trial)
    trial.ask(TransactionEnded(5, 0, commit=True, request=trial.request()))
    (group,) = show(trial).groups
    assert group.offsets["t", 0].offset == 50
    trial.ask(OffsetDelete(trial.request(), "g", (TopicPartition("t", 0),)))
    (group,) = show(trial).groups
    assert ("t", 0) not in group.offsets
    trial.feed(TopicsDeleted(("t",)))
    assert changed(trial) == ["g"]


def test_a_rebalance_is_shown_when_it_begins_and_when_it_is_done(trial: PushTrial) -> None:
    trial.consumers[1].answers = False
    b = trial.consumer("b", auto_commit=False)
    (group,) = show(trial).groups
    assert (group.group_id, group.settled) == ("g", False)
    assert changed(trial) == [], "it waits for an answer"
    trial.consumers[1].answers = True
    trial.run()
    (group,) = show(trial).groups
    assert group.settled
    assert set(group.owners.values()) == {"a-0", "b-0"}
    b.lose_connection()
    trial.pass_time(SESSION_MS * 2)
    (group,) = show(trial).groups
    assert group.settled
    assert set(group.owners.values()) == {"a-0"}


def test_each_step_of_a_rebalance_is_shown(trial: PushTrial) -> None:
    def now_settled() -> bool:
        (group,) = show(trial).groups
        assert group.group_id == "new"
        return group.settled

    trial.works_at_once = False
    a = trial.consumer("first", group_id="new", topics={"v": 1}, auto_commit=False, from_begin=None)
    assert not now_settled()
    trial.do_work()
    trial.run()
    assert now_settled(), "of a topic that there is not it owns nothing"
    a.answers = False
    trial.set_topics(t=6, u=2, v=2)
    assert not now_settled(), "it is divided"
    trial.do_work()
    a.answer()  # Stop
    a.answer()  # Ping
    (group,) = show(trial).groups
    assert len(group.owners) == 2, "what it owns is written before it is started"
    a.answer()  # Start
    assert now_settled()
    trial.pass_time(SESSION_MS // 3)
    a.answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not now_settled(), "it is stopped again"


def test_a_rebalance_that_moves_nobody_is_shown_as_done(trial: PushTrial) -> None:
    trial.consumer("idle", topics={"nothing": 1}, auto_commit=False)
    changed(trial)
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("idle"),)))
    trial.run()
    (group,) = show(trial).groups
    assert group.settled


def test_a_group_that_is_gone_is_said_to_be(trial: PushTrial) -> None:
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    trial.ask(DeleteGroups(trial.request(), ("g",)))
    assert changed(trial) == ["no g"]
    assert changed(trial) == []
    assert [group.group_id for group in show(trial, whole=True).groups] == ["other"]


def test_a_group_that_becomes_another_protocol_s_is_said_to_be_gone(trial: PushTrial) -> None:
    trial.ask(LeaveGroup(trial.request(), "g", (LeavingMember("a"),)))
    changed(trial)
    trial.joined()
    assert changed(trial) == ["no g"]
    commit(trial, 9, member="")
    assert not trial.machine.has_unpublished_push_groups, "it is no push group any more"


def test_after_a_load_everything_is_shown(trial: PushTrial) -> None:
    trial.restart()
    trial.consumer("later", group_id="later", topics={"v": 1})
    reply = show(trial)
    assert reply.whole
    loaded = {group.group_id: group.loaded for group in reply.groups}
    assert loaded == {"g": True, "other": True, "later": False}, "nobody can have shown one that came since"


def test_nobody_who_never_asks_is_remembered_for() -> None:
    trial = PushTrial()
    trial.consumer("a")
    assert trial.machine.context.ledger.changed is None
