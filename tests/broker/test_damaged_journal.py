"""Damage in the files of the coordinators.

What can't be read is never guessed at, what it may concern is said, the rest is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker, Consumer
from kohort.broker.shards import java_hash
from kohort.errors import ErrorCode, KafkaError
from kohort.log import LogStore, TopicPlan, run_steps
from kohort.wire.batch import iter_headers
from kohort.wire.discovery import DeleteTopicsRequest
from kohort.wire.groups import DescribeGroupsRequest, ListGroupsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from kohort.wire.transactions import (
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.broker.group_member import Member, committed
from tests.broker.raw import RawClient, batch_of, create_topic, produce

REFUSE: dict[str, Any] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}
OLDER: dict[str, Any] = {**REFUSE, "offsets.load.on.corruption": "older"}
SHARDS = 2
HERE = next(f"here-{number}" for number in range(99) if java_hash(f"here-{number}") % SHARDS == 0)
BESIDE = next(f"beside-{number}" for number in range(99) if java_hash(f"beside-{number}") % SHARDS == 0)
ELSEWHERE = next(f"elsewhere-{number}" for number in range(99) if java_hash(f"elsewhere-{number}") % SHARDS == 1)


def commit(client: RawClient, group: str, offset: int) -> int:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
    return int(client.ask(OffsetCommitRequest(group_id=group, topics=[topic]), 9).topics[0].partitions[0].error_code)


def fetch_error(client: RawClient, group: str) -> int:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    return int(client.ask(asked, 9).groups[0].error_code)


def the_log(folder: Path) -> Path:
    (file,) = folder.glob("*.log")
    return file


def flip(folder: Path, number: int) -> tuple[int, int]:
    """Flip one bit near the end of a batch, counted from the last; where it begins, and its base offset."""
    file = the_log(folder)
    data = bytearray(file.read_bytes())
    position, header = list(iter_headers(data))[number]
    data[position + header.size - 12] ^= 0x40
    file.write_bytes(data)
    return position, header.base_offset


def damaged(folder: Path) -> tuple[int, int]:
    """Make a folder in which the last commit of `HERE` can't be read, nor the one that `BESIDE` made before it."""
    with Broker(folder, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        for group, offset in ((BESIDE, 1), (HERE, 118), (ELSEWHERE, 7), (HERE, 200), (BESIDE, 2)):
            assert commit(client, group, offset) == ErrorCode.NONE
    return flip(folder / "__consumer_offsets-0", -2)


def test_a_damaged_shard_is_not_served_and_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    position, offset = damaged(tmp_path)
    capfd.readouterr()
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        assert committed(client, ELSEWHERE, "t") == 7
        assert commit(client, ELSEWHERE, 8) == ErrorCode.NONE
        for group in (HERE, BESIDE):
            assert fetch_error(client, group) == ErrorCode.UNKNOWN_SERVER_ERROR
            assert commit(client, group, 9) == ErrorCode.UNKNOWN_SERVER_ERROR
            assert Member(client, group, "t").join().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            described = client.ask(DescribeGroupsRequest(groups=[group])).groups[0]
            assert described.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        listed = client.ask(ListGroupsRequest())
        assert listed.error_code == ErrorCode.NONE
        assert [group.group_id for group in listed.groups] == [ELSEWHERE]
        assert produce(client, "t", 0, batch_of(b"x")).error_code == ErrorCode.NONE
    said = capfd.readouterr().err
    assert f"__consumer_offsets-0/{'0' * 20}.log is damaged at byte {position}" in said
    assert f"offset {offset} can't be read, the next readable one is {offset + 1}" in said
    assert f"names that can be made out in it: {HERE}" in said
    assert f"{HERE} (offset {offset - 1})" in said
    assert "offsets.load.on.corruption=older" in said
    assert ELSEWHERE not in said
    assert said.count(" ERROR ") <= 3


def test_older_values_are_served_where_that_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    position, _ = damaged(tmp_path)
    capfd.readouterr()
    with Broker(tmp_path, OLDER) as broker, RawClient(broker.bootstrap_servers) as client:
        assert [committed(client, group, "t") for group in (HERE, BESIDE, ELSEWHERE)] == [118, 2, 7]
        assert commit(client, HERE, 300) == ErrorCode.NONE
        said = capfd.readouterr().err
        assert f"is damaged at byte {position}" in said
        assert f"{HERE} (offset" in said
        assert "the older values are served" in said
        broker.kill()
    with Broker(tmp_path, OLDER) as broker, RawClient(broker.bootstrap_servers) as client:
        assert [committed(client, group, "t") for group in (HERE, BESIDE, ELSEWHERE)] == [300, 2, 7]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_clients_get_an_error_and_do_not_wait(tmp_path: Path, protocol: Any) -> None:
    damaged(tmp_path)
    with Broker(tmp_path, REFUSE) as broker:
        with Consumer(broker.bootstrap_servers, group_id=HERE, group_protocol=protocol) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="the server failed"):
                consumer.poll(timeout_ms=30_000)
        with Admin(broker.bootstrap_servers) as admin, pytest.raises(KafkaError) as refused:
            admin.list_consumer_group_offsets(HERE)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
