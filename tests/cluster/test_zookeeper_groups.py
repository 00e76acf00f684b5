"""Content of ZooKeeper's nodes of push groups: names, partitions, and missing owners. Source: spec 4.7."""

from __future__ import annotations

import pytest

from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.zookeeper.nodes import (
    Registration,
    decode_node_name,
    encode_node_name,
    owners_checksum,
    parent_paths,
    partition_in_path,
    partition_path,
    partitions_missing_owner_nodes,
)
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition

PARTS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u.v-w", 0)]


@pytest.mark.parametrize("name", ["g", "a/b", "100%", "%2F", ".", "..", "a.b", "\x00\x1f\x7f", "grüße", "\ue000", "￿"])
def test_names_are_read_back_and_are_what_zookeeper_takes(name: str) -> None:
    node = encode_node_name(name)
    assert decode_node_name(node) == name
    assert "/" not in node
    assert node not in (".", "..")
    assert all(0x20 <= ord(letter) < 0x7F or 0x9F < ord(letter) < 0xD800 for letter in node)


@pytest.mark.parametrize("part", PARTS)
def test_partitions_of_paths(part: TopicPartition) -> None:
    path = partition_path("/owners/g", part, -1)
    assert partition_in_path(path) == part
    assert list(parent_paths(path, "/owners")) == ["/owners/g", f"/owners/g/{part.topic}"]


def test_paths_of_others_are_no_partitions() -> None:
    assert partition_in_path("/owners/g/t/x") is None
    assert partition_in_path("1-0") is None


def test_numbers_in_names_of_nodes_have_as_many_digits_as_those_of_kafka() -> None:
    """A node of another client of ZooKeeper, whose number Python refuses to read, ended the mirror of groups."""
    for digits in ("9" * 5_000, "12345678901", "²", "٣"):
        assert partition_in_path(f"/owners/g/t/1-{digits}") is None
        with pytest.raises(CorruptDataError):
            Registration.from_bytes(digits, Registration(Candidate(1, "i", "h", 1, None)).to_bytes())


def test_what_is_missing() -> None:
    registered = dict(zip(PARTS, ("a-0", "b-0", "a-0"), strict=True))
    nodes = {partition_path("/o/g", part, 3): owner.encode() for part, owner in registered.items()}
    assert not partitions_missing_owner_nodes(registered, registered, nodes)
    assert partitions_missing_owner_nodes(registered, registered, {}) == tuple(sorted(PARTS))
    del nodes["/o/g/t/3-1"]
    assert partitions_missing_owner_nodes(registered, registered, nodes) == (PARTS[1],)
    assert not partitions_missing_owner_nodes(registered, {**registered, PARTS[1]: "c-0"}, nodes), (
        "it is another's now: it is written anyway"
    )
    assert partitions_missing_owner_nodes(registered, registered, {**nodes, "/o/g/t/3-1": b"x-0"}) == (PARTS[1],), (
        "somebody wrote another one"
    )


def test_a_checksum_tells_maps_apart() -> None:
    one = dict.fromkeys(PARTS, "a-0")
    assert owners_checksum(one) == owners_checksum(dict(reversed(one.items())))
    assert (
        len(
            {
                owners_checksum(one),
                owners_checksum({**one, PARTS[0]: "b-0"}),
                owners_checksum({}),
                owners_checksum({PARTS[0]: "a-0"}),
            }
        )
        == 4
    )
