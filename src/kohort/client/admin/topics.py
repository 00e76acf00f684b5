"""Topics, records and the cluster itself, as coroutines over a `Cluster`."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kohort.client.admin.values import (
    ClusterDescription,
    CreatedTopic,
    NewTopic,
    NodeDescription,
    PartitionResults,
    Results,
)
from kohort.client.net.cluster import ANY, CONTROLLER, Cluster, Node, Versioned
from kohort.client.net.metadata import TopicInfo
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.cluster import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
)
from kohort.wire.data import DeleteRecordsRequest

_BROKER_TIME_SHARE = 0.8
"""Of the call's time, what the broker is told that it may take; the rest is for the way."""


async def describe_cluster(cluster: Cluster, timeout_ms: int | None) -> ClusterDescription:
    async def attempt() -> ClusterDescription:
        answer = await cluster.send(DescribeClusterRequest(), ANY)
        if answer.error_code:
            raise error_for(answer.error_code, answer.error_message or "")
        nodes = [NodeDescription(node.broker_id, node.host, node.port, node.rack) for node in answer.brokers]
        return ClusterDescription(
            answer.cluster_id, answer.controller_id, tuple(sorted(nodes, key=lambda node: node.id))
        )

    return await cluster.retrying(attempt, "describe cluster", timeout_ms)


async def list_topics(cluster: Cluster, internal: bool, timeout_ms: int | None) -> list[TopicInfo]:
    topics = await cluster.describe_topics(None, timeout_ms)
    return [info for _, info in sorted(topics.items()) if internal or not info.internal]


async def describe_topics(cluster: Cluster, topics: Sequence[str], timeout_ms: int | None) -> Results[str, TopicInfo]:
    found = await cluster.describe_topics(topics, timeout_ms)
    outcomes: dict[str, TopicInfo | KafkaError] = {}
    for name in topics:
        info = found.get(name, TopicInfo(name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        outcomes[name] = error_for(info.error, f"topic {name!r}: {info.error.text}") if info.error else info
    return Results.of(outcomes)


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], validate_only: bool, timeout_ms: int | None
) -> Results[str, CreatedTopic]:
    def build(names: Sequence[str]) -> CreateTopicsRequest:
        return CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics if topic.name in names],
            timeout_ms=_broker_time(cluster, timeout_ms),
            validate_only=validate_only,
        )

    def outcome(result: Any) -> CreatedTopic | KafkaError:
        if result.error_code:
            return _refused(result, f"topic {result.name!r}")
        return CreatedTopic(result.name, result.topic_id, result.num_partitions, result.replication_factor)

    async def ask(names: Sequence[str]) -> dict[str, CreatedTopic | KafkaError]:
        answer = await cluster.send(build(names), CONTROLLER, timeout_ms=timeout_ms)
        return {result.name: outcome(result) for result in answer.topics}

    return await _at_controller(cluster, [topic.name for topic in topics], ask, "create topics", timeout_ms)


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
        for index, brokers in sorted(topic.assignments.items())
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assignments else topic.num_partitions,
        replication_factor=-1 if assignments else topic.replication_factor,
        assignments=assignments,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in sorted(topic.configs.items())
        ],
    )


