from __future__ import annotations

import datetime
import json
import os
import pickle
import traceback
import tracemalloc
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import IcebergTable, Keep, Sink
from kohort.region.files import Output
from kohort.region.records import Position
from kohort.region.sinks import iceberg_table, publish_rows
from kohort.region.sinks.bound import offsets_as_json
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.iceberg_log import IcebergLog, iceberg_stored_schema
from kohort.region.staged import StagedKey
from tests.region.places import IcebergPlace
from tests.region.places import table as place_rows

REGION, OTHER = UUID(int=1), UUID(int=2)
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())])
TIMES = [datetime.datetime(2026, 11, day, 7, tzinfo=datetime.UTC) for day in (1, 2, 3)]


def key(unit: int, epoch: int = 1, region: UUID = REGION) -> StagedKey:
    return StagedKey(region, epoch, "größe/1", unit)


def table(*ids: int, name: str | None = "x") -> pa.Table:
    return pa.table(
        {"id": list(ids), "at": [TIMES[number % 3] for number in ids], "name": [name] * len(ids)}, schema=SCHEMA
    )


def made(path: Path, region: UUID = REGION, **options: Any) -> IcebergTable:
    sink = IcebergTable("air.flights", warehouse=path, **options).bind("flights", region)
    sink.check(SCHEMA)
    return sink


def opened(path: Path) -> Table:
    """The table as anybody opens it."""
    uri, warehouse = f"sqlite:///{path}/catalog.db", f"file://{path}"
    return load_catalog("default", type="sql", uri=uri, warehouse=warehouse).load_table("air.flights")


def ids(path: Path) -> list[int]:
    return sorted(opened(path).scan().to_arrow().column("id").to_pylist())


def publish(sink: Sink, sequence: int, *rows: int) -> None:
    sink.stage(key(sequence), table(*rows))
    sink.publish(sequence, [key(sequence)])


def _shown(error: BaseException) -> str:
    """Return an error as a log shows it."""
    return "".join(traceback.format_exception(error))


def test_a_table_is_a_sink_and_is_known_by_its_folder(tmp_path: Path) -> None:
    taken: Sink = IcebergTable("air.flights", warehouse=tmp_path / "lake").bind("flights", REGION)
    assert taken.place == f"iceberg:{tmp_path}/lake#air.flights" == sink_of(taken.place).place
    assert taken.published() == 0 and not (tmp_path / "lake").exists()
    taken.check(SCHEMA)
    assert sink_of(taken.place).bind("flights", REGION).published() == 0


def test_published_files_are_the_staged_ones(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1, 2))
    data = tmp_path / "air" / "flights" / "data"
    staged = [(file.name, file.stat().st_ino) for file in os.scandir(data)]
    assert len(staged) == 1 and ids(tmp_path) == []
    sink.publish(1, [key(1)])
    assert [(file.name, file.stat().st_ino) for file in os.scandir(data)] == staged
    assert ids(tmp_path) == [1, 2]


