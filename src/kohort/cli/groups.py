"""`kohort groups`: list, describe, members, lag and watch. `group_changes` has what changes groups, `scaling` scale."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError, command_family
from kohort.cli.common import DEFAULT_CALL_MS, Common, print_errors, spark_checkpoints
from kohort.cli.group_rows import (
    OF_LAG,
    OF_PARTITION,
    OF_REBALANCE,
    OF_WATCHED,
    TYPES,
    WATCHED_EXPENDABLE,
    check_groups_chosen,
    group_rows_with_partitions,
    member_row,
    named_or_all_groups,
    rebalance_rows,
    type_name,
    with_batch_column,
)
from kohort.cli.output import (
    count_with_noun,
    fitting_columns,
    print_json,
    print_json_line,
    print_note,
    print_rows,
    printable,
    rich_table,
    standard_output,
)
from kohort.errors import KafkaError
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.lag import LagReader, LagReport


# -- `kohort groups watch`: groups and their lag, repeatedly

CHANGES_SHOWN = 10
"""The last changes that a terminal shows below the table."""
_COMMON = Common()


def watch(
    *groups: str,
    all_groups: bool = False,
    interval: int = 2_000,
    spark_checkpoint: tuple[str, ...] = (),
    common: Common = _COMMON,
) -> int:
    """Lag, members and rebalances of groups as they change, until Ctrl-C or for as long as --timeout says.

    On a terminal a table that is drawn anew, with the last changes below it; a narrow terminal leaves columns out.
    Otherwise one table after the other, and the changes on standard error. With --json a line for each read, whose
    `changes` are those since the read before.

    Args:
        groups: their names; they need not be there yet.
        all_groups: Every group of the cluster.
        interval: Milliseconds between two reads of the cluster.
        spark_checkpoint: As for `groups lag`.
    """
    checkpoints = spark_checkpoints(spark_checkpoint)
    if groups or not spark_checkpoint:
        check_groups_chosen(groups, all_groups)
    if interval < 1:
        raise UsageError(f"--interval {interval}: give a number of milliseconds from 1 on")
    with common.lag_reader(DEFAULT_CALL_MS) as reader:
        from kohort.lag.reading import REBALANCES_ASKED

        reader.rebalances, reader.read_others = REBALANCES_ASKED, checkpoints
        samples = _samples(reader, None if all_groups else groups, interval / 1000, common.timeout)
        try:
            if common.json:
                return _as_lines(samples)
            return _show_live(samples) if standard_output().isatty() else _one_after_the_other(samples)
        except KeyboardInterrupt:
            return DONE


def _samples(
    reader: LagReader, names: Sequence[str] | None, interval_s: float, timeout_ms: int | None
) -> Iterator[dict[str, Any]]:
    """Read the groups once an interval; yield their rows, the changes since the last read, and the errors by group."""
    end = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    while True:
        started, before = time.monotonic(), reader.report
        errors: dict[str, KafkaError] = {}
        described: list[dict[str, Any]] = []
        changed: list[dict[str, str]] = []
        try:
            described, errors = group_rows_with_partitions(reader, names)
        except KafkaError as error:  # the cluster can't be reached now; it may be again
            errors = {"": error}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if before is not None and reader.report is not None and reader.report is not before:
            changed = _changes_between(before, reader.report, now)
        yield {"time": now, "groups": described, "changes": changed, "errors": errors}
        if time.monotonic() >= end:
            return
        time.sleep(max(0.0, min(started + interval_s, end) - time.monotonic()))


def _changes_between(before: LagReport, report: LagReport, now: str) -> list[dict[str, str]]:
    from kohort.lag import changes_between

    return [
        {"time": now, "group": name, "kind": change.kind, "text": change.text}
        for name, change in changes_between(before, report)
    ]


def _change_line(change: dict[str, str]) -> str:
    return f"{change['time']}  {change['group']}  {change['kind']}: {change['text']}"


def _as_lines(samples: Iterator[dict[str, Any]]) -> int:
    code = DONE
    for sample in samples:
        print_json_line({**sample, "errors": {name: str(error) for name, error in sample["errors"].items()}})
        code = print_errors(sample["errors"])
    return code


def _one_after_the_other(samples: Iterator[dict[str, Any]]) -> int:
    code = DONE
    for sample in samples:
        print_note(sample["time"])
        for change in sample["changes"]:
            print_note(_change_line(change))
        rows = _rows(sample)
        empty = None if sample["errors"] else "no offsets"
        print_rows(rows, with_batch_column(OF_WATCHED, rows), as_json=False, empty=empty)
        sys.stdout.flush()
        code = print_errors(sample["errors"])
    return code


def _show_live(samples: Iterator[dict[str, Any]]) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    code = DONE
    last: deque[dict[str, str]] = deque(maxlen=CHANGES_SHOWN)
    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        for sample in samples:
            last.extend(sample["changes"])
            lines = [Text(sample["time"], style="dim")]
            lines += [Text(printable(_group_line(row))) for row in sample["groups"]]
            lines += [Text(printable(str(error)), style="red") for error in sample["errors"].values()]
            rows = _rows(sample)
            below = [Text(printable(_change_line(change)), style="dim") for change in last]
            columns = _columns_of_terminal(rows, live.console.width)
            live.update(Group(*lines, rich_table(rows, columns), *below), refresh=True)
            code = FAILED if sample["errors"] else DONE
    return code


def _group_line(row: dict[str, Any]) -> str:
    members = count_with_noun(row["members"], "member")
    return f"{row['group']}  {row['status']}  {row['state']}  {row['type']}  {members}  lag {row['lag']}"


def _columns_of_terminal(rows: list[dict[str, Any]], width: int) -> Sequence[str]:
    """Return the columns of the table on a terminal. With one group its name is in the line above, not in a column."""
    columns = with_batch_column(OF_WATCHED, rows)
    if len({row["group"] for row in rows}) == 1:
        columns = columns[1:]
    return fitting_columns(rows, columns, WATCHED_EXPENDABLE, width) if rows else columns


def _rows(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for group in sample["groups"] for row in group["partitions"]]


app = command_family("groups", "List and describe groups, their lag, and change their offsets.")
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady",
)  # fmt: skip
PROTOCOLS = ("consumer", "connect", "share", "streams")
"""Kafka's names of a group's states and protocol types; filters also accept other values of the cluster's groups."""


