"""A folder of Parquet files in an object store: a real server of S3's protocol, and readers that nobody here wrote."""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from obstore.store import S3Store

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import Keep, ParquetFolder
from kohort.region.staged import StagedKey
from tests.region.conftest import check_exact_after_a_failure, fill, make_topic
from tests.region.s3_server import ACCESS, BUCKET, LossyProxy, files_of

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = [StagedKey(REGION, 1, "größe/1", number) for number in range(16)]
SECRET = ACCESS["s3.secret-access-key"]


def options(address: str) -> dict[str, str]:
    return {"access_key_id": ACCESS["s3.access-key-id"], "secret_access_key": SECRET, "region": ACCESS["s3.region"],
            "endpoint": address, "allow_http": "true"}  # fmt: skip


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/out"


def sink_at(address: str, url: str) -> ParquetFolder:
    return ParquetFolder(url, storage_options=options(address)).bind("flights", REGION)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": ["x"] * len(ids)}, schema=SCHEMA)


def paths(sink: ParquetFolder) -> list[str]:
    return [file.path for file in sink.published_files()]


def ids(address: str, sink: ParquetFolder) -> list[int]:
    files = [path.removeprefix("s3://") for path in paths(sink)]
    if not files:
        return []
    read = ds.dataset(files, filesystem=files_of(address), format="parquet").to_table()
    return sorted(read.column("id").to_pylist())


def objects(address: str, url: str) -> list[str]:
    base = url.removeprefix("s3://")
    found = files_of(address).get_file_info(pafs.FileSelector(base, recursive=True))
    return sorted(info.path.removeprefix(f"{base}/") for info in found if info.is_file)


def access_of(address: str) -> dict[str, str]:
    """Return the credentials, as Polars names them."""
    return {"aws_access_key_id": ACCESS["s3.access-key-id"], "aws_secret_access_key": SECRET,
            "aws_region": ACCESS["s3.region"], "aws_endpoint_url": address, "aws_allow_http": "true"}  # fmt: skip


@contextlib.contextmanager
def reading(duckdb: Any, extensions: Any, address: str, folder: Path) -> Iterator[Any]:
    """Yield a connection of DuckDB that reaches the store."""
    with duckdb.connect(config={"extension_directory": str(folder / "extensions")}) as connection:
        extensions.import_extension("httpfs", con=connection)
        connection.execute("LOAD httpfs")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{ACCESS['s3.access-key-id']}', SECRET '{SECRET}', REGION 'us-east-1', "
            f"ENDPOINT '{address.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
        )
        yield connection


def test_sequences_are_written_once_and_nothing_is_left(store: str, url: str) -> None:
    sink = sink_at(store, url)
    assert sink.published() == 0 and sink.adopt() == ""
    sink.check(SCHEMA)
    for number in (0, 1, 1, 2, 5):
        sink.stage(KEYS[number], rows(number, 100 + number))
    sink.stage(KEYS[3], rows())
    assert ids(store, sink) == [] and sink.published() == 0
    for _ in range(2):
        sink.publish(1, KEYS[:2])
    sink.publish(2, [])
    again = sink_at(store, url)
    assert again.published() == 2
    again.publish(3, KEYS[2:4])
    assert ids(store, again) == [0, 1, 2, 100, 101, 102]
    assert [file.sequence for file in again.published_files(after=1)] == [3]
    with pytest.raises(CorruptDataError, match="1 are gone"):
        again.publish(4, [KEYS[4]])
    again.sweep(Keep(2))
    data = [f"_data/{KEYS[number].file_stem()}.parquet" for number in range(3)]
    numbers = [f"_sequences/{number:020}.json" for number in (1, 2, 3)]
    assert objects(store, url) == [*data, "_region/conditional-put", "_region/region.json", *numbers]
    again.empty(5, 2)
    assert paths(again) == [] and again.published() == 5
    with pytest.raises(InvalidInputError, match="belongs to another region"):
        ParquetFolder(url, storage_options=options(store)).bind("flights", UUID(int=2)).check(SCHEMA)


