"""How many members a group needs: on traces beside KEDA's rule, and decision by decision."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise

import pytest
from simulation.recorded_traffic import ROOT, asked_of_recording, recordings
from simulation.scaling import TRACES, KedaRule, KohortRule, Outcome, Trace, print_table, run

from kohort.client.admin.values import GroupDescription, GroupRebalanced, MemberDescription, RebalanceCause
from kohort.ids import TopicPartition
from kohort.lag import GroupLag, PartitionLag
from kohort.lag.evaluation import UNAVAILABLE, OffsetSample, Trend
from kohort.lag.scaling import (
    DOWN_AFTER_MS,
    MEASURE_MS,
    START_MS,
    ScalingDecision,
    ScalingState,
    ScalingTarget,
    decide_member_count,
)

BY_NAME = {trace.name: trace for trace in TRACES}
RECORDED = ("spike", "ramp", "quiet night", "stuck partition", "hot key", "open transaction")
TARGET = ScalingTarget(30_000)


@functools.cache
def both(name: str) -> tuple[Outcome, Outcome]:
    trace = BY_NAME[name]
    return run(trace, KohortRule()), run(trace, KedaRule())


@pytest.mark.parametrize("name", BY_NAME)
def test_group_changes_less_often_and_is_late_for_less_time_than_by_keda(name: str) -> None:
    ours, theirs = both(name)
    assert ours.changes < theirs.changes
    assert ours.over_s < theirs.over_s


@pytest.mark.parametrize("name", ["stuck partition", "open transaction"])
def test_group_does_not_grow_for_lag_that_no_member_can_reduce(name: str) -> None:
    """KEDA #3904: lag behind a record that can't be processed scaled the group to its most."""
    trace = replace(BY_NAME[name], seconds=4_400)
    ours, theirs = run(trace, KohortRule()), run(trace, KedaRule())
    assert ours.most == both("steady")[0].most, "as many as without it"
    assert theirs.most == 12, "KEDA's rule goes up to the number of partitions"
    assert any("no member can reduce the lag of orders-3" in why for why in ours.whys)


def test_backlog_behind_an_ended_transaction_gets_a_member_of_its_own_until_it_is_read() -> None:
    ours, _ = both("open transaction")
    assert ours.most == 12
    assert any("a backlog is read faster by a member of its own" in why for why in ours.whys)
    assert ours.changes == 3, "up to what is written, up for the backlog, down again"


def test_group_does_not_grow_for_a_partition_with_more_than_a_member_reads() -> None:
    ours, theirs = both("hot partition")
    assert ours.most < theirs.most == 12
    assert any("orders-5 alone has more than a member reads" in why for why in ours.whys)


def test_number_of_members_follows_traffic_down_again() -> None:
    day = BY_NAME["day and night"]
    outcome = run(Trace(day.name, 7_200, day.rate), KohortRule())
    assert outcome.most == 12
    assert outcome.member_h < 12 * 2 * 0.9


MEMBERS = 4
RECORDS_PER_S = 100


