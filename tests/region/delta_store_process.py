"""Forks a publisher for each line of its input, `address url`; says its process, and how it ended."""

from __future__ import annotations

import os
import sys

from kohort.region import DeltaTable
from tests.region.test_delta_s3 import KEYS, PLACE, REGION, options


def main() -> None:
    for line in sys.stdin:
        address, url = line.split()
        child = os.fork()
        if not child:
            try:
                sink = DeltaTable(url, storage_options=options(address))
                sink._place = PLACE
                sink.bind("flights", REGION).publish(1, KEYS[:2])
            except BaseException as error:  # noqa: BLE001 - the parent tells it
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