def test_answer_of_a_publication_is_lost_and_the_sequence_is_there_once(store: str, url: str) -> None:
    losses = Counter[str]()

    def loses(method: str, path: str) -> bool:
        kind = next((part for part in ("_sequences", "region.json", "_data", "_staged") if part in path), "")
        losses[kind] += method == "PUT"
        return bool(kind) and method == "PUT" and losses[kind] == 1

    proxy = LossyProxy(store, loses)
    try:
        sink = sink_at(proxy.address, url)
        sink.check(SCHEMA)
        with pytest.raises(RetriableError) as lost:
            sink.stage(KEYS[0], rows(1, 2))
        assert SECRET not in str(lost.value)
        sink.stage(KEYS[0], rows(1, 2))  # the answer about the rows is lost: they are looked for, and are there
        sink.publish(1, KEYS[:1])
        assert [path.rpartition("/")[2].partition("?")[0] for path in proxy.lost] == [
            "region.json", f"{KEYS[0].file_stem()}.rows", f"{KEYS[0].file_stem()}.parquet", f"{1:020}.json",
        ]  # fmt: skip
        assert sink.published() == 1
    finally:
        proxy.close()
    with pytest.raises(InvalidInputError, match="knows as"):
        sink_at(store, url).published()
    moved = sink_at(store, url)
    assert moved.adopt() == sink.place and moved.published() == 1 and ids(store, moved) == [1, 2]


def test_publishers_at_once_and_a_reader(store: str, url: str) -> None:
    """Three of them, each with all sequences; who reads sees only the first ones, each whole."""
    sink = sink_at(store, url)
    sink.check(SCHEMA)
    for number in range(0, 12, 2):
        sink.stage(KEYS[number], rows(number))
        sink.stage(KEYS[number + 1], rows(number + 1))
    failed: list[BaseException] = []

    def publish() -> None:
        other = sink_at(store, url)
        try:
            for sequence in range(1, 7):
                other.publish(sequence, KEYS[2 * sequence - 2 : 2 * sequence])
                other.sweep(Keep(1))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = ids(store, sink)
        assert seen == list(range(len(seen))) and len(seen) % 2 == 0
    for thread in threads:
        thread.join()
    assert failed == [] and ids(store, sink) == list(range(12))
    assert not [name for name in objects(store, url) if name.startswith("_staged")]


def test_members_of_a_region_write_into_a_store(store: str, url: str, own_servers: str, name: str) -> None:
    """One of two fails; what it had staged is nobody's, and its records are read again."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(500))
    sink = ParquetFolder(url, storage_options=options(store))

    def read() -> list[int]:
        files = [path.removeprefix("s3://") for path in paths(sink)]
        if not files:
            return []
        table = ds.dataset(files, filesystem=files_of(store), format="parquet").to_table()
        return [int(value) for value in table.column("value").to_pylist()]

    check_exact_after_a_failure(own_servers, name, sink, read, 500)


def test_readers_that_nobody_here_wrote_see_whole_sequences(store: str, url: str, tmp_path: Path) -> None:
    """DuckDB and Polars take the files that the sequences name; DuckDB also finds them without kohort."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the files")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with httpfs")
    pytest.importorskip("duckdb_extension_httpfs", reason="duckdb-extension-httpfs reaches the store")
    polars: Any = pytest.importorskip("polars", reason="Polars reads the files")
    sink = sink_at(store, url)
    sink.check(SCHEMA)
    for number in range(5):
        sink.stage(KEYS[number], rows(number))
    sink.publish(1, KEYS[:2])
    sink.publish(2, KEYS[2:4])
    assert ids(store, sink) == [0, 1, 2, 3]
    frame = polars.scan_parquet(paths(sink), storage_options=access_of(store)).sort("id").collect()
    assert frame["id"].to_list() == [0, 1, 2, 3]
    with reading(duckdb, extensions, store, tmp_path) as connection:
        query = "SELECT id FROM read_parquet({}) ORDER BY id"
        found = connection.execute(query.format(paths(sink))).fetchall()
        assert found == [(0,), (1,), (2,), (3,)]
        connection.execute(
            f"SET VARIABLE files = (SELECT list('{url}/' || file) FROM (SELECT unnest(json_keys(files)) AS file "
            f"FROM read_json('{url}/_sequences/*.json', columns = {{files: 'JSON'}})))"
        )
        assert connection.execute(query.format("getvariable('files')")).fetchall() == found


