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
        (told["at"], file.parent.name, told)
        for file in folder.glob(f"*/{STORY}")
        for told in map(json.loads, file.read_text().splitlines())
    ]
    for at, application, told in sorted(said, key=lambda one: one[0]):
        ms = (at - min(said, key=lambda one: one[0])[0]) / 1e6
        yield f"{ms:8.0f} ms {application}, run {told['life']}, checkpoint {told['checkpoint']}: {_told(told)}"


def _told(told: dict[str, Any]) -> str:
    event = told["e"]
    if event in ("plan", "tasks"):
        spans = " ".join(
            f"{topic[-1]}{number}:{span['start']}-{span['end']}"
            for topic, numbers in told["end"]["topics"].items()
            for number, span in numbers.items()
        )
        return f"{event} batch {told['batch']} of generation {told['end']['generation']}: {spans}"
    if event == "write":
        rows = " ".join(
            f"{topic[-1]}{number}:{found[0][0]}..{found[-1][0]} ({start}-{end})"
            for topic, number, _, start, end, found in told["rows"]
        )
        return f"write batch {told['batch']}: {rows}"
    facts = [f"{name} {value}" for name, value in told.items() if name not in ("e", "at", "life", "checkpoint")]
    return f"{event} {', '.join(facts)}"
