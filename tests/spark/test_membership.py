"""A query's place in its group, without Spark: what is planned while the coordinator is silent."""

from __future__ import annotations

import pytest
from tests.support.waiting import STILL_S, until

from kohort import Admin, Broker
from kohort.broker.net.fault import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.spark.options import parse_options
from kohort.spark.query_member import Membership

pytestmark = pytest.mark.filterwarnings("default")
"""The pipes of Spark's gateway in the tests before are collected, and warned of, while these run."""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_is_planned_while_the_coordinator_is_silent_for_longer_than_its_lease(protocol: str) -> None:
    with Broker(config={"group.initial.rebalance.delay.ms": 0, "group.disconnect.lease.ms": 5_000}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2)])
        said = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "flights",
            "group.id": "etl",
            "group.protocol": protocol,
        }
        place = Membership(parse_options(said))
        try:
            held = place.held(STILL_S * 1000)
            assert held is not None and len(held.partitions) == 2
            assert place.begin(held)
            place.end()
            for api in ("Heartbeat", "ConsumerGroupHeartbeat"):
                broker.faults.add(Fault(api, "drop", times=None))
            until(lambda: place.held(50) is None, "nothing is held surely")
            assert not place.begin(held)
            broker.faults.clear()
            again = place.held(STILL_S * 1000)
            assert again is not None and again.partitions == held.partitions
            assert place.begin(again)
        finally:
            place.close()


def test_no_batch_begins_with_partitions_that_were_given_back_since_they_were_asked_for() -> None:
    """A newcomer's arrival is answered while the query plans; its generation goes on until the next one comes."""
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2)])
        said = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.client.id": "planning",
            "kafka.heartbeat.interval.ms": "50",
            "subscribe": "flights",
            "group.id": "etl",
        }
        place = Membership(parse_options(said))
        try:
            held = place.held(STILL_S * 1000)
            assert held is not None and len(held.partitions) == 2
            rejoins = broker.faults.add(Fault("JoinGroup", "hold", client_id="planning"))
            with GroupMember(broker.bootstrap_servers, "etl", topics=["flights"]):
                rejoins.wait()
                assert not place.begin(held)
                broker.faults.clear()
                shared = place.held(STILL_S * 1000)
                assert shared is not None and len(shared.partitions) == 1
                assert place.begin(shared)
        finally:
            place.close()
