"""Groups, members and lag as rows for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kohort.cli.app import UsageError
from kohort.cli.common import check_names
from kohort.cli.output import utc_text
from kohort.errors import KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.values import GroupDescription, GroupRebalanced, MemberDescription
    from kohort.lag import GroupLag, LagReader

_PLACE = ("topic", "partition", "committed", "log_start", "log_end", "lag", "time_lag")
_HEALTH = ("lost", "status", "cause", "error")
OF_PARTITION = (*_PLACE, "client_id", "host", "member_id", *_HEALTH)
OF_LAG = ("group", *_PLACE, *_HEALTH)
OF_WATCHED = ("group", *_PLACE, "rate", "catch_up", "client_id", "host", *_HEALTH)
"""The columns of tables of partitions, of lag, and of lag over time."""
WATCHED_EXPENDABLE = ("log_start", "host", "catch_up", "rate", "committed", "client_id")
"""Columns that a terminal which is too narrow for `groups watch` leaves out, the first one first."""
OF_REBALANCE = ("group", "began", "took_s", "generation", "members", "downtime_s", "reasons", "why")
"""The columns of tables of rebalances."""


TYPES = ("Classic", "Consumer", "Share", "Streams")
"""Kafka's names of group types."""


def type_name(text: str) -> str:
    """Return a group's type capitalised as Kafka's tools write it, such as `Classic`; ListGroups has lower case."""
    return next((name for name in TYPES if name.lower() == text.lower()), text)


def check_groups_chosen(groups: tuple[str, ...], all_groups: bool) -> None:
    """Check, before any request to the cluster, that either groups are named or --all-groups is given.

    Raises:
        UsageError: neither or both.
    """
    if all_groups == bool(groups):
        raise UsageError("name groups, or give --all-groups")
    check_names("group", *groups)


def named_or_all_groups(admin: Admin, groups: tuple[str, ...], all_groups: bool) -> list[str]:
    """Return the named groups, or with `all_groups` the names of all groups of the cluster."""
    return [group.group_id for group in admin.list_groups()] if all_groups else list(groups)


def group_rows_with_partitions(
    reader: LagReader, names: Sequence[str] | None
) -> tuple[list[dict[str, Any]], dict[str, KafkaError]]:
    """Return an output row for each group, with rows of its partitions inside, and the errors of unreadable groups.

    Args:
        reader: Reads the groups.
        names: Their names; None: every group of the cluster.

    Raises:
        KafkaError: The cluster can't be reached.
    """
    from kohort.client.admin.group_changes import errors_with_similar_names

    report = reader.read(names)
    described = [
        {**group_row(group.description), **_lag_of_group(group), "partitions": lag_rows(group)}
        for group in report.groups.values()
    ]
    errors = errors_with_similar_names(report.errors, lambda: list(reader.listing or ()))
    for failure in report.failures:
        errors[failure.part] = KafkaError(f"{failure.part}: {failure.text}")
    return described, errors


def _lag_of_group(group: GroupLag) -> dict[str, Any]:
    return {
        "status": group.status.name,
        "activity": group.activity,
        "lag": group.sum_lag,
        "time_lag": _seconds(group.max_time_lag_ms),
        "skew": _rounded(group.skew),
        "hot": [str(part.partition) for part in group.hot],
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 3)


def group_row(group: GroupDescription) -> dict[str, Any]:
    """Return the output row of a group."""
    return {
        "group": group.group_id,
        "state": group.state,
        "type": type_name(group.type),
        "protocol": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "epoch": group.epoch,
        "members": len(group.members),
    }


def rebalance_rows(group: GroupDescription) -> list[dict[str, Any]] | None:
    """Return output rows of a group's last rebalances, the newest first; None: its coordinator records none."""
    return None if group.rebalances is None else [_rebalance_row(found) for found in reversed(group.rebalances)]


def _rebalance_row(rebalance: GroupRebalanced) -> dict[str, Any]:
    from kohort.lag.timeline import rebalance_text

    took_ms = None if rebalance.ended_ms is None else rebalance.ended_ms - rebalance.began_ms
    return {
        "began": utc_text(rebalance.began_ms),
        "took_s": _seconds(took_ms),
        "generation": rebalance.generation,
        "members": rebalance.members,
        "downtime_s": _seconds(rebalance.downtime_ms),
        "downtime_by_member": {member: _seconds(downtime_ms) for member, downtime_ms in rebalance.longest},
        "reasons": list(dict.fromkeys(cause.reason for cause in rebalance.causes)),
        "why": rebalance_text(rebalance),
        "causes": [
            {"reason": cause.reason, "member_id": cause.member_id, "text": cause.text} for cause in rebalance.causes
        ],
        "causes_left_out": rebalance.causes_left_out,
    }


def member_row(group: GroupDescription, member: MemberDescription) -> dict[str, Any]:
    """Return the output row of a group's member."""
    owned = member.assignment or ()
    return {
        "group": group.group_id,
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": len(owned),
        "assignment": [str(partition) for partition in owned],
        "subscription": list(member.subscription or ()),
        "epoch": member.epoch,
    }


def lag_rows(group: GroupLag) -> list[dict[str, Any]]:
    """Return an output row for each partition in which the group has a committed offset or that a member owns."""
    return [
        {
            "group": group.description.group_id,
            "batch": group.batch,
            "topic": lag.partition.topic,
            "partition": lag.partition.partition,
            "committed": lag.committed,
            "log_start": lag.log_start,
            "log_end": lag.log_end,
            "lag": lag.lag,
            "time_lag": _seconds(lag.time_lag_ms),
            "time_lag_exact": lag.is_time_lag_exact,
            "lost": lag.lost_offsets,
            "status": lag.status.name,
            "cause": lag.cause,
            "rate": _rounded(lag.consumed_per_s),
            "written_rate": _rounded(lag.produced_per_s),
            "catch_up": _rounded(lag.catch_up_s),
            "metadata": lag.metadata,
            "member_id": lag.owner and lag.owner.member_id,
            "client_id": lag.owner and lag.owner.client_id,
            "host": lag.owner and lag.owner.host,
            "error": lag.error,
        }
        for lag in group.partitions
    ]


def with_batch_column(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Return the columns; insert `batch` after `group` if a row is of a Spark checkpoint."""
    is_shown = any(row["batch"] is not None for row in rows)
    return (columns[0], "batch", *columns[1:]) if is_shown else columns


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
