"""A region that starts behind a table: the table and what the region writes have each record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.region import IcebergTable, ParquetFolder, Region, RegionStoppedError, after
from kohort.region.records import Position
from kohort.region.sinks import publish_rows
from kohort.region.staged import StagedKey
from tests.region.conftest import Worker, fill, make_topic
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64())])


def opened(folder: Path) -> Table:
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table("air.flights")


def count(folder: Path) -> int:
    try:
        return opened(folder).scan().count()
    except (OperationalError, NoSuchTableError):
        return 0  # no sequence yet


def write(folder: Path, region: UUID, sequence: int, ends: list[Position]) -> None:
    sink = IcebergTable("air.flights", warehouse=folder).bind(f"region-{region.int}", region)
    sink.check(SCHEMA)
    key = StagedKey(region, 1, "a", sequence)
    sink.stage(key, pa.table({"id": [sequence]}, schema=SCHEMA))
    publish_rows(sink, sequence, [key], ends)


def position(offset: int, *, group: str = "etl", partition: int = 0) -> Position:
    return Position(group, "flights", UUID(int=7), partition, offset)


def test_table_and_topic_become_one(own_servers: str, name: str, tmp_path: Path) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    with Region(f"{name}-first", own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "a", IcebergTable("air.flights", warehouse=tmp_path / "lake"), name)
        until(lambda: count(tmp_path / "lake") == 200, "the table has all")
        worker.close()
    fill(own_servers, name, range(200, 400))
    begin = after(opened(tmp_path / "lake"))
    assert sum(begin.offsets.values()) == 200
    out = ParquetFolder(tmp_path / "out")

    def live() -> list[int]:
        tables = [pq.ParquetFile(file.path).read() for file in out.published_files()]
        return [int(value) for table in tables for value in table.column("value").to_pylist()]

    with Region(f"{name}-second", own_servers, checkpoint_every="200ms") as region:
        worker = Worker(region, "a", out, name, group_id=f"{name}-live", start=begin)
        until(lambda: len(live()) >= 200, "the topic's rest is published")
        worker.close()
    table = [int(value) for value in opened(tmp_path / "lake").scan().to_arrow().column("value").to_pylist()]
    assert Counter(table + live()) == Counter(range(400))


def test_offset_that_the_log_does_not_have_stops_the_region(own_servers: str, name: str, tmp_path: Path) -> None:
    """The table is of an earlier topic of the name, or of another cluster."""
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(10), 1)
    write(tmp_path / "lake", UUID(int=1), 1, [Position("etl", name, UUID(int=7), 0, 11)])
    for topic, why in ((name, "ends at offset 11 of"), (f"{name}-other", "no records of topic")):
        if topic != name:
            make_topic(own_servers, topic, 1)
        with Region(f"{topic}-region", own_servers, checkpoint_every="200ms") as region:
            worker = Worker(region, "a", ParquetFolder(tmp_path / topic), topic, start=after(opened(tmp_path / "lake")))
            worker.thread.join(60)
            assert isinstance(worker.error, RegionStoppedError | Exception) and why in str(worker.error)


def test_newest_snapshot_of_each_region_counts(tmp_path: Path) -> None:
    for region, sequence, ends in (
        (1, 1, [position(10), position(5, partition=1)]),
        (1, 2, [position(20), position(6, partition=1)]),
        (2, 1, [Position("other", "trains", UUID(int=8), 0, 3)]),
    ):
        write(tmp_path, UUID(int=region), sequence, ends)
    table = opened(tmp_path)
    first = next(at for at in table.snapshots() if at.summary and "kohort.offsets" in at.summary.additional_properties)
    table.append(pa.table({"id": [99]}, schema=SCHEMA))
    flights = {TopicPartition("flights", 0): 20, TopicPartition("flights", 1): 6}
    assert after(table.refresh()).offsets == {**flights, TopicPartition("trains", 0): 3}
    assert after(table, group="etl").offsets == flights
    assert after(first).offsets == {TopicPartition("flights", 0): 10, TopicPartition("flights", 1): 5}
    with pytest.raises(InvalidInputError, match="No region with the group 'nobody'"):
        after(table, group="nobody")
    with pytest.raises(InvalidInputError, match="No region has written"):
        after(table.current_snapshot())


def test_snapshots_that_do_not_say_where_to_begin_are_refused(tmp_path: Path) -> None:
    write(tmp_path, UUID(int=1), 1, [position(10), position(10, group="more")])
    with pytest.raises(InvalidInputError, match="Two groups or regions.*group="):
        after(opened(tmp_path))
    assert after(opened(tmp_path), group="more").offsets == {TopicPartition("flights", 0): 10}
    sink = IcebergTable("air.flights", warehouse=tmp_path).bind("region-1", UUID(int=1))
    sink.empty(2, 1)
    with pytest.raises(InvalidInputError, match="Sequence 2 .* has no offsets"):
        after(opened(tmp_path), group="more")
    empty: Any = SimpleNamespace(current_snapshot=lambda: None)
    with pytest.raises(InvalidInputError, match="No region has written"):
        after(empty)
