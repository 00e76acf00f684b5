"""One place under two names: the place knows its name, and refuses the other before the first record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from kohort.errors import InvalidInputError
from kohort.region.sinks import Sink, stored_name_and_sequence
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.sinks.ducklake_table import DuckLakeTable
from kohort.region.sinks.iceberg_table import IcebergTable
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey
from tests.region.places import SCHEMA, table
from tests.region.postgres import Server

REGION, OTHER = UUID(int=0xA11CE), UUID(int=0xB0B)
KEY = StagedKey(REGION, 1, "worker-1", 1)


def bound(sink: Sink, region_id: UUID = REGION) -> Sink:
    return sink.bind("flights", region_id)


def publish_one(sink: Sink) -> None:
    sink.check(SCHEMA)
    sink.stage(KEY, table([(1, "a")]))
    sink.publish(1, [KEY])


def refuses_other_name(known: Sink, other: Sink) -> None:
    """The second name is refused at admission, and by `check`, which its first record calls."""
    publish_one(known)
    assert known.place != other.place
    for call in (other.published, lambda: other.check(SCHEMA)):
        with pytest.raises(InvalidInputError) as refused:
            call()
        assert known.place in refused.value.message and other.place in refused.value.message
        assert "kohort region adopt flights" in refused.value.message


MOVED: dict[str, Callable[[Path], Sink]] = {
    "parquet": lambda folder: ParquetFolder(folder / "out"),
    "delta": lambda folder: DeltaTable(folder / "out"),
    "sqlite": lambda folder: SqlTable(f"sqlite:///{folder}/out.db", "flights"),
}


@pytest.mark.parametrize("kind", MOVED)
def test_place_under_another_path_is_refused_until_it_is_adopted(kind: str, tmp_path: Path) -> None:
    """A bind mount is such a path, which says nothing of it; a place that has moved takes the new name."""
    here = tmp_path / "here"
    here.mkdir()
    known = bound(MOVED[kind](here))
    publish_one(known)
    shutil.move(here, tmp_path / "there")
    moved = bound(MOVED[kind](tmp_path / "there"))
    with pytest.raises(InvalidInputError, match="knows as"):
        moved.published()
    with pytest.raises(InvalidInputError, match="knows as"):
        moved.check(SCHEMA)
    assert moved.adopt() == known.place
    assert moved.published() == 1 and moved.adopt() == moved.place
    moved.check(SCHEMA)
    shutil.move(tmp_path / "there", here)
    with pytest.raises(InvalidInputError, match="knows as"):
        bound(MOVED[kind](here)).published()


@pytest.mark.parametrize("kind", MOVED)
def test_place_of_nobody_has_no_name_and_a_strangers_can_not_be_adopted(kind: str, tmp_path: Path) -> None:
    sink = bound(MOVED[kind](tmp_path))
    assert sink.adopt() == ""
    publish_one(sink)
    stranger = bound(MOVED[kind](tmp_path), OTHER)
    if kind == "delta":  # it is a table of many
        assert stranger.adopt() == ""
        return
    with pytest.raises(InvalidInputError, match="belongs to another region"):
        stranger.adopt()


def test_iceberg_table_by_its_folder_and_by_its_catalog(tmp_path: Path) -> None:
    known = bound(IcebergTable("air.flights", warehouse=tmp_path))
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    other = bound(IcebergTable("air.flights", catalog=catalog))
    assert known.adopt() == ""
    refuses_other_name(known, other)
    assert bound(IcebergTable("air.flights", catalog=catalog), OTHER).adopt() == ""
    assert stored_name_and_sequence(other) == (known.place, 1)
    assert other.adopt() == known.place and other.published() == 1 and other.adopt() == other.place
    with pytest.raises(InvalidInputError, match="knows as"):
        bound(IcebergTable("air.flights", warehouse=tmp_path)).published()


def test_ducklake_table_of_a_lake_that_has_moved(tmp_path: Path) -> None:
    known = bound(DuckLakeTable("air.flights", lake=tmp_path / "old"))
    assert known.adopt() == ""
    publish_one(known)
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "old").symlink_to(tmp_path / "new")  # the catalog has the old paths
    other = bound(DuckLakeTable("air.flights", lake=tmp_path / "new"))
    with pytest.raises(InvalidInputError, match="knows as"):
        other.published()
    assert bound(DuckLakeTable("air.flights", lake=tmp_path / "new"), OTHER).adopt() == ""
    assert stored_name_and_sequence(other) == (known.place, 1)
    assert other.adopt() == known.place and other.published() == 1 and other.adopt() == other.place


def test_names_that_sqlite_does_not_distinguish_are_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    names = [("real", "rows"), ("real", "Rows"), ("linked", "ROWS"), ("real", "main.rows")]
    assert {SqlTable(f"sqlite:///{tmp_path}/{folder}/out.db", name).place for folder, name in names} == {
        f"sql:sqlite:///{tmp_path}/real/out.db#rows"
    }
    other = [SqlTable(f"sqlite:///{tmp_path}/out.db", name).place for name in ("Ä", "ä")]
    assert other[0] != other[1], "SQLite has two tables there"


def test_postgres_urls_of_one_database_are_one_place() -> None:
    urls = (
        "postgresql://kohort@DB.example/flights",
        "postgresql://kohort:secret@db.example:5432/flights?application_name=worker-1",
        "postgres://other@db.example/flights?sslmode=require&connect_timeout=3",
        "postgresql:///flights?host=db.example&port=5432",
    )
    assert {SqlTable(url, "s.Rows").place for url in urls} == {"sql:postgresql://db.example:5432/flights#s.Rows"}
    pair = ("postgresql://a:1,b:2/x", "postgresql://b:2,a:1/x")
    assert len({SqlTable(url, "t").place for url in pair}) == 1
    apart = (
        *("postgresql://db/x", "postgresql://db/y", "postgresql://db:5433/x", "postgresql://other/x"),
        "postgresql://db/x?options=-csearch_path%3Ds",
    )
    assert len({SqlTable(url, "t").place for url in apart}) == len(apart)
    with pytest.raises(InvalidInputError, match="can't read the URL"):
        _ = SqlTable("postgresql://db/x?nonsense=1", "t").place


def test_postgres_table_by_its_schema_and_by_the_search_path(postgres: Server) -> None:
    """The marker lies beside the table, whichever schema a connection would make its tables in."""
    url = postgres.fresh()
    schema = url.rpartition("%3D")[2]
    known, other = bound(SqlTable(url, "flights")), bound(SqlTable(postgres.url, f"{schema}.flights"))
    refuses_other_name(known, other)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}_first")  # type: ignore[arg-type]
    behind = bound(SqlTable(f"{postgres.url}&options=-csearch_path%3D{schema}_first,{schema}", "flights"))
    with pytest.raises(InvalidInputError, match="knows as"):
        behind.published()


def test_postgres_by_another_name_of_the_host(postgres: Server, tmp_path: Path) -> None:
    """A socket's folder by a link is another name that only the database can see through."""
    url = postgres.fresh()
    folder = postgres.url.partition("host=")[2]
    (tmp_path / "linked").symlink_to(folder)
    known, other = bound(SqlTable(url, "rows")), bound(SqlTable(url.replace(folder, f"{tmp_path}/linked"), "rows"))
    refuses_other_name(known, other)
    assert other.adopt() == known.place and other.published() == 1
