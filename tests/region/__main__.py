"""Plays a region through many seeds: `python -m tests.region --seeds 20000 [--start 0] [--jobs 2]`.

`--sinks` names the sinks that its members write to.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from rich.console import Console

from kohort.region.states import RegionState
from tests.region.world.world import KINDS, World


def play(seed: int, sinks: str) -> tuple[int, int, set[tuple[RegionState, RegionState]], str]:
    """One seed: its last sequence, the ways that were gone, and what went wrong."""
    logging.disable()  # the story tells it
    world = World(seed, sinks=sinks)
    try:
        world.play()
    except Exception as error:  # noqa: BLE001 - it is told
        story = "\n".join(world.clock.story[-60:])
        return seed, world.stored.sequence, world.seen, f"{type(error).__name__}: {error}\n{story}"
    return seed, world.stored.sequence, world.seen, ""


def main() -> int:
    """All seeds; 1 if one failed."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--seeds", type=int, default=200)
    given.add_argument("--start", type=int, default=0)
    given.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given.add_argument("--sinks", choices=sorted(KINDS), default="folder")
    reported = given.parse_args()
    out, began_s, failed, sequences = Console(), time.monotonic(), [], 0
    ways: set[tuple[RegionState, RegionState]] = set()
    with ProcessPoolExecutor(reported.jobs) as pool:
        seeds = range(reported.start, reported.start + reported.seeds)
        for number, (seed, sequence, seen, error) in enumerate(
            pool.map(partial(play, sinks=reported.sinks), seeds, chunksize=20), 1
        ):
            sequences += sequence
            ways |= seen
            if error:
                failed.append(seed)
                out.print(f"seed {seed}: {error}", markup=False, highlight=False)
            if number % 500 == 0:
                out.print(f"{number}/{reported.seeds} runs, {len(failed)} failed, {time.monotonic() - began_s:.0f} s")
    played = f"{reported.seeds} runs with {reported.sinks} from {reported.start}"
    out.print(f"{played}: {sequences} sequences, {len(ways)} ways between states")
    out.print(f"{len(failed)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
