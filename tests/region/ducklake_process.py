"""Publishes staged sequences of a DuckLake table until it is killed, or reads the table: `FOLDER publish|read`."""

from __future__ import annotations

import sys
from uuid import UUID

import duckdb

from kohort.region import DuckLakeTable
from kohort.region.sinks.ducklake_catalog import _extension
from kohort.region.staged import StagedKey

REGION = UUID(int=1)
MEMBERS = ("a", "größe/1")
ROWS_EACH = 7


def keys(sequence: int) -> list[StagedKey]:
    return [StagedKey(REGION, 1, member, sequence) for member in MEMBERS]


def publish(folder: str, sequences: int) -> None:
    sink = DuckLakeTable("air.flights", lake=folder).bind("flights", REGION)
    for sequence in range(sink.published() + 1, sequences + 1):
        sink.publish(sequence, keys(sequence))
        print(sequence, flush=True)


def read(folder: str) -> None:
    """Count the rows of each sequence, as a program without kohort, for each line of the input."""
    database = duckdb.connect(":memory:", config={"threads": 1})
    for name in ("sqlite_scanner", "ducklake"):
        database.execute(f"LOAD '{_extension(name)}'")
    database.execute(f"ATTACH 'ducklake:sqlite:{folder}/catalog.sqlite' AS lake (READ_ONLY)")
    print("ready", flush=True)
    for _ in sys.stdin:
        counts = database.execute("SELECT sequence, count(*) FROM lake.air.flights GROUP BY ALL ORDER BY ALL")
        print(counts.fetchall(), flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "read":
        read(sys.argv[1])
    else:
        publish(sys.argv[1], int(sys.argv[2]))
