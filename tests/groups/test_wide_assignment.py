"""The assignment's background task and the form of its results, beside plain definitions of both."""

from __future__ import annotations

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.groups.consumer.assignment import compute_target_assignment
from kohort.groups.effects import ComputeAssignment
from kohort.groups.events import Topic
from kohort.groups.records import MemberSaved, TopicPartitions
from kohort.groups.topics import (
    NOTHING,
    TopicIdPartition,
    TopicIdPartitions,
    pack_partitions,
    topic_id_partition_sort_key,
    unpack_partitions,
)

IDS = [uuid.UUID(int=number << 120 | 255 - number) for number in (200, 3, 0, 90)]
PAIR = st.tuples(st.sampled_from(IDS), st.integers(0, 6))


def plainly_packed(pairs: TopicIdPartitions) -> tuple[TopicPartitions, ...]:
    """Pack by the ids' own order."""
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(pairs):
        topics.setdefault(topic_id, []).append(number)
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in topics.items())


@settings(max_examples=200, deadline=None)
@given(st.frozensets(PAIR))
def test_pack_sorts_by_id_and_unpack_reverses_it(pairs: TopicIdPartitions) -> None:
    assert pack_partitions(pairs) == plainly_packed(pairs)
    assert unpack_partitions(pack_partitions(pairs)) == pairs
    assert sorted(pairs, key=topic_id_partition_sort_key) == sorted(pairs)


def member(name: str, topics: tuple[str, ...]) -> MemberSaved:
    return MemberSaved("g", name, None, None, "c", "/h", topics, None, 45_000, None)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_compute_gives_every_partition_once_and_keeps_what_excluded_members_have(data: st.DataObject) -> None:
    """The previous target names partitions and a topic that are gone, and members have more or less than their share.

    The ids sort otherwise than the names.
    """
    topics = {f"t{number}": Topic(f"t{number}", IDS[number], data.draw(st.integers(1, 5))) for number in range(3)}
    existing = {(topic.id, number) for topic in topics.values() for number in range(topic.partitions)}
    holder = st.sampled_from([None, "a", "b", "c", "silent"])
    held: dict[str, set[TopicIdPartition]] = {name: set() for name in ("a", "b", "c", "silent")}
    for pair in sorted(existing | {(IDS[0], 9), (IDS[3], 0)}):
        owner = data.draw(holder)
        if owner is not None:
            held[owner].add(pair)
    excluded = frozenset(held["silent"] & existing)
    names = tuple(topics)
    work = ComputeAssignment(
        group_id="g",
        ticket=1,
        epoch=2,
        assignor="uniform",
        members={name: member(name, names) for name in held},
        subscribed=dict.fromkeys(held, names),
        current={name: frozenset(pairs) for name, pairs in held.items()},
        topics=topics,
        excluded={"silent": pack_partitions(excluded)},
    )
    result = compute_target_assignment(work).assignment
    shares = {name: unpack_partitions(packed) for name, packed in result.items()}
    assert {name: pack_partitions(pairs) for name, pairs in shares.items()} == result
    assert sorted(pair for pairs in shares.values() for pair in pairs) == sorted(existing)
    assert shares["silent"] == excluded
    share, larger = divmod(len(existing) - len(excluded), 3)
    assert sorted(len(shares[name]) for name in "abc") == sorted([share] * (3 - larger) + [share + 1] * larger)
    for name in "abc":  # within its share a member keeps everything
        assert len(shares[name] & held[name]) >= min(share, len(held[name] & existing))


def test_compute_of_a_group_without_members_or_topics_is_empty() -> None:
    work = ComputeAssignment(
        "g", 1, 2, "uniform", {"a": member("a", ("gone",))}, {"a": ("gone",)}, {"a": NOTHING}, {}, {}
    )
    assert compute_target_assignment(work).assignment == {"a": ()}
