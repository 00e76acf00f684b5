"""Topics and their records, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohort.client.admin.routing import (
    RequestAttempts,
    broker_timeout_ms,
    error_of_result,
    send_to_controller,
    send_to_leaders,
)
from kohort.client.admin.values import (
    CreatedTopic,
    NewTopic,
    PartitionResults,
    Results,
)
from kohort.client.net.cluster import CONTROLLER, BrokerById, Cluster
from kohort.client.net.metadata import TopicInfo
from kohort.errors import ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition, by_topic
from kohort.wire.data import DeleteRecordsRequest, DeleteRecordsResponse
from kohort.wire.discovery import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)


async def list_topics(cluster: Cluster, *, internal: bool = False, timeout_ms: float | None = None) -> list[TopicInfo]:
    """List every topic by name; Kafka's internal ones too when `internal`."""
    topics = await cluster.describe_topics(None, timeout_ms)
    return [info for _, info in sorted(topics.items()) if internal or not info.internal]


async def describe_topics(
    cluster: Cluster, topics: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, TopicInfo]:
    """Describe partitions, leaders and replicas of topics."""
    topics = list(topics)
    infos = await cluster.describe_topics(topics, timeout_ms)
    outcomes: dict[str, TopicInfo | KafkaError] = {}
    for name in topics:
        info = infos.get(name, TopicInfo(name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        outcomes[name] = error_for(info.error, f"topic {name!r}: {info.error.topic_text}") if info.error else info
    return Results.of(outcomes)


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: float | None = None
) -> Results[str, CreatedTopic]:
    """Create topics; with `validate_only` only check whether that would succeed."""
    topics = list(topics)

    def creation_request(names: Sequence[str]) -> CreateTopicsRequest:
        return CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics if topic.name in names],
            timeout_ms=broker_timeout_ms(cluster, timeout_ms),
            validate_only=validate_only,
        )

    def creation_outcome(result: CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic | KafkaError:
        if result.error_code:
            return error_of_result(result, f"topic {result.name!r}")
        return CreatedTopic(result.name, result.topic_id, result.num_partitions, result.replication_factor)

    attempts = RequestAttempts[str]()

    async def send_create_topics(names: Sequence[str]) -> dict[str, CreatedTopic | KafkaError]:
        leaving = None if validate_only else attempts.sending(names)
        answer = await cluster.send(creation_request(names), CONTROLLER, timeout_ms=timeout_ms, leaving=leaving)
        return {result.name: creation_outcome(result) for result in answer.topics}

    return await send_to_controller(
        cluster, [topic.name for topic in topics], send_create_topics, "create topics", timeout_ms, attempts
    )


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


async def delete_topics(
    cluster: Cluster, topics: Iterable[str], *, timeout_ms: float | None = None
) -> Results[str, None]:
    """Delete topics with their records, and groups' offsets for them."""
    attempts = RequestAttempts[str]()

    async def send_delete_topics(names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = DeleteTopicsRequest(
            topic_names=list(names),
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
            timeout_ms=broker_timeout_ms(cluster, timeout_ms),
        )
        answer = await cluster.send(request, CONTROLLER, timeout_ms=timeout_ms, leaving=attempts.sending(names))
        return {
            result.name or "": error_of_result(result, f"topic {result.name!r}") if result.error_code else None
            for result in answer.responses
        }

    return await send_to_controller(cluster, list(topics), send_delete_topics, "delete topics", timeout_ms, attempts)


async def create_partitions(
    cluster: Cluster, totals: Mapping[str, int], *, validate_only: bool = False, timeout_ms: float | None = None
) -> Results[str, None]:
    """Raise topics' partition counts to the given totals."""
    attempts = RequestAttempts[str]()

    async def send_create_partitions(names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=totals[name], assignments=None)
                for name in names
            ],
            timeout_ms=broker_timeout_ms(cluster, timeout_ms),
            validate_only=validate_only,
        )
        leaving = None if validate_only else attempts.sending(names)
        answer = await cluster.send(request, CONTROLLER, timeout_ms=timeout_ms, leaving=leaving)
        return {
            result.name: error_of_result(result, f"topic {result.name!r}") if result.error_code else None
            for result in answer.results
        }

    return await send_to_controller(
        cluster, list(totals), send_create_partitions, "create partitions", timeout_ms, attempts
    )


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
) -> PartitionResults[int]:
    """Delete the records before the given offsets (-1: all records); return the new first offsets."""

    async def send_delete_records(
        node: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
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
        request = DeleteRecordsRequest(topics=topics, timeout_ms=broker_timeout_ms(cluster, timeout_ms))
        answer = await cluster.send(request, BrokerById(node), timeout_ms=timeout_ms)
        return {
            TopicPartition(topic.name, part.partition_index): _deletion_error(topic.name, part, before)
            if part.error_code
            else part.low_watermark
            for topic in answer.topics
            for part in topic.partitions
        }

    return PartitionResults.of(
        await send_to_leaders(cluster, list(before), send_delete_records, "delete records", timeout_ms)
    )


def _deletion_error(
    topic: str,
    part: DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult,
    before: Mapping[TopicPartition, int],
) -> KafkaError:
    partition, code = TopicPartition(topic, part.partition_index), ErrorCode.of(part.error_code)
    return error_for(code, f"delete the records of {partition} before offset {before.get(partition, -1)}: {code.text}")
