"""The codec of group records: Kafka's own key and value bytes in `__consumer_offsets`.

Beside Kafka's kinds there are some of kohort's own, which Kafka's readers skip as unknown. These are GenerationStarted
(key 10000), AppendStarted (key 10001), OffsetsImported (key 10002), and the records of push groups (keys 10010 to
10012). AppendStarted holds the number of offsets that belong to the same append.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from kohort.errors import CorruptDataError
from kohort.groups.records import (
    NO_TOPIC_ID,
    EpochBumped,
    GenerationStarted,
    GroupSaved,
    HeldPartitions,
    MemberAssigned,
    MemberSaved,
    OfferedProtocol,
    OffsetCommitted,
    OffsetsImported,
    PushGroupSaved,
    PushMemberSaved,
    PushOwned,
    ReconciliationState,
    Record,
    RecordKey,
    RecordKind,
    RegexResolved,
    SavedMember,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
    TopicPartitions,
)
from kohort.wire import journal as wire
from kohort.wire.codec import uvarint_bytes
from kohort.wire.message import Message
from kohort.wire.schema import Struct, array, boolean, int8, int16, int32, int64, string, uuid

# -- Records of imported groups: a key version of kohort's own, which Kafka's readers skip as unknown


class OffsetsImportedKey(Message, key=10002, versions=(0, 0)):
    """The key of a group that was imported from an earlier coordinator."""

    group: str = string()


class OffsetsImportedValue(Message, key=10002, versions=(0, 0)):
    """The time of an import, and its number of offsets."""

    timestamp: int = int64()
    offsets: int = int32()


def imported_value(record: OffsetsImported) -> OffsetsImportedValue:
    """Build the value of an `OffsetsImported` record."""
    return OffsetsImportedValue(timestamp=record.imported_ms, offsets=record.offsets)


def read_imported(fields: tuple[Any, ...], data: bytes, version: int) -> OffsetsImported:
    """Build an `OffsetsImported` record from its key's fields and value bytes."""
    parsed = OffsetsImportedValue.decode(data, version)
    return OffsetsImported(fields[0], parsed.timestamp, parsed.offsets)


# -- Records of push groups: key versions of kohort's own, which Kafka's readers skip as unknown

END, BEGIN, NONE = range(3)
"""The start of a partition without a position; with NONE the consumer finds it itself."""


class PushGroupKey(Message, key=10010, versions=(0, 0)):
    """The key of a push group."""

    group: str = string()


class PushGroupValue(Message, key=10010, versions=(0, 0)):
    """The value of a push group's record: since when the group is empty."""

    state_ms: int = int64()


class PushMemberKey(Message, key=10011, versions=(0, 0)):
    """The key of a push consumer."""

    group_id: str = string()
    member_id: str = string()


class PushMemberValue(Message, key=10011, versions=(0, 0)):
    """The value of a push group member's record: what the consumer sent in its registration."""

    class TopicStreams(Struct):
        """A topic and its number of streams."""

        topic: str = string()
        streams: int = int16()

    client_id: str = string()
    client_host: str = string()
    topics: list[TopicStreams] = array(TopicStreams)
    regex: str | None = string(nullable=True, default=None)
    excluding: bool = boolean()
    streams: int = int16()
    auto_commit: bool = boolean()
    reset: int = int8()  # END, BEGIN or NONE
    session_timeout_ms: int = int32()


class PushOwnedKey(Message, key=10012, versions=(0, 0)):
    """The key of the record with the partitions that one member of a push group owns."""

    group_id: str = string()
    member_id: str = string()


class PushOwnedValue(Message, key=10012, versions=(0, 0)):
    """The value of the record with the partitions that one member of a push group owns, by topic."""

    class Partitions(Struct):
        """Partitions of one topic."""

        topic_id: Any = uuid()
        partitions: list[int] = array(int32)

    topics: list[Partitions] = array(Partitions)


