"""PURE. The contents of the ZooKeeper nodes, in Kafka's own JSON where Kafka has such a node.

Push groups have their nodes too:

| node | holds |
|---|---|
| `/consumers/groups/owners/GROUP` | a checksum of the owners |
| `/consumers/groups/owners/GROUP/TOPIC/BROKER-PARTITION` | `CONSUMER-STREAM` |
| `/consumers/groups/offsets/GROUP/TOPIC/BROKER-PARTITION` | the offset |

All nodes of groups are persistent. `/consumers/groups/ids` is never written.

Source: spec 4.2, 4.7, 4.8; the ZooKeeper paths of Kafka 0.8 to 3.9.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote
from uuid import UUID

from kohort.cluster.coordination.placement import Candidate, from_bytes, read_candidate, to_bytes
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition

T = TypeVar("T")
COORDINATOR = "/consumers/coordinator"
"""The leader's ephemeral node; holds its id as text."""
EPOCH = "/consumers/coordinator_epoch"
"""Persistent, raised by each election. The node's version guards all writes of the leader."""
PLACEMENT = "/consumers/coordinator_placement"
"""The placement."""
IDS = "/brokers/ids"
"""Ephemeral nodes of the candidates, by id."""
TOPICS = "/brokers/topics"
"""Topics as the leader saw them in Kafka, by name."""
FOREIGN = ("/controller", "/cluster/id", "/controller_epoch")
"""Nodes of a Kafka in ZooKeeper mode, which kohort never creates. Where one exists, the topic nodes are Kafka's own."""
CHANGES_MAX_BYTES = 512 * 1024
"""The largest request: half of ZooKeeper's frame limit (jute.maxbuffer, 1 MiB)."""
CHANGES_MAX = 1_000
NUMBER_DIGITS_MAX = 10
"""The digits of the largest int32. Python refuses to read numbers of more than 4,300 digits."""
_CHANGE_BYTES = 100
"""An upper bound of a change's size without path and data: type, version, access list."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A candidate's registration: the content of its node in ZooKeeper.

    Attributes:
        candidate: The candidate.
        retiring: Whether it stops, and must get no shards.
        exclusive: Whether it shares the path with nobody.
    """

    candidate: Candidate
    retiring: bool = False
    exclusive: bool = False

    def to_bytes(self) -> bytes:
        """Encode as Kafka's JSON of a broker, with an incarnation that Kafka's readers skip."""
        candidate = self.candidate
        fields: dict[str, object] = {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{candidate.address}"],
            "jmx_port": -1,
            "features": {},
            "host": candidate.host,
            "timestamp": "-1",
            "port": candidate.port,
            "version": 5,
            "incarnation": candidate.incarnation,
            "retiring": self.retiring,
            "sole": self.exclusive,
        }
        return to_bytes(fields if candidate.rack is None else {**fields, "rack": candidate.rack})

    @staticmethod
    def from_bytes(candidate_id: str, data: bytes) -> Registration:
        """Decode the node of this candidate id.

        Raises:
            CorruptDataError: the node is not a candidate's.
        """
        fields = from_bytes(data)
        number = _bounded_number(candidate_id)
        return Registration(
            read_candidate({**fields, "id": number}), fields.get("retiring") is True, fields.get("sole") is True
        )


@dataclass(frozen=True, slots=True)
class Election:
    """The last election of a leader: the content of the node that counts elections.

    Attributes:
        epoch: The number of elections so far.
        elected: The id of the elected candidate.
        session: The ZooKeeper session in which it was elected.
    """

    epoch: int = 0
    elected: int = -1
    session: int = 0

    def to_bytes(self) -> bytes:
        """Encode the election as JSON."""
        return to_bytes({"version": 1, "epoch": self.epoch, "elected": self.elected, "session": hex(self.session)})

    @staticmethod
    def from_bytes(data: bytes) -> Election:
        """Decode the epoch's node; an empty node means that nobody was elected yet.

        Raises:
            CorruptDataError: the bytes are not an epoch's.
        """
        if not data:
            return Election()
        fields = from_bytes(data)
        try:
            return Election(int(fields["epoch"]), int(fields["elected"]), int(fields["session"], 16))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptDataError(f"no epoch of coordinators: {fields!r}"[:300]) from error


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic in the ZooKeeper mirror.

    Attributes:
        id: The topic id.
        replicas: The replicas of each partition, by number.
    """

    id: UUID
    replicas: tuple[tuple[int, ...], ...]

    def to_bytes(self) -> bytes:
        """Encode as Kafka's JSON of a topic."""
        text = base64.urlsafe_b64encode(self.id.bytes).decode().rstrip("=")
        partitions = {str(number): list(nodes) for number, nodes in enumerate(self.replicas)}
        none: dict[str, object] = {}
        return to_bytes(
            {
                "removing_replicas": none,
                "partitions": partitions,
                "topic_id": text,
                "adding_replicas": none,
                "version": 3,
            }
        )


