"""A transactional producer's identity at its edges: the last epoch, a late repetition, a newer producer in between."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort import Broker
from kohort.broker.topics import TRANSACTIONS_TOPIC
from kohort.broker.transactions.coordinator import EPOCH_MAX, Transactions
from kohort.broker.transactions.log import Status, Transaction, TransactionLog
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.log import LogStore
from kohort.wire.transactions import DescribeTransactionsRequest, EndTxnRequest, InitProducerIdRequest
from tests.broker.raw import RawClient
from tests.broker.test_transactions import Producer
from tests.support.waiting import until

OLD, NEW = 5_000_000, 6_000_000
"""Producer ids that no broker of these tests gives out by itself."""
SETTINGS: dict[str, Any] = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}


def keep(folder: Path, *transactions: Transaction) -> None:
    """Make a data folder whose transactional ids have come so far."""
    with LogStore(folder) as store:
        store.create_topic("t", 1)
        store.create_topic(TRANSACTIONS_TOPIC, 1, {"cleanup.policy": "compact"})
        log = TransactionLog(store)
        for transaction in transactions:
            log.write_transaction(transaction, transaction.update_ms)


def kept(epoch: int, status: Status, **more: Any) -> Transaction:
    now_ms = time.time_ns() // 1_000_000
    return Transaction("x", OLD, epoch, 60_000, status, start_ms=now_ms, update_ms=now_ms, **more)


def end(client: RawClient, producer: tuple[int, int], *, commit: bool) -> tuple[int, int, int]:
    asked = EndTxnRequest(transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=commit)
    answer = client.ask(asked, 5)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def init(client: RawClient, producer: tuple[int, int]) -> tuple[int, int, int]:
    asked = InitProducerIdRequest(
        transactional_id="x", transaction_timeout_ms=60_000, producer_id=producer[0], producer_epoch=producer[1]
    )
    answer = client.ask(asked, 5)
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("call", ["EndTxn", "InitProducerId"])
def test_a_timeout_in_the_last_epoch_brings_another_producer_id(tmp_path: Path, call: str) -> None:
    """The late abort of the same transaction, or the next InitProducerId, learns it (KAFKA-20090)."""
    ongoing = kept(EPOCH_MAX, Status.ONGOING, partitions=(TopicPartition("t", 0),))
    keep(tmp_path, replace(ongoing, timeout_ms=100))
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:

        def state() -> str:
            (found,) = client.ask(DescribeTransactionsRequest(transactional_ids=["x"])).transaction_states
            return str(found.transaction_state)

        until(lambda: state() == Status.COMPLETE_ABORT.admin_name, "the transaction is aborted by its timeout")
        if call == "EndTxn":
            error, producer_id, epoch = end(client, (OLD, EPOCH_MAX), commit=False)
        else:
            error, producer_id, epoch = init(client, (OLD, EPOCH_MAX))
        assert (error, epoch) == (ErrorCode.NONE, 0) and producer_id not in (OLD, -1)
        producer = Producer(client, "x", 2, timeout_ms=100)
        producer.id, producer.epoch = producer_id, epoch
        assert producer.write("t", 0, b"v") == ErrorCode.NONE
        assert producer.end(commit=True) == ErrorCode.NONE
        assert producer.init() == ErrorCode.NONE
        assert producer.write("t", 0, b"v") == ErrorCode.NONE
        until(lambda: state() == Status.COMPLETE_ABORT.admin_name, "timeouts are still looked at")


@pytest.mark.parametrize("epoch", [3, EPOCH_MAX], ids=["an epoch", "last epoch"])
def test_commit_that_meets_the_coordinators_own_abort_is_fenced(tmp_path: Path, epoch: int) -> None:
    """Producers go on after PRODUCER_FENCED, and end at INVALID_TXN_STATE (KAFKA-20785)."""
    keep(tmp_path, replace(kept(epoch, Status.ONGOING, partitions=(TopicPartition("t", 0),)), timeout_ms=100))
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:

        def aborted() -> bool:
            (found,) = client.ask(DescribeTransactionsRequest(transactional_ids=["x"])).transaction_states
            return str(found.transaction_state) == Status.COMPLETE_ABORT.admin_name

        until(aborted, "the transaction is aborted by its timeout")
        assert end(client, (OLD, epoch), commit=True)[0] == ErrorCode.PRODUCER_FENCED
        assert end(client, (OLD, epoch), commit=False)[0] == ErrorCode.NONE


def test_commit_after_the_producers_own_abort_is_a_mistake_of_the_producer(tmp_path: Path) -> None:
    keep(tmp_path, kept(3, Status.ONGOING, partitions=(TopicPartition("t", 0),)))
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        assert end(client, (OLD, 3), commit=False)[0] == ErrorCode.NONE
        assert end(client, (OLD, 3), commit=True)[0] == ErrorCode.INVALID_TXN_STATE


def test_a_new_producer_after_the_last_epoch_fences_the_old_one(tmp_path: Path) -> None:
    keep(tmp_path, kept(EPOCH_MAX, Status.ONGOING, partitions=(TopicPartition("t", 0),)))
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        error, producer_id, _ = init(client, (-1, -1))
        assert error == ErrorCode.NONE and producer_id != OLD
        assert end(client, (OLD, EPOCH_MAX), commit=False)[0] == ErrorCode.PRODUCER_FENCED
        assert init(client, (OLD, EPOCH_MAX))[0] == ErrorCode.PRODUCER_FENCED


def test_an_epoch_beyond_the_last_one_that_an_earlier_version_gave_out_ends_its_transaction(tmp_path: Path) -> None:
    keep(tmp_path, kept(EPOCH_MAX + 1, Status.ONGOING, partitions=(TopicPartition("t", 0),)))
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        error, producer_id, epoch = end(client, (OLD, EPOCH_MAX + 1), commit=True)
        assert (error, epoch) == (ErrorCode.NONE, 0) and producer_id != OLD


@pytest.mark.parametrize("status", [Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT], ids=["commit", "abort"])
@pytest.mark.parametrize(("epoch", "version"), [(0, 2), (0, 0), (3, 2)], ids=["first", "first, old client", "later"])
def test_a_zombie_of_a_used_up_producer_id_does_not_get_its_successors_identity(
    tmp_path: Path, status: Status, epoch: int, version: int
) -> None:
    """An old client's transaction in the first epoch ended without another one: the epoch is the client's."""
    now_ms = time.time_ns() // 1_000_000
    ended = Transaction("x", NEW, epoch, 60_000, status, update_ms=now_ms, previous_producer_id=OLD)
    keep(tmp_path, replace(ended, client_version=version))
    commit = status is Status.COMPLETE_COMMIT
    with Broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap_servers) as client:
        for zombie in [(OLD, 9), (OLD, EPOCH_MAX - 1)]:
            assert end(client, zombie, commit=commit)[0] == ErrorCode.PRODUCER_FENCED
            assert init(client, zombie)[0] == ErrorCode.PRODUCER_FENCED
        assert end(client, (-1, EPOCH_MAX), commit=commit)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        last = (OLD, EPOCH_MAX)  # whose answers were lost
        ours = epoch == 0 and version == 2
        expected = (ErrorCode.NONE, NEW, 0) if ours else (ErrorCode.PRODUCER_FENCED, -1, -1)
        assert end(client, last, commit=commit) == expected
        assert init(client, last) == expected


# -- While a transaction's markers can't be written


class Store:
    """A store whose partitions take no markers until the disk has room."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.full = True

    @property
    def topics(self) -> Any:
        return self._store.topics

    def partition(self, tp: TopicPartition) -> Any:
        return self._store.partition(tp)

    def get(self, topic: str, partition: int) -> Any:
        return self if self.full else self._store.get(topic, partition)

    def append_marker(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")


class Ending:
    """A coordinator with one open transaction of producer (0, epoch), whose markers can't be written yet."""

    def __init__(self, store: LogStore, epoch: int = 0) -> None:
        store.create_topic("t", 1)
        self.store = Store(store)
        self.timers: list[Callable[[], None]] = []
        ids = iter(range(100))

        def call_later(_delay_s: float, action: Callable[..., None], *args: object) -> SimpleNamespace:
            self.timers.append(partial(action, *args))
            return SimpleNamespace(cancel=lambda: None)

        host: Any = SimpleNamespace(
            loop=SimpleNamespace(call_later=call_later),
            store=self.store,
            config=SimpleNamespace(
                serves_older_values=False,
                transaction_timeout_max_ms=60_000,
                transaction_segment_bytes=1 << 20,
                transaction_partitions=1,
            ),
            topics=SimpleNamespace(create=store.create_topic),
            groups=SimpleNamespace(is_damaged=lambda _: False),
            waits=SimpleNamespace(answer_waiting=lambda _: None, on_append_after_step=lambda *_: None),
            fresh_producer_id=lambda: next(ids),
        )
        self.transactions = Transactions(host)
        self.answers: list[tuple[str, ErrorCode, int, int]] = []
        self.init("first", (-1, -1))
        known = self.transactions.get("x")
        assert known is not None
        self.transactions._known["x"] = Transaction("x", known.producer_id, epoch, 60_000)
        assert self.transactions.add_partitions("x", (0, epoch), [TopicPartition("t", 0)]) is ErrorCode.NONE
        self.answers.clear()

    def _done(self, name: str) -> Callable[[ErrorCode, int, int], None]:
        return lambda error, producer_id, epoch: self.answers.append((name, error, producer_id, epoch))

    def init(self, name: str, producer: tuple[int, int]) -> None:
        self.transactions.assign_producer_id("x", 60_000, producer, self._done(name))

    def begin(self, producer: tuple[int, int]) -> ErrorCode:
        return self.transactions.add_partitions("x", producer, [TopicPartition("t", 0)])

    def end(self, name: str, producer: tuple[int, int], *, version: int = 2) -> None:
        self.transactions.end_transaction("x", producer, commit=True, new_epoch=version == 2, done=self._done(name))

    def taken(self) -> list[tuple[str, ErrorCode, int, int]]:
        """Return the answers since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def heal(self) -> None:
        """Let the disk have room, and the retries run."""
        self.store.full = False
        due, self.timers = self.timers, []
        for timer in due:
            timer()


def test_a_repeated_end_is_not_answered_with_the_identity_of_a_newer_producer(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        ending = Ending(store)
        ending.end("a", (0, 0))
        ending.init("b", (-1, -1))
        ending.end("a again", (0, 0))
        assert ending.answers == []
        ending.heal()
        none = ErrorCode.NONE
        assert ending.answers == [("a", none, 0, 1), ("b", none, 0, 2), ("a again", none, 0, 1)]
        assert ending.transactions.add_partitions("x", (0, 1), [TopicPartition("t", 0)]) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_waits_for_its_end_is_fenced_by_the_newer_one_that_waits_too(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        ending = Ending(store)
        ending.init("b", (-1, -1))
        ending.init("a", (0, 0))
        ending.heal()
        assert ending.answers == [("b", ErrorCode.NONE, 0, 2), ("a", ErrorCode.PRODUCER_FENCED, -1, -1)]


def test_the_next_producer_id_waits_until_the_markers_of_the_used_up_one_are_written(tmp_path: Path) -> None:
    """EndTxn may be answered before (KAFKA-18660)."""
    with LogStore(tmp_path) as store:
        ending = Ending(store, EPOCH_MAX)
        ending.end("a", (0, EPOCH_MAX))
        ending.transactions._waits._waiting.clear()  # as if it had been answered after its time
        following = (1, 0)
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        assert ending.transactions.add_partitions("x", following, [TopicPartition("t", 0)]) is concurrent
        ending.end("ends", following)
        assert ending.answers == [("ends", concurrent, -1, -1)]
        ending.init("begins", following)
        ending.heal()
        assert ending.answers[1:] == [("begins", ErrorCode.NONE, 1, 1)]


@pytest.mark.parametrize("version", [0, 2], ids=["old clients", "new clients"])
def test_a_producer_that_continues_does_not_get_the_epoch_of_a_newer_one(tmp_path: Path, version: int) -> None:
    """Two with one epoch would write into one transaction, and the second's records count as repeated."""
    fenced = ("a", ErrorCode.PRODUCER_FENCED, -1, -1)
    with LogStore(tmp_path) as store:
        ending = Ending(store)
        ending.store.full = False
        ending.end("a", (0, 0), version=version)
        ending.init("b", (-1, -1))
        a, b = [(producer_id, epoch) for _, _, producer_id, epoch in ending.taken()]
        ending.init("a", a)
        assert ending.taken() == [fenced], "b has written nothing yet"
        assert ending.begin(b) is ErrorCode.NONE
        ending.init("a", a)
        assert ending.taken() == [fenced]
        assert ending.begin(b) is ErrorCode.NONE, "b's transaction goes on"
        ending.end("b", b, version=0)
        ending.taken()
        for asks in (ending.init, ending.end):
            asks("a", a)
            assert ending.taken() == [fenced], "b's transaction is over, and the epoch is still b's"


@pytest.mark.parametrize("last", [0, EPOCH_MAX], ids=["next epoch", "next producer id"])
def test_a_producer_that_continues_may_ask_again_until_it_begins(tmp_path: Path, last: int) -> None:
    with LogStore(tmp_path) as store:
        ending = Ending(store, last)
        ending.store.full = False
        ending.end("a", (0, last), version=0)
        ending.taken()
        for _ in range(3):
            ending.init("a", (0, last))
        first, *more = ending.taken()
        assert first == ("a", ErrorCode.NONE, *((0, 1) if last == 0 else (1, 0)))
        assert more == [first, first]
        assert ending.begin((first[2], first[3])) is ErrorCode.NONE
        ending.init("a", (0, last))
        assert ending.taken() == [("a", ErrorCode.PRODUCER_FENCED, -1, -1)]


class Compared(TopicPartition):
    """A partition that counts its comparisons."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = TopicPartition.__hash__


def test_partitions_that_are_added_are_not_compared_with_each_of_the_transaction(tmp_path: Path) -> None:
    """Two requests of 30,000 partitions each kept the broker from all other work for 40 s."""
    partitions = [Compared("t", number) for number in range(1_000)]
    with LogStore(tmp_path) as store:
        ending = Ending(store)
        for _ in range(2):
            assert ending.transactions.add_partitions("x", (0, 0), partitions) is ErrorCode.NONE
        for partition in partitions:
            assert ending.transactions.check_partition_in_transaction("x", (0, 0), partition) is ErrorCode.NONE
    assert Compared.times < 10 * len(partitions)
