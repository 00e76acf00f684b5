"""`kohort groups`: list, describe, members, lag; the changes are in `group_changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kohort.cli import group_changes
from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.output import note, show, show_json
from kohort.errors import KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.values import GroupDescription, MemberDescription

app = App(name="groups", help="List and describe groups, their lag, and change their offsets.")
for _name, _command in group_changes.COMMANDS.items():
    app.command(_command, name=_name)

_COMMON = Common()
_LAG_COLUMNS = {
    "group": "Group",
    "topic": "Topic",
    "partition": "Partition",
    "committed": "Committed",
    "log_end": "End offset",
    "lag": "Lag",
    "client_id": "Client id",
    "host": "Host",
    "member_id": "Member",
}


@app.command(name="list")
def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    type: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    common: Common = _COMMON,
) -> int:
    """List the groups with their state and protocol.

    Args:
        state: only groups in this state (Stable, Empty …); may be given again.
        type: only groups of this type (Classic, Consumer); may be given again.
    """
    with common.admin() as admin:
        groups = admin.list_groups(states=state, types=type)
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.type,
            "protocol": group.protocol_type,
            "coordinator": group.coordinator,
        }
        for group in groups
    ]
    columns = {"group": "Group", "state": "State", "type": "Type", "protocol": "Protocol", "coordinator": "Coordinator"}
    show(rows, columns, as_json=common.json, empty="no groups")
    return DONE


@app.command
def describe(
    *groups: str, all_groups: Annotated[bool, Parameter(negative="")] = False, common: Common = _COMMON
) -> int:
    """State of groups, and for each partition the committed offset, the lag and the member that has it.

    Args:
        groups: their names.
        all_groups: every group of the cluster.
    """
    with common.admin() as admin:
        names = _names(admin, groups, all_groups)
        found = admin.describe_consumer_groups(names)
        errors = dict(found.errors)
        described = []
        for name, group in found.values.items():
            try:
                described.append({**_group_row(group), "partitions": _lag_rows(admin, group)})
            except KafkaError as error:
                errors[name] = error
    if common.json:
        show_json(described)
    else:
        for row in described:
            epoch = "" if row["epoch"] is None else f"  epoch {row['epoch']}"
            print(
                f"group {row['group']}  state {row['state']}  type {row['type']}  assignor {row['assignor'] or '-'}"
                f"  members {row['members']}  coordinator {row['coordinator']}{epoch}"
            )
            columns = {key: heading for key, heading in _LAG_COLUMNS.items() if key != "group"}
            show(row["partitions"], columns, as_json=False, empty=f"group {row['group']} has no offsets")
    return tell(errors)


@app.command
def members(*groups: str, all_groups: Annotated[bool, Parameter(negative="")] = False, common: Common = _COMMON) -> int:
    """Members of groups, with what each has.

    Args:
        groups: their names.
        all_groups: every group of the cluster.
    """
    with common.admin() as admin:
        found = admin.describe_consumer_groups(_names(admin, groups, all_groups))
    rows = [_member_row(group, member) for group in found.values.values() for member in group.members]
    columns = {
        "group": "Group",
        "member_id": "Member",
        "group_instance_id": "Instance",
        "client_id": "Client id",
        "host": "Host",
        "partitions": "Partitions",
        "assignment": "Assignment",
    }
    show(rows, columns, as_json=common.json, empty="no members")
    return tell(found.errors)


@app.command
def lag(*groups: str, all_groups: Annotated[bool, Parameter(negative="")] = False, common: Common = _COMMON) -> int:
    """Lag of groups, by partition.

    Args:
        groups: their names.
        all_groups: every group of the cluster.
    """
    rows: list[dict[str, Any]] = []
    with common.admin() as admin:
        found = admin.describe_consumer_groups(_names(admin, groups, all_groups))
        errors = dict(found.errors)
        for name, group in found.values.items():
            try:
                rows += _lag_rows(admin, group)
            except KafkaError as error:
                errors[name] = error
    columns = {key: _LAG_COLUMNS[key] for key in ("group", "topic", "partition", "committed", "log_end", "lag")}
    show(rows, columns, as_json=common.json, empty="no offsets")
    return tell(errors)


def tell(errors: dict[str, KafkaError]) -> int:
    """Says each error in a line on standard error; gives the exit code."""
    for error in errors.values():
        note(f"kohort: {error}")
    return FAILED if errors else DONE


def _names(admin: Admin, groups: tuple[str, ...], all_groups: bool) -> list[str]:
    if all_groups == bool(groups):
        raise UsageError("name groups, or give --all-groups")
    return [group.group_id for group in admin.list_groups()] if all_groups else list(groups)


def _group_row(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "protocol": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "epoch": group.epoch,
        "members": len(group.members),
    }


def _member_row(group: GroupDescription, member: MemberDescription) -> dict[str, Any]:
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


def _lag_rows(admin: Admin, group: GroupDescription) -> list[dict[str, Any]]:
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
                "metadata": lag_.metadata,
                "member_id": owner and owner.member_id,
                "client_id": owner and owner.client_id,
                "host": owner and owner.host,
                "error": lag_.error,
            }
        )
    return rows
