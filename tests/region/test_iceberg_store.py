"""An Iceberg table in an object store: a real server of S3's protocol, in a process of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyiceberg.catalog import load_catalog

from kohort.errors import CorruptDataError
from kohort.region import IcebergTable, Keep, Region
from kohort.region.staged import StagedKey
from tests.region.conftest import Worker, fill, make_topic
from tests.region.s3_server import ACCESS, LossyProxy, files_of, send_again
from tests.support.waiting import until

REGION = UUID(int=1)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEYS = [StagedKey(REGION, 1, "größe/1", number) for number in range(6)]


@pytest.fixture
def catalog(store: str, tmp_path: Path, name: str) -> dict[str, str]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"s3://lake/{name}", "s3.endpoint": store, **ACCESS}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("_", "-")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": ["x"] * len(ids)}, schema=SCHEMA)


def ids(catalog: dict[str, str]) -> list[int]:
    table = load_catalog("default", **catalog).load_table("air.flights")
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def objects(catalog: dict[str, str], folder: str) -> list[str]:
    selector = pafs.FileSelector(
        f"{catalog['warehouse'][5:]}/air/flights/{folder}", allow_not_found=True, recursive=True
    )
    found = files_of(catalog["s3.endpoint"]).get_file_info(selector)
    return sorted(info.base_name for info in found if info.is_file)


def test_a_table_in_a_store_is_written_once_and_nothing_is_left(catalog: dict[str, str]) -> None:
    sink = IcebergTable("air.flights", catalog=catalog, partition_by=["bucket(2, id)"]).bind("flights", REGION)
    assert ACCESS["s3.secret-access-key"] not in sink.place + repr(sink)
    sink.check(SCHEMA)
    for number in (0, 1, 1, 2, 5):
        sink.stage(KEYS[number], rows(number, 100 + number))
    assert ids(catalog) == [] and sink.published() == 0
    for _ in range(2):
        sink.publish(1, KEYS[:2])
    sink.publish(2, [])
    again = IcebergTable("air.flights", catalog=catalog).bind("flights", REGION)
    assert again.published() == 2
    again.publish(3, [KEYS[2]])
    assert ids(catalog) == [0, 1, 2, 100, 101, 102]
    with pytest.raises(CorruptDataError, match="1 are gone"):
        again.publish(4, [KEYS[3]])
    again.sweep(Keep(2))
    assert objects(catalog, "_kohort") == ["published-1", "published-2", "published-3"]
    assert len(objects(catalog, "data")) == len(
        load_catalog("default", **catalog).load_table("air.flights").inspect.files()
    )
    again.empty(5, 2)
    assert ids(catalog) == [] and again.published() == 5


def test_a_unit_takes_few_requests_and_no_late_copy_of_one_takes_it_back(catalog: dict[str, str], store: str) -> None:
    """A client repeats a request whose answer does not come. The first copy may still arrive, after all others."""
    seen: list[bytes] = []
    proxy = LossyProxy(store, lambda method, path: False, sees=seen.append)
    try:
        asked = {**catalog, "s3.endpoint": proxy.address}
        sink = IcebergTable("air.flights", catalog=asked).bind("flights", REGION)
        sink.check(SCHEMA)
        seen.clear()
        sink.stage(KEYS[0], rows(1, 2))
        requests = list(seen)
    finally:
        proxy.close()
    lines = [request.split(b"\r\n", 1)[0].decode().split()[:2] for request in requests]
    assert len(lines) <= 10
    assert [method for method, path in lines if ".parquet" in path] == ["POST", "PUT", "POST"]
    named = [at for at, (method, path) in enumerate(lines) if "/staged/" in path and method in ("POST", "PUT")]
    for at in named[:-1]:
        send_again(store, requests[at])
    other = IcebergTable("air.flights", catalog=catalog).bind("flights", REGION)
    other.publish(1, KEYS[:1])
    assert ids(catalog) == [1, 2]


def test_members_of_a_region_write_into_a_store(catalog: dict[str, str], own_servers: str, name: str) -> None:
    """One of two fails; what it had staged is nobody's, and its records are read again."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(500))
    sink = IcebergTable("air.flights", catalog=catalog)

    def read() -> list[int]:
        there = load_catalog("default", **catalog)
        if not there.namespace_exists("air") or not there.table_exists("air.flights"):
            return []
        return [int(value) for value in there.load_table("air.flights").scan().to_arrow().column("value").to_pylist()]

    with Region(name, own_servers, checkpoint_every="500ms") as region:
        workers = [Worker(region, f"worker-{number}", sink, name) for number in range(2)]
        until(lambda: len(read()) > 0, "a sequence is complete")
        workers[0].fail_at = 0
        fill(own_servers, name, range(500, 1000))
        workers[0].thread.join(60)
        assert isinstance(workers[0].error, ValueError)
        until(lambda: len(read()) >= 1000, "all is published")
        workers[1].close()
        workers[1].thread.join(60)
    assert Counter(read()) == Counter(range(1000))
