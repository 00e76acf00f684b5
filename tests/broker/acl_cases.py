"""A request of every API, with the rights that it needs: for our broker alone, and beside Apache Kafka.

Rights are texts: an operation, a kind of resource, and which of a case's resources (`Names`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kohort.broker.authorization import CLUSTER_NAME, Resource
from kohort.errors import ErrorCode
from kohort.ids import AclOperation, AclPattern, AclPermission
from kohort.wire.cluster_admin import (
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeClientQuotasRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kohort.wire.data import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from kohort.wire.discovery import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from kohort.wire.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kohort.wire.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kohort.wire.schema import Struct
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
)
from kohort.wire.streams_groups import StreamsGroupHeartbeatRequest
from kohort.wire.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import RawClient, batch_of, create_topic, fetch_request, produce, produce_request, topic_id
from tests.support.waiting import until

ADMIN_HOST, CLIENT_HOST = "127.0.0.1", "127.0.0.2"
"""The address that may do everything, and the one whose rights a test gives."""
EVERYTHING = [
    (Resource.TOPIC, "*"),
    (Resource.GROUP, "*"),
    (Resource.CLUSTER, CLUSTER_NAME),
    (Resource.TRANSACTIONAL_ID, "*"),
    (Resource.DELEGATION_TOKEN, "*"),
    (Resource.USER, "*"),
]
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Until the first rules: then a rule names every resource, and only the administrator's address is allowed."""
ZERO = uuid.UUID(int=0)


class Names(NamedTuple):
    """The resources of one case: two topics with a record entry, a group that has committed in both, and others."""

    t: str
    u: str
    g: str
    x: str
    new: str
    ids: dict[str, uuid.UUID]

    @classmethod
    def of(cls, prefix: str) -> Names:
        return cls(*(f"{prefix}-{field}" for field in cls._fields[:-1]), {})

    def name(self, key: str) -> str:
        return CLUSTER_NAME if key == "cluster" else str(getattr(self, key))


class Case(NamedTuple):
    """A request and the rights it needs.

    Attributes:
        shows: the resource that only a client with all rights sees in the answer; none: a missing right is an error.
        code: the error without a right, where the client could have another one instead.
    """

    api: str
    version: int
    rights: tuple[str, ...]
    make: Callable[[Names], Any]
    shows: str = ""
    code: ErrorCode | None = None

    def __str__(self) -> str:
        return f"{self.api}-{self.version}-{'+'.join(self.rights)}".replace(" ", "_")


def creation(kind: Resource, name: str, host: str, operation: AclOperation) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=AclPattern.LITERAL,
        principal="User:ANONYMOUS",
        host=host,
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )


def right(text: str, names: Names) -> tuple[AclOperation, Resource, str]:
    operation, kind, key = text.split()
    return AclOperation[operation], Resource[kind], names.name(key)


def grant(admin: RawClient, names: Names, rights: Iterable[str], host: str = CLIENT_HOST) -> None:
    """Give an address these rights and no others, and wait until they are in force."""
    wanted = {right(text, names) for text in rights}
    everything = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=AclPattern.ANY,
        principal_filter=None,
        host_filter=host,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
    )
    answer = admin.ask(DeleteAclsRequest(filters=[everything]))
    assert not error_codes(answer)
    made = [creation(kind, name, host, operation) for operation, kind, name in wanted]
    assert not error_codes(admin.ask(CreateAclsRequest(creations=made)))
    asked = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=AclPattern.ANY,
        principal_filter=None,
        host_filter=host,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
    )

    def in_force() -> bool:
        found = {
            (acl.operation, entry.resource_type, entry.resource_name)
            for entry in admin.ask(asked).resources
            for acl in entry.acls
        }
        return found == wanted

    until(in_force, "the rules are in force")


def take_over(admin: RawClient, host: str = ADMIN_HOST) -> None:
    """Allow the administrator's address everything, and all others nothing."""
    rules = [creation(kind, name, host, AclOperation.ALL) for kind, name in EVERYTHING]
    assert not error_codes(admin.ask(CreateAclsRequest(creations=rules)))


