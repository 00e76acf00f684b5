"""Readers that nobody here wrote, of each sink, on disk and in a store: all see the same rows of the same table.

A table has three published sequences, one of them without rows, beside rows that are staged and not published.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from kohort.region import DeltaTable, DuckLakeTable, IcebergTable, ParquetFolder
from kohort.region.staged import StagedKey
from tests.region import lake_spark
from tests.region.lake_spark import LakeSpark
from tests.region.s3_server import ACCESS, BUCKET, files_of

deltalake: Any = pytest.importorskip("deltalake", reason="DeltaTable needs it")
duckdb: Any = pytest.importorskip("duckdb", reason="DuckDB reads the tables")
extensions: Any = pytest.importorskip("duckdb_extensions", reason="DuckDB's extensions as packages")
polars: Any = pytest.importorskip("polars", reason="Polars reads the tables")
StaticTable: Any = pytest.importorskip("pyiceberg.table", reason="IcebergTable needs it").StaticTable

REGION = UUID(int=1)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("fare", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("late", pa.bool_()),
    ]
)
Row = tuple[Any, ...]
ROWS: Final[list[Row]] = [
    (1, "Zürich", datetime(2026, 11, 26, 23, 59, 59, 999_999, UTC), Decimal("120.50"), date(2026, 11, 26), True),
    (2, None, datetime(1969, 12, 31, 23, 0, tzinfo=UTC), Decimal("-0.01"), date(1969, 12, 31), None),
    (3, "a/b=c", None, None, None, False),
    (4, "", datetime(2026, 11, 27, tzinfo=UTC), Decimal("9999999999.99"), date(2026, 11, 27), True),
    (5, "日本", datetime(2026, 11, 27, 12, 30, tzinfo=UTC), Decimal("0.00"), date(2026, 11, 27), False),
]
UNSEEN = (666, "unseen", None, None, None, None)
COLUMNS = ("id", "name", "cast(unix_micros(at) AS STRING)", "cast(fare AS STRING)", "cast(day AS STRING)", "late")
"""The columns, as Spark says them in JSON."""

PARQUET, DELTA, ICEBERG, DUCKLAKE = "ParquetFolder", "DeltaTable", "IcebergTable", "DuckLakeTable"
DISK, STORE = "disk", "s3"
TABLES = [(PARQUET, DISK), (PARQUET, STORE), (DELTA, DISK), (DELTA, STORE), (ICEBERG, DISK), (ICEBERG, STORE),
          (DUCKLAKE, DISK)]  # fmt: skip
"""A DuckLake has its files beside its catalog, which is on one machine."""
READERS = ("spark", "duckdb", "polars", "pyarrow")
NO_READER = {
    ("spark", DUCKLAKE): "DuckLake has no connector for Spark 4",
    ("polars", DUCKLAKE): "Polars does not read DuckLake",
    ("pyarrow", DUCKLAKE): "pyarrow does not read DuckLake",
}


@dataclass(frozen=True)
class WrittenTable:
    """A table that a region has written, as its readers find it.

    Attributes:
        sink: the name of the sink's class.
        path: the folder, the URL, or the newest metadata file of an Iceberg table.
        files: the published files of a `ParquetFolder`.
        store: the server's address; empty: it is on disk.
        catalog: where the catalog of an Iceberg table is, and its files.
    """

    sink: str
    path: str
    files: tuple[str, ...] = ()
    store: str = ""
    catalog: tuple[str, str] = ("", "")


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def write(made: Any) -> None:
    """Publish the rows as three sequences, by a sink that does not know the other's state."""
    keys = [StagedKey(REGION, 1, "größe/1", number) for number in range(4)]
    sink = made.bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(keys[0], table_of(ROWS[:2]))
    sink.stage(keys[1], table_of(ROWS[2:3]))
    sink.publish(1, keys[:2])
    sink.publish(2, [])
    sink.stage(keys[2], table_of(ROWS[3:]))
    sink.stage(keys[3], table_of([UNSEEN]))
    for _ in range(2):
        sink.publish(3, keys[2:3])


