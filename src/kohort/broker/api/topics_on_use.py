"""Metadata of a broker with a store, which creates requested topics automatically if that is allowed."""

from __future__ import annotations

import logging

from kohort.broker.api.metadata import (
    Asked,
    TopicMetadata,
    is_by_id,
    metadata,
    metadata_response,
    requested_topic_entry,
    without_duplicates,
)
from kohort.broker.audit import AuditedChange
from kohort.broker.authorization import CLUSTER_NAME, Resource, is_allowed, may_see
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.broker.slices import run_in_slices
from kohort.errors import (
    ErrorCode,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    RetriableError,
)
from kohort.ids import QUORUM_TOPIC, AclOperation
from kohort.log import Steps, TopicPlan
from kohort.wire.discovery import MetadataRequest, MetadataResponse

log = logging.getLogger("kohort.broker")


def metadata_with_auto_creation(node: Node, request: Request[MetadataRequest]) -> MetadataResponse | None:
    """Answer Metadata with nodes and topics; first create missing topics named in it, if auto-creation is allowed."""
    asked = request.message.topics
    if (
        asked
        and node.config.auto_create_topics
        and (request.version < 4 or request.message.allow_auto_topic_creation)
        and any(_is_missing(node, topic, request.version) for topic in asked)
    ):
        _making(node, request)
        return None
    return metadata(node, request)


def _is_missing(node: Node, asked: Asked, version: int) -> bool:
    return asked.name not in node.store.topics and not is_by_id(asked, version)


@run_in_slices
def _making(node: Node, request: Request[MetadataRequest]) -> Steps[MetadataResponse]:
    """Create missing topics of a Metadata request, then answer it.

    A recently deleted topic is created but reported as unknown, as Kafka does for every automatically created topic. A
    client that checks its deletion then sees that it succeeded.
    """
    asked = without_duplicates(request.message.topics or [])
    creates_all = may_see(node, request, AclOperation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    plans: dict[str, TopicPlan] = {}
    refused: dict[str, KafkaError] = {}
    for topic in asked:
        name = topic.name or ""
        if is_by_id(topic, request.version) or name in node.store.topics:
            continue
        if not may_see(node, request, AclOperation.DESCRIBE, Resource.TOPIC, name):
            continue  # refused below, whether it exists or not
        error = node.topics.invalid_name_error(name)
        if name == QUORUM_TOPIC:
            error = NotFoundError(f"{name} is the quorum's", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if node.topics.is_internal(name):
            error = InvalidInputError(f"{name} is made by the broker", ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not (creates_all or is_allowed(node, request, AclOperation.CREATE, Resource.TOPIC, name)):
            error = NotAuthorizedError(f"no right to create {name}", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if error is None:
            plan = node.topics.auto_creation_plan(name)
            error = _over_quota(request, plan)
            if error is None:
                plans[name] = plan
        if error is not None:
            log.info("topic %s not created automatically for request %s: %s", name, request.name, error.message)
            refused[name] = error
        yield
    deleted = {name for name in plans if node.topics.was_just_deleted(name)}
    found = yield from node.topics.create_topics_in_steps([*plans.values()], request, on_use=True)
    if node.audit is not None:
        for name, result in zip(plans, found, strict=True):
            if not isinstance(result, KafkaError):
                node.audit.record_change(request, AuditedChange("CREATE", "TOPIC", name, details="because it was used"))
    refused |= {name: result for name, result in zip(plans, found, strict=True) if isinstance(result, KafkaError)}
    unknown = deleted - refused.keys()
    topics = []
    for topic in asked:
        if topic.name in unknown and not is_by_id(topic, request.version):
            topics.append(TopicMetadata(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=topic.name))
        else:
            topics.append(requested_topic_entry(node, request, topic, refused))
        yield
    return metadata_response(node, request, topics)


def _over_quota(request: Request[MetadataRequest], plan: TopicPlan) -> KafkaError | None:
    """Count an automatically created topic toward the client's controller mutation quota.

    Return None, or the error that makes the client ask again because the quota is used up.
    """
    if request.meter is not None:
        try:
            request.meter.charge_partition_changes(plan.partitions, knows_error=True)
        except RetriableError as error:
            return NotFoundError(error.message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return None


HANDLERS: list[ApiHandler[Node]] = [api_handler(MetadataRequest, MetadataResponse, metadata_with_auto_creation)]
