"""The four failures of the coordinator in spec 3.7, and what a replay must give back."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.groups.events import DescribeGroups, OffsetToCommit, TransactionEnded, TxnOffsetCommit
from kohort.groups.records import GenerationStarted
from tests.groups.harness import Trial, protocols


def state(trial: Trial) -> str:
    return str(trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0].state)


def test_failure_before_all_have_joined() -> None:
    """The members of the stable generation send their joins again and the round goes on."""
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.restart()
    assert state(trial) == "Stable"
    first = trial.join(members[0])
    second = trial.join(members[1])
    assert trial.reply(first).generation == trial.reply(second).generation == generation + 1


def test_failure_of_a_first_round_before_it_ends_makes_members_start_anew() -> None:
    trial = Trial(initial_rebalance_delay_ms=3_000)
    trial.join()
    trial.restart()
    assert trial.reply(trial.join("m1")).error is ErrorCode.UNKNOWN_MEMBER_ID
    request = trial.join()
    trial.pass_time(3_000)
    assert trial.reply(request).generation == 1


def test_failure_after_the_generation_is_persisted() -> None:
    """A leader that syncs at once is turned back until all have joined; the generation is not issued twice."""
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.join(members[1])
    assert trial.journal[-1] == GenerationStarted("g", generation + 1)
    trial.restart()
    early = trial.reply(trial.sync(members[0], generation + 1, {members[0]: b"x"}))
    assert early.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.heartbeat(members[1], generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    first = trial.join(members[0])
    second = trial.join(members[1])
    assert trial.reply(first).generation == trial.reply(second).generation == generation + 2


def test_after_a_restart_members_of_the_last_assignment_are_led_on() -> None:
    """Their partitions were given to no one else, so they may commit and are asked to join again."""
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.join(members[1])
    trial.restart()
    assert trial.heartbeat(members[1], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert trial.commit(7, members[1], generation) is ErrorCode.NONE
    assert trial.heartbeat(members[1], generation - 1) is ErrorCode.ILLEGAL_GENERATION
    for member in members:
        trial.join(member)
    assert trial.commit(8, members[1], generation) is ErrorCode.ILLEGAL_GENERATION


def test_failure_before_the_sync_is_persisted() -> None:
    """The sync's record is lost: its members are turned back, a new round gives the next generation."""
    trial = Trial()
    members, generation = trial.stable(2)
    trial.join(members[0])
    trial.join(members[1])
    before = len(trial.journal)
    trial.sync(members[1], generation + 1)
    trial.sync(members[0], generation + 1, dict.fromkeys(members, b"new"))
    trial.restart(cut=before)
    for member in members:
        assert trial.reply(trial.sync(member, generation + 1)).error is ErrorCode.REBALANCE_IN_PROGRESS
    requests = [trial.join(member) for member in members]
    assert [trial.reply(request).generation for request in requests] == [generation + 2] * 2


def test_failure_after_the_sync_is_persisted() -> None:
    """Members without a reply get their assignment at once; no other member is disturbed."""
    trial = Trial()
    members, generation = trial.stable(3)
    trial.restart()
    for member in members:
        assert trial.heartbeat(member, generation) is ErrorCode.NONE
        assert trial.reply(trial.sync(member, generation)).assignment == b"a-" + member.encode()
    assert state(trial) == "Stable"


def test_sessions_start_anew_after_a_restart() -> None:
    trial = Trial()
    members, generation = trial.stable(1)
    trial.pass_time(9_000)
    trial.restart()
    trial.pass_time(9_999)
    assert trial.heartbeat(members[0], generation) is ErrorCode.NONE
    trial.pass_time(10_000)
    assert state(trial) == "Empty"


def test_a_static_member_is_known_after_a_restart() -> None:
    trial = Trial()
    members, generation = trial.stable(2, instance_id=None)
    static = trial.join(instance_id="i")
    for member in members:
        trial.join(member)
    generation = trial.reply(static).generation
    follower = trial.reply(static).member_id
    trial.sync(follower, generation)
    trial.sync(members[0], generation, {follower: b"mine"})
    trial.restart()
    reply = trial.joined(instance_id="i", can_skip_assignment=True)
    assert (reply.generation, reply.leader, reply.skip_assignment) == (generation, members[0], False)
    assert trial.reply(trial.sync(reply.member_id, generation)).assignment == b"mine"


def test_a_static_leader_that_returns_after_a_restart_assigns_anew() -> None:
    """Whether topics changed while neither it nor the coordinator looked is not known."""
    trial = Trial()
    trial.stable(1, instance_id="i")
    trial.restart()
    assert trial.joined(instance_id="i", can_skip_assignment=True).generation == 2


def test_a_group_over_its_size_after_a_restart_shrinks() -> None:
    trial = Trial()
    members, generation = trial.stable(3)
    trial.config = type(trial.config)(initial_rebalance_delay_ms=0, group_max_size=2)
    trial.restart()
    requests = [trial.join(member) for member in members]
    errors = [reply.error if (reply := trial.reply(request)) else None for request in requests]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert trial.heartbeat(members[0], generation + 1) is ErrorCode.NONE


def fill(trial: Trial) -> None:
    members, generation = trial.stable(2)
    trial.commit(1, members[0], generation)
    held = (OffsetToCommit("t", 0, 2), OffsetToCommit("t", 1, 3))
    trial.feed(TxnOffsetCommit(trial.request(), "g", 9, 0, held))
    trial.commit(4, members[0], generation)
    trial.feed(TxnOffsetCommit(trial.request(), "h", 8, 0, held))
    trial.commit(5, group_id="h", partition=2)
    trial.join(members[0], protocols=protocols("range", topics=("u",)))


@pytest.mark.parametrize("ending", [True, False])
def test_a_snapshot_replays_to_the_same_state(ending: bool) -> None:
    """Pending positions keep their place before or after the committed ones."""
    trial = Trial()
    fill(trial)
    trial.journal[:] = list(trial.machine.snapshot())
    trial.restart()
    assert list(trial.machine.snapshot()) == trial.journal
    trial.feed(TransactionEnded(9, 0, ending))
    trial.feed(TransactionEnded(8, 0, ending))
    assert trial.committed() == 4
    assert trial.committed(partition=1) == (3 if ending else -1)
    assert trial.committed(group_id="h") == (2 if ending else -1)
    assert trial.committed(group_id="h", partition=2) == 5


def test_a_replay_of_any_prefix_gives_the_state_of_that_moment() -> None:
    trial = Trial()
    fill(trial)
    live = Trial()
    for count in range(len(trial.journal) + 1):
        again = Trial()
        again.journal = trial.journal[:count]
        again.restart(cut=count)
        if count:
            live.machine.apply(trial.journal[count - 1])
        assert list(again.machine.snapshot()) == list(live.machine.snapshot())
