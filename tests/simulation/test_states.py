"""The transition tables say what groups and members really do, and the documents say what the tables say."""

from __future__ import annotations

from functools import cache

import pytest
from simulation.recorder import RecordingMachine, Seen
from simulation.run import Run
from tools import state_tables

from kohort.groups.transitions import (
    CLASSIC,
    CLASSIC_GROUP,
    CONSUMER,
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
    PUSH,
    PUSH_GROUP,
    Transition,
)

STARTS = range(0, 240, 40)
TABLES: dict[str, tuple[Transition, ...]] = {
    CLASSIC: CLASSIC_GROUP,
    CONSUMER: CONSUMER_GROUP,
    PUSH: PUSH_GROUP,
    "member": CONSUMER_MEMBER,
}


@cache
def seen(start: int) -> dict[str, set[Seen]]:
    """Return the transitions of some runs."""
    found: dict[str, set[Seen]] = {kind: set() for kind in TABLES}
    recording = type("Recording", (RecordingMachine,), {"seen": found})
    for seed in range(start, start + STARTS.step):
        Run(seed, recording, (), shortest_ms=0).play()
    return found


@pytest.mark.parametrize("start", STARTS)
def test_every_transition_is_in_its_table(start: int) -> None:
    for kind, table in TABLES.items():
        known = {(transition.state, transition.event, transition.to) for transition in table}
        assert sorted(seen(start)[kind] - known) == []


@pytest.mark.parametrize("kind", TABLES)
def test_every_transition_of_a_table_is_seen_unless_it_is_rare(kind: str) -> None:
    common = {(transition.state, transition.event, transition.to) for transition in TABLES[kind] if not transition.rare}
    for start in STARTS:
        common -= seen(start)[kind]
    assert sorted(common) == []


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_names_no_transition_twice(table: tuple[Transition, ...]) -> None:
    ways = [(transition.state, transition.event, transition.to) for transition in table]
    assert len(ways) == len(set(ways))


def test_states_pages_are_drawn_from_the_tables() -> None:
    assert state_tables.DOC.read_text() == state_tables.document(), "make docs"
    assert state_tables.REGION_DOC.read_text() == state_tables.region_document(), "make docs"
