"""The dashboard's answers about groups, as values for JSON: made from the last read and the history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kohort.client.admin.values import MemberDescription
from kohort.dashboard.history import LagHistory
from kohort.errors import KafkaError
from kohort.ids import TopicPartition, by_topic
from kohort.lag import CAUSES, GroupLag, LagReport, PartitionLag
from kohort.lag.cluster_watch import WatchState
from kohort.lag.evaluation import ABANDONED
from kohort.lag.snapshot import reason_of

SPARKLINE_READS = 60
"""The reads in a sparkline of the overview: 10 minutes at an interval of 10 s."""
PARTITIONS_SHOWN = 1_000
"""The most partitions on a group's page: those with the worst status and the largest lag."""
MEMBERS_SHOWN = 1_000
"""The most members on a group's page."""
UNREAD = "UNREAD"
"""The status of a group that the last read could not read."""

View = dict[str, Any]


def cluster_view(name: str, state: WatchState, interval_ms: float) -> View:
    """Return how the cluster and the last read are."""
    report = state.report
    return {
        "cluster": name,
        "up": state.is_up,
        "reads": sum(state.reads.values()),
        "read_at_ms": None if report is None else report.taken_ms,
        "read_took_ms": round(state.read_ms),
        "interval_ms": round(interval_ms),
        "failures": dict(state.failures),
        "messages": list(state.messages),
    }


def overview(report: LagReport | None, history: LagHistory) -> View:
    """Return all groups, each with its status, lag, time lag and sparkline."""
    if report is None:
        return {"groups": [], "times_ms": []}
    groups = [_group_row(group, history) for group in report.groups.values()]
    groups += [_unread_row(name, error, history) for name, error in report.errors.items()]
    return {"groups": groups, "times_ms": history.times_ms(SPARKLINE_READS)}


def _group_row(group: GroupLag, history: LagHistory) -> View:
    name, read = group.description.group_id, group.read
    return {
        "group": name,
        "state": group.description.state,
        "type": group.description.type,
        "members": len(group.description.members) if group.members_known else None,
        "status": group.status.name,
        "activity": group.activity,
        "causes": sorted({part.cause for part in group.partitions if part.cause and part.status is group.status}),
        "topics": sorted({part.partition.topic for part in group.partitions}),
        "partitions": len(group.partitions),
        "lag": group.sum_lag if read else None,
        "time_lag_ms": group.max_time_lag_ms,
        "exact": all(part.is_time_lag_exact for part in read),
        "consumed_per_s": _sum(part.consumed_per_s for part in read),
        "written_per_s": _sum(part.produced_per_s for part in read),
        "lags": history.lag_of_group(name, SPARKLINE_READS),
    }


def _unread_row(name: str, error: KafkaError, history: LagHistory) -> View:
    lags = history.lag_of_group(name, SPARKLINE_READS)
    return {"group": name, "status": UNREAD, "reason": reason_of(error), "error": str(error), "lags": lags}


def group_view(report: LagReport, history: LagHistory, name: str) -> View | None:
    """Return a group with its partitions, members and timeline; None if the last read has no such group."""
    timeline = [
        {"at_ms": timed.at_ms, "kind": timed.change.kind, "text": timed.change.text}
        for timed in history.changes_of_group(name)
    ]
    over_time = {
        "times_ms": history.times_ms(),
        "lags": history.lag_of_group(name),
        "time_lags_ms": history.time_lag_of_group(name),
        "timeline": timeline,
    }
    group = report.groups.get(name)
    if group is None:
        error = report.errors.get(name)
        return None if error is None else {**_unread_row(name, error, history), **over_time}
    of = group.description
    shown = sorted(group.partitions, key=_from_worst)[:PARTITIONS_SHOWN]
    return {
        **_group_row(group, history),
        **over_time,
        "explained": {cause: CAUSES[cause] for cause in sorted({part.cause for part in shown if part.cause})},
        "protocol": of.protocol_type,
        "assignor": of.assignor,
        "coordinator": of.coordinator,
        "epoch": of.epoch,
        "partition_rows": [_partition_row(part, name, history) for part in shown],
        "partitions_left_out": len(group.partitions) - len(shown),
        "member_rows": [_member_row(member, group) for member in of.members[:MEMBERS_SHOWN]],
        "members_left_out": max(0, len(of.members) - MEMBERS_SHOWN),
    }


def _from_worst(part: PartitionLag) -> tuple[int, int, TopicPartition]:
    return -part.status, -(part.lag or 0), part.partition


def _partition_row(part: PartitionLag, group: str, history: LagHistory) -> View:
    owner = part.owner
    return {
        "topic": part.partition.topic,
        "partition": part.partition.partition,
        "committed": part.committed,
        "log_start": part.log_start,
        "log_end": part.log_end,
        "lag": part.lag,
        "time_lag_ms": part.time_lag_ms,
        "exact": part.is_time_lag_exact,
        "lost": part.lost,
        "status": part.status.name,
        "cause": part.cause,
        "error": part.error,
        "consumed_per_s": part.consumed_per_s,
        "written_per_s": part.produced_per_s,
        "catch_up_s": part.catch_up_s,
        "member": None if owner is None else owner.client_id or owner.member_id,
        "lags": history.lag_of_partition(group, part.partition),
    }


def _member_row(member: MemberDescription, group: GroupLag) -> View:
    owned = set(member.assignment or ())
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host,
        "instance": member.group_instance_id,
        "epoch": member.epoch,
        "partitions": len(owned),
        "owns": {topic: sorted(numbers) for topic, numbers in sorted(by_topic(owned).items())},
        "subscription": sorted(member.subscription or ()),
        "lag": sum(part.lag or 0 for part in group.read if part.partition in owned),
    }


def readers_of_topics(report: LagReport | None) -> Mapping[str, list[View]]:
    """Return for each topic the groups that read it, with their lag there; the largest first."""
    readers: dict[str, list[View]] = {}
    for name, group in ({} if report is None else report.groups).items():
        lags: dict[str, int] = {}
        for part in group.partitions:
            if part.cause != ABANDONED:
                lags[part.partition.topic] = lags.get(part.partition.topic, 0) + (part.lag or 0)
        for topic, lag in lags.items():
            readers.setdefault(topic, []).append({"group": name, "lag": lag, "status": group.status.name})
    return {topic: sorted(rows, key=lambda row: -row["lag"]) for topic, rows in readers.items()}


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
