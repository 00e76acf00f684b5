"""Rebalances as kohort's coordinators record them, read by a client over the wire."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import Literal

import pytest
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer
from kohort.client.admin.values import GroupRebalanced, NewTopic, RebalanceCause
from kohort.lag import LagReader, changes_between
from kohort.lag.timeline import rebalance_text, rebalances_since

Protocol = Literal["classic", "consumer"]


def joined(servers: str, group: str, topic: str, protocol: Protocol) -> Consumer:
    consumer = Consumer(servers, group_id=group, group_protocol=protocol, client_id="anna")
    consumer.subscribe([topic])

    def has_partitions() -> bool:
        consumer.poll(timeout_ms=100)
        return bool(consumer.assignment)

    until(has_partitions, "the member has partitions")
    return consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_tells_why_it_rebalanced(our_broker: Broker, protocol: Protocol) -> None:
    servers, group, topic = our_broker.bootstrap_servers, f"g-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    with LagReader(servers) as reader, Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)]).all()
        reader.rebalances = 20
        with joined(servers, group, topic, protocol):
            first = reader.read([group])
            (begun,) = first.groups[group].description.rebalances or ()
            assert [cause.reason for cause in begun.causes] == ["joined"]
            assert begun.members == 1
            member = first.groups[group].description.members[0].member_id
            assert begun.causes[0].member_id == member
        until(lambda: not admin.describe_consumer_groups([group]).result(group).members, "the member has left")
        last = reader.read([group])
        description = last.groups[group].description
        assert description.rebalances is not None
        assert [cause.reason for cause in description.rebalances[-1].causes] == ["left"]
        assert description.rebalances[-1].members == 0
        assert description.causes == {"joined": 1, "left": 1}
        told = [change for _, change in changes_between(first, last) if change.kind == "rebalance"]
        assert len(told) == 1
        assert "left" in told[0].text
        assert "no members are left" in told[0].text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.kafka
def test_apache_kafka_ignores_the_question_and_the_group_is_read_as_ever(
    apache_kafka: ApacheKafka, protocol: Protocol
) -> None:
    servers, group, topic = apache_kafka.bootstrap_servers, f"g-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    with LagReader(servers) as reader, Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)]).all()
        with joined(servers, group, topic, protocol):
            reader.rebalances = 20
            description = reader.read([group]).groups[group].description
    assert description.rebalances is None
    assert len(description.members) == 1


def test_reader_that_does_not_ask_gets_no_rebalances(our_broker: Broker) -> None:
    servers, group, topic = our_broker.bootstrap_servers, f"g-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    with LagReader(servers) as reader, Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)]).all()
        with joined(servers, group, topic, "classic"):
            assert reader.read([group]).groups[group].description.rebalances is None


def test_describe_command_shows_rebalances(our_broker: Broker) -> None:
    servers, group, topic = our_broker.bootstrap_servers, f"g-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)]).all()
    with joined(servers, group, topic, "consumer"):
        command = [*KOHORT, "groups", "describe", group, "--rebalances", "--bootstrap-server", servers]
        table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        asked = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert "joined" in table.stdout
    (row,) = json.loads(asked.stdout)
    assert row["rebalances"][0]["reasons"] == ["joined"]
    assert row["rebalances"][0]["members"] == 1


def rebalance(ended_ms: int | None, *texts: str, members: int = 2, downtime_ms: int = 0) -> GroupRebalanced:
    causes = tuple(RebalanceCause(1_000, "joined", text) for text in texts)
    return GroupRebalanced(causes, 0, ended_ms, 3, members, downtime_ms)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (rebalance(None, "a joined"), "a joined; under way"),
        (rebalance(3_000, "a left", members=0), "a left; no members are left"),
        (rebalance(3_000, "a joined"), "a joined; 2.0 s until all 2 members had partitions, no downtime"),
        (
            rebalance(3_000, "a joined", "b joined", "c joined", "d left", members=1, downtime_ms=1_500),
            "a joined; b joined; c joined; 1 more; 2.0 s until 1 member had partitions, downtime 1.5 s",
        ),
    ],
)
def test_rebalance_is_a_sentence(found: GroupRebalanced, text: str) -> None:
    assert rebalance_text(found) == text


def test_rebalances_since_a_read_are_those_that_ended_after_it() -> None:
    under_way, done = rebalance(None, "a joined"), rebalance(2_000, "a joined")
    assert rebalances_since([under_way], [done]) == [done]
    assert rebalances_since([done], [done, under_way]) == []
    assert rebalances_since(None, None) == []
