"""Parquet folders and Delta tables in Azure's and Google's stores: emulators, and Arrow's own readers."""

from __future__ import annotations

import contextlib
import re
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import DeltaTable, Keep, ParquetFolder
from kohort.region.staged import StagedKey
from tests.region import cloud_servers
from tests.region.cloud_servers import Cloud
from tests.region.conftest import check_exact_after_a_failure, fill, make_topic
from tests.region.s3_server import BUCKET, LossyProxy

deltalake: Any = pytest.importorskip("deltalake", reason="DeltaTable needs it")
polars: Any = pytest.importorskip("polars", reason="Polars reads the tables")

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = [StagedKey(REGION, 1, "größe/1", number) for number in range(16)]
FOLDER, DELTA = "folder", "delta"
PLACE = "one name for all"
"""The tests reach a server directly and through proxies."""

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["az", "gs"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with cloud_servers.running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
def url(cloud: Cloud) -> str:
    return f"{cloud.scheme}://{BUCKET}/{uuid.uuid4().hex}/out"


@pytest.fixture(params=[FOLDER, DELTA])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sink_at(kind: str, url: str, options: dict[str, str], **given: Any) -> Any:
    made: Any = {FOLDER: ParquetFolder, DELTA: DeltaTable}[kind](url, storage_options=options, **given)
    made._place = PLACE
    return made.bind("flights", REGION)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": ["x"] * len(ids)}, schema=SCHEMA)


def ids(kind: str, cloud: Cloud, url: str) -> list[int]:
    """Return what readers of the table see: delta-rs, or Arrow with its own file system."""
    if kind == DELTA:
        try:
            table = deltalake.DeltaTable(url, storage_options=cloud.options)
        except deltalake.exceptions.TableNotFoundError:
            return []
        files = [re.sub("^[a-z]+://", "", uri) for uri in table.file_uris()]
        plain = ds.dataset(files, filesystem=cloud.files, format="parquet").to_table() if files else rows()
        found = sorted(table.to_pyarrow_table().column("id").to_pylist())
        assert found == sorted(plain.column("id").to_pylist())
        return found
    sink = sink_at(kind, url, cloud.options)
    files = [file.path.partition("://")[2] for file in sink.published_files()]
    if not files:
        return []
    return sorted(ds.dataset(files, filesystem=cloud.files, format="parquet").to_table().column("id").to_pylist())


@contextlib.contextmanager
def proxied(cloud: Cloud, **given: Any) -> Iterator[tuple[LossyProxy, dict[str, str]]]:
    """Yield a proxy before the server, and the options of a sink that goes through it."""
    proxy = LossyProxy(cloud.address, **{"loses": lambda method, path: False, **given})
    try:
        yield proxy, cloud.options_at(proxy.address)
    finally:
        proxy.close()


def test_sequences_are_written_once_and_nothing_is_left(cloud: Cloud, kind: str, url: str) -> None:
    sink = sink_at(kind, url, cloud.options)
    assert cloud.secret not in repr(sink) + DeltaTable(url, storage_options=cloud.options)._named()
    assert sink.published() == 0 and sink.adopt() == ""
    sink.check(SCHEMA)
    for number in (0, 1, 1, 2, 5):
        sink.stage(KEYS[number], rows(number, 100 + number))
    sink.stage(KEYS[3], rows())
    assert ids(kind, cloud, url) == [] and sink.published() == 0
    for _ in range(2):
        sink.publish(1, KEYS[:2])
    sink.publish(2, [])
    again = sink_at(kind, url, cloud.options)
    assert again.published() == 2
    again.publish(3, KEYS[2:4])
    assert ids(kind, cloud, url) == [0, 1, 2, 100, 101, 102]
    with pytest.raises(CorruptDataError, match="1 are gone|gone"):
        again.publish(4, [KEYS[4]])
    again.sweep(Keep(2))
    assert not [name for name in cloud.objects(url) if "staged" in name]
    if kind == DELTA:
        frame = polars.read_delta(url, storage_options=cloud.options).sort("id")
        assert frame["id"].to_list() == [0, 1, 2, 100, 101, 102]
    again.empty(5, 2)
    assert ids(kind, cloud, url) == [] and again.published() == 5


def _repeated(act: Callable[[], None], secret: str) -> None:
    """Try a call again, as a member does."""
    for _ in range(60):
        try:
            return act()
        except RetriableError as error:
            said = "".join(traceback.format_exception(error))
        assert secret not in said
    raise AssertionError(said)


PARTS = ("_sequences", "_delta_log", "region.json", ".parquet", "staged", "done", "_data")


def test_each_answer_is_lost_once_and_each_row_is_there_once(cloud: Cloud, kind: str, url: str) -> None:
    """The server has done it. Of the requests of each kind, all first ones are lost."""
    losses = Counter[str]()

    def loses(method: str, path: str) -> bool:
        path = unquote(path)
        asked = f"{method} {next((part for part in PARTS if part in path), 'list')}"
        losses[asked] += 1
        return losses[asked] == 1

    with proxied(cloud, loses=loses) as (proxy, options):
        sink = sink_at(kind, url, options)

        def life() -> None:
            sink.check(SCHEMA)
            sink.stage(KEYS[0], rows(1, 2))
            sink.stage(KEYS[1], rows(3))
            sink.publish(1, KEYS[:2])

        _repeated(life, cloud.secret)
        committed = "_delta_log" if kind == DELTA else "_sequences"
        assert any(lost.startswith("PUT") and committed in unquote(lost) for lost in proxy.lost)
    assert ids(kind, cloud, url) == [1, 2, 3]
    assert sink_at(kind, url, cloud.options).published() == 1


def test_store_that_ignores_the_condition_is_refused(cloud: Cloud, kind: str, url: str) -> None:
    if cloud.scheme == "az":
        pytest.skip("the condition is signed, so that a proxy can't take it away")
    condition = re.compile(rb"(?im)^(if-none-match|x-goog-if-generation-match):.*\r\n")
    with proxied(cloud, rewrites=lambda head: condition.sub(b"", head)) as (_, options):
        with pytest.raises(InvalidInputError, match="no conditional puts") as refused:
            sink_at(kind, url, options).check(SCHEMA)
        assert cloud.secret not in str(refused.value)
    assert not [name for name in cloud.objects(url) if name.endswith((".parquet", "_delta_log"))]


def test_bucket_that_does_not_exist_is_named(cloud: Cloud, kind: str) -> None:
    if cloud.scheme == "gs":
        pytest.skip("fake-gcs-server answers 500")
    url = f"{cloud.scheme}://no-such-bucket/out"
    with pytest.raises(InvalidInputError, match=f"bucket of {url} does not exist"):
        sink_at(kind, url, cloud.options).check(SCHEMA)


def test_wrong_credentials_are_refused_and_shown_to_nobody(cloud: Cloud, kind: str, url: str) -> None:
    if cloud.scheme == "gs":
        pytest.skip("fake-gcs-server takes any credentials")
    wrong = {**cloud.options, "account_key": "d3Jvbmctc2VjcmV0LXdyb25nLXNlY3JldA=="}
    with pytest.raises(NotAuthorizedError) as refused:
        sink_at(kind, url, wrong).check(SCHEMA)
    shown = "".join(traceback.format_exception(refused.value))
    assert wrong["account_key"] not in shown and "SharedKey" not in shown


def test_publishers_at_once_and_a_reader(cloud: Cloud, kind: str, url: str) -> None:
    """Three of them, each with all sequences; a reader sees only the first ones, each whole."""
    sink = sink_at(kind, url, cloud.options)
    sink.check(SCHEMA)
    for number in range(8):
        sink.stage(KEYS[number], rows(number))
    failed: list[BaseException] = []

    def publish() -> None:
        other = sink_at(kind, url, cloud.options)
        try:
            for sequence in range(1, 5):
                keys = KEYS[2 * sequence - 2 : 2 * sequence]
                _repeated(lambda sequence=sequence, keys=keys: other.publish(sequence, keys), cloud.secret)  # type: ignore[misc]
                other.sweep(Keep(1))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = ids(kind, cloud, url)
        assert seen == list(range(len(seen))) and len(seen) % 2 == 0
    for thread in threads:
        thread.join()
    assert failed == [] and ids(kind, cloud, url) == list(range(8))
    assert not [name for name in cloud.objects(url) if "staged" in name]


def test_partitions_and_compaction_in_a_folder(cloud: Cloud, url: str) -> None:
    sink = sink_at(FOLDER, url, cloud.options, partition_by=["name"])
    sink.check(SCHEMA)
    names = ["plain", "a/b", "50%", "größe x", "日本", "a+b", None]
    sink.stage(KEYS[0], pa.table({"id": range(len(names)), "name": names}, schema=SCHEMA))
    sink.stage(KEYS[1], pa.table({"id": [100], "name": ["größe x"]}, schema=SCHEMA))
    wanted = dict(enumerate(names)) | {100: "größe x"}
    sink.publish(1, KEYS[:1])
    sink.publish(2, KEYS[1:2])

    def found() -> dict[int, str | None]:
        files = [file.path.partition("://")[2] for file in sink.published_files()]
        read = ds.dataset(files, filesystem=cloud.files, format="parquet", partitioning="hive").to_table()
        return dict(zip(read["id"].to_pylist(), read["name"].to_pylist(), strict=True))

    assert found() == wanted and len(sink.published_files()) == len(wanted)
    assert sink.compact().merged == 2
    assert found() == wanted and len(sink.published_files()) == len(names)
    sink.compact(grace="0s")
    assert found() == wanted
    data = [name for name in cloud.objects(url) if name.endswith(".parquet")]
    assert data == sorted(file.path.removeprefix(f"{url}/") for file in sink.published_files())


def test_members_of_a_region_write_into_a_store(cloud: Cloud, kind: str, url: str, own_servers: str, name: str) -> None:
    """One of two fails; what it had staged is nobody's, and its records are read again."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    sink = {FOLDER: ParquetFolder, DELTA: DeltaTable}[kind](url, storage_options=cloud.options)

    def read() -> list[int]:
        if kind == DELTA:
            with contextlib.suppress(deltalake.exceptions.TableNotFoundError):
                table = deltalake.DeltaTable(url, storage_options=cloud.options).to_pyarrow_table()
                return [int(value) for value in table.column("value").to_pylist()]
            return []
        files = [file.path.partition("://")[2] for file in sink.published_files()]  # type: ignore[union-attr]
        table = ds.dataset(files, filesystem=cloud.files, format="parquet").to_table() if files else rows()
        return [int(value) for value in table.column("value").to_pylist()] if files else []

    check_exact_after_a_failure(own_servers, name, sink, read, 200)
