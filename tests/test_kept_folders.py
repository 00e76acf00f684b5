"""Folders that released versions wrote are opened by this one: records, groups, transactions, regions, checkpoints.

`tools/kept_folder.py` writes one for each release into `tests/fixtures`; `expected.json` beside the data says what must
be found. Source: docs/compatibility.md.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from tools.kept_folder import CONFIG, FIXTURES, KEY, run_region

from kohort import Admin, Broker, ConfigResource, Consumer, Producer, ResourceType, TopicPartition, __version__
from kohort.log.check import FolderCheck
from kohort.region import Region
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.checkpoint_lines import OffsetLogFile

ARCHIVES = sorted(FIXTURES.glob("kept-*.tar.gz"))
ARCHIVE_BYTES_MAX = 200_000


class Kept(NamedTuple):
    """An archive that is unpacked, with a broker of this version on its data."""

    folder: Path
    servers: str
    expected: dict[str, Any]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    report = FolderCheck(folder / "data", lambda _: None).run()
    assert (report.found, report.notes) == ([], [])
    expected = json.loads((folder / "expected.json").read_text())
    with Broker(folder / "data", CONFIG) as broker:
        yield Kept(folder, broker.bootstrap_servers, expected)


def read_to_end(servers: str, topic: str, **settings: Any) -> list[Any]:
    """Every record of a topic, as far as it may be read."""
    found: list[Any] = []
    with Consumer(servers, auto_offset_reset="earliest", **settings) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            found += list(consumer.poll(timeout_ms=1000))
    return found


def test_there_is_an_archive_of_this_version_and_none_is_large() -> None:
    assert f"kept-{__version__}.tar.gz" in [path.name for path in ARCHIVES], "run: python -m tools.kept_folder"
    assert max(path.stat().st_size for path in ARCHIVES) < ARCHIVE_BYTES_MAX


def test_records_of_every_codec_are_read(kept: Kept) -> None:
    records = read_to_end(kept.servers, "records")
    assert sorted(record.value.decode() for record in records) == kept.expected["values"]
    assert all(dict(record.headers)["codec"] == record.value.split()[0] for record in records)
    assert read_to_end(kept.servers, "compacted")[-1].value.decode() == kept.expected["last"]


def test_groups_continue_at_their_offsets(kept: Kept) -> None:
    with Admin(kept.servers) as admin:
        for group, offsets in kept.expected["groups"].items():
            found = admin.list_consumer_group_offsets(group).all()
            assert {str(partition.partition): committed.offset for partition, committed in found.items()} == offsets
        resource = ConfigResource(ResourceType.GROUP, "of-consumer")
        entries = admin.describe_configs([resource]).all()[resource]
        values = {name: entries[name].value for name in kept.expected["settings"]}
        assert values == kept.expected["settings"]
        assert list(admin.describe_user_scram_credentials().all()) == ["kept"]
    with Consumer(kept.servers, group_id="of-classic", auto_offset_reset="none") as consumer:
        consumer.subscribe(["records"])
        with Producer(kept.servers) as producer:
            producer.send("records", "new").result()
        found = []
        while not found:
            found = [record.value for record in consumer.poll(timeout_ms=1000)]
        assert found == [b"new"]


def test_open_transaction_is_aborted_by_its_producer_and_is_never_read(kept: Kept) -> None:
    transactions = kept.expected["transactions"]
    with Producer(kept.servers, transactional_id=transactions["id"]) as producer:
        producer.init_transactions()  # aborts what is open
        producer.begin_transaction()
        producer.send("payments", "of this version", partition=0)
        producer.commit_transaction()
    read = read_to_end(kept.servers, "payments", isolation_level="read_committed")
    assert [record.value.decode() for record in read] == [*transactions["committed"], "of this version"]


def test_region_continues_with_its_state_and_publishes_every_row_once(kept: Kept) -> None:
    rows, state = kept.expected["region"]["rows"], kept.expected["region"]["state"]
    with Region("kept", kept.servers, serves=False, key=KEY) as region:
        assert region.state_of("worker") == str(state).encode()
    assert run_region(kept.servers, kept.folder / "out", rows, rows + 50) == state
    tables = [pq.read_table(path) for path in (kept.folder / "out").glob("sequence=*/*.parquet")]
    flights = sorted(int(flight) for table in tables for flight in table["flight"].to_pylist())
    assert flights == list(range(rows + 50))


def test_checkpoint_of_a_spark_query_is_understood(kept: Kept) -> None:
    path = kept.folder / "checkpoint" / "offsets" / "0"
    (source,) = OffsetLogFile.parse(str(path), path.read_bytes()).sources
    batch = BatchOffset.from_json(source.offset)
    assert sum(span.offset_count for span in batch.spans.values()) == len(kept.expected["values"])
    assert batch.group == "of-spark"
