"""Lag and status as functions of reads, in tables; each operator's report names the wrong answer of the other tool."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition
from kohort.lag import GroupLag, LagReport, LagStatus, PartitionLag, evaluate
from kohort.lag.evaluation import ABANDONED, BEFORE_START, CAUSES, WINDOW_MS
from kohort.lag.snapshot import NO_RECORD, UNDATED, ClusterSnapshot, GroupReading, PartitionBounds

ORDERS = TopicPartition("orders", 0)
READ_MS, EPOCH_MS = 10_000, 1_800_000_000_000
"""The time between two reads, and that of the first."""
MEMBER = MemberDescription("m-1", "app", "/10.0.0.1", None, (ORDERS,), None, ("orders",))
STABLE = GroupDescription("payments", "Classic", "Stable", "consumer", "range", (MEMBER,), 1)
EMPTY = replace(STABLE, state="Empty", members=())
STANDALONE = replace(EMPTY, protocol_type="")


@dataclass(frozen=True)
class At:
    """A read: the committed offset, the log's end, and what differs from a stable group that reads the whole log."""

    committed: int | None
    end: int
    start: int = 0
    stable: int | None = None
    group: GroupDescription = STABLE
    oldest_ms: int | None = None


def reports(reads: Iterable[At], window_ms: int = WINDOW_MS) -> list[LagReport]:
    found: list[LagReport] = []
    for number, read in enumerate(reads):
        bounds = PartitionBounds(read.start, read.end, read.end if read.stable is None else read.stable)
        committed = {} if read.committed is None else {ORDERS: OffsetAndMetadata(read.committed)}
        at = max(read.committed or 0, read.start)
        oldest = {} if read.oldest_ms is None else {(ORDERS, at): read.oldest_ms}
        groups = {"payments": GroupReading(read.group, True, committed)}
        snapshot = ClusterSnapshot(EPOCH_MS + number * READ_MS, groups, {}, {ORDERS: bounds}, oldest)
        found.append(evaluate(snapshot, found[-1] if found else None, window_ms))
    return found


def group_of(reads: Iterable[At]) -> GroupLag:
    return reports(reads)[-1].groups["payments"]


def last(reads: Iterable[At]) -> PartitionLag:
    (part,) = group_of(reads).partitions
    return part


# -- Offset lag


@pytest.mark.parametrize(
    ("read", "lag", "status", "cause", "lost"),
    [
        (At(20, 20), 0, LagStatus.OK, None, None),
        (At(13, 20), 7, LagStatus.OK, None, None),
        (At(None, 20), None, LagStatus.OK, "no offset", None),
        (At(21, 20), 0, LagStatus.ERR, "past end", None),
        (At(3, 20, start=10), 10, LagStatus.ERR, "before start", 7),
        (At(3, 20, start=20), 0, LagStatus.ERR, "before start", 17),
        (At(20, 20, start=20), 0, LagStatus.OK, None, None),
        (At(13, 20, group=EMPTY), 7, LagStatus.STOP, "no members", None),
        (At(20, 20, group=EMPTY), 0, LagStatus.OK, None, None),
        (At(13, 20, stable=13), 7, LagStatus.OK, "open transaction", None),
        (At(12, 20, stable=13), 8, LagStatus.OK, None, None),
    ],
)
def test_one_read_says_where_a_group_is(
    read: At, lag: int | None, status: LagStatus, cause: str | None, lost: int | None
) -> None:
    """Kafbat #675: a lag of 0 is shown as N/A, as one that is unknown."""
    part = last([read])
    assert (part.lag, part.status, part.cause, part.lost_offsets) == (lag, status, cause, lost)
    assert cause is None or cause in CAUSES


def test_lag_without_an_offset_is_unknown_and_no_sum_counts_it() -> None:
    """kafka-lag-exporter #37, #45: an offset that is not there counted as 0, so a lag of 1,234,234 appeared.

    KEDA #7936 counts all offsets ever given, with those that retention deleted.
    """
    group = group_of([At(None, 1_234_234, start=1_234_234)])
    assert group.partitions[0].lag is None
    assert (group.sum_lag, group.max_lag) == (0, 0)


def test_lag_after_retention_counts_only_what_the_log_holds() -> None:
    """Redpanda #30624: `end - committed` is millions for an empty topic whose records all expired."""
    part = last([At(100, 5_000_000, start=5_000_000)])
    assert (part.lag, part.lost_offsets, part.cause) == (0, 4_999_900, BEFORE_START)


def test_commit_past_the_end_is_no_negative_lag() -> None:
    """kafka_exporter #437, #76: a lag below zero, which broke autoscalers that divide by it."""
    part = last([At(25, 20)])
    assert (part.lag, part.time_lag_ms) == (0, 0)