def test_a_topic_that_is_made_again_has_no_offsets_of_the_earlier_one(tmp_path: Path, crash: bool) -> None:
    """Also where the coordinator could not be told of the deletion, and where the broker dies at each later step."""
    journal = tmp_path / "__consumer_offsets-0"

    def end(broker: Broker) -> None:
        if crash:
            broker.kill()

    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        for group, offset in ((HERE, 118), (BESIDE, 2), (ELSEWHERE, 7)):
            assert commit(client, group, offset) == ErrorCode.NONE
        end(broker)
    flip(journal, -2)
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        assert commit(client, HERE, 1) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert client.ask(DeleteTopicsRequest(topic_names=["t"]), 5).responses[0].error_code == ErrorCode.NONE
        create_topic(client, "t")
        assert commit(client, ELSEWHERE, 8) == ErrorCode.NONE
        end(broker)
    flip(journal, -2)  # as it was: repaired
    for offset in (3, 4):
        with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
            assert committed(client, HERE, "t") == (-1 if offset == 3 else 3)
            assert committed(client, ELSEWHERE, "t") == 8, "this coordinator was told"
            assert commit(client, HERE, offset) == ErrorCode.NONE
            end(broker)


def test_an_earlier_topic_is_forgotten_where_the_broker_died_behind_its_deletion(tmp_path: Path) -> None:
    """The catalog has the deletion, the coordinators' journals do not; clients use the topic again at once."""
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        assert commit(client, HERE, 118) == ErrorCode.NONE
    with LogStore(tmp_path) as store:
        store.delete_topic("t")
        run_steps(store.create_topics_in_steps([TopicPlan("t", 1)], lambda: (0, 1)))
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        assert committed(client, HERE, "t") == -1
        assert commit(client, HERE, 3) == ErrorCode.NONE
        broker.kill()
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        assert committed(client, HERE, "t") == 3


def test_what_was_cut_off_is_said_with_who_wrote_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        for group, offset in ((BESIDE, 1), (HERE, 118), (HERE, 200)):
            assert commit(client, group, offset) == ErrorCode.NONE
        broker.kill()
        file = the_log(tmp_path / "__consumer_offsets-0")
        file.write_bytes(file.read_bytes()[:-20])
        capfd.readouterr()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as again:
            assert committed(again, HERE, "t") == 118
        said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if HERE in line]
    assert "__consumer_offsets-0" in line
    assert f"{HERE} (offset" in line
    assert f"{BESIDE} (offset" in line


# -- the transactions' own log


def init(client: RawClient, transactional_id: str) -> int:
    asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    return int(client.ask(asked, 4).error_code)


@pytest.mark.parametrize("settings", [REFUSE, OLDER], ids=["refuse", "older"])
def test_damage_in_the_transactions_log_concerns_its_partition_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    first, beside = (
        next(f"x{n}-{part}" for n in range(99) if java_hash(f"x{n}-{part}") % 4 == part) for part in (0, 1)
    )
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        for transactional_id in (first, first, beside):
            assert init(client, transactional_id) == ErrorCode.NONE
    flip(tmp_path / "__transaction_state-0", -1)
    capfd.readouterr()
    refused = settings is REFUSE
    with Broker(tmp_path, settings) as broker, RawClient(broker.bootstrap_servers) as client:
        expected = ErrorCode.UNKNOWN_SERVER_ERROR if refused else ErrorCode.NONE
        assert init(client, beside) == ErrorCode.NONE
        described = client.ask(DescribeTransactionsRequest(transactional_ids=[first, beside])).transaction_states
        assert [result.error_code for result in described] == [expected, ErrorCode.NONE]
        listed = client.ask(ListTransactionsRequest())
        assert listed.error_code == ErrorCode.NONE
        names = {transaction.transactional_id for transaction in listed.transaction_states}
        assert names == ({beside} if refused else {first, beside})
        assert init(client, first) == expected
    said = capfd.readouterr().err
    assert f"__transaction_state-0/{'0' * 20}.log is damaged at byte" in said
    assert f"{first} (offset 0)" in said
    assert ("offsets.load.on.corruption=older" in said) is refused


@pytest.mark.parametrize("settings", [REFUSE, OLDER], ids=["refuse", "older"])
def test_a_log_that_cannot_be_opened_is_not_taken_for_an_empty_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    first = next(f"x{n}" for n in range(99) if java_hash(f"x{n}") % 4 == 0)
    with Broker(tmp_path, REFUSE) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        assert commit(client, HERE, 118) == commit(client, ELSEWHERE, 7) == init(client, first) == ErrorCode.NONE
        broker.kill()
        for folder in ("__consumer_offsets-0", "__transaction_state-0"):
            path = the_log(tmp_path / folder)
            path.unlink()
            path.mkdir()
    with Broker(tmp_path, settings) as broker, RawClient(broker.bootstrap_servers) as client:
        assert commit(client, HERE, 1) == init(client, first) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert committed(client, ELSEWHERE, "t") == 7
