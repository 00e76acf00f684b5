"""Groups over real sockets, one frame at a time, and across a SIGKILL of the broker."""

from __future__ import annotations

import time
from pathlib import Path

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest
from tests.broker.group_member import Member, committed
from tests.broker.raw import RawClient, batch_of, create_topic, fetch, produce


def test_two_members_rebalance_commit_and_leave(broker: Broker, client: RawClient, topic: str) -> None:
    first = Member(client, topic, topic)
    answer = first.join()
    assert answer.leader == first.id
    assert first.sync({first.id: b"all"}).assignment == b"all"
    assert first.heartbeat() == 0
    with RawClient(broker.bootstrap_servers) as other:
        second = Member(other, topic, topic)
        second.obtain_id()
        second.send_join()
        until = time.monotonic() + 20
        while first.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            assert time.monotonic() < until
        assert len(first.join().members) == 2
        second.joined()
        assert second.generation == first.generation
        second.send_sync({})
        assert first.sync({first.id: b"one", second.id: b"two"}).assignment == b"one"
        assert other.receive().assignment == b"two"
        assert second.commit(topic, 0, 7) == 0
        assert committed(client, topic, topic) == 7
        assert second.commit("missing", 0, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        described = client.ask(DescribeGroupsRequest(groups=[topic])).groups[0]
        assert described.group_state == "Stable"
        assert {member.member_assignment for member in described.members} == {b"one", b"two"}
        assert {member.client_host for member in described.members} == {"/127.0.0.1"}
        deleted = client.ask(DeleteGroupsRequest(groups_names=[topic])).results[0]
        assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP
        assert second.leave() == 0
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert first.leave() == 0
    assert (topic, "Empty") in {(g.group_id, g.group_state) for g in client.ask(ListGroupsRequest()).groups}
    part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    wanted = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[part])
    answer = client.ask(OffsetDeleteRequest(group_id=topic, topics=[wanted]))
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert committed(client, topic, topic) == -1
    assert client.ask(DeleteGroupsRequest(groups_names=[topic])).results[0].error_code == 0


def test_longest_retention_of_old_clients_is_taken(client: RawClient, topic: str) -> None:
    """The record holds the time of expiration, which must not overflow."""
    when_loaded(client, topic)
    for version, retention_ms in ((2, 2**63 - 1), (4, 2**63 - 1), (4, 0), (4, -1), (4, -(2**63))):
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=version)
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])]
        request = OffsetCommitRequest(group_id=topic, topics=topics, retention_time_ms=retention_ms)
        assert client.ask(request, version).topics[0].partitions[0].error_code == 0
        assert committed(client, topic, topic) == version


def when_loaded(client: RawClient, group: str) -> None:
    """Wait until the group's coordinator has loaded."""
    for _ in range(1000):
        described = client.ask(DescribeGroupsRequest(groups=[group])).groups[0]
        if described.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        time.sleep(0.01)
    raise AssertionError("the coordinator does not load")


def test_scenario_16_what_was_acknowledged_is_there_after_sigkill(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "t", 3)
            for index in range(200):
                assert produce(client, "t", index % 3, batch_of(b"%d" % index)).error_code == 0
            member = Member(client, "g", "t")
            member.join()
            assert member.sync({member.id: b"mine"}).error_code == 0
            for offset in range(1, 60):
                assert member.commit("t", 0, offset) == 0
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert [fetch(client, "t", index, 0).high_watermark for index in range(3)] == [67, 67, 66]
            when_loaded(client, "g")
            assert committed(client, "g", "t") == 59
            member.client = client
            assert member.heartbeat() == 0
            assert member.commit("t", 0, 60) == 0
            described = client.ask(DescribeGroupsRequest(groups=["g"])).groups[0]
            assert described.members[0].member_assignment == b"mine"


def test_a_member_that_falls_silent_is_evicted(tmp_path: Path) -> None:
    config = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with Broker(tmp_path / "data", config) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        member = Member(client, "g", "t", session_ms=300)
        member.join()
        member.sync({member.id: b""})
        until = time.monotonic() + 20
        while client.ask(DescribeGroupsRequest(groups=["g"])).groups[0].group_state != "Empty":
            assert time.monotonic() < until
        assert member.commit("t", 0, 1) == ErrorCode.UNKNOWN_MEMBER_ID
