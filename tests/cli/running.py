"""Shared by tests of commands: the output of a command, and the offsets afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort import Admin, Producer, TopicPartition


@dataclass
class Said:
    """A command's output and exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def table(self) -> list[dict[str, str]]:
        """The rows of plain columns by heading; cells hold no blanks."""
        headings, *rows = [line.split() for line in self.out.splitlines()]
        return [dict(zip(headings, row, strict=False)) for row in rows]


Kohort = Callable[..., Said]


def fill(servers: str, topic: str, count: int, partition: int = 0) -> None:
    """Puts records into a partition."""
    with Producer(servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.flush()


def committed(servers: str, group: str) -> dict[TopicPartition, int]:
    """A group's committed offsets."""
    with Admin(servers) as admin:
        found = admin.list_consumer_group_offsets(group).all()
    return {partition: offset.offset for partition, offset in found.items() if offset}
