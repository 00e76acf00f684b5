from __future__ import annotations

import datetime
import json
import os
import re
import string
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import make_folder, read_file
from kohort.region.sinks import Keep, Sink, delta_table
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.sinks.delta_rows import (
    COLUMNS_MAX,
    TEXT_MAX,
    delta_stored_schema,
    file_statistics_json,
    rows_by_partition,
)
from kohort.region.sinks.delta_table import DeltaTable
from kohort.region.staged import StagedKey
from tests.region.volume import Calls, LosesAll, Volume

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
DAYS = [datetime.date(2026, 11, day) for day in (1, 2, 3)]


def key(unit: int, epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, "größe/1", unit)


def table(*ids: int, name: str | None = "x") -> pa.Table:
    return pa.table(
        {"id": list(ids), "day": [DAYS[number % 3] for number in ids], "name": [name] * len(ids)}, schema=SCHEMA
    )


def made(path: Path, **options: Any) -> DeltaTable:
    sink = DeltaTable(path, **options).bind("flights", REGION)
    sink.check(SCHEMA)
    return sink


def read(path: str | Path) -> list[dict[str, Any]]:
    return sorted(deltalake.DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def test_it_is_a_sink(tmp_path: Path) -> None:
    taken: Sink = made(tmp_path / "t")
    assert taken.published() == 0
    assert DeltaTable(f"file://{tmp_path}/t").place == f"delta:{tmp_path}/t"


def test_published_files_are_the_staged_ones_under_a_second_name(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1, 2))
    staged = [file for file in os.scandir(sink._staging) if file.name.endswith(".parquet")]
    inode = staged[0].inode()
    assert read(sink.path) == []
    sink.publish(1, [key(1)])
    assert [file.inode() for file in os.scandir(sink.path) if file.name.endswith(".parquet")] == [inode]
    assert [row["id"] for row in read(sink.path)] == [1, 2]


