"""The coordinator's durable records: one immutable class for each kind, in the schemas that Kafka itself uses.

Hard state changes only through `GroupMachine.apply(record)`, live and on replay alike. Every record has a `key`: a
later record with the same key replaces it, and `Tombstone(key)` removes it. A key's first element is its `RecordKind`.
The second is the group (TRANSACTION has none). The table lists the rest.

| record | key | Kafka's key schema (version) |
|---|---|---|
| OffsetCommitted | (OFFSET, group, topic, partition) | OffsetCommitKey (1) |
| OffsetCommitted with producer_id | (PENDING, group, topic, partition, producer_id) | same, in a transactional batch |
| TransactionMarked | (TRANSACTION, producer_id) | a control batch |
| GroupSaved | (GROUP, group) | GroupMetadataKey (2) |
| EpochBumped | (EPOCH, group) | ConsumerGroupMetadataKey (3) |
| MemberSaved | (MEMBER, group, member) | ConsumerGroupMemberMetadataKey (5) |
| TargetEpochSet | (TARGET_EPOCH, group) | ConsumerGroupTargetAssignmentMetadataKey (6) |
| TargetAssigned | (TARGET, group, member) | ConsumerGroupTargetAssignmentMemberKey (7) |
| MemberAssigned | (CURRENT, group, member) | ConsumerGroupCurrentMemberAssignmentKey (8) |
| RegexResolved | (REGEX, group, regex) | ConsumerGroupRegularExpressionKey (16) |
| GenerationStarted | (GENERATION, group) | kohort's own (10000), which Kafka's reader skips |
| OffsetsImported | (IMPORT, group) | kohort's own (10002) |
| PushGroupSaved | (PUSH_GROUP, group) | kohort's own (10010) |
| PushMemberSaved | (PUSH_MEMBER, group, member) | kohort's own (10011) |
| PushOwned | (PUSH_OWNED, group, member) | kohort's own (10012) |

`RecordKind` values are those versions. PENDING and TRANSACTION have negative values: they are batches and not keys.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from kohort.ids import NO_TOPIC_ID as NO_TOPIC_ID
from kohort.ids import TopicId

RecordKey: TypeAlias = tuple[Any, ...]


class RecordKind(enum.IntEnum):
    """The kind of a record's key: the version of Kafka's key schema, if there is one."""

    TRANSACTION = -2
    PENDING = -1
    OFFSET = 1
    GROUP = 2
    EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16
    GENERATION = 10000
    IMPORT = 10002
    PUSH_GROUP = 10010
    PUSH_MEMBER = 10011
    PUSH_OWNED = 10012


class Tombstone(Struct, frozen=True):
    """The removal of the record with this key. An OFFSET tombstone also drops the partition's pending offsets."""

    key: RecordKey


class OffsetCommitted(NamedTuple):
    """A group's committed offset in one partition.

    Attributes:
        leader_epoch: the epoch of the record before the offset, -1 if unknown.
        commit_ms: wall clock.
        expire_ms: wall clock; -1 follows the configured retention. Only OffsetCommit 2-4 sets it (Kafka's value version
            1).
        topic_id: the topic id in the request, zero if there was none.
        producer_id: -1, or the producer whose transaction has to end first. The record then belongs into a
            transactional batch of this producer id and epoch.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: TopicId = NO_TOPIC_ID
    producer_id: int = -1
    producer_epoch: int = -1

    @property
    def key(self) -> RecordKey:
        if self.producer_id >= 0:
            return (RecordKind.PENDING, self.group_id, self.topic, self.partition, self.producer_id)
        return (RecordKind.OFFSET, self.group_id, self.topic, self.partition)


class TransactionMarked(Struct, frozen=True):
    """The end of a transaction: its pending offsets are committed (`committed`) or dropped."""

    producer_id: int
    producer_epoch: int
    committed: bool

    @property
    def key(self) -> RecordKey:
        return (RecordKind.TRANSACTION, self.producer_id)


class SavedMember(Struct, frozen=True):
    """A classic member inside `GroupSaved`, as Kafka's MemberMetadata, with its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupSaved(Struct, frozen=True):
    """A classic group's synchronized state, written when a generation is synchronized or the group becomes empty.

    Attributes:
        protocol_type: for example "consumer"; empty for a group that only keeps offsets.
        generation: the generation of this state.
        protocol: the chosen assignment strategy; None in an empty group.
        leader: the leader's member id; None in an empty group.
        state_ms: wall clock time at which the group reached this state; -1 if unknown (value versions 0-1).
        members: none in an empty group.
    """

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[SavedMember, ...]

    @property
    def key(self) -> RecordKey:
        return (RecordKind.GROUP, self.group_id)


class GenerationStarted(Struct, frozen=True):
    """The end of a classic join phase with this generation, which is never issued again. Source: spec 3.7."""

    group_id: str
    generation: int

    @property
    def key(self) -> RecordKey:
        return (RecordKind.GENERATION, self.group_id)


