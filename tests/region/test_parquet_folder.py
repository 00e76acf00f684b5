from __future__ import annotations

import errno
import os
import pickle
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError
from kohort.region.sinks import Keep, Sink
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.staged import StagedKey
from tests.region import publishing

REGION = UUID(int=1)
OTHER = UUID(int=2)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def key(unit: int, member: str = "worker-1", epoch: int = 1) -> StagedKey:
    return StagedKey(REGION, epoch, member, unit)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [str(number) for number in ids]}, schema=SCHEMA)


@pytest.fixture
def sink(tmp_path: Path) -> ParquetFolder:
    made = ParquetFolder(tmp_path / "out").bind("flights", REGION)
    made.check(SCHEMA)
    return made


def test_it_is_a_sink(sink: ParquetFolder) -> None:
    taken: Sink = sink
    assert taken.published() == 0


def test_its_place_is_the_folder_whatever_it_is_called(sink: ParquetFolder, tmp_path: Path) -> None:
    """Two names would have two members publish one sequence into it, the second in vain."""
    (tmp_path / "linked").symlink_to(tmp_path / "out")
    assert sink.place == f"parquet:{tmp_path}/out" == ParquetFolder(tmp_path / "linked").place
    assert ParquetFolder(tmp_path / "other").place != sink.place


def test_readers_see_published_sequences_and_nothing_else(sink: ParquetFolder) -> None:
    sink.stage(key(1), table(1, 2))
    sink.stage(key(1, "größe/2"), table(3))
    sink.stage(key(2), table(4))
    sink.publish(1, [key(1), key(1, "größe/2")])
    found = ds.dataset(sink.path, format="parquet", partitioning="hive").to_table()
    assert sorted(found.column("id").to_pylist()) == [1, 2, 3]
    assert set(found.column("sequence").to_pylist()) == {1}
    names = sorted(name for name in os.listdir(f"{sink.path}/sequence=1") if not name.startswith("_"))
    assert names == sorted(f"{entry.file_stem()}.parquet" for entry in (key(1), key(1, "größe/2")))
    assert pq.read_table(sink.path).num_rows == 3


def test_pandas_sees_the_same(sink: ParquetFolder) -> None:
    pandas = pytest.importorskip("pandas")
    sink.stage(key(1), table(1, 2))
    sink.stage(key(2), table(4))
    sink.publish(1, [key(1)])
    assert sorted(pandas.read_parquet(sink.path)["id"]) == [1, 2]


def test_no_rows_no_folder_and_the_sequence_is_done(sink: ParquetFolder) -> None:
    sink.stage(key(1), table())
    sink.publish(1, [key(1)])
    sink.publish(2, [])
    assert sink.published() == 2
    assert not [name for name in os.listdir(sink.path) if name.startswith("sequence=")]
    sink.publish(1, [key(1)])
    assert sink.published() == 2


def test_a_key_that_nobody_staged_is_lost_output(sink: ParquetFolder) -> None:
    sink.stage(key(1), table(1))
    with pytest.raises(CorruptDataError, match="Sequence 1.*are gone.*worker-1-e1-u2"):
        sink.publish(1, [key(1), key(2)])
    assert sink.published() == 0
    assert not os.path.exists(f"{sink.path}/sequence=1")


def test_a_sequence_that_stands_without_its_mark_is_published(sink: ParquetFolder) -> None:
    """The publisher ended between the two: the next sequence under this number would be taken for done."""
    assert_a_sequence_without_its_mark_counts(sink)


def assert_a_sequence_without_its_mark_counts(sink: ParquetFolder) -> None:
    for number in (1, 2):
        sink.stage(key(number), table(number))
        sink.publish(number, [key(number)])
    (mark,) = [path for path in Path(sink.path, "_region").iterdir() if path.name.endswith("2")]
    mark.unlink()
    assert sink.published() == 2


def test_staged_again_the_last_counts(sink: ParquetFolder) -> None:
    sink.stage(key(1), table(1))
    sink.stage(key(1), table())
    sink.stage(key(1), table(7))
    sink.publish(1, [key(1)])
    assert pq.read_table(f"{sink.path}/sequence=1").column("id").to_pylist() == [7]


def test_a_folder_of_another_region_is_refused_with_both_names(sink: ParquetFolder) -> None:
    stranger = ParquetFolder(sink.path).bind("trains", OTHER)
    for act in (
        lambda: stranger.check(SCHEMA),
        stranger.published,
        lambda: stranger.stage(StagedKey(OTHER, 1, "a", 1), table(1)),
        lambda: stranger.sweep(Keep(9)),
    ):
        with pytest.raises(InvalidInputError, match=rf"'flights' \({REGION}\).*'trains' \({OTHER}\)"):
            act()


