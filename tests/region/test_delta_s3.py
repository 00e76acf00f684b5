"""A Delta table in an object store: a real server of S3's protocol, and readers that nobody here wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any
from uuid import UUID

import deltalake
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import DeltaTable, Keep
from kohort.region.staged import StagedKey
from tests.region import s3_server
from tests.region.conftest import check_exact_after_a_failure, fill, make_topic
from tests.region.s3_server import ACCESS, BUCKET, LossyProxy, files_of
from tests.support.long_runs import IS_LONG

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
MORE = SCHEMA.append(pa.field("crew", pa.int32()))
KEYS = [StagedKey(REGION, 1, "größe/1", number) for number in range(16)]
SECRET = ACCESS["s3.secret-access-key"]
PLACE = "delta:flights"
"""One name for all: the tests reach the server directly and through proxies."""
UPDATE: dict[str, Any] = {"mode": "update", "keys": ["id"]}


def options(address: str) -> dict[str, str]:
    return {"access_key_id": ACCESS["s3.access-key-id"], "secret_access_key": SECRET, "region": ACCESS["s3.region"],
            "endpoint": address, "allow_http": "true"}  # fmt: skip


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/table"


def sink_at(address: str, url: str, **given: Any) -> DeltaTable:
    made = DeltaTable(url, storage_options=options(address), **given)
    made._place = PLACE
    return made.bind("flights", REGION)


def rows(*ids: int, name: str = "x") -> pa.Table:
    return pa.table({"id": list(ids), "name": [name] * len(ids)}, schema=SCHEMA)


def table_at(address: str, url: str) -> deltalake.DeltaTable:
    """Return the table as a stranger opens it."""
    return deltalake.DeltaTable(url, storage_options=options(address))


def ids(address: str, url: str) -> list[int]:
    return sorted(table_at(address, url).to_pyarrow_table().column("id").to_pylist())


def add_rows(address: str, url: str, *given: int) -> None:
    """Write rows as another program does."""
    deltalake.write_deltalake(url, rows(*given), mode="append", storage_options=options(address))


def objects(address: str, url: str) -> list[str]:
    base = url.removeprefix("s3://")
    found = files_of(address).get_file_info(pafs.FileSelector(base, recursive=True))
    return sorted(info.path.removeprefix(f"{base}/") for info in found if info.is_file)


def begun(address: str, url: str, **given: Any) -> DeltaTable:
    """Check the sink, and stage two units."""
    sink = sink_at(address, url, **given)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], rows(1, 2))
    sink.stage(KEYS[1], rows(3))
    return sink


@contextlib.contextmanager
def proxied(store: str, **given: Any) -> Iterator[LossyProxy]:
    proxy = LossyProxy(store, **{"loses": lambda method, path: False, **given})
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("given", [{}, {"partition_by": ["name"]}, UPDATE], ids=["append", "parted", "update"])
def test_sequences_are_written_once_and_read_by_readers_that_nobody_here_wrote(
    store: str, url: str, given: dict[str, Any]
) -> None:
    sink = sink_at(store, url, **given)
    assert sink.published() == 0 and sink.adopt() == ""
    sink.check(SCHEMA)
    sink.stage(KEYS[0], rows(1, 2))
    sink.stage(KEYS[1], rows(3))
    sink.stage(KEYS[2], rows())
    assert ids(store, url) == [] and sink.published() == 0
    for _ in range(2):
        sink.publish(1, KEYS[:3])
    again = sink_at(store, url, **given)
    assert again.published() == 1
    again.stage(KEYS[3], rows(4))
    again.publish(2, [KEYS[3]])
    again.publish(3, [])
    assert again.published() == 3 and not [name for name in objects(store, url) if "/staged/" in name]

    table = table_at(store, url)
    assert ids(store, url) == [1, 2, 3, 4] and table.transaction_version(str(REGION)) == 2
    frame = polars.read_delta(url, storage_options=options(store)).sort("id")
    assert frame["id"].to_list() == [1, 2, 3, 4]
    if "partition_by" not in given:  # Polars 2.1 takes the values from names of folders, and not from the log
        assert frame["name"].to_list() == ["x"] * 4
    files = [uri.removeprefix("s3://") for uri in table.file_uris()]
    plain = ds.dataset(files, filesystem=files_of(store), format="parquet", partitioning="hive").to_table()
    assert sorted(plain.column("id").to_pylist()) == [1, 2, 3, 4]
    again.empty(4, 2)
    assert ids(store, url) == [] and again.published() == 4


LOST = ("_delta_log", "region.json", ".parquet", "/staged/", "/done/")


@pytest.mark.parametrize("given", [{}, UPDATE], ids=["append", "update"])
def test_each_answer_is_lost_once_and_each_row_is_there_once(store: str, url: str, given: dict[str, Any]) -> None:
    """The server has done it. Of the requests of each kind, all first ones are lost."""
    losses = Counter[str]()

    def loses(method: str, path: str) -> bool:
        kind = next((part for part in LOST if part in path), "list")
        losses[f"{method} {kind}"] += 1
        return losses[f"{method} {kind}"] == 1

    with proxied(store, loses=loses) as proxy:
        sink = sink_at(proxy.address, url, **given)

        def life() -> None:
            sink.check(SCHEMA)
            sink.stage(KEYS[0], rows(1, 2))
            sink.stage(KEYS[1], rows(3))
            sink.publish(1, KEYS[:2])

        _repeated(life)
        assert any("PUT" in lost and "_delta_log" in lost for lost in proxy.lost)
    assert ids(store, url) == [1, 2, 3] and sink_at(store, url).published() == 1


def _repeated(act: Callable[[], None]) -> None:
    """Try a call again, as a member does."""
    for _ in range(40):
        try:
            return act()
        except RetriableError as error:
            said = "".join(traceback.format_exception(error))
        assert SECRET not in said
    raise AssertionError(said)


def test_answer_of_the_commit_is_lost_and_the_sequence_is_there_once(store: str, url: str) -> None:
    begun(store, url)
    with proxied(store, loses=lambda method, path: method == "PUT" and f"{1:020}.json" in path) as proxy:
        sink = sink_at(proxy.address, url)
        with pytest.raises(RetriableError, match="does not answer"):
            sink.publish(1, KEYS[:2])
        assert len(proxy.lost) == 1 and ids(store, url) == [1, 2, 3]
        sink.publish(1, KEYS[:2])
        assert len(proxy.lost) == 1
    assert ids(store, url) == [1, 2, 3] and sink_at(store, url).published() == 1


def test_server_that_answers_503_again_and_again(store: str, url: str) -> None:
    count = [0]
    fails = {4 * number * (number + 1) for number in range(1, 100)}  # ever more seldom, so that each call ends once
    refused: list[str] = []

    def before(method: str, path: str) -> bool:
        count[0] += 1
        if count[0] in fails:
            refused.append(path)
        return count[0] in fails

    grown = rows(3).append_column(MORE.field("crew"), pa.array([5], pa.int32()))
    with proxied(store, before=before) as proxy:
        sink = sink_at(proxy.address, url, evolve="add")
        steps: list[Callable[[], None]] = [lambda: sink.check(SCHEMA)]
        for number in range(4):
            steps.append(lambda number=number: sink.stage(KEYS[number], rows(10 + number)))  # type: ignore[misc]
            steps.append(lambda number=number: sink.publish(number + 1, [KEYS[number]]))  # type: ignore[misc]
        steps += [lambda: sink.check(MORE), lambda: sink.stage(KEYS[4], grown), lambda: sink.publish(5, [KEYS[4]])]
        for step in steps:
            _repeated(step)
    assert len(refused) > 3
    found = table_at(store, url).to_pyarrow_table().sort_by("id")
    assert found.column("crew").to_pylist() == [5, None, None, None, None]
    assert ids(store, url) == [3, 10, 11, 12, 13]


@pytest.mark.parametrize("given", [{}, UPDATE], ids=["append", "update"])
def test_others_write_between_the_reading_and_the_put(store: str, url: str, given: dict[str, Any]) -> None:
    """Their commit has the version; the region's put is refused, and its next one counts."""
    wrote: list[str] = []

    def before(method: str, path: str) -> bool:
        if method == "PUT" and f"{1:020}.json" in path and not wrote:
            wrote.append(path)
            add_rows(store, url, 9)
        return False

    begun(store, url, **given)
    with proxied(store, before=before) as proxy:
        sink_at(proxy.address, url, **given).publish(1, KEYS[:2])
    assert wrote and ids(store, url) == [1, 2, 3, 9]
    assert table_at(store, url).version() == 2 and sink_at(store, url).published() == 1


