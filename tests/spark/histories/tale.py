"""A history as lines to read: what each application did, in the order of time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.histories.life import STORY


def tale(folder: Path) -> Iterator[str]:
    """The stories of all applications in a history's folder, together."""
    said = [
        (reported["at"], file.parent.name, reported)
        for file in folder.glob(f"*/{STORY}")
        for reported in map(json.loads, file.read_text().splitlines())
    ]
    for at, application, reported in sorted(said, key=lambda one: one[0]):
        ms = (at - min(said, key=lambda one: one[0])[0]) / 1e6
        where = f"{application}, run {reported['life']}, checkpoint {reported['checkpoint']}"
        yield f"{ms:8.0f} ms {where}: {_described(reported)}"


def _described(reported: dict[str, Any]) -> str:
    event = reported["e"]
    if event in ("plan", "tasks"):
        spans = " ".join(
            f"{topic[-1]}{number}:{span['start']}-{span['end']}"
            for topic, numbers in reported["end"]["topics"].items()
            for number, span in numbers.items()
        )
        return f"{event} batch {reported['batch']} of generation {reported['end']['generation']}: {spans}"
    if event == "write":
        rows = " ".join(
            f"{topic[-1]}{number}:{found[0][0]}..{found[-1][0]} ({start}-{end})"
            for topic, number, _, start, end, found in reported["rows"]
        )
        return f"write batch {reported['batch']}: {rows}"
    facts = [f"{name} {value}" for name, value in reported.items() if name not in ("e", "at", "life", "checkpoint")]
    return f"{event} {', '.join(facts)}"