def test_vacuum_leaves_what_is_staged(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1, 2))
    deltalake.DeltaTable(sink.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    sink.publish(1, [key(1)])
    deltalake.DeltaTable(sink.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [row["id"] for row in read(sink.path)] == [1, 2]
    sink.check(SCHEMA)
    assert sink.published() == 1


def test_vacuum_removes_no_file_that_was_staged_long_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VACUUM lists the table just before the commit, and removes its list after it."""
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1, 2))
    for file in os.scandir(sink._staging):
        os.utime(file, (0, 0))
    listed: list[str] = []
    commit = DeltaLog.commit

    def vacuum_before(self: DeltaLog, *given: Any) -> bool:
        listed.extend(deltalake.DeltaTable(sink.path).vacuum(full=True))
        return commit(self, *given)

    monkeypatch.setattr(DeltaLog, "commit", vacuum_before)
    sink.publish(1, [key(1)])
    for name in listed:
        os.unlink(f"{sink.path}/{name}")
    assert [row["id"] for row in read(sink.path)] == [1, 2]


def test_the_log_says_which_sequence_and_what_is_in_the_files(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", partition_by=["day"])
    sink.stage(key(1), table(1, 4, 2))
    sink.publish(7, [key(1)])
    log = deltalake.DeltaTable(sink.path)
    assert log.transaction_version(str(REGION)) == 7
    files = {entry["partition"]["day"]: entry for entry in pa.table(log.get_add_actions()).to_pylist()}
    assert set(files) == set(DAYS[1:])
    assert (files[DAYS[1]]["min"]["id"], files[DAYS[1]]["max"]["id"], files[DAYS[1]]["num_records"]) == (1, 4, 2)
    assert [row["day"] for row in read(sink.path)] == [DAYS[1], DAYS[2], DAYS[1]]
    pruned = log.to_pyarrow_table(filters=[("day", "=", DAYS[1]), ("id", "<", 4)])
    assert pruned.column("id").to_pylist() == [1]


def test_the_sequence_survives_a_checkpoint_of_the_log_and_its_cleaning(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    for number in (1, 2):
        sink.stage(key(number), table(number))
        sink.publish(number, [key(number)])
    log = deltalake.DeltaTable(sink.path)
    log.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    log = deltalake.DeltaTable(sink.path)
    log.create_checkpoint()
    log.cleanup_metadata()
    for name in os.listdir(sink._own):
        if name.startswith("published-"):
            os.unlink(f"{sink._own}/{name}")
    sink.publish(2, [key(1), key(2)])
    assert [row["id"] for row in read(sink.path)] == [1, 2] and sink.published() == 2


def test_a_table_that_was_there_before(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", table(9, name="before"), partition_by=["day"])
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert [row["id"] for row in read(sink.path)] == [1, 9]
    with pytest.raises(InvalidInputError, match=r"is parted by \['day'\], not by \['name'\]"):
        DeltaTable(sink.path, partition_by=["name"]).bind("flights", UUID(int=3)).check(SCHEMA)
    with pytest.raises(InvalidInputError, match="'name' is missing"):
        DeltaTable(sink.path).bind("flights", UUID(int=3)).check(SCHEMA.remove(2))


def test_update_replaces_rows_of_whoever_wrote_them(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", table(1, 9, name="before"))
    sink = made(tmp_path / "t", mode="update", keys=["id"])
    sink.stage(key(1), table(1, 2, name="first"))
    sink.stage(key(2), table(2, name="second"))
    sink.publish(1, [key(2), key(1)])
    assert [(row["id"], row["name"]) for row in read(sink.path)] == [(1, "first"), (2, "second"), (9, "before")]
    with pytest.raises(InvalidInputError, match="others' rows before its own"):
        sink.empty(2, 9)
    deltalake.DeltaTable(sink.path).delete()
    sink.empty(2, 9)
    assert sink.published() == 2


def test_names_of_columns_in_a_merge(tmp_path: Path) -> None:
    names = ["a.b", "a b", "a'b", 'a"b', "国", "a{b}", "a:b", "a?b", "a%b", "a\\b", "A[0]", "select"]
    rows = pa.table({**{name: ["x", "y", "x"] for name in names}, "v.w": [1, 2, 3]})
    sink = DeltaTable(tmp_path / "t", mode="update", keys=names).bind("flights", REGION)
    sink.check(rows.schema)
    for number in (1, 2):
        sink.stage(key(number), rows.slice(number - 1))
        sink.publish(number, [key(number)])
    found = deltalake.DeltaTable(sink.path).to_pyarrow_table()
    assert sorted(zip(found["a.b"].to_pylist(), found["v.w"].to_pylist(), strict=True)) == [("x", 3), ("y", 2)]
    other = DeltaTable(tmp_path / "u", mode="update", keys=["id"]).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="no merge takes: a`b: rename"):
        other.check(pa.schema([("id", pa.int64()), ("a`b", pa.int64())]))


def test_keys_of_two_columns_in_a_parted_table(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", mode="update", keys=["id", "day"], partition_by=["day"])
    for number, name in ((1, "old"), (2, "new")):
        sink.stage(key(number), table(1, 2, name=name).slice(number - 1))
        sink.publish(number, [key(number)])
    assert [(row["id"], row["name"]) for row in read(sink.path)] == [(1, "old"), (2, "new")]
    with pytest.raises(InvalidInputError, match="Null in columns that may not be: id"):
        sink.stage(
            key(3), pa.table({"id": pa.array([None], pa.int64()), "day": DAYS[:1], "name": ["x"]}, schema=SCHEMA)
        )


def test_of_rows_of_one_key_in_a_piece_the_last_counts_in_whatever_partition(tmp_path: Path) -> None:
    """A piece has a file for each partition, and the files do not have the order of the rows."""
    sink = made(tmp_path / "t", mode="update", keys=["id"], partition_by=["day"])
    rows = [(2, DAYS[0], "b"), (1, DAYS[1], "old"), (1, DAYS[0], "new")]
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(SCHEMA)]
    sink.stage(key(1), pa.Table.from_arrays(columns, schema=SCHEMA))
    sink.publish(1, [key(1)])
    assert [(row["id"], row["name"]) for row in read(sink.path)] == [(1, "new"), (2, "b")]


def test_emptied_by_name_and_not_where_files_were_written_anew(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    for number in (1, 2):
        sink.stage(key(number), table(number))
        sink.publish(number, [key(number)])
    deltalake.write_deltalake(sink.path, table(9), mode="append")
    deltalake.DeltaTable(sink.path).optimize.compact()
    with pytest.raises(InvalidInputError, match="OPTIMIZE.*Delete all rows of the table by hand"):
        sink.empty(3, 2)
    assert [row["id"] for row in read(sink.path)] == [1, 2, 9] and sink.published() == 2
    deltalake.DeltaTable(sink.path).delete()
    sink.empty(3, 2)
    sink.stage(key(3, epoch=2), table(5))
    sink.publish(4, [key(3, epoch=2)])
    sink.empty(5, 3)
    assert read(sink.path) == [] and sink.published() == 5


def test_emptied_table_has_no_row_of_a_partition_whose_folder_is_escaped(tmp_path: Path) -> None:
    """The paths of such folders have escapes in the log, and the library encodes the path of a removal once more."""
    sink = made(tmp_path / "t", mode="update", keys=["id"], partition_by=["name"])
    names = ["a b", "größe/1", "50%", "x=y", "plain", None]
    for sequence in (1, 2):  # the files of the second are the Delta library's own
        sink.stage(key(sequence), pa.concat_tables(table(number, name=name) for number, name in enumerate(names)))
        sink.publish(sequence, [key(sequence)])
    assert [row["name"] for row in read(sink.path)] == names
    sink.empty(3, 2)
    assert read(sink.path) == []


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.binary(), pa.float64()], ids=str
)
def test_table_that_others_have_partitioned_by_another_type_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """A value such as 2026-01-01T00:00:00 of a time without a zone makes the table unreadable."""
    schema = pa.schema([("id", pa.int64()), ("g", kind)])
    deltalake.DeltaTable.create(str(tmp_path / "t"), deltalake.Schema.from_arrow(schema), partition_by=["g"])
    with pytest.raises(InvalidInputError, match="is partitioned by 'g' of type .* texts, integers, dates or booleans"):
        DeltaTable(tmp_path / "t").bind("flights", REGION).check(schema)


@pytest.mark.parametrize("options", [{}, {"mode": "update", "keys": ["id"]}], ids=["append", "update"])
def test_table_that_others_have_partitioned_by_a_boolean_is_written(tmp_path: Path, options: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("g", pa.bool_())])
    deltalake.DeltaTable.create(str(tmp_path / "t"), deltalake.Schema.from_arrow(schema), partition_by=["g"])
    sink = DeltaTable(tmp_path / "t", **options).bind("flights", REGION)
    sink.check(schema)
    rows = [{"id": 1, "g": True}, {"id": 2, "g": False}, {"id": 3, "g": None}]
    sink.stage(key(1), pa.Table.from_pylist(rows, schema=schema))
    sink.publish(1, [key(1)])
    assert read(sink.path) == rows
    log = Path(sink.path, "_delta_log", f"{1:020}.json").read_text()
    assert {'{"g":"true"}', '{"g":"false"}', '{"g":null}'} == set(re.findall(r'"partitionValues":({[^}]*})', log))


def _hide_row(path: str, row: int) -> None:
    """Delete a row of the newest file as Spark does: by a deletion vector in the log, beside the whole file."""
    log = Path(path, "_delta_log")
    actions = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    meta = [action["metaData"] for action in actions if "metaData" in action][-1]
    added = [action["add"] for action in actions if "add" in action][-1]
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, row)  # one container of one row
    data = struct.pack("<iqi", 1_681_511_377, 1, 0) + bitmap
    letters = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    numbers = [int.from_bytes(data[at : at + 4].ljust(4, b"\0"), "big") for at in range(0, len(data), 4)]
    text = "".join(letters[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 1}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly"]}
    changes = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": {**meta, "configuration": {"delta.enableDeletionVectors": "true"}}},
        {"remove": {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**added, "deletionVector": vector}},
    ]
    version = deltalake.DeltaTable(path).version() + 1
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, changes)))


def _ids_left(path: str) -> list[int]:
    """The ids that a reader of deletion vectors sees; the library's Arrow datasets are none."""
    found: Any = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("SELECT id FROM t")
    return sorted(pa.table(found.read_all()).column("id").to_pylist())


@pytest.mark.parametrize(
    "options", [{}, {"mode": "update", "keys": ["id"]}], ids=lambda options: options.get("mode", "append")
)
def test_table_of_which_others_hide_rows_is_not_emptied_in_part(tmp_path: Path, options: dict[str, Any]) -> None:
    sink = made(tmp_path / "t", **options)
    for sequence, ids in ((1, (1, 2, 3)), (2, (4,))):
        sink.stage(key(sequence), table(*ids))
        sink.publish(sequence, [key(sequence)])
        if sequence == 1:
            _hide_row(sink.path, 1)
    left = _ids_left(sink.path)
    assert left == [1, 3, 4]
    with pytest.raises(InvalidInputError, match="can't be told from others"):
        sink.empty(3, 2)
    assert _ids_left(sink.path) == left


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"},
            "maps its",
        ),
        ({"delta.setTransactionRetentionDuration": "interval 1 day"}, "forgets which sequences"),
    ],
)
def test_a_table_that_needs_more_is_refused(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    log = tmp_path / "t" / "_delta_log"
    deltalake.DeltaTable.create(tmp_path / "t", deltalake.Schema.from_arrow(SCHEMA))
    first = log / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] = settings
    first.write_text("\n".join(json.dumps(line) for line in lines))
    with pytest.raises(InvalidInputError, match=said):
        DeltaTable(tmp_path / "t").bind("flights", REGION).check(SCHEMA)