def test_others_write_and_clean_the_log_between_the_reading_and_the_put(store: str, url: str) -> None:
    """The put finds its version free, since it was cleaned away: nobody sees that commit, and it is repeated."""
    wrote: list[str] = []

    def before(method: str, path: str) -> bool:
        if method == "PUT" and f"{1:020}.json" in path and not wrote:
            wrote.append(path)
            for number in (7, 8, 9):
                add_rows(store, url, number)
            table = table_at(store, url)
            table.create_checkpoint()
            for version in range(table.version()):
                files_of(store).delete_file(f"{url.removeprefix('s3://')}/_delta_log/{version:020}.json")
        return False

    begun(store, url)
    with proxied(store, before=before) as proxy:
        sink_at(proxy.address, url).publish(1, KEYS[:2])
    assert wrote and f"_delta_log/{1:020}.json" in objects(store, url)
    assert ids(store, url) == [1, 2, 3, 7, 8, 9] and sink_at(store, url).published() == 1
    sink = sink_at(store, url)
    sink.publish(1, KEYS[:2])
    sink.stage(KEYS[2], rows(4))
    sink.publish(2, KEYS[2:3])
    assert ids(store, url) == [1, 2, 3, 4, 7, 8, 9]


def test_sequence_survives_checkpoints_cleaning_and_compaction_by_others(store: str, url: str) -> None:
    sink = begun(store, url)
    sink.publish(1, KEYS[:2])
    table = table_at(store, url)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table_at(store, url).optimize.compact()
    table = table_at(store, url)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for name in objects(store, url):
        if "/done/" in name:
            files_of(store).delete_file(f"{url.removeprefix('s3://')}/{name}")
    other = sink_at(store, url)
    other.publish(1, KEYS[:2])
    assert ids(store, url) == [1, 2, 3] and other.published() == 1


