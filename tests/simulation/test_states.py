"""The tables that groups execute list exactly the transitions that occur, and the documents are made from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from simulation.harness.recorder import MEMBER, RecordingMachine, Seen, transitions
from simulation.run import Run
from tools import state_tables

from kohort.groups.consumer.members import MEMBER_TABLE
from kohort.groups.machine import PROTOCOLS
from tests.support.long_runs import IS_LONG

UNCOMMON = (341, 559, 755, 898)
"""Seeds of runs with transitions that occur in one run of two hundred. A change in the log's file operations moves
them.
"""
SEEDS: dict[str, Sequence[int]] = {
    **{str(start): range(start, start + 40) for start in range(0, 240 if IS_LONG else 120, 40)},
    "uncommon": UNCOMMON,
}
TABLES: dict[str, set[Seen]] = {kind.name: transitions(kind.table) for kind in PROTOCOLS} | {
    MEMBER: {(state.name, "", to.name) for state, entry in MEMBER_TABLE.items() for to in entry.to}
}
RARE: dict[str, set[Seen]] = {
    "classic": {
        ("CompletingRebalance", "ConnectionLost", "Empty"),
        ("CompletingRebalance", "timer SYNC_PHASE", "PreparingRebalance"),
        ("PreparingRebalance", "ConnectionLost", "CompletingRebalance"),
        ("PreparingRebalance", "ConnectionLost", "Empty"),
        ("PreparingRebalance", "timer JOIN_PHASE", "Empty"),
        ("PreparingRebalance", "timer PENDING_MEMBER", "CompletingRebalance"),
        ("PreparingRebalance", "timer PENDING_MEMBER", "Empty"),
        ("Stable", "ConnectionLost", "Empty"),
        ("Stable", "ConnectionLost", "PreparingRebalance"),
        ("Stable", "Heartbeat", "PreparingRebalance"),
        ("Stable", "TopicsChanged", "CompletingRebalance"),
        ("Stable", "timer SYNC_PHASE", "Empty"),
        ("Stable", "timer SYNC_PHASE", "PreparingRebalance"),
    },
    "consumer": {
        ("Assigning", "ConnectionLost", "Empty"),
        ("Assigning", "ConnectionLost", "classic"),
        ("Assigning", "ConsumerGroupHeartbeat", "classic"),
        ("Assigning", "LeaveGroup", "Empty"),
        ("Assigning", "LeaveGroup", "classic"),
        ("Empty", "JoinGroup", "Assigning"),
        ("Reconciling", "ConnectionLost", "Assigning"),
        ("Reconciling", "ConnectionLost", "Empty"),
        ("Reconciling", "ConnectionLost", "Stable"),
        ("Reconciling", "ConnectionLost", "classic"),
        ("Reconciling", "ConsumerGroupHeartbeat", "Empty"),
        ("Reconciling", "ConsumerGroupHeartbeat", "classic"),
        ("Reconciling", "JoinGroup", "classic"),
        ("Reconciling", "LeaveGroup", "Empty"),
        ("Reconciling", "ReleaseLongPolls", "Stable"),
        ("Reconciling", "timer LONG_POLL", "Stable"),
        ("Stable", "ConnectionLost", "Assigning"),
        ("Stable", "ConnectionLost", "Empty"),
        ("Stable", "ConnectionLost", "classic"),
        ("Stable", "JoinGroup", "Reconciling"),
        ("Stable", "JoinGroup", "classic"),
        ("Stable", "LeaveGroup", "Empty"),
        ("Stable", "timer SILENCE", "Assigning"),
    },
    "push": {
        ("PreparingRebalance", "ConnectionLost", "Empty"),
        ("PreparingRebalance", "ConnectionLost", "Stable"),
        ("PreparingRebalance", "LeaveGroup", "Stable"),
        ("PreparingRebalance", "timer SESSION", "Stable"),
        ("Stable", "PushConsumerAnswered", "PreparingRebalance"),
        ("Stable", "OwnerNodesDeleted", "PreparingRebalance"),
        ("Stable", "timer BACKOFF", "PreparingRebalance"),
        ("Stable", "timer PING", "PreparingRebalance"),
    },
    MEMBER: set(),
}
"""Transitions of the tables that occur in few runs."""
IN_LONG_RUNS: dict[str, set[Seen]] = {
    "classic": {
        ("CompletingRebalance", "ConnectionLost", "PreparingRebalance"),
        ("CompletingRebalance", "LeaveGroup", "PreparingRebalance"),
        ("PreparingRebalance", "LeaveGroup", "Empty"),
    },
    "consumer": {("Stable", "ConsumerGroupHeartbeat", "classic")},
}
"""Transitions that occur with the seeds of the long form, and not with those of the short one."""


@cache
def seen(name: str) -> dict[str, set[Seen]]:
    """Return the transitions of the runs of some seeds."""
    found: dict[str, set[Seen]] = {kind: set() for kind in TABLES}
    recording = type("Recording", (RecordingMachine,), {"seen": found})
    for seed in SEEDS[name]:
        Run(seed, recording, (), shortest_ms=0).play()
    return found


@pytest.mark.parametrize("name", SEEDS)
def test_runs_go_through_transitions_of_the_tables_only(name: str) -> None:
    for kind, known in TABLES.items():
        assert sorted(seen(name)[kind] - known) == []


@pytest.mark.parametrize("kind", TABLES)
def test_every_transition_of_a_table_occurs_unless_it_is_rare(kind: str) -> None:
    common = TABLES[kind] - RARE[kind]
    if not IS_LONG:
        common -= IN_LONG_RUNS.get(kind, set())
    for name in SEEDS:
        common -= seen(name)[kind]
    assert sorted(common) == []


@pytest.mark.parametrize("kind", TABLES)
def test_rare_transitions_are_in_the_tables(kind: str) -> None:
    assert sorted(RARE[kind] - TABLES[kind]) == []


@pytest.mark.parametrize("kind", PROTOCOLS, ids=lambda kind: str(kind.name))
def test_every_event_of_a_table_has_an_entry_in_every_state(kind: type) -> None:
    states = {state for reactions in kind.table.values() for state in reactions}  # type: ignore[attr-defined]
    assert all(reactions.keys() == states for reactions in kind.table.values())  # type: ignore[attr-defined]


def test_states_pages_are_drawn_from_the_tables() -> None:
    assert state_tables.DOC.read_text() == state_tables.document(), "make docs"
    assert state_tables.REGION_DOC.read_text() == state_tables.region_document(), "make docs"