def test_a_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    log = deltalake.DeltaTable.create(tmp_path / "t", deltalake.Schema.from_arrow(SCHEMA))
    log.alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(InvalidInputError, match="has a constraint"):
        DeltaTable(tmp_path / "t").bind("flights", REGION).check(SCHEMA)


def test_append_only_tables_take_no_update(tmp_path: Path) -> None:
    settings = {"delta.appendOnly": "true"}
    deltalake.DeltaTable.create(tmp_path / "t", deltalake.Schema.from_arrow(SCHEMA), configuration=settings)
    with pytest.raises(InvalidInputError, match="new rows only"):
        made(tmp_path / "t", mode="update", keys=["id"])
    made(tmp_path / "t")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "complete"}, "take 'update' with keys"),
        ({"mode": "upsert"}, "choose one of append, update"),
        ({"mode": "update"}, "needs keys"),
        ({"keys": ["id"]}, "are for mode='update'"),
        ({"mode": "update", "keys": "id"}, r"keys=\['id'\]"),
        ({"mode": "update", "keys": ["id", "id"]}, "twice"),
        ({"partition_by": "day"}, r"partition_by=\['day'\]"),
        ({"compression": "zip"}, "choose one of"),
    ],
)
def test_options_that_can_t_be(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        DeltaTable(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "update", "keys": ["nothing"]}, "keys.* names nothing, and the rows have only id, day, name"),
        ({"partition_by": ["nothing"]}, "partition_by names nothing"),
        ({"partition_by": ["id", "day", "name"]}, "one must be left"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        made(tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


def test_places_that_can_t_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="object store"):
        DeltaTable("hdfs:/table")
    (tmp_path / "notes.csv").write_text("x")
    with pytest.raises(InvalidInputError, match=r"notes\.csv.*no Delta table"):
        made(tmp_path)
    with pytest.raises(InvalidInputError, match="is a file"):
        made(tmp_path / "notes.csv")
    with pytest.raises(InvalidInputError, match="bind"):
        DeltaTable(tmp_path / "t").check(SCHEMA)
    sink = made(tmp_path / "t", mode="update", keys=["id"])
    with pytest.raises(InvalidInputError, match=r"keys=\['id'\], not \['name'\]"):
        made(Path(sink.path), mode="update", keys=["name"])


ODD = [pa.uint8(), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.time64("us"),
       pa.decimal256(50, 3), pa.float16(), pa.duration("us")]  # fmt: skip


@pytest.mark.parametrize("kind", ODD, ids=str)
def test_types_that_it_does_not_keep(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="column 'x' of type .*cast"):
        DeltaTable(tmp_path / "t").bind("flights", REGION).check(pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.list_(pa.field("x", pa.large_binary(), nullable=False)), pa.list_(pa.field("element", pa.binary(), False))),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32())),
    ],
    ids=str,
)
def test_types_that_it_keeps_in_its_own_form(tmp_path: Path, given: pa.DataType, kept: pa.DataType) -> None:
    schema = pa.schema([("x", given)])
    assert delta_stored_schema(schema).field("x").type == kept
    sink = DeltaTable(tmp_path / "t").bind("flights", REGION)
    sink.check(schema)
    sink.stage(key(1), pa.table({"x": pa.nulls(2, given)}, schema=schema))
    sink.publish(1, [key(1)])
    assert deltalake.DeltaTable(sink.path).to_pyarrow_table().num_rows == 2
    sink.check(schema)


