"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator: how a client finds its way.

Versions: ApiVersions 3 brought the client's software name, 4 features whose lowest version is 0; Metadata 4 the switch for
creating topics, 10 topic ids, 12 metadata by id; FindCoordinator 1 transactional ids, 4 several keys at once;
DescribeCluster 1 the endpoint type, 2 fenced brokers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kohort.broker.api.permitted import ON_CLUSTER, ON_TOPIC, permitted
from kohort.broker.net.request import Request
from kohort.broker.node import Node
from kohort.broker.turns import in_turn
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.log import Steps, TopicPlan
from kohort.processes import NAME_MAX_LENGTH
from kohort.wire.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger("kohort.broker")

NO_ID = uuid.UUID(int=0)
GROUP, TRANSACTION = 0, 1
BROKERS, CONTROLLERS = 1, 2
DESCRIBED_PARTITIONS_MAX = 2000
"""Kafka's `max.request.partition.size.limit`: bounds one answer."""


def api_versions(node: Node, request: Request) -> ApiVersionsResponse:
    """What this broker speaks; the client's name is kept for what its kind bears."""
    message = request.message
    if request.version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not _plain(name) or not _plain(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.connection.software = (name, version)
        request.connection.lease_ms = node.lease_ms(name)
        request.connection.process = message.client_process[: NAME_MAX_LENGTH + 1]
    response = ApiVersionsResponse(api_keys=node.api_keys)
    if request.version >= 3:
        response.lease_ms = request.connection.lease_ms
        response.finalized_features_epoch = 1
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in node.features.items()
            if request.version >= 4 or low > 0  # a lowest version of 0 breaks old Java clients
        ]
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=high, max_version_level=high)
            for name, (_, high) in node.features.items()
            if high > 0
        ]
    return response


def _plain(word: str) -> bool:
    """Source: KIP-511: letters, digits, dots and dashes, beginning and ending with a letter or digit."""
    return bool(word) and word[0].isalnum() and word[-1].isalnum() and all(c.isalnum() or c in ".-" for c in word)


def unknown_api_versions(node: Node, request: Request) -> None:
    """A version we don't know is answered in the layout of version 0, which every client reads."""
    request.version = 0
    ours = [entry for entry in node.api_keys if entry.api_key == ApiVersionsResponse.API_KEY]
    request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=ours))


def metadata(node: Node, request: Request) -> MetadataResponse | None:
    """Brokers and topics; creates topics that were asked for by name when that is allowed."""
    message = request.message
    asked = message.topics
    if asked is None or (request.version == 0 and not asked):
        return _metadata(node, request, [_topic(node, name) for name in node.store.topics])
    if _may_create(node, request) and any(
        each.name not in node.store.topics and not _is_by_id(each, request.version) for each in asked
    ):
        _creating_metadata(node, request)
        return None
    once = {(each.name, each.topic_id): each for each in asked}
    return _metadata(node, request, [_asked_topic(node, each, request.version, {}) for each in once.values()])


def _may_create(node: Node, request: Request) -> bool:
    return node.config.auto_create_topics and (request.version < 4 or request.message.allow_auto_topic_creation)


@in_turn
def _creating_metadata(node: Node, request: Request) -> Steps[MetadataResponse]:
    """The same, with topics that may have to be made."""
    once = {(each.name, each.topic_id): each for each in request.message.topics}
    plans: dict[str, TopicPlan] = {}
    refused: dict[str, KafkaError] = {}
    for each in once.values():
        name = each.name or ""
        if _is_by_id(each, request.version) or name in node.store.topics:
            continue
        error = _refusal(node, name)
        if node.topics.is_internal(name):
            error = InvalidInputError(f"{name} is made by the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
        if error is None:
            plans[name] = node.topics.plan_on_use(name)
        else:
            log.info("a topic was not made, though it was used: %s: %s", error.message, request.name)
            refused[name] = error
        yield
    found = yield from node.topics.making([*plans.values()], request, on_use=True)
    refused |= {name: each for name, each in zip(plans, found, strict=True) if isinstance(each, KafkaError)}
    topics = []
    for each in once.values():
        topics.append(_asked_topic(node, each, request.version, refused))
        yield
    return _metadata(node, request, topics)


def _metadata(node: Node, request: Request, topics: list[Any]) -> MetadataResponse:
    """The answer with these topics."""
    message = request.message
    host, port = node.address_for(request.connection)
    response = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=node.id, host=host, port=port, rack=node.config.rack)],
        cluster_id=node.store.cluster_id,
        controller_id=node.id,
        topics=topics,
    )
    if 8 <= request.version <= 10:
        response.cluster_authorized_operations = permitted(message.include_cluster_authorized_operations, ON_CLUSTER)
    if request.version >= 8 and message.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                topic.topic_authorized_operations = ON_TOPIC
    return response


