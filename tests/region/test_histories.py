"""A sink and the region's topic of two histories: refused with both numbers, and how a person goes on."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

import deltalake
import psycopg
import pyarrow.parquet as pq
import pytest

from kohort import Admin, Broker, TopicPartition
from kohort.cli.app import run
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import InvalidInputError
from kohort.region import DeltaTable, ParquetFolder, Region, SqlTable
from kohort.region.admission import Applicant
from kohort.region.consuming.member_thread import RegionStoppedError
from kohort.region.region_log import read_regions
from kohort.region.sinks import Sink
from tests.region.conftest import Worker, fill, make_topic
from tests.region.postgres import Server
from tests.region.test_region import committed
from tests.support.waiting import until

CONFIG = {"group.initial.rebalance.delay.ms": "0"}
KINDS = ("parquet", "delta", "sqlite", "postgres")
Read = Callable[[], list[int]]


@pytest.fixture(params=KINDS)
def sink_and_rows(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Sink, Read]:
    out, kind = tmp_path / "out", str(request.param)
    if kind == "parquet":
        return ParquetFolder(out), lambda: _parquet(out)
    if kind == "delta":
        return DeltaTable(out), lambda: _values(deltalake.DeltaTable(str(out)).to_pyarrow_table()["value"].to_pylist())
    if kind == "sqlite":
        out.mkdir()
        return SqlTable(f"sqlite:///{out}/rows.db", "flights"), lambda: _sqlite(out / "rows.db")
    server: Server = request.getfixturevalue("postgres")
    url = server.fresh()
    request.getfixturevalue("monkeypatch").setenv("PGUSER", "kohort")  # a place's name has no user
    return SqlTable(url, "flights"), lambda: _postgres(url)


def _values(found: Iterable[bytes]) -> list[int]:
    return [int(value) for value in found]


def _parquet(out: Path) -> list[int]:
    return [
        number
        for file in out.glob("sequence=*/*.parquet")
        for number in _values(pq.ParquetFile(file).read()["value"].to_pylist())
    ]


def _sqlite(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [int(row[0]) for row in database.execute("SELECT value FROM flights")]


def _postgres(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [int(row[0]) for row in connection.execute("SELECT value FROM flights").fetchall()]


def work_through(servers: str, name: str, sink: Sink, records: int) -> int:
    """An application of the region that ends with a sequence when it has read so many; the sequence."""
    with Region(name, servers, checkpoint_every="100ms") as region:
        with region.consumer("worker-1", group_id=name, topics=[name], into=sink, start="beginning") as consumer:
            seen = 0
            for table in consumer.tables():
                consumer.submit(table.select(["value"]))
                seen += table.num_rows
                if seen >= records:
                    consumer.close()  # the loop ends when this table is in the output
        return consumer.sequence


def refusal(servers: str, name: str, sink: Sink) -> str:
    with Region(name, servers) as region, pytest.raises(InvalidInputError) as refused:
        region.consumer("worker-1", group_id=name, topics=[name], into=sink)
    return refused.value.message


def adopt(servers: str, name: str, sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the command that the message names."""
    words = ["region", "adopt", name, sink.place, "--bootstrap-server", servers]
    assert run(words) != 0, "it is only shown"
    assert "shows sequence" in capsys.readouterr().out
    assert run([*words, "--execute"]) == 0


def remove(sink: Sink, folder: Path) -> None:
    if not isinstance(sink, SqlTable) or "sqlite" in sink.place:
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
        return
    with sink.bind("r", UUID(int=0))._transaction() as at:  # type: ignore[attr-defined]
        for table in ("{target}", "{staging}", "{sequences}", "{keys}"):
            at.execute_template(f"DROP TABLE {table}")