def test_statistics_are_bounds_of_every_value() -> None:
    rows = pa.table({
        "n": [3, None, -1], "long": ["a" * (TEXT_MAX + 1), "b" * 40, "c"], "real": [0.0, 1.5, -0.0],
        "at": pa.array([0, 1, None], pa.timestamp("us", "UTC")), "list": [[1], [], None], "yes": [True, None, False],
        "fare": pa.array([Decimal("-0.01"), Decimal("9999999999999999.99"), None], pa.decimal128(18, 2)),
        "none": pa.array([None] * 3, pa.int32()), "raw": [b"a", b"b", None],
    })  # fmt: skip
    said = json.loads(file_statistics_json(rows), parse_float=str)
    assert said["minValues"] == {
        "n": -1, "long": "a" * TEXT_MAX, "real": "-0.0", "at": "1970-01-01T00:00:00.000000Z", "yes": False,
        "fare": "-0.01",
    }  # fmt: skip
    assert said["maxValues"] == {
        "n": 3, "long": "c", "real": "1.5", "at": "1970-01-01T00:00:00.000001Z", "yes": True,
        "fare": "9999999999999999.99",
    }  # fmt: skip
    assert said["numRecords"] == 3 and said["nullCount"]["n"] == 1 and "list" not in said["nullCount"]
    wide = pa.table({f"c{n}": [n] for n in range(COLUMNS_MAX + 5)})
    assert len(json.loads(file_statistics_json(wide))["minValues"]) == COLUMNS_MAX


