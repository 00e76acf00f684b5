"""Where things are, as a coordinator over Kafka tells its clients.

| asked for | answer |
|---|---|
| nodes, leaders, the controller | Kafka's, with the addresses that its brokers advertise |
| a group's coordinator | whom the map gives the group's shard |
| a transactional id's coordinator | not here: Kafka's brokers are asked |

Other clients than kohort's own ask any broker for a group's coordinator, and would end at Kafka's own. They are told of
one node, this one, and refused when they ask it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

from kohort.broker.net.connection import Connection
from kohort.broker.places import Coordinated, Leader, Place
from kohort.broker.shards import GroupShards
from kohort.cluster.doors.door import Door
from kohort.cluster.doors.placement import NOBODY, Candidate
from kohort.cluster.kafka_topics import KafkaTopics
from kohort.errors import ErrorCode

log = logging.getLogger("kohort.cluster")

TOLD_AGAIN_S = 60.0
"""A client that is refused asks again and again; the log says so this often."""


class Here(Protocol):
    """What is needed of the host."""

    me: Candidate
    door: Door
    topics: KafkaTopics
    groups: GroupShards


class ClusterPlaces:
    """See the module's text, and `broker.places.Places`."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._told_at = float("-inf")

    @property
    def cluster_id(self) -> str:
        """Kafka's."""
        return self._here.topics.cluster_id

    @property
    def controller_id(self) -> int:
        """Kafka's: what it alone may change is asked there."""
        return self._here.topics.controller_id

    def is_here(self, cluster_id: str, node_id: int) -> bool:
        """Whether this is the coordinator of this id, over Kafka's cluster of this id."""
        return (cluster_id, node_id) == (self.cluster_id, self._here.me.id)

    def nodes(self, connection: Connection) -> Sequence[Place]:
        """Kafka's brokers; for clients that are not kohort's, this coordinator alone."""
        return self._here.topics.brokers if connection.client.is_own else (_place(self._here.me),)

    def coordinator(self, kind: Coordinated, key: str, connection: Connection) -> Place | ErrorCode:
        """Whom the map gives a group's shard."""
        if not connection.client.is_own:
            self._tell_of(connection)
            return ErrorCode.INVALID_REQUEST
        placement = self._here.door.placement
        if kind is not Coordinated.GROUP or placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = self._here.groups.index_of(key)
        owner = placement.candidate(placement.owners[index]) if index < len(placement.owners) else None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if owner is None else _place(owner)

    def pushing(self, group: str | None, connection: Connection) -> tuple[Place | ErrorCode, Sequence[Place]]:
        """Whom the map gives a group's shard, who asks for none the elected one; all coordinators. Source: spec 4.3."""
        placement = self._here.door.placement
        if placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        number = placement.elected
        if group is not None:
            index = self._here.groups.index_of(group)
            number = placement.owners[index] if index < len(placement.owners) else NOBODY
        found = placement.candidate(number)
        place = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else _place(found)
        return place, [_place(each) for each in placement.candidates]

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Kafka's."""
        return self._here.topics.leaders(topic, partitions)

    def _tell_of(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_AGAIN_S:
            self._told_at = now
            software = connection.client.software
            log.warning(
                "a client at %s (%s) was refused: only kohort's own clients can use coordinators that are apart from "
                "Kafka's brokers; others would ask a broker, and end at Kafka's own coordinator. Have it connect to "
                "Kafka, or use kohort's",
                connection.client.host,
                "of a name it does not tell" if software is None else " ".join(software),
            )


def _place(candidate: Candidate) -> Place:
    return Place(candidate.id, candidate.host, candidate.port, candidate.rack)