def push_group_value(record: PushGroupSaved) -> Message:
    """Build the value of a `PushGroupSaved` record."""
    return PushGroupValue(state_ms=record.state_ms)


def read_push_group(fields: tuple[Any, ...], data: bytes, version: int) -> PushGroupSaved:
    """Build a `PushGroupSaved` record from its key's fields and value bytes."""
    return PushGroupSaved(fields[0], PushGroupValue.decode(data, version).state_ms)


def push_member_value(record: PushMemberSaved) -> Message:
    """Build the value of a `PushMemberSaved` record."""
    make = PushMemberValue.TopicStreams
    return PushMemberValue(
        client_id=record.client_id,
        client_host=record.client_host,
        topics=[make(topic=topic, streams=streams) for topic, streams in record.topics],
        regex=record.regex,
        excluding=record.excluding,
        streams=record.streams,
        auto_commit=record.auto_commit,
        reset=NONE if record.from_begin is None else int(record.from_begin),
        session_timeout_ms=record.session_timeout_ms,
    )


def read_push_member(fields: tuple[Any, ...], data: bytes, version: int) -> PushMemberSaved:
    """Build a `PushMemberSaved` record from its key's fields and value bytes."""
    value = PushMemberValue.decode(data, version)
    return PushMemberSaved(
        fields[0],
        fields[1],
        value.client_id,
        value.client_host,
        tuple((entry.topic, entry.streams) for entry in value.topics),
        value.regex,
        value.excluding,
        value.streams,
        value.auto_commit,
        None if value.reset == NONE else value.reset == BEGIN,
        value.session_timeout_ms,
    )


def push_owned_value(record: PushOwned) -> Message:
    """Build the value of a `PushOwned` record."""
    make = PushOwnedValue.Partitions
    return PushOwnedValue(
        topics=[make(topic_id=entry.topic_id, partitions=list(entry.partitions)) for entry in record.partitions]
    )


def read_push_owned(fields: tuple[Any, ...], data: bytes, version: int) -> PushOwned:
    """Build a `PushOwned` record from its key's fields and value bytes."""
    topics = PushOwnedValue.decode(data, version).topics
    return PushOwned(
        fields[0], fields[1], tuple(TopicPartitions(entry.topic_id, tuple(entry.partitions)) for entry in topics)
    )


KeyValue: TypeAlias = tuple[bytes, bytes | None]
SharedBytes: TypeAlias = tuple[bytes, bytes, bytes]

_APPEND_STARTED: Final = 10001
_OFFSET_VERSION: Final = 3
_OFFSET_VERSION_EXPIRING: Final = 1
_OFFSET_VERSION_TOPIC_ID: Final = 4
_GROUP_VERSION: Final = 3
_NAMES_CACHED: Final = 100_000

_SHORT = struct.Struct(">h")
_SHORTS = struct.Struct(">hh")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_POSITION = struct.Struct(">qi")
_OFFSET_BARE = struct.Struct(">hqihq")
_OFFSET_HEAD: Final = _SHORT.pack(_OFFSET_VERSION)
_OFFSET_ID_HEAD: Final = _SHORT.pack(_OFFSET_VERSION_TOPIC_ID)
_TOPIC_ID_TAG: Final = bytes((1, 0, 16))
"""One tagged field, its number 0, and the size of an id."""


class GenerationStartedKey(Message, key=10000, versions=(0, 0)):
    """The key of the record that a classic group's generation has begun."""

    group: str = string()


class GenerationStartedValue(Message, key=10000, versions=(0, 0)):
    """The value of the record that a classic group's generation has begun: a number that is never used again."""

    generation: int = int32()


class AppendStartedKey(Message, key=10001, versions=(0, 0)):
    """The key of the record before an append of several batches."""


class AppendStartedValue(Message, key=10001, versions=(0, 0)):
    """The number of following offsets that belong to an append, which counts as a whole or not at all."""

    offsets: int = int32()


