"""Transactions while requests fail, answers get lost and the broker dies.

What was told committed is there, once, in order.

Each seed is a story of its own: how the producer is set, which faults come when, and what the application does.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator

import pytest

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.producer import transactions
from kohort.client.producer.transactions import TxnState
from kohort.errors import ErrorCode, KafkaError, TimedOutError

PARTITIONS = 2
TRANSACTIONS = 25
LOST = [
    (api, action)
    for api in ("Produce", "EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn", "InitProducerId")
    for action in ("close", "close_after", "drop", "drop_reply")
]
REFUSED = [
    ("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ("Produce", ErrorCode.CONCURRENT_TRANSACTIONS),
    ("Produce", ErrorCode.TRANSACTION_ABORTABLE),
    ("Produce", ErrorCode.INVALID_RECORD),
    ("EndTxn", ErrorCode.NOT_COORDINATOR),
    ("EndTxn", ErrorCode.CONCURRENT_TRANSACTIONS),
    ("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ("TxnOffsetCommit", ErrorCode.ILLEGAL_GENERATION),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"num.partitions": str(PARTITIONS)}) as broker:
        yield broker


def a_fault(chance: random.Random) -> Fault:
    when = {"skip": chance.choice((0, 0, 1, 2)), "times": chance.choice((1, 1, 2))}
    if chance.random() < 0.6:
        return Fault(*chance.choice(LOST), **when)
    api, error = chance.choice(REFUSED)
    return Fault(api, "fail", error=error, **when)


class Application:
    """Sends numbers in transactions and keeps account of what must be there in the end."""

    def __init__(self, broker: Broker, topic: str, chance: random.Random) -> None:
        self.topic = topic
        self.chance = chance
        self.next = 0
        self.committed: list[int] = []
        self.offset: int | None = None
        self.producer = Producer(
            broker.bootstrap_servers,
            transactional_id=topic,
            request_timeout_ms=300,
            max_block_ms=chance.choice((1000, 5000)),
            delivery_timeout_ms=chance.choice((600, 5000)),
            linger_ms=chance.choice((0, 2)),
            batch_size=chance.choice((200, 2000)),
            retry_backoff_ms=10,
            reconnect_backoff_ms=5,
        )
        self.until_answered(self.producer.init_transactions)

    def until_answered(self, call: Callable[[], None]) -> None:
        """An end without an answer is asked for again."""
        for _ in range(50):
            try:
                return call()
            except TimedOutError:
                if self.producer._core._need_transactions().state is TxnState.FAILED:
                    raise
        raise AssertionError("no answer came")

    def transaction(self) -> None:
        self.producer.begin_transaction()
        first = self.next
        self.next += self.chance.choice((0, 1, 5, 30))
        offset = self.next if self.chance.random() < 0.4 else None
        changed_its_mind = self.chance.random() < 0.3
        try:
            for number in range(first, self.next):
                self.producer.send(self.topic, str(number), partition=self.chance.randrange(PARTITIONS))
            if offset is not None:
                self.producer.send_offsets_to_transaction({TopicPartition(self.topic, 0): offset}, self.topic)
            if not changed_its_mind:
                self.until_answered(self.producer.commit_transaction)
        except KafkaError:
            changed_its_mind = True
        if changed_its_mind:
            self.until_answered(self.producer.abort_transaction)
        else:
            self.committed += range(first, self.next)
            self.offset = self.offset if offset is None else offset


@pytest.mark.parametrize("seed", range(8))
def test_transactions_that_were_reported_committed_are_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(transactions, "FEATURE", "a cluster without the feature")
    topic = f"chaos-{uuid.uuid4().hex[:8]}"
    application = Application(broker, topic, chance)
    for _ in range(TRANSACTIONS):
        if chance.random() < 0.5:
            broker.faults.add(a_fault(chance))
        if chance.random() < 0.04:
            broker.kill()
            broker.restart()
        application.transaction()
    broker.faults.clear()
    application.producer.close()
    with RangeReader(broker.bootstrap_servers, columns=("value",), isolation_level="read_committed") as reader:
        found = []
        for partition in [TopicPartition(topic, number) for number in range(PARTITIONS)]:
            end = reader.end_offsets([partition])[partition]
            batches = reader.read(partition, 0, end)
            values = [int(value) for batch in batches for value in batch.column(0).to_pylist()]
            assert values == sorted(values)
            found += values
    assert sorted(found) == application.committed
    with Admin(broker.bootstrap_servers) as admin:
        place = TopicPartition(topic, 0)
        offset = admin.list_consumer_group_offsets(topic, [place], require_stable=True).partition_result(place)
    assert (None if offset is None else offset.offset) == application.offset
