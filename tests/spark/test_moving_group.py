"""A group that goes on while a batch runs: what the query kept is committed."""

from __future__ import annotations

import pytest
from tests.spark.queries import Place, Run, own_signals, place
from tests.support.waiting import STILL_S, until

from kohort.client.group.member import GroupMember

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals")]


def test_a_batch_is_committed_though_its_group_went_on_meanwhile(place: Place) -> None:
    """A KIP-848 member's epoch goes on when others come, also while it keeps its partitions and works on a batch."""
    place.make()
    place.make("b")
    place.produce(range(100))
    protocol = {"group.protocol": "consumer"}

    def epochs() -> set[int | None]:
        described = place.admin.describe_consumer_groups([place.group]).values[place.group]
        return {described.epoch, *(member.epoch for member in described.members)}

    with Run(place.options(**protocol)) as run:
        planned = run.plan()
        while planned is None:
            planned = run.plan()
        before = epochs()
        with GroupMember(place.servers, place.group, topics=[place.topic("b")], group_protocol="consumer") as other:
            other.wait_assignment(STILL_S * 1000)
            until(lambda: len(epochs()) == 1 and epochs() != before, "the query's epoch has gone on", STILL_S)
            assert run.finish(planned) == list(range(100))
            assert run.plan() is None
            assert place.committed() == {0: 50, 1: 50}
