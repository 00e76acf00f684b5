"""A member whose connection ends is evicted before its session does, if its client is one that agreed to it."""

from __future__ import annotations

import time

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.groups import ConsumerGroupDescribeRequest
from tests.broker.group_member import Member
from tests.broker.raw import RawClient
from tests.broker.test_consumer_protocol import Member as Modern
from tests.support.waiting import until

SESSION_MS = 12_000
GRACE_S = SESSION_MS / 3 * 1.25 / 1_000 + 0.25
"""No interval is known of a member that has never sent a heartbeat: a third of its session stands for it."""
LEASE_S = GroupConfig().disconnect_lease_ms / 1_000


def seconds_until_evicted(broker: Broker, group: str, software: str, limit_s: float) -> float:
    """Two members, one of which vanishes: seconds until the other hears of it; the limit if it doesn't."""
    with RawClient(broker.bootstrap_servers) as staying:
        stays = Member(staying, group, "t", session_ms=SESSION_MS)
        assert stays.join().error_code == 0
        with RawClient(broker.bootstrap_servers) as leaving:
            said = ApiVersionsRequest(client_software_name=software, client_software_version="1")
            assert leaving.ask(said, 3).error_code == 0
            goes = Member(leaving, group, "t", session_ms=SESSION_MS)
            goes.obtain_id()
            goes.send_join()
            stays.join()
            goes.joined()
            stays.sync({stays.id: b"", goes.id: b""})
            goes.sync()
        started = time.monotonic()
        while time.monotonic() < started + limit_s:
            if stays.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS:
                break
            time.sleep(0.05)
        return time.monotonic() - started


def test_our_own_client_is_evicted_after_its_lease() -> None:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        waited = seconds_until_evicted(broker, "g", "kohort", SESSION_MS / 1_000 + 5)
    assert LEASE_S - 1 <= waited < SESSION_MS / 1_000 - 2


def test_others_keep_their_session(broker: Broker, name: str) -> None:
    assert seconds_until_evicted(broker, name, "librdkafka", GRACE_S + 1.5) >= GRACE_S + 1.5


@pytest.mark.parametrize(("notice", "software", "evicted"), [("all", "librdkafka", True), ("off", "kohort", False)])
def test_an_option_says_whose_connections_count(notice: str, software: str, evicted: bool) -> None:
    config = {"group.notice.disconnects": notice, "group.initial.rebalance.delay.ms": 0}
    with Broker(config=config) as broker:
        waited = seconds_until_evicted(broker, "g", software, GRACE_S + 1.5)
    assert (waited < GRACE_S + 1.5) is evicted


def test_a_classic_member_of_a_consumer_group_is_evicted_before_its_session_ends(
    broker: Broker, client: RawClient, topic: str
) -> None:
    """Within 20 s, and not after its session of 60 s."""
    stays = Modern(client, topic, topic)
    until(lambda: stays.heartbeat() == 0 and bool(stays.owned), "the first has its assignment")
    with RawClient(broker.bootstrap_servers) as leaving:
        said = ApiVersionsRequest(client_software_name="kohort", client_software_version="1")
        assert leaving.ask(said, 3).error_code == 0
        goes = Member(leaving, topic, topic, session_ms=60_000)
        assert goes.join().error_code == 0
        assert goes.sync().error_code == 0
    asked = ConsumerGroupDescribeRequest(group_ids=[topic])

    def alone() -> bool:
        assert stays.heartbeat(topic_partitions=stays.owned) == 0
        return [member.member_id for member in client.ask(asked).groups[0].members] == ["member"]

    until(alone, "the one whose connection ended is evicted")


@pytest.mark.parametrize(
    ("notice", "software", "version", "lease_ms"),
    [
        ("known", "kohort", 3, 4_000),
        ("known", "kohort", 4, 4_000),
        ("all", "kohort", 4, 4_000),
        ("off", "kohort", 4, 0),
        ("all", "librdkafka", 4, 0),
        ("known", "apache-kafka-java", 4, 0),
    ],
)
def test_only_our_own_clients_get_a_lease(notice: str, software: str, version: int, lease_ms: int) -> None:
    config = {"group.notice.disconnects": notice, "group.disconnect.lease.ms": 4_000}
    with Broker(config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        said = ApiVersionsRequest(client_software_name=software, client_software_version="1")
        assert client.ask(said, version).lease_ms == lease_ms
