"""Groups of the consumer protocol (KIP-848): with librdkafka, and across a SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import ConfigResource, ResourceType
from kohort.errors import ErrorCode
from kohort.wire.discovery import ApiVersionsRequest
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
            member_epoch=self.epoch,
            **{"member_id": "member", **(joining if self.epoch == 0 else {}), **fields},
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
                return [(topic.topic_id, sorted(topic.partitions)) for topic in member.owned] == [(wanted, [0, 1, 2])]

            until(settled, "the group is settled")
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, "g")
            member.client = client
            assert member.heartbeat() == 0
            member.epoch += 7
            assert member.heartbeat() == ErrorCode.FENCED_MEMBER_EPOCH


class StaticMember(Member):
    """One with an instance id, of a client that is held and, as many do, leaves on another connection."""

    def __init__(self, client: RawClient, member_id: str, topic: str) -> None:
        super().__init__(client, topic, topic)
        self.facts = {"member_id": member_id, "instance_id": "one"}
        said = ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4")
        assert client.ask(said, 3).error_code == 0

    def heartbeat(self, **fields: Any) -> int:
        return super().heartbeat(**self.facts, **fields)

    def hold(self) -> None:
        """Send a heartbeat whose answer is held."""
        self.client.send(ConsumerGroupHeartbeatRequest(group_id=self.group, member_epoch=self.epoch, **self.facts))

    def leave(self, aside: RawClient) -> None:
        left = aside.ask(ConsumerGroupHeartbeatRequest(group_id=self.group, member_epoch=-2, **self.facts))
        assert (left.error_code, left.member_epoch) == (0, -2)


def test_a_static_member_that_left_while_a_heartbeat_was_held_makes_room_for_its_successor(
    broker: Broker, client: RawClient, topic: str
) -> None:
    with RawClient(broker.bootstrap_servers) as main, RawClient(broker.bootstrap_servers) as other:
        first = StaticMember(main, "first", topic)
        until(lambda: first.heartbeat() == 0 and bool(first.owned), "the first member has its partitions")
        assert first.heartbeat(topic_partitions=first.owned) == 0
        first.hold()
        first.leave(client)
        assert main.receive().error_code == ErrorCode.FENCED_MEMBER_EPOCH, "the answer to what was held"
        second = StaticMember(other, "second", topic)
        assert second.heartbeat() == 0
        assert second.owned == first.owned
        group = client.ask(ConsumerGroupDescribeRequest(group_ids=[topic])).groups[0]
        assert [member.member_id for member in group.members] == ["second"]


def test_who_is_away_has_its_groups_own_session_after_a_restart_too(tmp_path: Path) -> None:
    """Both are away when the broker starts again; the other group's session, of the broker's length, is the clock."""
    config = {
        "group.consumer.session.timeout.ms": 4_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.max.session.timeout.ms": 3_600_000,
        "offsets.topic.num.partitions": 1,
    }
    with Broker(tmp_path, config) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            own = ConfigResource(ResourceType.GROUP, "own")
            admin.incremental_alter_configs({own: {"consumer.session.timeout.ms": "3600000"}}).all()
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t")
            for group in ("own", "other"):
                member = StaticMember(client, "first", group)
                assert member.heartbeat(subscribed_topic_names=["t"]) == 0
                member.leave(client)
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            when_loaded(client, "own")

            def members(group: str) -> int:
                return len(client.ask(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0].members)

            until(lambda: members("other") == 0, "the session of the broker's length has ended")
            assert members("own") == 1


@pytest.mark.peer
def test_a_static_member_of_librdkafka_that_restarts_has_its_place_at_once(broker: Broker, topic: str) -> None:
    """Within `WITHIN_S`, and not after its session of 45 s."""
    confluent = pytest.importorskip("confluent_kafka")
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "group.protocol": "consumer",
        "group.instance.id": "one",
    }

    def assigned(member: Any) -> bool:
        member.consume(1, 0.05)
        return len(member.assignment()) == 1

    for _ in range(2):
        member = confluent.Consumer(config)
        member.subscribe([topic])
        until(lambda member=member: assigned(member), "the member has its partition")
        member.close()


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