@pytest.mark.parametrize(
    "values",
    [
        pa.array([float("nan"), 1.0]), pa.array([float("-inf")], pa.float32()),
        pa.array([2**60, 0, 1], pa.timestamp("us", "UTC")),
    ],
    ids=["nan", "infinity", "year-38000"],
)  # fmt: skip
def test_a_file_with_a_value_that_json_can_not_say_has_no_bounds(values: Any) -> None:
    """Bounds of other columns beside none of this would hide its rows from delta-rs."""
    said = json.loads(file_statistics_json(pa.table({"x": values, "n": range(len(values))})))
    assert said == {"numRecords": len(values), "nullCount": {"x": 0, "n": 0}}


LONG = ["a" * 100, "a" * 99 + "b", "é" * 33, "\U0010ffff" * 40, "a" * 32 + "\U0010ffff" * 2 + "z", ""]
FILTERED: dict[str, Any] = {
    "text": pa.array([*LONG, None]),
    "float": pa.array([1.5, -0.0, 0.0, 5e-324, 1.7e308, float("inf"), float("-inf"), None]),
    "float32": pa.array([0.1, 3.4e38, None], pa.float32()),
    "decimal": pa.array([Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001"), None], pa.decimal128(38, 10)),
    "bool": pa.array([True, False, None]),
    "date": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "binary": pa.array([b"", b"\xff" * 50, None]),
}


@pytest.mark.parametrize("kind", FILTERED)
def test_readers_that_filter_find_each_row(kind: str, tmp_path: Path) -> None:
    """A file for each value, so that bounds decide which of them is read."""
    values = FILTERED[kind]
    schema = pa.schema([("id", pa.int64()), ("x", values.type)])
    sink = DeltaTable(tmp_path / "flights").bind("flights", REGION)
    sink.check(schema)
    for number, value in enumerate(values):
        rows = pa.table([[number], pa.array([value.as_py()], values.type)], schema=schema)
        sink.stage(key(number), rows)
    sink.publish(1, [key(number) for number in range(len(values))])
    reader = deltalake.DeltaTable(sink.path)
    for value in values:
        field = pc.field("x")
        if value.is_valid:
            for asked, compare in ((field == value, pc.equal), (field >= value, pc.greater_equal)):
                found = reader.to_pyarrow_dataset().to_table(filter=asked)["id"].to_pylist()
                assert sorted(found) == [at for at, same in enumerate(compare(values, value)) if same.as_py()]
    missing = reader.to_pyarrow_dataset().to_table(filter=pc.field("x").is_null())["id"].to_pylist()
    assert missing == [len(values) - 1]


def test_an_empty_text_as_a_partition(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows = pa.table({"id": [1, 2], "name": ["", "a b/c=d"]}, schema=schema)
    assert [values for values, _ in rows_by_partition(rows, ["name"])] == [{"name": None}, {"name": "a b/c=d"}]
    sink = DeltaTable(tmp_path / "t", partition_by=["name"]).bind("flights", REGION)
    sink.check(schema)
    sink.stage(key(1), rows)
    sink.publish(1, [key(1)])
    assert [row["name"] for row in read(sink.path)] == [None, "a b/c=d"]
    strict = DeltaTable(tmp_path / "s", mode="update", keys=["id", "name"], partition_by=["name"]).bind("f", REGION)
    strict.check(schema)
    with pytest.raises(InvalidInputError, match="An empty text in 'name'"):
        strict.stage(key(1), rows)


def test_when_others_always_come_first_it_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1))
    monkeypatch.setattr(delta_table, "COMMITS_MAX", 3)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", lambda self, *args: False)
        with pytest.raises(RetriableError, match="3 commits were too late"):
            sink.publish(1, [key(1)])
    sink.publish(1, [key(1)])
    assert [row["id"] for row in read(sink.path)] == [1]


def test_a_log_that_can_t_be_read(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1))
    first = Path(sink.path, "_delta_log", f"{0:020}.json")
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RetriableError, match="does not answer"):
        sink.publish(1, [key(1)])
    first.unlink()
    with pytest.raises(InvalidInputError, match="is no Delta table"):
        sink.publish(1, [key(1)])
    first.write_bytes(whole)
    sink.publish(1, [key(1)])
    Path(sink._own, "region.json").write_bytes(b"{")
    with pytest.raises(CorruptDataError, match=r"region\.json"):
        made(Path(sink.path))