def test_broker_from_a_backup_is_refused_by_a_sink_that_is_ahead(
    sink_and_rows: tuple[Sink, Read], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next sequences were taken for published: 200 of 600 ids never appeared, and offsets were committed."""
    sink, rows = sink_and_rows
    folder, backup = tmp_path / "broker", tmp_path / "backup"
    with Broker(data_dir=folder, config=CONFIG) as broker:
        make_topic(broker.bootstrap_servers, name)
        fill(broker.bootstrap_servers, name, range(100))
        first = work_through(broker.bootstrap_servers, name, sink, 100)
    shutil.copytree(folder, backup)
    with Broker(data_dir=folder, config=CONFIG) as broker:
        fill(broker.bootstrap_servers, name, range(100, 200))
        last = work_through(broker.bootstrap_servers, name, sink, 100)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    with Broker(data_dir=folder, config=CONFIG) as broker:
        servers = broker.bootstrap_servers
        fill(servers, name, range(200, 300))
        text = refusal(servers, name, sink)
        assert (
            f"shows sequence {last}" in text and f"knows of sequence {first}" in text and "kohort region adopt" in text
        )
        adopt(servers, name, sink, capsys)
        assert work_through(servers, name, sink, 100) > last
        assert Counter(rows()) == Counter(range(300)), "what was published stays, what is new comes"


def test_sink_that_was_removed_is_refused(
    sink_and_rows: tuple[Sink, Read], tmp_path: Path, own_servers: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The region went on behind its manifest: 50 of 100 rows, without a word."""
    sink, rows = sink_and_rows
    make_topic(own_servers, name)
    fill(own_servers, name, range(52))
    shown = work_through(own_servers, name, sink, 52)
    remove(sink, tmp_path)
    fill(own_servers, name, range(52, 100))
    text = refusal(own_servers, name, sink)
    assert "shows sequence 0" in text and f"shown sequence {shown}" in text
    adopt(own_servers, name, sink, capsys)
    work_through(own_servers, name, sink, 48)
    assert Counter(rows()) == Counter(range(52, 100)), "a person has taken the rows that are gone for gone"


def test_region_that_adopted_a_sink_reads_everything_again_when_it_is_emptied(
    tmp_path: Path, own_servers: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third way that the refusal names."""
    out = tmp_path / "out"
    make_topic(own_servers, name)
    fill(own_servers, name, range(60))
    work_through(own_servers, name, ParquetFolder(out), 60)
    shutil.rmtree(out)
    adopt(own_servers, name, ParquetFolder(out), capsys)
    with Region(name, own_servers, checkpoint_every="100ms") as region:
        worker = Worker(region, "worker-1", ParquetFolder(out), name)
        until(lambda: region.describe().members != (), "it is there")
        words = ["region", "reset", name, "--to-initial", "--empty-sinks", "--execute"]
        assert run([*words, "--bootstrap-server", own_servers]) == 0
        until(lambda: len(list(out.glob("sequence=*/*.parquet"))) > 0, "all comes again")
        worker.close()
    rows = [
        row for file in out.glob("sequence=*/*.parquet") for row in pq.ParquetFile(file).read()["value"].to_pylist()
    ]
    assert Counter(_values(rows)) == Counter(range(60))


def test_sink_that_is_ahead_stops_the_region_when_another_takes_over(
    tmp_path: Path, own_servers: str, name: str
) -> None:
    """The members were admitted before: they say what their sink shows with each connection."""
    sink = ParquetFolder(tmp_path / "out")
    make_topic(own_servers, name)
    fill(own_servers, name, range(60))
    with Region(name, own_servers, checkpoint_every="100ms") as region, Region(name, own_servers) as other:
        worker = Worker(region, "worker-1", sink, name)
        until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
        bound = sink.bind(name, region.admit(Applicant("worker-1", name, (name,)), None)[0])
        last = bound.published()
        bound.publish(last + 20, [])
        other.serve()
        worker.thread.join(60)
        assert isinstance(worker.error, RegionStoppedError)
        assert f"shows sequence {last + 20}" in str(worker.error) and "kohort region resume" in str(worker.error)
        assert "shows sequence" in other.describe().stopped


def test_refused_member_leaves_nothing_claimed(tmp_path: Path, own_servers: str, name: str) -> None:
    """The group was the region's for ever, which had no member in it."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(20))
    out = ParquetFolder(tmp_path / "out")
    work_through(own_servers, name, out, 20)
    for region_name in (f"{name}-new", name):
        with Region(region_name, own_servers) as region, pytest.raises(InvalidInputError):
            region.consumer("worker-1", group_id=f"{name}-free", topics=[name], into=out)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert not any(f"{name}-free" in groups for _, groups in read_regions(own_servers, {}).values())
    assert f"{name}-new" not in read_regions(own_servers, {}), "and it was never born"


def test_changed_group_is_refused_unless_it_is_asked_for(tmp_path: Path, own_servers: str, name: str) -> None:
    """All records came again, in the group's own name, from the beginning: 10 of 20 ids twice."""
    sink = ParquetFolder(tmp_path / "out")
    make_topic(own_servers, name)
    fill(own_servers, name, range(20))
    work_through(own_servers, name, sink, 20)
    other = f"{name}-2"
    for pattern, topics in ((None, [name]), (f"^{name}$", [])):
        with Region(name, own_servers) as region, pytest.raises(InvalidInputError, match="would be there twice"):
            region.consumer("worker-2", group_id=other, topics=topics, pattern=pattern, into=sink, start="beginning")
    assert not any(other in groups for _, groups in read_regions(own_servers, {}).values())
    with Region(name, own_servers) as region:
        elsewhere = region.consumer("q", group_id=f"{name}-3", topics=[name], into=ParquetFolder(tmp_path / "else"))
        elsewhere.close()
        asked = region.consumer("worker-2", group_id=other, topics=[name], into=sink, reads_again=True)
        asked.close()


@pytest.mark.parametrize("offset", [0, 25, 10_000, None], ids=["older", "between", "past the end", "gone"])
def test_group_offsets_of_another_history_do_not_count(
    tmp_path: Path, own_servers: str, name: str, offset: int | None
) -> None:
    """The manifest counts after the first sequence, and each sequence writes the group's offsets anew."""
    out = tmp_path / "out"
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(50), 1)
    work_through(own_servers, name, ParquetFolder(out), 50)
    where = TopicPartition(name, 0)
    with Admin(own_servers) as admin:
        if offset is None:
            admin.delete_consumer_groups([name]).all()
        else:
            admin.alter_consumer_group_offsets(name, {where: OffsetAndMetadata(offset)}).all()
    fill(own_servers, name, range(50, 100), 1)
    work_through(own_servers, name, ParquetFolder(out), 50)
    assert Counter(_parquet(out)) == Counter(range(100))
    assert committed(own_servers, name) == {where: 100}
