"""Range and round-robin: the same results as Kafka's own, and their properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.assignors import AssignableTopic, MemberSubscription, Range, RoundRobin, client_assignor
from kohort.ids import TopicPartition
from tests.support.long_runs import examples

# Assignor; members with topics, instance id, rack; topics with partitions and their racks; what Kafka 4.3.1 answered.
Case = tuple[str, dict[str, tuple[tuple[str, ...], str | None, str | None]], dict[str, tuple[int, str]], dict[str, str]]
KAFKA: list[Case] = [
    (
        "range",
        {
            "m097": ((), "i3474", "r0"),
            "m209": (("t0", "t1", "t2"), None, "r9"),
            "m609": (("t0", "t1", "t2"), "i3278", "r9"),
        },
        {"t0": (2, "r0+r1 r2"), "t1": (2, "r1 r1"), "t2": (2, "r0 r0+r1")},
        {"m097": "", "m209": "t0-1 t1-1 t2-1", "m609": "t0-0 t1-0 t2-0"},
    ),
    (
        "range",
        {"m704": (("t0",), None, "r0"), "m706": (("t1",), None, "r2"), "m892": ((), None, "r9")},
        {"t0": (4, "r0+r1 r1 r0+r1 r1+r2"), "t1": (2, "r2 r2")},
        {"m704": "t0-0 t0-1 t0-2 t0-3", "m706": "t1-0 t1-1", "m892": ""},
    ),
    (
        "range",
        {"m555": (("t0", "t1", "t2"), None, None), "m757": ((), None, "r2"), "m900": (("t0", "t1", "t2"), None, "r1")},
        {"t0": (3, "r2 r0+r2 r2"), "t1": (3, "r1+r2 r0+r1 r0+r1"), "t2": (3, "r0+r2 r0+r1 r0+r2")},
        {"m555": "t0-0 t0-1 t1-0 t1-1 t2-0 t2-1", "m757": "", "m900": "t0-2 t1-2 t2-2"},
    ),
    (
        "range",
        {
            "m335": (("t0", "t1"), "i5454", "r2"),
            "m495": (("t0", "t1"), None, "r1"),
            "m604": (("t1",), None, "r0"),
            "m718": (("t0", "t1"), None, None),
        },
        {"t0": (3, "r0+r2 r1+r2 r0"), "t1": (3, "r0+r1 r1 r1+r2")},
        {"m335": "t0-0 t1-2", "m495": "t0-1 t1-0", "m604": "", "m718": "t0-2 t1-1"},
    ),
    (
        "range",
        {
            "m019": (("t0",), None, None),
            "m259": ((), None, None),
            "m767": (("t0", "t1"), "i7052", None),
            "m828": (("t1", "t0"), "i0208", None),
        },
        {"t0": (2, ""), "t1": (2, "")},
        {"m019": "", "m259": "", "m767": "t0-1 t1-1", "m828": "t0-0 t1-0"},
    ),
    (
        "range",
        {
            "m056": ((), "i8679", None),
            "m069": (("t1", "t0"), None, None),
            "m528": (("t0", "t1"), None, None),
            "m730": (("t1", "t0"), None, None),
        },
        {"t0": (4, ""), "t1": (8, "")},
        {"m056": "", "m069": "t0-0 t0-1 t1-0 t1-1 t1-2", "m528": "t0-2 t1-3 t1-4 t1-5", "m730": "t0-3 t1-6 t1-7"},
    ),
    (
        "range",
        {
            "m013": (("t0", "t1"), None, None),
            "m118": (("t0", "t1"), "i1413", None),
            "m487": (("t0", "t1"), "i6062", None),
            "m797": (("t1",), "i2367", None),
        },
        {"t0": (2, ""), "t1": (2, "")},
        {"m013": "", "m118": "t0-0 t1-0", "m487": "t0-1", "m797": "t1-1"},
    ),
    (
        "roundrobin",
        {
            "m107": (("t1",), "i9502", None),
            "m376": (("t0", "t1"), None, None),
            "m463": (("t0", "t1"), "i1203", None),
            "m824": (("t0", "t1"), None, None),
        },
        {"t0": (1, ""), "t1": (4, "")},
        {"m107": "t1-0", "m376": "t1-1", "m463": "t0-0 t1-3", "m824": "t1-2"},
    ),
    (
        "roundrobin",
        {"m299": (("t0", "t1", "t2"), None, None), "m359": ((), None, None), "m769": (("t0", "t1", "t2"), None, None)},
        {"t0": (1, ""), "t1": (1, ""), "t2": (1, "")},
        {"m299": "t0-0 t2-0", "m359": "", "m769": "t1-0"},
    ),
    (
        "roundrobin",
        {"m529": (("t1", "t0"), None, None), "m577": (("t0", "t1"), "i3427", None), "m738": (("t0", "t1"), None, None)},
        {"t0": (1, ""), "t1": (5, "")},
        {"m529": "t1-0 t1-3", "m577": "t0-0 t1-2", "m738": "t1-1 t1-4"},
    ),
]


@pytest.mark.parametrize("case", KAFKA, ids=lambda case: case[0])
def test_same_result_as_kafka(case: Case) -> None:
    name, members, topics, expected = case
    subscriptions = {m: MemberSubscription(names, instance_id=i, rack=rack) for m, (names, i, rack) in members.items()}
    infos = {
        t: AssignableTopic(n, tuple(frozenset(word.split("+")) for word in racks.split()))
        for t, (n, racks) in topics.items()
    }
    result = client_assignor(name).assign(subscriptions, infos)
    assert {member: " ".join(map(str, parts)) for member, parts in result.items()} == expected


def _parts(text: str) -> list[TopicPartition]:
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


def test_range_cuts_each_topic_in_order() -> None:
    members = {name: MemberSubscription(("a", "b")) for name in ("z", "y", "x")}
    result = Range().assign(members, {"a": AssignableTopic(4), "b": AssignableTopic(3)})
    assert result == {"x": _parts("a0 a1 b0"), "y": _parts("a2 b1"), "z": _parts("a3 b2")}


def test_static_members_come_first_by_instance_id() -> None:
    members = {
        "aaa": MemberSubscription(("a",)),
        "zzz": MemberSubscription(("a",), instance_id="i1"),
        "yyy": MemberSubscription(("a",), instance_id="i2"),
    }
    for assignor in (Range(), RoundRobin()):
        result = assignor.assign(members, {"a": AssignableTopic(3)})
        assert result == {"zzz": _parts("a0"), "yyy": _parts("a1"), "aaa": _parts("a2")}


def test_topics_of_equal_size_meet_in_one_member_with_racks() -> None:
    racks = tuple(frozenset({f"r{number}"}) for number in (1, 0, 1, 0))
    members = {f"m{number}": MemberSubscription(("a", "b"), rack=f"r{number}") for number in (0, 1)}
    result = Range().assign(members, {"a": AssignableTopic(4, racks), "b": AssignableTopic(4, racks)})
    assert result == {"m0": _parts("a1 a3 b1 b3"), "m1": _parts("a0 a2 b0 b2")}


def test_roundrobin_skips_members_without_the_topic() -> None:
    members = {
        "x": MemberSubscription(("a",)),
        "y": MemberSubscription(("a", "b")),
        "z": MemberSubscription(("a", "b", "c")),
    }
    result = RoundRobin().assign(members, {"a": AssignableTopic(1), "b": AssignableTopic(2), "c": AssignableTopic(3)})
    assert result == {"x": _parts("a0"), "y": _parts("b0"), "z": _parts("b1 c0 c1 c2")}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.dictionaries(st.text("mn", min_size=1, max_size=3), st.sets(st.sampled_from("abcd")), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)),
    st.sampled_from([Range(), RoundRobin()]),
)
def test_every_partition_with_a_subscriber_is_given_once(
    wants: dict[str, set[str]], sizes: dict[str, int], assignor: Range | RoundRobin
) -> None:
    members = {member: MemberSubscription(tuple(sorted(names))) for member, names in wants.items()}
    topics = {topic: AssignableTopic(size) for topic, size in sizes.items()}
    result = assignor.assign(members, topics)
    assert set(result) == set(members)
    wanted = {name for names in wants.values() for name in names}
    expected = sorted(TopicPartition(t, n) for t, size in sizes.items() if t in wanted for n in range(size))
    assert sorted(partition for parts in result.values() for partition in parts) == expected
    for member, parts in result.items():
        assert {partition.topic for partition in parts} <= wants[member]
        assert parts == sorted(parts)
    assert assignor.assign(dict(reversed(members.items())), dict(reversed(topics.items()))) == result
