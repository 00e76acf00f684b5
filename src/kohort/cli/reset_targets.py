"""Where `kohort groups reset-offsets` sets offsets to."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kohort.cli.app import UsageError
from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin

Plan = dict[str, dict[TopicPartition, int]]
"""The offsets of a file by group; the group of a file that names none is ''."""
_OFFSET_MAX = 2**63 - 1


class Bounds(NamedTuple):
    """A partition's first and end offset, and the first offset at the time asked for: -1 when nothing is that young."""

    start: int
    end: int
    at_time: int


class Target(NamedTuple):
    """Where one offset is set to.

    Attributes:
        new: within the partition's bounds.
        requested: what was asked for, where that is another offset.
        note: why `new` is not what was asked for.
    """

    new: int
    requested: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """One way to say where to: earliest, latest, current, offset, shift, time (milliseconds since 1970) or file."""

    kind: str
    value: int = 0

    def bounds(
        self, admin: Admin, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, KafkaError]]:
        """What partitions hold, and what befell those of which that can't be told."""
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        errors = {**starts.errors, **ends.errors}
        by_time = None
        if self.kind == "time":
            by_time = admin.list_offsets(dict.fromkeys(partitions, self.value))
            errors |= by_time.errors
        found = {
            key: Bounds(
                starts.values[key].offset, ends.values[key].offset, by_time.values[key].offset if by_time else -1
            )
            for key in partitions
            if key not in errors
        }
        return found, errors

    def target(self, key: TopicPartition, bounds: Bounds, committed: int | None, planned: int | None) -> Target:
        """The new offset of a partition, kept within its first and end offset.

        Args:
            key: the partition.
            bounds: what it holds.
            committed: the committed offset.
            planned: what the file says, for the kind `file`.

        Raises:
            InvalidInputError: there is nothing to shift from.
        """
        start, end, at_time = bounds
        if self.kind == "earliest":
            return Target(start)
        if self.kind == "latest":
            return Target(end)
        if self.kind == "time":
            return Target(at_time) if at_time >= 0 else Target(end, None, "no record is that young: the end")
        if committed is None and self.kind == "current":
            return Target(end, None, "nothing was committed: the end")
        if committed is None and self.kind == "shift":
            raise InvalidInputError(f"{key}: there is no committed offset to shift from")
        wanted = {
            "current": committed,
            "offset": self.value,
            "shift": (committed or 0) + self.value,
            "file": planned,
        }[self.kind]
        return _within(wanted or 0, start, end)


def _within(wanted: int, start: int, end: int) -> Target:
    if wanted > end:
        return Target(end, wanted, f"{wanted} is past the end {end}")
    if wanted < start:
        return Target(start, wanted, f"{wanted} is before the first offset {start}")
    return Target(wanted)


def parse_goal(given: Mapping[str, Any]) -> Goal:
    """The one goal among the options.

    Raises:
        UsageError: none or several were given, or a time or an offset that can't be.
    """
    chosen = [(kind, value) for kind, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            "say where to with exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by, --from-file"
        )
    kind, value = chosen[0]
    if kind == "datetime":
        return Goal("time", _milliseconds(value))
    if kind == "duration":
        return Goal("time", max(0, int(time.time() * 1000) - _duration(value)))
    if kind == "offset" and not 0 <= value <= _OFFSET_MAX:
        raise UsageError(f"--to-offset {value}: offsets are from 0 to {_OFFSET_MAX}")
    return Goal(kind, value if kind in ("offset", "shift") else 0)


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--to-datetime {text}: write it as 2026-01-31T12:00:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def _duration(text: str) -> int:
    from kohort.client.settings import duration_ms

    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--by-duration: {error}") from error


def read_plan(path: Path) -> Plan:
    """Offsets from a file of lines TOPIC,PARTITION,OFFSET, or of lines GROUP,TOPIC,PARTITION,OFFSET.

    Raises:
        UsageError: a line that is neither, both kinds of lines, or a partition named twice.
        OSError: the file can't be read.
    """
    plan: Plan = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}") from error
    for number, fields in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not fields:
            continue
        try:
            *group, topic, partition, offset = (field.strip() for field in fields)
            key, value = TopicPartition(topic, int(partition)), int(offset)
        except ValueError as error:
            raise UsageError(_no_line(path, number, fields)) from error
        if len(group) > 1 or key.partition < 0 or not 0 <= value <= _OFFSET_MAX or not topic:
            raise UsageError(_no_line(path, number, fields))
        if key in plan.setdefault(group[0] if group else "", {}):
            raise UsageError(f"{path} line {number}: {key} is there twice")
        plan[group[0] if group else ""][key] = value
    if not plan:
        raise UsageError(f"{path} has no offsets")
    if "" in plan and len(plan) > 1:
        raise UsageError(f"{path}: either every line names its group or none does")
    return plan


def _no_line(path: Path, number: int, fields: Iterable[str]) -> str:
    return (
        f"{path} line {number}: {','.join(fields)!r} is no TOPIC,PARTITION,OFFSET and no GROUP,TOPIC,PARTITION,OFFSET"
    )


def plan_lines(rows: Iterable[Mapping[str, Any]], *, with_group: bool) -> str:
    """The lines that `read_plan` reads, of rows with group, topic, partition and new."""
    out = io.StringIO()
    keys = ("group", "topic", "partition", "new") if with_group else ("topic", "partition", "new")
    csv.writer(out, lineterminator="\n").writerows([row[key] for key in keys] for row in rows)
    return out.getvalue()
