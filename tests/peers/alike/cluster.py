"""Metadata, DescribeCluster, DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import uuid
from typing import Any

from kohort.wire.discovery import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.operations import without_words


def asking(*topics: Any, **fields: Any) -> MetadataRequest:
    make = MetadataRequest.MetadataRequestTopic
    asked = [make(topic_id=topic, name=None) if isinstance(topic, uuid.UUID) else make(name=topic) for topic in topics]
    return MetadataRequest(topics=asked, **{"allow_auto_topic_creation": False, **fields})


@scenario(*range(4, 14))
def metadata(side: Side, version: int) -> None:
    topic, missing = side.topic(), side.name("missing")
    side.ask(asking(topic, missing), version)
    side.ask(asking(topic, topic), version)
    side.ask(asking("", "bad,name", "..", "x" * 250), version)
    side.ask(asking(topic, include_topic_authorized_operations=True), version)
    if 8 <= version <= 10:
        side.ask(asking(topic, include_cluster_authorized_operations=True), version)
    side.ask(asking(), version)
    if version >= 12:
        side.ask(asking(side.id_of(topic)), version)
        side.ask(asking(uuid.UUID(int=9)), version)


@scenario(*range(4, 14))
def topics_made_on_use(side: Side, version: int) -> None:
    missing, bad = side.name("missing"), side.name("bad,name")

    def led(answer: Any) -> bool:
        for topic in answer.topics:
            side.call(topic.topic_id, f"id of {topic.name}")
        return not answer.topics[0].error_code and all(part.leader_id >= 0 for part in answer.topics[0].partitions)

    with side.on_purpose("A topic that is made on use is there at once"):
        side.ask(asking(missing, bad, allow_auto_topic_creation=True), version)
    side.until(lambda: asking(missing), version, led)
    side.ask(asking(bad, allow_auto_topic_creation=True), version)
    side.silently(DeleteTopicsRequest(topic_names=[missing], timeout_ms=10_000), 5)
    side.until(lambda: asking(missing), version, lambda answer: bool(answer.topics[0].error_code))
    side.ask(asking(missing, allow_auto_topic_creation=True), version)


@scenario(3, 4, 5)
def who_is_meant(side: Side, version: int) -> None:
    """The cluster and the node that a client means to reach: another one's answer is no answer."""
    here = side.silently(DescribeClusterRequest(), 0).cluster_id

    def ask(number: int, **fields: Any) -> None:
        words = {"client_software_name": "alike", "client_software_version": "1", **fields}
        side.ask(ApiVersionsRequest(**words), version, by=f"client {number}", keep=errors_alone)

    cases: tuple[dict[str, Any], ...] = (
        {},
        {"cluster_id": here, "node_id": 1},
        {"cluster_id": here, "node_id": 2},
        {"cluster_id": "another", "node_id": 1},
        {"cluster_id": "", "node_id": 1},
        {"cluster_id": here},
        {"node_id": 1},
        {"cluster_id": here, "node_id": -7},
        {"node_id": -7},
        {"cluster_id": "another", "node_id": 1, "client_software_name": "-"},
    )
    for number, fields in enumerate(cases):
        ask(number, **fields)


def errors_alone(answer: Any) -> None:
    """Which APIs there are is compared by the page; here the number of answers counts."""
    answer.api_keys, answer.supported_features, answer.finalized_features = [], [], []


@scenario(DescribeClusterRequest)
def clusters(side: Side, version: int) -> None:
    for fields in (
        {},
        {"include_cluster_authorized_operations": True},
        {"endpoint_type": 2},
        {"endpoint_type": 7},
        {"include_fenced_brokers": True},
    ):
        side.ask(DescribeClusterRequest(**fields), version, keep=without_words)