def test_a_data_file_does_not_wait_in_memory_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written as they are made. A whole file was in memory three times."""
    sink, write, held = made(tmp_path), Output.write, list[int]()
    count = 200_000
    rows = pa.table(
        {"id": range(count), "at": [TIMES[0]] * count, "name": [os.urandom(100).hex() for _ in range(count)]},
        schema=SCHEMA,
    )
    before = pa.total_allocated_bytes()

    def measured(output: Output, data: Any) -> int:
        held.append(pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
        return write(output, data)

    monkeypatch.setattr(Output, "write", measured)
    tracemalloc.start()
    try:
        sink.stage(key(1), rows)
    finally:
        tracemalloc.stop()
    (file,) = (tmp_path / "air" / "flights" / "data").iterdir()
    assert file.stat().st_size > 20_000_000 and max(held) < 15_000_000


def test_a_snapshot_says_which_sequence_it_is(tmp_path: Path) -> None:
    sink = made(tmp_path)
    publish(sink, 7, 1, 2)
    snapshot = opened(tmp_path).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert (said["kohort.region"], said["kohort.region-id"], said["kohort.sequence"]) == ("flights", str(REGION), "7")
    assert "kohort.offsets" not in said


def test_a_snapshot_says_where_its_sequence_ends(tmp_path: Path) -> None:
    sink = made(tmp_path)
    topic = UUID(int=7)
    ends = [Position(group, "flights", topic, part, 10 * part) for group in ("etl", "more") for part in (0, 1)]
    sink.stage(key(1), table(1))
    publish_rows(sink, 1, [key(1)], ends)
    snapshot = opened(tmp_path).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert json.loads(snapshot.summary.additional_properties["kohort.offsets"]) == {
        "etl": {"flights": {"0": 0, "1": 10}}, "more": {"flights": {"0": 0, "1": 10}},
    }  # fmt: skip
    assert offsets_as_json(Position("etl", "flights", topic, part, 10**12) for part in range(2000)) == ""


def test_the_sequence_survives_the_expiry_of_its_snapshot(tmp_path: Path) -> None:
    """The marks are gone too: only the table itself knows."""
    sink = made(tmp_path)
    for number in (1, 2):
        publish(sink, number, number)
    stranger = opened(tmp_path)
    stranger.append(table(9))
    stranger.maintenance.expire_snapshots().older_than(datetime.datetime.now(datetime.UTC)).commit()
    assert len(opened(tmp_path).snapshots()) == 1
    for mark in Path(tmp_path).glob("air/flights/_kohort/*/*/published-*"):
        mark.unlink()
    sink.publish(2, [key(1), key(2)])
    assert ids(tmp_path) == [1, 2, 9] and sink.published() == 2


def test_a_lost_answer_is_found_by_whoever_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    whole = SqlCatalog.commit_table

    def cut_off(self: SqlCatalog, *given: Any) -> None:
        whole(self, *given)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", cut_off)
        with pytest.raises(OSError, match="the answer is lost"):
            sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1]
    made(tmp_path).publish(1, [key(1)])
    assert ids(tmp_path) == [1] and sink.published() == 1


def test_a_commit_that_arrives_late_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was given up is still on its way when another has published: the catalog takes one of them."""
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    late: list[Any] = []

    def away(self: SqlCatalog, *given: Any) -> None:
        late.append(given)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", away)
        with pytest.raises(OSError, match="no answer"):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    with pytest.raises(Exception, match="branch main has changed|has changed"):
        sink._catalog().commit_table(*late[0])
    assert ids(tmp_path) == [1]


