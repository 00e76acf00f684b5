"""Sinks that are away for longer than five checkpoints: the region waits for them, and nobody goes back."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.dataset
import pytest
from prometheus_client.core import CollectorRegistry

from kohort.errors import InvalidInputError, NotAuthorizedError, TimedOutError
from kohort.region import DeltaTable, ParquetFolder, Region, SqlTable
from kohort.region.metrics import RegionExporter
from kohort.region.sinks import Sink
from kohort.region.sinks.availability import is_permanent_error, is_temporary_error
from kohort.region.staged import StagedKey
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.region.postgres import Server, programs, running
from tests.support.tiny_disk import tiny_disk
from tests.support.waiting import until

FAILURES = 5
"""Number of resets in a row that would have stopped the region."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, which is stopped and started."""
    found = programs()
    if not found:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    with running(found) as own:
        yield own


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with tiny_disk(folder, "4m"):
        yield folder


def units_of(worker: Worker) -> Any:
    return worker.consumer._stager._rows


def failures(worker: Worker) -> int:
    return worker.consumer._events._sink_wait.failures


def gauge(region: Region, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(RegionExporter(region.name, region._measured_now, region._plane_seen))
    return registry.get_sample_value(name, {"region": region.name, **labels})


def test_a_database_that_restarts_is_waited_for(
    server: Server, own_servers: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> Counter[int]:
        with psycopg.connect(server.url) as connection:
            there = connection.execute("SELECT to_regclass('flights') IS NOT NULL").fetchone()
            rows = connection.execute("SELECT value FROM flights").fetchall() if there and there[0] else []
            return Counter(int(row[0]) for row in rows)

    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    with caplog.at_level(logging.INFO, "kohort.region"), Region(name, own_servers, checkpoint_every="200ms") as region:
        sink = SqlTable(server.url, "flights")
        worker = Worker(region, "m1", sink, name)
        until(lambda: read() == Counter(range(200)), "what was there is published")
        until(lambda: region.describe().published == region.describe().sequence, "nothing is on its way")
        server.control("stop")
        fill(own_servers, name, range(200, 400))
        until(lambda: failures(worker) >= FAILURES, "it tries again and again")
        seen = region.describe()
        assert [member.waits_for for member in seen.members if "database" in member.waits_for], seen
        assert gauge(region, "kohort_region_member_waits_for_sink", member="m1") == 1
        assert gauge(region, "kohort_region_sink_waits", sink=seen.sinks[0].place) == 1
        server.control("start")
        until(lambda: read() == Counter(range(400)), "all is published")
        until(lambda: not region.describe().members[0].waits_for, "it waits no more")
        assert gauge(region, "kohort_region_member_waits_for_sink", member="m1") == 0
        assert worker.consumer.metrics.resets == 0 and region.describe().stopped == ""
        worker.close()
    assert worker.error is None
    said = [record.message for record in caplog.records if "accepts nothing at the moment" in record.message]
    assert len(said) == 1, "once, and again after half a minute"


@pytest.mark.parametrize("unit_bytes", [1, 2**30], ids=["in submit", "at the checkpoint"])
def test_a_full_disk_is_waited_for(small_disk: Path, own_servers: str, name: str, unit_bytes: int) -> None:
    folder, ballast = small_disk / "out", small_disk / "ballast"

    def read() -> Counter[int]:
        if not any(folder.glob("sequence=*/*.parquet")):
            return Counter()
        found: Any = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()
        return Counter(int(value) for value in found.column("value").to_pylist())

    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    with Region(name, own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", ParquetFolder(folder), name)
        units_of(worker)._unit_bytes = unit_bytes
        until(lambda: read() == Counter(range(100)), "what was there is published")
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free))
        fill(own_servers, name, range(100, 300))
        until(
            lambda: any(member.waits_for for member in region.describe().members), "the region says what it waits for"
        )
        until(lambda: unit_bytes == 1 or failures(worker) >= FAILURES, "it tries again and again")
        ballast.unlink()
        until(lambda: read() == Counter(range(300)), "all is published")
        assert worker.consumer.metrics.resets == 0
        worker.close()
    assert worker.error is None


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        *((OSError(code, os.strerror(code)), True) for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)),
        *((OSError(code, os.strerror(code)), True) for code in (errno.ETIMEDOUT, errno.ECONNRESET, errno.EMFILE)),
        *((OSError(code, os.strerror(code)), False) for code in (errno.EROFS, errno.EACCES, errno.EPERM)),
        *((OSError(code, os.strerror(code)), False) for code in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)),
        (OSError(errno.EXDEV, os.strerror(errno.EXDEV)), False),
        (ssl.SSLCertVerificationError(1, "certificate has expired"), False),
        (ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "which is ENOENT's number"), True),
        (NotAuthorizedError("no right to write the database"), False),
        (OSError("of a library, without a number"), True),
        (TimedOutError("the database does not answer"), True),
        (InvalidInputError("a row that does not fit"), False),
    ],
    ids=repr,
)
def test_errors_that_pass_are_waited_for_and_others_are_not(error: Exception, waits: bool) -> None:
    assert is_temporary_error(error) is waits
    assert is_permanent_error(error) is not waits


