"""Both machines together: whatever happens, the output is every record below the last sequence once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kohort.region import messages
from kohort.region.sinks.parquet_folder import ParquetFolder
from tests.region import (
    test_adopting,
    test_dead_letters,
    test_emptied_places,
    test_member,
    test_parquet_folder,
    test_plane,
)
from tests.region.mutants import MUTANTS, SEEN_BY_A_TEST
from tests.region.world.world import World

SEEDS = 150
"""`python -m tests.region --seeds 20000` plays more."""
SEEN_AT = {
    "dead letters are left when the sink is published": 5,
    "dead letters are published once more after a reset": 23,
    "dead letters of a sequence are given again": 5,
    "dead letters of a table that is left undone stay": 77,
    "a region numbers on from the topic behind a sink that is adopted": 9,
    "a sink that is ahead of the topic is taken": 39,
    "a sink that lacks what it has shown is taken": 39,
    "an error that answers the end of a transaction is taken for an abort": 19,
    "an unknown outcome is taken for an abort": 6,
    "who waits for its sink is late": 368,
    "what stands is settled by looking": 58,
    "partitions are let go in the middle of a batch": 0,
    "starts are handed out at any time": 21,
    "what is held is let go with a sequence that does not cover it": 145,
    "who is late is waited for": 157,
    "who leaves is not needed before the topic has a reset": 8,
    "what another place is to show is numbered anew with the sequence": 389,
    "two resets to the initial state on their way have one number": 754,
    "what an error's text names is moved": 5,
    "what an error's text names is moved too": 23,
    "the next is committed before the last is published": 5,
    "the next is committed while one of two sinks is not published": 1,
    "who died is not missed": 10,
    "who does not come back is waited for": 3,
    "a reset leaves a member where it was": 1,
    "partitions that were read are let go": 15,
    "a close counts the table in hand": 38,
    "a table that is left undone counts": 6,
    "what was submitted of a table that is left undone stays": 38,
    "a state that has a table that is left undone is saved": 6,
    "a reset to the beginning that waits is forgotten for another": 6,
    "a bad row is dropped": 5,
    "dead letters are nobody's to publish": 1,
    "a partition moves without its state": 10,
    "a state that moved or was reset is used again": 142,
    "a copy of a state that has changes is kept at a reset": 285,
    "a copy of a state is kept at a reset whatever was saved": 142,
    "changes of a state are forgotten when they could not be saved": 87,
    "files of a state that a manifest names are swept": 10,
    "files of a state are not synced": 87,
    "an unknown outcome is taken for done": 6,
    "the outcome is taken for complete": 1,
    "what is void stays": 0,
    "names are not synced": 1,
    "a term counts whichever came before": 1,
    "a producer that was replaced is heard": 1,
    "the initial state needs no confirmation": 1,
    "the initial state is confirmed for another region": 1,
}
"""Looked at first."""


def _without_its_mark() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = ParquetFolder(Path(folder, "out")).bind("flights", test_parquet_folder.REGION)
        sink.check(test_parquet_folder.SCHEMA)
        test_parquet_folder.assert_a_sequence_without_its_mark_counts(sink)


def _with_a_sink_that_is_away() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_dead_letters.assert_a_table_that_is_given_again_has_its_letters_once(Path(folder))


TESTS = {
    "a contribution counts though the control plane says that it does not": (
        lambda: test_member.test_contribution_that_does_not_count_is_made_again_and_lets_nothing_go(
            messages.CheckpointCompleted(3, 8, 6, counts=False)
        )
    ),
    "a sequence that is shown and not marked is not seen": _without_its_mark,
    "dead letters are taken in again when the sink was away": _with_a_sink_that_is_away,
    "a reset waits for who has published and gone": (
        test_emptied_places.test_no_reset_waits_for_who_has_emptied_its_place_and_gone
    ),
    "where the region has published is forgotten": (
        test_plane.test_each_sink_is_published_by_one_of_its_members_and_the_next_commit_waits_for_all
    ),
    "epochs come again behind a sink that is adopted": (
        lambda: test_adopting.assert_an_adopted_sink_gets_epochs_that_it_has_not_seen(3)
    ),
}


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_bad_time_and_a_good_one(first: int) -> None:
    for seed in range(first, first + 10):
        world = World(seed)
        try:
            world.play()
        except Exception as error:
            error.add_note(f"seed {seed}\n" + "\n".join(world.clock.story[-60:]))
            raise


@pytest.mark.parametrize(
    "seed", [296, 389, 754, 1330, 4_000_905, 4_001_699, 4_002_219, 4_003_509, 5_000_329, 6_006_764]
)
def test_histories_that_had_a_fault_are_clean(seed: int) -> None:
    """Each had a fault of its own.

    389: a sink was adopted while another was owed a sequence; 754: two resets to the initial state at once; 296 and
    1330: a state's file was in a folder whose own name was not on the disk.
    """
    World(seed).play()


@pytest.mark.timeout(900)  # one that is rarely shown takes a hundred worlds
@pytest.mark.parametrize("name", MUTANTS)
def test_each_planted_fault_is_seen(name: str) -> None:
    first = SEEN_AT.get(name, 0)
    with MUTANTS[name]():
        for seed in (first, *range(SEEDS)):
            try:
                World(seed).play()
            except Exception:  # noqa: BLE001 - a violation, or the machine's own assertion
                return
    pytest.fail(f"{name}: not seen in {SEEDS} runs")


@pytest.mark.parametrize("name", SEEN_BY_A_TEST)
def test_each_planted_fault_that_the_world_hardly_meets_is_seen_by_a_test(name: str) -> None:
    TESTS[name]()
    with SEEN_BY_A_TEST[name](), pytest.raises((AssertionError, ValueError)):
        TESTS[name]()
