"""Groups, members and lag as rows for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import check_names, groups_with_nearest
from kohort.cli.output import print_note
from kohort.errors import KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.values import GroupDescription, MemberDescription

_PLACE = ("topic", "partition", "committed", "log_start", "log_end", "lag")
OF_PARTITION = (*_PLACE, "client_id", "host", "member_id", "lost", "status", "error")
OF_LAG = ("group", *_PLACE, "lost", "status", "error")
"""The columns of tables of partitions and of lag."""


TYPES = ("Classic", "Consumer", "Share", "Streams")
"""Kafka's names of group types."""


def type_name(text: str) -> str:
    """Return a group's type as Kafka's tools write it; ListGroups has it in lower case."""
    return next((name for name in TYPES if name.lower() == text.lower()), text)


def print_refusals(errors: Mapping[Any, KafkaError]) -> int:
    """Print each error as a line on standard error, and return the exit code."""
    for error in errors.values():
        print_note(f"kohort: {error}")
    return FAILED if errors else DONE


def check_chosen(groups: tuple[str, ...], all_groups: bool) -> None:
    """Check, before any request to the cluster, that groups are named or --all-groups is given.

    Raises:
        UsageError: neither or both.
    """
    if all_groups == bool(groups):
        raise UsageError("name groups, or give --all-groups")
    check_names("group", *groups)


def chosen_groups(admin: Admin, groups: tuple[str, ...], all_groups: bool) -> list[str]:
    """Return the named groups, or all."""
    return [group.group_id for group in admin.list_groups()] if all_groups else list(groups)


def described_groups(admin: Admin, names: list[str]) -> tuple[list[dict[str, Any]], dict[str, KafkaError]]:
    """Return a row for each group, with the rows of its partitions inside, and the errors of the other groups."""
    found = admin.describe_consumer_groups(names)
    errors = dict(found.errors)
    described = []
    for name, group in found.values.items():
        try:
            described.append({**group_row(group), "partitions": lag_rows(admin, group)})
        except KafkaError as error:
            errors[name] = error
    return described, groups_with_nearest(admin, errors)


def group_row(group: GroupDescription) -> dict[str, Any]:
    """Return the row of a group."""
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


def member_row(group: GroupDescription, member: MemberDescription) -> dict[str, Any]:
    """Return the row of a group's member."""
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


def lag_rows(admin: Admin, group: GroupDescription) -> list[dict[str, Any]]:
    """Return the rows of the partitions for which a group has offsets or members."""
    from kohort.lag import group_lag

    owners = {partition: member for member in group.members for partition in member.assignment or ()}
    rows = []
    for lag_ in group_lag(admin, group.group_id, owners):
        owner = owners.get(lag_.partition)
        rows.append(
            {
                "group": group.group_id,
                "topic": lag_.partition.topic,
                "partition": lag_.partition.partition,
                "committed": lag_.committed,
                "log_start": lag_.log_start,
                "log_end": lag_.log_end,
                "lag": lag_.lag,
                "lost": lag_.lost,
                "status": lag_.status,
                "metadata": lag_.metadata,
                "member_id": owner and owner.member_id,
                "client_id": owner and owner.client_id,
                "host": owner and owner.host,
                "error": lag_.error,
            }
        )
    return rows