@scenario(DescribeTopicPartitionsRequest)
def topic_partitions(side: Side, version: int) -> None:
    topic, other = side.topic("a", 3), side.topic("b", 2)
    make, cursor = DescribeTopicPartitionsRequest.TopicRequest, DescribeTopicPartitionsRequest.Cursor

    def ask(*names: str, limit: int = 2000, start: tuple[str, int] | None = None) -> None:
        asked = DescribeTopicPartitionsRequest(
            topics=[make(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if start is None else cursor(topic_name=start[0], partition_index=start[1]),
        )
        side.ask(asked, version)

    ask(topic, other)
    ask(topic, side.name("missing"))
    ask(topic, other, limit=2)
    ask(topic, other, limit=4)
    ask(topic, other, limit=3)
    ask(topic, other, start=(topic, 2))
    ask(topic, other, start=(other, 0))
    ask(topic, other, start=(topic, 1), limit=2)
    ask("bad,name")


@scenario(CreateTopicsRequest)
def creations(side: Side, version: int) -> None:
    taken = side.topic("taken")
    topic, assignment = CreateTopicsRequest.CreatableTopic, CreateTopicsRequest.CreatableReplicaAssignment
    config = CreateTopicsRequest.CreatableTopicConfig

    def creating(name: str, **fields: Any) -> Any:
        return topic(name=name, **{"num_partitions": 1, "replication_factor": 1, **fields})

    def keep(answer: Any) -> None:
        without_words(answer)
        for entry in answer.topics:
            side.call(entry.topic_id, f"id of {entry.name}")
            entry.configs = None if entry.configs is None else []

    for number, fields in enumerate(
        (
            {},
            {"num_partitions": 0},
            {"num_partitions": -1, "replication_factor": -1},
            {"num_partitions": -2},
            {"replication_factor": 0},
            {"replication_factor": 3},
            {"configs": [config(name="retention.ms", value="5")]},
            {"configs": [config(name="unheard", value="5")]},
            {"configs": [config(name="retention.ms", value="soon")]},
            {"configs": [config(name="retention.ms", value=None)]},
            {"assignments": [assignment(partition_index=0, broker_ids=[1])]},
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment(partition_index=0, broker_ids=[1])],
            },
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment(partition_index=1, broker_ids=[1])],
            },
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment(partition_index=0, broker_ids=[7])],
            },
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment(partition_index=0, broker_ids=[1, 1])],
            },
        )
    ):
        side.ask(CreateTopicsRequest(topics=[creating(side.name(f"new-{number}"), **fields)]), version, keep=keep)
    for name in (taken, "", ".", "bad,name", "x" * 250, "__consumer_offsets", side.name("a.b")):
        side.ask(CreateTopicsRequest(topics=[creating(name)]), version, keep=keep)
    side.ask(CreateTopicsRequest(topics=[creating(side.name("a_b"))]), version, keep=keep)
    twice = [creating(side.name("twice")), creating(side.name("twice"))]
    side.ask(CreateTopicsRequest(topics=twice), version, keep=keep)
    side.ask(CreateTopicsRequest(topics=[creating(side.name("only"))], validate_only=True), version, keep=without_id)
    side.ask(CreateTopicsRequest(), version, keep=keep)


def without_id(answer: Any) -> None:
    """Kafka makes up an id for a topic that it does not make."""
    without_words(answer)
    for topic in answer.topics:
        topic.topic_id, topic.configs = uuid.UUID(int=0), []


@scenario(DeleteTopicsRequest)
def deletions(side: Side, version: int) -> None:
    topic, other = side.topic(), side.topic("other")
    state = DeleteTopicsRequest.DeleteTopicState

    def deleting(*names: Any) -> DeleteTopicsRequest:
        states = [
            state(topic_id=name, name=None) if isinstance(name, uuid.UUID) else state(name=name) for name in names
        ]
        plain = [name for name in names if isinstance(name, str)]
        return DeleteTopicsRequest(topics=states, topic_names=plain, timeout_ms=10_000)

    side.ask(deleting(side.name("missing"), ""), version, keep=without_words)
    other_id = side.id_of(other)
    side.ask(deleting(topic, topic), version, keep=without_words)
    side.ask(deleting(side.name("missing"), side.name("missing")), version, keep=without_words)
    side.ask(deleting(topic), version, keep=without_words)
    side.ask(deleting(topic), version, keep=without_words)
    side.ask(deleting(), version, keep=without_words)
    if version >= 6:
        for states in (
            [state(name=other, topic_id=other_id)],
            [state(name=None)],
            [state(name=None, topic_id=other_id)] * 2,
            [state(name=None, topic_id=other_id), state(name=other)],
        ):
            side.ask(DeleteTopicsRequest(topics=states, timeout_ms=10_000), version, keep=without_words)
        side.ask(deleting(uuid.UUID(int=9)), version, keep=without_words)
        side.ask(deleting(other_id), version, keep=without_words)


def without_texts(answer: Any) -> None:
    for result in answer.results:
        result.error_message = None


@scenario(CreatePartitionsRequest)
def growth(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    make, placed = CreatePartitionsRequest.CreatePartitionsTopic, CreatePartitionsRequest.CreatePartitionsAssignment

    def growing(name: str, count: int, *brokers: list[int], validate_only: bool = False) -> CreatePartitionsRequest:
        assignments = [placed(broker_ids=broker) for broker in brokers] or None
        asked = [make(name=name, count=count, assignments=assignments)]
        return CreatePartitionsRequest(topics=asked, timeout_ms=10_000, validate_only=validate_only)

    for request in (
        growing(topic, 1),
        growing(topic, 2),
        growing(topic, 0),
        growing(topic, -1),
        growing(topic, 3, validate_only=True),
        growing(topic, 3, [1], [1]),
        growing(topic, 3, [7]),
        growing(topic, 3, [1]),
        growing(topic, 4),
        growing(side.name("missing"), 3),
        growing("", 3),
        CreatePartitionsRequest(),
    ):
        side.ask(request, version, keep=without_texts)
    twice = [make(name=topic, count=5, assignments=None)] * 2
    side.ask(CreatePartitionsRequest(topics=twice, timeout_ms=10_000), version, keep=without_texts)