def test_a_foreign_writer_in_between_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused attempt leaves no manifest."""
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    whole, tried = SqlCatalog.commit_table, []

    def first_a_stranger(self: SqlCatalog, *given: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            opened(tmp_path).append(table(9))
        return whole(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", first_a_stranger)
        sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1, 9] and len(tried) == 3, "ours, the stranger's, ours again"
    lake = opened(tmp_path)
    used = {snapshot.manifest_list.rpartition("/")[2] for snapshot in lake.snapshots()}
    used |= {
        manifest.manifest_path.rpartition("/")[2] for shot in lake.snapshots() for manifest in shot.manifests(lake.io)
    }
    assert {name for name in os.listdir(tmp_path / "air/flights/metadata") if name.endswith(".avro")} == used


def test_when_others_always_come_first_it_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    monkeypatch.setattr(iceberg_table, "COMMITS_MAX", 3)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergLog, "commit", lambda self, *args: False)
        with pytest.raises(RetriableError, match="3 commits were too late"):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1]


def test_files_and_the_catalog_are_durable_before_a_sequence_is_marked(tmp_path: Path) -> None:
    """The library syncs nothing: a catalog would name files that a power loss takes."""
    from tests.region.places import REGION as PLACE_REGION
    from tests.region.places import SCHEMA as PLACE_SCHEMA
    from tests.region.places import Calls

    place, calls = IcebergPlace("iceberg"), Calls()
    place.at(tmp_path)
    sink, one = place.sink(calls), StagedKey(PLACE_REGION, 1, "a", 1)
    sink.check(PLACE_SCHEMA)
    sink.stage(StagedKey(PLACE_REGION, 1, "a", 0), place_rows([(0, "the folders are there")]))
    calls.trace.clear()
    sink.stage(one, place_rows([(1, "a")]))
    synced = [call for call in calls.trace if call.startswith("fsync")]
    kinds = [next((end for end in (".part", ".parquet") if call.endswith(end)), "folder") for call in synced]
    assert kinds == [".part", "folder", ".parquet", "folder", ".part", "folder"], "the intent, the rows, the word"
    calls.trace.clear()
    sink.publish(1, [one])
    trace = [call.replace(place.path, "").replace("/air/flights", "") for call in calls.trace]
    at = trace.index("commit")
    synced = [call for call in trace[:at] if call.startswith("fsync /metadata/") and call.endswith(".avro")]
    assert len(synced) == 2 and trace[:at].count("fsync /metadata") == 2, (
        "manifest and list, before the catalog names them"
    )
    marked = next(n for n, call in enumerate(trace) if call.startswith("open ") and call.endswith("published-1"))
    metadata = next(n for n, call in enumerate(trace) if call.startswith("fsync") and call.endswith(".metadata.json"))
    assert at < metadata < marked < next(n for n, call in enumerate(trace) if call.startswith("unlink"))


@pytest.mark.parametrize(
    ("by", "files"),
    [
        (["name"], 2),
        (["day(at)"], 3),
        (["months(at)"], 1),
        (["bucket(4, id)"], 3),
        (["truncate(10, id)", "hour(at)"], 3),
    ],
    ids=str,
)
def test_rows_are_divided_by_the_tables_partitions(tmp_path: Path, by: list[str], files: int) -> None:
    sink = made(tmp_path, partition_by=by)
    rows = pa.concat_tables([table(1, 4, name="a/b ö=%"), table(2, name=None), table(3, name=None)])
    sink.stage(key(1), rows)
    sink.publish(1, [key(1)])
    lake = opened(tmp_path)
    assert len(lake.inspect.files()) == files
    assert sorted(lake.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == sorted(
        rows.to_pylist(), key=lambda row: row["id"]
    )
    assert lake.scan(row_filter="id = 4").to_arrow().column("name").to_pylist() == ["a/b ö=%"]
    assert lake.scan(row_filter="at >= '2026-11-03T00:00:00+00:00'").to_arrow().column("id").to_pylist() == [2]
    sink.check(SCHEMA)
    with pytest.raises(InvalidInputError, match="is partitioned by .*, not by"):
        made(tmp_path, partition_by=["year(at)"])


def test_partitions_that_change_between_staging_and_publishing(tmp_path: Path) -> None:
    """The sequence is in its manifest by then: there is no way back, so its rows are written again."""
    sink = made(tmp_path)
    sink.stage(key(1), table(1, 2, 3))
    with opened(tmp_path).update_spec() as update:
        update.add_identity("name")
    sink.publish(1, [key(1)])
    assert ids(tmp_path) == [1, 2, 3]
    assert opened(tmp_path).inspect.files().column("partition").to_pylist() == [{"name": "x"}]
    assert len(os.listdir(tmp_path / "air/flights/data")) == 1 and sink.published() == 1


def test_rows_that_are_divided_anew_stay_in_their_snapshot_if_others_rewrite_the_table_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1, 2, 3))
    with opened(tmp_path).update_spec() as update:
        update.add_identity("name")
    mark = IcebergTable._mark

    def mark_and_rewrite(sink: IcebergTable, lake: Any, sequence: int) -> None:
        mark(sink, lake, sequence)
        there = opened(tmp_path)
        there.overwrite(there.scan().to_arrow())

    monkeypatch.setattr(IcebergTable, "_mark", mark_and_rewrite)
    sink.publish(1, [key(1)])
    snapshots = opened(tmp_path).snapshots()
    published = next(
        snapshot.snapshot_id
        for snapshot in snapshots
        if snapshot.summary is not None and snapshot.summary.additional_properties.get("kohort.sequence") == "1"
    )
    assert sorted(opened(tmp_path).scan(snapshot_id=published).to_arrow().column("id").to_pylist()) == [1, 2, 3]
    assert len(os.listdir(tmp_path / "air/flights/data")) == 2  # and the staged file, divided as before, is removed


def test_columns_that_others_add_or_rename_are_no_obstacle(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    with opened(tmp_path).update_schema() as update:
        update.add_column("more", LongType())
        update.rename_column("name", "who")
    sink.publish(1, [key(1)])
    assert opened(tmp_path).scan().to_arrow().column("who").to_pylist() == ["x"]
    with opened(tmp_path).update_schema() as update:
        update.rename_column("who", "name")
    publish(made(tmp_path), 2, 2)
    assert opened(tmp_path).scan().to_arrow().column("more").to_pylist() == [None, None]


def test_a_table_that_was_there_before(tmp_path: Path) -> None:
    """The table's columns count. Earlier rows stay, also when the region's rows are taken out."""
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("air")
    catalog.create_table("air.flights", SCHEMA).append(table(9))
    with pytest.raises(InvalidInputError, match="'name' is missing"):
        IcebergTable("air.flights", warehouse=tmp_path).bind("flights", REGION).check(SCHEMA.remove(2))
    sink = IcebergTable("air.flights", warehouse=tmp_path).bind("flights", REGION)
    sink.check(SCHEMA.set(2, pa.field("name", pa.null())))
    publish(sink, 1, 1)
    assert ids(tmp_path) == [1, 9]
    sink.empty(2, 9)
    assert ids(tmp_path) == [9] and sink.published() == 2


def test_compacted_files_can_not_be_distinguished(tmp_path: Path) -> None:
    sink = made(tmp_path)
    for number in (1, 2):
        publish(sink, number, number)
    lake = opened(tmp_path)
    lake.append(table(9))
    lake.overwrite(lake.scan().to_arrow())
    with pytest.raises(InvalidInputError, match="compaction.*Delete all rows of the table by hand"):
        sink.empty(3, 2)
    assert ids(tmp_path) == [1, 2, 9] and sink.published() == 2
    opened(tmp_path).delete()
    sink.empty(3, 2)
    sink.stage(key(3, epoch=2), table(5))
    sink.publish(4, [key(3, epoch=2)])
    sink.empty(5, 3)
    assert ids(tmp_path) == [] and sink.published() == 5


def test_a_sweep_takes_unfinished_files_and_none_that_the_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member dies between the file and the word that it is whole; another's word is left after its publication."""
    sink, data = made(tmp_path), tmp_path / "air" / "flights" / "data"
    sink.stage(key(1), table(1))
    word = next(Path(tmp_path).glob("air/flights/_kohort/*/*/staged/*.json"))
    kept = word.read_bytes()
    sink.publish(1, [key(1)])
    word.write_bytes(kept)

    class DeadError(BaseException):
        pass

    def dies(*given: Any) -> None:
        write(*given)
        monkeypatch.setattr("os.unlink", lambda *args, **more: (_ for _ in ()).throw(DeadError))
        raise DeadError

    write = iceberg_table.write_planned_file
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_table, "write_planned_file", dies)
        with pytest.raises(DeadError):
            sink.stage(key(2), table(2))
    monkeypatch.undo()
    assert len(os.listdir(data)) == 2
    sink.sweep(Keep(1))
    assert len(os.listdir(data)) == 2, "the epoch may still stage"
    sink.sweep(Keep(2))
    assert len(os.listdir(data)) == 1 and ids(tmp_path) == [1]
    assert os.listdir(word.parent) == []


