"""Forks a publisher for each line of its input, `folder sequence call`, which kills itself there; says how it ended."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.region.forked import fork_for_each_line
from tests.region.place_runs import SEQUENCES
from tests.region.places import Calls, Place, kinds


def publish(place: Place, line: str) -> None:
    root, sequence, at = line.split()
    calls = Calls()
    if int(at):
        calls.die_at(int(at), happened=bool(int(at) % 2), really=True)
    place.at(Path(root))
    place.sink(calls).publish(int(sequence), SEQUENCES[int(sequence)])


if __name__ == "__main__":
    fork_for_each_line(partial(publish, next(case for case in kinds() if case.kind == sys.argv[1])))