def topic_node_changes(
    there: Mapping[str, bytes], wanted: Mapping[str, MirroredTopic]
) -> Iterator[tuple[str, bytes | None]]:
    """Yield the writes that turn the existing topic nodes into the wanted ones: (name, bytes), None to delete."""
    for name in sorted(there.keys() - wanted.keys()):
        yield name, None
    for name in sorted(wanted):
        data = wanted[name].to_bytes()
        if there.get(name) != data:
            yield name, data


def split_changes(changes: Iterable[tuple[str, bytes | None]]) -> Iterator[list[tuple[str, bytes | None]]]:
    """Split changes into pieces that each fit one request, by bytes and by count."""
    piece: list[tuple[str, bytes | None]] = []
    size = 0
    for path, data in changes:
        own = len(path.encode()) + len(data or b"") + _CHANGE_BYTES
        if piece and (size + own > CHANGES_MAX_BYTES or len(piece) >= CHANGES_MAX):
            yield piece
            piece, size = [], 0
        piece.append((path, data))
        size += own
    if piece:
        yield piece


# -- The nodes of push groups: the owner and the offset of each partition

OWNERS = "/consumers/groups/owners"
OFFSETS = "/consumers/groups/offsets"
DOTS = frozenset({".", ".."})


def encode_node_name(text: str) -> str:
    """Return a group's or topic's name as a node name: %XX for the characters that ZooKeeper refuses, and for %."""
    if text in DOTS:
        return text.replace(".", "%2E")
    return "".join(letter if _is_plain(letter) else _escaped(letter) for letter in text)


def decode_node_name(node: str) -> str:
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
    return f"{group_path}/{encode_node_name(part.topic)}/{broker}-{part.partition}"


def partition_in_path(path: str) -> TopicPartition | None:
    """Return the partition that a path from `partition_path` names; None for any other path."""
    topic, _, name = path.rpartition("/")
    _, dash, digits = name.rpartition("-")
    topic, number = topic.rpartition("/")[2], _bounded_number(digits)
    return TopicPartition(decode_node_name(topic), number) if dash and number is not None and topic else None


def _bounded_number(digits: str) -> int | None:
    """Return the decimal number in the last part of a node's name; None if there is none or it has too many digits."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= NUMBER_DIGITS_MAX else None


def owners_checksum(owners: Mapping[TopicPartition, str]) -> bytes:
    """Return the content of the checksum node of a group's owners: it shows whether owner nodes are missing."""
    digest = hashlib.sha256()
    for part, owner in sorted(owners.items()):
        digest.update(f"{len(part.topic)} {part.topic} {part.partition} {len(owner)} {owner}".encode())
    return to_bytes({"version": 1, "partitions": len(owners), "sha256": digest.hexdigest()})


def partitions_missing_owner_nodes(
    registered: Mapping[TopicPartition, str], wanted: Mapping[TopicPartition, str], nodes: Mapping[str, bytes]
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose owner is as it was written, but whose node is gone or names another.

    Source: spec 4.7, conditions 1, 2 and 4.
    """
    there = {partition_in_path(path): data for path, data in nodes.items()}
    return tuple(
        part
        for part, owner in sorted(registered.items())
        if wanted.get(part) == owner and there.get(part) != owner.encode()
    )


def parent_paths(path: str, top: str) -> Iterator[str]:
    """Return the nodes above `path` and below `top`, the highest first."""
    at = path.find("/", len(top) + 1)
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