def test_a_sweep_leaves_files_that_an_older_snapshot_has(tmp_path: Path) -> None:
    """A publisher ends between its commit and the removal of the piece; then the table is emptied."""
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    word = next(Path(tmp_path).glob("air/flights/_kohort/*/*/staged/*.json"))
    kept = word.read_bytes()
    sink.publish(1, [key(1)])
    word.write_bytes(kept)
    before = opened(tmp_path).current_snapshot()
    assert before is not None
    sink.empty(2, 2)
    assert ids(tmp_path) == [] and os.listdir(word.parent) == []
    assert opened(tmp_path).scan(snapshot_id=before.snapshot_id).to_arrow().column("id").to_pylist() == [1]


def test_a_table_that_is_made_anew_knows_nothing_of_the_former(tmp_path: Path) -> None:
    """The former marks would say that the sequence is there, and rows would be lost silently."""
    sink = made(tmp_path)
    publish(sink, 1, 1)
    sink._catalog().drop_table("air.flights")
    anew = made(tmp_path)
    assert anew.published() == 0
    publish(anew, 2, 5)
    assert ids(tmp_path) == [5]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("flights", {"warehouse": "/x"}, "needs a namespace"),
        ("air.flights", {}, "either warehouse=FOLDER or catalog="),
        ("air.flights", {"warehouse": "/x", "catalog": {}}, "either warehouse=FOLDER or catalog="),
        (
            "air.flights",
            {"warehouse": "s3://bucket/lake"},
            "which s3://bucket/lake can't hold: give catalog=.*'warehouse': ",
        ),
        ("air.flights", {"warehouse": "/a#b"}, "holds '#'"),
        ("air.flights", {"warehouse": "/x", "partition_by": "day"}, r"partition_by=\['day'\]"),
        ("air.flights", {"warehouse": "/x", "partition_by": ["week(at)"]}, "partition_by has 'week"),
        ("air.flights", {"warehouse": "/x", "partition_by": ["bucket(id)"]}, "partition_by has 'bucket"),
        ("air.flights", {"warehouse": "/x", "compression": "zip"}, "choose one of"),
    ],
)
def test_options_that_can_t_be(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        IcebergTable(name, **options)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (["nothing"], "partition_by names nothing"),
        (["day(name)"], "which day can't divide"),
        (["share"], "of type double, which identity can't divide"),
        (["bucket(4, clock)"], "of type time, which bucket"),
        (["day(at)", "hour(at)"], "partitioned twice by one column"),
    ],
)
def test_partitions_that_can_t_be(tmp_path: Path, by: list[str], said: str) -> None:
    schema = SCHEMA.append(pa.field("share", pa.float64())).append(pa.field("clock", pa.time64("us")))
    with pytest.raises(InvalidInputError, match=said):
        IcebergTable("air.flights", warehouse=tmp_path / "lake", partition_by=by).bind("flights", REGION).check(schema)
    assert not (tmp_path / "lake").exists()


