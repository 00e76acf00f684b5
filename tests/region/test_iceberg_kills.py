"""An Iceberg table in an object store, whose writers are killed at each request and at the commit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from kohort.errors import RetriableError
from kohort.region import Keep
from tests.region import rest_server
from tests.region.conftest import make_topic
from tests.region.iceberg_process import ACTS, KEYS, SCHEMA, rows, sink_at
from tests.region.rest_server import RestServer
from tests.region.s3_server import ACCESS, LossyProxy, files_of
from tests.region.test_kills import LONG, PARTITIONS, Processes, kill_in_turn
from tests.support.long_runs import IS_LONG

FIRST = [(1, "x"), (2, "x"), (3, "x")]
SECOND = [(2, "new"), (4, "new"), (5, "new")]
EVERY = 1 if IS_LONG else 19
"""Of how many requests one is the last: the commits and what is around them are tried always."""
Catalogs = Callable[[], dict[str, str]]
MODES = pytest.mark.parametrize("mode", ["append", "update"])


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    folder = tmp_path_factory.mktemp("rest")
    with rest_server.running(folder, store, f"s3://lake/{uuid.uuid4().hex}") as started:
        yield started


@pytest.fixture(params=["sqlite", "rest"])
def fresh(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> Catalogs:
    """Return what makes the properties of a catalog without tables, whose warehouse is in the store."""
    numbers = itertools.count()
    if request.param == "sqlite":
        return lambda: {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog-{next(numbers)}.db",
            "warehouse": f"s3://lake/{uuid.uuid4().hex}",
            "s3.endpoint": store,
            **ACCESS,
        }
    started: RestServer = request.getfixturevalue("server")

    def emptied() -> dict[str, str]:
        properties = {"type": "rest", "uri": started.address, "s3.endpoint": store, **ACCESS}
        catalog = load_catalog("default", **properties)
        if catalog.namespace_exists("air"):
            for name in catalog.list_tables("air"):
                location = catalog.load_table(name).location().removeprefix("s3://")
                catalog.drop_table(name)
                for path in files_below(store, location):  # the next table has the same
                    files_of(store).delete_file(path)
        return properties

    return emptied


def files_below(store: str, folder: str) -> list[str]:
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    return [found.path for found in files_of(store).get_file_info(selector) if found.is_file]


def read(catalog: dict[str, str]) -> list[tuple[int, str]]:
    """Return the rows as a stranger reads them."""
    found = load_catalog("default", **catalog).load_table("air.flights").scan().to_arrow().to_pylist()
    return sorted((row["id"], row["name"]) for row in found)


def shown(mode: str, *parts: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the rows that readers must see."""
    everything = [row for part in parts for row in part]
    return sorted(everything) if mode == "append" else sorted(dict(everything).items())


def left(catalog: dict[str, str]) -> list[str]:
    """Return what lies beside the table: what is staged, and data files that no snapshot has."""
    table = load_catalog("default", **catalog).load_table("air.flights")
    base = table.location().removeprefix("s3://")
    paths = files_below(catalog["s3.endpoint"], base)
    used = set()
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            used |= {entry.data_file.file_path.removeprefix("s3://") for entry in entries}
    data = [path for path in paths if path.endswith(".parquet") and path not in used]
    return data + [path for path in paths if path.endswith(".json") and "/staged/" in path]


def begun(catalog: dict[str, str], mode: str) -> None:
    """One sequence is published, the next one is staged."""
    sink = sink_at(catalog, mode)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], rows(1, 2))
    sink.stage(KEYS[1], rows(3))
    sink.publish(1, KEYS[:2])
    sink.stage(KEYS[4], rows(2, 4, name="new"))
    sink.stage(KEYS[5], rows(5, name="new"))


def settled(catalog: dict[str, str], mode: str, what: str) -> None:
    """Whoever comes next goes on: nothing is lost, nothing is there twice, nothing is left."""
    before = read(catalog)
    sink = sink_at(catalog, mode)
    if what == "empty":
        assert before in ([], FIRST)
        sink.empty(2, 2)
        assert read(catalog) == [] and sink.published() == 2
    else:
        assert before in (FIRST, shown(mode, FIRST, SECOND)) if what == "publish" else before == FIRST
        for _ in range(2):
            sink.publish(2, KEYS[4:6])
        assert read(catalog) == shown(mode, FIRST, SECOND) and sink.published() == 2
    sink.sweep(Keep(2))
    assert left(catalog) == []


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., tuple[int, Callable[[], int]]]]:
    """Yield what starts a process, and returns its id and a wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.region.iceberg_process"], text=True, cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def start(*given: Any) -> tuple[int, Callable[[], int]]:
        print(json.dumps(given), file=stdin, flush=True)
        return int(stdout.readline()), lambda: int(stdout.readline())

    try:
        yield start
    finally:
        process.communicate(timeout=30)


@contextlib.contextmanager
def proxied(catalog: dict[str, str], **given: Any) -> Iterator[dict[str, str]]:
    """Yield the catalog's properties with proxies before the store and before the catalog, if it is a server."""
    with contextlib.ExitStack() as closing:
        there = dict(catalog)
        for name in ("s3.endpoint", "uri"):
            if there[name].startswith("http"):
                proxy = LossyProxy(there[name], **{"loses": lambda method, path: False, **given})
                closing.callback(proxy.close)
                there[name] = proxy.address
        yield there


