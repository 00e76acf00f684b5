"""A pattern that keeps Python's engine busy for hours delays nobody: neither when it arrives nor after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.discovery import MetadataRequest
from kohort.wire.groups import ConsumerGroupHeartbeatRequest
from kohort.wire.transactions import InitProducerIdRequest, ListTransactionsRequest
from tests.broker.raw import RawClient, create_topic
from tests.support.waiting import until

HOSTILE = "a*a*a*a*a*a*b"
SLOW = "(?:a{0,100}){10}b"
"""RE2's cache of states is too small for this one, so that a name takes milliseconds."""
NAME = "a" * 249


def heartbeat(group: str, member: str, regex: str | None, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        topic_partitions=[] if epoch == 0 else None,
        subscribed_topic_regex=regex,
    )


def partitions_of(client: RawClient, group: str, regex: str) -> int:
    """How many partitions the only member of a group is given, whether with its first answer or a later one."""
    answer = client.ask(heartbeat(group, "m", regex))

    def is_assigned() -> bool:
        nonlocal answer
        if answer.assignment is None or not answer.assignment.topic_partitions:
            answer = client.ask(heartbeat(group, "m", None, answer.member_epoch))
        assert answer.error_code == 0, answer
        return bool(answer.assignment and answer.assignment.topic_partitions)

    until(is_assigned, f"the member of {group} has partitions")
    return sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)


@pytest.mark.parametrize("pattern", [HOSTILE, SLOW])
def test_others_are_served_while_a_hostile_pattern_is_matched(tmp_path: Path, pattern: str) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap_servers) as client:
            for number in range(30):
                create_topic(client, NAME[:-2] + f"{number:02}")
            create_topic(client, NAME)
            assert client.ask(heartbeat("hostile", "m", pattern)).error_code == 0
            assert partitions_of(client, "honest", "aa.*") == 31
        broker.kill()
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        assert client.ask(MetadataRequest(topics=[])).brokers

        def is_loaded() -> bool:
            return bool(client.ask(heartbeat("later", "m", r"aa.*")).error_code == 0)

        until(is_loaded, "groups are served after the restart")
        create_topic(client, "another")
        assert partitions_of(client, "honest-too", "aa.*") == 31


def test_patterns_of_list_transactions_are_matched_off_the_loop(client: RawClient, name: str) -> None:
    prefix = f"{name}-"
    for number in range(3):
        client.ask(InitProducerIdRequest(transactional_id=f"{prefix}{number}", transaction_timeout_ms=1000), 5)
    client.ask(InitProducerIdRequest(transactional_id="a" * 30_000, transaction_timeout_ms=1000), 5)

    def listed(pattern: str) -> set[str]:
        answer = client.ask(ListTransactionsRequest(transactional_id_pattern=pattern))
        assert answer.error_code == 0
        return {state.transactional_id for state in answer.transaction_states}

    assert listed(f"{prefix}.*") == {f"{prefix}{number}" for number in range(3)}
    assert listed(f"{prefix}[02]") == {f"{prefix}0", f"{prefix}2"}
    assert listed(HOSTILE) == set()
    refused = client.ask(ListTransactionsRequest(transactional_id_pattern="a(b"))
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_is_too_large_is_refused(client: RawClient, name: str) -> None:
    answer = client.ask(heartbeat(name, "m", "a?" * 16_000))
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "longer than 1000 characters" in answer.error_message