def test_a_key_of_another_region_is_refused(sink: ParquetFolder) -> None:
    with pytest.raises(InvalidInputError, match="key of another region"):
        sink.stage(StagedKey(OTHER, 1, "a", 1), table(1))


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("x")
    with pytest.raises(InvalidInputError, match=r"notes\.csv.*empty folder"):
        ParquetFolder(tmp_path).bind("flights", REGION).check(SCHEMA)
    with pytest.raises(InvalidInputError, match="is a file"):
        ParquetFolder(tmp_path / "notes.csv").bind("flights", REGION).check(SCHEMA)


@pytest.mark.parametrize("says", [None, f"_sequence-1-{OTHER.hex}", f"_sequence-2-{REGION.hex}"])
def test_something_else_in_the_place_of_a_sequence_is_refused(sink: ParquetFolder, says: str | None) -> None:
    folder = Path(sink.path, "sequence=1")
    folder.mkdir()
    (folder / "part-0.parquet").write_bytes(b"x")
    if says is not None:
        (folder / says).touch()
    sink.stage(key(1), table(1))
    with pytest.raises(InvalidInputError, match=f"{says or 'nothing'} says whose it is.*Move it away"):
        sink.publish(1, [key(1)])
    folder.rename(folder.with_name("_moved"))
    sink.publish(1, [key(1)])
    assert pq.read_table(sink.path).num_rows == 1


def test_a_schema_that_does_not_fit_is_refused_by_column(sink: ParquetFolder) -> None:
    given = pa.schema([("id", pa.int32()), ("extra", pa.string())])
    for act in (lambda: sink.check(given), lambda: sink.stage(key(1), given.empty_table())):
        with pytest.raises(
            InvalidInputError, match=r"'id' is int32 \(int64 before\); 'name' is missing.*'extra' is new"
        ):
            act()
    sink.check(pa.schema([("name", pa.string()), ("id", pa.int64())], metadata={"a": "b"}))
    sink.stage(key(1), table(1).select(["name", "id"]))


def test_null_where_none_may_be(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "o").bind("flights", REGION)
    sink.check(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(InvalidInputError, match="'id' may be null now"):
        sink.check(pa.schema([pa.field("id", pa.int64())]))
    with pytest.raises(InvalidInputError, match="Null in columns"):
        sink.stage(key(1), pa.table({"id": [None]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)])))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "without columns"),
        ([("Sequence", pa.int64())], "folders' names"),
        ([("a", pa.int64()), ("A", pa.int64())], "one name.*'a'"),
        ([("a", pa.int64()), ("u", pa.dense_union([pa.field("x", pa.int64())]))], "column 'u' of type dense_union"),
    ],
)
def test_what_can_t_be_written_is_refused_at_once(tmp_path: Path, fields: list[Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        ParquetFolder(tmp_path / "o").bind("flights", REGION).check(pa.schema(fields))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int32()), pa.timestamp("ns", "UTC"),
             pa.uuid(), pa.decimal128(20, 3), pa.large_string(), pa.string_view(), pa.struct([("x", pa.int8())])],
    ids=str,
)  # fmt: skip
def test_types_are_read_back_as_they_were(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind)])
    sink = ParquetFolder(tmp_path / "o").bind("flights", REGION)
    sink.check(schema)
    sink.stage(key(1), pa.table({"x": pa.nulls(2, kind)}, schema=schema))
    sink.publish(1, [key(1)])
    assert pq.read_table(f"{sink.path}/sequence=1/{key(1).file_stem()}.parquet").schema.equals(schema)


def test_options(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "o", compression="gzip", row_group_size=2).bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(key(1), table(1, 2, 3))
    sink.publish(1, [key(1)])
    meta = pq.read_metadata(f"{sink.path}/sequence=1/{key(1).file_stem()}.parquet")
    assert meta.num_row_groups == 2 and meta.row_group(0).column(0).compression == "GZIP"
    for wrong in ({"compression": "zip"}, {"row_group_size": 0}):
        with pytest.raises(InvalidInputError, match="choose one of|at least 1"):
            ParquetFolder(tmp_path, **wrong)  # type: ignore[arg-type]