@pytest.mark.slow
@pytest.mark.timeout(3_600 if IS_LONG else 600)
@MODES
@pytest.mark.parametrize("what", ACTS if IS_LONG else ["publish"])
@pytest.mark.parametrize("happened", [False, True], ids=["before", "after"])
def test_a_process_that_is_killed_at_each_request(fresh: Catalogs, mode: str, what: str, happened: bool) -> None:
    """By SIGKILL, before or after a server has done what was asked."""
    with processes() as start:
        killed = 0
        for number in itertools.count(1, EVERY):
            catalog = fresh()
            begun(catalog, mode)
            count, process = itertools.count(1), Queue[int]()

            def kill(method: str, path: str, at: int = number, count: Any = count, process: Any = process) -> bool:
                now = next(count)
                if now == at:
                    os.kill(process.get(timeout=30), signal.SIGKILL)
                return now >= at

            with proxied(catalog, **{"loses" if happened else "before": kill}) as there:
                child, ended = start(there, mode, what, "")
                process.put(child)
                code = ended()
            assert code in (0, -signal.SIGKILL), number
            settled(catalog, mode, what)
            if code == 0:
                break
            killed += 1
    assert killed >= (5 if IS_LONG else 1), "an act has more requests"


@MODES
@pytest.mark.parametrize("what", ["publish", "empty"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_at_its_commit(fresh: Catalogs, mode: str, what: str, when: str) -> None:
    catalog = fresh()
    begun(catalog, mode)
    with processes() as start:
        assert start(catalog, mode, what, when)[1]() == -signal.SIGKILL
    happened = shown(mode, FIRST, SECOND) if what == "publish" else []
    assert read(catalog) == (happened if when == "after" else FIRST)
    settled(catalog, mode, what)


@pytest.mark.slow
@pytest.mark.timeout(3_600 if IS_LONG else 600)
@MODES
def test_each_answer_is_lost_once(fresh: Catalogs, mode: str) -> None:
    """Of the store or of the catalog; the server has done what was asked."""
    for number in itertools.count(1, 1 if IS_LONG else 15):
        catalog = fresh()
        begun(catalog, mode)
        count, lost = itertools.count(1), list[str]()

        def loses(method: str, path: str, at: int = number, count: Any = count, lost: list[str] = lost) -> bool:
            if next(count) == at:
                lost.append(f"{method} {path}")
                return True
            return False

        with proxied(catalog, loses=loses) as there, contextlib.suppress(RetriableError, OSError):
            sink_at(there, mode).publish(2, KEYS[4:6])
        settled(catalog, mode, "publish")
        if not lost:
            break
    assert number > 10


def test_a_catalog_or_a_store_that_is_away_is_tried_again(fresh: Catalogs) -> None:
    catalog = fresh()
    begun(catalog, "append")
    for away in ("s3.endpoint", "uri"):
        there = dict(catalog)
        if there[away].startswith("http"):
            with proxied(catalog) as gone:
                there[away] = gone[away]  # closed below
        else:
            there[away] = "sqlite:////no/such/folder/catalog.db"
        with pytest.raises((RetriableError, OSError)):
            sink_at(there, "append").publish(2, KEYS[4:6])
        assert read(catalog) == FIRST
    settled(catalog, "append", "publish")


class TableReader:
    """Counts the rows of the table's newest snapshot."""

    def __init__(self, catalog: dict[str, str]) -> None:
        self._catalog = catalog

    def table(self) -> Table | None:
        catalog = load_catalog("default", **self._catalog)
        there = catalog.namespace_exists("air") and catalog.table_exists("air.flights")
        return catalog.load_table("air.flights") if there else None

    @property
    def rows(self) -> int:
        table = self.table()
        return 0 if table is None else table.scan().count()

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.slow
@pytest.mark.timeout(3_600 if LONG else 240)
def test_whoever_is_killed_the_table_is_the_input(fresh: Catalogs, own_servers: str, name: str, tmp_path: Path) -> None:
    """Members of a region and its control plane are killed in turn, while records come."""
    make_topic(own_servers, name, PARTITIONS)
    (tmp_path / "out").mkdir()
    catalog = fresh()
    processes, reader = Processes(own_servers, name, tmp_path / "out", "classic", "checkpoint"), TableReader(catalog)
    processes.more, processes.forks = ["--iceberg", json.dumps(catalog)], False
    try:
        sent = kill_in_turn(processes, reader, own_servers, name)
    finally:
        processes.end()
    table = reader.table()
    assert table is not None
    found = table.scan().to_arrow().to_pylist()
    assert len(found) == len(sent.values)
    assert {(row["partition"], row["offset"]): row["value"] for row in found} == sent.values