def test_a_table_with_other_partitions_than_can_be_written_is_refused(tmp_path: Path) -> None:
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("air")
    lake = catalog.create_table("air.flights", SCHEMA, properties={"format-version": "1"})
    with lake.update_spec() as update:
        update.add_identity("id")
    with lake.update_spec() as update:
        update.remove_field("id")
    with pytest.raises(InvalidInputError, match="partitioned by void of 'id': not supported"):
        made(tmp_path)


ODD = [pa.uint8(), pa.uint32(), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.date64(),
       pa.time64("ns"), pa.decimal256(50, 3), pa.float16(), pa.duration("us")]  # fmt: skip


@pytest.mark.parametrize("kind", ODD, ids=str)
def test_types_that_it_does_not_keep(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="column 'x' of type .*cast"):
        iceberg_stored_schema(pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.int16(), pa.int32()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.time64("us"), pa.time64("us")),
        (pa.list_(pa.field("x", pa.large_binary(), nullable=False)), pa.list_(pa.field("element", pa.binary(), False))),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32())),
        (pa.binary(16), pa.binary(16)),
    ],
    ids=str,
)
def test_types_that_it_keeps_in_its_own_form(tmp_path: Path, given: pa.DataType, kept: pa.DataType) -> None:
    schema = pa.schema([("x", given)])
    assert iceberg_stored_schema(schema).field("x").type == kept
    sink = IcebergTable("air.odd", warehouse=tmp_path).bind("flights", REGION)
    sink.check(schema)
    sink.stage(key(1), pa.table({"x": pa.nulls(2, given)}, schema=schema))
    sink.publish(1, [key(1)])
    assert sink._load_table().scan().to_arrow().num_rows == 2
    sink.check(schema)