def test_partitions_in_a_store_are_seen_by_readers_that_nobody_here_wrote(store: str, url: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the files")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with httpfs")
    pytest.importorskip("duckdb_extension_httpfs", reason="duckdb-extension-httpfs reaches the store")
    polars: Any = pytest.importorskip("polars", reason="Polars reads the files")
    names = ["plain", "a/b", "a=b", "50%", "größe x", "日本", "a+b", "{x}", "*?", "#", "&;,!", "%2F", None]
    made = ParquetFolder(url, partition_by=["name"], storage_options=options(store))
    sink = made.bind("flights", REGION)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], pa.table({"id": range(len(names)), "name": names}, schema=SCHEMA))
    sink.stage(KEYS[1], pa.table({"id": [100], "name": ["plain"]}, schema=SCHEMA))
    sink.publish(1, KEYS[:2])
    wanted = dict(enumerate(names)) | {100: "plain"}
    assert len(paths(sink)) == len(wanted)
    files = [path.removeprefix("s3://") for path in paths(sink)]
    rows = ds.dataset(files, filesystem=files_of(store), format="parquet", partitioning="hive").to_table()
    assert dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == wanted
    frame = polars.scan_parquet(paths(sink), storage_options=access_of(store), hive_partitioning=True).collect()
    assert dict(zip(frame["id"], frame["name"], strict=True)) == wanted
    with reading(duckdb, extensions, store, tmp_path) as connection:
        query = f"SELECT id, name FROM read_parquet({paths(sink)!r}, hive_partitioning = true)"
        assert dict(connection.execute(query).fetchall()) == wanted


def test_compactors_and_publishers_at_once(store: str, url: str) -> None:
    """Three publishers and two compactors of a store; a reader of the list sees the first sequences, each whole."""
    made = ParquetFolder(url, partition_by=["name"], storage_options=options(store))
    sink = made.bind("flights", REGION)
    sink.check(SCHEMA)
    for number in range(0, 12, 2):
        sink.stage(KEYS[number], rows(number))
        sink.stage(KEYS[number + 1], rows(number + 1))
    failed: list[BaseException] = []
    ended = threading.Event()

    def attempt(act: Callable[[ParquetFolder], None]) -> None:
        try:
            act(sink_at(store, url))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    def publish(other: ParquetFolder) -> None:
        for sequence in range(1, 7):
            other.publish(sequence, KEYS[2 * sequence - 2 : 2 * sequence])
            other.sweep(Keep(1))

    def compact(other: ParquetFolder) -> None:
        while not ended.is_set():
            with contextlib.suppress(RetriableError):
                other.compact()

    publishers = [threading.Thread(target=attempt, args=(publish,)) for _ in range(3)]
    compactors = [threading.Thread(target=attempt, args=(compact,)) for _ in range(2)]
    for thread in (*publishers, *compactors):
        thread.start()
    while any(thread.is_alive() for thread in publishers):
        seen = ids(store, sink)
        assert seen == list(range(len(seen))) and len(seen) % 2 == 0
    ended.set()
    for thread in (*publishers, *compactors):
        thread.join()
    assert failed == [] and ids(store, sink) == list(range(12))
    for _ in range(2):
        sink.compact(grace="0s")
    assert ids(store, sink) == list(range(12)) and len(paths(sink)) == 1
    assert [name for name in objects(store, url) if name.endswith(".parquet")] == [
        path.removeprefix(f"{url}/") for path in paths(sink)
    ], "nothing is left over"