def test_a_read_only_disk_is_reported_at_once(small_disk: Path, own_servers: str, name: str) -> None:
    """A read-only disk was taken for one that is full, and tried again for ever.

    Rows are staged when they are submitted, long before the next checkpoint.
    """
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    with Region(name, own_servers, checkpoint_every="3s") as region:
        worker = Worker(region, "m1", ParquetFolder(small_disk / "out"), name)
        units_of(worker)._unit_bytes = 1
        until(lambda: region.describe().published > 0, "a sequence is published")
        until(lambda: region.describe().published == region.describe().sequence, "nothing is on its way")
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        fill(own_servers, name, range(100, 300))
        worker.thread.join(60)
        assert isinstance(worker.error, OSError) and worker.error.errno == errno.EROFS


def sink_on(disk: Path, kind: str) -> Sink:
    if kind == "sqlite":
        return SqlTable(f"sqlite:///{disk}/out.db", "flights")
    return DeltaTable(disk / "out") if kind == "delta" else ParquetFolder(disk / "out")


def rows_on(disk: Path, kind: str) -> Counter[int]:
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(disk / "out.db")) as connection:
            return Counter(int(row[0]) for row in connection.execute("SELECT value FROM flights").fetchall())
    if kind == "delta":
        found: Any = deltalake.DeltaTable(disk / "out").to_pyarrow_table()
    else:
        found = pyarrow.dataset.dataset(disk / "out", partitioning="hive").to_table()
    return Counter(int(value) for value in found.column("value").to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "delta", "sqlite"])
def test_a_read_only_disk_at_a_checkpoint_ends_the_member_at_once(
    small_disk: Path, own_servers: str, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the region reset five times and then stopped, so that a person had to resume it."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    with caplog.at_level(logging.INFO, "kohort.region"), Region(name, own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", sink_on(small_disk, kind), name)
        until(lambda: region.describe().published > 0, "a sequence is published")
        until(lambda: rows_or_none(small_disk, kind) == Counter(range(100)), "what was there is published")
        until(lambda: remounted(small_disk, "ro"), "no file is open for writing")
        fill(own_servers, name, range(100, 300))
        until(lambda: worker.error is not None, "it is told")
        refused: object = worker.error
        if kind == "sqlite":
            assert isinstance(refused, NotAuthorizedError), refused
        else:
            assert isinstance(refused, OSError) and refused.errno == errno.EROFS, refused
        worker.thread.join(90)
        assert region.describe().stopped == ""
        resets = [record.message for record in caplog.records if "resets to sequence" in record.message]
        assert len(resets) == 1 and "m1 could not stage its rows" in resets[0], resets
        assert remounted(small_disk, "rw")
        again = Worker(region, "m2", sink_on(small_disk, kind), name)
        until(lambda: rows_or_none(small_disk, kind) == Counter(range(300)), "each row is there once")
        again.close()
    assert again.error is None


def remounted(disk: Path, how: str) -> bool:
    return (
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=False, capture_output=True).returncode == 0
    )


def rows_or_none(disk: Path, kind: str) -> Counter[int] | None:
    try:
        return rows_on(disk, kind)
    except (OSError, sqlite3.Error):
        return None


class ReadOnlyLater(Collected):
    """A sink whose place becomes read-only: first for publishing, then for staging too."""

    publishes = stages = True

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        if not self.stages:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().stage(key, table)

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        if not self.publishes:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().publish(sequence, keys)


def test_member_whose_sink_refuses_to_stage_and_to_publish_ends_at_once(own_servers: str, name: str) -> None:
    """A sequence was on its way when the disk became read-only: the member stayed for a minute, for nothing."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink = ReadOnlyLater()
    with Region(name, own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "m1", sink, name)
        until(lambda: sink.rows() == Counter(range(100)), "what was there is published")
        sink.publishes = False
        fill(own_servers, name, range(100, 200))
        until(lambda: region.describe().published < region.describe().sequence, "a sequence is on its way")
        sink.stages = False
        fill(own_servers, name, range(200, 300))
        until(lambda: worker.error is not None, "the application has its error", 20)
        assert isinstance(worker.error, OSError) and worker.error.errno == errno.EROFS, worker.error
        worker.thread.join(60)
        sink.publishes = sink.stages = True
        again = Worker(region, "m2", sink, name)
        until(lambda: sink.rows() == Counter(range(300)), "each row is there once")
        assert region.describe().stopped == ""
        again.close()
    assert again.error is None


def test_closing_a_member_that_leaves_by_itself_gives_it_no_more_time(own_servers: str, name: str) -> None:
    with Region(name, own_servers) as region:
        make_topic(own_servers, name)
        worker = Worker(region, "m1", Collected(), name)
        events = worker.consumer._events
        events.set_close_deadline(5)
        assert events._end_by is not None
        soon = events._end_by[0]
        worker.consumer.request_close(60)
        assert events._end_by[0] == soon
        worker.thread.join(60)
