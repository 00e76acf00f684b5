"""PURE. What the nodes in ZooKeeper hold, in Kafka's own JSON where Kafka has one.

Source: spec 4.2, 4.8; the ZooKeeper paths of Kafka 0.8 to 3.9.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from kohort.cluster.coordination.placement import Candidate, from_bytes, read_candidate, to_bytes
from kohort.errors import CorruptDataError

T = TypeVar("T")
COORDINATOR = "/consumers/coordinator"
"""Ephemeral, of the session of who is in office; holds its id as text."""
EPOCH = "/consumers/coordinator_epoch"
"""Persistent, raised by each election; what the elected one writes is guarded by its version."""
PLACEMENT = "/consumers/coordinator_placement"
"""The map."""
IDS = "/brokers/ids"
"""Candidates, ephemeral, by id."""
TOPICS = "/brokers/topics"
"""Topics as the elected one saw them in Kafka, by name."""
FOREIGN = ("/controller", "/cluster/id", "/controller_epoch")
"""Kafka of the ZooKeeper age keeps these, and we never do: where one is, the topics are Kafka's own."""
CHANGES_MAX_BYTES = 512 * 1024
"""In one request: half of what a frame of ZooKeeper holds (jute.maxbuffer, 1 MiB)."""
CHANGES_MAX = 1_000
_CHANGE_BYTES = 100
"""Of a change beside its path and data: type, version, access list; above what it takes."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a candidate's node says.

    Attributes:
        candidate: Who it is.
        retiring: It stops, and is to have no shards.
        sole: It shares the path with nobody.
    """

    candidate: Candidate
    retiring: bool = False
    sole: bool = False

    def to_bytes(self) -> bytes:
        """Kafka's JSON of a broker, with an incarnation that its readers skip."""
        one = self.candidate
        fields: dict[str, object] = {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{one.address}"],
            "jmx_port": -1,
            "features": {},
            "host": one.host,
            "timestamp": "-1",
            "port": one.port,
            "version": 5,
            "incarnation": one.incarnation,
            "retiring": self.retiring,
            "sole": self.sole,
        }
        return to_bytes(fields if one.rack is None else {**fields, "rack": one.rack})

    @staticmethod
    def from_bytes(candidate_id: str, data: bytes) -> Registration:
        """What the node of this name says.

        Raises:
            CorruptDataError: it is no candidate's.
        """
        fields = from_bytes(data)
        number = int(candidate_id) if candidate_id.isdecimal() else None
        return Registration(
            read_candidate({**fields, "id": number}), fields.get("retiring") is True, fields.get("sole") is True
        )


@dataclass(frozen=True, slots=True)
class Office:
    """What the epoch's node says: who was elected last.

    Attributes:
        epoch: Counts elections.
        elected: The candidate.
        session: The session in which it was.
    """

    epoch: int = 0
    elected: int = -1
    session: int = 0

    def to_bytes(self) -> bytes:
        """Its JSON."""
        return to_bytes({"version": 1, "epoch": self.epoch, "elected": self.elected, "session": hex(self.session)})

    @staticmethod
    def from_bytes(data: bytes) -> Office:
        """What these bytes say; nobody was elected yet where they are none.

        Raises:
            CorruptDataError: they are something else.
        """
        if not data:
            return Office()
        fields = from_bytes(data)
        try:
            return Office(int(fields["epoch"]), int(fields["elected"]), int(fields["session"], 16))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptDataError(f"no epoch of coordinators: {fields!r}"[:300]) from error


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic as the mirror has it.

    Attributes:
        id: Of the topic.
        replicas: Of each partition, by number.
    """

    id: UUID
    replicas: tuple[tuple[int, ...], ...]

    def to_bytes(self) -> bytes:
        """Kafka's JSON of a topic."""
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


def differences(there: Mapping[str, bytes], wanted: Mapping[str, MirroredTopic]) -> Iterator[tuple[str, bytes | None]]:
    """What is to be written so that the mirror says what is wanted: names with bytes, or None to delete."""
    for name in sorted(there.keys() - wanted.keys()):
        yield name, None
    for name in sorted(wanted):
        data = wanted[name].to_bytes()
        if there.get(name) != data:
            yield name, data


def cut(changes: Iterable[tuple[str, bytes | None]]) -> Iterator[list[tuple[str, bytes | None]]]:
    """The same changes in pieces, each within one request's bytes and count."""
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
