"""Assignments that the leader of the coordinators' group gives to each member."""

from __future__ import annotations

import pytest
from hypothesis import given as played
from hypothesis import strategies as st

from kohort.cluster.coordination.group_round import JoinMetadata, LeaderAssignment, compute_assignments
from kohort.cluster.coordination.placement import Candidate, Placement, compute_placement
from kohort.errors import CorruptDataError

SHARDS = 10


def one(number: int, incarnation: str = "first", port: int | None = None) -> Candidate:
    return Candidate(number, incarnation, "127.0.0.1", port or 9000 + number)


def test_each_is_given_the_same_map() -> None:
    """The generation is its version, and the leader is in office."""
    metadata = {"a": JoinMetadata(one(1), SHARDS), "b": JoinMetadata(one(2), SHARDS), "c": JoinMetadata(one(3), SHARDS)}
    gifts = compute_assignments(7, "b", metadata)
    maps = {gift.placement for gift in gifts.values()}
    (placement,) = maps
    assert (placement.version, placement.elected) == (7, 2)
    assert {number: len(placement.shards_of(number)) for number in (1, 2, 3)} == {1: 4, 2: 3, 3: 3}
    assert all(gift.members == {1: "a", 2: "b", 3: "c"} and not gift.refused for gift in gifts.values())


def test_who_retires_has_none() -> None:
    """Also the leader, also where nobody else is there."""
    metadata = {"a": JoinMetadata(one(1), SHARDS, retiring=True), "b": JoinMetadata(one(2), SHARDS)}
    assert compute_assignments(1, "a", metadata)["a"].placement.owners == (2,) * SHARDS
    assert compute_assignments(1, "a", {"a": metadata["a"]})["a"].placement.owners == (-1,) * SHARDS


def test_map_that_most_go_by_counts() -> None:
    """A leader that slept since map 57 does not bring it back: most go by the first map of a group made again."""
    old = Placement(57, 1, (one(1), one(2), one(3)), (1, 1, 1, 1, 2, 2, 2, 3, 3, 3))
    new = Placement(1, 2, (one(1), one(2), one(3)), (3, 3, 3, 3, 2, 2, 2, 1, 1, 1))
    metadata = {
        "a": JoinMetadata(one(1), SHARDS, placement=old),
        "b": JoinMetadata(one(2), SHARDS, placement=new),
        "c": JoinMetadata(one(3), SHARDS, placement=new),
    }
    assert compute_assignments(2, "a", metadata)["a"].placement.owners == new.owners


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_of_one_id_at_one_address(names: tuple[str, str]) -> None:
    """The one that the map does not name yet is the newer process; the other one has ended."""
    before = compute_placement(None, [one(1, "old"), one(2)], 2, SHARDS)
    older, newer = names
    metadata = {
        older: JoinMetadata(one(1, "old"), SHARDS),
        newer: JoinMetadata(one(1, "new"), SHARDS),
        "z": JoinMetadata(one(2), SHARDS, placement=before),
    }
    gifts = compute_assignments(3, "z", metadata)
    assert gifts["z"].placement.candidate(1) == one(1, "new")
    assert gifts["z"].members[1] == newer
    assert not gifts[newer].refused
    assert gifts[older].refused


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_of_one_id_at_two_addresses(names: tuple[str, str]) -> None:
    """The owner keeps the id, and the other member learns the owner's address."""
    before = compute_placement(None, [one(1, "old"), one(2)], 2, SHARDS)
    holder, other = names
    metadata = {
        holder: JoinMetadata(one(1, "old"), SHARDS),
        other: JoinMetadata(one(1, "new", port=9999), SHARDS),
        "z": JoinMetadata(one(2), SHARDS, placement=before),
    }
    gifts = compute_assignments(3, "z", metadata)
    assert gifts["z"].placement.candidate(1) == one(1, "old")
    assert gifts[other].refused == "the id 1 is taken by the coordinator at 127.0.0.1:9001"
    assert not gifts[holder].refused


members = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        JoinMetadata, st.builds(one, st.integers(1, 3), st.sampled_from(["x", "y"])), st.just(SHARDS), st.booleans()
    ),
    min_size=1,
)


@played(members, st.data())
def test_survives_its_bytes_whoever_leads(metadata: dict[str, JoinMetadata], data: st.DataObject) -> None:
    """Messages decode to the same values, and each id has one candidate."""
    assert {name: JoinMetadata.from_bytes(metadata_of.to_bytes()) for name, metadata_of in metadata.items()} == metadata
    gifts = compute_assignments(1, data.draw(st.sampled_from(sorted(metadata))), metadata)
    assert {name: LeaderAssignment.from_bytes(gift.to_bytes()) for name, gift in gifts.items()} == gifts
    placement = next(iter(gifts.values())).placement
    ids = [candidate.id for candidate in placement.candidates]
    assert len(ids) == len(set(ids))
    for name, gift in gifts.items():
        assert gift.placement == placement
        holder = metadata[gift.members[metadata[name].candidate.id]].candidate
        assert bool(gift.refused) == (holder.incarnation != metadata[name].candidate.incarnation)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"candidate":1,"shards":1}',
        b'{"placement":{},"members":{}}',
        b"\x00\x01",
        b"[" * 5_000,
        b'{"placement":{},"members":{"' + b"9" * 5_000 + b'":"m"}}',
    ],
    ids=["nothing", "no field", "a candidate that is none", "no map", "no text", "nested", "a long number"],
)
def test_bytes_of_something_else(data: bytes) -> None:
    """Refused, whole."""
    with pytest.raises(CorruptDataError):
        JoinMetadata.from_bytes(data)
    with pytest.raises(CorruptDataError):
        LeaderAssignment.from_bytes(data)
