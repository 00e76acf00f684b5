"""`kohort groups history`: the lag of a group over days, from the file that `kohort dashboard --history` writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import check_names, parse_duration_option
from kohort.cli.output import print_rows, utc_text
from kohort.errors import InvalidInputError

if TYPE_CHECKING:
    from kohort.lag.history_file import LagMinute, TimedChange

OF_MINUTE = ("time", "group", "status", "lag", "time_lag", "members")
OF_CHANGE = ("time", "group", "kind", "text")


def history(
    group: str,
    *,
    file: Path,
    last: str = "1h",
    changes: Annotated[bool, Parameter(negative="")] = False,
    json: bool = False,
) -> int:
    """Lag of a group in each past minute, as `kohort dashboard --history` has written it down.

    A row has the largest lag of its minute, the worst status, and the last number of members. Minutes in which nothing
    was read are left out. The file is only read, also while a dashboard writes it, and no cluster is asked.

    Args:
        group: its name.
        file: The file.
        last: How far to look back, as in 30m or 7d.
        changes: Instead of minutes what changed: members, rebalances, states, assignments.
        json: Print JSON.
    """
    from kohort.lag.history_file import RETENTION_MAX_MS, HistoryReader

    check_names("group", group)
    since_ms = round(time.time() * 1000) - parse_duration_option("--last", last, RETENTION_MAX_MS)
    try:
        reader = HistoryReader(file)
    except InvalidInputError as error:
        raise UsageError(f"--file: {error.message}") from error
    with reader:
        minutes = reader.read_minutes(group, since_ms)
        if changes:
            rows = [_change_row(change) for change in reader.read_changes(group, since_ms)]
        else:
            rows = [_minute_row(group, minute) for minute in minutes]
    print_rows(rows, OF_CHANGE if changes else OF_MINUTE, as_json=json, empty=f"nothing of the last {last}")
    return DONE


def _minute_row(group: str, minute: LagMinute) -> dict[str, Any]:
    return {
        "time": utc_text(minute.at_ms),
        "group": group,
        "status": minute.status.name,
        "lag": minute.lag,
        "time_lag": None if minute.time_lag_ms is None else round(minute.time_lag_ms / 1000, 3),
        "members": minute.members,
    }


def _change_row(change: TimedChange) -> dict[str, Any]:
    return {
        "time": utc_text(change.at_ms),
        "group": change.group,
        "kind": change.change.kind,
        "text": change.change.text,
    }
