"""Where `kohort groups reset-offsets` sets offsets to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.cli.app import UsageError
from kohort.ids import TopicPartition

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.client.admin.admin import Admin


@dataclass(frozen=True, slots=True)
class Goal:
    """One way to say where to: earliest, latest, current, offset, shift, time (milliseconds since 1970) or file."""

    kind: str
    value: int = 0

    def offsets(
        self,
        admin: Admin,
        partitions: Sequence[TopicPartition],
        current: Mapping[TopicPartition, int],
        targets: Mapping[TopicPartition, int] | None,
    ) -> dict[TopicPartition, int]:
        """The new offset of each partition, kept within its first and end offset.

        Args:
            admin: asks for first and end offsets, and by time.
            partitions: those to set.
            current: the committed offsets.
            targets: the offsets of a file, for the kind `file`.

        Raises:
            KafkaError: a partition's offsets can't be had.
        """
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest")).all()
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest")).all()
        by_time = admin.list_offsets(dict.fromkeys(partitions, self.value)).all() if self.kind == "time" else {}
        new = {}
        for key in partitions:
            start, end = starts[key].offset, ends[key].offset
            wanted = {
                "earliest": start,
                "latest": end,
                "current": current.get(key, end),
                "offset": self.value,
                "shift": current.get(key, end) + self.value,
                "time": by_time[key].offset if key in by_time and by_time[key].offset >= 0 else end,
                "file": targets[key] if targets else 0,
            }[self.kind]
            new[key] = min(max(wanted, start), end)
        return new


def parse_goal(given: Mapping[str, Any]) -> Goal:
    """The one goal among the options.

    Raises:
        UsageError: none or several were given, or a time that can't be read.
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
    return Goal(kind, value if kind in ("offset", "shift") else 0)


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--to-datetime {text}: write it as 2026-01-31T12:00:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _duration(text: str) -> int:
    from kohort.client.settings import duration_ms

    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--by-duration: {error}") from error


def read_plan(path: Path) -> dict[TopicPartition, int]:
    """Offsets from a file of lines TOPIC,PARTITION,OFFSET.

    Raises:
        UsageError: a line that is none.
        OSError: the file can't be read.
    """
    plan = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            topic, partition, offset = line.strip().strip('"').rsplit(",", 2)
            plan[TopicPartition(topic.strip('"'), int(partition))] = int(offset)
        except ValueError as error:
            raise UsageError(f"{path} line {number}: {line.strip()!r} is no TOPIC,PARTITION,OFFSET") from error
    if not plan:
        raise UsageError(f"{path} has no offsets")
    return plan
