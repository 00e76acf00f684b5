"""Transactions of the producer in both versions of their protocol, against our broker and a real Apache Kafka."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.offsets import GroupMetadata
from kohort.client.producer import transactions
from kohort.errors import CommitFailedError, ErrorCode, FencedError, InvalidInputError, KafkaError, TimedOutError
from tests.support.apache_kafka import KafkaTools
from tests.support.waiting import until

Started = Callable[..., Producer]


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    config = {
        "num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    }
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture
def broker(own_broker: Broker) -> Iterator[Broker]:
    yield own_broker
    own_broker.faults.clear()


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "own_broker" if request.param == "own" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap_servers)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param == 1:
        monkeypatch.setattr(transactions, "FEATURE", "a cluster without the feature")
    return int(request.param)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def begun(topic: str) -> Iterator[Started]:
    """Makes a producer with an open transaction."""
    made: list[Producer] = []

    def begin(servers: str, **settings: Any) -> Producer:
        producer = Producer(servers, transactional_id=topic, **settings)
        made.append(producer)
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    yield begin
    for producer in made:
        producer.close(timeout_ms=0)


def committed_values(servers: str, topic: str) -> list[bytes]:
    with RangeReader(servers, isolation_level="read_committed") as reader:
        rows = []
        for partition in [TopicPartition(topic, number) for number in reader.partitions_of([topic])[topic]]:
            end = reader.end_offsets([partition])[partition]
            for batch in reader.read(partition, 0, end):
                rows += batch.column("value").to_pylist()
    return sorted(rows)


def committed_offset(servers: str, group: str, partition: TopicPartition) -> int | None:
    with Admin(servers) as admin:
        found = admin.list_consumer_group_offsets(group, [partition], require_stable=True).all()[partition]
    return None if found is None else found.offset


def test_what_is_committed_counts(servers: str, version: int, topic: str) -> None:
    with Producer(servers, transactional_id=topic) as producer:
        with pytest.raises(InvalidInputError, match="init_transactions"):
            producer.send(topic, b"too early")
        producer.init_transactions()
        epochs = [producer.epoch]
        producer.begin_transaction()
        producer.send(topic, b"kept", partition=0)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, topic)
        producer.commit_transaction()
        epochs.append(producer.epoch)
        producer.begin_transaction()
        producer.send(topic, b"aborted after delivery", partition=0)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 99}, topic)
        producer.flush(timeout_ms=20_000)
        producer.abort_transaction()
        producer.begin_transaction()
        dropped = producer.send(topic, b"aborted before", partition=0)
        producer.abort_transaction()
        assert dropped.exception(timeout_ms=20_000) is not None or dropped.result(timeout_ms=0).offset >= 0
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"kept too", partition=1)
        producer.commit_transaction()
    assert epochs == ([0, 0] if version == 1 else [0, 1])
    assert committed_values(servers, topic) == [b"kept", b"kept too"]
    assert committed_offset(servers, topic, TopicPartition(topic, 0)) == 7


def test_an_older_instance_is_fenced(servers: str, version: int, topic: str, begun: Started) -> None:
    older = begun(servers)
    older.send(topic, b"open").result(timeout_ms=20_000)
    younger = begun(servers)
    younger.send(topic, b"younger")
    with pytest.raises(FencedError):
        older.commit_transaction()
    with pytest.raises(FencedError):
        older.abort_transaction()
    with pytest.raises(FencedError):
        older.send(topic, b"late")
    younger.commit_transaction()
    until(lambda: committed_values(servers, topic) == [b"younger"], "Kafka has written the marker of the commit")


def test_a_fenced_instance_can_write_nothing(servers: str, version: int, topic: str, begun: Started) -> None:
    older = begun(servers)
    begun(servers)
    late = older.send(topic, b"late")
    assert isinstance(late.exception(timeout_ms=20_000), FencedError)
    with pytest.raises(FencedError):
        older.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)


def test_a_transaction_past_its_timeout_is_over(servers: str, version: int, topic: str, begun: Started) -> None:
    producer = begun(servers, transaction_timeout_ms=4000)
    delivered = producer.send(topic, b"too slow").result(timeout_ms=20_000)
    partition = TopicPartition(topic, delivered.partition)
    with RangeReader(servers, isolation_level="read_committed") as reader:
        until(lambda: reader.end_offsets([partition])[partition] > delivered.offset, "the transaction is aborted", 30)
    with pytest.raises(KafkaError, match=r"transaction\.timeout\.ms is 4000: the coordinator ended it") as refused:
        producer.commit_transaction()
    if version == 1:
        assert isinstance(refused.value, FencedError)
        producer = begun(servers)
    else:  # the coordinator tells the producer its next epoch: it can go on
        producer.abort_transaction()
        producer.begin_transaction()
    producer.send(topic, b"in time")
    producer.commit_transaction()
    assert committed_values(servers, topic) == [b"in time"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_a_member_that_lost_its_place_are_refused(
    servers: str, version: int, topic: str, begun: Started, protocol: str
) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    partition = TopicPartition(topic, 0)
    group = f"{topic}-group"
    producer = begun(servers)
    with Consumer(servers, group_id=group, group_protocol=protocol, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(50)
            return bool(consumer.assignment())

        until(joined, "the consumer has its partition", 30)
        place = consumer.group_metadata()
        assert place.generation_id > 0
        producer.send_offsets_to_transaction({partition: 5}, place)
        producer.commit_transaction()
        producer.begin_transaction()
        stale = GroupMetadata(group, place.generation_id - 1, place.member_id)
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction({partition: 6}, stale)
        with pytest.raises(CommitFailedError, match="only be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction(
                {partition: 7}, GroupMetadata(group, place.generation_id, "a stranger")
            )
        producer.abort_transaction()
    assert committed_offset(servers, group, partition) == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_a_consumer_that_was_too_slow_are_refused(
    servers: str, version: int, topic: str, begun: Started, protocol: str
) -> None:
    """The consumer left while its application processed records, and another member may own them by now."""
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
        partition, group, producer = TopicPartition(topic, 0), f"{topic}-group", begun(servers)
        settings: dict[str, Any] = {"group_protocol": protocol, "max_poll_interval_ms": 1_000}
        if protocol == "classic":
            settings["session_timeout_ms"] = 6_000
        with Consumer(servers, group_id=group, enable_auto_commit=False, **settings) as consumer:
            consumer.subscribe([topic])

            def joined() -> bool:
                consumer.poll(50)
                return bool(consumer.assignment())

            until(joined, "the consumer has its partition", 30)

            def left() -> bool:
                return not admin.describe_consumer_groups([group]).all()[group].members

            until(left, "the consumer has left", 30)
            with pytest.raises(CommitFailedError):
                producer.send_offsets_to_transaction({partition: 5}, consumer.group_metadata())
            producer.abort_transaction()
    assert committed_offset(servers, group, partition) is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_partition_is_not_read_before_the_open_transaction_that_moves_its_offset_has_ended(
    servers: str, version: int, topic: str, begun: Started, protocol: str
) -> None:
    """Whichever records the next owner reads, it would process again what the last one is about to commit."""
    partition, group = TopicPartition(topic, 0), f"{topic}-group"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    with Producer(servers) as writer:
        for number in range(6):
            writer.send(topic, b"%d" % number)
    producer = begun(servers)
    producer.send_offsets_to_transaction({partition: 4}, group)
    settings: dict[str, Any] = {"group_protocol": protocol, "auto_offset_reset": "earliest"}
    with Consumer(servers, group_id=group, enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([topic])
        read: list[int] = []

        def polled() -> int:
            read.extend(record.offset for record in consumer.poll(100))
            return len(read)

        until(lambda: polled() or consumer.assignment(), "the consumer has its partition", 30)
        for _ in range(5):
            polled()
        producer.commit_transaction()
        until(lambda: polled() >= 2, "the consumer reads", 30)
    assert read == [4, 5]


def test_transaction_of_no_offsets_is_empty(servers: str, version: int, topic: str, begun: Started) -> None:
    producer = begun(servers)
    producer.send_offsets_to_transaction({}, topic)
    producer.commit_transaction()
    producer.begin_transaction()
    assert producer.send_offsets_of_members([(GroupMetadata(topic, 1, "m"), {})]) == {}
    producer.commit_transaction()
    with Admin(servers) as admin:
        assert topic not in {listing.group_id for listing in admin.list_groups()}


def test_an_abortable_error_leaves_only_abort(broker: Broker, version: int, topic: str, begun: Started) -> None:
    servers = broker.bootstrap_servers
    producer = begun(servers)
    producer.send(topic, b"gone", partition=0).result(timeout_ms=20_000)
    broker.faults.add(Fault("Produce", "fail", error=ErrorCode.TRANSACTION_ABORTABLE))
    refused = producer.send(topic, b"refused", partition=0).exception(timeout_ms=20_000)
    assert refused is not None
    assert refused.code is ErrorCode.TRANSACTION_ABORTABLE
    with pytest.raises(KafkaError, match="only be aborted"):
        producer.send(topic, b"too late")
    with pytest.raises(KafkaError, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"kept", partition=0)
    producer.commit_transaction()
    assert committed_values(servers, topic) == [b"kept"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("Produce", "close_after"),
        Fault("Produce", "fail", error=ErrorCode.CONCURRENT_TRANSACTIONS, times=3),
        Fault("TxnOffsetCommit", "close_after"),
        Fault("TxnOffsetCommit", "fail", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        Fault("EndTxn", "close_after"),
        Fault("EndTxn", "fail", error=ErrorCode.CONCURRENT_TRANSACTIONS),
        Fault("EndTxn", "fail", error=ErrorCode.NOT_COORDINATOR),
        Fault("InitProducerId", "close_after"),
        Fault("FindCoordinator", "fail", error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Fault("Produce", "fail", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, skip=1),
    ],
    ids=lambda fault: f"{fault.api} {fault.action} {fault.error}",
)
def test_failures_on_the_way_are_not_seen(
    broker: Broker, version: int, topic: str, begun: Started, fault: Fault
) -> None:
    servers = broker.bootstrap_servers
    rule = broker.faults.add(fault)
    producer = begun(servers, batch_size=300)
    partition = TopicPartition(topic, 0)
    for number in range(6):
        for record in range(20):
            producer.send(topic, b"%d-%02d" % (number, record), partition=0)
        producer.send_offsets_to_transaction({partition: number}, topic)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        producer.begin_transaction()
    rule.wait()
    assert committed_values(servers, topic) == [b"%d-%02d" % (n, r) for n in range(0, 6, 2) for r in range(20)]
    assert committed_offset(servers, topic, partition) == 4


def test_a_batch_that_is_never_answered_costs_its_transaction_alone(
    broker: Broker, version: int, topic: str, begun: Started
) -> None:
    """The batch may have been written, or may arrive late: the next transaction uses another epoch."""
    servers = broker.bootstrap_servers
    producer = begun(servers, request_timeout_ms=150, delivery_timeout_ms=500, linger_ms=0)
    producer.send(topic, b"undone", partition=0).result(timeout_ms=20_000)
    epoch = producer.epoch
    rule = broker.faults.add(Fault("Produce", "drop_reply", times=None))
    assert isinstance(producer.send(topic, b"undone too", partition=0).exception(timeout_ms=20_000), TimedOutError)
    with pytest.raises(TimedOutError, match="only be aborted"):
        producer.send(topic, b"refused", partition=0)
    rule.remove()
    producer.abort_transaction()
    assert producer.epoch > epoch
    producer.begin_transaction()
    producer.send(topic, b"kept", partition=0)
    producer.commit_transaction()
    assert committed_values(servers, topic) == [b"kept"]


def test_an_abort_drops_what_is_sent_again_and_again(broker: Broker, version: int, topic: str, begun: Started) -> None:
    servers = broker.bootstrap_servers
    producer = begun(servers, linger_ms=0, retry_backoff_ms=20)
    producer.send(topic, b"undone", partition=0).result(timeout_ms=20_000)
    rule = broker.faults.add(Fault("Produce", "fail", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=None))
    waiting = producer.send(topic, b"undone too", partition=0)
    until(lambda: producer.metrics.retries > 1, "the batch is sent again")
    producer.abort_transaction()
    error = waiting.exception(timeout_ms=20_000)
    assert error is not None
    assert error.code is ErrorCode.TRANSACTION_ABORTABLE
    rule.remove()
    for number in range(3):
        producer.begin_transaction()
        producer.send(topic, b"kept %d" % number, partition=0)
        producer.commit_transaction()
    assert committed_values(servers, topic) == [b"kept 0", b"kept 1", b"kept 2"]


@pytest.mark.parametrize("way", ["closed", "left by an error"])
def test_a_producer_that_is_closed_aborts(servers: str, version: int, topic: str, way: str) -> None:
    """Readers of committed records need not wait for the transaction's timeout."""
    with contextlib.suppress(LookupError), Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        place = producer.send(topic, b"undone").result(timeout_ms=20_000)
        if way == "left by an error":
            raise LookupError
    partition = TopicPartition(topic, place.partition)
    with RangeReader(servers, isolation_level="read_committed") as reader:
        # In version 1 of transactions Apache Kafka answers before the markers are written.
        until(lambda: reader.end_offsets([partition])[partition] == place.offset + 2, "the transaction is aborted")
    assert committed_values(servers, topic) == []


