"""The sticky assignors against exhaustive search: as even as possible, then as little moved as possible.

Sticky, cooperative-sticky and uniform.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.assignors import (
    AssignableTopic,
    Assignment,
    Assignor,
    CooperativeSticky,
    MemberSubscription,
    RackAware,
    Sticky,
    Uniform,
    client_assignor,
    server_assignor,
)
from kohort.assignors.claims import settled_claims
from kohort.assignors.sticky import decode_sticky_user_data, encode_sticky_user_data
from kohort.errors import ErrorCode, InvalidInputError
from kohort.ids import TopicPartition
from tests.support.long_runs import examples

Group = tuple[dict[str, MemberSubscription], dict[str, AssignableTopic]]


@st.composite
def groups(draw: st.DrawFn, *, racks: bool = False, same_topics: bool = False) -> Group:
    """Up to four members, three topics, five partitions; owned partitions with conflicts and leftovers of any kind."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sizes = draw(
        st.lists(st.integers(0, 4), min_size=len(names), max_size=len(names)).filter(lambda s: 0 < sum(s) <= 5)
    )
    rack = st.sampled_from(["r1", "r2"])
    topics = {
        name: AssignableTopic(size, tuple(frozenset({draw(rack)}) for _ in range(size)) if racks else ())
        for name, size in zip(names, sizes, strict=True)
    }
    claims = [TopicPartition(name, number) for name in [*names, "gone"] for number in range(4)]
    members = {}
    for number in range(draw(st.integers(1, 4))):
        chosen = names if same_topics else draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        members[f"m{number}"] = MemberSubscription(
            tuple(chosen),
            rack=draw(st.none() | rack) if racks else None,
            owned=tuple(draw(st.lists(st.sampled_from(claims), unique=True, max_size=5))),
            generation=draw(st.integers(-1, 2)),
        )
    return members, topics


def _partitions(group: Group) -> list[TopicPartition]:
    members, topics = group
    wanted = {topic for member in members.values() for topic in member.topics}
    return [TopicPartition(t, n) for t, info in sorted(topics.items()) if t in wanted for n in range(info.partitions)]


def _worth(group: Group, result: Assignment) -> tuple[int, int]:
    """Unevenness, then how many moved: both to be small."""
    owners = settled_claims(*group)
    kept = sum(len(set(result[member]) & set(owners[member])) for member in result)
    return sum(len(partitions) ** 2 for partitions in result.values()), -kept


def _best(group: Group) -> tuple[int, int]:
    members, _ = group
    partitions = _partitions(group)
    choices = [[m for m in members if partition.topic in members[m].topics] for partition in partitions]
    worths = []
    for pick in itertools.product(*choices):
        result: Assignment = {member: [] for member in members}
        for partition, member in zip(partitions, pick, strict=True):
            result[member].append(partition)
        worths.append(_worth(group, result))
    return min(worths)


def check_valid(group: Group, result: Assignment) -> None:
    """Everyone is named, everything is given once, to subscribers."""
    members, _ = group
    assert set(result) == set(members)
    given_out = sorted(partition for partitions in result.values() for partition in partitions)
    assert given_out == _partitions(group)
    for member, partitions in result.items():
        assert {partition.topic for partition in partitions} <= set(members[member].topics)
        assert partitions == sorted(partitions)


@settings(max_examples=examples(300), deadline=None)
@given(groups())
def test_no_assignment_is_more_even_and_none_as_even_moves_less(group: Group) -> None:
    result = Uniform().assign(*group)
    check_valid(group, result)
    assert _worth(group, result) == _best(group)


@settings(max_examples=examples(150), deadline=None)
@given(groups(same_topics=True, racks=True))
def test_racks_never_cost_evenness_or_stickiness(group: Group) -> None:
    result = Uniform().assign(*group)
    check_valid(group, result)
    assert _worth(group, result) == _best(group)


@settings(max_examples=examples(100), deadline=None)
@given(groups(racks=True), st.randoms(use_true_random=False))
def test_the_order_of_mappings_does_not_matter(group: Group, random: object) -> None:
    members, topics = group
    for assignor in (Uniform(), Sticky(), CooperativeSticky()):
        expected = assignor.assign(members, topics)
        shuffled = sorted(members, key=lambda _: random.random())  # type: ignore[attr-defined]
        again = assignor.assign({m: members[m] for m in shuffled}, dict(reversed(topics.items())))
        assert again == expected


@settings(max_examples=examples(200), deadline=None)
@given(groups())
def test_a_second_assignment_changes_nothing(group: Group) -> None:
    members, topics = group
    first = Uniform().assign(members, topics)
    settled = {m: replace(subscription, owned=tuple(first[m]), generation=5) for m, subscription in members.items()}
    assert Uniform().assign(settled, topics) == first


