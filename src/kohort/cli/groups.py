"""`kohort groups`: list, describe, members, lag.

The changes are in `group_changes`, the live table in `group_watch`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from cyclopts import App, Parameter

from kohort.cli import group_changes, group_watch
from kohort.cli.app import DONE, UsageError
from kohort.cli.common import Common
from kohort.cli.group_rows import (
    OF_LAG,
    OF_PARTITION,
    TYPES,
    check_chosen,
    chosen_groups,
    described_groups,
    member_row,
    tell,
    type_name,
)
from kohort.cli.nearest import groups_with_nearest
from kohort.cli.output import printable, show, show_json
from kohort.config import did_you_mean

app = App(name="groups", help="List and describe groups, their lag, and change their offsets.")
for _name, _command in group_changes.COMMANDS.items():
    app.command(_command, name=_name)

app.command(group_watch.watch)

_COMMON = Common()
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady",
)  # fmt: skip
PROTOCOLS = ("consumer", "connect", "share", "streams")
"""Kafka's own names of a group's states, types and protocol types; what else groups of the cluster have is known
too."""


@app.command(name="list")
def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    type: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    protocol: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    common: Common = _COMMON,
) -> int:
    """List the groups with their state and protocol.

    Args:
        state: only groups in this state (Stable, Empty …); may be given again, or several with commas between.
        type: only groups of this type (Classic, Consumer …); the same.
        protocol: only groups of this protocol type (consumer, connect …); the same.
    """
    states, types = _words("--state", state, STATES), _words("--type", type, TYPES)
    with common.admin() as admin:
        groups = admin.list_groups(states=states, types=types)
    protocols = _words("--protocol", protocol, {*PROTOCOLS, *(group.protocol_type for group in groups)})
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": type_name(group.type),
            "protocol": group.protocol_type,
            "coordinator": group.coordinator,
        }
        for group in groups
        if not protocols or group.protocol_type in protocols
    ]
    show(rows, rows[0] if rows else (), as_json=common.json, empty="no groups")
    return DONE


def _words(option: str, given: tuple[str, ...], known: Collection[str]) -> list[str]:
    """The words of a filter, as they are written elsewhere.

    Raises:
        UsageError: one that can't be; the text names the nearest.
    """
    by_lower = {word.lower(): word for word in known}
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() not in by_lower:
            near = did_you_mean(word, known) or f"; there are {', '.join(sorted(filter(None, known)))}"
            raise UsageError(f"{option} {word}: there is nothing of this name{near}")
    return [by_lower[word.lower()] for word in words]


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
            line = (
                f"group {row['group']}  state {row['state']}  type {row['type']}  protocol {row['protocol'] or '-'}"
                f"  assignor {row['assignor'] or '-'}  members {row['members']}"
                f"  coordinator {row['coordinator']}{epoch}"
            )
            print(printable(line))
            show(row["partitions"], OF_PARTITION, as_json=False, empty=f"group {row['group']} has no offsets")
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
        errors = groups_with_nearest(admin, found.errors)
    rows = [member_row(group, member) for group in found.values.values() for member in group.members]
    columns = ("group", "member_id", "group_instance_id", "client_id", "host", "partitions", "assignment")
    show(rows, columns, as_json=common.json, empty="no members")
    return tell(errors)


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
    show(rows, OF_LAG, as_json=common.json, empty="no offsets")
    return tell(errors)
