"""The checks of chaos find what is wrong, and nothing else; those of members are tested in `tests/peers/churn`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode
from kohort.wire.offsets import OffsetFetchResponse
from tests.cluster.chaos.check import stale, unstable
from tests.cluster.chaos.crowd import Crowd
from tests.cluster.chaos.faults import Fault
from tests.cluster.chaos.ledger import PARTITIONS, Ledger
from tests.cluster.chaos.probe import Asked
from tests.support.waiting import until

PLACE = "flights/0"


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    """Two members of one partition that reach no broker, so that only the tests write their logs."""
    made = Crowd("127.0.0.1:1", "flights", 1, "classic", tmp_path)
    for _ in range(2):
        made.start()
    yield made
    made.close()


def says(crowd: Crowd, member: int, at_ns: int, event: str, **facts: Any) -> None:
    with crowd.story.members[member].log.open("a") as log:
        log.write(json.dumps({"t": at_ns, "e": event, **facts}) + "\n")


def commits(crowd: Crowd, member: int, at_ns: int, offset: int, answer: str = "committed") -> None:
    says(crowd, member, at_ns, "committing", id=at_ns, offsets={PLACE: offset})
    says(crowd, member, at_ns + 1, answer, id=at_ns)


def test_stable_is_one_owner_and_a_commit_sent_since(crowd: Crowd) -> None:
    says(crowd, 0, 1, "assigned", partitions=[PLACE])
    commits(crowd, 0, 5, 3)
    assert crowd.missing(5) == ""
    assert "nothing committed" in crowd.missing(6)
    commits(crowd, 0, 7, 4, "refused")
    assert "nothing committed" in crowd.missing(6)
    commits(crowd, 0, 9, 4)
    assert crowd.missing(6) == ""
    assert crowd.acknowledged == {PLACE: 4}


def test_no_owner_or_two_are_not_stable(crowd: Crowd) -> None:
    says(crowd, 0, 1, "assigned", partitions=[PLACE])
    commits(crowd, 0, 5, 3)
    says(crowd, 1, 6, "assigned", partitions=[PLACE])
    assert "without exactly one owner" in crowd.missing(0)
    says(crowd, 0, 7, "revoked", partitions=[PLACE])
    assert crowd.missing(0) == ""
    says(crowd, 1, 8, "lost", partitions=[PLACE])
    assert "without exactly one owner" in crowd.missing(0)


def test_who_was_killed_owns_nothing(crowd: Crowd) -> None:
    says(crowd, 0, 1, "assigned", partitions=[PLACE])
    commits(crowd, 0, 5, 3)
    assert crowd.missing(0) == ""
    crowd.kill(crowd.living[0])
    assert "without exactly one owner" in crowd.missing(0)


def test_a_fault_after_which_nothing_is_stable_is_reported() -> None:
    fault = Fault("coordinator", "kill", "coordinator 0", 1, lambda: None, lambda: None, missing="an owner")
    assert [*unstable([fault])] == ["not stable after kill coordinator 0 for 1.0 s: an owner"]
    fault.stable_ns = 1
    assert [*unstable([fault])] == []


def answer(offset: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponse:
    part = OffsetFetchResponse.OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset)
    topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="flights", partitions=[part])
    group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="group-flights", topics=[topic], error_code=error)
    return OffsetFetchResponse(groups=[group])


def asked(crowd: Crowd, offset: int, error: ErrorCode = ErrorCode.NONE) -> Asked:
    """Of a coordinator that slept from 3 to 7; a commit of 4 that was sent at 5 was acknowledged meanwhile."""
    says(crowd, 0, 1, "assigned", partitions=[PLACE])
    commits(crowd, 0, 5, 4)
    one = Asked(crowd)
    one.slept_ns, one.had = 3, True
    one.send()
    one.take(answer(offset, error))
    return one


def test_a_woken_coordinator_may_not_answer_what_is_older(crowd: Crowd) -> None:
    assert [*stale(asked(crowd, 3))] == ["flights/0: a coordinator that woke answered 3, 4 had been acknowledged"]
    assert [*stale(asked(crowd, 4))] == []


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("", True),
        ("shards: 4 owned here, 2 assigned, 0 revoked", True),
        ("shards: 0 owned here, 0 assigned, 4 revoked", False),
        ("shard 1: another coordinator has taken over: …", False),
    ],
)
def test_a_deposed_coordinator_says_so(crowd: Crowd, said: str, wrong: bool) -> None:
    one = asked(crowd, -1, ErrorCode.NOT_COORDINATOR)
    one.said = lambda: said
    assert bool([*stale(one)]) == wrong


def test_the_ledger_sees_what_was_taken_back_and_what_nobody_wrote() -> None:
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("ledger", PARTITIONS)]).all()
        ledger = Ledger(broker.bootstrap_servers, "ledger")
        ledger.start()
        until(lambda: len(ledger.acknowledged) == PARTITIONS, "all are written")
        assert [*ledger.wrong()] == []
        ledger.end()
        ledger.acknowledged["ledger/3"] += 1
        ledger.tried["ledger/3"] += 1
        ledger.tried["ledger/4"] -= 1
        assert [text.split(" is ")[0] for text in ledger.wrong()] == ["ledger/3", "ledger/4"]
