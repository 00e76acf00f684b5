"""Groups of the consumer protocol (KIP-848): with librdkafka, and across a SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tests.broker.raw import RawClient, create_topic, topic_id
from tests.broker.test_groups import when_loaded
from tests.support.waiting import until


@pytest.mark.peer
def test_two_members_of_librdkafka(broker: Broker, client: RawClient, name: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    create_topic(client, name, 4)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": name,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    members = [confluent.Consumer(config) for _ in range(2)]
    for member in members:
        member.subscribe([name])
    producer = confluent.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(400):
        producer.produce(name, b"%d" % index, partition=index % 4)
    assert producer.flush(10) == 0
    seen: list[bytes] = []

    def read() -> bool:
        for member in members:
            seen.extend(message.value() for message in member.consume(100, 0.05))
        return len(seen) >= 400 and [len(member.assignment()) for member in members] == [2, 2]

    until(read, "both have two partitions, and all records are read")
    assert sorted(seen, key=int) == [b"%d" % index for index in range(400)]
    group = client.ask(ConsumerGroupDescribeRequest(group_ids=[name])).groups[0]
    assert (group.group_state, len(group.members)) == ("Stable", 2)
    members[0].close()
    until(lambda: members[1].consume(1, 0.05) is not None and len(members[1].assignment()) == 4, "the other takes over")
    members[1].close()


class Member:
    """One member over raw frames."""

    def __init__(self, client: RawClient, group: str, topic: str) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.epoch = 0
        self.owned: list[Any] = []

    def heartbeat(self, **fields: Any) -> int:
        joining = {"subscribed_topic_names": [self.topic], "rebalance_timeout_ms": 10_000, "topic_partitions": []}
        asked = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id="member",
            member_epoch=self.epoch,
            **{**(joining if self.epoch == 0 else {}), **fields},
        )
        answer = self.client.ask(asked)
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = answer.assignment.topic_partitions
        return int(answer.error_code)


def test_a_member_keeps_its_epoch_across_sigkill(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t", 3)
            wanted = topic_id(client, "t")
            member = Member(client, "g", "t")

            def settled() -> bool:
                assert member.heartbeat() == 0
                return [(each.topic_id, sorted(each.partitions)) for each in member.owned] == [(wanted, [0, 1, 2])]

            until(settled, "the group is settled")
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, "g")
            member.client = client
            assert member.heartbeat() == 0
            member.epoch += 7
            assert member.heartbeat() == ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
        {"member_epoch": -3},
        {"instance_id": ""},
    ],
)
def test_what_contradicts_itself_is_refused(client: RawClient, name: str, fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "group_id": name,
        "member_id": "m",
        "rebalance_timeout_ms": 1000,
        "topic_partitions": [],
        "subscribed_topic_names": ["t"],
    }
    answer = client.ask(ConsumerGroupHeartbeatRequest(**{**good, **fields}))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message


def test_a_regular_expression_that_is_none(client: RawClient, name: str) -> None:
    asked = ConsumerGroupHeartbeatRequest(
        group_id=name, member_id="m", rebalance_timeout_ms=1000, topic_partitions=[], subscribed_topic_regex="a(b"
    )
    assert client.ask(asked).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
