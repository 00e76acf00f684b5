"""A group that goes on while a query looks how far to read: the query looks again before it says that all is read."""

from __future__ import annotations

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
            until(lambda: not driven._coordinator.is_current(held), "the group has gone on", STILL_S)
        return spans

    driven._plan_ranges = slow_look
    with other:
        read = query.run()
        assert len(looks) > last and len(looks[last].partitions) < 2, "it looked again, at what it holds now"
    mine = {tp.partition for tp in looks[-1].partitions}
    assert read == [value for value in every if last == 2 or value % 2 in mine]
