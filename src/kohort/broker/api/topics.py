"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.

Versions: CreateTopics 5 returns partitions and configs, 7 topic ids; DeleteTopics 6 deletes by id.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence

from kohort.broker.api.config_entries import check_config_spelling, topic_config_entries
from kohort.broker.authorization import CLUSTER_NAME, NONE_REFUSED, Resource, may_see, unauthorized_names
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.broker.slices import run_in_slices
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError, NotFoundError
from kohort.ids import AclOperation
from kohort.log import CatalogTopic, Steps, TopicPlan
from kohort.wire.data import DeleteRecordsRequest, DeleteRecordsResponse
from kohort.wire.discovery import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kohort.wire.message import Message

log = logging.getLogger("kohort.broker")

NO_ID = uuid.UUID(int=0)
_MALFORMED = ErrorCode.INVALID_REQUEST
ERROR_SINCE_OF_CREATE_TOPICS, ERROR_SINCE_OF_DELETE_TOPICS, ERROR_SINCE_OF_CREATE_PARTITIONS = 6, 5, 3
"""The first version of a request whose clients know THROTTLING_QUOTA_EXCEEDED. Source: KIP-599."""


def create_topics(node: Node, request: Request[CreateTopicsRequest]) -> Steps[CreateTopicsResponse]:
    """Create the topics of a CreateTopics request, or only validate it."""
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    planned: dict[str, TopicPlan | KafkaError] = {}
    names = [topic.name for topic in message.topics if times[topic.name] == 1]
    creates_all = may_see(node, request, AclOperation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    refused = (
        NONE_REFUSED if creates_all else unauthorized_names(node, request, AclOperation.CREATE, Resource.TOPIC, names)
    )
    for topic in message.topics:
        if topic.name in planned:
            continue
        try:
            if times[topic.name] > 1:
                raise InvalidInputError("the topic is named more than once", ErrorCode.INVALID_REQUEST)
            if topic.name in refused:
                raise NotAuthorizedError("Authorization failed.", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            plan = _plan(node, topic)
            if message.validate_only or request.meter is not None:
                node.store.check_topic(plan.name, plan.partitions, plan.configs)
            _count(request, plan.partitions, ERROR_SINCE_OF_CREATE_TOPICS)
            planned[topic.name] = plan
        except KafkaError as error:
            planned[topic.name] = error.with_traceback(None)
    plans = [plan for plan in planned.values() if isinstance(plan, TopicPlan)]
    found: Sequence[CatalogTopic | KafkaError] = [
        CatalogTopic(plan.name, NO_ID, plan.partitions, plan.configs) for plan in plans
    ]
    if not message.validate_only:
        found = yield from node.topics.create_topics_in_steps(plans, request)
    made = dict(zip((plan.name for plan in plans), found, strict=True))
    results = []
    for name, entry in planned.items():
        result = _result(node, name, entry if isinstance(entry, KafkaError) else made[name])
        if not result.error_code and not may_see(node, request, AclOperation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            _hide_configs(result)
        results.append(result)
        yield
    return CreateTopicsResponse(topics=results)


def _count(request: Request[Message], partitions: int, error_since: int) -> None:
    """Count partitions to create or delete toward the client's controller mutation quota.

    This is the last check of a topic, since it changes the quota.

    Raises:
        RetriableError: the quota is used up, and the client knows the error, which is in versions from `error_since`.
    """
    if request.meter is not None:
        request.meter.charge_partition_changes(partitions, knows_error=request.version >= error_since)


def _plan(node: Node, topic: CreateTopicsRequest.CreatableTopic) -> TopicPlan:
    partitions = _partition_count(node, topic)
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    if any(config.value is None for config in topic.configs):
        raise InvalidInputError("a configuration value is null", ErrorCode.INVALID_CONFIG)
    check_config_spelling(configs)
    if node.topics.is_internal(topic.name):
        raise InvalidInputError(f"{topic.name} is made by the broker", ErrorCode.TOPIC_ALREADY_EXISTS)
    return TopicPlan(topic.name, partitions, configs)


def _result(node: Node, name: str, topic: CatalogTopic | KafkaError) -> CreateTopicsResponse.CreatableTopicResult:
    make = CreateTopicsResponse.CreatableTopicResult
    if isinstance(topic, KafkaError):
        return make(name=name, error_code=topic.code, error_message=topic.message, configs=[])
    return make(
        name=name,
        error_message=None,
        topic_id=topic.id,
        num_partitions=topic.partitions,
        replication_factor=1,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=False, config_source=entry.source
            )
            for entry in topic_config_entries(node, name, topic.configs)
        ],
    )


def _hide_configs(result: CreateTopicsResponse.CreatableTopicResult) -> None:
    """Remove the topic's configuration and size from the result: the client may not describe it. Source: KIP-525."""
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = -1
    result.configs = []


def _partition_count(node: Node, topic: CreateTopicsRequest.CreatableTopic) -> int:
    if not topic.assignments:
        if topic.replication_factor not in (-1, 1):
            raise InvalidInputError(
                f"a replication factor of {topic.replication_factor} with one broker",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )
        return node.topics.requested_or_default_partitions(topic.num_partitions)
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise InvalidInputError("both an assignment and a number of partitions or replicas", ErrorCode.INVALID_REQUEST)
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    if indexes != list(range(len(indexes))) or any(
        assignment.broker_ids != [node.id] for assignment in topic.assignments
    ):
        raise InvalidInputError(
            f"the assignment must place partitions 0 to n on broker {node.id}", ErrorCode.INVALID_REPLICA_ASSIGNMENT
        )
    return len(indexes)


def delete_topics(node: Node, request: Request[DeleteTopicsRequest]) -> Steps[DeleteTopicsResponse]:
    """Delete topics by name or id."""
    message, version = request.message, request.version
    asked = (
        [(t.name, t.topic_id) for t in message.topics] if version >= 6 else [(n, NO_ID) for n in message.topic_names]
    )
    results = []
    doomed: dict[str, DeleteTopicsResponse.DeletableTopicResult] = {}
    counts = Counter(asked)
    deletes_all = may_see(node, request, AclOperation.DELETE, Resource.CLUSTER, CLUSTER_NAME)
    for name, topic_id in counts:
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        try:
            _check_named_once(name, topic_id, counts)
            if not deletes_all:
                _check_deletable(node, request, result)
            topic = _known(node, name, topic_id)
            result.name = topic.name
            if version >= 6:
                result.topic_id = topic.id
            if {(topic.name, NO_ID), (None, topic.id)} <= counts.keys():
                if name is None:
                    results.pop()  # the entry by name tells of both
                raise InvalidInputError(f"topic {topic.name} is named by its name and by its id", _MALFORMED)
            _count(request, topic.partitions, ERROR_SINCE_OF_DELETE_TOPICS)
            doomed[topic.name] = result
        except KafkaError as error:
            _refuse_topic(result, error, version)

    if doomed:
        found = yield from node.topics.delete_topics_in_steps([*doomed], request)
        for result, gone in zip(doomed.values(), found, strict=True):
            if isinstance(gone, KafkaError):
                _refuse_topic(result, gone, version)
    return DeleteTopicsResponse(responses=results)


def _check_named_once(
    name: str | None, topic_id: uuid.UUID, counts: Mapping[tuple[str | None, uuid.UUID], int]
) -> None:
    """Reject an entry that does not identify exactly one topic, as Kafka does; nothing is deleted then."""
    if name is not None and topic_id != NO_ID:
        raise InvalidInputError("name a topic by its name or by its id, not by both", _MALFORMED)
    if name is None and topic_id == NO_ID:
        raise InvalidInputError("a topic has neither a name nor an id", _MALFORMED)
    if counts[name, topic_id] > 1:
        raise InvalidInputError(f"topic {topic_id if name is None else name} is named twice", _MALFORMED)


def _check_deletable(
    node: Node, request: Request[DeleteTopicsRequest], result: DeleteTopicsResponse.DeletableTopicResult
) -> None:
    """Reject a topic that the client may not delete.

    The client learns the name of an id, and that a name has no topic, only with the right to describe it.
    """
    topic = node.store.topics_by_id.get(result.topic_id) if result.name is None else None
    name = topic.name if topic is not None else result.name
    if name is None or not node.config.delete_topics:
        return
    described = not unauthorized_names(node, request, AclOperation.DESCRIBE, Resource.TOPIC, [name])
    if described and topic is None and name not in node.store.topics:
        return
    if described and not unauthorized_names(node, request, AclOperation.DELETE, Resource.TOPIC, [name]):
        return
    result.name = name if described or topic is None else None
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    raise NotAuthorizedError(code.text, code)


def _refuse_topic(result: DeleteTopicsResponse.DeletableTopicResult, error: KafkaError, version: int) -> None:
    result.error_code = error.code
    if version >= 5:
        result.error_message = error.message


def _not_there(name: str | None) -> KafkaError:
    return NotFoundError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _known(node: Node, name: str | None, topic_id: uuid.UUID) -> CatalogTopic:
    """Return the topic to delete, by name or id; raise if it does not exist or must not be deleted."""
    if not node.config.delete_topics:
        raise KafkaError("delete.topic.enable is false", ErrorCode.TOPIC_DELETION_DISABLED)
    topic = node.store.topics_by_id.get(topic_id) if topic_id != NO_ID else node.store.topics.get(name or "")
    if topic is None:
        raise (
            NotFoundError("no topic of this id", ErrorCode.UNKNOWN_TOPIC_ID) if topic_id != NO_ID else _not_there(name)
        )
    if node.topics.is_internal(topic.name):
        raise InvalidInputError(f"{topic.name} belongs to the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
    return topic


def create_partitions(node: Node, request: Request[CreatePartitionsRequest]) -> Steps[CreatePartitionsResponse]:
    """Add partitions to topics."""
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    errors: dict[str, KafkaError | None] = {}
    counts: dict[str, int] = {}
    names = [topic.name for topic in message.topics if times[topic.name] == 1]
    refused = unauthorized_names(node, request, AclOperation.ALTER, Resource.TOPIC, names)
    for topic in message.topics:
        try:
            if times[topic.name] > 1:
                raise InvalidInputError("the topic is named more than once", ErrorCode.INVALID_REQUEST)
            if topic.name in refused:
                raise NotAuthorizedError("no right to alter the topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if (more := _check_growth(node, topic)) > 0:
                _count(request, more, ERROR_SINCE_OF_CREATE_PARTITIONS)
            counts[topic.name] = topic.count
            errors[topic.name] = None
        except KafkaError as error:
            errors[topic.name] = error.with_traceback(None)

    found = yield from node.topics.add_partitions_in_steps(counts, request, validate_only=message.validate_only)
    errors |= {
        name: result if isinstance(result, KafkaError) else None for name, result in zip(counts, found, strict=True)
    }
    make = CreatePartitionsResponse.CreatePartitionsTopicResult
    return CreatePartitionsResponse(
        results=[
            make(name=name, error_code=failure.code, error_message=failure.message)
            if failure
            else make(name=name, error_message=None)
            for name, failure in errors.items()
        ]
    )


def _check_growth(node: Node, topic: CreatePartitionsRequest.CreatePartitionsTopic) -> int:
    """Validate a CreatePartitions entry, and return the number of partitions to add to the topic.

    The store validates the rest.
    """
    known = node.store.topic(topic.name)
    new = topic.assignments
    if (
        new is not None
        and topic.count > known.partitions
        and (
            len(new) != topic.count - known.partitions or any(assignment.broker_ids != [node.id] for assignment in new)
        )
    ):
        raise InvalidInputError(
            f"the assignment does not fit: it must name broker {node.id} alone for each of the "
            f"{topic.count - known.partitions} new partitions",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    if node.topics.is_internal(topic.name):
        raise InvalidInputError(f"{topic.name} belongs to the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
    return topic.count - known.partitions


def delete_records(node: Node, request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    """Answer DeleteRecords: advance the log start offset of partitions."""
    make = DeleteRecordsResponse.DeleteRecordsPartitionResult
    topics = []
    names = [topic.name for topic in request.message.topics]
    refused = unauthorized_names(node, request, AclOperation.DELETE, Resource.TOPIC, names)
    for topic in request.message.topics:
        parts = []
        for part in topic.partitions:
            target = node.store.get(topic.name, part.partition_index)
            result = make(partition_index=part.partition_index, low_watermark=-1)
            if topic.name in refused:
                result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif target is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif node.topics.is_internal(topic.name):
                result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif (
                target.config.uses_compaction and not target.config.uses_deletion
            ):  # an empty policy allows it (KIP-1161)
                result.error_code = ErrorCode.POLICY_VIOLATION
            else:
                try:
                    result.low_watermark = target.delete_records(part.offset)
                    node.waits.answer_waiting([target])
                except KafkaError as error:
                    result.error_code = error.code
                except OSError as error:  # others of the request may have been moved
                    log.error(
                        "[partition %s-%d] DeleteRecords could not advance the log start offset, answering "
                        "KAFKA_STORAGE_ERROR: %s",
                        topic.name,
                        part.partition_index,
                        error,
                    )
                    result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            parts.append(result)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=parts))
    return DeleteRecordsResponse(topics=topics)


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(CreateTopicsRequest, CreateTopicsResponse, run_in_slices(create_topics)),
    api_handler(DeleteTopicsRequest, DeleteTopicsResponse, run_in_slices(delete_topics)),
    api_handler(CreatePartitionsRequest, CreatePartitionsResponse, run_in_slices(create_partitions)),
    api_handler(DeleteRecordsRequest, DeleteRecordsResponse, delete_records),
]