def test_a_catalog_by_its_properties_keeps_its_credentials_to_itself(tmp_path: Path) -> None:
    catalog = {
        "type": "rest", "uri": "https://Lake.example/api/", "token": "secret", "warehouse": "prod",
    }  # fmt: skip
    sink = IcebergTable("air.flights", catalog=catalog)
    assert sink.place == "iceberg:rest:https://lake.example/api[prod]#air.flights"
    assert "secret" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink))._properties == catalog
    with pytest.raises(InvalidInputError, match="Region.adopt"):
        sink_of(sink.place)
    away = {"type": "rest", "uri": "http://127.0.0.1:1/"}
    with pytest.raises(RetriableError, match=r"does not answer.*127\.0\.0\.1"):
        IcebergTable("air.flights", catalog=away).bind("flights", REGION).check(SCHEMA)
    with pytest.raises(InvalidInputError, match="can't open the catalog"):
        IcebergTable("air.flights", catalog={"type": "nothing"}).bind("flights", REGION).check(SCHEMA)
    for uri in ("https://user:hidden@lake.example/api", "https://lake.example/api?token=hidden"):
        with pytest.raises(InvalidInputError, match="holds credentials or a query: give them as") as refused:
            IcebergTable("air.flights", catalog={**catalog, "uri": uri})
        assert "hidden" not in str(refused.value)
    odd = {"uri": "oracle://user:hidden@lake.example/", "token": "my-token"}
    with pytest.raises(InvalidInputError, match="can't open the catalog") as refused:
        IcebergTable("air.flights", catalog=odd).bind("flights", REGION).check(SCHEMA)
    assert "hidden" not in _shown(refused.value) and "my-token" not in _shown(refused.value)


def test_files_that_can_not_be_listed_are_refused(tmp_path: Path) -> None:
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match="FsspecFileIO, which can't list.*PyArrowFileIO"):
        IcebergTable("air.flights", catalog=catalog).bind("flights", REGION).check(SCHEMA)


