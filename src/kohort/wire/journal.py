"""Records of the internal topics: the groups, offsets and transactions that Kafka stores.

A key is written as its kind (int16) and its fields, a value as its version (int16) and its fields.

Source: Kafka 4.4, record schemas of the group and transaction coordinators.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from kohort.wire.message import Message
from kohort.wire.schema import Buffer, Struct, WireError, array, binary, int8, int16, int32, int64, string, struct, uuid


class LegacyOffsetCommitKey(Message, key=0, versions=(0, 0)):
    """Key of a committed offset as the first versions of Kafka wrote it."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitKey(Message, key=1, versions=(0, 0)):
    """Key of a committed offset."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, key=1, versions=(0, 4), flexible=4):
    """A committed offset."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1, ignorable=True)
    topic_id: UUID = uuid(since=4, tag=0, ignorable=True)


class GroupMetadataKey(Message, key=2, versions=(0, 0)):
    """Key of a classic group."""

    group: str = string()


class GroupMetadataValue(Message, key=2, versions=(0, 4), flexible=4):
    """A classic group as of one generation."""

    class MemberMetadata(Struct):
        """A classic member: its client, timeouts, subscription and assignment."""

        member_id: str = string()
        group_instance_id: str | None = string(since=3, nullable=True, default=None, ignorable=True)
        client_id: str = string()
        client_host: str = string()
        rebalance_timeout: int = int32(since=1, default=-1, ignorable=True)
        session_timeout: int = int32()
        subscription: bytes = binary()
        assignment: bytes = binary()

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=True)
    leader: str | None = string(nullable=True)
    current_state_timestamp: int = int64(since=2, default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataKey(Message, key=3, versions=(0, 0)):
    """Key of a KIP-848 group's epoch."""

    group_id: str = string()


class ConsumerGroupMetadataValue(Message, key=3, versions=(0, 0), flexible=0):
    """A KIP-848 group's epoch, with the hash of its topics' metadata."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, key=4, versions=(0, 0)):
    """Key of the topic metadata that a KIP-848 group last saw."""

    group_id: str = string()


class ConsumerGroupPartitionMetadataValue(Message, key=4, versions=(0, 0), flexible=0):
    """The topic metadata that a group last saw; Kafka 4.1 and later only deletes it."""

    class TopicMetadata(Struct):
        """A subscribed topic, with the number of its partitions."""

        class PartitionMetadata(Struct):
            """The racks of one partition's replicas."""

            partition: int = int32()
            racks: list[str] = array(string)

        topic_id: UUID = uuid()
        topic_name: str = string()
        num_partitions: int = int32()
        partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)

    PartitionMetadata = TopicMetadata.PartitionMetadata

    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Message, key=5, versions=(0, 0)):
    """Key of a KIP-848 member's metadata."""

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupMemberMetadataValue(Message, key=5, versions=(0, 0), flexible=0):
    """A member's subscription, its client, and its classic protocol if it joined by that."""

    class ClassicMemberMetadata(Struct):
        """The session timeout and protocols of a member that still speaks the classic protocol."""

        class ClassicProtocol(Struct):
            """An assignor that the member supports, and its subscription in the assignor's format."""

            name: str = string()
            metadata: bytes = binary()

        session_timeout_ms: int = int32()
        supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)

    ClassicProtocol = ClassicMemberMetadata.ClassicProtocol

    instance_id: str | None = string(nullable=True)
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable=True)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable=True)
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, nullable=True, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, key=6, versions=(0, 0)):
    """Key of the target assignment's epoch."""

    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, key=6, versions=(0, 0), flexible=0):
    """The epoch that the target assignment was computed for."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, key=7, versions=(0, 0)):
    """Key of one member's target assignment."""

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupTargetAssignmentMemberValue(Message, key=7, versions=(0, 0), flexible=0):
    """One member's target assignment."""

    class TopicPartition(Struct):
        """Partitions of one topic that the member should own."""

        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)

    topic_partitions: list[TopicPartition] = array(TopicPartition)


class ConsumerGroupCurrentMemberAssignmentKey(Message, key=8, versions=(0, 0)):
    """Key of one member's owned partitions."""

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupCurrentMemberAssignmentValue(Message, key=8, versions=(0, 0), flexible=0):
    """One member's owned partitions, those it must still revoke, and its epochs."""

    class TopicPartitions(Struct):
        """Partitions of one topic that the member owns or must still release."""

        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)
        assignment_epochs: list[int] | None = array(int32, nullable=True, tag=0)

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupRegularExpressionKey(Message, key=16, versions=(0, 0)):
    """Key of a resolved regular expression of a group."""

    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, key=16, versions=(0, 0), flexible=0):
    """The topics that a regular expression matched, and the metadata version and time of the match."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


class TransactionLogKey(Message, key=0, versions=(0, 0)):
    """Key of a transaction's state: its transactional id."""

    transactional_id: str = string()


class TransactionLogValue(Message, key=0, versions=(0, 1), flexible=1):
    """A transaction's state in `__transaction_state`: producer, status, partitions and timestamps."""

    class PartitionsSchema(Struct):
        """Partitions of one topic that the transaction has written to."""

        topic: str = string()
        partition_ids: list[int] = array(int32)

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable=True)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=-1)
    next_producer_id: int = int64(since=1, tag=1, default=-1)
    client_transaction_version: int = int16(since=1, tag=2)
    next_producer_epoch: int = int16(since=1, tag=3, default=-1)


KEYS: Final[dict[int, type[Message]]] = {
    kind.API_KEY: kind
    for kind in (
        LegacyOffsetCommitKey,
        OffsetCommitKey,
        GroupMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    )
}
"""Kinds of keys in `__consumer_offsets`, by the number that a key starts with."""

VALUES: Final[dict[type[Message], type[Message]]] = {
    LegacyOffsetCommitKey: OffsetCommitValue,
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    TransactionLogKey: TransactionLogValue,
}
"""The class of the value of each kind of key."""


def encode_key(key: Message) -> bytes:
    """Return a record key: its kind and its fields."""
    return key.API_KEY.to_bytes(2, "big") + key.encode(0)


def encode_value(value: Message, version: int) -> bytes:
    """Return a record value: its version and its fields."""
    return version.to_bytes(2, "big") + value.encode(version)


def decode_key(buf: Buffer) -> Message | None:
    """Return a key of `__consumer_offsets`, or None for an unknown kind, which a reader skips.

    Raises:
        WireError: the bytes are not what their kind says.
    """
    kind = KEYS.get(_version_of(buf))
    return None if kind is None else kind.decode(memoryview(buf)[2:], 0)


def decode_value(key: type[Message], buf: Buffer) -> Message:
    """Return the value that belongs to a key of this class.

    Raises:
        WireError: the bytes can't be decoded as that value, or have an unknown version.
    """
    kind, version = VALUES[key], _version_of(buf)
    if not kind.MIN_VERSION <= version <= kind.MAX_VERSION:
        raise WireError(f"{kind.__name__}: version {version} is not known")
    return kind.decode(memoryview(buf)[2:], version)


def _version_of(buf: Buffer) -> int:
    if len(buf) < 2:
        raise WireError(f"a record key or value of {len(buf)} bytes")
    return int.from_bytes(buf[:2], "big", signed=True)