def append_started_record(offsets: int) -> KeyValue:
    """Return the record that precedes an append of several batches, and names how many offsets they span."""
    return _SHORT.pack(_APPEND_STARTED), _value(AppendStartedValue(offsets=offsets), 0)


def announced_offsets(key: bytes, value: bytes | None) -> int | None:
    """Return the number of offsets that an AppendStarted record announces; None for any other record."""
    if len(key) != 2 or value is None or _SHORT.unpack(key)[0] != _APPEND_STARTED:
        return None
    return AppendStartedValue.decode(value[2:], 0).offsets


def group_of_key(key: bytes) -> str | None:
    """Return the group id in a record's key; None for a kind of key without a group."""
    if len(key) < 4:
        return None
    kind, size = _SHORTS.unpack_from(key)
    known = kind in (0, 1) or kind in _KEYS
    return key[4 : 4 + size].decode() if known and 0 <= size <= len(key) - 4 else None


# -- encoding


def encode_record(record: Record) -> KeyValue:
    """Return Kafka's bytes of a record; a tombstone has no value."""
    if type(record) is OffsetCommitted:
        return _encode_offset(record)
    if isinstance(record, Tombstone):
        return encode_key(record.key), None
    return encode_key(record.key), _VALUES[type(record)](record)


@lru_cache(maxsize=10_000)
def _offset_prefix(group_id: str, topic: str) -> bytes:
    """Return the first bytes of a committed offset's key: everything before the partition.

    The result is cached, because groups commit the same topics again and again.
    """
    group, name = group_id.encode(), topic.encode()
    return b"".join((_SHORTS.pack(1, len(group)), group, _SHORT.pack(len(name)), name))


def shared_offset_bytes(record: OffsetCommitted) -> SharedBytes | None:
    """Return the bytes that the offset records of one commit and topic have in common.

    None for a commit of an old client with a retention time, whose values have another version.

    Returns:
        The key up to its partition, and the value's parts before and after offset and leader epoch.
    """
    if record.expire_ms >= 0:
        return None
    key = _offset_prefix(record.group_id, record.topic)
    metadata = record.metadata.encode()
    commit_time = _LONG.pack(record.commit_ms)
    if record.topic_id == NO_TOPIC_ID:
        return key, _OFFSET_HEAD, _SHORT.pack(len(metadata)) + metadata + commit_time
    length = uvarint_bytes(len(metadata) + 1)
    return key, _OFFSET_ID_HEAD, b"".join((length, metadata, commit_time, _TOPIC_ID_TAG, record.topic_id.bytes))


def _encode_offset(record: OffsetCommitted) -> KeyValue:
    shared = shared_offset_bytes(record)
    if shared is None:
        return _offset_prefix(record.group_id, record.topic) + _INT.pack(record.partition), _expiring_value(record)
    key, head, tail = shared
    return key + _INT.pack(record.partition), head + _POSITION.pack(record.offset, record.leader_epoch) + tail


def _expiring_value(record: OffsetCommitted) -> bytes:
    value = wire.OffsetCommitValue(
        offset=record.offset,
        metadata=record.metadata,
        commit_timestamp=record.commit_ms,
        expire_timestamp=record.expire_ms,
    )
    return _value(value, _OFFSET_VERSION_EXPIRING)


def encode_key(key: RecordKey) -> bytes:
    """Return a record key in the bytes that Kafka (or kohort, for its own kinds) writes."""
    schema, names = _KEYS[key[0]]
    message: Message = schema(**dict(zip(names, key[1:], strict=True)))
    return _SHORT.pack(key[0]) + message.encode(0)


def _value(message: Message, version: int) -> bytes:
    return _SHORT.pack(version) + message.encode(version)


def _group_value(record: GroupSaved) -> bytes:
    members = [
        wire.GroupMetadataValue.MemberMetadata(
            member_id=m.member_id,
            group_instance_id=m.instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            rebalance_timeout=m.rebalance_timeout_ms,
            session_timeout=m.session_timeout_ms,
            subscription=m.subscription,
            assignment=m.assignment,
        )
        for m in record.members
    ]
    value = wire.GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader,
        current_state_timestamp=record.state_ms,
        members=members,
    )
    return _value(value, _GROUP_VERSION)