def test_staged_rows_survive_a_power_loss_in_a_folder_that_another_process_made() -> None:
    """That one died before it had synced the folder's name."""
    volume = Volume()
    calls = Calls(volume)
    make_folder(calls, "/t")
    calls.mkdir("/t/_kohort")
    sink = DeltaTable("/t").bind("flights", REGION)
    sink._files = calls
    sink._keep_claim(None)
    sink._write_piece("piece", b"rows")
    volume.lose_power(LosesAll())
    assert read_file(calls, f"{sink._staging}/piece") == b"rows"


def test_a_commit_that_a_power_loss_has_torn(tmp_path: Path) -> None:
    """The file's name was durable, its bytes were not, and no caller was told that the commit succeeded."""
    for left in (0, 100):
        sink = made(tmp_path / f"t{left}")
        sink.stage(key(1), table(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeltaLog, "sync_last_commit", _power_goes)
            with pytest.raises(OSError, match="the power goes"):
                sink.publish(1, [key(1)])
        commit = Path(sink.path, "_delta_log", f"{1:020}.json")
        os.truncate(commit, left)
        if left:
            with pytest.raises(RetriableError, match="does not answer"):
                sink.publish(1, [key(1)])
            commit.unlink()  # as the documentation says
        sink.publish(1, [key(1)])
        assert [row["id"] for row in read(sink.path)] == [1] and sink.published() == 1


def _power_goes(self: DeltaLog, newest: int, synced: object) -> None:
    raise OSError("the power goes")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_right_that_is_missing_is_found_by_check(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    os.chmod(sink.path, 0o500)
    try:
        with pytest.raises(NotAuthorizedError, match="No right"):
            sink.check(SCHEMA)
    finally:
        os.chmod(sink.path, 0o700)


def test_sweep_removes_what_is_published(tmp_path: Path) -> None:
    sink = made(tmp_path / "t")
    sink.stage(key(1), table(1))
    sink.stage(key(2), table(2))
    sink.publish(1, [key(1)])
    assert len(os.listdir(sink._staging)) == 4
    sink.sweep(Keep(1))
    assert len(os.listdir(sink._staging)) == 2
    sink.publish(2, [key(2)])
    assert [row["id"] for row in read(sink.path)] == [1, 2]


def test_sweep_leaves_other_regions(tmp_path: Path) -> None:
    sink, other = made(tmp_path / "t"), DeltaTable(tmp_path / "t").bind("trains", UUID(int=2))
    other.check(SCHEMA)
    theirs = StagedKey(UUID(int=2), 1, "a", 1)
    other.stage(theirs, table(7))
    sink.stage(key(1), table(1))
    sink.sweep(Keep(9))
    assert os.listdir(sink._staging) == []
    other.publish(1, [theirs])
    assert [row["id"] for row in read(sink.path)] == [7]


def test_without_the_package_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "import kohort.region\n"
        "try: kohort.region.DeltaTable\n"
        "except ValueError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'kohort[delta]'" in said


def test_other_readers_find_plain_parquet(tmp_path: Path) -> None:
    sink = made(tmp_path / "t", compression="snappy")
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    files = list(Path(sink.path).glob("*.parquet"))
    assert pq.read_metadata(files[0]).row_group(0).column(0).compression == "SNAPPY"


def test_a_table_reached_by_a_link_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert DeltaTable(tmp_path / "link").place == DeltaTable(tmp_path / "table").place
