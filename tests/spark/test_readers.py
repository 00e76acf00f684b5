"""The readers that a worker process keeps for its tasks, and the size of their fetches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.queries import Place, batch_reader, place
from tests.support.waiting import LAST_RESORT

from kohort.client.producer.producer import Producer
from kohort.spark.source import readers

__all__ = ["place"]
pytestmark = [pytest.mark.filterwarnings("default"), LAST_RESORT]
RECORDS, BYTES = 64, 4096


@pytest.fixture(autouse=True)
def no_readers() -> Iterator[None]:
    """The readers of this process before and after each test: none."""
    yield
    for reader in readers._readers.values():
        reader.close()
    readers._readers.clear()


@pytest.fixture
def filled(place: Place) -> Place:
    """One partition with records of four kilobytes, each in a batch of its own."""
    place.make(count=1)
    with Producer(place.servers, batch_size=BYTES) as producer:
        for _ in range(RECORDS):
            producer.send(place.topic(), os.urandom(BYTES), partition=0)
    return place


def batches(place: Place, **more: Any) -> list[pa.RecordBatch]:
    reader = batch_reader(place.options(**({"group.id": None} | more)))
    return [batch for task in reader.partitions() for batch in reader.read(task)]


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ({}, 1),
        ({"kafka.max.partition.fetch.bytes": 4 * BYTES}, RECORDS // 4),
        ({"kafka.fetch.max.bytes": 8 * BYTES}, RECORDS // 8),
        ({"kafka.fetch.max.bytes": 8 * BYTES, "kafka.max.partition.fetch.bytes": 2 * BYTES}, RECORDS // 2),
    ],
    ids=["none", "of a partition", "of a response", "both"],
)
def test_tasks_keep_the_limits_of_fetches_that_a_query_sets(filled: Place, limits: dict[str, int], least: int) -> None:
    found = batches(filled, **limits)
    assert sum(batch.num_rows for batch in found) == RECORDS
    assert len(found) == 1 if not limits else len(found) >= least


def test_a_reader_that_a_task_uses_is_not_closed_for_others(filled: Place) -> None:
    """A task that is read slowly, as in a join, keeps its reader however many others run meanwhile."""
    limits = {"kafka.max.partition.fetch.bytes": 4 * BYTES}
    reader = batch_reader(filled.options(**({"group.id": None} | limits)))
    (task,) = reader.partitions()
    begun = reader.read(task)
    rows = next(begun).num_rows
    for number in range(readers.READERS_MAX + 1):
        batches(filled, **{"kafka.client.id": f"c{number}"})
    assert rows + sum(batch.num_rows for batch in begun) == RECORDS
    assert len(readers._readers) == readers.READERS_MAX


def test_two_tasks_that_read_at_once_leave_one_reader(filled: Place) -> None:
    reader = batch_reader(filled.options(**{"group.id": None}))
    (task,) = reader.partitions()
    first, second = reader.read(task), reader.read(task)
    assert next(first).num_rows == next(second).num_rows == RECORDS
    assert list(first) == list(second) == []
    (kept,) = readers._readers.values()
    assert not kept._client.closed


def test_a_reader_outlives_its_task_and_few_are_kept(filled: Place) -> None:
    """SPARK-25151: a session of many queries does not keep connections and threads for each of them."""
    batches(filled)
    (kept,) = readers._readers.values()
    batches(filled)
    assert list(readers._readers.values()) == [kept]
    for number in range(readers.READERS_MAX):
        batches(filled, **{"kafka.client.id": f"c{number}"})
    assert len(readers._readers) == readers.READERS_MAX
    assert kept not in readers._readers.values()
    assert kept._client.closed
