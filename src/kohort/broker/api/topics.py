"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.

Versions: CreateTopics 5 tells partitions and configs back, 7 topic ids; DeleteTopics 6 deletes by id.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from kohort.broker.config_entries import topic_entries
from kohort.broker.node import Node
from kohort.broker.request import Request
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.wire.cluster import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kohort.wire.data import DeleteRecordsRequest, DeleteRecordsResponse

log = logging.getLogger("kohort.broker")
NO_ID = uuid.UUID(int=0)


def create_topics(node: Node, request: Request) -> CreateTopicsResponse:
    """Create topics, or say what would happen."""
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    seen: set[str] = set()
    results = []
    for topic in message.topics:
        if topic.name in seen:
            continue
        seen.add(topic.name)
        try:
            if times[topic.name] > 1:
                raise InvalidInputError("the topic is named more than once", ErrorCode.INVALID_REQUEST)
            results.append(_create(node, topic, message.validate_only))
        except KafkaError as error:
            results.append(_result(topic.name, error.code, error.message))
        except OSError as error:
            log.error("topic %s could not be made: %s", topic.name, error)
            results.append(_result(topic.name, ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
    return CreateTopicsResponse(topics=results)


def _result(name: str, error: int, text: str | None) -> Any:
    return CreateTopicsResponse.CreatableTopicResult(name=name, error_code=error, error_message=text, configs=[])


def _create(node: Node, topic: Any, validate_only: bool) -> Any:
    partitions = _partition_count(node, topic)
    configs = {each.name: each.value for each in topic.configs if each.value is not None}
    if any(each.value is None for each in topic.configs):
        raise InvalidInputError("a configuration value is null", ErrorCode.INVALID_CONFIG)
    if node.topics.is_internal(topic.name):
        raise InvalidInputError(f"{topic.name} is made by the broker", ErrorCode.TOPIC_ALREADY_EXISTS)
    topic_id = NO_ID
    if validate_only:
        node.store.check_topic(topic.name, partitions, configs)
    else:
        topic_id = node.topics.create(topic.name, partitions, configs).id
        log.info("topic %s made with %d partitions", topic.name, partitions)
    return CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        error_message=None,
        topic_id=topic_id,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=False, config_source=entry.source
            )
            for entry in topic_entries(node, topic.name, configs)
        ],
    )


def _partition_count(node: Node, topic: Any) -> int:
    if not topic.assignments:
        if topic.replication_factor not in (-1, 1):
            raise InvalidInputError(
                f"a replication factor of {topic.replication_factor} with one broker",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )
        return node.topics.partitions_asked(topic.num_partitions)
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise InvalidInputError("both an assignment and a number of partitions or replicas", ErrorCode.INVALID_REQUEST)
    indexes = sorted(each.partition_index for each in topic.assignments)
    if indexes != list(range(len(indexes))) or any(each.broker_ids != [node.id] for each in topic.assignments):
        raise InvalidInputError(
            f"the assignment must place partitions 0 to n on broker {node.id}", ErrorCode.INVALID_REPLICA_ASSIGNMENT
        )
    return len(indexes)


def delete_topics(node: Node, request: Request) -> DeleteTopicsResponse:
    """Delete topics by name or id."""
    message, version = request.message, request.version
    asked = (
        [(t.name, t.topic_id) for t in message.topics] if version >= 6 else [(n, NO_ID) for n in message.topic_names]
    )
    results = []
    for name, topic_id in asked:
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            topic = _delete(node, name, topic_id)
            result.name = topic.name
            if version >= 6:
                result.topic_id = topic.id
        except KafkaError as error:
            result.error_code = error.code
            if version >= 5:
                result.error_message = error.message
        results.append(result)
    return DeleteTopicsResponse(responses=results)


def _delete(node: Node, name: str | None, topic_id: uuid.UUID) -> Any:
    if not node.config.delete_topics:
        raise KafkaError("delete.topic.enable is false", ErrorCode.TOPIC_DELETION_DISABLED)
    if topic_id != NO_ID:
        known = node.store.topics_by_id.get(topic_id)
        if known is None:
            raise NotFoundError("no topic of this id", ErrorCode.UNKNOWN_TOPIC_ID)
        name = known.name
    if name is None or name not in node.store.topics:
        raise NotFoundError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if node.topics.is_internal(name):
        raise InvalidInputError(f"{name} belongs to the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = node.topics.delete(name)
    log.info("topic %s deleted", name)
    return topic


def create_partitions(node: Node, request: Request) -> CreatePartitionsResponse:
    """Give topics more partitions."""
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    results = []
    for topic in {topic.name: topic for topic in message.topics}.values():
        error, text = ErrorCode.NONE, None
        try:
            if times[topic.name] > 1:
                raise InvalidInputError("the topic is named more than once", ErrorCode.INVALID_REQUEST)
            known = node.store.topics.get(topic.name)
            if known is None:
                raise NotFoundError(f"there is no topic {topic.name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if topic.count <= known.partitions:
                raise InvalidInputError(
                    f"{topic.name} has {known.partitions} partitions, {topic.count} is not more",
                    ErrorCode.INVALID_PARTITIONS,
                )
            new = topic.assignments
            if new is not None and (
                len(new) != topic.count - known.partitions or any(each.broker_ids != [node.id] for each in new)
            ):
                raise InvalidInputError("the assignment does not fit", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            if node.topics.is_internal(topic.name):
                raise InvalidInputError(f"{topic.name} belongs to the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
            if not message.validate_only:
                node.topics.grow(topic.name, topic.count)
        except KafkaError as refused:
            error, text = refused.code, refused.message
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=text)
        )
    return CreatePartitionsResponse(results=results)


def delete_records(node: Node, request: Request) -> DeleteRecordsResponse:
    """Move the start of partitions forward."""
    make = DeleteRecordsResponse.DeleteRecordsPartitionResult
    topics = []
    for topic in request.message.topics:
        parts = []
        for part in topic.partitions:
            target = node.store.get(topic.name, part.partition_index)
            result = make(partition_index=part.partition_index, low_watermark=-1)
            if target is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif node.topics.is_internal(topic.name):
                result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif not target.config.deletes:
                result.error_code = ErrorCode.POLICY_VIOLATION
            else:
                try:
                    result.low_watermark = target.delete_records(part.offset)
                    node.waits.changed([target])
                except KafkaError as error:
                    result.error_code = error.code
            parts.append(result)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=parts))
    return DeleteRecordsResponse(topics=topics)


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {
    CreateTopicsRequest: create_topics,
    DeleteTopicsRequest: delete_topics,
    CreatePartitionsRequest: create_partitions,
    DeleteRecordsRequest: delete_records,
}
