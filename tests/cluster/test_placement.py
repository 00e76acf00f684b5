"""Maps of shards: even, moving little, always the same."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.cluster.coordination.placement import (
    NOBODY,
    Candidate,
    Placement,
    compute_placement,
    from_bytes,
    placement_fields,
    read_placement,
    to_bytes,
)
from kohort.errors import CorruptDataError


def candidates(*ids: int) -> list[Candidate]:
    return [
        Candidate(number, f"process-{number}", "127.0.0.1", 9000 + number, "r" if number % 2 else None)
        for number in ids
    ]


ids = st.sets(st.integers(0, 12), max_size=8)


@given(ids, st.lists(st.tuples(ids, st.integers(0, 64)), max_size=5), st.integers(0, 64))
def test_even_and_moving_little(first: set[int], earlier: list[tuple[set[int], int]], shards: int) -> None:
    """Whatever was before: even to within one, and no more moves than evenness and the dead ask for."""
    before: Placement | None = None
    for alive, count in earlier:
        before = compute_placement(before, candidates(*alive), -1, count)
    after = compute_placement(before, candidates(*first), min(first, default=-1), shards)
    assert len(after.owners) == shards
    if not first:
        assert set(after.owners) <= {NOBODY}
        return
    counts = Counter(after.owners)
    assert set(counts) <= first
    had = dict.fromkeys(first, 0) | Counter(
        owner for owner in (before.owners[:shards] if before else ()) if owner in first
    )
    loads = [counts[number] for number in first]
    assert max(loads) - min(loads) <= 1
    share, over = divmod(shards, len(first))
    stay = sum(min(number, share) for number in had.values()) + min(
        over, sum(number > share for number in had.values())
    )
    kept = sum(owner == new for owner, new in zip(before.owners if before else (), after.owners, strict=False))
    assert kept == stay


@given(st.lists(st.integers(0, 40), unique=True, max_size=6), st.randoms(), st.integers(0, 50))
def test_order_of_candidates_does_not_count(alive: list[int], chance: object, shards: int) -> None:
    """Whoever makes it, from a list in whatever order, makes the same map."""
    turned = sorted(alive, reverse=True)
    assert compute_placement(None, candidates(*alive), 1, shards) == compute_placement(
        None, candidates(*turned), 1, shards
    )


def test_nothing_to_change_is_the_same_map() -> None:
    """A map that would say the same is not a new one, so that nobody writes it."""
    before = compute_placement(None, candidates(1, 2, 3), 1, 50)
    assert compute_placement(before, candidates(3, 2, 1), 1, 50) is before
    assert compute_placement(before, candidates(3, 2, 1), 2, 50).version == before.version + 1


def test_restarted_process_keeps_its_shards() -> None:
    """Another process under the same id is a new map, in which no shard moves."""
    before = compute_placement(None, candidates(1, 2), 1, 10)
    again = [candidates(1)[0], Candidate(2, "another", "127.0.0.1", 9002)]
    after = compute_placement(before, again, 1, 10)
    assert after.version == before.version + 1
    assert after.owners == before.owners
    assert after.candidate(2) == again[1]
    assert after.shards_of(2) == before.shards_of(2)


@given(ids, st.integers(0, 64))
def test_survives_its_bytes(alive: set[int], shards: int) -> None:
    """Placements decode to the same value."""
    placement = compute_placement(None, candidates(*alive), min(alive, default=-1), shards)
    assert read_placement(from_bytes(to_bytes(placement_fields(placement)))) == placement


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"version":1,"elected":1,"candidates":[{}],"owners":[]}',
        b'{"version":1,"elected":1,"candidates":[],"owners":[-2]}',
        b'{"version":1,"elected":1,"candidates":[{"id":40000,"incarnation":"a","host":"h","port":1}],"owners":[]}',
    ],
)
def test_bytes_that_are_no_map(data: bytes) -> None:
    """Anything else is refused, whole."""
    with pytest.raises(CorruptDataError):
        read_placement(from_bytes(data))
