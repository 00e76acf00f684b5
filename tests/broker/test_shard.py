"""A shard's own failures: a fault in the coordinator costs one request, not the shard.

A shard that loads answers nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.broker.api.offset_transactions import txn_offset_commit
from kohort.broker.run import BrokerServer
from kohort.broker.server.connection import ClientSession
from kohort.coordinator import shard as shard_module
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.events import Heartbeat, ListGroups, OffsetCommit, OffsetFetch, OffsetToCommit
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.wire.transactions import TxnOffsetCommitRequest


async def loaded(shard: Shard) -> None:
    """Wait until it serves."""
    async with asyncio.timeout(10):
        while not shard.is_loaded:  # noqa: ASYNC110  # a shard has no event for tests
            await asyncio.sleep(0.01)


async def play(folder: Path) -> list[Any]:
    """A commit, a request on which the coordinator breaks, and another, in one batch; then the commit's trace."""
    loop = asyncio.get_running_loop()
    broker = BrokerServer(loop, folder, "127.0.0.1:0", {})
    broker.listen()
    shard = next(iter(broker.node.groups))
    await loaded(shard)
    answers: list[Any] = []
    shard.ask(OffsetCommit(1, "g", "", -1, (OffsetToCommit("t", 0, 7),)), answers.append)
    shard.ask(Heartbeat(2, "g", None, []), answers.append)  # type: ignore[arg-type]  # no id can be a list
    shard.ask(ListGroups(3), answers.append)
    await asyncio.sleep(0)
    await loaded(shard)
    listed: asyncio.Future[Any] = loop.create_future()
    shard.ask(ListGroups(4), listed.set_result)
    answers.append(await listed)
    await broker.close()
    return answers


def test_a_fault_in_the_coordinator_costs_one_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    committed, broken, beside, listed = asyncio.run(play(tmp_path))
    assert committed.errors == (ErrorCode.NONE,)
    assert broken is ErrorCode.UNKNOWN_SERVER_ERROR
    assert beside is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [group.group_id for group in listed.groups] == ["g"]
    assert "a fault in the coordinator at Heartbeat of group g" in caplog.text
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [TypeError]


async def ask_while_it_moves(folder: Path) -> list[Any]:
    """Send one request while the coordinator loads, after it has loaded, and after it has gone."""
    loop = asyncio.get_running_loop()
    broker = BrokerServer(loop, folder, "127.0.0.1:0", {})
    broker.listen()
    shard = next(iter(broker.node.groups))
    await loaded(shard)
    broker.node.topics.create("t", 1)
    answers: list[Any] = []
    committed: asyncio.Future[Any] = loop.create_future()
    shard.ask(OffsetCommit(1, "g", "", -1, (OffsetToCommit("t", 0, 7),)), committed.set_result)
    await committed
    shard.start_loading()
    shard.ask(OffsetFetch(2, "g", (TopicPartition("t", 0),)), answers.append)
    await loaded(shard)
    fetched: asyncio.Future[Any] = loop.create_future()
    shard.ask(OffsetFetch(3, "g", (TopicPartition("t", 0),)), fetched.set_result)
    answers.append((await fetched).offsets[0].offset)
    shard.ask(OffsetFetch(4, "g", (TopicPartition("t", 0),)), answers.append)
    shard.close()
    shard.ask(OffsetFetch(5, "g", (TopicPartition("t", 0),)), answers.append)
    await broker.close()
    return answers


def test_scenario_10_a_coordinator_that_loads_or_moves_never_says_that_there_is_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "LOAD_SLICE_S", -1.0)
    loading, offset, closing, closed = asyncio.run(ask_while_it_moves(tmp_path))
    assert loading is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert offset == 7
    assert closing is ErrorCode.NOT_COORDINATOR
    assert closed is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def refused_offsets(folder: Path, version: int = 3, *, loading: bool = False) -> list[int]:
    """Return the error of a transactional offset commit that the journal cannot hold, or that comes too early."""
    loop = asyncio.get_running_loop()
    broker = BrokerServer(loop, folder, "127.0.0.1:0", {})
    broker.listen()
    broker.node.topics.create("t", 1)
    for shard in broker.node.groups:
        await loaded(shard)
    part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    message = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    answers: list[Any] = []
    client = ClientSession(1, "127.0.0.1")
    request: Any = SimpleNamespace(message=message, version=version, reply=answers.append, client=client)
    if loading:
        transactions = SimpleNamespace(check_partition_in_transaction=lambda *_: ErrorCode.NONE)
        host: Any = SimpleNamespace(authorizer=None, transactions=transactions, next_request_id=lambda: 1)
        host.topics, host.groups = broker.node.topics, broker.node.groups
        for shard in broker.node.groups:
            written: asyncio.Future[Any] = loop.create_future()
            shard.ask(OffsetCommit(1, "g", "", -1, (OffsetToCommit("t", 0, 7),)), written.set_result)
            await written
            shard.start_loading()
        txn_offset_commit(host, request)
    else:
        txn_offset_commit(broker.node, request)
    await broker.close()
    return [int(part.error_code) for answer in answers for topic in answer.topics for part in topic.partitions]


def test_offsets_in_transactions_are_refused_where_the_journal_can_t_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses offsets that its offsets topic cannot hold likewise: producers treat that as fatal and stop."""
    monkeypatch.setattr(LogJournal, "holds_transactions", False)
    assert asyncio.run(refused_offsets(tmp_path)) == [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]


@pytest.mark.parametrize(
    ("version", "reported"),
    [
        pytest.param(1, ErrorCode.COORDINATOR_NOT_AVAILABLE, id="before KAFKA-7296"),
        pytest.param(2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, id="after it"),
    ],
)
def test_producers_that_fail_at_a_loading_coordinator_get_another_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, reported: ErrorCode
) -> None:
    monkeypatch.setattr(shard_module, "LOAD_SLICE_S", -1.0)
    assert asyncio.run(refused_offsets(tmp_path, version, loading=True)) == [reported]