def test_publishers_at_once_and_a_foreign_writer(store: str, url: str) -> None:
    """Three of them, each with all sequences; a reader sees the first ones, each whole."""
    last = 5 if IS_LONG else 3
    sink = sink_at(store, url)
    sink.check(SCHEMA)
    for number in range(0, 2 * last, 2):
        sink.stage(KEYS[number], rows(number))
        sink.stage(KEYS[number + 1], rows(number + 1))
    failed: list[BaseException] = []

    def publish() -> None:
        other = sink_at(store, url)
        try:
            for sequence in range(1, last + 1):
                _repeated(lambda sequence=sequence: other.publish(sequence, KEYS[2 * sequence - 2 : 2 * sequence]))  # type: ignore[misc]
                other.sweep(Keep(1))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    foreign = 100
    while any(thread.is_alive() for thread in threads):
        with contextlib.suppress(deltalake.exceptions.CommitFailedError):
            add_rows(store, url, foreign)
            foreign += 1
        seen = [number for number in ids(store, url) if number < 100]
        assert seen == list(range(len(seen))) and len(seen) % 2 == 0
    for thread in threads:
        thread.join()
    assert failed == [] and ids(store, url) == [*range(2 * last), *range(100, foreign)]


@contextlib.contextmanager
def publishers() -> Iterator[Callable[[str, str], tuple[int, Callable[[], int]]]]:
    """Yield what starts a publisher in a process of its own, and returns its process and a wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.region.delta_store_process"], text=True, cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def start(address: str, url: str) -> tuple[int, Callable[[], int]]:
        print(address, url, file=stdin, flush=True)
        return int(stdout.readline()), lambda: int(stdout.readline())

    try:
        yield start
    finally:
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("happened", "every"), [(False, 1), (True, 1), (True, 12)], ids=["before", "after", "after some"]
)
def test_publisher_that_is_killed_at_each_request(store: str, happened: bool, every: int) -> None:
    """By SIGKILL, before or after the server has done what was asked; then another publishes."""
    with publishers() as start:
        number, killed = 1 - every, 0
        while True:
            number += every
            url = f"s3://{BUCKET}/{uuid.uuid4().hex}/table"
            begun(store, url)
            count, process = [0], Queue[int]()

            def kill(
                method: str, path: str, at: int = number, count: list[int] = count, process: Queue[int] = process
            ) -> bool:
                count[0] += 1
                if count[0] == at:
                    os.kill(process.get(timeout=30), signal.SIGKILL)
                return count[0] >= at

            with proxied(store, **{"loses" if happened else "before": kill}) as proxy:
                child, ended = start(proxy.address, url)
                process.put(child)
                code = ended()
            assert code in (0, -signal.SIGKILL)
            assert ids(store, url) in ([], [1, 2, 3])
            sink = sink_at(store, url)
            sink.publish(1, KEYS[:2])
            assert ids(store, url) == [1, 2, 3] and sink.published() == 1
            sink.sweep(Keep(2))
            assert not [name for name in objects(store, url) if "/staged/" in name]
            if code == 0:
                break
            killed += 1
    assert killed > 15 // every, "a publication has more requests"


def test_members_of_a_region_write_into_a_store(store: str, url: str, own_servers: str, name: str) -> None:
    """One of two fails; what it had staged is nobody's, and its records are read again."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(300))
    sink = DeltaTable(url, storage_options=options(store))

    def read() -> list[int]:
        try:
            table = table_at(store, url)
        except deltalake.exceptions.TableNotFoundError:
            return []
        return [int(value) for value in table.to_pyarrow_table().column("value").to_pylist()]

    check_exact_after_a_failure(own_servers, name, sink, read, 300)