class OffsetsImported(Struct, frozen=True):
    """The import of a group's offsets from an earlier coordinator, Kafka's own, which is not repeated.

    The record outlives the group. A deleted or expired group therefore does not return with its old offsets.

    Attributes:
        imported_ms: wall clock.
        offsets: the number of imported offsets.
    """

    group_id: str
    imported_ms: int
    offsets: int

    @property
    def key(self) -> RecordKey:
        return (RecordKind.IMPORT, self.group_id)


class TopicPartitions(NamedTuple):
    """Partitions of one topic, ascending. A tuple: an assignment of a wide group has 160,000 of them."""

    topic_id: TopicId
    partitions: tuple[int, ...]


class OfferedProtocol(Struct, frozen=True):
    """One strategy that a classic member supports, with its opaque metadata."""

    name: str
    metadata: bytes


class MemberSaved(Struct, frozen=True):
    """A consumer group member's own metadata (ConsumerGroupMemberMetadataValue).

    Attributes:
        subscribed_topics: sorted names.
        subscribed_regex: RE2 pattern, None if not used.
        server_assignor: the member's preferred assignor, None if it has none.
        classic_session_timeout_ms: set only for a classic member of a consumer group (tagged ClassicMemberMetadata).
        classic_protocols: None for a member of the consumer protocol.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_session_timeout_ms: int = -1
    classic_protocols: tuple[OfferedProtocol, ...] | None = None

    @property
    def key(self) -> RecordKey:
        return (RecordKind.MEMBER, self.group_id, self.member_id)


class EpochBumped(Struct, frozen=True):
    """The record of a consumer group's new epoch (ConsumerGroupMetadataValue).

    Attributes:
        metadata_hash: the hash of the subscribed topics' metadata for this epoch (tagged MetadataHash), signed 64 bit.
    """

    group_id: str
    epoch: int
    metadata_hash: int = 0

    @property
    def key(self) -> RecordKey:
        return (RecordKind.EPOCH, self.group_id)


class TargetEpochSet(Struct, frozen=True):
    """The epoch of a consumer group's target assignment, written after all its `TargetAssigned` records."""

    group_id: str
    epoch: int
    assigned_ms: int = -1

    @property
    def key(self) -> RecordKey:
        return (RecordKind.TARGET_EPOCH, self.group_id)


class TargetAssigned(Struct, frozen=True):
    """A member's target assignment: its partitions at the end of the rebalance."""

    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (RecordKind.TARGET, self.group_id, self.member_id)


class ReconciliationState(enum.IntEnum):
    """The reconciliation state of a consumer group member, in the byte values of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class HeldPartitions(Struct, frozen=True):
    """Partitions of one topic, ascending, each with the epoch of its assignment (tagged AssignmentEpochs)."""

    topic_id: TopicId
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]


class MemberAssigned(Struct, frozen=True):
    """A member's owned and pending-revocation partitions (ConsumerGroupCurrentMemberAssignmentValue)."""

    group_id: str
    member_id: str
    member_epoch: int
    previous_epoch: int
    state: ReconciliationState
    assigned: tuple[HeldPartitions, ...]
    pending_revocation: tuple[HeldPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (RecordKind.CURRENT, self.group_id, self.member_id)


class RegexResolved(Struct, frozen=True):
    """The topics that a regular expression matched (ConsumerGroupRegularExpressionValue).

    Attributes:
        topics: sorted names.
        version: the version of the topic image at that time.
        resolved_ms: wall clock.
    """

    group_id: str
    regex: str
    topics: tuple[str, ...]
    version: int
    resolved_ms: int

    @property
    def key(self) -> RecordKey:
        return (RecordKind.REGEX, self.group_id, self.regex)


class PushGroupSaved(Struct, frozen=True):
    """A stored group of the push protocol.

    `state_ms` is the wall clock time at which its last member left; -1 if it has members.
    """

    group_id: str
    state_ms: int

    @property
    def key(self) -> RecordKey:
        return (RecordKind.PUSH_GROUP, self.group_id)


class PushMemberSaved(Struct, frozen=True):
    """A consumer's registration, the stored form of `events.RegisterConsumer`. `topics`: names and streams, sorted."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    topics: tuple[tuple[str, int], ...]
    regex: str | None
    excluding: bool
    streams: int
    auto_commit: bool
    from_begin: bool | None
    session_timeout_ms: int

    @property
    def key(self) -> RecordKey:
        return (RecordKind.PUSH_MEMBER, self.group_id, self.member_id)


class PushOwned(Struct, frozen=True):
    """A consumer's owned partitions: written before its Start, removed after its Stop."""

    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (RecordKind.PUSH_OWNED, self.group_id, self.member_id)


Record: TypeAlias = (
    OffsetCommitted
    | TransactionMarked
    | GroupSaved
    | GenerationStarted
    | OffsetsImported
    | MemberSaved
    | EpochBumped
    | TargetEpochSet
    | TargetAssigned
    | MemberAssigned
    | RegexResolved
    | PushGroupSaved
    | PushMemberSaved
    | PushOwned
    | Tombstone
)
