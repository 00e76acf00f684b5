"""Administration of a cluster: leaders, reassignments, log folders, quorum, features, ACLs, users, quotas, SASL."""

from __future__ import annotations

import math
from typing import Any

from kohort.wire.cluster_admin import (
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeClientQuotasRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kohort.wire.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kohort.wire.transactions import WriteTxnMarkersRequest
from tests.peers.alike.harness import Side, scenario


def without_words(answer: Any) -> None:
    """Only whether there is a text: brokers have their own words."""
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name == "error_message" and value:
            answer.error_message = "words"
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "FIELDS"):
                without_words(item)


def listed(wanted: dict[str, list[int]], make: Any, name: str = "topic", parts: str = "partitions") -> list[Any]:
    return [make(**{name: topic, parts: indexes}) for topic, indexes in wanted.items()]


@scenario(DescribeQuorumRequest)
def quorums(side: Side, version: int) -> None:
    topic, part = DescribeQuorumRequest.TopicData, DescribeQuorumRequest.PartitionData

    def keep(answer: Any) -> None:
        """Offsets, epochs and times are each side's own; that one replica is at the log's end is not."""
        without_words(answer)
        for found in (part for topic in answer.topics for part in topic.partitions):
            for replica in (*found.current_voters, *found.observers):
                replica.log_end_offset -= found.high_watermark
                replica.last_caught_up_timestamp = min(replica.last_caught_up_timestamp, 1)
                replica.last_fetch_timestamp = min(replica.last_fetch_timestamp, 1)
            found.high_watermark, found.leader_epoch = 0, min(found.leader_epoch, 1)
        for node in answer.nodes:
            node.listeners = node.listeners[:1]
            for listener in node.listeners:
                listener.name = "a listener"

    for wanted in (
        {"__cluster_metadata": [0]},
        {"__cluster_metadata": [1]},
        {"__cluster_metadata": [0, 1]},
        {"__cluster_metadata": []},
        {side.name("other"): [0]},
        {"__cluster_metadata": [0], side.name("other"): [0]},
        {"": [0]},
        {},
    ):
        topics = [
            topic(topic_name=name, partitions=[part(partition_index=index) for index in indexes])
            for name, indexes in wanted.items()
        ]
        side.ask(DescribeQuorumRequest(topics=topics), version, keep=keep)


@scenario(ElectLeadersRequest)
def elections(side: Side, version: int) -> None:
    topic = side.topic()

    def of_this_run(answer: Any) -> None:
        results = answer.replica_election_results
        answer.replica_election_results = [result for result in results if result.topic.startswith(side.prefix)]

    make = ElectLeadersRequest.TopicPartitions
    for kind in (0, 1, 2) if version else (0,):
        for wanted in ({topic: [0, 1, 7]}, {side.name("missing"): [0]}, {"": [0]}, {topic: []}, {}):
            side.ask(
                ElectLeadersRequest(election_type=kind, topic_partitions=listed(wanted, make)),
                version,
                keep=without_words,
            )
        side.ask(ElectLeadersRequest(election_type=kind, topic_partitions=None), version, keep=of_this_run)


@scenario(AlterPartitionReassignmentsRequest)
def reassignments(side: Side, version: int) -> None:
    topic = side.topic()
    make = AlterPartitionReassignmentsRequest.ReassignableTopic
    part = AlterPartitionReassignmentsRequest.ReassignablePartition
    for name, index, replicas in (
        (topic, 0, [1]),
        (topic, 0, None),
        (topic, 0, []),
        (topic, 0, [7]),
        (topic, 0, [1, 7]),
        (topic, 0, [1, 1]),
        (topic, 0, [-1]),
        (topic, 7, [1]),
        (topic, 7, None),
        (side.name("missing"), 0, [1]),
    ):
        asked = [make(name=name, partitions=[part(partition_index=index, replicas=replicas)])]
        side.ask(AlterPartitionReassignmentsRequest(topics=asked), version, keep=without_words)
        side.ask(ListPartitionReassignmentsRequest(topics=None), 0, keep=without_words)
    side.ask(AlterPartitionReassignmentsRequest(), version, keep=without_words)


