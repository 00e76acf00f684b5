"""The producer against the embedded broker, and against a real Apache Kafka where one can be had."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.thread_driver import ClientClosedError
from kohort.columns.encode import ColumnNames, partition_for_key
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    with Broker(config={"num.partitions": "4"}) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    if request.param == "own":
        return str(request.getfixturevalue("own_broker").bootstrap_servers)
    return str(request.getfixturevalue("apache_kafka").bootstrap_servers)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def read(servers: str, topic: str, **settings: Any) -> list[dict[str, Any]]:
    """Every record of a topic, by partition and offset."""
    with RangeReader(servers, **settings) as reader:
        rows = []
        for partition in [TopicPartition(topic, number) for number in reader.partitions_of([topic])[topic]]:
            end = reader.end_offsets([partition])[partition]
            for batch in reader.read(partition, 0, end):
                rows += batch.to_pylist()
        return rows


def test_a_refused_record_is_reported_apart_from_the_others_of_its_batch(servers: str, topic: str) -> None:
    """Source: KIP-467: the answer names the records without a key that a compacted topic refuses the batch for."""
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={"cleanup.policy": "compact"})]).all()
    with Producer(servers, linger_ms=1000) as producer:
        sent = [producer.send(topic, "v", key=None if number in (1, 3) else "k") for number in range(5)]
        producer.flush(timeout_ms=30_000)
        failed = [future.exception(timeout_ms=10_000) for future in sent]
        assert {error.code for error in failed if error is not None} == {ErrorCode.INVALID_RECORD}
        assert ["other records" in str(error) for error in failed] == [True, False, True, False, True]
        assert producer.send(topic, "v", key="k").result(timeout_ms=30_000).offset == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_arrive_as_sent(servers: str, topic: str, codec: str) -> None:
    reported: list[int] = []
    with Producer(servers, compression_type=codec) as producer:
        sent = [
            producer.send(
                topic,
                f"value {i}" * 9 if i % 10 else None,
                f"key {i % 7}" if i % 3 else None,
                timestamp_ms=1_700_000_000_000 + i,
                headers=[("n", str(i).encode()), ("none", None)] if i % 5 == 0 else (),
                on_delivery=lambda error, where: reported.append(-1 if error else where.offset),
            )
            for i in range(300)
        ]
        producer.flush(timeout_ms=20_000)
    places = {
        (place.partition, place.offset): i for i, place in enumerate(future.result(timeout_ms=0) for future in sent)
    }
    rows = read(servers, topic)
    assert len(rows) == len(places) == len(reported) == 300
    for row in rows:
        i = places[row["partition"], row["offset"]]
        assert row["value"] == (f"value {i}".encode() * 9 if i % 10 else None)
        assert row["key"] == (f"key {i % 7}".encode() if i % 3 else None)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(1_700_000_000_000 + i)
        expected = [{"key": "n", "value": str(i).encode()}, {"key": "none", "value": None}] if i % 5 == 0 else None
        assert row["headers"] == expected
        if i % 3:
            assert row["partition"] == partition_for_key(row["key"], 4)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_level_below_zero_is_the_codecs_default(servers: str, topic: str, codec: str) -> None:
    """The default of librdkafka's compression.level, and of Java's compression.gzip.level, is -1."""
    with Producer(servers, compression_type=codec, compression_level=-1) as producer:
        producer.send(topic, b"x" * 1000).result(timeout_ms=20_000)
    assert [row["value"] for row in read(servers, topic)] == [b"x" * 1000]


def test_arrow_batches_arrive_as_sent(servers: str, topic: str) -> None:
    table = pa.table(
        {
            "tail": pa.array([f"N{i % 50}" if i % 4 else None for i in range(20_000)]),
            "json": pa.array([f'{{"i": {i}}}' for i in range(20_000)]),
            "at": pa.array([1_600_000_000_000_000 + i for i in range(20_000)], pa.timestamp("us", "UTC")),
        }
    )
    with Producer(servers, compression_type="lz4", batch_size=4096) as producer:
        done = producer.send_arrow(topic, table, columns=ColumnNames("tail", "json", timestamp="at")).result(
            timeout_ms=20_000
        )
        assert sum(count for _, count in done) == 20_000
    rows = read(servers, topic)
    assert sorted(row["value"] for row in rows) == sorted(f'{{"i": {i}}}'.encode() for i in range(20_000))
    by_key = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row["value"])
        assert row["key"] is None or row["partition"] == partition_for_key(row["key"], 4)
    numbers = [int(value[6:-1]) for value in by_key[b"N7"]]
    assert numbers == sorted(numbers)


def test_order_is_kept_by_many_threads(own_broker: Broker, topic: str) -> None:
    with Producer(own_broker.bootstrap_servers, batch_size=512, linger_ms=0) as producer:

        def work(name: int) -> None:
            for i in range(500):
                producer.send(topic, f"{name} {i}", partition=name % 4)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen: dict[bytes, int] = defaultdict(lambda: -1)
    for row in read(own_broker.bootstrap_servers, topic):
        name, number = row["value"].split()
        assert int(number) == seen[name] + 1
        seen[name] = int(number)
    assert set(seen.values()) == {499}


def test_batch_size_of_0_and_connections_without_an_end(own_broker: Broker, topic: str) -> None:
    settings: dict[str, Any] = {"batch_size": 0, "connections_max_idle_ms": -1, "metadata_max_age_ms": 20}
    table = pa.table({"value": [b"a" * 200, b"b", b"", b"c" * 100]})
    with Producer(own_broker.bootstrap_servers, linger_ms=100, **settings) as producer:
        done = [producer.send(topic, b"%d" % i + b"x" * 128, partition=0) for i in range(5)]
        assert [sent.result(timeout_ms=10_000).offset for sent in done] == [0, 1, 2, 3, 4]
        connections = producer._core.cluster.connections
        before = set(connections._links)
        time.sleep(0.2)
        assert before <= set(connections._links)
        assert sum(count for _, count in producer.send_arrow(topic, table).result(timeout_ms=10_000)) == 4
    assert len(read(own_broker.bootstrap_servers, topic)) == 9


def test_awaited_in_asyncio(own_broker: Broker, topic: str) -> None:
    async def main() -> list[int]:
        with Producer(own_broker.bootstrap_servers) as producer:
            places = await asyncio.gather(*(wait(producer.send(topic, "x", partition=0)) for _ in range(10)))
        return [place.offset for place in places]

    async def wait(delivery: Any) -> Any:
        return await delivery

    assert asyncio.run(main()) == list(range(10))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(servers: str, topic: str, acks: int | str) -> None:
    with Producer(servers, acks=acks) as producer:
        place = producer.send(topic, b"x").result(timeout_ms=20_000)
    assert place.offset == (-1 if acks == 0 else 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"compresion_type": "zstd"}, "compression"),
        ({"compression_type": "brotli"}, "brotli"),
        ({"enable_idempotence": True, "acks": 1}, "acks=all"),
        ({"transactional_id": "t", "acks": 1}, "idempotence"),
        ({"compression_type": "gzip", "compression_level": -2}, "only zstd"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Producer("127.0.0.1:9", **settings)


@pytest.mark.parametrize("headers", [(), [("name", b"x")]], ids=["plain", "headers"])
def test_each_full_batch_without_keys_is_followed_by_one_for_another_partition(
    own_broker: Broker, topic: str, headers: Any
) -> None:
    with Producer(own_broker.bootstrap_servers, batch_size=1, linger_ms=1_000) as producer:
        numbers = producer.partitions_for(topic)
        sent = [producer.send(topic, b"x" * 100, headers=headers) for _ in range(200)]
        chosen = [delivery.result(timeout_ms=20_000).partition for delivery in sent]
    assert set(chosen) == set(numbers)
    assert all(last != following for last, following in pairwise(chosen))


@pytest.mark.parametrize("as_table", [False, True], ids=["records", "table"])
def test_records_are_sent_to_partitions_that_were_added_since(own_broker: Broker, topic: str, as_table: bool) -> None:
    with Producer(own_broker.bootstrap_servers) as producer, Admin(own_broker.bootstrap_servers) as admin:
        count = len(producer.partitions_for(topic))
        admin.create_partitions({topic: count + 1}).all()
        table = pa.table({"value": ["x"], "to": [count]})
        if as_table:
            ((written, _),) = producer.send_arrow(topic, table, partition="to").result(timeout_ms=20_000)
        else:
            written = producer.send(topic, b"x", partition=count).result(timeout_ms=20_000)
        assert (written.partition, written.offset) == (count, 0)
        with pytest.raises(InvalidInputError, match=f"row 0: no such partition; the topic has {count + 1}"):
            producer.send_arrow(topic, table.set_column(1, "to", pa.array([count + 9])), partition="to")


def test_arguments_that_cannot_be(own_broker: Broker, topic: str) -> None:
    with Producer(own_broker.bootstrap_servers) as producer:
        with pytest.raises(InvalidInputError, match="no partition 9"):
            producer.send(topic, b"x", partition=9)
        with pytest.raises(InvalidInputError, match="value_serializer"):
            producer.send(topic, 5)
        with pytest.raises(InvalidInputError, match=r"max\.request\.size"):
            producer.send(topic, bytes(2**21))
        with pytest.raises(KafkaError, match="not valid|not allowed"):
            producer.send("no such / name", b"x")
        with pytest.raises(InvalidInputError, match="transactional_id"):
            producer.begin_transaction()
        assert producer.send(topic, b"fine").result(timeout_ms=20_000).offset == 0


def test_unreachable_brokers_are_named() -> None:
    with Producer("127.0.0.1:9", max_block_ms=5_000) as producer:
        with pytest.raises(TimedOutError, match=r"127\.0\.0\.1:9.*refused"):
            producer.send("any", b"x")


def test_a_forked_child_and_a_pickle_are_refused(own_broker: Broker, topic: str) -> None:
    """The child gets a clear error from every call, at once, and the parent's records arrive once."""
    with Producer(own_broker.bootstrap_servers, linger_ms=60_000, delivery_timeout_ms=100_000) as producer:
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(producer)
        waiting = producer.send(topic, b"parent's", partition=0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (
                lambda: producer.send(topic, b"child's"),
                producer.flush,
                lambda: waiting.result(timeout_ms=5000),
            ):
                try:
                    call()
                    said.append("nothing")
                except KafkaError as error:
                    said.append(str(error))
            producer.close()
            os.write(writer, "\n".join(said).encode())
            os._exit(0)
        os.close(writer)
        said = os.read(reader, 4000).decode().splitlines()
        os.close(reader)
        os.waitpid(child, 0)
        assert len(said) == 3 and all("made before a fork" in line for line in said)
        producer.flush(timeout_ms=20_000)
        assert waiting.result(timeout_ms=0).offset == 0
    assert [row["value"] for row in read(own_broker.bootstrap_servers, topic)] == [b"parent's"]


@pytest.mark.parametrize("way", ["collected", "the interpreter ends"])
def test_a_producer_that_nobody_closed_delivers(own_broker: Broker, topic: str, way: str) -> None:
    servers = own_broker.bootstrap_servers
    code = f"""
from kohort import Producer
def use():
    producer = Producer({servers!r}, linger_ms=60000, delivery_timeout_ms=200000)
    for i in range(100): producer.send({topic!r}, str(i))
    return producer
"""
    if way == "collected":
        space: dict[str, Any] = {}
        exec(code, space)
        threads = threading.active_count()
        space["use"]()
        assert threading.active_count() == threads
    else:
        subprocess.run([sys.executable, "-c", code + "kept = use()"], check=True, timeout=60)
    assert len(read(servers, topic)) == 100


def test_a_topic_that_cannot_be_had_is_asked_for_no_more() -> None:
    with Broker(config={"auto.create.topics.enable": "false"}) as broker:
        with Producer(broker.bootstrap_servers, max_block_ms=3_000) as producer:
            with pytest.raises(TimedOutError, match=r"misspelt.*no such topic"):
                producer.send("misspelt", b"x")
            cluster = producer._client.cluster
            producer._client.call(cluster.refresh_metadata())
            assert "misspelt" not in cluster._wanted()
            with Admin(broker.bootstrap_servers) as admin:
                admin.create_topics([NewTopic("misspelt", 1)]).all()
            assert producer.send("misspelt", b"x").result(timeout_ms=20_000).offset == 0


def test_a_closed_producer_says_so(own_broker: Broker, topic: str) -> None:
    producer = Producer(own_broker.bootstrap_servers)
    producer.send(topic, b"x").result(timeout_ms=20_000)
    producer.close()
    producer.close()
    for call in (lambda: producer.send(topic, b"y"), lambda: producer.send("another", b"y"), producer.flush):
        with pytest.raises(ClientClosedError, match="closed"):
            call()


def test_callbacks_may_fail_but_not_wait(own_broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises stops nothing.

    One that waits for its own producer is refused, and one that sends is not.
    """
    refused: list[BaseException] = []
    reported: list[int] = []
    with Producer(own_broker.bootstrap_servers, batch_size=200, linger_ms=0) as producer:

        def raises(error: KafkaError | None, where: Any) -> None:
            raise LookupError("no such thing")

        def waits(error: KafkaError | None, where: Any) -> None:
            try:
                producer.flush()
            except InvalidInputError as error_:
                refused.append(error_)

        def sends(error: KafkaError | None, where: Any) -> None:
            producer.send(topic, b"once more", partition=0, on_delivery=lambda _, where: reported.append(where.offset))

        producer.send(topic, b"0", partition=0, on_delivery=raises).result(timeout_ms=20_000)
        producer.send(topic, b"1", partition=0, on_delivery=waits).result(timeout_ms=20_000)
        producer.send(topic, b"2", partition=0, on_delivery=sends).result(timeout_ms=20_000)
        assert producer.send(topic, b"3", partition=0).result(timeout_ms=20_000).offset >= 3
    assert "delivery callback raised an exception" in caplog.text
    assert "client's thread" in str(refused[0])
    assert len(reported) == 1


def test_ctrl_c_ends_a_send_and_close_at_once(own_broker: Broker, topic: str) -> None:
    """The interrupt comes while send() waits for memory that a silent broker never frees."""
    rule = own_broker.faults.add(Fault("Produce", "hold", client_id=topic, times=None))
    code = f"""
from kohort import Producer
with Producer({own_broker.bootstrap_servers!r}, client_id={topic!r}, buffer_memory=10000) as producer:
    print("sending", flush=True)
    while True: producer.send({topic!r}, bytes(1000))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        rule.wait()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    rule.remove()
    assert b"KeyboardInterrupt" in said


def test_leaving_the_program_delivers_and_ends(own_broker: Broker, topic: str) -> None:
    """A script that closes its producer exits at once, with everything delivered."""
    script = (
        "from kohort import Producer\n"
        f"with Producer({own_broker.bootstrap_servers!r}, linger_ms=60000, delivery_timeout_ms=200000) as producer:\n"
        f"    for i in range(100): producer.send({topic!r}, str(i))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, env={**os.environ, "PYTHONPATH": "src"})
    assert len(read(own_broker.bootstrap_servers, topic)) == 100
