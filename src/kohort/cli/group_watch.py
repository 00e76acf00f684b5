"""`kohort groups watch`: groups and their lag, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import DEFAULT_CALL_MS, Common
from kohort.cli.group_rows import OF_LAG, check_chosen, chosen_groups, described_groups, tell
from kohort.cli.output import note, printable, show, show_json_line, table_of
from kohort.errors import KafkaError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin

_COMMON = Common()
_COLUMNS = (*OF_LAG[:-3], "rate", "client_id", "host", *OF_LAG[-3:])


def watch(
    *groups: str,
    all_groups: Annotated[bool, Parameter(negative="")] = False,
    interval: int = 2_000,
    common: Common = _COMMON,
) -> int:
    """State and lag of groups as they change, until Ctrl-C or for as long as --timeout says.

    On a terminal a table that is drawn anew, else one table after the other; with --json a line for each look.

    Args:
        groups: their names; they need not be there yet.
        all_groups: every group of the cluster.
        interval: milliseconds between two looks.
    """
    check_chosen(groups, all_groups)
    if interval < 1:
        raise UsageError(f"--interval {interval}: give a number of milliseconds from 1 on")
    with common.admin(DEFAULT_CALL_MS) as admin:
        samples = _samples(admin, groups, all_groups, interval / 1000, common.timeout)
        try:
            if common.json:
                return _as_lines(samples)
            return _live(samples) if sys.stdout.isatty() else _one_after_the_other(samples)
        except KeyboardInterrupt:
            return DONE


def _samples(
    admin: Admin, groups: tuple[str, ...], all_groups: bool, interval_s: float, timeout_ms: int | None
) -> Iterator[dict[str, Any]]:
    """A look at the groups every interval: their rows, and by group what went wrong."""
    end = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    before: dict[tuple[str, str, int], tuple[float, int]] = {}
    while True:
        started = time.monotonic()
        errors: dict[str, KafkaError] = {}
        described: list[dict[str, Any]] = []
        try:
            described, errors = described_groups(admin, chosen_groups(admin, groups, all_groups))
        except KafkaError as error:  # the cluster can't be reached now; it may be again
            errors = {"": error}
        for row in (row for group in described for row in group["partitions"]):
            _add_rate(row, before, started)
        yield {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "groups": described, "errors": errors}
        if time.monotonic() >= end:
            return
        time.sleep(max(0.0, min(started + interval_s, end) - time.monotonic()))


def _add_rate(row: dict[str, Any], before: dict[tuple[str, str, int], tuple[float, int]], now: float) -> None:
    """Records per second by which the committed offset moved since the look before; None at the first."""
    key = (row["group"], row["topic"], row["partition"])
    then = before.pop(key, None)
    row["rate"] = None
    if row["committed"] is not None:
        before[key] = (now, row["committed"])
        if then is not None and now > then[0]:
            row["rate"] = round((row["committed"] - then[1]) / (now - then[0]), 1)


def _as_lines(samples: Iterator[dict[str, Any]]) -> int:
    code = DONE
    for sample in samples:
        show_json_line({**sample, "errors": {name: str(error) for name, error in sample["errors"].items()}})
        code = tell(sample["errors"])
    return code


def _one_after_the_other(samples: Iterator[dict[str, Any]]) -> int:
    code = DONE
    for sample in samples:
        note(sample["time"])
        show(_rows(sample), _COLUMNS, as_json=False, empty="no offsets")
        sys.stdout.flush()
        code = tell(sample["errors"])
    return code


def _live(samples: Iterator[dict[str, Any]]) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    code = DONE
    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        for sample in samples:
            lines = [Text(sample["time"], style="dim")]
            lines += [
                Text(printable(f"{row['group']}  {row['state']}  {row['type']}  {row['members']} members"))
                for row in sample["groups"]
            ]
            lines += [Text(printable(str(error)), style="red") for error in sample["errors"].values()]
            live.update(Group(*lines, table_of(_rows(sample), _COLUMNS)), refresh=True)
            code = FAILED if sample["errors"] else DONE
    return code


def _rows(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for group in sample["groups"] for row in group["partitions"]]
