"""Consumers of ours in one group, each polling in a thread, that report their assignments.

`python -m bench.runners.real_members SERVERS GROUP TOPIC COUNT SETTINGS`; SETTINGS is JSON. Each change is a line
`[NUMBER, SECONDS, [PARTITION…]]`. Each poll that brings records is a line `[NUMBER, SECONDS, null]`. The clock is the
one that all processes of a machine share (`time.monotonic`). The consumers leave when standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from kohort import Consumer, RebalanceListener, TopicPartition

_saying = threading.Lock()


class _Holding(RebalanceListener):
    """The assignment of one consumer, reported with each change."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held: set[int] = set()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._held.update(partition.partition for partition in partitions)
        self._say()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._held.difference_update(partition.partition for partition in partitions)
        self._say()

    def _say(self) -> None:
        _report(self._number, sorted(self._held))


def _report(number: int, held: list[int] | None) -> None:
    with _saying:
        print(json.dumps([number, time.monotonic(), held]), flush=True)


def _live(number: int, servers: str, group: str, topic: str, settings: dict[str, Any], ending: threading.Event) -> None:
    with Consumer(servers, group_id=group, **settings) as consumer:
        consumer.subscribe([topic], listener=_Holding(number))
        while not ending.is_set():
            if consumer.poll():
                _report(number, None)


def main(servers: str, group: str, topic: str, count: str, settings: str) -> None:
    """Run them until standard input ends."""
    ending = threading.Event()
    threads = [
        threading.Thread(target=_live, args=(number, servers, group, topic, json.loads(settings), ending))
        for number in range(int(count))
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:6])