def test_a_local_catalog_by_its_properties_has_durable_files_too(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    sink = IcebergTable("air.flights", catalog=catalog).bind("flights", REGION)
    sink.check(SCHEMA)
    publish(sink, 1, 1)
    assert type(sink._load_table().io).__name__ == "DurableFileIO" and ids(tmp_path) == [1]


def test_a_catalog_that_can_t_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("x")
    with pytest.raises(InvalidInputError, match="is a file"):
        made(tmp_path / "notes.csv")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "catalog.db").write_bytes(b"no database, and long enough to be none" * 30)
    with pytest.raises(CorruptDataError, match="damaged"):
        made(tmp_path / "torn")
    sink = made(tmp_path / "lake")
    sink.stage(key(1), table(1))
    path = next(Path(tmp_path).glob("lake/air/flights/_kohort/*/*/staged/*.json"))
    path.write_bytes(b"{")
    with pytest.raises(CorruptDataError, match="can't be read"):
        sink.publish(1, [key(1)])
    sink._catalog().drop_table("air.flights")
    with pytest.raises(InvalidInputError, match="is no Iceberg table"):
        sink.publish(1, [key(1)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_warehouse_that_may_not_be_written(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    try:
        with pytest.raises(NotAuthorizedError):
            made(tmp_path / "lake")
    finally:
        os.chmod(tmp_path, 0o700)


def test_data_files_have_the_tables_field_ids(tmp_path: Path) -> None:
    """A file with foreign ids is taken, and reads as nulls."""
    sink = made(tmp_path)
    sink.stage(key(1), table(1))
    file = next((tmp_path / "air/flights/data").iterdir())
    given = pq.read_schema(file)
    ids_there = {field.name: int((field.metadata or {})[b"PARQUET:field_id"]) for field in given}
    assert ids_there == {field.name: field.field_id for field in opened(tmp_path).schema().fields}
    piece = json.loads(next(Path(tmp_path).glob("air/flights/_kohort/*/*/staged/*.json")).read_bytes())
    assert piece["files"][0]["record_count"] == 1


def test_duckdb_sees_the_same_rows(tmp_path: Path) -> None:
    """A reader that nobody here wrote, with its own reading of manifests, partitions and statistics."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    sink = made(tmp_path, partition_by=["day(at)", "bucket(2, id)"])
    rows = pa.concat_tables([table(1, 2, 3, name="ö"), table(4, name=None)])
    sink.stage(key(1), rows)
    sink.publish(1, [key(1)])
    publish(sink, 2, 5)
    sink.stage(key(3), table(666))
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        scan = f"iceberg_scan('{opened(tmp_path).metadata_location}')"
        assert connection.execute(f"SELECT id, name FROM {scan} ORDER BY id").fetchall() == [
            (1, "ö"), (2, "ö"), (3, "ö"), (4, None), (5, "x"),
        ]  # fmt: skip
        where = "\"at\" >= TIMESTAMPTZ '2026-11-03 00:00:00+00' AND id < 5"
        assert connection.execute(f"SELECT id FROM {scan} WHERE {where}").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("column", "by", "name"),
    [("größe", "größe", "gr_xF6_xDFe"), ("国", "bucket(2, 国)", "_x56FD_bucket"), ("my col", "my col", "my col")],
    ids=["umlaut", "han", "blank"],
)
def test_readers_take_partitions_by_columns_of_any_name(tmp_path: Path, column: str, by: str, name: str) -> None:
    """DuckDB refuses manifests in which a partition's name has letters beyond ASCII (iceberg-python #2123)."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    sink = IcebergTable("air.flights", warehouse=tmp_path, partition_by=[by]).bind("flights", REGION)
    rows = pa.table({column: ["ä", "b/c", None], "id": [1, 2, 3]})
    sink.check(rows.schema)
    sink.stage(key(1), rows)
    sink.publish(1, [key(1)])
    assert [field.name for field in opened(tmp_path).spec().fields] == [name]
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for extension in ("avro", "iceberg"):
            extensions.import_extension(extension, con=connection)
            connection.execute(f"LOAD {extension}")
        scan = f"iceberg_scan('{opened(tmp_path).metadata_location}')"
        found = connection.execute(f'SELECT "{column}", id FROM {scan} ORDER BY id').fetchall()
    assert found == [("ä", 1), ("b/c", 2), (None, 3)]


def test_partition_has_a_name_that_no_column_has(tmp_path: Path) -> None:
    by = ["day(at)", "bucket(2, id)"]
    sink = IcebergTable("air.flights", warehouse=tmp_path, partition_by=by).bind("flights", REGION)
    rows = pa.table({"at": pa.array([1], pa.timestamp("us", "UTC")), "at_day": ["x"], "id": [1], "id_bucket": [2]})
    sink.check(rows.schema)
    sink.stage(key(1), rows)
    sink.publish(1, [key(1)])
    assert [field.name for field in opened(tmp_path).spec().fields] == ["at_day_", "id_bucket_"]
    assert opened(tmp_path).scan().to_arrow().to_pylist() == rows.to_pylist()
    sink.check(rows.schema)


def test_column_named_like_a_field_of_another_is_refused(tmp_path: Path) -> None:
    sink = IcebergTable("air.flights", warehouse=tmp_path / "lake").bind("flights", REGION)
    with pytest.raises(InvalidInputError, match=r"multiple fields for name a\.b.*rename a column"):
        sink.check(pa.schema([("a.b", pa.string()), ("a", pa.struct([("b", pa.string())]))]))


@pytest.mark.parametrize(
    ("catalog", "why"),
    [
        ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "Hive catalog can lose sequences"),
        ({"uri": "thrift://127.0.0.1:1"}, "Hive catalog can lose sequences"),
        ({"type": "in-memory", "warehouse": "file:///tmp/none"}, "own in its memory"),
        ({"type": "sql", "uri": "sqlite:///:memory:", "warehouse": "file:///tmp/none"}, "own in its memory"),
    ],
    ids=["hive", "thrift", "in memory", "sqlite"],
)
def test_a_catalog_whose_commits_can_overwrite_others_is_refused(catalog: dict[str, str], why: str) -> None:
    sink = IcebergTable("air.flights", catalog=catalog).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match=why):
        sink.check(pa.schema([("id", pa.int64())]))
