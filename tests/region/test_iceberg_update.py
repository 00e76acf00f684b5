"""An Iceberg table with `mode="update"`: files that are written anew, and the snapshots that take them in and out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import LessThan
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.region import IcebergTable, Keep
from kohort.region.sinks import iceberg_table
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.iceberg_update import RowKeyIndex
from kohort.region.staged import StagedKey

REGION, OTHER = UUID(int=1), UUID(int=2)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())])
UPDATE: dict[str, Any] = {"mode": "update", "keys": ["id"]}
Row = tuple[int, str]


def key(unit: int, region: UUID = REGION) -> StagedKey:
    return StagedKey(region, 1, "größe/1", unit)


def table(*rows: Row) -> pa.Table:
    ids = [row[0] for row in rows]
    columns = [pa.array(ids), pa.array(ids, pa.int32()).cast(pa.date32()),
               pa.array([number * 3_600_000_000 for number in ids]).cast(SCHEMA.field("at").type),
               pa.array([row[1] for row in rows], pa.string())]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def made(path: Path, region: UUID = REGION, **options: Any) -> IcebergTable:
    name = "flights" if region == REGION else "trains"
    sink = IcebergTable("air.flights", warehouse=path, **(UPDATE | options)).bind(name, region)
    sink.check(SCHEMA)
    return sink


def opened(path: Path) -> Table:
    """The table as anybody opens it."""
    uri, warehouse = f"sqlite:///{path}/catalog.db", f"file://{path}"
    return load_catalog("default", type="sql", uri=uri, warehouse=warehouse).load_table("air.flights")


def read(lake: Table, **scan: Any) -> list[Row]:
    return sorted((row["id"], row["name"]) for row in lake.scan(**scan).to_arrow().to_pylist())


def publish(sink: IcebergTable, sequence: int, *rows: Row) -> None:
    sink.stage(key(sequence), table(*rows))
    sink.publish(sequence, [key(sequence)])


def data_files(path: Path) -> list[str]:
    return sorted(os.listdir(path / "air" / "flights" / "data"))


def used_files(lake: Table) -> list[str]:
    """Return the data files of all snapshots."""
    manifests = [manifest for snapshot in lake.snapshots() for manifest in snapshot.manifests(lake.io)]
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(lake.io)]
    return sorted({entry.data_file.file_path.rpartition("/")[2] for entry in entries})


def test_update_replaces_rows_of_whoever_wrote_them(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = load_catalog("default", type="sql", uri=uri, warehouse=f"file://{tmp_path}")
    catalog.create_namespace("air")
    catalog.create_table("air.flights", SCHEMA).append(table((1, "before"), (9, "before")))
    sink = made(tmp_path)
    sink.stage(key(1), table((1, "first"), (2, "first")))
    sink.stage(key(2), table((2, "second")))
    sink.publish(1, [key(2), key(1)])
    assert read(opened(tmp_path)) == [(1, "first"), (2, "second"), (9, "before")]
    with pytest.raises(InvalidInputError, match="others' rows before its own"):
        sink.empty(2, 9)
    opened(tmp_path).delete()
    sink.empty(2, 9)
    assert sink.published() == 2


def test_a_sequence_is_one_snapshot_that_removes_and_adds(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"), (3, "a"))
    publish(sink, 2, (2, "b"), (4, "b"))
    lake = opened(tmp_path)
    first, second = [
        snapshot for snapshot in lake.snapshots()
        if snapshot.summary and "kohort.sequence" in snapshot.summary.additional_properties
    ]  # fmt: skip
    assert read(lake, snapshot_id=first.snapshot_id) == [(1, "a"), (2, "a"), (3, "a")]
    assert read(lake, snapshot_id=second.snapshot_id) == [(1, "a"), (2, "b"), (3, "a"), (4, "b")]
    assert second.summary is not None and second.summary["kohort.sequence"] == "2"
    assert second.parent_snapshot_id == first.snapshot_id and second.summary["total-records"] == "4"
    assert lake.properties[f"kohort.{REGION.hex}.sequence"] == "2"


def test_files_without_a_replaced_row_are_left_alone(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    publish(sink, 2, (100, "b"), (101, "b"))
    before = {file["file_path"] for file in opened(tmp_path).inspect.files().to_pylist()}
    publish(sink, 3, (101, "c"))
    now = {file["file_path"] for file in opened(tmp_path).inspect.files().to_pylist()}
    assert len(before & now) == 1 and len(now) == 3
    assert read(opened(tmp_path)) == [(1, "a"), (2, "a"), (100, "b"), (101, "c")]


@pytest.mark.parametrize("keys", [["id"], ["id", "day", "at"]], ids=["elsewhere", "in-the-keys"])
@pytest.mark.parametrize(
    "by",
    [
        ["id"],
        ["bucket(4, id)"],
        ["truncate(10, id)"],
        ["day"],
        ["month(day)"],
        ["day(at)"],
        ["hour(at)", "bucket(2, id)"],
    ],
    ids="-".join,
)
def test_rows_are_found_in_whichever_partition(tmp_path: Path, by: list[str], keys: list[str]) -> None:
    sink = made(tmp_path, partition_by=by, keys=keys)
    publish(sink, 1, *[(number, "a") for number in (-3, 0, 1, 2, 11, 12, 400)])
    publish(sink, 2, (1, "b"), (12, "b"), (13, "b"), (-3, "b"))
    wanted = [(-3, "b"), (0, "a"), (1, "b"), (2, "a"), (11, "a"), (12, "b"), (13, "b"), (400, "a")]
    assert read(opened(tmp_path)) == wanted
    assert read(opened(tmp_path), row_filter="id = 12") == [(12, "b")]


def test_partitions_that_change_meanwhile(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["bucket(2, id)"])
    publish(sink, 1, (1, "a"), (2, "a"), (3, "a"))
    sink.stage(key(2), table((2, "b"), (4, "b")))
    with opened(tmp_path).update_spec() as update:
        update.remove_field("id_bucket")
        update.add_identity("name")
    sink.publish(2, [key(2)])
    publish(made(tmp_path), 3, (1, "c"))
    assert read(opened(tmp_path)) == [(1, "c"), (2, "b"), (3, "a"), (4, "b")]


def test_what_is_staged_is_no_file_of_the_table(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    sink.stage(key(2), table((2, "b")))
    assert len(data_files(tmp_path)) == 2
    sink.publish(2, [key(2)])
    assert data_files(tmp_path) == used_files(opened(tmp_path))
    assert not list(tmp_path.glob("air/flights/_kohort/*/*/staged/*"))
    assert not list(tmp_path.glob("air/flights/_kohort/*/*/merges/*"))


@pytest.mark.parametrize("happened", [True, False], ids=["done", "not-done"])
def test_files_of_an_attempt_stay_until_the_sequence_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The answer is lost: the files may be the table's, or become it. A sweep leaves them until that is known."""
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    sink.stage(key(2), table((2, "b")))
    whole = SqlCatalog.commit_table
    late: list[Any] = []

    def cut_off(self: SqlCatalog, *given: Any) -> None:
        late.append(given)
        if happened:
            whole(self, *given)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", cut_off)
        with pytest.raises(OSError, match="the answer is lost"):
            sink.publish(2, [key(2)])
    before = data_files(tmp_path)
    sink.sweep(Keep(9, (key(2),)))
    assert happened or data_files(tmp_path) == before
    if not happened:
        whole(sink._catalog(), *late[0])
    assert read(opened(tmp_path)) == [(1, "a"), (2, "b")]
    made(tmp_path).publish(2, [key(2)])
    made(tmp_path).sweep(Keep(9))
    assert read(opened(tmp_path)) == [(1, "a"), (2, "b")] and data_files(tmp_path) == used_files(opened(tmp_path))