class Group:
    """A group of members that each read `reads` records per second of two partitions each."""

    def __init__(self, members: int = MEMBERS, partitions: int = 8, **more: object) -> None:
        self.members, self.partitions = members, partitions
        self.now_ms, self.read, self.end = 1_000_000, 0, 0
        self.time_lag_ms = 0
        self.state: ScalingState | None = None
        self.target = TARGET
        self.rebalances: tuple[GroupRebalanced, ...] = ()
        self.kind = str(more.get("kind", "Consumer"))
        self.causes: dict[int, str] = {}
        self.pauses_ms = (0, 0)
        self.quiet: frozenset[int] = frozenset()
        self.unavailable: frozenset[int] = frozenset()

    def look(self, seconds: int, written: float, read: float, time_lag_ms: int) -> ScalingDecision:
        """Let time pass in which so much is written to and read from each partition, and decide."""
        self.now_ms += seconds * 1_000
        self.end += int(written * seconds)
        self.read += int(read * seconds)
        self.time_lag_ms = time_lag_ms
        decision, self.state = decide_member_count(self.lag(), self.now_ms, self.target, self.state)
        return decision

    def lag(self) -> GroupLag:
        tps = [TopicPartition("t", number) for number in range(self.partitions)]
        described = tuple(
            MemberDescription(f"m{member}", "c", "h", None, tuple(tps[member :: self.members]))
            for member in range(self.members)
        )
        owner = {tp: member for member in described for tp in member.assignment or ()}
        parts = tuple(
            PartitionLag(
                tp, 0 if tp.partition in self.quiet else self.read, "", owner.get(tp), 0,
                0 if tp.partition in self.quiet else self.end, 0,
                0 if tp.partition in self.quiet else self.time_lag_ms, True,
                cause=self.causes.get(tp.partition), trend=self.trend(tp.partition // max(1, self.members) % 2),
            )
            for tp in tps
        )  # fmt: skip
        parts = tuple(
            PartitionLag(part.partition, self.read, "", part.owner, cause=UNAVAILABLE, error="no leader")
            if part.partition.partition in self.unavailable
            else part
            for part in parts
        )
        description = GroupDescription(
            "g", self.kind, "Stable", "consumer", "uniform", described, rebalances=self.rebalances
        )
        return GroupLag(description, True, parts)

    def trend(self, number: int) -> Trend | None:
        """Return the trend of a member's first or second partition."""
        now = OffsetSample(self.now_ms, self.read, self.end)
        return replace(Trend.started(now, 0), longest_pause_ms=self.pauses_ms[number])

    def busy(self, seconds: int = 30) -> ScalingDecision:
        """Look at a group whose members can't keep up."""
        self.look(1, 50, 25, 20_000)
        return self.look(seconds, 50, 25, 40_000)


def test_first_looks_measure_and_change_nothing() -> None:
    group = Group()
    assert group.look(1, 50, 25, 60_000).wanted == MEMBERS
    decision = group.look(MEASURE_MS // 1_000 - 2, 50, 25, 60_000)
    assert (decision.wanted, decision.needed, decision.why) == (MEMBERS, None, "rates are being measured")


def test_measurement_begins_with_a_first_commit() -> None:
    group = Group()
    group.state = decide_member_count(replace(group.lag(), partitions=tuple(
        replace(part, committed=None) for part in group.lag().partitions
    )), group.now_ms, TARGET)[1]  # fmt: skip
    assert group.look(1, 50, 25, 20_000).written_per_s is None
    decision = group.look(MEASURE_MS // 1_000, 50, 25, 40_000)
    assert (decision.written_per_s, decision.read_per_s, decision.member_per_s) == (400, 200, 50)


def test_members_that_keep_up_get_no_others() -> None:
    """Their rate was taken for their limit, so that a group without lag grew to its most."""
    group = Group()
    group.look(1, 50, 50, 0)
    for _ in range(20):
        decision = group.look(30, 50, 50, 0)
        assert (decision.wanted, decision.needed) == (MEMBERS, MEMBERS)
    assert "none of them is busy" in decision.why
    group.look(1, 50, 50, 20_000)
    assert group.look(30, 50, 50, 20_000).wanted > MEMBERS, "they are busy"


def test_first_commit_of_another_partition_does_not_begin_the_measurement_again() -> None:
    group = Group()
    group.look(1, 50, 50, 0)
    assert group.look(MEASURE_MS // 1_000, 50, 50, 0).written_per_s == 400
    assert group.state is not None
    group.state = replace(group.state, offsets=dict(list(group.state.offsets.items())[:7]))
    assert group.look(1, 50, 50, 0).needed is not None
    written = [group.look(MEASURE_MS // 1_000, 50, 50, 0).written_per_s or 0 for _ in range(9)]
    assert written[0] < written[-1] == 400, written


@pytest.mark.parametrize(("pauses_ms", "measure_s"), [((30_000, 12_000), 24), ((30_000, 0), 60), ((5_000, 5_000), 20)])
def test_measurement_is_as_long_as_the_pauses_of_the_member_not_of_its_partitions(
    pauses_ms: tuple[int, int], measure_s: int
) -> None:
    group = Group()
    group.pauses_ms = pauses_ms
    group.look(1, 50, 25, 20_000)
    assert group.look(measure_s - 1, 50, 25, 40_000).why == "rates are being measured"
    assert group.look(1, 50, 25, 40_000).needed is not None


def test_members_of_unavailable_partitions_are_wanted_by_the_first_decision() -> None:
    group = Group()
    group.unavailable = frozenset(range(2, 8))
    assert group.look(1, 50, 50, 0).wanted == MEMBERS


@pytest.mark.parametrize("min_members", [0, 1])
def test_number_does_not_fall_while_partitions_are_unavailable_nor_right_after_it(min_members: int) -> None:
    group = Group()
    group.target = ScalingTarget(30_000, min_members)
    group.look(1, 50, 50, 20_000)
    group.look(30, 50, 50, 20_000)
    group.unavailable = frozenset(range(2, 8))
    wanted = [group.look(30, 50, 50, 0).wanted for _ in range(3 * DOWN_AFTER_MS // 30_000)]
    group.unavailable = frozenset()
    wanted += [group.look(30, 50, 50, 0).wanted for _ in range(3)]
    assert min(wanted) >= MEMBERS, wanted


def test_quiet_group_keeps_its_members_while_partitions_are_unavailable() -> None:
    group = Group()
    group.target, group.unavailable = ScalingTarget(30_000, 0), frozenset(range(2, 8))
    group.look(1, 0, 0, 0)
    assert group.look(30, 0, 0, 0).wanted == MEMBERS
    group.unavailable = frozenset()
    assert group.look(30, 0, 0, 0).wanted == 0


def test_members_that_cannot_keep_up_are_joined_by_others() -> None:
    decision = Group().busy()
    assert decision.wanted == 8, "each of 4 members reads 50 per second of two partitions, and 100 are written to these"
    assert decision.why == "400 records are written and a member reads 50 per second"
    assert (decision.written_per_s, decision.member_per_s) == (400, 50)


def test_members_are_never_more_than_partitions_or_the_most_that_are_allowed() -> None:
    assert Group(partitions=4).busy().wanted == 4
    group = Group()
    group.target = ScalingTarget(30_000, max_members=5)
    assert group.busy().wanted == 5


def test_partitions_without_records_ask_for_no_members() -> None:
    """KEDA #5880: with records in a few partitions alone the group got as many members as there are partitions."""
    group = Group(members=1, partitions=8)
    group.quiet = frozenset(range(2, 8))
    decision = group.busy()
    assert (decision.wanted, decision.written_per_s) == (3, 100), "of which a member reads 50, for 75 % of its time"


def test_partitions_without_an_offset_ask_for_no_members() -> None:
    """KEDA #5906: partitions that were never read, whose records have all expired, scaled the group to its most.

    Their offset is -1, which counted as a lag of all records that were ever written.
    """
    group = Group(members=2, partitions=8)
    never = [
        PartitionLag(TopicPartition("old", number), None, "", None, 9_000_000, 9_000_000, cause="no offset")
        for number in range(6)
    ]
    for _ in range(4):
        group.look(1, 10, 10, 0)
        found = replace(group.lag(), partitions=(*group.lag().partitions, *never))
        decision, group.state = decide_member_count(found, group.now_ms + 30_000, TARGET, group.state)
        group.now_ms += 30_000
        assert found.sum_lag == 0
    assert (decision.wanted, decision.needed) == (2, 2)


def test_share_group_may_have_more_members_than_partitions() -> None:
    assert Group(partitions=4, kind="Share").busy().wanted > 4


def test_nobody_is_added_while_the_last_change_takes_effect() -> None:
    group = Group()
    assert group.busy().wanted == 8
    decision = group.look(25, 50, 25, 60_000)
    assert (decision.wanted, decision.why) == (8, "8 members are wanted, and 4 are there")
    group.members = 8
    assert "just joined or left" in group.look(5, 50, 25, 60_000).why


def test_wanted_members_that_never_come_stop_to_be_waited_for() -> None:
    group = Group()
    group.busy()
    decision = group.look(START_MS // 1_000 + 1, 50, 25, 60_000)
    assert decision.wanted == 8
    assert "are wanted, and" not in decision.why


def test_backlog_that_is_read_before_a_rebalance_would_end_adds_nobody() -> None:
    group = Group()
    group.rebalances = (GroupRebalanced((RebalanceCause(0, "joined", "a"),), 0, 60_000, 1, 4, 55_000),)
    group.look(1, 90, 30, 40_000)
    group.state = group.state and ScalingState(
        4, group.state.members, 0, group.state.since_ms, group.state.offsets, 120.0
    )
    decision = group.look(30, 30, 31, 31_000)
    assert decision.wanted == 4


def test_fewer_members_are_wanted_only_after_they_were_enough_for_a_while() -> None:
    group = Group(members=8)
    group.look(1, 10, 10, 0)
    group.state = group.state and ScalingState(
        8, group.state.members, 0, group.state.since_ms, group.state.offsets, 100.0
    )
    seen = [group.look(30, 10, 10, 0) for _ in range(DOWN_AFTER_MS // 30_000 + 2)]
    assert [decision.wanted for decision in seen[:9]] == [8] * 9
    assert {decision.needed for decision in seen[2:9]} == {2}
    assert seen[-1].wanted == 2
    assert "for 300 s" in next(decision.why for decision in seen if decision.wanted == 2)


def test_rebalance_that_stands_still_as_long_as_the_target_is_not_made_for_a_few_members_less() -> None:
    group = Group(members=4)
    group.rebalances = (GroupRebalanced((RebalanceCause(0, "joined", "a"),), 0, 60_000, 1, 4, 35_000),)
    group.look(1, 25, 25, 0)
    group.state = group.state and ScalingState(
        4, group.state.members, 0, group.state.since_ms, group.state.offsets, 130.0
    )
    seen = [group.look(30, 25, 25, 0) for _ in range(DOWN_AFTER_MS // 30_000 + 2)]
    assert (seen[-1].needed, seen[-1].wanted, seen[-1].downtime_ms) == (3, 4, 35_000)
    assert seen[-1].why == "fewer would do, but a rebalance has a downtime of 35 s, as long as the target"


def test_group_without_members_gets_one_for_unread_records_and_none_if_that_is_allowed() -> None:
    group = Group(members=0)
    group.target = ScalingTarget(30_000, min_members=0)
    assert group.look(1, 0, 0, 0).wanted == 0
    decision = group.look(5, 10, 0, 5_000)
    assert (decision.wanted, decision.why) == (1, "records wait, and there are no members")


def test_idle_group_may_go_to_none_only_if_that_is_allowed() -> None:
    for fewest in (0, 1):
        group = Group(members=1)
        group.target = ScalingTarget(30_000, min_members=fewest)
        group.look(1, 10, 10, 0)
        group.look(30, 10, 10, 0)
        seen = [group.look(30, 0, 0, 0) for _ in range(30)]
        assert seen[-1].wanted == fewest


def test_group_that_reads_nothing_gets_no_members_for_its_lag() -> None:
    group = Group()
    group.look(1, 50, 0, 20_000)
    decision = group.look(30, 50, 0, 60_000)
    assert decision.wanted == MEMBERS
    assert decision.why == "nothing is read, so that no number of members is known to help"


# -- Recorded traffic of real groups


@functools.cache
def scaled(name: str) -> tuple[Outcome, Outcome]:
    recording = recordings()[name]
    trace, members = recording.trace(), recording.samples[0].members
    return run(trace, KohortRule(), members), run(trace, KedaRule(), members)


@pytest.mark.parametrize("name", RECORDED)
def test_recording_is_of_a_real_group_with_members_that_join_and_leave(name: str) -> None:
    recording = recordings()[name]
    members = [sample.members for sample in recording.samples]
    assert (members[0], max(members), members[-1]) == (3, 4, 3)
    assert recording.downtime_ms and all(
        earlier <= later
        for before, sample in pairwise(recording.samples)
        for earlier, later in zip((*before.committed, *before.end), (*sample.committed, *sample.end), strict=True)
    )


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_group_changes_less_often_and_is_late_for_less_time_than_by_keda(name: str) -> None:
    ours, theirs = scaled(name)
    assert ours.changes < theirs.changes
    assert ours.over_s < theirs.over_s


@pytest.mark.parametrize("name", ["stuck partition", "hot key", "quiet night"])
def test_recorded_group_does_not_grow_where_no_member_helps(name: str) -> None:
    """A partition that had just got stuck asked for a member of its own until it was `STALL`. KEDA goes up for each."""
    ours, theirs = scaled(name)
    assert ours.most == 3 < theirs.most


@pytest.mark.parametrize("name", ["stuck partition", "open transaction"])
def test_partition_that_nobody_could_read_is_named_and_asks_for_nobody(name: str) -> None:
    """The rule looks at the group as it was, and wants no more members while the partition stands still."""
    recording = recordings()[name]
    decisions, _ = asked_of_recording(recording)
    trace = recording.trace()
    since, until = trace.open_transaction.get(3, (trace.stuck.get(3, 0), trace.seconds))
    during = [
        decision
        for sample, decision in zip(recording.samples, decisions, strict=True)
        if since <= sample.at_ms // 1_000 <= until
    ]
    assert len(during) > 40
    assert {decision.wanted for decision in during} == {3}
    assert TopicPartition("orders", 3) in during[-1].blocked


def test_decisions_about_recordings_are_facts_of_the_recording() -> None:
    """No clock and no chance of this machine is in them."""
    first, second = (asked_of_recording(recordings()["ramp"]) for _ in range(2))
    assert first == second
    assert first[0][-1].wanted > 3 <= first[1][-1]


@pytest.mark.parametrize("name", dict.fromkeys([*BY_NAME, *RECORDED]))
def test_table_of_the_page_has_the_outcomes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two names are in both tables."""
    page = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    outcomes = [outcomes for known, outcomes in ((BY_NAME, both), (RECORDED, scaled)) if name in known]
    for of in outcomes:
        print_table({name: of(name)})
        assert capsys.readouterr().out.splitlines()[-1] in page.splitlines()
