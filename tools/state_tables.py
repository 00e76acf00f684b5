"""Draws docs/states.md from the tables of the group coordinator, and docs/region-states.md from those of a region.

python tools/state_tables.py            # writes both
python tools/state_tables.py --check    # 1 when one of them is stale
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohort.groups.classic.group import ClassicGroup
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import MEMBER_TABLE
from kohort.groups.effects import GroupState
from kohort.groups.push.group import PushGroup
from kohort.groups.timers import Deadline
from kohort.region.control_plane.machine import TABLE as REGION
from kohort.region.member.machine import TABLE as MEMBER

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "states.md"
MACHINES = (
    ("A group under the classic protocol", ClassicGroup.table),
    ("A group under the consumer protocol (KIP-848)", ConsumerGroup.table),
    ("A member of a consumer group", {"a heartbeat or JoinGroup": MEMBER_TABLE}),
    ("A group under the push protocol", PushGroup.table),
)
HEAD = """# States of groups and members

Drawn by `make docs` from the tables that the coordinator executes: `classic/group.py`, `consumer/group.py`,
`consumer/members.py` and `push/group.py` in `src/kohort/groups/`. A handler that leads elsewhere than its entry says
is a fault that raises. An event that a table leaves out is refused or dropped. A timer stands under the name of its
`Deadline`.

Three things stand above the tables. A group begins as Empty, with its first record (`migration/group_routing.py`). An
Empty group takes the protocol of the first member that joins it. A classic group with members becomes a consumer group
when a member of that protocol joins (`migration/conversion.py`). A group ends with its last record: an
administrator deletes it, or its last offset expires or is deleted (`machine.py`, `offsets.py`).
"""


REGION_DOC = ROOT / "docs" / "region-states.md"
REGION_HEAD = """# States of a region and of its members

Drawn from the tables in `src/kohort/region/control_plane/` and in `src/kohort/region/member/machine.py` by `make docs`.
Every event has an entry in every state. A handler that leads to another state than its entry names raises an error.
`src/kohort/region/states.py` describes the states, and [region.md](region.md) explains the words.
"""


def trigger_name(trigger: Any) -> str:
    """Return the name of an event, or of a timer."""
    if isinstance(trigger, Deadline):
        return f"timer {trigger.name}"
    return trigger if isinstance(trigger, str) else str(trigger.__name__)


def state_name(state: Any) -> str:
    """Return the name of a state, or of the group that a group turns into."""
    if isinstance(state, GroupState):
        return state.value
    return f"{state} group" if isinstance(state, str) else str(state.name)


def arrow_end(state: Any) -> str:
    """Return a state's name in a diagram."""
    return state_name(state).replace(" ", "_")


def document() -> str:
    """Return the text of docs/states.md."""
    return "\n".join([HEAD, *(whole(title, table) for title, table in MACHINES)])


def whole(title: str, table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """Return the section of a machine, with its diagram and its table."""
    ways: dict[tuple[str, str], list[str]] = {}
    lines = []
    for event, rows in table.items():
        by_why: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
        for state, row in rows.items():
            by_why.setdefault((row.why, row.to), []).append(state_name(state))
            for to in row.to:
                if to is not state:
                    ways.setdefault((arrow_end(state), arrow_end(to)), []).append(trigger_name(event))
        for (why, to), states in by_why.items():
            told = "all" if len(states) == len(rows) else ", ".join(states)
            lines.append(f"| {trigger_name(event)} | {told} | {', '.join(map(state_name, to)) or '-'} | {why} |")
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