def _member_value(record: MemberSaved) -> bytes:
    classic = None
    schema = wire.ConsumerGroupMemberMetadataValue
    if record.classic_protocols is not None:
        protocols = [schema.ClassicProtocol(name=p.name, metadata=p.metadata) for p in record.classic_protocols]
        classic = schema.ClassicMemberMetadata(
            session_timeout_ms=record.classic_session_timeout_ms, supported_protocols=protocols
        )
    value = schema(
        instance_id=record.instance_id,
        rack_id=record.rack_id,
        client_id=record.client_id,
        client_host=record.client_host,
        subscribed_topic_names=list(record.subscribed_topics),
        subscribed_topic_regex=record.subscribed_regex,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        server_assignor=record.server_assignor,
        classic_member_metadata=classic,
    )
    return _value(value, 0)


def _target_value(record: TargetAssigned) -> bytes:
    schema = wire.ConsumerGroupTargetAssignmentMemberValue
    parts = [schema.TopicPartition(topic_id=p.topic_id, partitions=list(p.partitions)) for p in record.partitions]
    return _value(schema(topic_partitions=parts), 0)


def _current_value(record: MemberAssigned) -> bytes:
    schema = wire.ConsumerGroupCurrentMemberAssignmentValue

    def partition_parts(found: Sequence[HeldPartitions]) -> list[Any]:
        make = schema.TopicPartitions
        return [
            make(topic_id=p.topic_id, partitions=list(p.partitions), assignment_epochs=list(p.epochs)) for p in found
        ]

    value = schema(
        member_epoch=record.member_epoch,
        previous_member_epoch=record.previous_epoch,
        state=int(record.state),
        assigned_partitions=partition_parts(record.assigned),
        partitions_pending_revocation=partition_parts(record.pending_revocation),
    )
    return _value(value, 0)


def _epoch_value(record: EpochBumped) -> bytes:
    return _value(wire.ConsumerGroupMetadataValue(epoch=record.epoch, metadata_hash=record.metadata_hash), 0)


def _target_epoch_value(record: TargetEpochSet) -> bytes:
    value = wire.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=record.epoch)
    if record.assigned_ms >= 0:
        value.assignment_timestamp = record.assigned_ms
    return _value(value, 0)


def _regex_value(record: RegexResolved) -> bytes:
    value = wire.ConsumerGroupRegularExpressionValue(
        topics=list(record.topics), version=record.version, timestamp=record.resolved_ms
    )
    return _value(value, 0)


def _generation_value(record: GenerationStarted) -> bytes:
    return _value(GenerationStartedValue(generation=record.generation), 0)


_VALUES: Final[dict[type, Callable[[Any], bytes]]] = {
    GroupSaved: _group_value,
    MemberSaved: _member_value,
    TargetAssigned: _target_value,
    MemberAssigned: _current_value,
    EpochBumped: _epoch_value,
    TargetEpochSet: _target_epoch_value,
    RegexResolved: _regex_value,
    GenerationStarted: _generation_value,
    OffsetsImported: lambda record: _value(imported_value(record), 0),
    PushGroupSaved: lambda record: _value(push_group_value(record), 0),
    PushMemberSaved: lambda record: _value(push_member_value(record), 0),
    PushOwned: lambda record: _value(push_owned_value(record), 0),
}

