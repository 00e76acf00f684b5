"""Both machines together: whatever happens, the output is every record below the last sequence once."""

from __future__ import annotations

import pytest

from tests.region.mutants import MUTANTS
from tests.region.world.world import World

SEEDS = 150
"""`python -m tests.region --seeds 20000` plays more."""


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_a_bad_time_and_a_good_one(first: int) -> None:
    for seed in range(first, first + 25):
        world = World(seed)
        try:
            world.play()
        except Exception as error:
            error.add_note(f"seed {seed}\n" + "\n".join(world.clock.story[-60:]))
            raise


@pytest.mark.parametrize("name", MUTANTS)
def test_each_planted_fault_is_seen(name: str) -> None:
    with MUTANTS[name]():
        for seed in range(SEEDS):
            try:
                World(seed).play()
            except Exception:  # noqa: BLE001 - a violation, or the machine's own assertion
                return
    pytest.fail(f"{name}: not seen in {SEEDS} runs")
