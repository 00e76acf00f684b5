"""The administration of topics: what it answers, in every version; large changes, and who hears of them."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.errors import ErrorCode
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import DeleteRecordsRequest
from kohort.wire.discovery import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from tests.broker.raw import RawClient, batch_of, create_topic, end_offset, produce, resident_kib

MANY = 10_000


@pytest.mark.parametrize("version", range(CreateTopicsRequest.MIN_VERSION, CreateTopicsRequest.MAX_VERSION + 1))
@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_that_was_made_has_no_error_text(
    client: RawClient, name: str, version: int, validate_only: bool
) -> None:
    """Clients tell success by a null text, and an empty one isn't null."""
    asked = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
        validate_only=validate_only,
    )
    (made,) = client.ask(asked, version).topics
    assert (made.error_code, made.error_message) == (0, None)


def making(*plans: tuple[str, int], **fields: Any) -> CreateTopicsRequest:
    make = CreateTopicsRequest.CreatableTopic
    topics = [make(name=name, num_partitions=count, replication_factor=1) for name, count in plans]
    return CreateTopicsRequest(topics=topics, **fields)


def growing(*counts: tuple[str, int]) -> CreatePartitionsRequest:
    make = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(topics=[make(name=name, count=count, assignments=None) for name, count in counts])


def using(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])


def codes(answer: Any) -> list[ErrorCode]:
    return [ErrorCode.of(result.error_code) for result in answer]


def test_others_are_served_while_thousands_of_partitions_are_made(broker: Broker, client: RawClient, name: str) -> None:
    """The one who asks waits, everybody else does not; and nobody sees a part."""
    with RawClient(broker.bootstrap_servers) as other:
        client.send(making((name, MANY)))
        for _ in range(5):
            assert other.ask(ApiVersionsRequest(), 0).api_keys
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
            asked.allow_auto_topic_creation = False
            assert codes(other.ask(asked).topics) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not select.select([client.sock], [], [], 0)[0], "the others were served before it was done"
        assert codes(client.receive().topics) == [ErrorCode.NONE]
        assert len(other.ask(using(name)).topics[0].partitions) == MANY
        client.send(growing((name, 2 * MANY)))
        assert other.ask(ApiVersionsRequest(), 0).api_keys
        assert not select.select([client.sock], [], [], 0)[0]
        assert codes(client.receive().results) == [ErrorCode.NONE]
        assert produce(other, name, 2 * MANY - 1, batch_of(b"x")).error_code == 0
        assert codes(client.ask(DeleteTopicsRequest(topic_names=[name]), 5).responses) == [ErrorCode.NONE]


def test_changes_are_made_in_the_order_in_which_they_came(broker: Broker, client: RawClient, name: str) -> None:
    with RawClient(broker.bootstrap_servers) as other:
        for _ in range(2):
            client.send(making((name, 5_000)))
            client.send(making((name, 1)))
            client.send(growing((name, 5_001)))
            client.send(DeleteTopicsRequest(topic_names=[name]), 5)
        assert other.ask(ApiVersionsRequest(), 0).api_keys
        for _ in range(2):
            assert codes(client.receive().topics) == [ErrorCode.NONE]
            assert codes(client.receive().topics) == [ErrorCode.TOPIC_ALREADY_EXISTS]
            assert codes(client.receive().results) == [ErrorCode.NONE]
            assert codes(client.receive().responses) == [ErrorCode.NONE]


def test_more_partitions_than_one_change_may_make_are_refused_and_the_rest_made(client: RawClient, name: str) -> None:
    answer = client.ask(making((f"{name}-a", 9_000), (f"{name}-b", 2_000), (f"{name}-c", 1_000)))
    assert codes(answer.topics) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert "the limit is 10000" in answer.topics[1].error_message
    answer = client.ask(growing((f"{name}-a", 19_001), (f"{name}-c", 1_001)))
    assert codes(answer.results) == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    client.ask(DeleteTopicsRequest(topic_names=[f"{name}-a", f"{name}-c"]), 5)


def test_refused_assignment_of_new_partitions_says_which_broker_there_is(client: RawClient, name: str) -> None:
    client.ask(making((name, 1)))
    request = growing((name, 3))
    request.topics[0].assignments = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[7])] * 2
    (result,) = client.ask(request).results
    assert ErrorCode.of(result.error_code) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "broker 1 alone for each of the 2 new partitions" in (result.error_message or "")


def test_nobody_creates_the_topic_of_a_quorum(tmp_path: Path) -> None:
    """The folder of such a topic would make the data folder another broker's, which the next start refuses."""
    asked = MetadataRequest.MetadataRequestTopic(name="__cluster_metadata")
    topic = CreateTopicsRequest.CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1)
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        found = client.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=True)).topics[0]
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == ErrorCode.INVALID_REQUEST
        produced = produce(client, "__cluster_metadata", 0, batch_of(b"x"))
        assert produced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with Broker(tmp_path):
        pass


