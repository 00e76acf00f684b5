"""Rights that are given and taken away while clients run: sessions, waiting requests, patterns, lists, real clients.

The clients come from 127.0.0.1 and the administrator from 127.0.0.2, because not every client can choose its address.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kohort import Broker, Consumer, Producer
from kohort.errors import ErrorCode, NotAuthorizedError
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import CreatePartitionsRequest, DescribeClusterRequest, MetadataRequest
from kohort.wire.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kohort.wire.offsets import OffsetCommitRequest
from kohort.wire.transactions import AddPartitionsToTxnRequest, DescribeTransactionsRequest, InitProducerIdRequest
from tests.broker.acl_cases import SETTINGS, Names, error_codes, grant, prepare, take_over
from tests.broker.raw import RawClient, batch_of, create_topic, fetch_request, produce, topic_id
from tests.support.waiting import until

CLIENT, ADMIN = "127.0.0.1", "127.0.0.2"
TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
Grant = Callable[..., None]
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": 0, "push.min.session.timeout.ms": 600}
    with Broker(tmp_path_factory.mktemp("guarded"), settings) as broker:
        with RawClient(broker.bootstrap_servers, host=ADMIN) as admin:
            take_over(admin, ADMIN)
        yield broker.bootstrap_servers


@pytest.fixture
def admin(guarded: str) -> Iterator[RawClient]:
    with RawClient(guarded, host=ADMIN) as admin:
        yield admin


@pytest.fixture
def client(guarded: str) -> Iterator[RawClient]:
    with RawClient(guarded, host=CLIENT) as client:
        yield client


@pytest.fixture
def names(admin: RawClient) -> Names:
    names = Names.of(f"r{next(_runs)}")
    prepare(admin, names)
    return names


@pytest.fixture
def allow(admin: RawClient, names: Names) -> Grant:
    """Give the clients these rights and no others."""
    return lambda *rights: grant(admin, names, rights, CLIENT)


# -- what is under way


def test_right_taken_away_counts_at_the_next_fetch_of_a_session(client: RawClient, names: Names, allow: Grant) -> None:
    allow("READ TOPIC t")
    answer = client.ask(fetch_request(names.t, 0, 0, session_epoch=0), 12)
    assert answer.session_id
    assert answer.responses[0].partitions[0].error_code == 0

    def next_fetch(epoch: int) -> FetchRequest:
        return FetchRequest(
            session_id=answer.session_id, session_epoch=epoch, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20
        )

    allow()
    refused = client.ask(next_fetch(1), 12)
    assert [part.error_code for part in refused.responses[0].partitions] == [TOPIC_REFUSED]
    assert not refused.responses[0].partitions[0].records
    allow("READ TOPIC t")
    assert client.ask(next_fetch(2), 12).responses[0].partitions[0].error_code == 0


@pytest.mark.parametrize("by_id", [False, True])
def test_right_taken_away_counts_for_a_fetch_that_waits(
    client: RawClient, admin: RawClient, names: Names, allow: Grant, by_id: bool
) -> None:
    allow("READ TOPIC t")
    request = fetch_request(names.t, 0, 1, max_wait_ms=60_000)
    request.topics[0].topic_id = names.ids[names.t]
    client.send(request, 13 if by_id else 12)
    allow()
    assert produce(admin, names.t, 0, batch_of(b"secret")).error_code == 0
    part = client.receive().responses[0].partitions[0]
    assert (part.error_code, bytes(part.records)) == (TOPIC_REFUSED, b"")


# -- groups


def test_right_taken_away_counts_for_a_repeated_commit(client: RawClient, names: Names, allow: Grant) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=names.t, partitions=[part])
    commit = OffsetCommitRequest(group_id=names.new, topics=[topic])

    def codes() -> list[int]:
        return [client.ask(commit, 8).topics[0].partitions[0].error_code for _ in range(4)]

    allow("READ GROUP new", "READ TOPIC t")
    assert codes() == [0] * 4
    allow("READ GROUP new")
    assert codes() == [TOPIC_REFUSED] * 4
    allow("READ TOPIC t")
    assert codes() == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 4
    allow("READ GROUP new", "READ TOPIC t")
    assert codes() == [0] * 4


def beat(names: Names, **fields: object) -> ConsumerGroupHeartbeatRequest:
    values = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 10_000, "topic_partitions": [], **fields}
    return ConsumerGroupHeartbeatRequest(group_id=names.new, **values)


def assigned(client: RawClient, names: Names, answer: object) -> set[str]:
    """Heartbeat until the member has an assignment; the names of its topics."""
    by_id = {number: topic for topic, number in names.ids.items()}
    found: set[str] = set()

    def look() -> bool:
        nonlocal answer
        if answer.error_code == 0 and answer.assignment is not None and answer.assignment.topic_partitions:
            found.update(by_id.get(part.topic_id, "unknown") for part in answer.assignment.topic_partitions)
            return True
        answer = client.ask(beat(names, member_epoch=answer.member_epoch))
        return False

    until(look, "an assignment")
    return found


def test_causes_of_rebalances_do_not_name_topics_that_the_client_may_not_describe(
    client: RawClient, admin: RawClient, names: Names, allow: Grant
) -> None:
    """A group that has no members any more told the topics that they had read."""

    def causes(of: RawClient) -> set[str]:
        described = of.ask(ConsumerGroupDescribeRequest(group_ids=[names.new], rebalances=10), 1).groups[0]
        return {cause.text for rebalance in described.rebalances for cause in rebalance.causes}

    allow("READ GROUP new", "DESCRIBE TOPIC t")
    answer = client.ask(beat(names, subscribed_topic_names=[names.t]))
    assigned(client, names, answer)
    more = CreatePartitionsRequest.CreatePartitionsTopic(name=names.t, count=40, assignments=None)
    assert admin.ask(CreatePartitionsRequest(topics=[more], timeout_ms=10_000)).results[0].error_code == 0
    text = f"subscribed topics changed: {names.t}"
    until(lambda: text in causes(admin), "the group has seen its topic grow")
    assert text in causes(client)
    assert client.ask(beat(names, member_epoch=-1)).error_code == 0
    allow("DESCRIBE GROUP new")
    assert "subscribed topics changed" in causes(client)
    assert not any(names.t in text for text in causes(client))
    assert text in causes(admin)


def test_pattern_of_a_consumer_selects_only_topics_that_it_may_describe(
    client: RawClient, admin: RawClient, names: Names, allow: Grant
) -> None:
    allow("READ GROUP new", "DESCRIBE TOPIC t")
    pattern = names.t.removesuffix("-t") + "-.*"
    answer = client.ask(beat(names, subscribed_topic_regex=pattern))
    assert assigned(client, names, answer) == {names.t}
    described = admin.ask(ConsumerGroupDescribeRequest(group_ids=[names.new]), 0).groups[0]
    assert {part.topic_name for part in described.members[0].target_assignment.topic_partitions} == {names.t}
    late = Names.of(f"{names.t.removesuffix('-t')}-late")
    allow("READ GROUP new", *("DESCRIBE TOPIC t", "DESCRIBE TOPIC u"))
    create_topic(admin, late.t)  # patterns are resolved again
    names.ids[late.t] = topic_id(admin, late.t)

    def both() -> bool:
        client.ask(beat(names, member_epoch=answer.member_epoch))
        described = admin.ask(ConsumerGroupDescribeRequest(group_ids=[names.new]), 0).groups[0]
        found = {part.topic_name for part in described.members[0].target_assignment.topic_partitions}
        assert late.t not in found
        return found == {names.t, names.u}

    until(both, "the topic that may be described now")


def test_group_with_hidden_topics_is_not_described(
    client: RawClient, admin: RawClient, names: Names, allow: Grant
) -> None:
    answer = admin.ask(beat(names, subscribed_topic_names=[names.t, names.u]))
    assert assigned(admin, names, answer) == {names.t, names.u}
    allow("DESCRIBE GROUP new", "DESCRIBE TOPIC t")
    request = ConsumerGroupDescribeRequest(group_ids=[names.new])
    (group,) = client.ask(request, 0).groups
    assert (group.error_code, group.members) == (TOPIC_REFUSED, [])
    assert group.error_message == "The group has described topic(s) that the client is not authorized to describe."
    allow("DESCRIBE GROUP new", "DESCRIBE TOPIC t", "DESCRIBE TOPIC u")
    (group,) = client.ask(request, 0).groups
    assert (group.error_code, len(group.members)) == (0, 1)


def test_responses_list_the_operations_that_a_client_may_do(client: RawClient, names: Names, allow: Grant) -> None:
    """KIP-430."""
    read, describe, alter, describe_configs = 1 << 3, 1 << 8, 1 << 7, 1 << 10
    asked = [MetadataRequest.MetadataRequestTopic(name=names.t)]
    metadata = MetadataRequest(
        topics=asked, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    allow("READ TOPIC t", "READ GROUP g", "DESCRIBE_CONFIGS CLUSTER cluster")
    answer = client.ask(metadata, 10)
    assert answer.topics[0].topic_authorized_operations == read | describe
    assert answer.cluster_authorized_operations == 0, "not without the right to describe the cluster"
    groups = DescribeGroupsRequest(groups=[names.g], include_authorized_operations=True)
    assert client.ask(groups, 5).groups[0].authorized_operations == read | describe
    allow("ALTER CLUSTER cluster", "DESCRIBE_CONFIGS CLUSTER cluster")
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert client.ask(cluster).cluster_authorized_operations == alter | describe | describe_configs


def test_transaction_is_described_without_hidden_topics(
    client: RawClient, admin: RawClient, names: Names, allow: Grant
) -> None:
    made = admin.ask(InitProducerIdRequest(transactional_id=names.x, transaction_timeout_ms=60_000), 4)
    make = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    added = admin.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=names.x,
            v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=[make(name=names.t, partitions=[0]), make(name=names.u, partitions=[0])],
        ),
        3,
    )
    assert not error_codes(added)
    allow("DESCRIBE TRANSACTIONAL_ID x", "DESCRIBE TOPIC u")
    (state,) = client.ask(DescribeTransactionsRequest(transactional_ids=[names.x])).transaction_states
    assert [topic.topic for topic in state.topics] == [names.u]


def test_groups_are_listed_without_hidden_ones(client: RawClient, names: Names, allow: Grant) -> None:
    allow("DESCRIBE GROUP g")
    assert [group.group_id for group in client.ask(ListGroupsRequest(), 4).groups] == [names.g]
    allow()
    answer = client.ask(ListGroupsRequest(), 4)
    assert (answer.error_code, answer.groups) == (0, [])


# -- push consumers and real clients


def test_pattern_of_a_push_consumer_selects_only_topics_that_it_may_read(
    guarded: str, names: Names, allow: Grant
) -> None:
    allow("READ GROUP new", "READ TOPIC t", "DESCRIBE TOPIC u")
    with Consumer(guarded, group_id=names.new, group_protocol="push", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern=names.t.removesuffix("-t") + "-.*")
        until(lambda: consumer.poll(200) is not None and bool(consumer.assignment()), "an assignment")
        assert {part.topic for part in consumer.assignment()} == {names.t}


@pytest.mark.parametrize("protocol", ["classic", "consumer", "push"])
def test_consumer_ends_with_the_error_when_its_right_is_taken_away(
    guarded: str, names: Names, allow: Grant, protocol: str
) -> None:
    allow("READ GROUP new", "READ TOPIC t", "DESCRIBE TOPIC t")
    timeout = {"session_timeout_ms": 600} if protocol == "push" else {}
    with Consumer(
        guarded, group_id=names.new, group_protocol=protocol, auto_offset_reset="earliest", **timeout
    ) as consumer:
        consumer.subscribe([names.t])
        until(lambda: consumer.poll(200) is not None and bool(consumer.assignment()), "an assignment")
        allow("READ TOPIC t")

        def refused() -> bool:
            try:
                consumer.poll(200)
            except NotAuthorizedError as error:
                return error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
            return False

        until(refused, "the consumer is told")


def test_producer_needs_the_right_to_write(guarded: str, names: Names, allow: Grant) -> None:
    allow("DESCRIBE TOPIC t")
    with Producer(guarded) as producer, pytest.raises(NotAuthorizedError):
        producer.send(names.t, value=b"x").result()
    allow("WRITE TOPIC t")
    with Producer(guarded) as producer:
        assert producer.send(names.t, value=b"x").result().offset == 1


def test_producer_without_a_transaction_can_not_open_one_behind_another_batch(
    client: RawClient, names: Names, allow: Grant
) -> None:
    """Readers of committed records would wait for ever: nobody ends such a transaction."""
    allow("WRITE TOPIC t")
    open_batch = batch_of(b"open", producer_id=4711, producer_epoch=0, base_sequence=0, transactional=True)
    foreign = batch_of(b"foreign", producer_id=4711, producer_epoch=7, base_sequence=0)
    alone = produce(client, names.t, 0, open_batch).error_code
    assert alone == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for behind in (open_batch, foreign):
        assert produce(client, names.t, 0, batch_of(b"plain") + behind).error_code == ErrorCode.INVALID_RECORD
    assert produce(client, names.t, 0, batch_of(b"plain") + batch_of(b"plain")).error_code == 0


def test_librdkafka_makes_finds_and_deletes_rules(guarded: str, admin: RawClient, names: Names, allow: Grant) -> None:
    allow("ALTER CLUSTER cluster")
    librdkafka = AdminClient({"bootstrap.servers": guarded})
    kinds = ResourceType, ResourcePatternType, AclOperation, AclPermissionType
    topic, pattern, operation, permission = kinds
    rule = AclBinding(
        topic.TOPIC, names.new, pattern.PREFIXED, "User:zoe", "10.0.0.1", operation.WRITE, permission.DENY
    )
    for future in librdkafka.create_acls([rule]).values():
        assert future.result(30) is None
    wanted = AclBindingFilter(
        topic.TOPIC, f"{names.new}-more", pattern.MATCH, None, None, operation.ANY, permission.ANY
    )
    found = [entry for entry in librdkafka.describe_acls(wanted).result(30) if entry.principal == "User:zoe"]
    assert found == [rule]
    exact = AclBindingFilter(topic.TOPIC, names.new, pattern.PREFIXED, "User:zoe", None, operation.ANY, permission.ANY)
    (deleted,) = librdkafka.delete_acls([exact]).values()
    assert deleted.result(30) == [rule]
    allow("DESCRIBE CLUSTER cluster")
    (refused,) = librdkafka.create_acls([rule]).values()
    with pytest.raises(confluent_kafka.KafkaException) as reported:
        refused.result(30)
    assert reported.value.args[0].code() == confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_librdkafka_produces_and_consumes_with_rights_and_gets_errors_without(
    guarded: str, names: Names, allow: Grant
) -> None:
    reported: list[object] = []

    def send() -> object:
        producer = confluent_kafka.Producer({"bootstrap.servers": guarded, "message.timeout.ms": 20_000})
        producer.produce(names.t, b"x", on_delivery=lambda error, _: reported.append(error))
        assert producer.flush(30) == 0
        return reported[-1]

    allow("DESCRIBE TOPIC t")
    refused = send()
    assert refused is not None
    assert refused.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow("WRITE TOPIC t")
    assert send() is None
    settings = {"bootstrap.servers": guarded, "group.id": names.new, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe([names.t])
        allow("READ TOPIC t")

        def group_refused() -> bool:
            message = consumer.poll(0.2)
            error = message and message.error()
            return bool(error) and error.code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED

        until(group_refused, "the consumer is told")
        allow("READ TOPIC t", "READ GROUP new")
        read: list[bytes | None] = []

        def all_read() -> bool:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                read.append(message.value())
            return read == [b"x", b"x"]

        until(all_read, "both records")
    finally:
        consumer.close()
