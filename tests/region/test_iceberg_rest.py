"""An Iceberg table behind a REST catalog: Iceberg's own server, and a proxy that loses, changes and delays answers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import subprocess
import sys
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.table import Table

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region import IcebergTable, Keep, Region
from kohort.region.sinks import iceberg_catalog
from tests.region import rest_server
from tests.region.conftest import Worker, fill, make_topic
from tests.region.rest_process import SCHEMA, key, sink_at
from tests.region.rest_server import RestServer
from tests.region.s3_server import LossyProxy
from tests.support.waiting import until

MODES = pytest.mark.parametrize("mode", ["append", "update"])
Row = tuple[int, str]
SECRET = "very-hidden-word"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with rest_server.running(tmp_path_factory.mktemp("rest")) as started:
        yield started


@pytest.fixture
def table() -> str:
    return f"air.t{uuid.uuid4().hex[:12]}"


@contextlib.contextmanager
def proxied(upstream: str, **given: Any) -> Iterator[LossyProxy]:
    proxy = LossyProxy(upstream, **{"loses": lambda method, path: False, **given})
    try:
        yield proxy
    finally:
        proxy.close()


def rows(*given: Row) -> pa.Table:
    return pa.table({"id": [row[0] for row in given], "name": [row[1] for row in given]}, schema=SCHEMA)


def strangers(server: RestServer) -> Catalog:
    """Return the catalog as anybody opens it."""
    return load_catalog("other", type="rest", uri=server.address)


def opened(server: RestServer, table: str) -> Table:
    return strangers(server).load_table(table)


def read(server: RestServer, table: str) -> list[Row]:
    found = opened(server, table).scan().to_arrow().to_pylist()
    return sorted((row["id"], row["name"]) for row in found)


def files_left(server: RestServer, table: str) -> tuple[set[str], set[str]]:
    """Return the data files and manifests that lie beside the table, and those that its snapshots have."""
    lake = opened(server, table)
    folder = Path(lake.location().removeprefix("file:"))
    there = {path.name for path in [*folder.glob("data/*"), *folder.glob("metadata/*.avro")]}
    used = {snapshot.manifest_list.rpartition("/")[2] for snapshot in lake.snapshots()}
    for snapshot in lake.snapshots():
        for manifest in snapshot.manifests(lake.io):
            used.add(manifest.manifest_path.rpartition("/")[2])
            used |= {entry.data_file.file_path.rpartition("/")[2] for entry in manifest.fetch_manifest_entry(lake.io)}
    return there, used


def sequences(server: RestServer, table: str) -> Counter[str]:
    """Return how many snapshots have each sequence."""
    summaries = [snapshot.summary for snapshot in opened(server, table).snapshots()]
    said = [summary.additional_properties for summary in summaries if summary is not None]
    return Counter(entry["kohort.sequence"] for entry in said if "kohort.sequence" in entry)


def begun(server: RestServer, table: str, mode: str) -> IcebergTable:
    """Return a sink with one published sequence."""
    sink = sink_at(server.address, table, mode)
    sink.check(SCHEMA)
    sink.stage(key(1), rows((1, "one"), (2, "two")))
    sink.publish(1, [key(1)])
    return sink


def after(mode: str, *given: list[Row]) -> list[Row]:
    """Return the rows that readers must see."""
    everything = [row for part in given for row in part]
    return sorted(everything) if mode == "append" else sorted(dict(everything).items())


FIRST: list[Row] = [(1, "one"), (2, "two")]


@MODES
def test_a_sequence_is_one_snapshot_and_read_by_a_reader_that_nobody_here_wrote(
    server: RestServer, table: str, mode: str, tmp_path: Path
) -> None:
    sink = begun(server, table, mode)
    second = [(2, "new"), (3, "three")]
    sink.stage(key(2), rows(*second))
    assert read(server, table) == FIRST
    for _ in range(2):
        sink.publish(2, [key(2)])
    again = sink_at(server.address, table, mode)
    assert again.published() == 2 and read(server, table) == after(mode, FIRST, second)
    assert sequences(server, table) == {"1": 1, "2": 1}
    again.sweep(Keep(2))
    there, used = files_left(server, table)
    assert there == used
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        metadata = opened(server, table).metadata_location.removeprefix("file://")
        found = connection.execute(f"SELECT id, name FROM iceberg_scan('{metadata}') ORDER BY ALL").fetchall()
    assert found == after(mode, FIRST, second)


def answer(status: str, body: bytes, kind: str = "text/html") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


PAGE = b"<html>the gateway's own page</html>"
FAULTS: dict[str, bytes] = {
    "lost": b"",
    "unknown": answer("500 Internal Server Error", PAGE),
    "gateway": answer("504 Gateway Timeout", PAGE),
    "limited": answer("429 Too Many Requests", PAGE),
    "missing": answer("404 Not Found", PAGE),
    "page": answer("200 OK", PAGE),
}


@MODES
@pytest.mark.parametrize("happened", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_request_of_a_publisher_may_fail(
    server: RestServer, table: str, mode: str, fault: str, happened: bool
) -> None:
    """The server has done what was asked, or has not heard of it. The next publisher finds out."""
    begun(server, table, mode)
    wanted, direct = [FIRST], sink_at(server.address, table, mode)
    for number in itertools.count(1):
        sequence = number + 1
        new = [(2, f"at {sequence}"), (100 + sequence, "new")]
        direct.stage(key(sequence), rows(*new))
        wanted.append(new)
        asked = itertools.count(1)
        struck: list[str] = []

        def strikes(method: str, path: str) -> bool:
            if next(asked) == number:  # noqa: B023 - of this round
                struck.append(f"{method} {path}")  # noqa: B023
            return bool(struck) and len(struck) == 1  # noqa: B023

        with _faulty(server, fault, happened, strikes) as address, contextlib.suppress(RetriableError):
            sink_at(address, table, mode).publish(sequence, [key(sequence)])
        if not struck:
            break
        seen = read(server, table)
        assert seen in (after(mode, *wanted), after(mode, *wanted[:-1])), struck
        direct.publish(sequence, [key(sequence)])
        assert read(server, table) == after(mode, *wanted), struck
        direct.sweep(Keep(1))
    assert number > 3
    assert set(sequences(server, table).values()) == {1}
    there, used = files_left(server, table)
    assert {name for name in there - used if name.endswith(".parquet")} == set()


@contextlib.contextmanager
def _faulty(server: RestServer, fault: str, happened: bool, strikes: Callable[[str, str], bool]) -> Iterator[str]:
    """The address of a proxy that lets one request fail."""
    once: list[bool] = []

    def struck(method: str, path: str) -> bool:
        if not once and strikes(method, path):
            once.append(True)
            return True
        return False

    text = FAULTS[fault]
    if happened and text:
        given: dict[str, Any] = {"instead": lambda method, path: text if struck(method, path) else b""}
    elif happened:
        given = {"loses": struck}
    else:
        given = {"refuses": lambda method, path: (text or None) if struck(method, path) else b""}
    with proxied(server.address, **given) as proxy:
        yield proxy.address


@MODES
def test_others_write_before_each_request(server: RestServer, table: str, mode: str) -> None:
    """The server answers 409 where the table has changed since it was read."""
    begun(server, table, mode)
    wanted, direct = [FIRST], sink_at(server.address, table, mode)
    refused = 0
    for number in itertools.count(1):
        sequence = number + 1
        new = [(2, f"at {sequence}"), (100 + sequence, "new")]
        direct.stage(key(sequence), rows(*new))
        asked, wrote, commits = itertools.count(1), [], []

        def before(method: str, path: str) -> bool:
            commits.extend([path] if method == "POST" else [])  # noqa: B023 - of this round
            if next(asked) == number:  # noqa: B023
                opened(server, table).append(rows((900 + number, "other")))  # noqa: B023
                wrote.append(1)  # noqa: B023
            return False

        with proxied(server.address, before=before) as proxy:
            sink_at(proxy.address, table, mode).publish(sequence, [key(sequence)])
        wanted.append(new)
        if not wrote:
            break
        wanted.append([(900 + number, "other")])
        refused += len(commits) - 1
        assert read(server, table) == after(mode, *wanted)
    assert number > 3 and refused > 0
    assert set(sequences(server, table).values()) == {1}
    there, used = files_left(server, table)
    assert there == used


@MODES
def test_a_commit_that_is_done_and_called_refused_counts_once(server: RestServer, table: str, mode: str) -> None:
    """The catalog's own retry finds its first attempt, and takes it for another writer's."""
    sink = begun(server, table, mode)
    sink.stage(key(2), rows((2, "new"), (3, "three")))
    text = b'{"error": {"message": "Requirement failed", "type": "CommitFailedException", "code": 409}}'
    conflict, struck = answer("409 Conflict", text, "application/json"), []

    def instead(method: str, path: str) -> bytes:
        if method == "POST" and not struck:
            struck.append(path)
            return conflict
        return b""

    with proxied(server.address, instead=instead) as proxy:
        sink_at(proxy.address, table, mode).publish(2, [key(2)])
    assert struck and read(server, table) == after(mode, FIRST, [(2, "new"), (3, "three")])
    assert sequences(server, table) == {"1": 1, "2": 1}
    sink.sweep(Keep(1))
    there, used = files_left(server, table)
    assert there == used


@MODES
def test_a_commit_that_is_given_up_and_arrives_late_is_refused(
    server: RestServer, table: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(server, table, mode)
    sink.stage(key(2), rows((2, "new"), (3, "three")))
    held, free, gone = threading.Event(), threading.Event(), threading.Event()

    def before(method: str, path: str) -> bool:
        if method == "POST":
            held.set()
            assert free.wait(60)
        return False

    def instead(method: str, path: str) -> bytes:
        if method == "POST":
            gone.set()
        return b""

    monkeypatch.setattr(iceberg_catalog, "ANSWER_TIMEOUT_S", 1.0)
    with proxied(server.address, before=before, instead=instead) as proxy:
        with pytest.raises(RetriableError, match="does not answer"):
            sink_at(proxy.address, table, mode).publish(2, [key(2)])
        assert held.is_set()
        sink.publish(2, [key(2)])
        free.set()
        assert gone.wait(60)
    assert read(server, table) == after(mode, FIRST, [(2, "new"), (3, "three")])
    assert sequences(server, table) == {"1": 1, "2": 1}


@MODES
@pytest.mark.parametrize("arrives", ["before", "behind"])
def test_a_publisher_is_killed_while_its_commit_is_under_way(
    server: RestServer, table: str, mode: str, arrives: str
) -> None:
    sink = begun(server, table, mode)
    sink.stage(key(2), rows((2, "new"), (3, "three")))
    held, free, gone = threading.Event(), threading.Event(), threading.Event()

    def before(method: str, path: str) -> bool:
        if method == "POST":
            held.set()
            assert free.wait(60)
        return False

    def instead(method: str, path: str) -> bytes:
        if method == "POST":
            gone.set()
        return b""

    with proxied(server.address, before=before, instead=instead) as proxy:
        command = [sys.executable, "-m", "tests.region.rest_process", proxy.address, table, mode, "2"]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        try:
            assert held.wait(60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if arrives == "behind":
            sink.publish(2, [key(2)])
        free.set()
        assert gone.wait(60)
        sink.publish(2, [key(2)])
    assert read(server, table) == after(mode, FIRST, [(2, "new"), (3, "three")])
    assert sequences(server, table) == {"1": 1, "2": 1}
    sink.sweep(Keep(2))
    there, used = files_left(server, table)
    assert {name for name in there - used if name.endswith(".parquet")} == set()


@MODES
def test_a_server_that_is_away_and_back(table: str, mode: str, tmp_path: Path) -> None:
    with rest_server.running(tmp_path) as server:
        sink = begun(server, table, mode)
        sink.stage(key(2), rows((2, "new")))
        server.stop()
        acts: list[Callable[[], object]] = [
            lambda: sink.publish(2, [key(2)]),
            lambda: sink.stage(key(3), rows((3, "x"))),
            sink.published,
            lambda: sink.empty(3, 2),
            lambda: sink_at(server.address, table, mode).check(SCHEMA),
        ]
        for act in acts:
            with pytest.raises(RetriableError, match="does not answer"):
                act()
        server.start()
        sink.publish(2, [key(2)])
        assert read(server, table) == after(mode, FIRST, [(2, "new")])


def test_only_the_catalog_says_that_a_table_does_not_exist(server: RestServer, table: str) -> None:
    """A gateway also answers 404 while the catalog is away: nothing counts as published or emptied for that."""
    sink = begun(server, table, "append")
    page = FAULTS["missing"]
    with proxied(server.address, refuses=lambda method, path: page if table[4:] in path else b"") as proxy:
        behind = sink_at(proxy.address, table, "append")
        acts: list[Callable[[], object]] = [behind.published, lambda: behind.empty(2, 2), lambda: behind.check(SCHEMA)]
        for act in acts:
            with pytest.raises(RetriableError, match="another server does"):
                act()
    assert sink.published() == 1 and read(server, table) == FIRST
    assert sink_at(server.address, f"{table}x", "append").published() == 0


def test_an_update_of_a_table_whose_rows_have_ids_is_refused(server: RestServer, table: str) -> None:
    catalog = strangers(server)
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace("air")
    catalog.create_table(table, SCHEMA, properties={"format-version": "3"})
    with pytest.raises(InvalidInputError, match="format version 3.*needs version 2"):
        sink_at(server.address, table, "update").check(SCHEMA)


def _logged(caplog: pytest.LogCaptureFixture, error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + caplog.text + repr(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("401 Unauthorized", NotAuthorizedError),
        ("403 Forbidden", NotAuthorizedError),
        ("400 Bad Request", InvalidInputError),
        ("500 Internal Server Error", RetriableError),
        ("200 OK", RetriableError),
    ],
    ids=lambda given: str(given).partition(" ")[0],
)
@pytest.mark.parametrize("at", ["tokens", "config", "tables"])
def test_an_answer_that_repeats_the_credentials_is_shown_to_nobody(
    server: RestServer, table: str, at: str, status: str, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    begun(server, table, "append")
    said = f'{{"error": {{"message": "no {SECRET} here", "type": "OddException", "code": 1}}}}'.encode()
    page = answer(status, said if kind is not RetriableError else b"[%s]" % said, "application/json")

    def refuses(method: str, path: str) -> bytes:
        return page if f"{at}/" in f"{path.partition('?')[0]}/" else b""

    with caplog.at_level(logging.DEBUG), proxied(server.address, refuses=refuses) as proxy:
        access = {"credential": f"kohort:{SECRET}", "oauth2-server-uri": f"{proxy.address}/v1/oauth/tokens"}
        sink = sink_at(proxy.address, table, "append", **access)
        with pytest.raises((NotAuthorizedError, InvalidInputError, RetriableError)) as refused:
            sink.published()
    assert SECRET not in _logged(caplog, refused.value)
    if at != "tokens":
        assert isinstance(refused.value, kind)


@pytest.mark.parametrize("said", [SECRET, "Bearer fetched-by-pyiceberg", "basic a29ob3J0OnNlY3JldA=="])
def test_a_missing_table_whose_error_repeats_the_credentials_is_shown_to_nobody(
    server: RestServer, table: str, said: str
) -> None:
    """The catalog itself says so: the sink takes its word, and not its words."""
    begun(server, table, "append")
    error = f'{{"error": {{"message": "none for {said}", "type": "NoSuchTableException", "code": 404}}}}'
    page = answer("404 Not Found", error.encode(), "application/json")
    refuses = lambda method, path: page if "/tables/" in path else b""  # noqa: E731
    with proxied(server.address, refuses=refuses) as proxy:
        sink = sink_at(proxy.address, table, "append", token=SECRET)
        with pytest.raises(InvalidInputError, match="is no Iceberg table") as refused:
            sink.stage(key(1), rows((1, "a")))
    assert said.split()[-1] not in "".join(traceback.format_exception(refused.value))


def test_a_token_that_is_no_header_is_shown_to_nobody(server: RestServer, table: str) -> None:
    """A token from a file often has a line's end."""
    with pytest.raises(InvalidInputError) as refused:
        sink_at(
            server.address, table, "append", token=f"{SECRET}\n", **{"oauth2-server-uri": server.address}
        ).published()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_members_of_a_region_write_through_a_catalog_that_goes_away(
    own_servers: str, name: str, table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One member fails, the catalog is killed meanwhile. No log, object or record has the credentials."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(300))
    with caplog.at_level(logging.DEBUG), rest_server.running(tmp_path) as server:
        access = {"credential": f"kohort:{SECRET}", "oauth2-server-uri": f"{server.address}/v1/oauth/tokens"}
        sink = IcebergTable(table, catalog={"type": "rest", "uri": server.address, **access})

        def found() -> list[int]:
            catalog = strangers(server)
            if not catalog.namespace_exists("air") or not catalog.table_exists(table):
                return []
            there = catalog.load_table(table).scan().to_arrow().column("value").to_pylist()
            return [int(value) for value in there]

        with Region(name, own_servers, checkpoint_every="500ms") as region:
            workers = [Worker(region, f"worker-{number}", sink, name) for number in range(2)]
            until(lambda: len(found()) > 0, "a sequence is complete")
            server.stop()
            workers[0].fail_at = 0
            fill(own_servers, name, range(300, 600))
            workers[0].thread.join(60)
            assert isinstance(workers[0].error, ValueError)
            server.start()
            until(lambda: len(found()) >= 600, "all is published")
            workers[1].close()
        assert Counter(found()) == Counter(range(600))
        assert set(sequences(server, table).values()) == {1}
    assert SECRET not in caplog.text
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
