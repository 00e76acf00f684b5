"""The coordinator's durable facts: one immutable class per record kind, in the schemas that Kafka itself uses.

Hard state changes only through `GroupMachine.apply(record)`, live and on replay alike. Every record has a `key`: a
later record with the same key replaces it, and `Tombstone(key)` removes it. A key's first element is its `Kind`, the
second the group (TRANSACTION has none), the rest as the table says.

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
| GenerationStarted | (GENERATION, group) | our own (10000), which Kafka's reader skips |
| OffsetsImported | (IMPORT, group) | our own (10002) |
| PushGroupSaved | (PUSH_GROUP, group) | our own (10010) |
| PushMemberSaved | (PUSH_MEMBER, group, member) | our own (10011) |
| PushOwned | (PUSH_OWNED, group, member) | our own (10012) |

`Kind` values are those versions; PENDING and TRANSACTION, which are batches and not keys, have negative ones.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from kohort.ids import NO_TOPIC_ID as NO_TOPIC_ID
from kohort.ids import TopicId

RecordKey: TypeAlias = tuple[Any, ...]


class Kind(enum.IntEnum):
    """The kind of a record's key: the version of Kafka's key schema, where there is one."""

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


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record of this key is gone. A tombstone of OFFSET also drops the pending offsets of that partition."""

    key: RecordKey


class OffsetCommitted(NamedTuple):
    """A group's position in one partition.

    Attributes:
        leader_epoch: of the record before the offset, -1 when unknown.
        commit_ms: wall clock.
        expire_ms: wall clock, -1: by the configured retention. Only OffsetCommit 2-4 sets it (Kafka's value version 1).
        topic_id: what the committer knew, zero when it did not say.
        producer_id: -1, or the transaction on whose end the offset waits; then the record belongs into a
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
            return (Kind.PENDING, self.group_id, self.topic, self.partition, self.producer_id)
        return (Kind.OFFSET, self.group_id, self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TransactionMarked:
    """A transaction ended: its pending offsets count (`committed`) or are gone."""

    producer_id: int
    producer_epoch: int
    committed: bool

    @property
    def key(self) -> RecordKey:
        return (Kind.TRANSACTION, self.producer_id)


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A classic member inside `GroupSaved`, as Kafka's MemberMetadata: its metadata for the protocol chosen."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSaved:
    """A classic group's synchronized state, written when a generation is synchronized or the group is empty.

    Attributes:
        protocol_type: as "consumer"; empty for a group that only keeps offsets.
        generation: of this state.
        protocol: the assignment strategy chosen; None in an empty group.
        leader: member id; None in an empty group.
        state_ms: wall clock of the moment the group reached this state; -1 when unknown (value versions 0-1).
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
        return (Kind.GROUP, self.group_id)


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """A classic join phase ended with this generation, which is never issued again. Source: spec 3.7."""

    group_id: str
    generation: int

    @property
    def key(self) -> RecordKey:
        return (Kind.GENERATION, self.group_id)


@dataclass(frozen=True, slots=True)
class OffsetsImported:
    """The offsets that an earlier coordinator had of a group were taken over, and are not taken over again.

    It outlives the group: one that was deleted, or expired, does not come back with old offsets.

    Attributes:
        imported_ms: wall clock.
        offsets: how many there were.
    """

    group_id: str
    imported_ms: int
    offsets: int

    @property
    def key(self) -> RecordKey:
        return (Kind.IMPORT, self.group_id)


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic, ascending."""

    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """One strategy that a classic member supports, with its opaque metadata."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class MemberSaved:
    """What a member of a consumer group said of itself (ConsumerGroupMemberMetadataValue).

    Attributes:
        subscribed_topics: sorted names.
        subscribed_regex: RE2 pattern, None when not used.
        server_assignor: the member's wish, None when it has none.
        classic_session_timeout_ms: only of a classic member inside a consumer group (tagged ClassicMemberMetadata).
        classic_protocols: None for a member that speaks the consumer protocol.
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
    classic_protocols: tuple[ClassicProtocol, ...] | None = None

    @property
    def key(self) -> RecordKey:
        return (Kind.MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True)
class EpochBumped:
    """A consumer group's epoch (ConsumerGroupMetadataValue).

    Attributes:
        metadata_hash: of the subscribed topics' metadata that the epoch was made for (tagged MetadataHash), signed 64
            bit.
    """

    group_id: str
    epoch: int
    metadata_hash: int = 0

    @property
    def key(self) -> RecordKey:
        return (Kind.EPOCH, self.group_id)


@dataclass(frozen=True, slots=True)
class TargetEpochSet:
    """The epoch that a consumer group's target assignment belongs to; all its TargetAssigned come before it."""

    group_id: str
    epoch: int
    assigned_ms: int = -1

    @property
    def key(self) -> RecordKey:
        return (Kind.TARGET_EPOCH, self.group_id)


@dataclass(frozen=True, slots=True)
class TargetAssigned:
    """What a member is to own once all have moved."""

    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (Kind.TARGET, self.group_id, self.member_id)


class MemberState(enum.IntEnum):
    """Where a consumer group's member is between its epochs, with the bytes Kafka's records use."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class HeldPartitions:
    """Partitions of one topic, ascending, and the epoch at which the member got each (tagged AssignmentEpochs)."""

    topic_id: TopicId
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberAssigned:
    """What a member owns and must give up (ConsumerGroupCurrentMemberAssignmentValue)."""

    group_id: str
    member_id: str
    member_epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[HeldPartitions, ...]
    pending_revocation: tuple[HeldPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (Kind.CURRENT, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True)
class RegexResolved:
    """The topics that a regular expression matched (ConsumerGroupRegularExpressionValue).

    Attributes:
        topics: sorted names.
        version: of the topic image it was resolved with.
        resolved_ms: wall clock.
    """

    group_id: str
    regex: str
    topics: tuple[str, ...]
    version: int
    resolved_ms: int

    @property
    def key(self) -> RecordKey:
        return (Kind.REGEX, self.group_id, self.regex)


@dataclass(frozen=True, slots=True)
class PushGroupSaved:
    """A group speaks the push protocol. `state_ms`: wall clock since which it has had no members, -1: it has some."""

    group_id: str
    state_ms: int

    @property
    def key(self) -> RecordKey:
        return (Kind.PUSH_GROUP, self.group_id)


@dataclass(frozen=True, slots=True)
class PushMemberSaved:
    """What a consumer said as it registered; see `events.RegisterConsumer`. `topics`: names and streams, sorted."""

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
        return (Kind.PUSH_MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True)
class PushOwned:
    """What a consumer may read: written before it is started with it, gone when it has stopped."""

    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]

    @property
    def key(self) -> RecordKey:
        return (Kind.PUSH_OWNED, self.group_id, self.member_id)


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
