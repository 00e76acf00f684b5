"""A query's place in its group, without Spark: what is planned while the coordinator is silent."""

from __future__ import annotations

import re

import pytest
from tests.support.waiting import STILL_S, until

from kohort import Admin, Broker
from kohort.broker.net.fault import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.errors import CommitFailedError, ErrorCode, NotAuthorizedError
from kohort.spark.options import parse_options
from kohort.spark.query_member import Membership, advice

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


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_planner_hears_why_a_join_is_refused_and_the_log_has_no_traceback(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        said = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "flights",
            "group.id": "etl",
            "group.protocol": protocol,
        }
        refusals = [
            broker.faults.add(Fault(api, "fail", error=ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None))
            for api in ("JoinGroup", "ConsumerGroupHeartbeat")
        ]
        place = Membership(parse_options(said))
        try:
            refusals[protocol == "consumer"].wait(1)
            with pytest.raises(NotAuthorizedError):
                place.held(STILL_S * 1000)
            until(lambda: not place._member.wait_change(0), "the watching thread has seen it")
            assert place._watch.is_alive()
            with pytest.raises(NotAuthorizedError):
                place.held(STILL_S * 1000)
        finally:
            place.close()
    assert [one for one in caplog.records if one.name == "kohort.spark" or one.exc_info] == []


@pytest.mark.parametrize(
    ("code", "ran_s", "gap_s", "words"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, 2, 0.1, "group.instance.id: give each query one of its own"),
        (ErrorCode.UNKNOWN_MEMBER_ID, 70, 50, "stood still for 50 s .*kafka.session.timeout.ms=45000"),
        (ErrorCode.UNKNOWN_MEMBER_ID, 400, 50, "stood still for 50 s"),
        (ErrorCode.ILLEGAL_GENERATION, 400, 0.1, "ran for 400 s, .*kafka.max.poll.interval.ms=300000: raise it"),
        (ErrorCode.UNKNOWN_MEMBER_ID, 70, 0.1, "did not hear this member .* or the member was removed"),
    ],
    ids=["fenced", "paused", "paused for longer than a batch may run", "a long batch", "not heard, or removed"],
)
def test_advice_fits_the_cause(code: ErrorCode, ran_s: float, gap_s: float, words: str) -> None:
    error = CommitFailedError("", code)
    assert re.search(words, advice(error, ran_s * 1000, gap_s * 1000, session_ms=45_000, bound_ms=300_000))