def object_options(address: str) -> dict[str, str]:
    return {"access_key_id": ACCESS["s3.access-key-id"], "secret_access_key": ACCESS["s3.secret-access-key"],
            "region": ACCESS["s3.region"], "endpoint": address, "allow_http": "true"}  # fmt: skip


def written_folder(path: str, address: str) -> WrittenTable:
    made = ParquetFolder(path, **({"storage_options": object_options(address)} if address else {}))
    write(made)
    return WrittenTable(PARQUET, path, tuple(file.path for file in made.published_files()), address)


def written_delta(path: str, address: str) -> WrittenTable:
    write(DeltaTable(path, **({"storage_options": object_options(address)} if address else {})))
    return WrittenTable(DELTA, path, (), address)


def written_iceberg(path: str, address: str, catalog_file: Path) -> WrittenTable:
    from pyiceberg.catalog import load_catalog

    catalog = {"type": "sql", "uri": f"sqlite:///{catalog_file}", "warehouse": path}
    if address:
        catalog |= {"s3.endpoint": address, **ACCESS}
    write(IcebergTable("air.flights", catalog=catalog))
    newest = load_catalog("default", **catalog).load_table("air.flights").metadata_location
    return WrittenTable(ICEBERG, newest, (), address, (catalog["uri"], path))


@pytest.fixture(scope="module")
def tables(store: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], WrittenTable]:
    """Return a table of a sink at a place; it is written once."""
    folder = tmp_path_factory.mktemp("readers")
    written: dict[tuple[str, str], WrittenTable] = {}

    def make(sink: str, place: str) -> WrittenTable:
        address = store if place == STORE else ""
        path = f"s3://{BUCKET}/{folder.name}/{sink}" if address else str(folder / sink)
        if sink == PARQUET:
            return written_folder(path, address)
        if sink == DELTA:
            return written_delta(path, address)
        if sink == ICEBERG:
            return written_iceberg(path if address else f"file://{path}", address, folder / f"catalog-{place}.db")
        write(DuckLakeTable("air.flights", lake=path))
        return WrittenTable(DUCKLAKE, path)

    def find(sink: str, place: str) -> WrittenTable:
        if (sink, place) not in written:
            written[sink, place] = make(sink, place)
        return written[sink, place]

    return find


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSpark]:
    with lake_spark.running(tmp_path_factory.mktemp("spark")) as session:
        yield session


# -- one function for each reader: the rows of a table, as Python has them


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row[name] for name in SCHEMA.names) for row in table.to_pylist()]


@contextlib.contextmanager
def database(table: WrittenTable, folder: Path) -> Iterator[Any]:
    """Yield a connection of DuckDB with the extensions that the table needs, which come from their packages."""
    needed = {DELTA: ["delta"], ICEBERG: ["avro", "iceberg"], DUCKLAKE: ["sqlite_scanner", "ducklake"]}
    with duckdb.connect(config={"extension_directory": str(folder / "extensions")}) as connection:
        for name in needed.get(table.sink, []) + (["httpfs"] if table.store else []):
            pytest.importorskip(f"duckdb_extension_{name}", reason="one of DuckDB's extensions")
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        if table.store:
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{ACCESS['s3.access-key-id']}', REGION '{ACCESS['s3.region']}', "
                f"SECRET '{ACCESS['s3.secret-access-key']}', URL_STYLE 'path', USE_SSL false, "
                f"ENDPOINT '{table.store.removeprefix('http://')}')"
            )
        yield connection


def read_by_duckdb(table: WrittenTable, folder: Path) -> list[Row]:
    with database(table, folder) as connection:
        scan = {
            PARQUET: f"read_parquet({list(table.files)})",
            DELTA: f"delta_scan('{table.path}')",
            ICEBERG: f"iceberg_scan('{table.path}')",
            DUCKLAKE: "lake.air.flights",
        }[table.sink]
        if table.sink == DUCKLAKE:
            connection.execute(f"ATTACH 'ducklake:sqlite:{table.path}/catalog.sqlite' AS lake (READ_ONLY)")
        columns = ", ".join(f'"{name}"' for name in SCHEMA.names)
        return rows_of(connection.execute(f"SELECT {columns} FROM {scan}").to_arrow_table())