def prepare(admin: RawClient, names: Names) -> None:
    """Make the resources of a case."""
    for topic in (names.t, names.u):
        create_topic(admin, topic)
        until(lambda topic=topic: produce(admin, topic, 0, batch_of(b"x")).error_code == 0, f"{topic} takes records")
        names.ids[topic] = topic_id(admin, topic)
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic,
            partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
        )
        for topic in (names.t, names.u)
    ]
    request = OffsetCommitRequest(group_id=names.g, topics=topics)
    until(lambda: not error_codes(admin.ask(request, 9)), f"group {names.g} has offsets")
    init = InitProducerIdRequest(transactional_id=names.x, transaction_timeout_ms=60_000)
    until(lambda: admin.ask(init, 4).error_code == 0, f"{names.x} has a producer id")


def error_codes(value: Any) -> set[ErrorCode]:
    """All error codes of an answer, without NONE."""
    return {ErrorCode.of(code) for code in _codes(value)} - {ErrorCode.NONE}


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for entry in value:
            yield from _codes(entry)
    if isinstance(value, Struct):
        for field in value.FIELDS:
            inner = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield inner
            else:
                yield from _codes(inner)


def refusals(value: Any) -> set[ErrorCode]:
    """The error codes of an answer that name a missing right."""
    return {code for code in error_codes(value) if code.name.endswith("AUTHORIZATION_FAILED")}


# -- the requests


def _commit(request: Any, names: Names, *topics: str, by_id: bool = False, **fields: Any) -> Any:
    kind = type(request)
    topic_of = getattr(kind, f"{kind.__name__}Topic")
    part_of = getattr(kind, f"{kind.__name__}Partition")
    request.topics = [
        topic_of(
            **({"topic_id": names.ids[topic]} if by_id else {"name": topic}),
            partitions=[part_of(partition_index=0, committed_offset=1, committed_metadata="")],
        )
        for topic in topics
    ]
    return request


def _fetch_by_id(names: Names) -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic_id=names.ids[topic], partitions=[part]) for topic in (names.t, names.u)]
    return FetchRequest(topics=topics, max_bytes=1 << 20, min_bytes=1, max_wait_ms=0)


def _produce_by_id(names: Names) -> ProduceRequest:
    request = produce_request(names.t, 0, batch_of(b"x"))
    request.topic_data[0].topic_id = names.ids[names.t]
    return request


def _list_offsets(names: Names) -> ListOffsetsRequest:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[part]) for name in (names.t, names.u)]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


def _metadata(*topics: str, **fields: Any) -> MetadataRequest:
    make = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[make(name=topic) for topic in topics], **fields)


def _metadata_by_id(names: Names) -> MetadataRequest:
    make = MetadataRequest.MetadataRequestTopic
    asked = [make(name=None, topic_id=topic) for topic in names.ids.values()]
    return MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def _offset_fetch(names: Names, *topics: str, by_id: bool = False, every: bool = False) -> OffsetFetchRequest:
    make = OffsetFetchRequest.OffsetFetchRequestTopics
    asked = [
        make(**({"topic_id": names.ids[topic]} if by_id else {"name": topic}), partition_indexes=[0])
        for topic in topics
    ]
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=names.g, topics=None if every else asked)
    return OffsetFetchRequest(groups=[group])


def _old_offset_fetch(names: Names, *topics: str, every: bool = False) -> OffsetFetchRequest:
    make = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = [make(name=topic, partition_indexes=[0]) for topic in topics]
    return OffsetFetchRequest(group_id=names.g, topics=None if every else asked)


def _offset_delete(names: Names) -> OffsetDeleteRequest:
    part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=names.t, partitions=[part])
    return OffsetDeleteRequest(group_id=names.g, topics=[topic])


def _join(names: Names) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=names.new,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )


def _leave(names: Names) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id=names.g, members=[LeaveGroupRequest.MemberIdentity(member_id="m")])


def _beat(names: Names, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=names.new, member_id="m", member_epoch=0, rebalance_timeout_ms=10_000, topic_partitions=[], **fields
    )


def _create(*topics: str, **fields: Any) -> CreateTopicsRequest:
    make = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[make(name=topic, num_partitions=1, replication_factor=1) for topic in topics], timeout_ms=10_000
    )