def test_answer_of_a_compaction_is_lost_and_it_counts(store: str, url: str) -> None:
    sink = sink_at(store, url)
    sink.check(SCHEMA)
    for number in range(2):
        sink.stage(KEYS[number], rows(number))
        sink.publish(number + 1, [KEYS[number]])
    proxy = LossyProxy(store, lambda method, path: method == "PUT" and "compaction-" in path)
    try:
        other = sink_at(proxy.address, url)
        other._place = sink.place
        assert other.compact().merged == 2 and len(proxy.lost) == 1
    finally:
        proxy.close()
    assert ids(store, sink) == [0, 1] and len(paths(sink)) == 1


def test_duckdb_finds_compacted_files_without_kohort(store: str, url: str, tmp_path: Path) -> None:
    """The query of the page on object stores."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the files")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with httpfs")
    pytest.importorskip("duckdb_extension_httpfs", reason="duckdb-extension-httpfs reaches the store")
    page = (Path(__file__).parents[2] / "docs" / "object-stores.md").read_text()
    statements = page.partition("```sql\n")[2].partition("```")[0].replace("s3://bucket/out", url).split(";")
    sink = sink_at(store, url)
    sink.check(SCHEMA)

    def found() -> list[int]:
        with reading(duckdb, extensions, store, tmp_path) as connection:
            connection.execute(statements[0])
            files = connection.execute("SELECT getvariable('files')").fetchall()[0][0] or []
            assert sorted(files) == sorted(paths(sink))
            return [connection.execute(statements[1]).fetchall()[0][0]] if files else []

    for number in range(4):
        sink.stage(KEYS[number], rows(number))
    for number in range(3):
        sink.publish(number + 1, [KEYS[number]])
    assert found() == [3]
    sink.compact()
    sink.publish(4, [KEYS[3]])
    assert found() == [4]
    sink.compact(grace="0s")
    assert found() == [4]
    sink.compact(grace="0s")
    assert found() == [4]
    sink.empty(5, 1)
    assert found() == []
    sink.stage(KEYS[5], rows(5, 6))
    sink.publish(6, [KEYS[5]])
    assert found() == [2]


def test_upload_of_a_killed_member_leaves_nothing_open(store: str, url: str) -> None:
    """Each object is put in one request: there is no multipart upload that somebody would have to end."""
    uploads: list[str] = []

    def loses(method: str, path: str) -> bool:
        uploads.append(path)
        return "_data" in path

    proxy = LossyProxy(store, loses)
    try:
        made = ParquetFolder(url, compression="none", storage_options=options(proxy.address))
        sink = made.bind("flights", REGION)
        sink.check(SCHEMA)
        large = pa.table({"id": list(range(80_000)), "name": [f"{number:0100}" for number in range(80_000)]})
        with pytest.raises(RetriableError):
            sink.stage(KEYS[0], large)
    finally:
        proxy.close()
    assert not [path for path in uploads if "uploadId" in path or "uploads" in path]
    after = sink_at(store, url)
    after.adopt()
    after.sweep(Keep(2))
    assert not [name for name in objects(store, url) if name.startswith(("_staged", "_data"))]


def test_wrong_credentials_are_refused_and_shown_to_nobody(store: str, url: str) -> None:
    if shutil.which("versitygw") is None:
        pytest.skip("moto's server takes any credentials: install versitygw")
    wrong = {**options(store), "secret_access_key": "a-wrong-secret"}
    sink = ParquetFolder(url, storage_options=wrong).bind("flights", REGION)
    with pytest.raises(NotAuthorizedError) as refused:
        sink.check(SCHEMA)
    shown = repr(sink) + sink.place + str(refused.value) + repr(refused.value.__cause__)
    assert "a-wrong" not in shown
    missing = ParquetFolder("s3://no-such-bucket/out", storage_options=options(store)).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="bucket of s3://no-such-bucket/out does not exist"):
        missing.check(SCHEMA)


def test_bucket_with_other_objects_is_refused(store: str, url: str) -> None:
    raw = S3Store.from_url(url, config={k: v for k, v in options(store).items() if k != "allow_http"},  # type: ignore[arg-type]
                           client_options={"allow_http": True})  # fmt: skip
    raw.put("other/file.parquet", b"strangers")
    with pytest.raises(InvalidInputError, match="'other' and is no folder of a region"):
        sink_at(store, url).check(SCHEMA)
