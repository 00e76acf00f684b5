"""Draws docs/states.md from the transition tables of the group coordinator.

Those of a region and of its members, in which every event has an entry in every state, go to docs/region-states.md.

python tools/state_tables.py            # writes both
python tools/state_tables.py --check    # 1 when one of them is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kohort.groups.transitions import CLASSIC_GROUP, CONSUMER_GROUP, CONSUMER_MEMBER, NONE, PUSH_GROUP, Transition
from kohort.region.control_plane.machine import TABLE as REGION
from kohort.region.member.machine import TABLE as MEMBER
from kohort.region.states import Row

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "states.md"
MACHINES = (
    ("A group under the classic protocol", CLASSIC_GROUP),
    ("A group under the consumer protocol (KIP-848)", CONSUMER_GROUP),
    ("A member of a consumer group", CONSUMER_MEMBER),
    ("A group under the push protocol", PUSH_GROUP),
)
HEAD = """# States of groups and members

Drawn from `src/kohort/groups/transitions.py` by `make docs`; the simulation compares the tables with what groups really
do (`tests/simulation/test_states.py`). An event that is not listed for a state leaves it as it is. A Tick carries every
deadline: sessions, rebalance timeouts, delays, expiration.
"""


REGION_DOC = ROOT / "docs" / "region-states.md"
REGION_HEAD = """# States of a region and of its members

Drawn from `src/kohort/region/control_plane/machine.py` and `src/kohort/region/member/machine.py` by `make docs`. Every
event has an entry in every state. A handler that leads to another state than its entry names raises an error.
`src/kohort/region/states.py` describes the states, and [region.md](region.md) explains the words.
"""


def name(state: str) -> str:
    """Return a state's name in a diagram."""
    return "[*]" if state == NONE else state.replace(" ", "_")


def arrows(table: Iterable[Transition]) -> list[str]:
    """Return one arrow for each pair of states, with the events that lead along it."""
    events: dict[tuple[str, str], list[str]] = {}
    for transition in table:
        events.setdefault((transition.state, transition.to), []).append(transition.event)
    return [f"    {name(state)} --> {name(to)}: {', '.join(dict.fromkeys(by))}" for (state, to), by in events.items()]


def section(title: str, table: tuple[Transition, ...]) -> str:
    """Return a machine's diagram and table."""
    lines = [f"## {title}", "", "```mermaid", "stateDiagram-v2", *arrows(table), "```", ""]
    lines += ["| state | event | next | when |", "|---|---|---|---|"]
    states = list(dict.fromkeys(transition.state for transition in table))
    ordered = sorted(table, key=lambda transition: states.index(transition.state))
    lines += [
        f"| {transition.state} | {transition.event} | {transition.to} | {transition.why} |" for transition in ordered
    ]
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return the text of docs/states.md."""
    return "\n".join([HEAD, *(section(title, table) for title, table in MACHINES)])


def whole(title: str, table: Mapping[type, Mapping[Any, Row[Any, Any]]]) -> str:
    """Return the section of a machine in which every event has an entry in every state."""
    ways: dict[tuple[str, str], list[str]] = {}
    lines = []
    for event, rows in table.items():
        by_why: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
        for state, row in rows.items():
            by_why.setdefault((row.why, row.to), []).append(state.name)
            for to in row.to:
                if to is not state:
                    ways.setdefault((state.name, to.name), []).append(event.__name__)
        for (why, to), states in by_why.items():
            told = "all" if len(states) == len(rows) else ", ".join(states)
            lines.append(f"| {event.__name__} | {told} | {', '.join(target.name for target in to) or '-'} | {why} |")
    arrows = [f"    {state} --> {to}: {', '.join(by)}" for (state, to), by in ways.items()]
    drawn = [f"## {title}", "", "```mermaid", "stateDiagram-v2", *arrows, "```", ""]
    return "\n".join([*drawn, "| event | in | may lead to | what it does |", "|---|---|---|---|", *lines]) + "\n"


def region_document() -> str:
    """Return the text of docs/region-states.md."""
    return "\n".join([REGION_HEAD, whole("A region", REGION), whole("A member", MEMBER)])


def main() -> int:
    """Write the files that differ; with --check only report them."""
    stale = False
    for path, wanted in ((DOC, document()), (REGION_DOC, region_document())):
        if not path.exists() or path.read_text() != wanted:
            stale = True
            if "--check" in sys.argv[1:]:
                print(f"{path.name} is stale: make docs")
            else:
                path.write_text(wanted)
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