_GROUP_MEMBER = ("group_id", "member_id")
_KEYS: Final[dict[int, tuple[Any, tuple[str, ...]]]] = {
    RecordKind.OFFSET: (wire.OffsetCommitKey, ("group", "topic", "partition")),
    RecordKind.GROUP: (wire.GroupMetadataKey, ("group",)),
    RecordKind.EPOCH: (wire.ConsumerGroupMetadataKey, ("group_id",)),
    RecordKind.MEMBER: (wire.ConsumerGroupMemberMetadataKey, _GROUP_MEMBER),
    RecordKind.TARGET_EPOCH: (wire.ConsumerGroupTargetAssignmentMetadataKey, ("group_id",)),
    RecordKind.TARGET: (wire.ConsumerGroupTargetAssignmentMemberKey, _GROUP_MEMBER),
    RecordKind.CURRENT: (wire.ConsumerGroupCurrentMemberAssignmentKey, _GROUP_MEMBER),
    RecordKind.REGEX: (wire.ConsumerGroupRegularExpressionKey, ("group_id", "regular_expression")),
    RecordKind.GENERATION: (GenerationStartedKey, ("group",)),
    RecordKind.IMPORT: (OffsetsImportedKey, ("group",)),
    RecordKind.PUSH_GROUP: (PushGroupKey, ("group",)),
    RecordKind.PUSH_MEMBER: (PushMemberKey, _GROUP_MEMBER),
    RecordKind.PUSH_OWNED: (PushOwnedKey, _GROUP_MEMBER),
}


# -- decoding


class GroupRecordReader:
    """A decoder of key and value bytes into records, with a cache of repeated names."""

    def __init__(self) -> None:
        self._names: dict[bytes, tuple[str, str]] = {}

    def decode_record(self, key: bytes, value: bytes | None) -> Record | None:
        """Decode a record; None for an unknown kind.

        Raises:
            CorruptDataError: the bytes do not follow the schema of their kind.
        """
        if len(key) < 2:
            raise CorruptDataError(f"a group record's key of {len(key)} bytes")
        kind = _SHORT.unpack_from(key)[0]
        if kind in (0, 1):
            return self.read_offset(key, value, -1, -1)
        if kind not in _KEYS:
            return None
        schema, names = _KEYS[kind]
        message = schema.decode(key[2:], 0)
        fields = tuple(getattr(message, name) for name in names)
        if value is None:
            return Tombstone((RecordKind(kind), *fields))
        if len(value) < 2:
            raise CorruptDataError(f"a group record's value of {len(value)} bytes")
        return _READERS[kind](fields, value[2:], _SHORT.unpack_from(value)[0])

    def read_offset(
        self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int
    ) -> OffsetCommitted | Tombstone:
        """Decode a committed offset or its tombstone. Optimized, because a journal holds little else."""
        names = self._names.get(key[:-4])
        if names is None:
            parsed = wire.OffsetCommitKey.decode(key[2:], 0)
            if len(self._names) >= _NAMES_CACHED:
                self._names.clear()
            names = self._names[key[:-4]] = (parsed.group, parsed.topic)
        partition = _INT.unpack_from(key, len(key) - 4)[0]
        if value is None:
            return Tombstone((RecordKind.OFFSET, *names, partition))
        if len(value) == _OFFSET_BARE.size:
            version, offset, leader_epoch, length, commit_ms = _OFFSET_BARE.unpack(value)
            if version == _OFFSET_VERSION and length == 0:
                return OffsetCommitted(
                    *names, partition, offset, leader_epoch, "", commit_ms, -1, NO_TOPIC_ID, producer_id, producer_epoch
                )
        found = wire.OffsetCommitValue.decode(value[2:], _SHORT.unpack_from(value)[0])
        return OffsetCommitted(
            *names,
            partition,
            found.offset,
            found.leader_epoch,
            found.metadata,
            found.commit_timestamp,
            found.expire_timestamp,
            found.topic_id,
            producer_id,
            producer_epoch,
        )


def _read_group(fields: tuple[Any, ...], data: bytes, version: int) -> GroupSaved:
    value = wire.GroupMetadataValue.decode(data, version)
    members = tuple(
        SavedMember(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.rebalance_timeout if version else m.session_timeout,
            m.session_timeout,
            bytes(m.subscription),
            bytes(m.assignment),
        )
        for m in value.members
    )
    return GroupSaved(
        fields[0],
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        members,
    )


