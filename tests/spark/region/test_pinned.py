"""A partition has one query for ever, or waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kohort.assignors.shapes import AssignableTopic, Assignor, MemberSubscription
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.region.spark_region import PinnedAssignor, pinned_query_of

NAMES = ("a", "b", "c")
TOPICS = {"t": AssignableTopic(7)}


def member(
    query: str, owned: Sequence[int] = (), generation: int = 1, names: Sequence[str] = NAMES
) -> MemberSubscription:
    data = PinnedAssignor(query, names).subscription_user_data(["t"])
    parts = tuple(TopicPartition("t", number) for number in owned)
    return MemberSubscription(("t",), owned=parts, generation=generation, user_data=data)


def of(query: str, partitions: int = 7) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(partitions) if pinned_query_of("t", number, NAMES) == query]


def test_it_is_an_assignor() -> None:
    assert isinstance(PinnedAssignor("a", NAMES), Assignor)


def test_each_query_has_its_own_and_all_are_somebodys() -> None:
    given = PinnedAssignor("a", NAMES).assign({f"m-{name}": member(name) for name in NAMES}, TOPICS)
    assert given == {f"m-{name}": of(name) for name in NAMES}
    assert sum(map(len, given.values())) == 7
    assert all(len(parts) in (2, 3) for parts in given.values())


def test_what_an_absent_query_reads_waits_for_it() -> None:
    given = PinnedAssignor("a", NAMES).assign({"m-a": member("a"), "m-c": member("c")}, TOPICS)
    assert given == {"m-a": of("a"), "m-c": of("c")}


def test_added_partitions_change_nothing_for_those_before() -> None:
    members = {f"m-{name}": member(name) for name in NAMES}
    before = PinnedAssignor("a", NAMES).assign(members, TOPICS)
    after = PinnedAssignor("a", NAMES).assign(members, {"t": AssignableTopic(20)})
    assert all(set(before[name]) <= set(after[name]) for name in before)


def test_a_second_member_of_a_name_waits_until_the_first_has_given_up() -> None:
    mine = [part.partition for part in of("a")]
    zombie, fresh = member("a", owned=mine, generation=4), member("a")
    both = PinnedAssignor("a", NAMES).assign({"m-1": fresh, "m-2": zombie}, TOPICS)
    assert both == {"m-1": [], "m-2": []}
    then = PinnedAssignor("a", NAMES).assign({"m-1": fresh, "m-2": member("a", generation=5)}, TOPICS)
    assert then == {"m-1": of("a"), "m-2": []}


def test_members_that_disagree_are_reported() -> None:
    with pytest.raises(InvalidInputError, match="a says a, b, c, and d says d, e"):
        PinnedAssignor("a", NAMES).assign({"m-a": member("a"), "m-d": member("d", names=("e", "d"))}, TOPICS)
    with pytest.raises(InvalidInputError, match="no query that is pinned"):
        PinnedAssignor("a", NAMES).assign({"m-a": member("a"), "m-x": MemberSubscription(("t",))}, TOPICS)
