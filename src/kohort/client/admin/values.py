"""Arguments and results of the administration. Values only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, Literal, Self, TypeVar

from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import AclOperation as AclOperation
from kohort.ids import AclPattern as AclPattern
from kohort.ids import AclPermission as AclPermission
from kohort.ids import TopicPartition
from kohort.settings.arguments import checks_arguments

K = TypeVar("K")
V = TypeVar("V")

ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
QuotaEntity = tuple[tuple[str, str | None], ...]
"""The entity of a quota: (kind, name) pairs, sorted; the name None is the default. `(("user", "alice"),)`"""

OffsetSpec = Literal["earliest", "latest", "max_timestamp"] | int
"""The kind of an offset: a name, or the first one at or after a time in milliseconds since 1970."""


@checks_arguments
class Results(Generic[K, V]):
    """Results of a call, one outcome per resource: a value, or an error.

    Args:
        values: The successful outcomes.
        errors: The errors.
    """

    values: dict[K, V]
    errors: dict[K, KafkaError]

    def __init__(self, values: Mapping[K, V], errors: Mapping[K, KafkaError]) -> None:
        self.values = dict(values)
        self.errors = dict(errors)

    @classmethod
    def of(cls, outcomes: Mapping[K, V | KafkaError]) -> Self:
        """Make results of outcomes by resource, each a value or an error."""
        values: dict[K, V] = {}
        errors: dict[K, KafkaError] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                errors[key] = outcome
            else:
                values[key] = outcome
        return cls(values, errors)

    def result(self, key: K) -> V:
        """Return the value for one resource.

        Raises:
            KafkaError: The resource's error.
            InvalidInputError: The resource was not part of the call.
        """
        if key in self.errors:
            raise self.errors[key]
        if key not in self.values:
            raise InvalidInputError(f"{key} was not part of the call")
        return self.values[key]

    def all(self) -> dict[K, V]:
        """Return every value.

        Raises:
            KafkaError: The first error, if there is one.
        """
        for error in self.errors.values():
            raise error
        return self.values

    def __iter__(self) -> Iterator[K]:
        yield from self.values
        yield from self.errors

    def __len__(self) -> int:
        return len(self.values) + len(self.errors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(values={self.values!r}, errors={self.errors!r})"


@checks_arguments
class PartitionResults(Results[TopicPartition, V]):
    """Outcomes by partition."""

    def partition_result(self, partition: TopicPartition) -> V:
        """Return the value for one partition.

        Raises:
            KafkaError: The error of the partition, or of the whole call.
            InvalidInputError: The partition was not part of the call.
        """
        return self.result(partition)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 leaves a count to the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created; counts are -1 if the broker does not return them."""

    name: str
    topic_id: uuid.UUID
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A broker of the cluster: its id, address and rack."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its brokers and its controller (-1: unknown)."""

    cluster_id: str
    controller_id: int
    nodes: tuple[NodeDescription, ...]


class ResourceType(IntEnum):
    """The kinds of resources with a configuration. Numbers as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource with a configuration, by type and name."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One property of a resource, such as a topic or a broker: its value, and whether that is the default.

    Attributes:
        value: None for a secret.
        is_default: Whether it is not set for this resource.
    """

    name: str
    value: str | None
    is_default: bool = False
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. `type` is Classic or Consumer; empty strings if an older broker does not return them."""

    group_id: str
    protocol_type: str = ""
    state: str = ""
    type: str = ""
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    Attributes:
        assignment: The partitions that it owns by the coordinator's view; None when the bytes are not a consumer's.
        target_assignment: The target assignment of a KIP-848 member; None for classic members.
        subscription: Topic names; None when unknown.
        epoch: The KIP-848 member epoch; None for classic groups.
    """

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] | None = None
    subscription_regex: str | None = None
    rack_id: str | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class RebalanceCause:
    """A cause of a rebalance, as the coordinator recorded it.

    Attributes:
        at_ms: When it came, in milliseconds since 1970 by the coordinator's clock.
        reason: The kind of cause in a word: `joined`, `left`, `session-expired`, …
        text: The cause in words.
        member_id: The member that it is about; empty if there is none, or several.
    """

    at_ms: int
    reason: str
    text: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupRebalanced:
    """A rebalance of a group, as the coordinator recorded it.

    Attributes:
        causes: The first causes.
        causes_left_out: The number of further ones.
        ended_ms: When it ended, in milliseconds since 1970 by the coordinator's clock; None: it is under way.
        generation: The generation or epoch that it led to; None: unknown, and for push groups.
        members: The number of members after it.
        downtime_ms: The longest downtime of a member or a partition.
        longest: The members with the longest downtimes, in milliseconds.
    """

    causes: tuple[RebalanceCause, ...]
    causes_left_out: int = 0
    ended_ms: int | None = None
    generation: int | None = None
    members: int = 0
    downtime_ms: int = 0
    longest: tuple[tuple[str, int], ...] = ()

    @property
    def began_ms(self) -> int:
        """The time of the first cause, in milliseconds since 1970."""
        return self.causes[0].at_ms if self.causes else self.ended_ms or 0


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members.

    Attributes:
        assignor: The assignor in use (classic: the protocol that the group chose).
        epoch: The group epoch of KIP-848; None for classic groups, whose generation is not reported.
        rebalances: The last rebalances, the oldest first; None: they were not asked for, or the coordinator is not
            kohort's.
        causes: The number of causes of rebalances by reason, since the coordinator has the group.
    """

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: int = -1
    epoch: int | None = None
    assignment_epoch: int | None = None
    rebalances: tuple[GroupRebalanced, ...] | None = None
    causes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that was looked up. Offset -1: there is no record at or after the time."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The finalized level of a feature (0: not finalized), and the levels that the responding broker supports."""

    level: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica's size in bytes, and its lag in records; a future replica is being moved here."""

    size: int
    offset_lag: int
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class LogDir:
    """A broker's log directory; bytes are -1 if the broker does not return them.

    Attributes:
        error: Why the directory can't be used; None when it can.
    """

    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaOnDisk]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One entry in a list of transactional ids."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id: its producer, and its open transaction if there is one.

    Attributes:
        started_ms: When its open transaction began, in milliseconds since 1970; None: none is open.
        partitions: The partitions of the open transaction.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a producer in a partition.

    Attributes:
        last_timestamp: The timestamp of its last batch, in milliseconds since 1970; -1: unknown.
        open_since_offset: The first offset of its open transaction; None: it has none here.
    """

    producer_id: int
    epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    open_since_offset: int | None = None


class AclResource(IntEnum):
    """The resource type of an access rule. Numbers as on the wire; ANY is for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An access rule: a principal (`User:alice`), an operation, a resource, and a host (`*`: any)."""

    principal: str
    operation: AclOperation
    resource_type: AclResource
    resource_name: str
    pattern: AclPattern = AclPattern.LITERAL
    host: str = "*"
    permission: AclPermission = AclPermission.ALLOW


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A filter of access rules; omitted fields match everything.

    The pattern MATCH selects all rules that apply to a name.
    """

    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    resource_type: AclResource = AclResource.ANY
    resource_name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    host: str | None = None
    permission: AclPermission = AclPermission.ANY


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A user's password for one mechanism."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = "SCRAM-SHA-512"
    iterations: int = 8192