async def delete_topics(cluster: Cluster, topics: Sequence[str], timeout_ms: int | None) -> Results[str, None]:
    def build(names: Sequence[str], version: int) -> DeleteTopicsRequest:
        limit = _broker_time(cluster, timeout_ms)
        if version >= 6:
            states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=uuid.UUID(int=0)) for name in names]
            return DeleteTopicsRequest(topics=states, timeout_ms=limit)
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=limit)

    async def ask(names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = Versioned(DeleteTopicsRequest, lambda version: build(names, version))
        answer = await cluster.send(request, CONTROLLER, timeout_ms=timeout_ms)
        return {
            result.name: _refused(result, f"topic {result.name!r}") if result.error_code else None
            for result in answer.responses
        }

    return await _at_controller(cluster, topics, ask, "delete topics", timeout_ms)


async def create_partitions(
    cluster: Cluster, totals: Mapping[str, int], validate_only: bool, timeout_ms: int | None
) -> Results[str, None]:
    async def ask(names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=totals[name], assignments=None)
                for name in names
            ],
            timeout_ms=_broker_time(cluster, timeout_ms),
            validate_only=validate_only,
        )
        answer = await cluster.send(request, CONTROLLER, timeout_ms=timeout_ms)
        return {
            result.name: _refused(result, f"topic {result.name!r}") if result.error_code else None
            for result in answer.results
        }

    return await _at_controller(cluster, list(totals), ask, "create partitions", timeout_ms)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], timeout_ms: int | None
) -> PartitionResults[int]:
    async def ask(node: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        message = DeleteRecordsRequest.DeleteRecordsTopic
        topics = [
            message(
                name=topic,
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsPartition(
                        partition_index=number, offset=before[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=_broker_time(cluster, timeout_ms))
        answer = await cluster.send(request, Node(node), timeout_ms=timeout_ms)
        return {
            TopicPartition(topic.name, part.partition_index): error_for(part.error_code, "delete records")
            if part.error_code
            else part.low_watermark
            for topic in answer.topics
            for part in topic.partitions
        }

    outcomes = await at_leaders(cluster, list(before), ask, "delete records", timeout_ms)
    values = {key: value for key, value in outcomes.items() if not isinstance(value, KafkaError)}
    return PartitionResults(values, {key: error for key, error in outcomes.items() if isinstance(error, KafkaError)})


# Ways to the right broker.


def by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


async def at_leaders(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, Any]]],
    what: str,
    timeout_ms: int | None,
) -> dict[TopicPartition, Any]:
    """Asks the leader of each partition, again where leaders have moved; an outcome for every partition.

    Args:
        ask: called with a node id and its partitions; gives a value or a KafkaError for each.
    """
    done: dict[TopicPartition, Any] = {}

    async def attempt() -> None:
        nodes: dict[int, list[TopicPartition]] = {}
        wanted = [partition for partition in partitions if partition not in done]
        found = await cluster.describe_topics({partition.topic for partition in wanted}, timeout_ms)
        for partition in wanted:
            node = cluster.metadata.leader(partition)
            topic = found.get(partition.topic)
            if topic is not None and not topic.error and partition.partition not in topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                done[partition] = error_for(code, f"{partition}: the topic has {len(topic.partitions)} partitions")
            elif topic is None or topic.error:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
                done[partition] = error_for(code, f"topic {partition.topic!r}: {code.text}")
            elif node < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader now")
            else:
                nodes.setdefault(node, []).append(partition)
        moved: KafkaError | None = None
        for node, theirs in sorted(nodes.items()):
            for partition, outcome in (await ask(node, theirs)).items():
                if isinstance(outcome, KafkaError) and outcome.code.retriable:
                    moved = outcome
                else:
                    done[partition] = outcome
        if moved is not None:
            raise moved

    await cluster.retrying(attempt, what, timeout_ms)
    return done


async def _at_controller(
    cluster: Cluster,
    names: Sequence[str],
    ask: Callable[[Sequence[str]], Awaitable[dict[str, Any]]],
    what: str,
    timeout_ms: int | None,
) -> Results[str, Any]:
    """Asks the controller, and the next one for those that it refused because it is none any more."""
    done: dict[str, Any] = {}

    async def attempt() -> None:
        moved: KafkaError | None = None
        for name, outcome in (await ask([name for name in names if name not in done])).items():
            if isinstance(outcome, RetriableError):
                moved = outcome
            else:
                done[name] = outcome
        if moved is not None:
            cluster.request_metadata()
            raise moved

    await cluster.retrying(attempt, what, timeout_ms)
    return Results.of(done)


def _refused(result: Any, what: str) -> KafkaError:
    code = ErrorCode.of(result.error_code)
    return error_for(result.error_code, f"{what}: {getattr(result, 'error_message', None) or code.text}")


def _broker_time(cluster: Cluster, timeout_ms: int | None) -> int:
    limit = cluster.config.request_timeout_ms if timeout_ms is None else timeout_ms
    return max(1, int(limit * _BROKER_TIME_SHARE))
