"""Forks a publisher for each line of its input, `folder sequence call`, which kills itself there; says how it ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.region.place_runs import SEQUENCES
from tests.region.places import Calls, kinds


def main(kind: str) -> None:
    place = next(case for case in kinds() if case.kind == kind)
    for line in sys.stdin:
        root, sequence, at = line.split()
        child = os.fork()
        if not child:
            try:
                calls = Calls()
                if int(at):
                    calls.die_at(int(at), happened=bool(int(at) % 2), really=True)
                place.at(Path(root))
                place.sink(calls).publish(int(sequence), SEQUENCES[int(sequence)])
            except BaseException as error:  # noqa: BLE001 - the parent tells it
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
