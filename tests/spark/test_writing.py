"""A write task without Spark: the records' partitions and order, and the effects of a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kohort import Admin, Broker, Consumer, Record, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.errors import InvalidInputError, KafkaError
from kohort.spark.tasks import write
from kohort.spark.tasks.write import TaskWriter

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
BORN = int(time.time()) * 1000 - 60_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(tmp_path_factory.mktemp("broker"), {"message.max.bytes": 10_000}) as broker:
        topics = ("one", "two", "mixed", "large", "again", "refused")
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, 3) for name in topics]).all()
        yield broker.bootstrap_servers
        for producer in write._producers.values():
            producer.close()
        write._producers.clear()


def plan(servers: str, *columns: str, topic: str | None = None, **settings: str) -> TaskWriter:
    return TaskWriter(servers, tuple(sorted(settings.items())), topic, frozenset(columns))


def read(servers: str, topic: str) -> dict[int, list[Record]]:
    """Return a topic's records by partition."""
    with Consumer(servers) as consumer:
        places = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        found: dict[int, list[Record]] = {number: [] for number in range(3)}
        while any(consumer.position(tp) < ends[tp] for tp in places):
            for record in consumer.poll(timeout_ms=1000):
                found[record.partition].append(record)
        return found


def test_every_column_reaches_its_record(servers: str) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["a", None, "c"]),
            "key": pa.array([b"k", None, b""]),
            "topic": pa.array(["one", "two", "one"]),
            "partition": pa.array([2, 0, 2], pa.int32()),
            "timestamp": pa.array([BORN * 1000, None, BORN * 1000 + 1999], pa.timestamp("us", "UTC")),
            "headers": pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None, []], HEADERS),
            "offset": pa.array([7, 8, 9]),
        }
    )
    before = time.time_ns() // 1_000_000
    assert plan(servers, "value", "key", "topic", "partition", "timestamp", "headers").write(iter([rows])) == 3
    one, two = read(servers, "one"), read(servers, "two")
    first, third = one[2]
    assert (first.key, first.value, first.timestamp) == (b"k", b"a", BORN)
    assert list(first.headers) == [("h", b"x"), ("n", None)]
    assert (third.key, third.value, third.timestamp, list(third.headers)) == (b"", b"c", BORN + 1, [])
    (second,) = two[0]
    assert (second.key, second.value) == (None, None)
    assert before <= second.timestamp <= time.time_ns() // 1_000_000


def test_rows_with_and_without_partition_keep_their_order(servers: str) -> None:
    count = 1000
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"%d" % number for number in range(count)]),
            "key": pa.array([b"one key"] * count),
            "partition": pa.array([None if number % 7 < 3 else 1 for number in range(count)], pa.int32()),
        }
    )
    assert plan(servers, "value", "key", "partition", topic="mixed").write(iter([rows, rows.slice(0, 0)])) == count
    found = read(servers, "mixed")
    numbers = {place: [int(record.value) for record in records] for place, records in found.items()}
    assert sorted(number for every in numbers.values() for number in every) == list(range(count))
    assert all(every == sorted(every) for every in numbers.values())
    assert {number for number in numbers[1] if number % 7 >= 3} == {n for n in range(count) if n % 7 >= 3}


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("headers", pa.array([[{"key": None, "value": b"x"}]], HEADERS), "'headers', row 0: a header has no key"),
        ("timestamp", pa.array([-1], pa.timestamp("us", "UTC")), "'timestamp', row 0: 1969-12-31 .*before 1970"),
        ("timestamp", pa.array([-1], pa.timestamp("us", "GMT+08:00")), "row 0: 1969-12-31 23:59.*before 1970"),
        ("timestamp", pa.array([-1], pa.int64()), "'timestamp', row 0: -1 is before 1970"),
    ],
)
def test_a_row_that_send_would_refuse_is_refused(servers: str, name: str, column: pa.Array, words: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array(["a"]), name: column})
    with pytest.raises(InvalidInputError, match=words):
        plan(servers, "value", name, topic="refused").write(iter([rows]))
    assert not any(read(servers, "refused").values())


def test_a_row_without_a_topic_is_refused(servers: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "topic": pa.array(["one", None])})
    with pytest.raises(InvalidInputError, match="its column `topic` is null"):
        plan(servers, "value", "topic").write(iter([rows]))


def test_a_record_that_is_not_taken_fails_the_task_and_the_next_one_succeeds(servers: str) -> None:
    task = plan(servers, "value", topic="large")
    large = pa.RecordBatch.from_pydict({"value": pa.array(["x" * 20_000])})
    with pytest.raises(KafkaError):
        task.write(iter([large]))
    assert write._key(task) not in write._producers
    assert task.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(["small"])})])) == 1


def test_an_exception_of_the_rows_leaves_no_producer_behind(servers: str) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": pa.array(["a"])})
        raise OSError("the rows end here")

    task = plan(servers, "value", topic="again", **{"client.id": "broken"})
    with pytest.raises(OSError, match="the rows end here"):
        task.write(broken())
    assert write._key(task) not in write._producers


def test_a_producer_outlives_its_task_and_few_are_kept(servers: str) -> None:
    row = pa.RecordBatch.from_pydict({"value": pa.array(["a"])})
    tasks = [plan(servers, "value", topic="again", **{"client.id": f"c{number}"}) for number in range(6)]
    tasks[0].write(iter([row]))
    kept = write._producers[write._key(tasks[0])]
    tasks[0].write(iter([row]))
    assert write._producers[write._key(tasks[0])] is kept
    for task in tasks[1:]:
        task.write(iter([row]))
    assert len(write._producers) == write.PRODUCERS_MAX
    assert kept not in write._producers.values()


def test_times_in_milliseconds_are_taken_too(servers: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array(["ms"]), "timestamp": pa.array([BORN + 5], pa.int64())})
    plan(servers, "value", "timestamp", topic="again").write(iter([rows]))
    found = [record for records in read(servers, "again").values() for record in records if record.value == b"ms"]
    assert [record.timestamp for record in found] == [BORN + 5]
