"""The transaction coordinator's log: what is read back is as durable as what is written."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from kohort.broker.topics import TRANSACTIONS_TOPIC
from kohort.broker.transactions.log import Status, Transaction, TransactionLog
from kohort.ids import TopicPartition
from kohort.log import LogConfig, LogStore
from tests.log.making import NOW


def test_a_state_that_an_earlier_end_left_unflushed_is_flushed_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Transaction("x", 7, 0, 60_000, Status.PREPARE_COMMIT)
    with LogStore(tmp_path, defaults=LogConfig(flush_messages=1)) as store:
        store.create_topic(TRANSACTIONS_TOPIC, 1)
        partition = store.partition(TopicPartition(TRANSACTIONS_TOPIC, 0))
        with monkeypatch.context() as broken:
            broken.setattr("os.fsync", mock.Mock(side_effect=OSError(5, "Input/output error")))
            with pytest.raises(OSError, match="Input"):
                TransactionLog(store).write_transaction(state, NOW)
            with pytest.raises(OSError, match="Input"):
                list(TransactionLog(store).read_transactions())
        assert partition.flushed_offset == 0
        assert [(name, found and found.status) for name, found in TransactionLog(store).read_transactions()] == [
            ("x", state.status)
        ]
        assert partition.flushed_offset == partition.end_offset == 1


def test_last_state_of_each_id_is_read_once(tmp_path: Path) -> None:
    states = [Status.EMPTY, Status.ONGOING, Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT]
    with LogStore(tmp_path, defaults=LogConfig()) as store:
        store.create_topic(TRANSACTIONS_TOPIC, 3)
        log = TransactionLog(store)
        for status in states:
            for name in ("a", "b", "gone"):
                log.write_transaction(Transaction(name, 7, 0, 60_000, status), NOW)
        log.write_transaction(Transaction("b", 7, 1, 60_000, Status.ONGOING), NOW)
        log.write_tombstone("gone", NOW)
        found = list(TransactionLog(store).read_transactions())
    assert len(found) == 3
    read = {name: state and (state.epoch, state.status) for name, state in found}
    assert read == {"a": (0, Status.COMPLETE_COMMIT), "b": (1, Status.ONGOING), "gone": None}
