"""Members of a region with a table as their sink, one of which fails: what is published is every record once."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from kohort.region import DeltaTable, DuckLakeTable, IcebergTable, Region, Sink, SqlTable
from kohort.region.sinks.ducklake_catalog import DuckLake, NoLakeError
from tests.region.conftest import Worker, fill, make_topic
from tests.support.waiting import until

ROWS = 4000
KEYS = 40


def _delta(folder: Path, **options: Any) -> tuple[Sink, Callable[[], list[bytes]]]:
    sink = DeltaTable(folder / "out", **options)

    def read() -> list[bytes]:
        if not deltalake.DeltaTable.is_deltatable(sink.path):
            return []
        return list(deltalake.DeltaTable(sink.path).to_pyarrow_table().column("value").to_pylist())

    return sink, read


def _iceberg(folder: Path, **options: Any) -> tuple[Sink, Callable[[], list[bytes]]]:
    sink = IcebergTable("air.flights", warehouse=folder / "lake", **options)

    def read() -> list[bytes]:
        uri, place = f"sqlite:///{folder}/lake/catalog.db", f"file://{folder}/lake"
        database = folder / "lake" / "catalog.db"
        if not database.exists() or not _tables_of(database) >= {"iceberg_tables", "iceberg_namespace_properties"}:
            return []  # the catalog makes tables that it lacks, and so may two processes at the same time
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=place)
        if not catalog.namespace_exists("air") or not catalog.table_exists("air.flights"):
            return []
        return list(catalog.load_table("air.flights").scan().to_arrow().column("value").to_pylist())

    return sink, read


def _tables_of(database: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _sqlite(folder: Path) -> tuple[Sink, Callable[[], list[bytes]]]:
    def read() -> list[bytes]:
        with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
            there = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'flights'").fetchone()
            return [row[0] for row in database.execute("SELECT value FROM flights")] if there else []

    return SqlTable(f"sqlite:///{folder}/out.db", "flights"), read


def _ducklake(folder: Path) -> tuple[Sink, Callable[[], list[bytes]]]:
    lake = DuckLake(str(folder / "lake"), "ducklake:reader")

    def read() -> list[bytes]:
        try:
            with lake.transaction() as at:
                there = "flights" in at.table_uuids("air")
                return [row[0] for row in at.query_rows("SELECT value FROM {lake}.air.flights")] if there else []
        except NoLakeError:
            return []

    return DuckLakeTable("air.flights", lake=folder / "lake"), read


@pytest.mark.parametrize("kind", [_delta, _ducklake, _iceberg, _sqlite], ids=["delta", "ducklake", "iceberg", "sqlite"])
def test_every_record_once(
    kind: Callable[[Path], tuple[Sink, Callable[[], list[bytes]]]], own_servers: str, name: str, tmp_path: Path
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(ROWS // 2))
    sink, read = kind(tmp_path)
    with Region(name, own_servers, checkpoint_every="200ms") as region:
        workers = [Worker(region, f"worker-{number}", sink, name) for number in range(2)]
        until(lambda: len(read()) > 0, "a sequence is complete")
        workers[0].fail_at = 0
        fill(own_servers, name, range(ROWS // 2, ROWS))
        workers[0].thread.join(60)
        assert isinstance(workers[0].error, ValueError)
        until(lambda: len(read()) >= ROWS, "all is published")
        workers[1].close()
        workers[1].thread.join(60)
    assert Counter(int(value) for value in read()) == Counter(range(ROWS))


class KeyedWorker(Worker):
    """A member whose rows have a key: those of a key are in one partition."""

    def rows_of(self, table: pa.Table) -> pa.Table:
        keys = [int(value) % KEYS for value in table.column("value").to_pylist()]
        return table.select(["value"]).append_column("key", pa.array(keys, pa.int64()))


@pytest.mark.parametrize("kind", [_delta, _iceberg], ids=["delta", "iceberg"])
def test_the_last_record_of_each_key(
    kind: Callable[..., tuple[Sink, Callable[[], list[bytes]]]], own_servers: str, name: str, tmp_path: Path
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(ROWS // 2))
    sink, read = kind(tmp_path, mode="update", keys=["key"])
    with Region(name, own_servers, checkpoint_every="200ms") as region:
        workers = [KeyedWorker(region, f"worker-{number}", sink, name) for number in range(2)]
        until(lambda: len(read()) > 0, "a sequence is complete")
        workers[0].fail_at = 0
        fill(own_servers, name, range(ROWS // 2, ROWS))
        workers[0].thread.join(60)
        assert isinstance(workers[0].error, ValueError)
        wanted = list(range(ROWS - KEYS, ROWS))
        until(lambda: sorted(int(value) for value in read()) == wanted, "the last records are published")
        workers[1].close()
        workers[1].thread.join(60)
    assert sorted(int(value) for value in read()) == wanted


def test_a_snapshot_has_the_offsets_of_its_sequence(own_servers: str, name: str, tmp_path: Path) -> None:
    """The offsets are those that the group has, too."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink, read = _iceberg(tmp_path)
    with Region(name, own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "worker-1", sink, name)
        until(lambda: len(read()) == 100, "all is published")
        worker.close()
        worker.thread.join(60)
    place = f"file://{tmp_path}/lake"
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/lake/catalog.db", warehouse=place)
    snapshot = catalog.load_table("air.flights").current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    groups = json.loads(snapshot.summary.additional_properties["kohort.offsets"])
    assert [sum(parts.values()) for topics in groups.values() for parts in topics.values()] == [100]