def test_topic_that_is_gone_is_an_error_with_its_reason() -> None:
    """kafka-lag-exporter #179, #478, akhq #216: one deleted or shrunk topic ended the collection for all groups."""
    gone = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'orders': this server has no such topic")
    other = TopicPartition("returns", 0)
    reading = GroupReading(EMPTY, True, {ORDERS: OffsetAndMetadata(1), other: OffsetAndMetadata(2)})
    bounds: dict[TopicPartition, PartitionBounds | KafkaError] = {ORDERS: gone, other: PartitionBounds(0, 5, 5)}
    group = evaluate(ClusterSnapshot(EPOCH_MS, {"payments": reading}, {}, bounds)).groups["payments"]
    assert [(part.lag, part.cause) for part in group.partitions] == [(None, "topic gone"), (3, "no members")]
    assert group.status is LagStatus.ERR
    assert "no such topic" in (group.partitions[0].error or "")


# -- Abandoned topics


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ((MemberDescription("m", "a", "h", None, (), None, ("returns",)),), ABANDONED),
        ((MemberDescription("m", "a", "h", None, (), None, ("orders",)),), None),
        ((MemberDescription("m", "a", "h", None, (), None, None),), None),
        ((MemberDescription("m", "a", "h", None, (), None, ()),), None),
        ((MemberDescription("m", "a", "h", None, (), (), (), "ord.*"),), None),
        ((MemberDescription("m", "a", "h", None, (), (), (), "ret.*"),), ABANDONED),
        ((MemberDescription("m", "a", "h", None, (), (ORDERS,), ("returns",)),), None),
    ],
    ids=["another", "subscribed", "other protocol", "rebalancing", "pattern", "another pattern", "target"],
)
def test_topic_is_abandoned_if_members_subscribe_to_others(
    members: tuple[MemberDescription, ...], cause: str | None
) -> None:
    """Klag #92: the lag of a topic that the group left grows in its sum, as if the group fell behind."""
    reads = [At(5, 20 + 10 * number, group=replace(STABLE, members=members)) for number in range(3)]
    group = group_of(reads)
    assert group.partitions[0].cause == cause
    assert group.partitions[0].lag == 35
    assert group.sum_lag == (0 if cause == ABANDONED else 35)


def test_abandoned_topic_never_raises_a_groups_status() -> None:
    left = replace(STABLE, members=(replace(MEMBER, assignment=(), subscription=("returns",)),))
    assert group_of([At(5, 20 + number, group=left) for number in range(30)]).status is LagStatus.OK


def test_topic_of_a_group_without_members_is_not_abandoned() -> None:
    assert last([At(5, 20, group=EMPTY)]).cause == "no members"


# -- Time lag


def test_time_lag_of_a_quiet_topic_does_not_grow() -> None:
    """kafka-lag-exporter #37, #111: interpolation gave hours, or NaN, to groups that had read everything."""
    quiet = [At(20, 20)] * 100
    assert {report.groups["payments"].max_time_lag_ms for report in reports(quiet)} == {0}
    assert group_of(quiet).activity == "idle"


def test_time_lag_is_the_oldest_unread_records_age() -> None:
    """kafka-lag-exporter #496: three years for 45 minutes of records, extrapolated from two measurements."""
    assert last([At(13, 20, oldest_ms=EPOCH_MS - 45 * 60_000)]).time_lag_ms == 45 * 60_000


def test_time_lag_falls_while_a_burst_is_read() -> None:
    """kafka-lag-exporter #121: the time of the log's end moved with each poll, so that time lag rose until the end."""
    burst_ms = EPOCH_MS - 1_000
    reads = [At(100 * number, 1_000, oldest_ms=burst_ms + 90 * number) for number in range(1, 10)]
    ages = [report.groups["payments"].max_time_lag_ms for report in reports([*reads, At(1_000, 1_000)])]
    per_read = {later - earlier for earlier, later in pairwise(ages) if earlier and later}
    assert per_read == {READ_MS - 90}
    assert ages[-1] == 0


def test_time_lag_of_a_stopped_group_continues() -> None:
    """kafka-lag-exporter #36: no data points any more after the last member had left."""
    reads = [At(13, 20, oldest_ms=EPOCH_MS), *[At(13, 20, group=EMPTY, oldest_ms=EPOCH_MS)] * 5]
    group = group_of(reads)
    assert (group.sum_lag, group.max_time_lag_ms) == (7, 5 * READ_MS)
    assert (group.activity, group.status) == ("stopped", LagStatus.STOP)


