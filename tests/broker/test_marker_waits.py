"""Requests that wait for a transaction whose markers cannot be written are still answered, and its outcome holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.broker.shards import java_hash
from kohort.broker.transactions import coordinator
from kohort.broker.transactions.coordinator import WAITING_MAX, MarkerWaits
from kohort.broker.transactions.log import Status
from kohort.errors import ErrorCode
from kohort.wire.batch import iter_headers
from kohort.wire.transactions import DescribeTransactionsRequest, EndTxnRequest
from tests.broker.group_member import committed
from tests.broker.raw import RawClient, create_topic
from tests.broker.test_groups import when_loaded
from tests.broker.test_transactions import Producer, stable_end
from tests.support.waiting import replace_time, until

SETTINGS: dict[str, Any] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}
HERE = next(f"here-{number}" for number in range(99) if java_hash(f"here-{number}") % 2 == 0)


def flip(file: Path) -> None:
    """Flip one bit of the first batch; a second call undoes it."""
    data = bytearray(file.read_bytes())
    position, header = next(iter(iter_headers(data)))
    data[position + header.size - 12] ^= 0x40
    file.write_bytes(data)


def the_journal(folder: Path) -> Path:
    (file,) = (folder / "__consumer_offsets-0").glob("*.log")
    return file


def open_transaction(broker: Broker, version: int) -> tuple[int, int]:
    """One record and one offset in a transaction that is not ended; a first one is, so that the journal has batches."""
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        producer = Producer(client, "x", version)
        assert producer.init() == ErrorCode.NONE
        for offset in (5, 6):
            if version == 1:
                assert producer.add("t", 0) == [ErrorCode.NONE]
            assert producer.write("t", 0, b"v") == ErrorCode.NONE
            assert producer.commit_offset(HERE, "t", offset) == ErrorCode.NONE
            if offset == 5:
                assert producer.end(commit=True) == ErrorCode.NONE
        return producer.id, producer.epoch


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_with_offsets_in_a_damaged_journal_ends_for_its_client_and_for_the_offsets_when_it_is_repaired(
    tmp_path: Path, commit: bool, version: int
) -> None:
    with Broker(tmp_path, SETTINGS) as broker:
        ours = open_transaction(broker, version)
        broker.kill()
        flip(the_journal(tmp_path))
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            producer = Producer(client, "x", version)
            producer.id, producer.epoch = ours
            for _ in range(2):  # an answer that was lost is asked for again
                asked = EndTxnRequest(
                    transactional_id="x", producer_id=ours[0], producer_epoch=ours[1], committed=commit
                )
                assert client.ask(asked, 5 if version == 2 else 4).error_code == ErrorCode.NONE
            assert stable_end(client, "t") == 4, "what can be marked is"
            producer.epoch += version - 1
            if version == 1:
                assert producer.add("t", 0) == [ErrorCode.UNKNOWN_SERVER_ERROR]
            else:
                assert producer.write("t", 0, b"w") == ErrorCode.UNKNOWN_SERVER_ERROR
            assert Producer(client, "x", version).init() == ErrorCode.UNKNOWN_SERVER_ERROR
        broker.kill()
        flip(the_journal(tmp_path))
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, HERE)
            assert Producer(client, "x", version).init() == ErrorCode.NONE, "it waits for the markers"
            assert committed(client, HERE, "t") == (6 if commit else 5)


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_takes_no_offsets_of_a_damaged_journal_in(tmp_path: Path, version: int) -> None:
    """The transaction cannot end in the damaged journal; its records can."""
    with Broker(tmp_path, SETTINGS) as broker:
        open_transaction(broker, version)
        broker.kill()
        flip(the_journal(tmp_path))
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            producer = Producer(client, "y", version)
            assert producer.init() == ErrorCode.NONE
            if version == 1:
                assert producer.add("t", 0) == [ErrorCode.NONE]
            assert producer.write("t", 0, b"v") == ErrorCode.NONE
            assert producer.commit_offset(HERE, "t", 7) == ErrorCode.UNKNOWN_SERVER_ERROR
            assert producer.end(commit=False) == ErrorCode.NONE
            assert producer.init() == ErrorCode.NONE


def test_who_waits_is_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, reported = MarkerWaits(), []
    now_s = 100.0
    replace_time(monkeypatch, coordinator, monotonic=lambda: now_s)

    def wait() -> None:
        waits.add("x", lambda: reported.append(ErrorCode.NONE), reported.append)

    for _ in range(WAITING_MAX):
        wait()
    assert not reported
    wait()
    assert reported == [ErrorCode.CONCURRENT_TRANSACTIONS]
    now_s += coordinator.WAIT_S / 2
    waits.on_markers_failed("x", stuck=False)
    assert len(reported) == 1
    now_s += coordinator.WAIT_S / 2
    waits.on_markers_failed("x", stuck=False)
    assert reported == [ErrorCode.CONCURRENT_TRANSACTIONS] * (1 + WAITING_MAX)
    wait()
    waits.answer_waiting("x")
    assert reported[1 + WAITING_MAX :] == [ErrorCode.NONE]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_ends_in_a_partition_that_could_not_be_opened_once_it_is_repaired(
    tmp_path: Path, commit: bool
) -> None:
    """Otherwise the transaction would stay open there for ever, and hold back every read_committed reader."""
    with Broker(tmp_path, SETTINGS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t")
            producer = Producer(client, "x", 2)
            assert producer.init() == ErrorCode.NONE
            assert producer.write("t", 0, b"v") == ErrorCode.NONE
        broker.kill()
        (tmp_path / "t-0").rename(tmp_path / "kept")
        (tmp_path / "t-0").write_text("no folder")
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            asked = EndTxnRequest(
                transactional_id="x", producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
            )
            assert client.ask(asked, 5).error_code == ErrorCode.NONE
        broker.kill()
        (tmp_path / "t-0").unlink()
        (tmp_path / "kept").rename(tmp_path / "t-0")
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert Producer(client, "x", 2).init() == ErrorCode.NONE, "it waits for the marker"
            assert stable_end(client, "t") == 2, "the record and its marker"


def test_a_batch_that_comes_while_its_transaction_ends_is_refused_with_an_error_that_its_client_knows(
    tmp_path: Path,
) -> None:
    """Clients before transaction version 2 fail after CONCURRENT_TRANSACTIONS; they try again after this one."""
    with Broker(tmp_path, SETTINGS) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            producer = Producer(client, "x")
            assert producer.init() == ErrorCode.NONE
            for topic in ("t", "u"):
                create_topic(client, topic)
                assert producer.add(topic, 0) == [ErrorCode.NONE]
                assert producer.write(topic, 0, b"v") == ErrorCode.NONE
        broker.kill()
        (tmp_path / "t-0").rename(tmp_path / "kept")
        (tmp_path / "t-0").write_text("no folder")
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as ending:
            ending.send(
                EndTxnRequest(
                    transactional_id="x", producer_id=producer.id, producer_epoch=producer.epoch, committed=False
                ),
                4,
            )
            producer.client = client
            asked = DescribeTransactionsRequest(transactional_ids=["x"])
            ends = Status.PREPARE_ABORT.admin_name
            until(lambda: client.ask(asked).transaction_states[0].transaction_state == ends, "the transaction ends")
            for version, error in ((1, ErrorCode.NOT_ENOUGH_REPLICAS), (2, ErrorCode.CONCURRENT_TRANSACTIONS)):
                producer.version = version
                assert producer.write("u", 0, b"late") == error