def test_names_of_an_attempt_that_a_kill_has_cut_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class DeadError(BaseException):
        pass

    sink = made(tmp_path)
    sink.stage(key(1), table((1, "a")))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *given, **more: (_ for _ in ()).throw(DeadError))
        patch.setattr(os, "unlink", lambda *given, **more: (_ for _ in ()).throw(DeadError))
        with pytest.raises(DeadError):
            sink.publish(1, [key(1)])
    left = tmp_path.glob("air/flights/_kohort/*/*/merges/*")
    assert [path.suffix for path in left] == [".part"]
    sink.sweep(Keep(0))
    sink.publish(1, [key(1)])
    sink.sweep(Keep(0))
    assert not list(tmp_path.glob("air/flights/_kohort/*/*/merges/*")) and read(opened(tmp_path)) == [(1, "a")]


def test_a_foreign_row_of_the_same_key_between_read_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge is done again on the newest table; nothing is left of the refused one."""
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    sink.stage(key(2), table((2, "b"), (3, "b")))
    whole, tried = SqlCatalog.commit_table, []

    def first_a_stranger(self: SqlCatalog, *given: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            opened(tmp_path).append(table((3, "foreign"), (4, "foreign")))
        return whole(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", first_a_stranger)
        sink.publish(2, [key(2)])
    assert read(opened(tmp_path)) == [(1, "a"), (2, "b"), (3, "b"), (4, "foreign")]
    assert len(tried) == 3 and data_files(tmp_path) == used_files(opened(tmp_path))


def test_a_file_that_others_compact_away_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    sink.stage(key(2), table((2, "b")))
    whole, tried = iceberg_table.find_replaced_files, []

    def compacted(lake: Table, *given: Any) -> Any:
        if not tried:
            tried.append(1)
            stranger = opened(tmp_path)
            stranger.overwrite(stranger.scan().to_arrow())
            for name in data_files(tmp_path):
                if any(name in file.file_path for file in iceberg_table.current_data_files(lake)):
                    os.unlink(tmp_path / "air/flights/data" / name)
        return whole(lake, *given)

    monkeypatch.setattr(iceberg_table, "find_replaced_files", compacted)
    sink.publish(2, [key(2)])
    assert read(opened(tmp_path)) == [(1, "a"), (2, "b")]


def test_a_file_that_the_table_has_lost_is_an_error(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"))
    os.unlink(tmp_path / "air/flights/data" / data_files(tmp_path)[0])
    sink.stage(key(2), table((1, "b")))
    with pytest.raises(FileNotFoundError):
        sink.publish(2, [key(2)])
    assert sink.published() == 1


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


class _Deletion(_FastAppendFiles):
    """A snapshot with one delete file, as Flink writes it."""

    file: DataFile

    def _manifests(self) -> list[ManifestFile]:
        state = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeleteManifest(state.spec(), state.schema(), output, self._snapshot_id, self._compression) as writer:
            writer.add(ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, sequence_number=None,
                file_sequence_number=None, data_file=self.file,
            ))  # fmt: skip
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_by_value(lake: Table, number: int) -> None:
    """Add an equality delete of one id."""
    path, bound = f"{lake.location()}/data/deletes.parquet", to_bytes(LongType(), number)
    buffer = pa.BufferOutputStream()
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([pa.array([number])], schema=pa.schema([field])), buffer)
    data = buffer.getvalue().to_pybytes()
    with lake.io.new_output(path).create() as output:
        output.write(data)
    transaction = lake.transaction()
    deletion = _Deletion(Operation.APPEND, transaction, lake.io)
    deletion.file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=path, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=1, file_size_in_bytes=len(data), column_sizes={}, value_counts={1: 1}, null_value_counts={1: 0},
        nan_value_counts={}, lower_bounds={1: bound}, upper_bounds={1: bound}, split_offsets=None, sort_order_id=None,
        spec_id=0, equality_ids=[1], key_metadata=None,
    )  # fmt: skip
    with deletion:
        pass
    transaction.commit_transaction()


@pytest.mark.parametrize("deleted", [1, 100], ids=["of-the-same-key", "of-another-key"])
def test_a_row_that_others_have_deleted_by_its_value_does_not_return(tmp_path: Path, deleted: int) -> None:
    """A file that is written anew is younger than the deletion of its other rows."""
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (100, "a"))
    delete_by_value(opened(tmp_path), deleted)
    before = opened(tmp_path).current_snapshot()
    with pytest.raises(InvalidInputError, match="equality deletes"):
        publish(sink, 2, (1, "b"))
    assert opened(tmp_path).current_snapshot() == before and sink.published() == 1


def test_rows_that_others_have_deleted_are_added_again(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    opened(tmp_path).delete(LessThan("id", 2))
    publish(sink, 2, (1, "b"))
    assert read(opened(tmp_path)) == [(1, "b"), (2, "a")]


def test_new_columns_are_added_once(tmp_path: Path) -> None:
    sink = made(tmp_path, evolve="add")
    publish(sink, 1, (1, "a"), (2, "a"))
    sink.stage(key(2), table((2, "b")))
    more = table((3, "c"), (1, "c")).append_column("crew", pa.array([5, 6], pa.int32()))
    sink.check(more.schema)
    sink.stage(key(3), more)
    sink.publish(2, [key(2), key(3)])
    found = {row["id"]: (row["name"], row["crew"]) for row in opened(tmp_path).scan().to_arrow().to_pylist()}
    assert found == {1: ("c", 6), 2: ("b", None), 3: ("c", 5)}


def test_a_column_that_others_drop_stops_it_with_a_name(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table((1, "a")))
    with opened(tmp_path).update_schema() as update:
        update.rename_column("name", "who")
    with pytest.raises(InvalidInputError, match="lacks the column 'name'"):
        sink.publish(1, [key(1)])
    with opened(tmp_path).update_schema() as update:
        update.rename_column("who", "name")
    sink.publish(1, [key(1)])
    assert read(opened(tmp_path)) == [(1, "a")]


def test_all_members_say_the_same(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(InvalidInputError, match=r"with keys=\['id'\], not \['name'\]: all members say the same"):
        made(tmp_path, keys=["name"])
    with pytest.raises(InvalidInputError, match=r"with keys=\['id'\], not \[\]"):
        made(tmp_path, mode="append", keys=[])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "complete"}, "take 'update' with keys"),
        ({"mode": "upsert"}, "choose one of append, update"),
        ({"mode": "update", "keys": []}, "needs keys"),
        ({"mode": "append", "keys": ["id"]}, "are for mode='update'"),
        ({"keys": "id"}, r"keys=\['id'\]"),
        ({"keys": ["nothing"]}, "keys.* names nothing, and the rows have only id"),
    ],
)
def test_options_that_can_t_be(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        made(tmp_path / "lake", **options)
    assert not (tmp_path / "lake").exists()


def test_emptied_with_all_its_rows_unless_another_region_writes_there(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"), (2, "a"))
    publish(sink, 2, (1, "b"))
    by_name = sink_of(sink.place).bind("flights", REGION)
    by_name.empty(3, 2)
    assert read(opened(tmp_path)) == [] and sink.published() == 3
    publish(sink, 4, (1, "c"))
    made(tmp_path, region=OTHER)
    with pytest.raises(InvalidInputError, match="other regions write there"):
        sink.empty(5, 3)


def test_a_staged_file_that_is_gone_is_lost_output(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table((1, "a")))
    os.unlink(tmp_path / "air/flights/data" / data_files(tmp_path)[0])
    with pytest.raises(CorruptDataError, match="Sequence 1 can't be published"):
        sink.publish(1, [key(1)])


def test_when_others_always_come_first_it_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    publish(sink, 1, (1, "a"))
    sink.stage(key(2), table((1, "b")))
    monkeypatch.setattr(iceberg_table, "COMMITS_MAX", 3)
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_table.IcebergLog, "commit", lambda self, *args: False)
        with pytest.raises(RetriableError, match="3 commits were too late"):
            sink.publish(2, [key(2)])
    sink.publish(2, [key(2)])
    sink.sweep(Keep(1))
    assert read(opened(tmp_path)) == [(1, "b")] and data_files(tmp_path) == used_files(opened(tmp_path))


def test_a_long_life_has_few_manifests(tmp_path: Path) -> None:
    """Each sequence replaces a row, and adds one."""
    sink = made(tmp_path)
    with opened(tmp_path).transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "10"})
    for sequence in range(1, 41):
        publish(sink, sequence, (0, f"at {sequence}"), (sequence, "new"))
    lake = opened(tmp_path)
    assert read(lake) == [(0, "at 40"), *[(number, "new") for number in range(1, 41)]]
    summaries = [snapshot.summary for snapshot in lake.snapshots()]
    said = Counter(
        summary["kohort.sequence"]
        for summary in summaries
        if summary and "kohort.sequence" in summary.additional_properties
    )
    assert set(said.values()) == {1} and len(said) == 40
    snapshot = lake.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(lake.io)) <= 12


def test_duckdb_sees_the_same_rows(tmp_path: Path) -> None:
    """A reader that nobody here wrote, at each sequence."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    sink = made(tmp_path, partition_by=["day(at)", "bucket(2, id)"])
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        wanted: dict[int, str] = {}
        for sequence in range(1, 6):
            given = [(number, f"at {sequence}") for number in range(sequence, sequence + 30, 1 + sequence % 3)]
            publish(sink, sequence, *given)
            wanted.update(given)
            scan = f"iceberg_scan('{opened(tmp_path).metadata_location}')"
            found = connection.execute(f"SELECT id, name FROM {scan} ORDER BY id").fetchall()
            assert found == sorted(wanted.items())