def test_it_can_be_pickled_and_its_path_does_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = ParquetFolder("out").bind("flights", REGION)
    sink.check(SCHEMA)
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    copy = pickle.loads(pickle.dumps(sink))
    copy.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert pq.read_table(tmp_path / "out").num_rows == 1
    assert os.listdir(other) == []


def test_a_symlinked_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    sink = ParquetFolder(tmp_path / "out").bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(key(1), table(1))
    sink.publish(1, [key(1)])
    assert pq.read_table(tmp_path / "real").num_rows == 1


def test_staging_on_another_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount on `_staging`, which no test may make: the kernel refuses to rename across it."""

    def rename(src: str, dst: str, **_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), dst)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(InvalidInputError, match="one file system"):
        ParquetFolder(tmp_path / "out").bind("flights", REGION).check(SCHEMA)
    assert list((tmp_path / "out" / "_staging").iterdir()) == []


def test_published_files_have_the_rights_of_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        sink = ParquetFolder(tmp_path / "o").bind("flights", REGION)
        sink.check(SCHEMA)
        sink.stage(key(1), table(1))
        sink.publish(1, [key(1)])
    finally:
        os.umask(old)
    folder = Path(sink.path, "sequence=1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o640}


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [(errno.EACCES, NotAuthorizedError, "No right to write"), (errno.EPERM, InvalidInputError, "has hard links")],
)
def test_a_right_or_a_link_that_is_missing_is_found_by_check(
    sink: ParquetFolder, code: int, error: type[Exception], said: str
) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def link(self, src: str, dst: str) -> None:
            raise OSError(code, os.strerror(code), src)

    sink._files = Refusing()  # type: ignore[assignment]
    with pytest.raises(error, match=said):
        sink.check(SCHEMA)
    assert sorted(os.listdir(sink.path)) == ["_region", "_staging"]
    assert os.listdir(f"{sink.path}/_staging") == []


def test_what_may_not_be_linked_is_copied(sink: ParquetFolder) -> None:
    class Protected:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def link(self, src: str, dst: str) -> None:
            raise PermissionError(1, "protected_hardlinks", src)

    sink.stage(key(1), table(1, 2))
    sink._files = Protected()  # type: ignore[assignment]
    sink.publish(1, [key(1)])
    assert pq.read_table(f"{sink.path}/sequence=1").num_rows == 2


def test_a_file_that_the_disk_does_not_take_leaves_nothing(sink: ParquetFolder) -> None:
    wide = pa.table({"id": range(50_000), "name": [os.urandom(8).hex() for _ in range(50_000)]}, schema=SCHEMA)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            sink.stage(key(1), wide)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(f"{sink.path}/_staging") == []
    sink.stage(key(1), wide)
    sink.publish(1, [key(1)])
    assert pq.read_table(f"{sink.path}/sequence=1").num_rows == 50_000


def test_unbound_or_unchecked_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="bind"):
        ParquetFolder(tmp_path).check(SCHEMA)
    bound = ParquetFolder(tmp_path).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="call check"):
        bound.stage(key(1), table(1))
    assert bound.published() == 0
    bound.sweep(Keep(3))
    with pytest.raises(InvalidInputError, match="the first is 1"):
        bound.publish(0, [])


def test_marks_do_not_pile_up(sink: ParquetFolder) -> None:
    for sequence in range(1, 40):
        sink.publish(sequence, [])
    assert sink.published() == 39
    assert len(os.listdir(f"{sink.path}/_region")) < 12


def test_a_reader_never_sees_a_part_while_publishers_are_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    sink = publishing.sink(path)
    sink.check(publishing.SCHEMA)
    reader = subprocess.Popen(
        [sys.executable, "-m", "tests.region.publishing", path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        died, sequence = True, 0
        while died:
            sequence += 1
            for entry in publishing.keys(sequence):
                sink.stage(entry, publishing.rows(entry))
            died = publishing.publish_and_die(sink, sequence, sequence)
            sink.publish(sequence, publishing.keys(sequence))
        looks, parts = reader.communicate("\n", timeout=60)[0].split(maxsplit=1)
    finally:
        reader.kill()
        reader.communicate()
    assert int(looks) > 0 and parts.strip() == "[]"
    assert sequence > 15, "it was killed at each change that it makes"
    expected = [n * 100 + m * 10 + i for n in range(1, sequence + 1) for m in range(2) for i in range(3)]
    assert sorted(pq.read_table(path).column("id").to_pylist()) == expected
    sink.sweep(Keep(2))
    assert os.listdir(f"{path}/_staging") == []