def _delete(names: Names, by_id: bool = False) -> DeleteTopicsRequest:
    make = DeleteTopicsRequest.DeleteTopicState
    state = make(name=None, topic_id=names.ids[names.t]) if by_id else make(name=names.t)
    return DeleteTopicsRequest(topics=[state], topic_names=[names.t], timeout_ms=10_000)


def _delete_records(names: Names) -> DeleteRecordsRequest:
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=names.t, partitions=[part])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


def _epochs(names: Names) -> OffsetForLeaderEpochRequest:
    make = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(topics=[make(topic=names.t, partitions=[part])])


def _add_partitions(names: Names) -> AddPartitionsToTxnRequest:
    make = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=names.x,
        v3_and_below_producer_id=1,
        v3_and_below_topics=[make(name=names.t, partitions=[0]), make(name=names.u, partitions=[0])],
    )


def _add_for_brokers(names: Names) -> AddPartitionsToTxnRequest:
    kind = AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic(name=names.t, partitions=[0])
    make = kind.AddPartitionsToTxnTransaction
    return kind(transactions=[make(transactional_id=names.x, producer_id=1, verify_only=True, topics=[topic])])


def _txn_commit(names: Names, by_id: bool = False) -> Any:
    request = TxnOffsetCommitRequest(transactional_id=names.x, group_id=names.g, producer_id=1)
    return _commit(request, names, names.t, names.u, by_id=by_id)


def _markers(names: Names) -> WriteTxnMarkersRequest:
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=names.t, partition_indexes=[0])
    return kind(markers=[kind.WritableTxnMarker(producer_id=1_000, producer_epoch=0, topics=[topic])])


def _acl_filter(kind: Any, names: Names) -> Any:
    return kind(
        resource_type_filter=Resource.TOPIC,
        resource_name_filter=names.new,
        pattern_type_filter=AclPattern.LITERAL,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
        principal_filter=None,
        host_filter=None,
    )


def _configs(kind: Any, number: int, name: str) -> Any:
    if kind is DescribeConfigsRequest:
        return kind(
            resources=[
                kind.DescribeConfigsResource(
                    resource_type=number, resource_name=name, configuration_keys=["retention.ms", "message.max.bytes"]
                )
            ]
        )
    resource = kind.AlterConfigsResource(resource_type=number, resource_name=name, configs=[])
    return kind(resources=[resource], validate_only=True)


def _quotas(names: Names) -> AlterClientQuotasRequest:
    kind = AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="user", entity_name=names.new)
    ops = [kind.OpData(key="producer_byte_rate", value=1000.0)]
    return kind(entries=[kind.EntryData(entity=[entity], ops=ops)], validate_only=True)


def _reassign(names: Names) -> AlterPartitionReassignmentsRequest:
    kind = AlterPartitionReassignmentsRequest
    part = kind.ReassignablePartition(partition_index=0, replicas=None)
    return kind(topics=[kind.ReassignableTopic(name=names.t, partitions=[part])], timeout_ms=10_000)


def _elect(names: Names) -> ElectLeadersRequest:
    asked = ElectLeadersRequest.TopicPartitions(topic=names.t, partitions=[0])
    return ElectLeadersRequest(topic_partitions=[asked], timeout_ms=10_000)


def _move(names: Names) -> AlterReplicaLogDirsRequest:
    kind = AlterReplicaLogDirsRequest
    topic = kind.AlterReplicaLogDirTopic(name=names.t, partitions=[0])
    return kind(dirs=[kind.AlterReplicaLogDir(path="/nowhere", topics=[topic])])


def _quorum(_: Names) -> DescribeQuorumRequest:
    part = DescribeQuorumRequest.PartitionData(partition_index=0)
    return DescribeQuorumRequest(
        topics=[DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[part])]
    )


def _producers(names: Names) -> DescribeProducersRequest:
    make = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[make(name=name, partition_indexes=[0]) for name in (names.t, names.u)])


def _unset_user(names: Names) -> AlterUserScramCredentialsRequest:
    kind = AlterUserScramCredentialsRequest
    return kind(deletions=[kind.ScramCredentialDeletion(name=names.new, mechanism=1)])