@settings(max_examples=examples(300), deadline=None)
@given(groups())
def test_cooperative_hands_over_in_two_steps(group: Group) -> None:
    """Nothing is given to one member while another holds it, and the second rebalance completes the assignment."""
    members, topics = group
    holders: dict[TopicPartition, list[str]] = {}
    first = CooperativeSticky().assign(members, topics)
    for member, subscription in members.items():
        for partition in subscription.owned:
            holders.setdefault(partition, []).append(member)
    for member, partitions in first.items():
        for partition in partitions:
            assert not holders.get(partition) or member in holders[partition]
    after = {m: replace(subscription, owned=tuple(first[m]), generation=5) for m, subscription in members.items()}
    second = CooperativeSticky().assign(after, topics)
    check_valid(group, second)
    for member, partitions in first.items():
        assert set(partitions) <= set(second[member])


def test_scenario_5_a_claim_of_a_higher_generation_is_believed_and_equal_ones_cancel() -> None:
    topics = {"a": AssignableTopic(2)}
    one = MemberSubscription(("a",), owned=(TopicPartition("a", 0), TopicPartition("a", 1)), generation=3)
    two = MemberSubscription(("a",), owned=(TopicPartition("a", 0),), generation=4)
    assert Uniform().assign({"x": one, "y": two}, topics) == {"x": [("a", 1)], "y": [("a", 0)]}
    assert settled_claims({"x": one, "y": replace(two, generation=3)}, topics) == {"x": [("a", 1)], "y": []}


def test_new_partitions_go_beside_their_replicas() -> None:
    racks = tuple(frozenset({f"r{number % 3}"}) for number in range(9))
    members = {f"m{number}": MemberSubscription(("a",), rack=f"r{number}") for number in range(3)}
    result = Uniform().assign(members, {"a": AssignableTopic(9, racks)})
    assert all(partition.partition % 3 == int(member[1]) for member, parts in result.items() for partition in parts)
    mixed = members | {"m3": MemberSubscription(("b",), rack="r0")}
    result = Uniform().assign(mixed, {"a": AssignableTopic(9, racks), "b": AssignableTopic(1)})
    assert sum(len(parts) for parts in result.values()) == 10
    near = sum(
        partition.partition % 3 == int(member[1])
        for member, parts in result.items()
        for partition in parts
        if partition.topic == "a"
    )
    assert near == 9


def test_chains_of_hand_overs_even_out_what_single_moves_can_not() -> None:
    """X may give a to y only, y may give b to z only: evening out x and z takes both moves."""
    topics = {"a": AssignableTopic(4), "b": AssignableTopic(2)}
    owned_a = tuple(TopicPartition("a", number) for number in range(4))
    owned_b = tuple(TopicPartition("b", number) for number in range(2))
    members = {
        "x": MemberSubscription(("a",), owned=owned_a[:3], generation=1),
        "y": MemberSubscription(("a", "b"), owned=(owned_a[3], owned_b[0]), generation=1),
        "z": MemberSubscription(("b",), owned=owned_b[1:], generation=1),
    }
    result = Uniform().assign(members, topics)
    assert {member: len(parts) for member, parts in result.items()} == {"x": 2, "y": 2, "z": 2}


def test_large_groups_of_mixed_subscriptions_are_as_even_as_small_ones() -> None:
    """One member held everything: 400 others, each with its own topics, end up even."""
    topics = {f"t{number:02}": AssignableTopic(40) for number in range(20)}
    names = sorted(topics)
    everything = tuple(TopicPartition(name, number) for name in names for number in range(40))
    members = {"first": MemberSubscription(tuple(names), owned=everything, generation=1)}
    for number in range(399):
        members[f"m{number:03}"] = MemberSubscription(tuple(names[(number + step) % 20] for step in (0, 3, 7)))
    result = Uniform().assign(members, topics)
    check_valid((members, topics), result)
    assert {len(parts) for parts in result.values()} == {2}
    assert set(result["first"]) <= set(everything)


def test_one_member_of_a_thousand_topics_gives_most_of_them_away() -> None:
    """A lone consumer of everything is joined by 499 others: the loads come out even, and what it keeps it had."""
    topics = {f"t{number:03}": AssignableTopic(1) for number in range(1000)}
    names = sorted(topics)
    everything = tuple(TopicPartition(name, 0) for name in names)
    members = {"m": MemberSubscription(tuple(names), owned=everything, generation=1)}
    for number in range(499):
        members[f"n{number:03}"] = MemberSubscription(tuple(names[(number * 2 + step) % 1000] for step in range(4)))
    result = Uniform().assign(members, topics)
    check_valid((members, topics), result)
    assert {len(parts) for parts in result.values()} == {2}