def list_(
    *,
    state: tuple[str, ...] = (),
    type: tuple[str, ...] = (),
    protocol: tuple[str, ...] = (),
    common: Common = _COMMON,
) -> int:
    """List the groups with their state and protocol.

    Args:
        state: Only groups in this state (Stable, Empty …); may be given again, or several with commas between.
        type: Only groups of this type (Classic, Consumer …); the same.
        protocol: Only groups of this protocol type (consumer, connect …); the same.
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
    print_rows(rows, rows[0] if rows else (), as_json=common.json, empty="no groups")
    return DONE


def _words(option: str, given: tuple[str, ...], known: Collection[str]) -> list[str]:
    """Split a filter option at commas, and return its values in Kafka's spelling.

    Raises:
        UsageError: a word is unknown; the message names the nearest.
    """
    by_lower = {word.lower(): word for word in known}
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if word.lower() not in by_lower:
            near = did_you_mean(word, known) or f"; there are {', '.join(sorted(filter(None, known)))}"
            raise UsageError(f"{option} {word}: there is nothing of this name{near}")
    return [by_lower[word.lower()] for word in words]


def describe(
    *groups: str,
    all_groups: bool = False,
    rebalances: Annotated[bool, Parameter(negative="")] = False,
    common: Common = _COMMON,
) -> int:
    """State of groups, and for each partition the committed offset, the lag and the member that has it.

    Args:
        groups: their names.
        all_groups: Every group of the cluster.
        rebalances: Instead of partitions the last rebalances, as kohort's coordinators record them: why each began,
            and how long each member could not read.
    """
    check_groups_chosen(groups, all_groups)
    with common.lag_reader() as reader:
        from kohort.lag.reading import REBALANCES_ASKED

        reader.rebalances = REBALANCES_ASKED if rebalances else 0
        described, errors = group_rows_with_partitions(reader, None if all_groups else groups)
        read = {} if reader.report is None else reader.report.groups
        for row in described if rebalances else ():
            row["rebalances"] = rebalance_rows(read[row["group"]].description)
    if common.json:
        print_json(described)
    elif rebalances:
        _show_rebalances(described)
    else:
        for row in described:
            epoch = "" if row["epoch"] is None else f"  epoch {row['epoch']}"
            line = (
                f"group {row['group']}  state {row['state']}  type {row['type']}  protocol {row['protocol'] or '-'}"
                f"  assignor {row['assignor'] or '-'}  members {row['members']}"
                f"  coordinator {row['coordinator']}{epoch}  status {row['status']}"
            )
            print(printable(line))
            print_rows(row["partitions"], OF_PARTITION, as_json=False, empty=f"group {row['group']} has no offsets")
    return print_errors(errors)


def _show_rebalances(described: list[dict[str, Any]]) -> None:
    for row in described:
        if row["rebalances"] is None:
            print_note(
                f"group {row['group']}: its coordinator is not kohort's, and records no rebalances; `kohort groups "
                "watch` shows what is seen from outside"
            )
    rows = [{"group": row["group"], **found} for row in described for found in row["rebalances"] or ()]
    print_rows(rows, OF_REBALANCE, as_json=False, empty="no rebalances")


def members(*groups: str, all_groups: bool = False, common: Common = _COMMON) -> int:
    """Members of groups, with the partitions of each.

    Args:
        groups: their names.
        all_groups: Every group of the cluster.
    """
    from kohort.client.admin.group_changes import group_errors_with_suggestions

    check_groups_chosen(groups, all_groups)
    with common.admin() as admin:
        found = admin.describe_consumer_groups(named_or_all_groups(admin, groups, all_groups))
        errors = group_errors_with_suggestions(admin, found.errors)
    rows = [member_row(group, member) for group in found.values.values() for member in group.members]
    columns = ("group", "member_id", "group_instance_id", "client_id", "host", "partitions", "assignment")
    print_rows(rows, columns, as_json=common.json, empty=None if errors else "no members")
    return print_errors(errors)


def lag(
    *groups: str,
    all_groups: Annotated[bool, Parameter(name=("--all-groups", "--all"))] = False,
    spark_checkpoint: tuple[str, ...] = (),
    common: Common = _COMMON,
) -> int:
    """Lag of groups by partition: in records, in time, and why.

    Args:
        groups: their names; none: every group of the cluster.
        all_groups: Every group of the cluster.
        spark_checkpoint: Also the query of this checkpoint, which is a member of no group: PATH or NAME=PATH of a
            folder, or of an object store (s3://, gs://, az://); may be given again. It is only read.
    """
    checkpoints = spark_checkpoints(spark_checkpoint)
    if groups:
        check_groups_chosen(groups, all_groups)
    with common.lag_reader() as reader:
        reader.read_others = checkpoints
        described, errors = group_rows_with_partitions(reader, groups or None)
    rows = [row for group in described for row in group["partitions"]]
    print_rows(rows, with_batch_column(OF_LAG, rows), as_json=common.json, empty=None if errors else "no offsets")
    return print_errors(errors)


_COMMANDS: dict[str, Any] = {
    "list": list_,
    "describe": describe,
    "members": members,
    "lag": lag,
    "watch": watch,
    "history": "kohort.cli.lag_history:history",  # the modules of these are imported when they are needed
    "scale": "kohort.cli.scaling:scale",
    "reset-offsets": "kohort.cli.group_changes:reset_offsets",
    "clone": "kohort.cli.group_changes:clone",
    "delete-offsets": "kohort.cli.group_changes:delete_offsets",
    "delete": "kohort.cli.group_changes:delete",
}
for _name, _command in _COMMANDS.items():
    app.command(_command, name=_name)
