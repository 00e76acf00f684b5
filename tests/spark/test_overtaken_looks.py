"""A group that goes on while a query looks how far to read: the query looks again before it says that all is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.spark.queries import Place, own_signals, place
from tests.spark.test_two_sources import PROTOCOLS, AvailableNow, filled, servers
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort.client.group.member import GroupMember
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import OffsetRange
from kohort.spark.source.offset_coordinator import AssignedPartitions

__all__ = ["own_signals", "place", "servers"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]


@PROTOCOLS
@pytest.mark.parametrize("at", ["with records to read", "with nothing left"])
def test_available_now_ends_with_its_share_read_where_a_member_comes_during_a_look(
    place: Place, protocol: str, at: str
) -> None:
    every = filled(place, "a")
    query = AvailableNow([place.options(**{"group.protocol": protocol})])
    (reader,) = query.readers
    driven: Any = reader._driver()
    look, other = driven._plan_ranges, ExitStack()
    looks: list[AssignedPartitions] = []
    last = 1 if at == "with records to read" else 2

    def slow_look(held: AssignedPartitions, *, limited: bool) -> dict[TopicPartition, OffsetRange] | None:
        spans: dict[TopicPartition, OffsetRange] | None = look(held, limited=limited)
        looks.append(held)
        if len(looks) == last:
            settings: dict[str, Any] = {"group_protocol": protocol, "heartbeat_interval_ms": 100}
            member = GroupMember(place.servers, place.group, topics=[place.topic()], **settings)
            other.callback(member.close)
            until(lambda: not driven._coordinator.is_assignment_current(held), "the group has gone on", STILL_S)
        return spans

    driven._plan_ranges = slow_look
    with other:
        read = query.run()
        assert len(looks) > last and len(looks[last].partitions) < 2, "it looked again, at what it holds now"
    mine = {tp.partition for tp in looks[-1].partitions}
    assert read == [value for value in every if last == 2 or value % 2 in mine]


@pytest.mark.parametrize(
    ("protocol", "strategy"),
    [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "range"), ("push", "range")],
    ids=["classic", "classic cooperative", "consumer", "push"],
)
def test_available_now_waits_for_what_the_group_gives_it_and_another_member_still_has(
    place: Place, protocol: str, strategy: str
) -> None:
    """Before, a query that owned nothing yet ended; so did the other one, and nobody read what was left."""
    every = filled(place, "a")
    settings: dict[str, Any] = {"group_protocol": protocol, "auto_offset_reset": "none", "heartbeat_interval_ms": 100}
    options = {"group.protocol": protocol}
    if protocol == "classic":
        settings["partition_assignment_strategy"] = [strategy]
        options["kafka.partition.assignment.strategy"] = strategy
    looks_again = protocol == "consumer" or strategy == "cooperative-sticky"
    with (
        GroupMember(place.servers, place.group, topics=[place.topic()], **settings) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        until(lambda: other.owns() and len(other.assignment().partitions) == 2, "it has both partitions", STILL_S)
        query = AvailableNow([place.options(**options)])
        (reader,) = query.readers
        driven: Any = reader._driver()
        looks, look = [0], driven._plan_ranges

        def count(held: AssignedPartitions, *, limited: bool) -> dict[TopicPartition, OffsetRange] | None:
            looks[0] += 1
            spans: dict[TopicPartition, OffsetRange] | None = look(held, limited=limited)
            return spans

        driven._plan_ranges = count
        read = threads.submit(query.run)
        until(lambda: other.revocation() is not None, "it is to release one", STILL_S)
        until(lambda: not looks_again or looks[0] > 3 or read.done(), "the query looks again and again", STILL_S)
        assert not read.done(), read.result()

        def released() -> bool:
            other.release()
            return read.done()

        until(released, "the query has its share and reads it", STILL_S)
        (mine,) = {value % 2 for value in read.result()}
        assert read.result() == [value for value in every if value % 2 == mine]


def test_available_now_ends_with_a_warning_where_another_member_keeps_its_share(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    filled(place, "a")
    settings: dict[str, Any] = {"group_protocol": "consumer", "heartbeat_interval_ms": 100}
    with GroupMember(place.servers, place.group, topics=[place.topic()], **settings) as other:
        until(lambda: other.owns() and len(other.assignment().partitions) == 2, "it has both partitions", STILL_S)
        query = AvailableNow([place.options(**{"group.protocol": "consumer", "joinTimeoutMs": 2_000})])
        assert query.run() == []
    assert "the query ends without them" in caplog.text


def test_available_now_waits_for_no_partition_of_a_topic_that_was_deleted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    every = filled(place, "ab")
    strategy = {"group.protocol": "classic", "kafka.partition.assignment.strategy": "cooperative-sticky"}
    topics = f"{place.topic('a')},{place.topic('b')}"
    query = AvailableNow([place.options(**strategy, subscribe=topics, failOnDataLoss="false", joinTimeoutMs=5_000)])
    (reader,) = query.readers
    driven: Any = reader._driver()
    look, is_deleted = driven._plan_ranges, [False]

    def look_after_the_deletion(held: AssignedPartitions, *, limited: bool) -> dict[TopicPartition, OffsetRange] | None:
        if not is_deleted[0]:
            place.admin.delete_topics([place.topic("b")]).all()
            is_deleted[0] = True
        spans: dict[TopicPartition, OffsetRange] | None = look(held, limited=limited)
        return spans

    driven._plan_ranges = look_after_the_deletion
    assert [value for value in query.run() if value < 20] == every[:20]
    assert "the query ends without them" not in caplog.text