@pytest.mark.parametrize(
    ("name", "others"), [("sticky", 1600), ("cooperative-sticky", 1600), ("uniform", 1600), ("uniform", 1599)]
)
def test_a_wide_group_moves_only_the_partitions_of_the_member_that_left(name: str, others: int) -> None:
    """100 members, 1,600 topics of 100 partitions: the shape that franz-go publishes a figure for."""
    topics = {f"t{number:04}": AssignableTopic(100) for number in range(1600)}
    names = tuple(topics)
    members = {f"m{number:03}": MemberSubscription(names if number else names[:others]) for number in range(100)}
    before = _assignor(name).assign(members, topics)
    left = {
        member: replace(
            subscription,
            owned=() if name == "sticky" else tuple(before[member]),
            generation=1,
            user_data=encode_sticky_user_data(before[member], 1) if name == "sticky" else None,
        )
        for member, subscription in members.items()
        if member != "m001"
    }
    after = _assignor(name).assign(left, topics)
    assert sum(len(set(after[member]) & set(before[member])) for member in left) == 158_400
    assert {len(partitions) for partitions in after.values()} == {1616, 1617}
    assert len(set[TopicPartition]().union(*after.values())) == 160_000


def _assignor(name: str) -> Assignor:
    return server_assignor(name) if name == "uniform" else client_assignor(name)


def test_sticky_remembers_through_user_data() -> None:
    topics = {"a": AssignableTopic(4)}
    held = [TopicPartition("a", 1), TopicPartition("a", 3)]
    mine = Sticky()
    assert mine.subscription_user_data(["a"]) is None
    mine.on_assignment(held, None, 7)
    told = mine.subscription_user_data(["a"])
    assert told is not None
    members = {"new": MemberSubscription(("a",)), "old": MemberSubscription(("a",), user_data=told)}
    assert mine.assign(members, topics)["old"] == held


def test_user_data_has_kafkas_form() -> None:
    raw = encode_sticky_user_data([TopicPartition("t", 2), TopicPartition("t", 0)], 9)
    assert raw == bytes.fromhex("0000000100017400000002000000000000000200000009")
    assert decode_sticky_user_data(raw) == ((TopicPartition("t", 0), TopicPartition("t", 2)), 9)
    assert decode_sticky_user_data(raw[:-4]) == ((TopicPartition("t", 0), TopicPartition("t", 2)), -1)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=40))
def test_user_data_of_strangers_is_ignored(raw: bytes) -> None:
    decode_sticky_user_data(raw)
    members = {"m": MemberSubscription(("a",), user_data=raw)}
    for assignor in (Sticky(), CooperativeSticky()):
        assert assignor.assign(members, {"a": AssignableTopic(1)}) == {"m": [("a", 0)]}


def test_cooperative_tells_its_generation() -> None:
    mine = CooperativeSticky()
    mine.on_assignment([], None, 12)
    assert mine.subscription_user_data([]) == b"\0\0\0\x0c"
    old_client = MemberSubscription(("a",), owned=(TopicPartition("a", 0),), user_data=b"\0\0\0\x0c")
    newer = MemberSubscription(("a",), owned=(TopicPartition("a", 0),), generation=11)
    result = mine.assign({"x": old_client, "y": newer}, {"a": AssignableTopic(1)})
    assert result == {"x": [("a", 0)], "y": []}


def test_a_custom_assignor_carries_data_both_ways() -> None:
    """Racks go up in the subscriptions' user data, what is near comes down in the assignments'."""
    leader, other = RackAware("r0"), RackAware("r1")
    topics = {"a": AssignableTopic(4, (frozenset({"r0"}), frozenset({"r1"}), frozenset({"r1"}), frozenset({"r2"})))}
    members = {
        "x": MemberSubscription(("a",), user_data=leader.subscription_user_data(["a"])),
        "y": MemberSubscription(("a",), user_data=other.subscription_user_data(["a"])),
    }
    result = leader.assign(members, topics)
    assert result == {"x": [("a", 0), ("a", 3)], "y": [("a", 1), ("a", 2)]}
    told = leader.assignment_user_data()
    leader.on_assignment(result["x"], told["x"], 1)
    other.on_assignment(result["y"], told["y"], 1)
    assert leader.near == (("a", 0),)
    assert other.near == (("a", 1), ("a", 2))
    with pytest.raises(InvalidInputError):
        RackAware("")


def test_names() -> None:
    for name in ("range", "roundrobin", "sticky", "cooperative-sticky", "rack-aware"):
        made = client_assignor(name, "r0")
        assert made.name == name
        assert isinstance(made, Assignor)
        assert made is not client_assignor(name, "r0")
        assert made.cooperative == (name == "cooperative-sticky")
    assert [server_assignor(name).name for name in ("uniform", "range")] == ["uniform", "range"]
    with pytest.raises(InvalidInputError) as caught:
        server_assignor("sticky")
    assert caught.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR
    with pytest.raises(InvalidInputError):
        client_assignor("uniform")
    assert client_assignor("rack-aware", "r0").subscription_user_data([]) == b"rack:r0"
    with pytest.raises(InvalidInputError, match=r"set client\.rack"):
        client_assignor("rack-aware")