def _is_by_id(asked: Any, version: int) -> bool:
    return version >= 10 and asked.topic_id != NO_ID


def _refusal(node: Node, name: str) -> KafkaError | None:
    """Why a topic of this name can't be made."""
    try:
        node.store.check_topic(name, 1)
    except KafkaError as refused:
        return refused.with_traceback(None)
    return None


def _asked_topic(node: Node, asked: Any, version: int, refused: Mapping[str, KafkaError]) -> Any:
    make = MetadataResponse.MetadataResponseTopic
    if _is_by_id(asked, version):
        topic = node.store.topics_by_id.get(asked.topic_id)
        if topic is not None:
            return _topic(node, topic.name)
        return make(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=asked.topic_id, name=None if version >= 12 else "")
    name = asked.name or ""
    if name in node.store.topics:
        return _topic(node, name)
    error = refused.get(name) or _refusal(node, name)
    return make(error_code=error.code if error else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _topic(node: Node, name: str) -> Any:
    topic = node.store.topics[name]
    me = [node.id]
    get = node.store.get
    partitions = []
    for index in range(topic.partitions):
        part = get(name, index)
        partitions.append(
            MetadataResponse.MetadataResponsePartition(
                partition_index=index,
                leader_id=node.id,
                leader_epoch=part.leader_epoch if part is not None else 0,
                replica_nodes=me,
                isr_nodes=me,
            )
        )
    return MetadataResponse.MetadataResponseTopic(
        name=name, topic_id=topic.id, is_internal=node.topics.is_internal(name), partitions=partitions
    )


def describe_cluster(node: Node, request: Request) -> DescribeClusterResponse:
    """The cluster as AdminClient shows it."""
    message = request.message
    if request.version >= 1 and message.endpoint_type != BROKERS:
        known = message.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker's",
        )
    host, port = node.address_for(request.connection)
    return DescribeClusterResponse(
        cluster_id=node.store.cluster_id,
        controller_id=node.id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.id, host=host, port=port, rack=node.config.rack
            )
        ],
        cluster_authorized_operations=permitted(message.include_cluster_authorized_operations, ON_CLUSTER),
    )


def find_coordinator(node: Node, request: Request) -> FindCoordinatorResponse:
    """This broker, for every group and transactional id."""
    message = request.message
    host, port = node.address_for(request.connection)
    known = message.key_type in (GROUP, TRANSACTION)
    error = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    place = (node.id, host, port) if known else (-1, "", -1)
    text = error.text if error else ""
    if request.version < 4:
        response = FindCoordinatorResponse(error_code=error, node_id=place[0], host=place[1], port=place[2])
        if request.version >= 1:
            response.error_message = text or error.name
        return response
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=place[0], host=place[1], port=place[2], error_code=error, error_message=text
            )
            for key in message.coordinator_keys
        ]
    )


def describe_topic_partitions(node: Node, request: Request) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names, cut off at a number of partitions and gone on with from a cursor."""
    message = request.message
    names = sorted({each.name for each in message.topics} or node.store.topics)
    cursor = message.cursor
    start = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        start = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    left = max(1, min(message.response_partition_limit, DESCRIBED_PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        described = _described_topic(node, name, start, left)
        if described.partitions or described.error_code:
            response.topics.append(described)
        left -= len(described.partitions)
        after = start + len(described.partitions)
        topic = node.store.topics.get(name)
        start = 0
        if topic is not None and after < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=after)
            break
    return response


def _described_topic(node: Node, name: str, start: int, limit: int) -> Any:
    topic = node.store.topics.get(name)
    if topic is None:
        refused = _refusal(node, name)
        error = refused.code if refused else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
            error_code=error, name=name, topic_authorized_operations=ON_TOPIC
        )
    make = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
    me = [node.id]
    partitions = []
    for index in range(start, min(topic.partitions, start + limit)):
        part = node.store.get(name, index)
        partitions.append(
            make(
                partition_index=index,
                leader_id=node.id,
                leader_epoch=part.leader_epoch if part is not None else 0,
                replica_nodes=me,
                isr_nodes=me,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
        )
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=node.topics.is_internal(name),
        partitions=partitions,
        topic_authorized_operations=ON_TOPIC,
    )


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {
    ApiVersionsRequest: api_versions,
    DescribeTopicPartitionsRequest: describe_topic_partitions,
    MetadataRequest: metadata,
    DescribeClusterRequest: describe_cluster,
    FindCoordinatorRequest: find_coordinator,
}
