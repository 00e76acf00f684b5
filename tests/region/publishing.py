"""Publishers that kill themselves at a call, and a process that reads a folder until it is told to end."""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds

from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.staged import StagedKey

REGION = UUID(int=7)
MEMBERS = ("a", "b/c", "idle")
SCHEMA = pa.schema([("id", pa.int64())])
CHANGES = frozenset({"open", "mkdir", "link", "rename", "unlink", "rmdir", "fsync", "write"})


def keys(sequence: int) -> list[StagedKey]:
    return [StagedKey(REGION, 1, member, sequence) for member in MEMBERS]


def rows(key: StagedKey) -> pa.Table:
    ids = [] if key.member == "idle" else [key.unit * 100 + MEMBERS.index(key.member) * 10 + i for i in range(3)]
    return pa.table({"id": ids}, schema=SCHEMA)


def sink(path: str) -> ParquetFolder:
    return ParquetFolder(path).bind("seven", REGION)


class Dying:
    """`os`, which kills the process at the so-manyth change."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in CHANGES:
            return call

        def counted(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **named)

        return counted


def publish_and_die(folder: ParquetFolder, sequence: int, at: int) -> bool:
    """Publish in a child, which is killed at the so-manyth change; whether it got there.

    The child makes file calls only: the folder's schema is known before.
    """
    folder.published()
    named = keys(sequence)
    child = os.fork()
    if not child:
        try:
            folder._files = Dying(at)  # type: ignore[assignment]
            folder.publish(sequence, named)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def read(path: str) -> None:
    """Say `reading`; look until standard input ends; then say how often, and what sequences were not whole."""
    print("reading", flush=True)
    looks, parts = 0, []
    while not select.select([sys.stdin], [], [], 0)[0]:
        looks += 1
        found = ds.dataset(path, format="parquet", partitioning="hive").to_table()
        if "sequence" in found.column_names:
            counts = found.group_by("sequence").aggregate([("id", "count")]).to_pylist()
            parts += [count for count in counts if count["id_count"] != 6]
    print(looks, parts, flush=True)


if __name__ == "__main__":
    read(sys.argv[1])
