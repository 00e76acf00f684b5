"""Forks a publisher for each line of its input, `address url`; says its process, and how it ended."""

from __future__ import annotations

from kohort.region import DeltaTable
from tests.region.forked import fork_for_each_line
from tests.region.test_delta_s3 import KEYS, PLACE, REGION, options


def publish(line: str) -> None:
    address, url = line.split()
    sink = DeltaTable(url, storage_options=options(address))
    sink._place = PLACE
    sink.bind("flights", REGION).publish(1, KEYS[:2])


if __name__ == "__main__":
    fork_for_each_line(publish, prints_process=True)