def read_by_polars(table: WrittenTable) -> list[Row]:
    access = {
        "aws_access_key_id": ACCESS["s3.access-key-id"], "aws_secret_access_key": ACCESS["s3.secret-access-key"],
        "aws_region": ACCESS["s3.region"], "aws_endpoint_url": table.store, "aws_allow_http": "true",
    }  # fmt: skip
    if table.sink == PARQUET:
        frame = polars.scan_parquet(list(table.files), storage_options=access if table.store else None)
    elif table.sink == DELTA:
        frame = polars.scan_delta(table.path, storage_options=access if table.store else None)
    else:
        given = {"s3.endpoint": table.store, **ACCESS} if table.store else None
        frame = polars.scan_iceberg(table.path, storage_options=given)
    return list(frame.select(SCHEMA.names).collect().iter_rows())


def read_by_pyarrow(table: WrittenTable) -> list[Row]:
    """Delta's log is read by delta-rs, Iceberg's manifests by pyiceberg; the rows are Arrow's."""
    if table.sink == DELTA:
        given = object_options(table.store) if table.store else None
        return rows_of(deltalake.DeltaTable(table.path, storage_options=given).to_pyarrow_table())
    if table.sink == ICEBERG:
        properties = {"s3.endpoint": table.store, **ACCESS} if table.store else {}
        return rows_of(StaticTable.from_metadata(table.path, properties).scan().to_arrow())
    files = files_of(table.store) if table.store else pafs.LocalFileSystem()
    paths = [path.removeprefix("s3://") for path in table.files]
    return rows_of(ds.dataset(paths, filesystem=files, format="parquet").to_table())


def read_by_spark(table: WrittenTable, spark: LakeSpark) -> list[Row]:
    store = lake_spark.s3a_config(table.store) if table.store else {}
    if table.sink == ICEBERG:
        config = lake_spark.catalog_config("default", *table.catalog, table.store)  # as pyiceberg calls it
        found = spark.read("iceberg", ["`default`.air.flights"], COLUMNS, config)
    elif table.sink == DELTA:
        found = spark.read("delta", [table.path.replace("s3:", "s3a:")], COLUMNS, store)
    else:  # a folder on disk is read as a whole, one in a store by the list of its files
        paths = [path.replace("s3:", "s3a:") for path in table.files] if table.store else [table.path]
        found = spark.read("parquet", paths, COLUMNS, store)
    return [
        (
            number, name,
            None if at is None else datetime.fromtimestamp(0, UTC) + int(at) * (datetime.resolution),
            None if fare is None else Decimal(fare), None if day is None else date.fromisoformat(day), late,
        )
        for number, name, at, fare, day, late in found
    ]  # fmt: skip


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(((*row[:2], row[2] and row[2].astimezone(UTC), *row[3:]) for row in rows), key=lambda row: row[0])


@pytest.mark.timeout(600)  # of the first test with Spark: its jars and its packages are installed
@pytest.mark.parametrize(("sink", "place"), TABLES, ids=[f"{sink}-{place}" for sink, place in TABLES])
@pytest.mark.parametrize(
    "reader",
    [pytest.param(name, marks=[pytest.mark.spark, pytest.mark.slow] if name == "spark" else []) for name in READERS],
)
def test_readers_see_the_same_rows(
    tables: Callable[[str, str], WrittenTable],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
    sink: str,
    place: str,
) -> None:
    if why := NO_READER.get((reader, sink)):
        pytest.skip(why)
    table = tables(sink, place)
    if reader == "spark":
        found = read_by_spark(table, request.getfixturevalue("spark"))
    elif reader == "duckdb":
        found = read_by_duckdb(table, tmp_path)
    else:
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
        found = {"polars": read_by_polars, "pyarrow": read_by_pyarrow}[reader](table)
    assert ordered(found) == ROWS, json.dumps(found, default=str)
