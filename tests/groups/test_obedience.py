"""Members that obey in time are left alone; members that name a wrong epoch are not believed."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.effects import ComputeAssignment, ResolveRegexes
from kohort.groups.events import (
    AssignmentComputed,
    ConsumerGroupDescribe,
    DescribeGroups,
    ListGroups,
    OffsetFetch,
    RegexesResolved,
)
from kohort.groups.records import OfferedProtocol
from kohort.ids import TopicPartition
from tests.groups.harness import Trial, owned
from tests.groups.test_conversion import assignment, classic_metadata, make_classic, make_trial, offer, plan

TIMEOUT_MS = 60_000
"""The rebalance timeout of the trial's members."""


def beats_for(trial: Trial, ms: int, **epochs: int) -> set[ErrorCode]:
    """Let members send heartbeats for so long; what they are answered."""
    errors = set()
    for _ in range(ms // 5_000):
        trial.pass_time(5_000)
        errors.update(trial.beat(member, epoch).error for member, epoch in epochs.items())
    return errors


def gives_up(trial: Trial) -> tuple[int, ...]:
    """Member a had all four partitions, b has joined, and a was told to give two up; what a keeps."""
    trial.beat("a")
    trial.beat("b")
    (entry,) = trial.beat("a", 2).assignment
    return tuple(entry.partitions)


def described(trial: Trial) -> Any:
    return trial.ask(ConsumerGroupDescribe(trial.request(), ("g",))).groups[0]


class Obedient:
    """A member of the consumer protocol that does what it is told, at each heartbeat."""

    def __init__(self, trial: Trial, name: str, **more: Any) -> None:
        self.trial, self.name, self.more = trial, name, more
        self.has: tuple[int, ...] = ()
        self.join()

    def join(self) -> None:
        self.epoch, self.has = 0, ()
        self.beat()

    def beat(self) -> None:
        said = {} if self.epoch == 0 else {"owned": owned("t", *self.has)}
        reply = self.trial.beat(self.name, self.epoch, **said, **self.more)
        assert reply.error is ErrorCode.NONE
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.has = tuple(number for entry in reply.assignment for number in entry.partitions)


@pytest.mark.parametrize("how", ["it says so", "it joins again", "it was away"])
def test_a_member_that_has_given_up_in_time_stays(how: str) -> None:
    trial = make_trial()
    first = Obedient(trial, "a", instance_id="i")
    members = [first, Obedient(trial, "b")]
    first.beat()
    assert len(first.has) == 2, "it is told to give two up"
    if how == "it joins again":
        first.join()
    elif how == "it was away":
        assert trial.beat("a", -2, instance_id="i").error is ErrorCode.NONE
        first.join()
    for _ in range(2 * TIMEOUT_MS // 2_500):
        for member in members:
            member.beat()
        trial.pass_time(2_500)
    assert sorted([*members[0].has, *members[1].has]) == [0, 1, 2, 3]


def test_a_member_that_was_too_late_is_as_good_as_new_when_it_has_joined_again() -> None:
    trial = make_trial()
    gives_up(trial)
    assert ErrorCode.UNKNOWN_MEMBER_ID in beats_for(trial, TIMEOUT_MS, a=2, b=3)
    members = [Obedient(trial, "a"), Obedient(trial, "b")]
    for _ in range(2 * TIMEOUT_MS // 2_500):
        for member in members:
            member.beat()
        trial.pass_time(2_500)


def test_a_classic_member_that_has_joined_in_time_stays() -> None:
    trial = make_trial()
    member, generation = make_classic(trial)
    trial.beat("new")
    assert trial.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = trial.joined(member, protocols=offer(0, 1, 2, 3))
    kept = assignment(trial, member, joined.generation)
    done = trial.joined(member, protocols=offer(*kept))
    assignment(trial, member, done.generation)
    trial.beat("new", generation + 1)
    for _ in range(2 * TIMEOUT_MS // 5_000):
        trial.pass_time(5_000)
        trial.beat("new", done.generation)
        assert trial.heartbeat(member, done.generation) is ErrorCode.NONE


def test_a_restart_gives_a_member_its_whole_time_to_revoke_and_no_more() -> None:
    trial = make_trial()
    gives_up(trial)
    trial.pass_time(30_000)
    trial.restart()
    assert beats_for(trial, TIMEOUT_MS - 5_000, a=2, b=3) == {ErrorCode.NONE}
    assert beats_for(trial, 5_000, a=2) == {ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_target_that_was_missing_at_a_restart_is_computed() -> None:
    trial = make_trial()
    trial.works_at_once = False
    trial.beat("a")
    trial.work.clear()
    trial.restart()
    assert [type(work) for work in trial.work] == [ComputeAssignment]
    trial.do_work()
    assert described(trial).epoch == described(trial).assignment_epoch


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_offsets_are_refused_to_a_member_that_says_an_older_epoch(epoch: int) -> None:
    trial = make_trial()
    kept = gives_up(trial)
    assert trial.beat("a", 2, owned=owned("t", *kept)).member_epoch == 3
    asked = OffsetFetch(trial.request(), "g", (TopicPartition("t", 0),), member_id="a", member_epoch=epoch)
    assert trial.ask(asked).error is ErrorCode.STALE_MEMBER_EPOCH


def test_offsets_are_refused_to_a_classic_member_that_says_an_older_epoch() -> None:
    trial = make_trial()
    member, generation = make_classic(trial)
    trial.beat("new")
    trial.joined(member, protocols=offer())
    asked = OffsetFetch(trial.request(), "g", (), member_id=member, member_epoch=generation)
    assert trial.ask(asked).error is ErrorCode.ILLEGAL_GENERATION


def test_only_the_reply_to_the_newest_epoch_can_have_been_lost() -> None:
    trial = make_trial()
    kept = gives_up(trial)
    assert trial.beat("a", 2, owned=owned("t", *kept)).member_epoch == 3
    trial.beat("c")
    (entry,) = trial.beat("a", 3).assignment
    assert trial.beat("a", 3, owned=owned("t", *entry.partitions)).member_epoch == 4
    has = owned("t", entry.partitions[0])
    assert trial.beat("a", 2, owned=has).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert trial.beat("a", 3, owned=has).error is ErrorCode.NONE


def test_the_target_of_members_who_are_gone_does_not_set_their_groups_target_back() -> None:
    trial = make_trial()
    trial.works_at_once = False
    trial.beat("a")
    trial.beat("a", -1)
    assert described(trial).assignment_epoch == 3
    trial.beat("b")
    first = trial.work.pop(0)
    assert isinstance(first, ComputeAssignment)
    trial.feed(AssignmentComputed("g", first.ticket, first.epoch, {"a": owned("t", 0, 1, 2, 3)}))
    assert described(trial).assignment_epoch == 3
    trial.do_work()
    assert described(trial).assignment_epoch == 4


def test_the_result_of_work_that_an_earlier_coordinator_asked_for_is_not_taken() -> None:
    trial = make_trial()
    trial.works_at_once = False
    trial.beat("a")
    stale = trial.work.pop()
    assert isinstance(stale, ComputeAssignment)
    trial.pass_time(1)
    trial.restart()
    before = len(trial.journal)
    trial.feed(AssignmentComputed("g", stale.ticket, stale.epoch, {"a": owned("t", 0)}))
    assert len(trial.journal) == before
    trial.do_work()
    assert sum(len(entry.partitions) for entry in described(trial).members[0].target) == 4
    trial.feed(AssignmentComputed("g", stale.ticket, stale.epoch, {"a": owned("t", 0)}))
    assert sum(len(entry.partitions) for entry in described(trial).members[0].target) == 4


def test_topics_of_patterns_that_an_earlier_coordinator_asked_for_are_not_taken() -> None:
    trial = make_trial()
    trial.works_at_once = False
    trial.beat("a", subscribed_topics=(), subscribed_regex="t.*")
    stale = trial.work.pop()
    assert isinstance(stale, ResolveRegexes)
    trial.pass_time(1)
    trial.restart()
    before = len(trial.journal)
    trial.feed(RegexesResolved("g", stale.ticket, stale.version, {"t.*": ("gone",)}))
    assert len(trial.journal) == before
    trial.do_work()
    assert described(trial).members[0].target


def test_a_classic_member_syncs_in_the_newest_epoch_only() -> None:
    trial = make_trial()
    member, _ = make_classic(trial)
    trial.beat("new")
    joined = trial.joined(member, protocols=offer(0, 1))
    trial.beat("another")
    request = trial.sync(member, joined.generation)
    assert trial.reply(request).error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("newest", ["first", "second"])
def test_scenario_15_what_a_cooperative_member_has_still_to_revoke_is_its_own_in_a_consumer_group(newest: str) -> None:
    """Between two cooperative rounds no one is assigned it; of two that claim it, the later generation has it."""
    trial = make_trial()
    first = trial.joined(protocols=offer())
    second = trial.join(protocols=claims(3, generation=8))
    trial.join(first.member_id, protocols=claims(0, 1, 2, 3, generation=9 if newest == "first" else 7))
    joined = trial.reply(second)
    plans = {first.member_id: plan(0, 1), joined.member_id: plan()}
    for name in (joined.member_id, first.member_id):
        trial.sync(name, joined.generation, plans)
    trial.beat("new")
    held = {
        member.member_id: sorted(number for entry in member.assignment for number in entry.partitions)
        for member in described(trial).members
    }
    expected = ([0, 1, 2, 3], []) if newest == "first" else ([0, 1, 2], [3])
    assert (held[first.member_id], held[joined.member_id], held["new"]) == (*expected, [])


def claims(*partitions: int, generation: int) -> Any:
    """Return the claim of a cooperative member: its partitions since a generation."""
    return (OfferedProtocol("range", classic_metadata(*partitions, generation=generation)),)


def test_descriptions_show_what_is_to_be_revoked_and_what_is_chosen_when_it_counts() -> None:
    trial = make_trial()
    gives_up(trial)
    trial.works_at_once = False
    trial.beat("c")
    group = described(trial)
    held = {member.member_id: sum(len(entry.partitions) for entry in member.assignment) for member in group.members}
    assert held == {"a": 4, "b": 0, "c": 0}
    assert (group.state, group.epoch, group.assignment_epoch) == ("Assigning", 4, 3)
    listed = trial.ask(ListGroups(trial.request())).groups[0]
    assert (listed.state, listed.type) == ("Assigning", "consumer")


def test_a_classic_round_that_is_under_way_tells_no_protocol() -> None:
    trial = make_trial()
    joined = trial.joined(protocols=offer())
    group = trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0]
    assert (group.state, group.protocol, group.members[0].metadata) == ("CompletingRebalance", "", b"")
    trial.sync(joined.member_id, joined.generation, {joined.member_id: plan(0)})
    group = trial.ask(DescribeGroups(trial.request(), ("g",))).groups[0]
    assert (group.state, group.protocol, group.members[0].metadata) == ("Stable", "range", offer()[0].metadata)