def test_markers_of_transactions_are_no_time_lag_and_no_stall() -> None:
    """KEDA #5675, kafka_exporter #145: a lag of 1 for ever, since a marker has an offset and is no record."""
    reads = [At(19, 20, oldest_ms=NO_RECORD)] * 30
    part = last(reads)
    assert (part.lag, part.time_lag_ms, part.status, part.cause) == (1, 0, LagStatus.OK, None)
    assert group_of(reads).activity == "idle"
    assert last([At(19, 20, group=EMPTY, oldest_ms=NO_RECORD)]).status is LagStatus.OK


def test_record_without_a_timestamp_has_no_known_age() -> None:
    part = last([At(13, 20, oldest_ms=UNDATED)])
    assert (part.time_lag_ms, part.is_time_lag_exact) == (None, False)


def test_timestamp_of_a_clock_that_is_ahead_is_no_negative_age() -> None:
    assert last([At(13, 20, oldest_ms=EPOCH_MS + 5_000)]).time_lag_ms == 0


def test_time_lag_without_a_fetch_is_bounded_by_the_reads() -> None:
    """A record after the end of the last read is younger than that read; one after a known record is no older."""
    part = last([At(20, 20), At(25, 30)])
    assert (part.time_lag_ms, part.is_time_lag_exact) == (READ_MS, False)
    part = last([At(13, 20, oldest_ms=EPOCH_MS - 500), At(15, 20)])
    assert (part.time_lag_ms, part.is_time_lag_exact) == (READ_MS + 500, False)
    assert last([At(13, 20)]).time_lag_ms is None


# -- Status over reads


def falling(committed: int, end: int, reads: int) -> list[At]:
    return [At(committed * number, end * number) for number in range(1, reads)]


@pytest.mark.parametrize(
    ("reads", "status", "cause"),
    [
        ([At(13, 20)] * 6, LagStatus.OK, None),
        ([At(13, 20)] * 7, LagStatus.STALL, "no progress"),
        ([At(13, 20 + number) for number in range(7)], LagStatus.STALL, "no progress"),
        ([*[At(13, 20)] * 7, At(14, 20)], LagStatus.OK, None),
        ([At(20, 20)] * 20, LagStatus.OK, None),
        (falling(50, 100, 25), LagStatus.WARN, "falling behind"),
        (falling(100, 100, 25), LagStatus.OK, None),
        ([At(13, 20, stable=13)] * 7, LagStatus.WARN, "open transaction"),
        ([At(13, 20, stable=13)] * 6, LagStatus.OK, "open transaction"),
        ([At(13, 20, group=STANDALONE)], LagStatus.OK, None),
        ([At(13, 20, group=STANDALONE)] * 7, LagStatus.STOP, "no members"),
        ([At(13 + number, 40, group=EMPTY) for number in range(7)], LagStatus.OK, None),
    ],
)
def test_status_over_reads(reads: list[At], status: LagStatus, cause: str | None) -> None:
    part = last(reads)
    assert (part.status, part.cause) == (status, cause)


def test_zero_lag_in_the_window_hides_no_stop() -> None:
    """Burrow #290, #745: OK for 20 minutes after the consumer stopped, as a lag of zero was still in the window."""
    stopped = [At(20, 20), At(20, 25, group=EMPTY)]
    assert last(stopped).status is LagStatus.STOP
    stalled = [*[At(20, 20)] * 50, *[At(20, 25)] * 7]
    assert last(stalled).status is LagStatus.STALL


def test_topic_with_little_traffic_is_no_stop() -> None:
    """Burrow #38, #128, #303: STOP for consumers of slow topics that had read everything hours ago."""
    assert {report.groups["payments"].status for report in reports([At(7, 7)] * 720)} == {LagStatus.OK}


def test_saw_tooth_lag_that_grows_is_a_warning() -> None:
    """Burrow #155, #453, #738: OK with 200,000 records behind, as lag fell in one interval of the window."""
    reads = [At(400 * number + (300 if number % 3 == 0 else 0), 1_000 * number) for number in range(1, 25)]
    assert last(reads).status is LagStatus.WARN


def test_small_varying_lag_is_no_warning() -> None:
    """A consumer that commits every 5 s is measured at every height of its saw tooth; it is never a window behind."""
    reads = [At(1_000 * number - 17 * number, 1_000 * number) for number in range(1, 40)]
    assert {report.groups["payments"].status for report in reports(reads)} == {LagStatus.OK}


