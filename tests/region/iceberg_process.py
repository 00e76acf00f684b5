"""Forks processes that write an Iceberg table in a store, which tests kill; each line is JSON of one of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from kohort.region import IcebergTable
from kohort.region.staged import StagedKey
from tests.region.forked import fork_for_each_line

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = [StagedKey(REGION, 1, "größe/1", number) for number in range(8)]
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "append": {"partition_by": ["bucket(2, id)"]},
    "update": {"mode": "update", "keys": ["id"]},
}


def rows(*ids: int, name: str = "x") -> pa.Table:
    return pa.table({"id": list(ids), "name": [name] * len(ids)}, schema=SCHEMA)


def sink_at(catalog: dict[str, str], mode: str) -> IcebergTable:
    """Return the sink as a process has it; the tests reach the servers directly and through proxies."""
    made = IcebergTable("air.flights", catalog=catalog, **OPTIONS[mode])
    made._place = "iceberg:flights"
    return made.bind("flights", REGION)


ACTS: Final[dict[str, Callable[[IcebergTable], None]]] = {
    "stage": lambda sink: sink.stage(KEYS[3], rows(2, 4, name="lost")),
    "publish": lambda sink: sink.publish(2, KEYS[4:6]),
    "empty": lambda sink: sink.empty(2, 2),
}


def die_at_commit(sink: IcebergTable, when: str) -> None:
    """Kill this process at its first commit, before the catalog hears of it or after it has answered."""
    catalog = sink._catalog()
    commit = catalog.commit_table

    def dying(*given: Any) -> None:
        if when == "after":
            commit(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    catalog.commit_table = dying  # type: ignore[assignment,method-assign]


def act(line: str) -> None:
    catalog, mode, what, dies = json.loads(line)
    sink = sink_at(catalog, mode)
    if dies:
        die_at_commit(sink, dies)
    ACTS[what](sink)


if __name__ == "__main__":
    fork_for_each_line(act, prints_process=True)
