"""Metadata and DescribeTopicPartitions: nodes, topics, and the leaders of their partitions.

Versions: Metadata 4 adds the switch for automatic creation of topics, 10 topic ids, 12 lookup by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kohort.broker.authorization import (
    Caller,
    Resource,
    is_allowed,
    may_see,
    permitted_on_cluster,
    permitted_operations,
    unauthorized_names,
)
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.host import GroupHost, KnownTopic
from kohort.broker.server.requests import Request
from kohort.broker.topics import INTERNAL
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import AclOperation
from kohort.wire.discovery import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

NO_ID = uuid.UUID(int=0)

Asked: TypeAlias = MetadataRequest.MetadataRequestTopic
TopicMetadata: TypeAlias = MetadataResponse.MetadataResponseTopic
_Described: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def metadata(host: GroupHost, request: Request[MetadataRequest]) -> MetadataResponse:
    """Answer Metadata: return nodes and topics, without creating topics."""
    asked = request.message.topics
    if asked is None or (request.version == 0 and not asked):
        return metadata_response(host, request, [_topic(host, topic) for topic in describable_topics(host, request)])
    return metadata_response(
        host, request, [requested_topic_entry(host, request, topic, {}) for topic in without_duplicates(asked)]
    )


def describable_topics(host: GroupHost, caller: Caller) -> Iterator[KnownTopic]:
    """Yield the topics that the client has the right to describe."""
    for topic in host.topics.by_name.values():
        if may_see(host, caller, AclOperation.DESCRIBE, Resource.TOPIC, topic.name):
            yield topic


def metadata_after_lookup(host: GroupHost, request: Request[MetadataRequest]) -> MetadataResponse | None:
    """Answer Metadata after looking up the topics that this host does not know: a new topic is often used at once.

    Return None if a look-up is needed: the response follows.
    """
    asked = request.message.topics or ()
    by_id = [topic.topic_id for topic in asked if is_by_id(topic, request.version)]
    names = [topic.name or "" for topic in asked if not is_by_id(topic, request.version)]
    missing = [name for name in names if name and name not in host.topics.by_name]
    missing = [name for name in missing if may_see(host, request, AclOperation.DESCRIBE, Resource.TOPIC, name)]
    missing_ids = [topic_id for topic_id in by_id if topic_id not in host.topics.by_id]
    if host.topics.sure or not (missing or missing_ids):
        return metadata(host, request)
    host.lookup_topics(missing, missing_ids, lambda: request.reply(metadata(host, request)))
    return None


def without_duplicates(asked: list[Asked]) -> list[Asked]:
    """Return the topics that a Metadata request names, without duplicates."""
    return [*{(topic.name, topic.topic_id): topic for topic in asked}.values()]


def metadata_response(
    host: GroupHost, request: Request[MetadataRequest], topics: list[TopicMetadata]
) -> MetadataResponse:
    """Return a Metadata response with the nodes and these topics."""
    message, endpoints = request.message, host.endpoints
    make = MetadataResponse.MetadataResponseBroker
    response = MetadataResponse(
        brokers=[
            make(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in endpoints.nodes(request.connection)
        ],
        cluster_id=endpoints.cluster_id,
        controller_id=endpoints.controller_id,
        topics=topics,
    )
    if 8 <= request.version <= 10:
        asked = message.include_cluster_authorized_operations
        response.cluster_authorized_operations = permitted_on_cluster(asked, host, request)
    if request.version >= 8 and message.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                topic.topic_authorized_operations = permitted_operations(
                    True, host, request, Resource.TOPIC, topic.name or ""
                )
    return response


def is_by_id(asked: Asked, version: int) -> bool:
    """Return whether a Metadata request names this topic by id."""
    return version >= 10 and asked.topic_id != NO_ID


def requested_topic_entry(
    host: GroupHost, request: Request[MetadataRequest], asked: Asked, refused: Mapping[str, KafkaError]
) -> TopicMetadata:
    """Return the entry of a requested topic, without its name if the client gave the id of a hidden topic.

    Args:
        host: the host.
        request: the request.
        asked: the topic's name or id.
        refused: the errors of topics that could not be created.
    """
    if is_by_id(asked, request.version):
        topic = host.topics.by_id.get(asked.topic_id)
        error = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None:
            if is_allowed(host, request, AclOperation.DESCRIBE, Resource.TOPIC, topic.name):
                return _topic(host, topic)
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return TopicMetadata(error_code=error, topic_id=asked.topic_id, name=None if request.version >= 12 else "")
    name = asked.name or ""
    if not is_allowed(host, request, AclOperation.DESCRIBE, Resource.TOPIC, name):
        return TopicMetadata(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
    topic = host.topics.by_name.get(name)
    if topic is not None:
        return _topic(host, topic)
    why = refused.get(name) or host.topics.invalid_name_error(name)
    return TopicMetadata(error_code=why.code if why else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _topic(host: GroupHost, topic: KnownTopic) -> TopicMetadata:
    name = topic.name
    make = MetadataResponse.MetadataResponsePartition
    partitions = [
        make(
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
        )
        for index, (leader, epoch, replicas, in_sync) in enumerate(
            host.endpoints.leaders(name, range(topic.partitions))
        )
    ]
    return TopicMetadata(name=name, topic_id=topic.id, is_internal=name in INTERNAL, partitions=partitions)


def describe_topic_partitions(
    host: GroupHost, request: Request[DescribeTopicPartitionsRequest]
) -> DescribeTopicPartitionsResponse:
    """Describe topics in alphabetical order, up to a number of partitions; a cursor continues the listing."""
    message = request.message
    there = host.topics.by_name
    asked = {topic.name for topic in message.topics}
    hidden = unauthorized_names(host, request, AclOperation.DESCRIBE, Resource.TOPIC, asked)
    names = sorted(asked - hidden if asked else (topic.name for topic in describable_topics(host, request)))
    cursor = message.cursor
    start = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        start = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    left = max(1, min(message.response_partition_limit, host.described_partitions_max))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        described = _described_topic(host, name, start, left)
        described.topic_authorized_operations = permitted_operations(True, host, request, Resource.TOPIC, name)
        if described.partitions or described.error_code:
            response.topics.append(described)
        left -= len(described.partitions)
        after = start + len(described.partitions)
        topic = there.get(name)
        start = 0
        if topic is not None and after < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=name, partition_index=after)
            break
    first, refused = cursor.topic_name if cursor is not None else "", ErrorCode.TOPIC_AUTHORIZATION_FAILED
    response.topics += [_Described(error_code=refused, name=name) for name in sorted(hidden) if name >= first]
    return response


def _described_topic(host: GroupHost, name: str, start: int, limit: int) -> _Described:
    topic = host.topics.by_name.get(name)
    if topic is None:
        refused = host.topics.invalid_name_error(name)
        error = refused.code if refused else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _Described(error_code=error, name=name)
    make = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
    wanted = range(start, min(topic.partitions, start + limit))
    partitions = [
        make(
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            eligible_leader_replicas=[],
            last_known_elr=[],
        )
        for index, (leader, epoch, replicas, in_sync) in zip(wanted, host.endpoints.leaders(name, wanted), strict=True)
    ]
    return _Described(
        name=name,
        topic_id=topic.id,
        is_internal=name in INTERNAL,
        partitions=partitions,
    )


HANDLERS: list[ApiHandler[GroupHost]] = [
    api_handler(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, describe_topic_partitions)
]
AS_IT_IS: list[ApiHandler[GroupHost]] = [api_handler(MetadataRequest, MetadataResponse, metadata_after_lookup)]
"""Metadata handlers of a host that creates no topics."""
