"""A Python member of a region with one keyed state: `python -m bench.runners.state`.

It prints `ready`, and takes a job as a line of JSON; the next line ends it. It prints when it had its first table with
the partition's state. Then it prints how many records it has processed, and that it has stopped. A record `add FIRST
COUNT` sets so many keys. The state has the offset of the next record, which each member compares when it begins.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import Any

import pyarrow as pa

from bench.runners.lake import send_line
from kohort.region import KeyedState, Region
from kohort.region.consumer import RegionConsumer
from kohort.region.keyed_state.states import StateMapping

KEY_BYTES, VALUE_BYTES = 16, 484
ADD = "add"
_NEXT = b"next"


def process(table: pa.Table, state: StateMapping) -> None:
    """Set the keys that records name, and the offset of the next record."""
    for value in table["value"].cast(pa.string()).to_pylist():
        word, *numbers = str(value).split()
        if word == ADD:
            first, count = map(int, numbers)
            for number in range(first, first + count):
                key = hashlib.md5(b"%d" % number, usedforsecurity=False).digest()
                state[key] = key * (VALUE_BYTES // KEY_BYTES) + b"...."
    state[_NEXT] = b"%d" % (table["offset"][-1].as_py() + 1)


def end_at_next_line(consumer: RegionConsumer) -> None:
    """Close the member when its input has another line, or ends."""
    sys.stdin.readline()
    consumer.close()


def run_job(job: dict[str, Any]) -> None:
    """Be a member, until it is closed.

    Raises:
        RuntimeError: the state is not the one of the partition's offset.
    """
    states = KeyedState(job["place"], storage_options=job["storage"])
    with Region(job["region"], job["servers"], checkpoint_every="1s", serves=False) as region:
        consumer = region.consumer(
            job["name"], group_id=job["region"], topics=[job["topic"]], keyed_state=states, start="beginning",
            max_poll_records=1,
        )  # fmt: skip
        with consumer:
            threading.Thread(target=end_at_next_line, args=(consumer,), daemon=True).start()
            rows = 0
            for table in consumer.tables():
                asked_s = time.monotonic()
                state = consumer.partition_state(job["topic"], table["partition"][0].as_py())
                if not rows:
                    begins_at = table["offset"][0].as_py()
                    if int(state.get(_NEXT, b"0")) != begins_at:
                        raise RuntimeError(f"the state of offset {state.get(_NEXT)!r} came with offset {begins_at}")
                    now_s = time.monotonic()
                    send_line(began=now_s, facts={"of these to load": now_s - asked_s})
                process(table, state)
                rows += table.num_rows
                send_line(rows=rows)
    send_line(stopped=True)


if __name__ == "__main__":
    send_line(ready=True)
    if line := sys.stdin.readline():
        run_job(json.loads(line))
