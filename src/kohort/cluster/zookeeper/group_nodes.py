"""PURE. The ZooKeeper nodes of push groups: the owner and the offset of each partition.

| node | holds |
|---|---|
| `/consumers/groups/owners/GROUP` | a checksum of the owners |
| `/consumers/groups/owners/GROUP/TOPIC/BROKER-PARTITION` | `CONSUMER-STREAM` |
| `/consumers/groups/offsets/GROUP/TOPIC/BROKER-PARTITION` | the offset |

All nodes are persistent. `/consumers/groups/ids` is never written.

Source: spec 4.2, 4.7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from kohort.cluster.coordination.placement import to_bytes
from kohort.ids import TopicPartition

OWNERS = "/consumers/groups/owners"
OFFSETS = "/consumers/groups/offsets"
DOTS = frozenset({".", ".."})


def node_name(text: str) -> str:
    """Return a group's or topic's name as a node name: %XX for the characters that ZooKeeper refuses, and for %."""
    if text in DOTS:
        return text.replace(".", "%2E")
    return "".join(letter if _is_plain(letter) else _escaped(letter) for letter in text)


def name_of(node: str) -> str:
    """Return the group's or topic's name that a node name stands for."""
    return unquote(node)


def _is_plain(letter: str) -> bool:
    code = ord(letter)
    refused = code < 0x20 or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xF8FF or code >= 0xFFF0
    return not refused and letter not in "/%"


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogatepass"))


def partition_path(group_path: str, part: TopicPartition, broker: int) -> str:
    """Return the path of a partition's node under a group's node."""
    return f"{group_path}/{node_name(part.topic)}/{broker}-{part.partition}"


def partition_of(path: str) -> TopicPartition | None:
    """Return the partition of a `partition_path`, None for any other path."""
    topic, _, name = path.rpartition("/")
    _, dash, number = name.rpartition("-")
    topic = topic.rpartition("/")[2]
    return TopicPartition(name_of(topic), int(number)) if dash and number.isdecimal() and topic else None


def checksum(owners: Mapping[TopicPartition, str]) -> bytes:
    """Return a checksum that shows whether the owners were written completely or somebody deleted some of them."""
    digest = hashlib.sha256()
    for part, owner in sorted(owners.items()):
        digest.update(f"{len(part.topic)} {part.topic} {part.partition} {len(owner)} {owner}".encode())
    return to_bytes({"version": 1, "partitions": len(owners), "sha256": digest.hexdigest()})


def missing(
    registered: Mapping[TopicPartition, str], wanted: Mapping[TopicPartition, str], nodes: Mapping[str, bytes]
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose owner has not changed since it was written, but whose node no longer says so.

    Source: spec 4.7, conditions 1, 2 and 4.
    """
    there = {partition_of(path): data for path, data in nodes.items()}
    return tuple(
        part
        for part, owner in sorted(registered.items())
        if wanted.get(part) == owner and there.get(part) != owner.encode()
    )


def parents(path: str, top: str) -> Iterator[str]:
    """Return the nodes above `path` and below `top`, the highest first."""
    at = path.find("/", len(top) + 1)
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
