"""Transactions over raw frames in both transaction versions, with crashes between the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.data import ListOffsetsRequest, ProduceRequest
from kohort.wire.discovery import MetadataRequest
from kohort.wire.offsets import OffsetFetchRequest
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from tests.broker.group_member import committed
from tests.broker.raw import RawClient, batch_of, create_topic, end_offset, fetch, fetch_request, produce_request
from tests.broker.test_groups import when_loaded


class Producer:
    """A transactional producer, one request at a time; version 2 adds partitions by producing to them."""

    def __init__(self, client: RawClient, transactional_id: str, version: int = 1, timeout_ms: int = 60_000) -> None:
        self.client = client
        self.name = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self) -> int:
        asked = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.id,
            producer_epoch=self.epoch,
        )
        answer = self.client.ask(asked, 5)
        if answer.error_code == 0:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)

    def add(self, topic: str, *partitions: int) -> list[int]:
        wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[wanted],
        )
        answer = self.client.ask(asked, 3)
        return [
            part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ]

    def write(self, topic: str, partition: int, *values: bytes) -> int:
        sequence = self.sequences.get((topic, partition), 0)
        records = batch_of(
            *values,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        asked = produce_request(topic, partition, records, transactional_id=self.name)
        answer = self.client.ask(asked, 12 if self.version == 2 else 11)
        error = int(answer.responses[0].partition_responses[0].error_code)
        if not error:
            self.sequences[topic, partition] = sequence + len(values)
        return error

    def end(self, commit: bool) -> int:
        asked = EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=commit
        )
        answer = self.client.ask(asked, 5 if self.version == 2 else 4)
        if self.version == 2 and not answer.error_code:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)

    def commit_offset(self, group: str, topic: str, offset: int) -> int:
        if self.version == 1:
            asked: Any = AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, group_id=group
            )
            error = int(self.client.ask(asked).error_code)
            if error:
                return error
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        asked = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        answer = self.client.ask(asked, 5 if self.version == 2 else 3)
        return int(answer.topics[0].partitions[0].error_code)


def stable_end(client: RawClient, topic: str) -> int:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    answer = client.ask(ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[asked]), 7)
    return int(answer.topics[0].partitions[0].offset)


def stable_offset_error(client: RawClient, group: str, topic: str) -> int:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])
    answer = client.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 9).groups[0]
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [1, 2])
def test_commit_and_abort(client: RawClient, topic: str, version: int) -> None:
    producer = Producer(client, f"tx-{topic}", version)
    assert producer.init() == 0
    for turn, outcome in enumerate([True, False, True]):
        if version == 1:
            assert producer.add(topic, 0) == [0]
        first = end_offset(client, topic, 0)
        assert producer.write(topic, 0, b"a", b"b") == 0
        assert producer.write(topic, 0, b"c") == 0
        assert stable_end(client, topic) == first
        assert producer.end(outcome) == 0
        assert stable_end(client, topic) == end_offset(client, topic, 0) == 4 * (turn + 1)
        assert producer.epoch == (turn + 1 if version == 2 else 0)
    answer = fetch(client, topic, 0, 0, isolation_level=1)
    assert [(transaction.producer_id, transaction.first_offset) for transaction in answer.aborted_transactions] == [
        (producer.id, 4)
    ]
    state = client.ask(DescribeTransactionsRequest(transactional_ids=[producer.name])).transaction_states[0]
    assert state.transaction_state == "CompleteCommit"
    assert producer.name in {
        transaction.transactional_id for transaction in client.ask(ListTransactionsRequest(), 1).transaction_states
    }


def test_a_reader_of_committed_waits_for_the_end(broker: Broker, client: RawClient, topic: str) -> None:
    from tests.broker.raw import fetch_request

    producer = Producer(client, f"tx-{topic}", 2)
    producer.init()
    producer.write(topic, 0, b"a")
    with RawClient(broker.bootstrap_servers) as reader:
        reader.send(fetch_request(topic, 0, 0, isolation_level=1, max_wait_ms=20_000), 12)
        assert producer.end(True) == 0
        assert b"a" in bytes(reader.receive().responses[0].partitions[0].records)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_count_when_the_transaction_commits(client: RawClient, topic: str, version: int) -> None:
    producer = Producer(client, f"tx-{topic}", version)
    producer.init()
    assert producer.commit_offset(topic, topic, 5) == 0
    assert committed(client, topic, topic) == -1
    assert stable_offset_error(client, topic, topic) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(True) == 0
    assert committed(client, topic, topic) == 5
    assert producer.commit_offset(topic, topic, 9) == 0
    assert producer.end(False) == 0
    assert committed(client, topic, topic) == 5


def test_a_newer_producer_fences_the_older(client: RawClient, topic: str) -> None:
    old, new = Producer(client, f"tx-{topic}"), Producer(client, f"tx-{topic}")
    old.init()
    assert old.add(topic, 0) == [0]
    assert old.write(topic, 0, b"old") == 0
    assert new.init() == 0
    assert new.id == old.id
    assert new.epoch > old.epoch
    assert stable_end(client, topic) == end_offset(client, topic, 0)
    assert old.write(topic, 0, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end(True) == ErrorCode.PRODUCER_FENCED
    assert old.add(topic, 0) == [ErrorCode.PRODUCER_FENCED]
    assert new.add(topic, 0) == [0]
    assert new.write(topic, 0, b"new") == 0
    assert new.end(True) == 0


def test_what_is_refused(client: RawClient, topic: str) -> None:
    producer = Producer(client, f"tx-{topic}")
    assert Producer(client, f"tx-{topic}", timeout_ms=10**9).init() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init() == 0
    assert producer.write(topic, 0, b"x") == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.end(True) == ErrorCode.INVALID_TXN_STATE
    assert producer.add("missing", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.add(topic, 0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    stranger = Producer(client, f"unknown-{topic}")
    assert stranger.add(topic, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert stranger.end(True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_first_batch_of_a_second_version_transaction_has_sequence_0(client: RawClient, topic: str) -> None:
    """KAFKA-18202."""
    for version, refusal in ((1, 0), (2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)):
        producer = Producer(client, f"tx-{topic}-{version}", version)
        assert producer.init() == 0
        if version == 1:
            assert producer.add(topic, 0) == [0]
        producer.sequences[topic, 0] = 3
        assert producer.write(topic, 0, b"later") == refusal
        producer.sequences[topic, 0] = 0 if refusal else 4
        assert producer.write(topic, 0, b"first") == 0
        assert producer.end(True) == 0


def test_a_producer_that_returns_during_its_transaction_gets_the_epoch_of_the_abort(
    client: RawClient, topic: str
) -> None:
    """KAFKA-19367."""
    producer = Producer(client, f"tx-{topic}", 2)
    producer.init()
    assert producer.write(topic, 0, b"aborted") == 0
    before = producer.epoch
    assert producer.init() == 0
    assert producer.epoch == before + 1
    assert producer.write(topic, 0, b"next") == 0
    producer.timeout_ms = 30_000
    assert producer.init() == 0
    assert producer.epoch == before + 2
    described = client.ask(DescribeTransactionsRequest(transactional_ids=[producer.name]))
    assert described.transaction_states[0].transaction_timeout_ms == 30_000
    stranger = Producer(client, producer.name)
    assert stranger.init() == 0
    assert stranger.epoch == before + 3
    assert producer.init() == ErrorCode.PRODUCER_FENCED


def test_an_end_that_is_asked_for_again(client: RawClient, topic: str) -> None:
    """The answer was lost: the same request gets the same answer, another outcome is refused."""
    producer = Producer(client, f"tx-{topic}", 2)
    producer.init()
    producer.write(topic, 0, b"x")
    before = producer.epoch
    assert producer.end(True) == 0
    after = (producer.id, producer.epoch)
    producer.epoch = before
    assert producer.end(True) == 0
    assert (producer.id, producer.epoch) == after
    producer.epoch = before
    assert producer.end(False) != 0


@pytest.mark.slow
def test_epochs_that_run_out_bring_a_new_producer_id(client: RawClient, topic: str) -> None:
    producer = Producer(client, f"tx-{topic}", 2)
    producer.init()
    first = producer.id
    for _ in range(32_767):
        producer.client.send(
            EndTxnRequest(
                transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, committed=False
            ),
            5,
        )
        answer = producer.client.receive()
        assert answer.error_code == 0
        producer.id, producer.epoch = answer.producer_id, answer.producer_epoch
        if producer.id != first:
            break
    assert producer.id != first
    assert producer.epoch == 0
    assert producer.write(topic, 0, b"x") == 0
    assert producer.end(True) == 0


def test_a_transaction_past_its_timeout_is_aborted(tmp_path: Path) -> None:
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(tmp_path / "data", config) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        producer = Producer(client, "tx", timeout_ms=200)
        producer.init()
        producer.add("t", 0)
        producer.write("t", 0, b"x")
        client.send(fetch_request("t", 0, 0, isolation_level=1, max_wait_ms=20_000), 12)
        part = client.receive().responses[0].partitions[0]
        assert part.last_stable_offset == 2
        assert producer.end(True) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_late_writes_of_a_timed_out_producer_open_no_transaction(tmp_path: Path, version: int, killed: bool) -> None:
    """Neither a partition that has not seen the producer yet nor a group takes its old epoch, also after a crash."""
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(tmp_path / "data", config) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            for topic in ("seen", "unseen"):
                create_topic(client, topic)
            late = Producer(client, "tx", version, timeout_ms=200)
            assert late.init() == 0
            assert version == 2 or late.add("seen", 0) == [0]
            assert late.write("seen", 0, b"x") == 0
            client.send(fetch_request("seen", 0, 0, isolation_level=1, max_wait_ms=20_000), 12)
            assert client.receive().responses[0].partitions[0].last_stable_offset == 2
        if killed:
            broker.kill()
            broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, "g")
            late.client = client
            assert late.write("unseen", 0, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
            assert late.commit_offset("g", "seen", 1) != 0
            assert late.add("unseen", 0) == [ErrorCode.PRODUCER_FENCED]
            assert stable_end(client, "unseen") == end_offset(client, "unseen", 0) == 0
            assert stable_offset_error(client, "g", "seen") == 0


@pytest.mark.parametrize("version", [1, 2])
def test_transactions_survive_sigkill(tmp_path: Path, version: int) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t")
            done, open_ = Producer(client, "done", version), Producer(client, "open", version)
            for producer in (done, open_):
                assert producer.init() == 0
                if version == 1:
                    producer.add("t", 0)
                assert producer.write("t", 0, b"x") == 0
                assert producer.commit_offset("g", "t", 3) == 0
                if producer is done:
                    assert producer.end(True) == 0
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, "g")
            assert committed(client, "g", "t") == 3
            assert stable_end(client, "t") == 2
            done.client = open_.client = client
            assert open_.write("t", 0, b"y") == 0
            assert open_.commit_offset("g", "t", 4) == 0
            assert open_.end(True) == 0
            assert committed(client, "g", "t") == 4
            assert stable_end(client, "t") == end_offset(client, "t", 0)
            again = Producer(client, "done", version)
            assert again.init() == 0
            assert (again.id, again.epoch) == (done.id, done.epoch + 1)


def test_partitions_that_one_request_produces_to_are_added_to_the_transaction_together(tmp_path: Path) -> None:
    """Each state holds all partitions of its transaction: 5,000 in one request wrote 50 MB, and others waited."""
    with Broker(tmp_path / "data", {"transaction.state.log.num.partitions": 1}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t", 200)
            producer = Producer(client, "tx", 2)
            assert producer.init() == 0
            before = end_offset(client, "__transaction_state", 0)
            identity = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": 0}
            parts = [
                ProduceRequest.PartitionProduceData(
                    index=number, records=batch_of(b"v", **identity, transactional=True)
                )
                for number in range(201)
            ]
            topics = [ProduceRequest.TopicProduceData(name="t", partition_data=parts)]
            asked = ProduceRequest(acks=-1, timeout_ms=10_000, transactional_id=producer.name, topic_data=topics)
            answers = client.ask(asked, 12).responses[0].partition_responses
            assert [part.error_code for part in answers] == [0] * 200 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert end_offset(client, "__transaction_state", 0) - before == 1
            assert producer.end(True) == 0
            assert fetch(client, "t", 199, 0, isolation_level=1).last_stable_offset == 2


def test_others_are_served_while_a_transaction_of_many_partitions_ends(client: RawClient, name: str) -> None:
    """All markers were written in one go: for 8,000 partitions others waited between 4 and 20 s."""
    create_topic(client, name, 2_000)
    producer = Producer(client, f"tx-{name}")
    assert producer.init() == 0
    assert set(producer.add(name, *range(2_000))) == {0}
    ending = EndTxnRequest(
        transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, committed=True
    )
    with RawClient(client.address) as other:
        other.ask(MetadataRequest(topics=[]))
        client.send(ending, 3)
        assert end_offset(other, name, 1_999) == 0, "the last marker is not written"
    assert client.receive().error_code == 0
    assert end_offset(client, name, 1_999) == 1
