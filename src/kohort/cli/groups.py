"""`kohort groups`: list, describe, members, lag; the changes are in `group_changes`, the live table in `group_watch`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from kohort.cli import group_changes, group_watch
from kohort.cli.app import DONE
from kohort.cli.common import Common
from kohort.cli.group_rows import LAG_COLUMNS, check_chosen, chosen_groups, described_groups, member_row, tell
from kohort.cli.output import show, show_json

app = App(name="groups", help="List and describe groups, their lag, and change their offsets.")
for _name, _command in group_changes.COMMANDS.items():
    app.command(_command, name=_name)

app.command(group_watch.watch)

_COMMON = Common()


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
    check_chosen(groups, all_groups)
    with common.admin() as admin:
        described, errors = described_groups(admin, chosen_groups(admin, groups, all_groups))
    if common.json:
        show_json(described)
    else:
        for row in described:
            epoch = "" if row["epoch"] is None else f"  epoch {row['epoch']}"
            print(
                f"group {row['group']}  state {row['state']}  type {row['type']}  assignor {row['assignor'] or '-'}"
                f"  members {row['members']}  coordinator {row['coordinator']}{epoch}"
            )
            columns = {key: heading for key, heading in LAG_COLUMNS.items() if key != "group"}
            show(row["partitions"], columns, as_json=False, empty=f"group {row['group']} has no offsets")
    return tell(errors)


@app.command
def members(*groups: str, all_groups: Annotated[bool, Parameter(negative="")] = False, common: Common = _COMMON) -> int:
    """Members of groups, with what each has.

    Args:
        groups: their names.
        all_groups: every group of the cluster.
    """
    check_chosen(groups, all_groups)
    with common.admin() as admin:
        found = admin.describe_consumer_groups(chosen_groups(admin, groups, all_groups))
    rows = [member_row(group, member) for group in found.values.values() for member in group.members]
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
    check_chosen(groups, all_groups)
    with common.admin() as admin:
        described, errors = described_groups(admin, chosen_groups(admin, groups, all_groups))
    rows = [row for group in described for row in group["partitions"]]
    columns = {key: LAG_COLUMNS[key] for key in ("group", "topic", "partition", "committed", "log_end", "lag")}
    show(rows, columns, as_json=common.json, empty="no offsets")
    return tell(errors)