def test_a_commit_without_an_answer_can_be_asked_again(
    broker: Broker, version: int, topic: str, begun: Started
) -> None:
    servers = broker.bootstrap_servers
    producer = begun(servers, max_block_ms=700, request_timeout_ms=200)
    producer.send(topic, b"kept", partition=0)
    rule = broker.faults.add(Fault("EndTxn", "drop_reply", times=None))
    with pytest.raises(TimedOutError):
        producer.commit_transaction()
    with pytest.raises(InvalidInputError, match="commit again"):
        producer.abort_transaction()
    rule.remove()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic, b"kept too", partition=0)
    producer.commit_transaction()
    assert committed_values(servers, topic) == [b"kept", b"kept too"]


def test_version_2_asks_no_one_before_it_writes(broker: Broker, topic: str, begun: Started) -> None:
    for api in ("AddPartitionsToTxn", "AddOffsetsToTxn"):
        broker.faults.add(Fault(api, "fail", error=ErrorCode.INVALID_REQUEST, times=None))
    producer = begun(broker.bootstrap_servers)
    producer.send(topic, b"kept")
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic)
    producer.commit_transaction()
    assert committed_values(broker.bootstrap_servers, topic) == [b"kept"]


@pytest.mark.kafka
@pytest.mark.peer
def test_java_producer_copies_in_transactions(broker: Broker, topic: str, kafka_tools: KafkaTools) -> None:
    """Apache Kafka's own transactional copier.

    It consumes, produces and commits offsets in one transaction after another.
    """
    servers = broker.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-copy", 2)]).all()
    with Producer(servers) as producer:
        for number in range(300):
            producer.send(topic, b"%03d" % number, key=b"%d" % (number % 5))
    done: subprocess.CompletedProcess[str] = kafka_tools.run(
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *(
            "--broker-list",
            servers,
            "--input-topic",
            topic,
            "--input-partition",
            "0",
            "--output-topic",
            f"{topic}-copy",
        ),
        *("--max-messages", "300", "--consumer-group", topic, "--transaction-size", "40", "--transactional-id", topic),
        *("--enable-random-aborts", "--group-mode"),
        timeout_s=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert committed_values(servers, f"{topic}-copy") == [b"%03d" % number for number in range(300)]
    assert committed_offset(servers, topic, TopicPartition(topic, 0)) == 300
    with Producer(servers, transactional_id=topic) as ours:
        ours.init_transactions()
        assert ours.epoch > 8, "the Java producer's epoch moved with each transaction"
