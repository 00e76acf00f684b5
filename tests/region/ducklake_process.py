"""Publishes staged sequences of a DuckLake table until it is killed, or reads it: `FOLDER SEQUENCES|read [CATALOG]`."""

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


def sink_at(folder: str, catalog: str = "") -> DuckLakeTable:
    return DuckLakeTable("air.flights", lake=folder, catalog=catalog).bind("flights", REGION)


def publish(folder: str, sequences: int, catalog: str) -> None:
    sink = sink_at(folder, catalog)
    for sequence in range(sink.published() + 1, sequences + 1):
        sink.publish(sequence, keys(sequence))
        print(sequence, flush=True)


def read(folder: str, catalog: str) -> None:
    """Count the rows of each sequence, as a program without kohort, for each line of the input."""
    database = duckdb.connect(":memory:", config={"threads": 1})
    for name in ("sqlite_scanner", "postgres_scanner", "ducklake") if catalog else ("sqlite_scanner", "ducklake"):
        database.execute(f"LOAD '{_extension(name)}'")
    where = f"postgres:{catalog}" if catalog else f"sqlite:{folder}/catalog.sqlite"
    database.execute(f"ATTACH 'ducklake:{where}' AS lake (READ_ONLY)")
    print("ready", flush=True)
    for _ in sys.stdin:
        counts = database.execute("SELECT sequence, count(*) FROM lake.air.flights GROUP BY ALL ORDER BY ALL")
        print(counts.fetchall(), flush=True)


if __name__ == "__main__":
    folder, what, catalog = (*sys.argv[1:], "")[:3]
    if what == "read":
        read(folder, catalog)
    else:
        publish(folder, int(what), catalog)