def test_what_is_deleted_takes_no_memory_any_more(tmp_path: Path) -> None:
    """Found by the fuzzer: an error that is kept holds its frame, and that all the logs of its request."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        resident = []
        for _ in range(12):
            client.ask(making(("t", 3_000), ("not allowed", 1), ("u", 3_000)))
            client.ask(growing(("t", 5_000), ("u", 1)))
            client.ask(DeleteTopicsRequest(topic_names=["t", "u", "v"]), 5)
            resident.append(resident_kib(broker))
        assert resident[-1] - resident[3] < 40_000


def test_topics_of_one_request_are_held_to_each_other(client: RawClient, name: str) -> None:
    answer = client.ask(making((f"{name}.x", 1), (f"{name}_x", 1), (f"{name}!", 1), (f"{name}.y", 1)))
    bad = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes(answer.topics) == [ErrorCode.NONE, bad, bad, ErrorCode.NONE]
    answer = client.ask(making((f"{name}.x", 1), (f"{name}-z", 1), (f"{name}-z", 2)))
    assert codes(answer.topics) == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_REQUEST]
    unknown, twice = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST
    asked = DeleteTopicsRequest(topic_names=[f"{name}.x", "missing", f"{name}.x", f"{name}.y"])
    assert codes(client.ask(asked, 5).responses) == [twice, unknown, ErrorCode.NONE]
    asked = DeleteTopicsRequest(topic_names=[f"{name}.x", f"{name}.y"])
    assert codes(client.ask(asked, 5).responses) == [ErrorCode.NONE, unknown]
    assert codes(client.ask(making((f"{name}_x", 1))).topics) == [ErrorCode.NONE]


def test_log_names_who_used_a_topic_that_is_made_on_use_and_that_it_had_just_been_deleted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Broker(tmp_path / "data", {"num.partitions": 3}, log_level="INFO") as broker:
        with RawClient(broker.bootstrap_servers, "forgetful") as client:
            for at_first in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                topics = client.ask(using("orders", "no such name")).topics
                assert codes(topics) == [at_first, ErrorCode.INVALID_TOPIC_EXCEPTION]
                (topic,) = client.ask(using("orders")).topics
                assert topic.error_code == ErrorCode.NONE and len(topic.partitions) == 3
                assert produce(client, "orders", 0, batch_of(b"x")).base_offset == 0
                client.ask(DeleteTopicsRequest(topic_names=["orders"]), 5)
            create_topic(client, "orders")
            assert end_offset(client, "orders", 0) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "topic" in line and "kohort.broker" in line]
    refused, first, deleted, _, again, _, made = said
    assert "INFO" in first
    assert "topic orders created with 3 partitions, because it was used by request Metadata 13 from 127.0.0.1:" in first
    assert first.endswith("(forgetful)")
    assert "'no such name' is not allowed" in refused
    assert "topic orders deleted by request DeleteTopics 5 from 127.0.0.1:" in deleted
    assert "WARNING" in again
    assert "topic orders created again with 3 partitions, because it was used by request Metadata 13" in again
    assert "0 s after it was deleted by request DeleteTopics 5 from 127.0.0.1:" in again
    assert "topic orders created with 1 partitions by request CreateTopics 7" in made


def test_records_that_cannot_be_deleted_are_all_there(tmp_path: Path) -> None:
    """The start that can't be kept has not moved, and the request's other partitions are answered for themselves."""
    part = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
    asked = DeleteRecordsRequest.DeleteRecordsTopic(
        name="t", partitions=[part(partition_index=0, offset=0), part(partition_index=1, offset=1)]
    )
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t", 2)
        for number in (0, 1):
            assert produce(client, "t", number, batch_of(b"x")).error_code == 0
        (tmp_path / "log-start-offset-checkpoint.tmp").mkdir()
        found = client.ask(DeleteRecordsRequest(topics=[asked])).topics[0].partitions
        assert codes(found) == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        (tmp_path / "log-start-offset-checkpoint.tmp").rmdir()
        found = client.ask(DeleteRecordsRequest(topics=[asked])).topics[0].partitions
        assert [(ErrorCode.of(result.error_code), result.low_watermark) for result in found] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("delete", ErrorCode.NONE),
        ("compact,delete", ErrorCode.NONE),
        ("", ErrorCode.NONE),
        ("compact", ErrorCode.POLICY_VIOLATION),
    ],
)
def test_records_of_a_topic_that_only_compacts_cannot_be_deleted(
    client: RawClient, name: str, policy: str, code: ErrorCode
) -> None:
    """An empty policy keeps everything, except what an administrator deletes. Source: KIP-1161."""
    create_topic(client, name, cleanup_policy=policy)
    keyed = build_batch([BatchRecord(0, int(time.time() * 1000), b"k", b"v") for _ in range(3)])
    assert produce(client, name, 0, keyed).error_code == 0
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[part])
    result = client.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)).topics[0].partitions[0]
    assert (result.error_code, result.low_watermark) == (code, 2 if code is ErrorCode.NONE else -1)