@scenario(ListPartitionReassignmentsRequest)
def lists_of_reassignments(side: Side, version: int) -> None:
    topic = side.topic()
    make = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    for wanted in ({topic: [0]}, {side.name("missing"): [0]}, {}):
        asked = listed(wanted, make, "name", "partition_indexes")
        side.ask(ListPartitionReassignmentsRequest(topics=asked), version, keep=without_words)


@scenario(DescribeLogDirsRequest)
def log_folders(side: Side, version: int) -> None:
    topic = side.topic()
    side.produce(topic, 0, b"a", b"b")
    make = DescribeLogDirsRequest.DescribableLogDirTopic

    def keep(answer: Any) -> None:
        for result in answer.results:
            result.log_dir = "folder"
            result.total_bytes, result.usable_bytes = min(result.total_bytes, 1), min(result.usable_bytes, 1)
            result.topics = [entry for entry in result.topics if entry.name.startswith(side.prefix)]

    for wanted in ({topic: [0, 1, 7]}, {side.name("missing"): [0]}, {topic: []}, {}):
        side.ask(DescribeLogDirsRequest(topics=listed(wanted, make)), version, keep=keep)
    side.ask(DescribeLogDirsRequest(topics=None), version, keep=keep)


@scenario(UpdateFeaturesRequest)
def features(side: Side, version: int) -> None:
    make = UpdateFeaturesRequest.FeatureUpdateKey
    for name, level, kind in (
        ("transaction.version", 2, 1),
        ("transaction.version", 3, 1),
        ("transaction.version", 1, 1),
        ("unheard", 1, 1),
        ("", 1, 1),
        ("group.version", -1, 1),
        ("group.version", 1, 9),
    ):
        asked = [make(feature=name, max_version_level=level, upgrade_type=kind)]
        side.ask(
            UpdateFeaturesRequest(feature_updates=asked, validate_only=True),
            version or 1,
            keep=without_words,
        )
    side.ask(UpdateFeaturesRequest(), version, keep=without_words)


@scenario(DescribeAclsRequest)
def acls(side: Side, version: int) -> None:
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    nulls = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    side.ask(DescribeAclsRequest(**anything, **nulls), version, keep=without_words)
    creation = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    side.ask(CreateAclsRequest(creations=[creation, creation]), version, keep=without_words)
    side.ask(CreateAclsRequest(), version, keep=without_words)
    side.ask(
        DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**anything, **nulls)] * 2),
        version,
        keep=without_words,
    )
    side.ask(DeleteAclsRequest(), version, keep=without_words)


@scenario(AlterUserScramCredentialsRequest)
def users(side: Side, version: int) -> None:
    name, other = side.name("user"), side.name("other")

    def described(*names: str, known: tuple[int, ...] | None = None) -> None:
        """Users have credentials; `known`: how many each has by now.

        Kafka's brokers hear of them after the change is acknowledged.
        """

        def asked() -> DescribeUserScramCredentialsRequest:
            users = [DescribeUserScramCredentialsRequest.UserName(name=entry) for entry in names]
            return DescribeUserScramCredentialsRequest(users=users)

        def is_known(answer: Any) -> bool:
            found = {result.user: len(result.credential_infos) for result in answer.results}
            return known is None or tuple(found[entry] for entry in names) == known

        side.until(asked, 0, is_known, keep=without_words)

    def altered(deletions: list[tuple[str, int]], upsertions: list[tuple[str, int, int]]) -> None:
        side.ask(
            AlterUserScramCredentialsRequest(
                deletions=[
                    AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)
                    for user, mechanism in deletions
                ],
                upsertions=[
                    AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                        name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"x" * 32
                    )
                    for user, mechanism, iterations in upsertions
                ],
            ),
            version,
            keep=without_words,
        )

    described(name)
    described(name, name)
    described("")
    altered([], [(name, 1, 4096), (name, 2, 8192)])
    described(name)
    described(name, other)
    for upsertion in ((name, 1, 4095), (name, 1, 16385), (name, 0, 4096), (name, 9, 4096), ("", 1, 4096)):
        altered([], [upsertion])
    altered([], [(other, 1, 4096), (other, 1, 4097)])
    altered([(other, 1)], [])
    altered([(name, 1)], [(name, 1, 5000)])
    altered([(name, 9)], [])
    altered([(name, 1)], [(other, 2, 4096)])
    described(name, other, known=(0, 1))
    altered([(name, 2), (other, 2)], [])
    described(name)
    altered([], [])


