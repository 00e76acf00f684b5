"""Cluster administration: leaders, quorum, reassignments, log folders, features, markers; for a single broker.

Versions: DescribeQuorum 1 adds times, 2 directories, nodes and texts. ElectLeaders 1 adds kinds of elections.
DescribeLogDirs 3 adds a top-level error, 4 volume sizes, 5 cordoned folders. UpdateFeatures 1 adds kinds of upgrades, 2
removes results of single features.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from kohort.broker.authorization import CLUSTER_NAME, Resource, is_allowed, may_see
from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.broker.topics import OFFSETS_TOPIC
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError
from kohort.groups.effects import TransactionEndedReply
from kohort.groups.events import TransactionEnded
from kohort.ids import QUORUM_TOPIC, AclOperation
from kohort.log import Marker
from kohort.wire.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kohort.wire.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger("kohort.broker")

QUORUM_EPOCH = 1
"""The leader epoch of a quorum with one node, which never changes."""
PREFERRED, UNCLEAN = 0, 1
UPGRADE_TYPES = (1, 2, 3)
"""The kinds of upgrades: upgrade, safe downgrade, unsafe downgrade."""
_Election: TypeAlias = ElectLeadersResponse.ReplicaElectionResult
_Marked: TypeAlias = (
    WriteTxnMarkersResponse.WritableTxnMarkerResult.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult
)


def describe_quorum(node: Node, request: Request[DescribeQuorumRequest]) -> DescribeQuorumResponse:
    """Describe the quorum, which has one node: this broker is its leader and only voter.

    Topics are stored without a metadata log, so its offsets are 0. Source: KIP-595, KIP-836, KIP-853.
    """
    make, of_topic = DescribeQuorumResponse.PartitionData, DescribeQuorumResponse.TopicData
    topics = request.message.topics
    asked = [(topic.topic_name, [part.partition_index for part in topic.partitions]) for topic in topics]
    if asked != [(QUORUM_TOPIC, [0])]:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused = [
            of_topic(
                topic_name=topic,
                partitions=[make(partition_index=index, error_code=code, error_message=code.text) for index in indexes],
            )
            for topic, indexes in asked
        ]
        return DescribeQuorumResponse(topics=refused)
    now_ms = time.time_ns() // 1_000_000
    me = DescribeQuorumResponse.ReplicaState(
        replica_id=node.id, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    quorum = make(leader_id=node.id, leader_epoch=QUORUM_EPOCH, current_voters=[me])
    response = DescribeQuorumResponse(topics=[of_topic(topic_name=QUORUM_TOPIC, partitions=[quorum])])
    if request.version >= 2:
        listener = DescribeQuorumResponse.Listener
        response.nodes = [
            DescribeQuorumResponse.Node(
                node_id=place.node_id, listeners=[listener(name="PLAINTEXT", host=place.host, port=place.port)]
            )
            for place in node.endpoints.nodes(request.connection)
        ]
    return response


def elect_leaders(node: Node, request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    """Answer ElectLeaders: no election is needed, because this broker leads all partitions.

    The response to a request for all partitions lists the topics without their partitions.
    """
    message = request.message
    kind = message.election_type if request.version >= 1 else PREFERRED
    known = kind in (PREFERRED, UNCLEAN)
    if message.topic_partitions is None:
        names = list(node.store.topics) if known else []
        response = ElectLeadersResponse(replica_election_results=[_Election(topic=name) for name in names])
    else:
        response = ElectLeadersResponse(
            replica_election_results=[
                _Election(
                    topic=asked.topic,
                    partition_result=[_elected(node, asked.topic, index, known) for index in asked.partitions],
                )
                for asked in message.topic_partitions
            ]
        )
    nothing = message.topic_partitions is not None and not message.topic_partitions
    if request.version >= 1 and not known and not nothing:
        response.error_code = ErrorCode.INVALID_REQUEST
    return response


def _elected(node: Node, topic: str, index: int, known: bool) -> _Election.PartitionResult:
    if not known:
        error, text = ErrorCode.INVALID_REQUEST, "there is no such kind of election"
    elif node.store.get(topic, index) is None:
        error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}"
    else:
        error, text = ErrorCode.ELECTION_NOT_NEEDED, f"broker {node.id} leads {topic}-{index}"
    return _Election.PartitionResult(partition_id=index, error_code=error, error_message=text)


def alter_partition_reassignments(
    node: Node, request: Request[AlterPartitionReassignmentsRequest]
) -> AlterPartitionReassignmentsResponse:
    """Accept reassignments to this broker, where every partition is, and reject all others."""
    topic_of = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    responses = []
    for topic in request.message.topics:
        parts = []
        for part in topic.partitions:
            result = topic_of.ReassignablePartitionResponse(partition_index=part.partition_index, error_message=None)
            try:
                _reassign(node, topic.name, part)
            except KafkaError as error:
                said = error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                result.error_code, result.error_message = error.code, error.message if said else None
            parts.append(result)
        responses.append(topic_of(name=topic.name, partitions=parts))
    return AlterPartitionReassignmentsResponse(error_message=None if responses else "", responses=responses)


def _reassign(
    node: Node, topic: str, part: AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition
) -> None:
    if node.store.get(topic, part.partition_index) is None:
        text = f"there is no partition {topic}-{part.partition_index}"
        raise InvalidInputError(text, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if part.replicas is None:
        raise InvalidInputError("nothing is under way", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if part.replicas != [node.id]:
        text = f"replicas can only be on broker {node.id}, once"
        raise InvalidInputError(text, ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def list_partition_reassignments(
    _node: Node, _request: Request[ListPartitionReassignmentsRequest]
) -> ListPartitionReassignmentsResponse:
    """Answer ListPartitionReassignments with none, because a single broker never has one in progress."""
    return ListPartitionReassignmentsResponse(error_message=None)


def describe_log_dirs(node: Node, request: Request[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    """Answer DescribeLogDirs: return the sizes of partitions in the only log folder, the data folder."""
    asked = request.message.topics
    wanted = None if asked is None else {(topic.topic, index) for topic in asked for index in topic.partitions}
    by_topic: dict[
        str, list[DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic.DescribeLogDirsPartition]
    ] = {}
    make = DescribeLogDirsResponse.DescribeLogDirsPartition
    for (name, index), part in node.store.partitions():
        if wanted is None or (name, index) in wanted:
            by_topic.setdefault(name, []).append(make(partition_index=index, partition_size=part.size_bytes()))
    usage = shutil.disk_usage(node.data_dir)
    result = DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=str(node.data_dir),
        topics=[
            DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
    )
    if request.version >= 4:
        result.total_bytes, result.usable_bytes = usage.total, usage.free
    return DescribeLogDirsResponse(results=[result])


def alter_replica_log_dirs(node: Node, request: Request[AlterReplicaLogDirsRequest]) -> AlterReplicaLogDirsResponse:
    """Accept moves of partitions to the only data folder, where they are."""
    make = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    results = []
    for folder in request.message.dirs:
        is_ours = Path(folder.path) == node.data_dir
        for topic in folder.topics:
            parts = []
            for index in topic.partitions:
                error = ErrorCode.NONE if is_ours else ErrorCode.LOG_DIR_NOT_FOUND
                if is_ours and node.store.get(topic.name, index) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                parts.append(make.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
            results.append(make(topic_name=topic.name, partitions=parts))
    return AlterReplicaLogDirsResponse(results=results)


def update_features(node: Node, request: Request[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    """Answer UpdateFeatures: accept levels that are in effect already, and reject others, because levels are fixed."""
    updates = request.message.feature_updates
    wrong = next((text for update in updates if (text := _unwanted(node, update, request.version))), None)
    if wrong is not None:
        return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=wrong)
    response = UpdateFeaturesResponse(error_message=None)
    if request.version < 2:
        make = UpdateFeaturesResponse.UpdatableFeatureResult
        response.results = [make(feature=update.feature, error_message=ErrorCode.NONE.name) for update in updates]
    return response


def _unwanted(node: Node, update: UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> str | None:
    level = node.features.get(update.feature, (0, 0))[1]
    if not level:
        return f"there is no feature {update.feature}"
    if update.max_version_level != level:
        return f"{update.feature} is at {level} and stays there"
    if version >= 1 and update.upgrade_type not in UPGRADE_TYPES:
        return f"there is no kind of upgrade {update.upgrade_type}"
    return None


def write_txn_markers(node: Node, request: Request[WriteTxnMarkersRequest]) -> None:
    """Write transaction markers when an administrator aborts a transaction; answer when all are written."""
    if not may_see(node, request, AclOperation.ALTER, Resource.CLUSTER, CLUSTER_NAME) and not is_allowed(
        node, request, AclOperation.CLUSTER_ACTION, Resource.CLUSTER
    ):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise NotAuthorizedError(code.text, code)
    make = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_of, part_of = (
        make.WritableTxnMarkerTopicResult,
        make.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult,
    )
    response = WriteTxnMarkersResponse()
    waits = []
    for marker in request.message.markers:
        result = make(producer_id=marker.producer_id)
        response.markers.append(result)
        for topic in marker.topics:
            parts = [part_of(partition_index=index) for index in topic.partition_indexes]
            result.topics.append(topic_of(name=topic.name, partitions=parts))
            waits += [(marker, topic.name, part) for part in parts]
    left = len(waits) + 1

    def respond_when_all_written() -> None:
        nonlocal left
        left -= 1
        if not left:
            request.reply(response)

    for marker, name, part in waits:
        _write_marker(node, marker, name, part, respond_when_all_written)
    respond_when_all_written()


def _write_marker(
    node: Node, marker: WriteTxnMarkersRequest.WritableTxnMarker, topic: str, part: _Marked, done: Callable[[], None]
) -> None:
    target = node.store.get(topic, part.partition_index)
    if target is None:
        part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        done()
        return
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        part.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        done()
        return
    if topic == OFFSETS_TOPIC:

        def on_marker_written(value: TransactionEndedReply | ErrorCode) -> None:
            part.error_code = value if isinstance(value, ErrorCode) else value.error
            done()

        event = TransactionEnded(
            marker.producer_id, marker.producer_epoch, marker.transaction_result, node.next_request_id()
        )
        node.groups.ask_shard(part.partition_index, event, on_marker_written)
        return
    now_ms = time.time_ns() // 1_000_000
    try:
        target.append_marker(
            Marker(marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch),
            now_ms,
        )
        node.waits.answer_waiting([target])
    except KafkaError as error:
        part.error_code = error.code
    except OSError as error:
        text = "a transaction marker in %s-%d could not be written, answering KAFKA_STORAGE_ERROR: %s"
        log.error(text, topic, part.partition_index, error)
        part.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    done()


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(DescribeQuorumRequest, DescribeQuorumResponse, describe_quorum),
    api_handler(ElectLeadersRequest, ElectLeadersResponse, elect_leaders),
    api_handler(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, alter_partition_reassignments),
    api_handler(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, list_partition_reassignments),
    api_handler(DescribeLogDirsRequest, DescribeLogDirsResponse, describe_log_dirs),
    api_handler(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, alter_replica_log_dirs),
    api_handler(UpdateFeaturesRequest, UpdateFeaturesResponse, update_features),
    api_handler(WriteTxnMarkersRequest, WriteTxnMarkersResponse, write_txn_markers),
]
