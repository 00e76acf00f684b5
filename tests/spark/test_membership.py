"""A query's place in its group, without Spark: what is planned while the coordinator is silent."""

from __future__ import annotations

import logging
import re

import pytest
from tests.support.waiting import STILL_S, until

from kohort import Admin, Broker
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.errors import CommitFailedError, ErrorCode, NotAuthorizedError
from kohort.spark.options import parse_options
from kohort.spark.source.membership import BatchTimeLimit, SourceMembership, lost_batch_advice
from kohort.spark.source.offset_coordinator import AssignedPartitions
from kohort.spark.source.progress import MemberProgress

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
        place = SourceMembership(parse_options(said))
        try:
            held = place.wait_assigned_partitions()
            assert len(held.partitions) == 2 and place.is_assignment_current(held)
            assert place.begin_batch(held)
            place.end_batch()
            for api in ("Heartbeat", "ConsumerGroupHeartbeat"):
                broker.faults.add(Fault(api, "drop", times=None))
            until(lambda: not place.is_assignment_current(held), "nothing is held surely")
            assert not place.begin_batch(held)
            broker.faults.clear()
            again = place.wait_assigned_partitions()
            assert again.partitions == held.partitions
            assert place.begin_batch(again)
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
        place = SourceMembership(parse_options(said))
        try:
            held = place.wait_assigned_partitions()
            assert len(held.partitions) == 2
            rejoins = broker.faults.add(Fault("JoinGroup", "hold", client_id="planning"))
            with GroupMember(broker.bootstrap_servers, "etl", topics=["flights"]):
                rejoins.wait()
                assert not place.begin_batch(held)
                broker.faults.clear()
                shared = place.wait_assigned_partitions()
                assert len(shared.partitions) == 1
                assert place.begin_batch(shared)
        finally:
            place.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_rebalances_are_counted_and_logged_as_they_end(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """One that comes in a batch and is over before its end costs the query nothing."""
    caplog.set_level(logging.INFO, "kohort.spark")
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2)])
        said = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.client.id": "counting",
            "kafka.heartbeat.interval.ms": "50",
            "subscribe": "flights",
            "group.id": "etl",
            "group.protocol": protocol,
        }
        join = "JoinGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"
        joins = broker.faults.add(Fault(join, "hold", client_id="counting", times=None))
        place = SourceMembership(parse_options(said))
        try:
            joins.wait()
            assert place.member_progress() == MemberProgress(None, 0, None), "nothing has happened yet"
            broker.faults.clear()
            place.wait_assigned_partitions()
            until(lambda: len(lines(caplog)) == 1, "the log has its line, whether anybody looks or not")
            first = place.member_progress()
            assert first.rebalances == 1 and first.downtime_ms is not None and first.downtime_ms > 0
            assert first.member_id == place._member.assignment().member_id != ""
            with GroupMember(
                broker.bootstrap_servers,
                "etl",
                topics=["flights"],
                group_protocol=protocol,
                heartbeat_interval_ms=50,
            ) as other:
                until(lambda: len(other.assignment().partitions) == 1, "the newcomer has its share", STILL_S)
                until(
                    lambda: place.wait_assigned_partitions() and place.member_progress().rebalances > 1,
                    "the query has the rest",
                    STILL_S,
                )
            until(lambda: len(place.wait_assigned_partitions().partitions) == 2, "it has all again", STILL_S)
            after = place.member_progress()
            assert after.rebalances > 2 and after.member_id == first.member_id
            until(lambda: len(lines(caplog)) == after.rebalances, "each has its line")
        finally:
            place.close()
    assert lines(caplog) == [f"rebalance {number}" for number in range(1, after.rebalances + 1)]
    text = "\n".join(caplog.messages)
    assert f"[group etl][member {first.member_id}] rebalance 1 completed" in text
    assert "2 partitions owned, 2 gained, 0 lost" in text and "1 partitions owned, 0 gained, 1 lost" in text
    assert "2 partitions owned, 1 gained, 0 lost" in text


def test_the_progress_does_not_wait_for_the_watching_thread() -> None:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2)])
        said = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "flights", "group.id": "etl"}
        joins = broker.faults.add(Fault("JoinGroup", "hold", times=None))
        place = SourceMembership(parse_options(said))
        try:
            joins.wait()
            place._ended.set()
            place._watch.join()
            broker.faults.clear()
            place.wait_assigned_partitions()
            assert place.member_progress().rebalances == 1
        finally:
            place.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found[0] for message in caplog.messages if (found := re.search("rebalance [0-9]+", message)) is not None]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_while_a_batch_runs_is_no_downtime_of_the_query(protocol: str) -> None:
    """A leaving member's partitions return before the batch is over."""
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2)])
        settings = {"group_protocol": protocol, "partition_assignment_strategy": "cooperative-sticky"}
        said = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.heartbeat.interval.ms": "50",
            "kafka.partition.assignment.strategy": "cooperative-sticky",
            "subscribe": "flights",
            "group.id": "etl",
            "group.protocol": protocol,
        }
        with GroupMember(
            broker.bootstrap_servers, "etl", topics=["flights"], heartbeat_interval_ms=50, **settings
        ) as other:
            other.wait_assignment(STILL_S * 1000)
            place = SourceMembership(parse_options(said))
            try:

                def shared() -> bool:
                    if other.revocation() is not None:
                        other.release()
                    assignment = place._member.assignment()
                    now = AssignedPartitions(tuple(assignment.partitions), assignment.generation)
                    return len(now.partitions) == 1 and place.begin_batch(now) and place.keep_batch_for_reading()

                until(shared, "a batch begins with one partition", STILL_S)
                before = place.member_progress().rebalances
                other.close()
                until(lambda: len(place._member.assignment().partitions) == 2, "the other comes to it", STILL_S)
                until(lambda: place.member_progress().rebalances > before, "that was one")
                assert place.member_progress().downtime_ms == 0
                place.end_batch()
                held = place.member_progress()
                assert held.downtime_ms == 0
                with GroupMember(
                    broker.bootstrap_servers, "etl", topics=["flights"], heartbeat_interval_ms=50, **settings
                ):
                    until(
                        lambda: place.member_progress().rebalances > held.rebalances, "it is idle in the next", STILL_S
                    )
                    assert (place.member_progress().downtime_ms or 0) > 0
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
        place = SourceMembership(parse_options(said))
        try:
            refusals[protocol == "consumer"].wait(1)
            with pytest.raises(NotAuthorizedError):
                place.wait_assigned_partitions()
            until(lambda: not place._member.wait_change(0), "the watching thread has seen it")
            assert place._watch.is_alive()
            with pytest.raises(NotAuthorizedError):
                place.wait_assigned_partitions()
        finally:
            place.close()
    assert [record for record in caplog.records if record.name == "kohort.spark" or record.exc_info] == []


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
    bound = BatchTimeLimit("kafka.max.poll.interval.ms", 300_000)
    assert re.search(words, lost_batch_advice(error, ran_s * 1000, gap_s * 1000, session_ms=45_000, bound=bound))
