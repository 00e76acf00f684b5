"""Held heartbeats over the wire: what releases them, in which order answers come, and how they end with the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.groups import HeartbeatRequest
from kohort.wire.offsets import OffsetCommitRequest
from tests.broker.group_member import Member
from tests.broker.raw import RawClient

INTERVAL_S = 1.0


@contextmanager
def patient_member(broker: Broker, group: str) -> Iterator[tuple[RawClient, Member]]:
    """The only member of a stable group, of a client that bears to be held, with its interval known."""
    with RawClient(broker.bootstrap_servers) as client:
        client.ask(ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2"), 3)
        member = Member(client, group, "t")
        assert member.join().error_code == 0
        assert member.sync({member.id: b""}).error_code == 0
        assert client.ask(beat(member), 4).error_code == 0
        time.sleep(INTERVAL_S)  # this is the interval that the coordinator learns
        yield client, member


def beat(member: Member) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=member.group, generation_id=member.generation, member_id=member.id)


def test_a_held_heartbeat_tells_of_a_join_when_it_happens(broker: Broker, name: str) -> None:
    with patient_member(broker, name) as (client, member), RawClient(broker.bootstrap_servers) as other:
        client.send(beat(member), 4)
        newcomer = Member(other, name, "t")
        newcomer.obtain_id()
        newcomer.send_join()
        assert client.receive().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_request_behind_a_held_heartbeat_is_answered_after_it_and_at_once(broker: Broker, name: str) -> None:
    with patient_member(broker, name) as (client, member):
        began = time.monotonic()
        client.send(beat(member), 4)
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        entry = OffsetCommitRequest.OffsetCommitRequestTopic(name="nowhere", partitions=[partition])
        client.send(OffsetCommitRequest(group_id=name, topics=[entry]), 8)
        assert client.receive().error_code == 0
        assert client.receive().topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        released_s = time.monotonic() - began
        time.sleep(INTERVAL_S)
        began = time.monotonic()
        assert client.ask(beat(member), 4).error_code == 0
        assert released_s < time.monotonic() - began  # what nothing releases is held until its time is over


def test_a_held_heartbeat_is_answered_when_the_broker_ends(name: str) -> None:
    with (
        Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker,
        patient_member(broker, name) as (client, member),
    ):
        client.send(beat(member), 4)
        broker.close()
        assert client.receive().error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)


def test_a_connection_that_ends_while_held_is_counted(broker: Broker, name: str) -> None:
    before = broker.metrics()["held"]["heartbeat-held-disconnect"]
    with patient_member(broker, name) as (client, member):
        client.send(beat(member), 4)
        with RawClient(broker.bootstrap_servers) as other:
            other.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    while broker.metrics()["held"]["heartbeat-held-disconnect"] == before:
        time.sleep(0.01)