def test_wrong_credentials_are_refused_and_shown_to_nobody(store: str, url: str) -> None:
    if shutil.which("versitygw") is None:
        pytest.skip("moto's server takes any credentials: install versitygw")
    begun(store, url)
    wrong = {**options(store), "secret_access_key": "a-wrong-secret"}
    sink = DeltaTable(url, storage_options=wrong)
    sink._place = PLACE
    sink = sink.bind("flights", REGION)
    for act, kind in (
        (lambda: sink.check(SCHEMA), NotAuthorizedError),
        (lambda: sink.stage(KEYS[2], rows(1)), NotAuthorizedError),
        (sink._log.load, RetriableError),
    ):
        with pytest.raises(kind) as refused:
            act()
        shown = repr(sink) + "".join(traceback.format_exception(refused.value))
        assert "a-wrong" not in shown and "StringToSign" not in shown and "AWSAccessKeyId" not in shown
        assert "403" in shown
    missing = DeltaTable("s3://no-such-bucket/out", storage_options=options(store)).bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="bucket of s3://no-such-bucket/out does not exist"):
        missing.check(SCHEMA)


def test_missing_right_to_commit_is_found_before_a_table_is_created(
    store: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the library's own puts are refused; the answer of the server is shown to nobody."""
    answer = b"<Error><Code>AccessDenied</Code><Token-0>a-session-token</Token-0></Error>"
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(answer)
    monkeypatch.setattr(s3_server, "_SLOW_DOWN", head + answer)

    def refuse(method: str, path: str) -> bool:
        return method == "PUT" and f"_delta_log/{2:020}.json" in path

    with proxied(store, before=refuse) as proxy, pytest.raises(NotAuthorizedError, match="403") as refused:
        sink_at(proxy.address, url).check(SCHEMA)
    assert "a-session-token" not in "".join(traceback.format_exception(refused.value))
    assert not [name for name in objects(store, url) if name.startswith("_delta_log") or "region.json" in name]
    sink_at(store, url).check(SCHEMA)


def test_no_object_has_a_credential(store: str, url: str) -> None:
    sink = begun(store, url)
    sink.publish(1, KEYS[:2])
    sink.stage(KEYS[2], rows(4))
    base = url.removeprefix("s3://")
    for name in objects(store, url):
        with files_of(store).open_input_file(f"{base}/{name}") as file:
            assert SECRET.encode() not in file.read(), name


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb"),
        ("AWS_CONDITIONAL_PUT", "disabled"),
        ("AWS_COPY_IF_NOT_EXISTS", "multipart"),
    ],
)
def test_environment_takes_no_condition_from_the_commit(
    store: str, url: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Settings of the Delta library for stores without conditional puts: the commit still has one, or is refused."""
    begun(store, url)
    monkeypatch.setenv(variable, value)
    wrote: list[str] = []

    def before(method: str, path: str) -> bool:
        if method == "PUT" and f"{1:020}.json" in path and not wrote:
            wrote.append(path)
            monkeypatch.delenv(variable)
            add_rows(store, url, 9)
            monkeypatch.setenv(variable, value)
        return False

    with proxied(store, before=before) as proxy, contextlib.suppress(RetriableError):
        sink_at(proxy.address, url).publish(1, KEYS[:2])
    assert ids(store, url) in ([], [1, 2, 3, 9])
