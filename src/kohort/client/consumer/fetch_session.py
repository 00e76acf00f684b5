"""What one broker was told to fetch, so that the next request names only what changed (KIP-227). No I/O.

| epoch | what the next request is |
|---|---|
| 0 | full: every partition; closes the session named, if any, and asks for a new one |
| n > 0 | incremental: partitions that are new or moved, and those to forget |

A broker without room for a session answers with id 0; requests then stay full. After an answer or its loss:

| answer | id | epoch |
|---|---|---|
| in order, with a session | the broker's | the next one |
| in order, without one | 0 | 0 |
| FETCH_SESSION_ID_NOT_FOUND | 0 | 0 |
| another error of the session, no answer | kept, to be closed | 0 |

Source: KIP-227, "Fetch Session Epoch", "Fetch Session Errors"; KIP-516 for topics by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from kohort.client.consumer.fetch_request import (
    HIGHEST_BY_NAME,
    FetchEntry,
    Topics,
    add_partition,
    bare_request,
    by_id_possible,
)
from kohort.client.consumer.subscription import Position
from kohort.client.net.cluster import Between, Cluster
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.data import FetchRequest, FetchResponse

_EPOCH_MAX = 2**31 - 1
_CLOSE = -1
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_Facts: TypeAlias = tuple[Position, int, int, UUID]
"""What a session holds of a partition: from where, how many bytes at most, the leader's epoch, the topic's id."""


class FetchSession:
    """One broker's session.

    Attributes:
        id: The broker's name for it; 0 without one.
        epoch: Of the next request.
    """

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self._by_id = False
        self._told: dict[TopicPartition, _Facts] = {}

    def request(
        self, cluster: Cluster, config: ConsumerConfig, entries: Sequence[FetchEntry]
    ) -> Between[FetchResponse]:
        """A Fetch for these partitions and no others, in this order where it is full."""
        by_id = by_id_possible(cluster, entries)
        wanted = _facts(cluster, entries)
        if by_id != self._by_id or _made_again(self._told, wanted):
            self._by_id, self.epoch = by_id, 0
        told = self._told if self.epoch else {}
        topics: Topics = {}
        for entry in entries:
            if told.get(entry.partition) != wanted[entry.partition]:
                add_partition(cluster, topics, entry)
        request = bare_request(config, topics)
        request.session_id, request.session_epoch = self.id, self.epoch
        request.forgotten_topics_data = _forgotten(told, wanted)
        self._told = wanted
        return Between(request, highest=None if by_id else HIGHEST_BY_NAME)

    def answered(self, code: ErrorCode, session_id: int) -> bool:
        """An answer came, which names `session_id`; True when it is no more than a call for a full request."""
        if code is ErrorCode.NONE and session_id:
            self.id = session_id
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
            return False
        again = code in _SESSION_ERRORS and self.epoch > 0
        self.epoch = 0
        if code in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
            self.id = 0
        return again

    def lost(self) -> None:
        """No answer came: what the broker took in is not known."""
        self.epoch = 0

    def goodbye(self) -> FetchRequest | None:
        """A request that frees the broker's memory; None where there is no session."""
        if not self.id:
            return None
        return FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=0, session_id=self.id, session_epoch=_CLOSE)


def _facts(cluster: Cluster, entries: Sequence[FetchEntry]) -> dict[TopicPartition, _Facts]:
    facts: dict[TopicPartition, _Facts] = {}
    topics = cluster.metadata.topics
    for entry in entries:
        partition = entry.partition
        topic = topics.get(partition.topic)
        info = None if topic is None else topic.partitions.get(partition.partition)
        epoch = -1 if info is None else info.leader_epoch
        facts[partition] = entry.position, entry.max_bytes, epoch, NO_TOPIC_ID if topic is None else topic.topic_id
    return facts


def _made_again(told: Mapping[TopicPartition, _Facts], wanted: Mapping[TopicPartition, _Facts]) -> bool:
    """Whether a topic has another id than the session was told: by name, a request can't mean both."""
    for partition, facts in wanted.items():
        before = told.get(partition)
        if before is not None and before[-1] is not facts[-1] and before[-1] != facts[-1]:
            return True
    return False


def _forgotten(
    told: Mapping[TopicPartition, _Facts], wanted: Mapping[TopicPartition, _Facts]
) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[str, FetchRequest.ForgottenTopic] = {}
    for partition, facts in told.items():
        if partition not in wanted:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchRequest.ForgottenTopic(topic=partition.topic, topic_id=facts[-1])
            topic.partitions.append(partition.partition)
    return list(topics.values())