@scenario(AlterClientQuotasRequest)
def quotas(side: Side, version: int) -> None:
    user, client = side.name("user"), side.name("client")
    entity, op = AlterClientQuotasRequest.EntityData, AlterClientQuotasRequest.OpData
    component = DescribeClientQuotasRequest.ComponentData

    def altered(
        names: dict[str, str | None], ops: list[tuple[str, float, bool]], *, validate_only: bool = False
    ) -> None:
        entry = AlterClientQuotasRequest.EntryData(
            entity=[entity(entity_type=kind, entity_name=name) for kind, name in names.items()],
            ops=[op(key=key, value=value, remove=remove) for key, value, remove in ops],
        )
        side.ask(AlterClientQuotasRequest(entries=[entry], validate_only=validate_only), version, keep=without_words)

    def described(*components: tuple[str, int, str | None], strict: bool = False, entries: int | None = None) -> None:
        """Ask; with `entries` until there are so many: Kafka's broker learns of a change a moment later."""
        asked = [component(entity_type=kind, match_type=match, match=name) for kind, match, name in components]

        def make() -> DescribeClientQuotasRequest:
            return DescribeClientQuotasRequest(components=asked, strict=strict)

        side.until(make, version, lambda answer: entries in (None, len(answer.entries or ())), keep=in_order)

    def in_order(answer: Any) -> None:
        without_words(answer)
        for entry in answer.entries or ():
            entry.entity.sort(key=lambda each: each.entity_type)
            entry.values.sort(key=lambda each: each.key)

    described(("user", 0, user))
    altered({"user": user}, [("producer_byte_rate", 1000.0, False), ("consumer_byte_rate", 2000.0, False)])
    altered({"user": user, "client-id": client}, [("request_percentage", 50.5, False)])
    altered({"client-id": client}, [("producer_byte_rate", 7.0, False)])
    described(("client-id", 0, client), strict=True, entries=1)
    described(("user", 0, user))
    described(("user", 0, user), strict=True)
    described(("user", 0, user), ("client-id", 0, client))
    described(("user", 0, user), ("client-id", 2, None))
    described(("client-id", 0, client), strict=True)
    described(("user", 1, None))
    described(("user", 2, None), ("client-id", 1, None))
    for ops in (
        [("unheard", 1.0, False)],
        [("producer_byte_rate", -1.0, False)],
        [("producer_byte_rate", 0.0, False)],
        [("producer_byte_rate", 1.5, False)],
        [("producer_byte_rate", math.nan, False)],
        [("producer_byte_rate", 2.0**64, False)],
        [("request_percentage", math.inf, False)],
        [("request_percentage", -math.inf, False)],
        [("controller_mutation_rate", math.nan, False)],
        [("connection_creation_rate", 1.0, False)],
        [("producer_byte_rate", 0.0, True)],
    ):
        altered({"user": user}, ops)
    altered({"user": user}, [("producer_byte_rate", 5000.0, False)], validate_only=True)
    altered({"unheard": user}, [("producer_byte_rate", 5000.0, False)])
    altered({"user": ""}, [("producer_byte_rate", 5000.0, False)])
    altered({}, [("producer_byte_rate", 5000.0, False)])
    altered({"ip": "127.0.0.9"}, [("connection_creation_rate", 100.0, False)])
    altered({"ip": "127.0.0.9"}, [("producer_byte_rate", 100.0, False)])
    altered({"ip": "127.0.0.9"}, [("connection_creation_rate", 2.0**31, False)])
    altered({"ip": "127.0.0.9"}, [("connection_creation_rate", math.inf, False)])
    altered({"ip": "not an address"}, [("connection_creation_rate", 100.0, False)])
    altered({"ip": "127.0.0.9", "user": user}, [("connection_creation_rate", 100.0, False)])
    described(("ip", 0, "127.0.0.9"), entries=1)
    described(("unheard", 0, "x"))
    described(("user", 9, None))
    described(("user", 0, None))
    described(("user", 0, user), ("user", 0, user))
    described(("user", 0, user), ("ip", 0, "127.0.0.9"))
    altered({"user": user}, [("producer_byte_rate", 0.0, True), ("consumer_byte_rate", 0.0, True)])
    altered({"user": user, "client-id": client}, [("request_percentage", 0.0, True)])
    altered({"client-id": client}, [("producer_byte_rate", 0.0, True)])
    altered({"ip": "127.0.0.9"}, [("connection_creation_rate", 0.0, True)])
    described(("ip", 0, "127.0.0.9"), entries=0)
    described(("user", 0, user))