@pytest.mark.parametrize(
    "kind",
    [pa.int32(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(14, 2), pa.bool_(),
     pa.time64("us"), pa.binary(16)],
    ids=str,
)  # fmt: skip
def test_keys_of_all_types(tmp_path: Path, kind: pa.DataType) -> None:
    texts = pa.array(["a", "b"] if kind in (pa.string(), pa.binary()) else [b"a" * 16, b"b" * 16])
    numbers = pa.array([0, 1], pa.int64() if kind in (pa.timestamp("us", "UTC"), pa.time64("us")) else pa.int32())
    values = (texts if kind in (pa.string(), pa.binary()) or kind == pa.binary(16) else numbers).cast(kind)
    schema = pa.schema([("k", kind), ("n", pa.int32())])
    sink = IcebergTable("air.odd", warehouse=tmp_path, mode="update", keys=["k"]).bind("flights", REGION)
    sink.check(schema)
    for sequence, rows in ((1, values), (2, values.slice(1))):
        sink.stage(key(sequence), pa.table([rows, pa.array([sequence] * len(rows), pa.int32())], schema=schema))
        sink.publish(sequence, [key(sequence)])
    found = sink._load_table().scan().to_arrow()
    assert sorted(zip(map(str, found.column("k").to_pylist()), found.column("n").to_pylist(), strict=True)) == sorted(
        zip(map(str, values.to_pylist()), [1, 2], strict=True)
    )


def test_an_index_finds_rows_by_many_keys() -> None:
    columns = {"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"], "c": [True, True, False, True]}
    index = RowKeyIndex(pa.table(columns), ["a", "b", "c"])
    there = {
        "a": [2, 1, 2, None, 3, 2],
        "b": ["y", "x", "x", "x", "x", None],
        "c": [True, True, True, True, True, True],
    }
    assert index.row_numbers_of(pa.table(there)).to_pylist() == [3, 0, None, None, None, None]