def _described_topics(*topics: str) -> DescribeTopicPartitionsRequest:
    make = DescribeTopicPartitionsRequest.TopicRequest
    return DescribeTopicPartitionsRequest(topics=[make(name=topic) for topic in topics], response_partition_limit=2000)


TOPIC_TYPE, BROKER_TYPE, GROUP_TYPE = 2, 4, 32
_TWO = ("DESCRIBE TOPIC t", "DESCRIBE TOPIC u")
_READ_TWO = ("READ TOPIC t", "READ TOPIC u")
_X = "WRITE TRANSACTIONAL_ID x"
_ALTER, _DESCRIBE = ("ALTER CLUSTER cluster",), ("DESCRIBE CLUSTER cluster",)

_TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CASES: list[Case] = [
    Case("Produce", 11, ("WRITE TOPIC t",), lambda n: produce_request(n.t, 0, batch_of(b"x"))),
    Case("Produce", 13, ("WRITE TOPIC t",), _produce_by_id),
    Case(
        "Produce",
        11,
        (_X, "WRITE TOPIC t"),
        lambda n: produce_request(
            n.t,
            0,
            batch_of(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
            transactional_id=n.x,
        ),
    ),
    Case("Fetch", 12, ("READ TOPIC t",), lambda n: fetch_request(n.t, 0, 0, max_wait_ms=0)),
    Case("Fetch", 13, _READ_TWO, _fetch_by_id),
    Case("ListOffsets", 7, _TWO, _list_offsets),
    Case("Metadata", 12, _TWO, lambda n: _metadata(n.t, n.u, allow_auto_topic_creation=False)),
    Case("Metadata", 12, _TWO, _metadata_by_id),
    Case("Metadata", 12, ("DESCRIBE TOPIC t",), lambda n: MetadataRequest(topics=None), shows="t"),
    Case("Metadata", 4, ("DESCRIBE TOPIC new", "CREATE TOPIC new"), lambda n: _metadata(n.new)),
    Case(
        "Metadata", 4, ("DESCRIBE TOPIC new", "CREATE CLUSTER cluster"), lambda n: _metadata(n.new), code=_TOPIC_REFUSED
    ),
    Case("DescribeTopicPartitions", 0, _TWO, lambda n: _described_topics(n.t, n.u)),
    Case("DescribeTopicPartitions", 0, ("DESCRIBE TOPIC t",), lambda n: _described_topics(), shows="t"),
    Case(
        "OffsetCommit",
        9,
        ("READ GROUP g", *_READ_TWO),
        lambda n: _commit(OffsetCommitRequest(group_id=n.g), n, n.t, n.u),
    ),
    Case(
        "OffsetCommit",
        10,
        ("READ GROUP g", *_READ_TWO),
        lambda n: _commit(OffsetCommitRequest(group_id=n.g), n, n.t, n.u, by_id=True),
    ),
    Case("OffsetFetch", 1, ("DESCRIBE GROUP g", *_TWO), lambda n: _old_offset_fetch(n, n.t, n.u)),
    Case("OffsetFetch", 7, ("DESCRIBE GROUP g", *_TWO), lambda n: _old_offset_fetch(n, n.t, n.u)),
    Case("OffsetFetch", 7, ("DESCRIBE TOPIC t", "DESCRIBE GROUP g"), lambda n: _old_offset_fetch(n, every=True), "t"),
    Case("OffsetFetch", 9, ("DESCRIBE GROUP g", *_TWO), lambda n: _offset_fetch(n, n.t, n.u)),
    Case("OffsetFetch", 9, ("DESCRIBE TOPIC t", "DESCRIBE GROUP g"), lambda n: _offset_fetch(n, every=True), "t"),
    Case("OffsetFetch", 10, ("DESCRIBE GROUP g", *_TWO), lambda n: _offset_fetch(n, n.t, n.u, by_id=True)),
    Case("OffsetDelete", 0, ("DELETE GROUP g", "READ TOPIC t"), _offset_delete),
    Case("FindCoordinator", 3, ("DESCRIBE GROUP g",), lambda n: FindCoordinatorRequest(key=n.g)),
    Case("FindCoordinator", 4, ("DESCRIBE GROUP g",), lambda n: FindCoordinatorRequest(coordinator_keys=[n.g])),
    Case(
        "FindCoordinator",
        4,
        ("DESCRIBE TRANSACTIONAL_ID x",),
        lambda n: FindCoordinatorRequest(coordinator_keys=[n.x], key_type=1),
    ),
    Case("JoinGroup", 5, ("READ GROUP new",), _join),
    Case("Heartbeat", 4, ("READ GROUP g",), lambda n: HeartbeatRequest(group_id=n.g, generation_id=1, member_id="m")),
    Case("LeaveGroup", 5, ("READ GROUP g",), _leave),
    Case(
        "SyncGroup",
        5,
        ("READ GROUP g",),
        lambda n: SyncGroupRequest(
            group_id=n.g, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
        ),
    ),
    Case("DescribeGroups", 5, ("DESCRIBE GROUP g",), lambda n: DescribeGroupsRequest(groups=[n.g])),
    Case("ListGroups", 4, ("DESCRIBE GROUP g",), lambda n: ListGroupsRequest(), "g"),
    Case("ListGroups", 4, ("DESCRIBE CLUSTER cluster",), lambda n: ListGroupsRequest(), "g"),
    Case("DeleteGroups", 2, ("DELETE GROUP g",), lambda n: DeleteGroupsRequest(groups_names=[n.g])),
    Case("ConsumerGroupHeartbeat", 1, ("READ GROUP new", *_TWO), lambda n: _beat(n, subscribed_topic_names=[n.t, n.u])),
    Case("ConsumerGroupHeartbeat", 0, ("READ GROUP new", *_TWO), lambda n: _beat(n, subscribed_topic_names=[n.t, n.u])),
    Case("StreamsGroupHeartbeat", 1, ("READ GROUP new",), lambda n: StreamsGroupHeartbeatRequest(group_id=n.new)),
    Case("ConsumerGroupDescribe", 0, ("DESCRIBE GROUP g",), lambda n: ConsumerGroupDescribeRequest(group_ids=[n.g])),
    Case("CreateTopics", 7, ("CREATE TOPIC new", "DESCRIBE_CONFIGS TOPIC new"), lambda n: _create(n.new)),
    Case(
        "CreateTopics",
        7,
        ("CREATE CLUSTER cluster", "DESCRIBE_CONFIGS TOPIC new"),
        lambda n: _create(n.new),
        code=_TOPIC_REFUSED,
    ),
    Case("DeleteTopics", 6, ("DELETE TOPIC t",), _delete),
    Case("DeleteTopics", 5, ("DELETE TOPIC t",), _delete),
    Case("DeleteTopics", 6, ("DELETE TOPIC t",), lambda n: _delete(n, by_id=True)),
    Case("DeleteTopics", 6, ("DELETE CLUSTER cluster",), _delete, code=_TOPIC_REFUSED),
    Case("DeleteRecords", 2, ("DELETE TOPIC t",), _delete_records),
    Case(
        "CreatePartitions",
        3,
        ("ALTER TOPIC t",),
        lambda n: CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=n.t, count=2)], timeout_ms=10_000
        ),
    ),
    Case("InitProducerId", 4, (_X,), lambda n: InitProducerIdRequest(transactional_id=n.x, transaction_timeout_ms=999)),
    Case(
        "InitProducerId",
        4,
        ("WRITE TOPIC t",),
        lambda n: InitProducerIdRequest(transactional_id=None),
        code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
    Case(
        "InitProducerId",
        4,
        ("IDEMPOTENT_WRITE CLUSTER cluster",),
        lambda n: InitProducerIdRequest(transactional_id=None),
    ),
    Case("OffsetForLeaderEpoch", 4, ("DESCRIBE TOPIC t",), _epochs),
    Case("OffsetForLeaderEpoch", 4, ("CLUSTER_ACTION CLUSTER cluster",), _epochs, code=_TOPIC_REFUSED),
    Case("AddPartitionsToTxn", 3, (_X, "WRITE TOPIC t", "WRITE TOPIC u"), _add_partitions),
    Case("AddPartitionsToTxn", 5, ("CLUSTER_ACTION CLUSTER cluster",), _add_for_brokers),
    Case(
        "AddOffsetsToTxn",
        4,
        (_X, "READ GROUP g"),
        lambda n: AddOffsetsToTxnRequest(transactional_id=n.x, group_id=n.g, producer_id=1),
    ),
    Case("EndTxn", 4, (_X,), lambda n: EndTxnRequest(transactional_id=n.x, producer_id=1)),
    Case("TxnOffsetCommit", 4, (_X, "READ GROUP g", *_READ_TWO), _txn_commit),
    Case("TxnOffsetCommit", 6, (_X, "READ GROUP g", *_READ_TWO), lambda n: _txn_commit(n, by_id=True)),
    Case("WriteTxnMarkers", 1, _ALTER, _markers),
    Case("WriteTxnMarkers", 1, ("CLUSTER_ACTION CLUSTER cluster",), _markers),
    Case("DescribeProducers", 0, _READ_TWO, _producers),
    Case(
        "DescribeTransactions",
        0,
        ("DESCRIBE TRANSACTIONAL_ID x",),
        lambda n: DescribeTransactionsRequest(transactional_ids=[n.x]),
    ),
    Case("ListTransactions", 1, ("DESCRIBE TRANSACTIONAL_ID x",), lambda n: ListTransactionsRequest(), "x"),
    Case("DescribeAcls", 3, _DESCRIBE, lambda n: _acl_filter(DescribeAclsRequest, n)),
    Case(
        "CreateAcls",
        3,
        _ALTER,
        lambda n: CreateAclsRequest(creations=[creation(Resource.TOPIC, n.new, "127.0.0.9", AclOperation.READ)]),
    ),
    Case(
        "DeleteAcls",
        3,
        _ALTER,
        lambda n: DeleteAclsRequest(filters=[_acl_filter(DeleteAclsRequest.DeleteAclsFilter, n)]),
    ),
    *[
        Case(kind.__name__.removesuffix("Request"), kind.MAX_VERSION, (f"{operation} {resource}",), make)
        for kind, operation in (
            (DescribeConfigsRequest, "DESCRIBE_CONFIGS"),
            (AlterConfigsRequest, "ALTER_CONFIGS"),
            (IncrementalAlterConfigsRequest, "ALTER_CONFIGS"),
        )
        for resource, make in (
            ("TOPIC t", lambda n, kind=kind: _configs(kind, TOPIC_TYPE, n.t)),
            ("GROUP g", lambda n, kind=kind: _configs(kind, GROUP_TYPE, n.g)),
            ("CLUSTER cluster", lambda n, kind=kind: _configs(kind, BROKER_TYPE, "1")),
        )
    ],
    Case("ListConfigResources", 0, ("DESCRIBE_CONFIGS CLUSTER cluster",), lambda n: ListConfigResourcesRequest()),
    Case("DescribeClientQuotas", 1, ("DESCRIBE_CONFIGS CLUSTER cluster",), lambda n: DescribeClientQuotasRequest()),
    Case("AlterClientQuotas", 1, ("ALTER_CONFIGS CLUSTER cluster",), _quotas),
    Case("DescribeUserScramCredentials", 0, _DESCRIBE, lambda n: DescribeUserScramCredentialsRequest(users=None)),
    Case("AlterUserScramCredentials", 0, _ALTER, _unset_user),
    Case("AlterPartitionReassignments", 0, _ALTER, _reassign),
    Case("ListPartitionReassignments", 0, _DESCRIBE, lambda n: ListPartitionReassignmentsRequest(topics=None)),
    Case("ElectLeaders", 2, _ALTER, _elect),
    Case("AlterReplicaLogDirs", 2, _ALTER, _move),
    Case("DescribeLogDirs", 4, _DESCRIBE, lambda n: DescribeLogDirsRequest(topics=[])),
    Case("DescribeQuorum", 1, _DESCRIBE, _quorum),
    Case("UpdateFeatures", 1, _ALTER, lambda n: UpdateFeaturesRequest(timeout_ms=10_000)),
]
