"""A batch that decompresses to more than the client allows: a clear error, and the way past it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Broker, Consumer
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from kohort.wire.batch import BatchRecord, build_batch
from tests.broker.raw import RawClient, create_topic, produce
from tests.support.hostile_batches import BASE_MS, bomb

PARTITION = TopicPartition("bombs", 0)
LIMIT = 4 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with a good record, a batch of 8 MiB that is small on the wire, and a good record."""
    good = build_batch([BatchRecord(0, BASE_MS, None, b"good")])
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "bombs")
        for batch in (good, bomb("zstd", 2 * LIMIT), good):
            assert produce(client, "bombs", 0, batch).error_code == 0
        yield broker


def test_consumer_names_partition_offset_and_setting_and_continues_after_a_seek(broker: Broker) -> None:
    settings = {"auto.offset.reset": "earliest", "max.decompressed.batch.bytes": LIMIT}
    with Consumer(broker.bootstrap_servers, **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([PARTITION])
        values: list[object] = []
        with pytest.raises(CorruptDataError) as caught:  # noqa: PT012 - the good record comes first
            for _ in range(100):
                values += [record.value for record in consumer.poll(200)]
        assert values == [b"good"]
        for word in ("bombs-0", "offset 1 ", str(LIMIT), "raise max.decompressed.batch.bytes", "seek to 2"):
            assert word in caught.value.message
        consumer.seek(PARTITION, 2)
        while len(values) < 2:
            values += [record.value for record in consumer.poll(200)]
        assert values == [b"good", b"good"]


def test_consumer_reads_it_by_default(broker: Broker) -> None:
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        values: list[bytes] = []
        while len(values) < 3:
            values += [record.value or b"" for record in consumer.poll(200)]
    assert [len(value) for value in values] == [4, 2 * LIMIT, 4]


def test_range_reader_of_spark_tasks_has_the_same_limit(broker: Broker) -> None:
    with RangeReader(broker.bootstrap_servers, max_decompressed_batch_bytes=LIMIT) as reader:
        found = reader.read(PARTITION, 0, 3)
        assert next(found).column("offset").to_pylist() == [0]
        with pytest.raises(CorruptDataError, match=r"raise max\.decompressed\.batch\.bytes, or seek to 2"):
            next(found)
        assert next(reader.read(PARTITION, 2, 3)).column("offset").to_pylist() == [2]
    with RangeReader(broker.bootstrap_servers) as reader:
        assert [rows.num_rows for rows in reader.read(PARTITION, 0, 3)] == [3]


def test_a_poll_holds_no_more_than_queued_max_bytes_and_one_batch(broker: Broker) -> None:
    """The records of one response would be ten times that: a poll decoded until it had `max.poll.records`."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "many")
        for _ in range(10):
            assert produce(client, "many", 0, bomb("zstd", 2 * LIMIT)).error_code == 0
    settings = {"auto.offset.reset": "earliest", "queued.max.bytes": 2 * LIMIT}
    with Consumer(broker.bootstrap_servers, **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("many", 0)])
        counts: list[int] = []
        while sum(counts) < 10:
            counts.append(len(consumer.poll(200)))
    assert max(counts) <= 2