def _read_member(fields: tuple[Any, ...], data: bytes, version: int) -> MemberSaved:
    value = wire.ConsumerGroupMemberMetadataValue.decode(data, version)
    classic = value.classic_member_metadata
    protocols = None
    if classic is not None:
        protocols = tuple(OfferedProtocol(p.name, bytes(p.metadata)) for p in classic.supported_protocols)
    return MemberSaved(
        fields[0],
        fields[1],
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex,
        value.rebalance_timeout_ms,
        value.server_assignor,
        classic.session_timeout_ms if classic is not None else -1,
        protocols,
    )


def _read_target(fields: tuple[Any, ...], data: bytes, version: int) -> TargetAssigned:
    value = wire.ConsumerGroupTargetAssignmentMemberValue.decode(data, version)
    return TargetAssigned(fields[0], fields[1], _partitions(value.topic_partitions))


def _read_current(fields: tuple[Any, ...], data: bytes, version: int) -> MemberAssigned:
    value = wire.ConsumerGroupCurrentMemberAssignmentValue.decode(data, version)
    known = value.state in ReconciliationState.__members__.values()
    return MemberAssigned(
        fields[0],
        fields[1],
        value.member_epoch,
        value.previous_member_epoch,
        ReconciliationState(value.state) if known else ReconciliationState.UNKNOWN,
        _decode_partitions(value.assigned_partitions, value.member_epoch),
        _decode_partitions(value.partitions_pending_revocation, value.member_epoch),
    )


def _decode_partitions(found: Sequence[Any], epoch: int) -> tuple[HeldPartitions, ...]:
    """Decode partitions; without epochs, as written before Kafka 4.3, all have the member's own epoch."""
    return tuple(
        HeldPartitions(
            p.topic_id,
            tuple(p.partitions),
            (epoch,) * len(p.partitions) if p.assignment_epochs is None else tuple(p.assignment_epochs),
        )
        for p in found
    )


def _partitions(found: Sequence[Any]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(p.topic_id, tuple(p.partitions)) for p in found)


def _read_epoch(fields: tuple[Any, ...], data: bytes, version: int) -> EpochBumped:
    value = wire.ConsumerGroupMetadataValue.decode(data, version)
    return EpochBumped(fields[0], value.epoch, value.metadata_hash)


def _read_target_epoch(fields: tuple[Any, ...], data: bytes, version: int) -> TargetEpochSet:
    value = wire.ConsumerGroupTargetAssignmentMetadataValue.decode(data, version)
    return TargetEpochSet(fields[0], value.assignment_epoch, value.assignment_timestamp or -1)


def _read_regex(fields: tuple[Any, ...], data: bytes, version: int) -> RegexResolved:
    value = wire.ConsumerGroupRegularExpressionValue.decode(data, version)
    return RegexResolved(fields[0], fields[1], tuple(value.topics), value.version, value.timestamp)


def _read_generation(fields: tuple[Any, ...], data: bytes, version: int) -> GenerationStarted:
    return GenerationStarted(fields[0], GenerationStartedValue.decode(data, version).generation)


_READERS: Final[dict[int, Callable[[tuple[Any, ...], bytes, int], Record]]] = {
    RecordKind.GROUP: _read_group,
    RecordKind.EPOCH: _read_epoch,
    RecordKind.MEMBER: _read_member,
    RecordKind.TARGET_EPOCH: _read_target_epoch,
    RecordKind.TARGET: _read_target,
    RecordKind.CURRENT: _read_current,
    RecordKind.REGEX: _read_regex,
    RecordKind.GENERATION: _read_generation,
    RecordKind.IMPORT: read_imported,
    RecordKind.PUSH_GROUP: read_push_group,
    RecordKind.PUSH_MEMBER: read_push_member,
    RecordKind.PUSH_OWNED: read_push_owned,
}