def test_group_that_commits_rarely_is_no_stall_after_its_first_pauses() -> None:
    """A batch job commits every two minutes. Its first pause may be a finding; later ones are usual."""
    reads = [At(100 * (number // 12), 10 * number + 10) for number in range(60)]
    later = [report.groups["payments"].status for report in reports(reads)[24:]]
    assert LagStatus.STALL not in later


def test_long_stop_does_not_delay_the_next_finding_for_ever() -> None:
    reads = [*[At(13, 20)] * 8_640, *[At(15, 20)] * 61]
    assert last(reads).status is LagStatus.STALL


def test_recreated_topic_begins_anew() -> None:
    """kafka-lag-exporter #197: the end of the deleted topic stayed, and with it a lag that was none."""
    part = last([*[At(90, 100)] * 10, At(5, 20)])
    assert (part.lag, part.status, part.consumed_per_s) == (15, LagStatus.OK, None)


def test_rates_give_the_time_to_catch_up() -> None:
    part = last([At(0, 1_000), At(200, 1_100)])
    assert (part.consumed_per_s, part.produced_per_s, part.catch_up_s) == (20.0, 10.0, 90.0)
    assert last([At(0, 1_000), At(100, 1_100)]).catch_up_s is None
    assert last([At(1_000, 1_000)]).catch_up_s == 0.0


def test_skew_and_hot_partitions_name_what_more_members_do_not_help() -> None:
    """Six partitions: one gets 700 per second, the others 100 each, and it alone is behind."""
    found: LagReport | None = None
    tps = [TopicPartition("orders", number) for number in range(6)]
    for seconds in (0, 10):
        ends = {tp: (700 if tp.partition == 5 else 100) * seconds for tp in tps}
        committed = {tp: OffsetAndMetadata(end if tp.partition < 5 else 0) for tp, end in ends.items()}
        bounds: dict[TopicPartition, PartitionBounds | KafkaError] = {
            tp: PartitionBounds(0, end, end) for tp, end in ends.items()
        }
        groups = {"payments": GroupReading(STABLE, True, committed)}
        found = evaluate(ClusterSnapshot(EPOCH_MS + seconds * 1_000, groups, {}, bounds), found)
    assert found is not None
    group = found.groups["payments"]
    assert (group.skew, [str(part.partition) for part in group.hot]) == (6.0, ["orders-5"])
    assert replace(group, description=replace(STABLE, type="Share")).hot == []
    even = group_of([At(10, 20), At(20, 30)])
    assert (even.skew, even.hot) == (1.0, [])
    assert group_of([At(20, 20)]).skew is None


def test_unassigned_partition_is_named_so() -> None:
    other = replace(STABLE, members=(replace(MEMBER, assignment=(TopicPartition("orders", 1),)),))
    reads = [At(13, 20, group=other)] * 7
    group = group_of(reads)
    causes = {part.partition.partition: part.cause for part in group.partitions}
    assert causes[0] == "unassigned"


def test_share_group_is_shown_as_what_it_is() -> None:
    """Akhq and redpanda console #1815 show groups of newer kinds as dead or empty."""
    share = GroupDescription("jobs", "Share", "Stable", "share", "", (), 1)
    snapshot = ClusterSnapshot(EPOCH_MS, {"jobs": GroupReading(share, members_known=False)})
    group = evaluate(snapshot).groups["jobs"]
    assert (group.description.type, group.status, group.activity) == ("Share", LagStatus.OK, "unknown")


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_one_topic_have_the_lag_that_each_has_alone(seed: int) -> None:
    """Groups that stand at one offset share what is remembered of it. Each must have its own facts nevertheless.

    They read in steps of their own, stand still, are reset, and go on where others are.
    """
    chance = random.Random(seed)
    parts = [TopicPartition("orders", number) for number in range(3)]
    groups = [f"g-{number}" for number in range(12)]
    at = {(group, part): 0 for group in groups for part in parts}
    end = dict.fromkeys(parts, 0)
    together: LagReport | None = None
    alone: dict[str, LagReport] = {}
    for read in range(30):
        for part in parts:
            end[part] = 0 if chance.random() < 0.01 else end[part] + chance.choice((0, 0, 1, 5))
        for place in at:
            at[place] = chance.choice((at[place], at[place], at[place], end[place[1]], max(0, end[place[1]] - 3), 0))
        bounds = {part: PartitionBounds(0, end[part], end[part]) for part in parts}
        readings = {
            group: GroupReading(
                STABLE if number % 2 else EMPTY, True, {part: OffsetAndMetadata(at[group, part]) for part in parts}
            )
            for number, group in enumerate(groups)
        }
        readings = {
            group: replace(reading, description=replace(reading.description, group_id=group))
            for group, reading in readings.items()
        }
        now_ms = EPOCH_MS + read * READ_MS
        together = evaluate(ClusterSnapshot(now_ms, readings, {}, bounds, {}), together)
        for group, reading in readings.items():
            snapshot = ClusterSnapshot(now_ms, {group: reading}, {}, bounds, {})
            alone[group] = evaluate(snapshot, alone.get(group))
            assert together.groups[group] == alone[group].groups[group]
    assert together is not None
    anchors = {id(part.trend.last) for group in together.groups.values() for part in group.partitions if part.trend}
    assert len(anchors) < len(at), "some are shared"