@scenario(SaslHandshakeRequest)
def sasl_on_a_plain_listener(side: Side, version: int) -> None:
    side.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
    side.ask(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), version, keep=without_words)


@scenario(WriteTxnMarkersRequest)
def markers(side: Side, version: int) -> None:
    topic = side.topic()
    make, part = WriteTxnMarkersRequest.WritableTxnMarker, WriteTxnMarkersRequest.WritableTxnMarkerTopic
    for name, indexes, epoch in ((topic, [0], 0), (topic, [0, 7], 0), (side.name("missing"), [0], 0), (topic, [1], -1)):
        marker = make(
            producer_id=8_000_000 + version,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[part(name=name, partition_indexes=indexes)],
            coordinator_epoch=0,
        )
        side.ask(WriteTxnMarkersRequest(markers=[marker]), version)
    side.ask(WriteTxnMarkersRequest(), version)


@scenario(AlterReplicaLogDirsRequest)
def moves_to_other_folders(side: Side, version: int) -> None:
    topic = side.topic()
    make, wanted = AlterReplicaLogDirsRequest.AlterReplicaLogDir, AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    for path in ("/no/such/folder", "relative", ""):
        for name in (topic, side.name("missing")):
            asked = [make(path=path, topics=[wanted(name=name, partitions=[0, 7])])]
            side.ask(AlterReplicaLogDirsRequest(dirs=asked), version)
    here = side.silently(DescribeLogDirsRequest(topics=None), 4).results[0].log_dir
    for name in (topic, side.name("missing")):
        asked = [make(path=here, topics=[wanted(name=name, partitions=[0, 7])])]
        side.ask(AlterReplicaLogDirsRequest(dirs=asked), version)
    side.ask(AlterReplicaLogDirsRequest(), version)


@scenario(CreateDelegationTokenRequest)
def delegation_tokens(side: Side, version: int) -> None:
    old = min(version, 2)
    side.ask(
        CreateDelegationTokenRequest(max_lifetime_ms=1000, owner_principal_type=None, owner_principal_name=None),
        version,
        keep=plain_token,
    )
    side.ask(RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1000), old)
    side.ask(ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1000), old)
    side.ask(DescribeDelegationTokenRequest(owners=None), version)
    side.ask(DescribeDelegationTokenRequest(owners=[]), version)


def plain_token(answer: Any) -> None:
    """Without times."""
    answer.issue_timestamp_ms = answer.expiry_timestamp_ms = answer.max_timestamp_ms = 0
