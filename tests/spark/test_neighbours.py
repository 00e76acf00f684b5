"""Members of one group that subscribe to other topics: a warning, once, where it is surely so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.waiting import STILL_S, until

from kohort import Admin, Broker
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import GroupDescription, MemberDescription, NewTopic
from kohort.client.group.member import GroupMember
from kohort.errors import ErrorCode
from kohort.spark.options import parse_options
from kohort.spark.source.membership import (
    DESCRIPTIONS_MAX,
    SourceMembership,
    SubscriptionCheck,
    reports_all_subscriptions,
    subscription_warning,
)

pytestmark = pytest.mark.filterwarnings("default")
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("flights", 2), NewTopic("flights-2", 2), NewTopic("orders", 2)]).all()
        yield broker


def query(broker: Broker, protocol: str, **what: str) -> SourceMembership:
    said = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "group.id": "etl",
        "group.protocol": protocol,
        "kafka.heartbeat.interval.ms": "50",
    }
    return SourceMembership(parse_options(said | (what or {"subscribe": "flights"})))


def neighbour(broker: Broker, protocol: str, topic: str) -> GroupMember:
    return GroupMember(
        broker.bootstrap_servers,
        "etl",
        topics=[topic],
        client_id="billing",
        group_protocol=protocol,
        heartbeat_interval_ms=50,
    )


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def looked(place: SourceMembership, *others: GroupMember) -> bool:
    """Whether the query has looked who else is there; the others let go what is wanted."""
    for entry in others:
        if entry.revocation() is not None:
            entry.release()
    return not place._subscription_check._left


@BOTH
def test_another_member_with_other_topics_is_warned_of_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    with neighbour(broker, protocol, "orders") as other:
        other.wait_assignment(STILL_S * 1000)
        place = query(broker, protocol)
        try:
            until(lambda: looked(place, other), "the query has looked", STILL_S)
            until(lambda: warned(caplog), "it warns")
            until(lambda: not place._member.wait_change(0), "the watching thread goes on")
        finally:
            place.close()
    (text,) = warned(caplog)
    assert "members of the group etl subscribe to other topics than this query, which reads flights: " in text
    assert "billing at 127.0.0.1 to orders." in text and "a group.id of its own" in text


@BOTH
@pytest.mark.parametrize("what", ["subscribe", "subscribePattern"])
def test_nothing_is_said_where_the_topics_are_the_same(
    broker: Broker, caplog: pytest.LogCaptureFixture, protocol: str, what: str
) -> None:
    """So they are where a pattern finds those that another names."""
    with neighbour(broker, protocol, "flights") as other:
        other.wait_assignment(STILL_S * 1000)
        place = query(broker, protocol, **{what: "flights"})
        try:
            until(lambda: looked(place, other), "the query has looked", STILL_S)
        finally:
            place.close()
    assert warned(caplog) == []


@BOTH
def test_a_query_that_may_not_describe_the_group_gets_no_warning(
    broker: Broker, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    for api in ("DescribeGroups", "ConsumerGroupDescribe"):
        broker.faults.add(Fault(api, "fail", error=ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None))
    with neighbour(broker, protocol, "orders") as other:
        other.wait_assignment(STILL_S * 1000)
        place = query(broker, protocol)
        try:
            until(lambda: looked(place, other), "the query has looked", STILL_S)
            assert place._watch.is_alive() and place.wait_assigned_partitions()
        finally:
            place.close()
    assert warned(caplog) == []


@BOTH
def test_no_batch_and_no_revocation_waits_for_the_answer(broker: Broker, protocol: str) -> None:
    asked = [broker.faults.add(Fault(api, "hold", times=None)) for api in ("DescribeGroups", "ConsumerGroupDescribe")]
    with ExitStack() as closing:
        place = query(broker, protocol)
        closing.callback(place.close)
        closing.callback(broker.faults.clear)
        asked[1].wait()
        held = place.wait_assigned_partitions()
        assert held is not None and len(held.partitions) == 2
        assert place.begin_batch(held)
        place.end_batch()
        newcomer = closing.enter_context(neighbour(broker, protocol, "flights"))
        until(lambda: len(newcomer.assignment().partitions) == 1, "the newcomer has its share", STILL_S)
        assert not looked(place)


def member(name: str, *topics: str, regex: str | None = None, reported: bool = True) -> MemberDescription:
    return MemberDescription(
        name, f"client-{name}", "/127.0.0.1", subscription=topics if reported else None, subscription_regex=regex
    )


def group(*members: MemberDescription) -> GroupDescription:
    return GroupDescription("etl", "Consumer", "Stable", "consumer", "uniform", members, 0)


@pytest.mark.parametrize(
    ("me", "pattern", "other", "warns"),
    [
        (member("a", "x"), None, member("b", "x"), False),
        (member("a", "x"), None, member("b", "y"), True),
        (member("a", "x", "y"), None, member("b", "x"), True),
        (member("a", "x", regex=""), None, member("b", "x"), False),
        (member("a", "x1", "x2"), "^x", member("b", "x1"), False),
        (member("a", "x1", "x2"), "^x", member("b", "x1", "y"), True),
        (member("a", regex="(?s).*(?:^x).*"), "^x", member("b", regex="(?s).*(?:^x).*"), False),
        (member("a", regex="(?s).*(?:^x).*"), "^x", member("b", regex="^x"), False),
        (member("a", regex="(?s).*(?:^x).*"), "^x", member("b", regex="(?s).*(?:^y).*"), True),
        (member("a", "x1"), None, member("b", regex="(?s).*(?:^x).*"), False),
        (member("a", "x1"), None, member("b", regex="x"), True),
        (member("a", "x1"), None, member("b", regex=r"\pL+"), True),
        (member("a", "x1"), "^x", member("b"), True),
    ],
    ids=[
        "the same",
        "another",
        "one more",
        "an empty pattern is none",
        "a topic that has only one of them learnt of",
        "a topic that the pattern does not find",
        "the same pattern",
        "the same pattern by another client",
        "another pattern",
        "a pattern that finds it",
        "a pattern that finds it in part of the name, where all is asked for",
        "a pattern that Python could not read",
        "nothing",
    ],
)
def test_what_counts_as_other_topics(
    me: MemberDescription, pattern: str | None, other: MemberDescription, warns: bool
) -> None:
    assert (subscription_warning(group(me, other), "a", pattern) is not None) is warns


def test_the_first_few_are_named() -> None:
    text = subscription_warning(group(member("a", "x"), *(member(f"b{number}", "y") for number in range(7))), "a")
    assert text is not None
    assert text.count(" at 127.0.0.1 to y") == 5 and "client-b4" in text and "; 2 more. " in text


def test_nothing_is_concluded_while_a_classic_group_shows_no_subscriptions() -> None:
    assert reports_all_subscriptions(group(member("a", "x"), member("b", "y")), "a")
    assert not reports_all_subscriptions(group(member("a", "x"), member("b", reported=False)), "a")
    assert not reports_all_subscriptions(group(member("b", "y")), "a"), "another group has the name by now"


def test_a_group_that_never_tells_is_asked_a_few_times(broker: Broker) -> None:
    """The source then treats the group as one without such a member."""
    options = parse_options(
        {"kafka.bootstrap.servers": broker.bootstrap_servers, "group.id": "etl", "subscribe": "flights"}
    )
    with neighbour(broker, "classic", "orders") as other:
        other.wait_assignment(STILL_S * 1000)
        neighbours = SubscriptionCheck(options)
        try:
            assert neighbours.warning("") is None and neighbours._left == DESCRIPTIONS_MAX, "nothing is asked before"
            until(lambda: neighbours.warning("gone") or not neighbours._left, "it gives up")
            assert neighbours.warning(other.assignment().member_id) is None, "it is over"
        finally:
            neighbours.close()
