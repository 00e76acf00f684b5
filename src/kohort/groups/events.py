"""What can happen to the coordinator: one immutable class per kind of request, and the shell's own news.

A class stands for all wire versions of its request.

Every request carries `request`, a token that the shell chose and that the reply names. The shell answers for what the
core can't know: unknown topics, authorization, which shard a group belongs to. Absent strings are None, an empty
member id is "". Byte strings are `bytes` (copied out of the frame).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.records import ClassicProtocol, TopicPartitions
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition

# -- What push consumers answered, and what else happens to push groups alone; see `events`


class Asking(enum.Enum):
    """What a consumer of the push protocol is asked."""

    PING = enum.auto()
    STOP = enum.auto()
    START = enum.auto()


class Position(NamedTuple):
    """The offset from which a partition is read next."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerAnswered:
    """A consumer of the push protocol answered the oldest of what it was asked on this connection.

    Attributes:
        asked: what that was.
        error: of a Stop or a Start.
        positions: of a Ping.
    """

    group_id: str
    member_id: str
    connection: int
    asked: Asking
    error: ErrorCode = ErrorCode.NONE
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionsDivided:
    """A `DividePartitions` is done; ignored when another was asked for since.

    Attributes:
        assignment: member id to partitions.
        matched: by regular expression and whether it excludes, the topics that it finds.
        failure: why there is no assignment, else None.
    """

    group_id: str
    ticket: int
    assignment: Mapping[str, tuple[TopicPartitions, ...]]
    matched: Mapping[tuple[str, bool], frozenset[str]]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ShowPushGroups:
    """What push groups of this shard own and have committed is to be shown elsewhere. Source: spec 4.7.

    Attributes:
        whole: of all of them, else of those that have changed since this was asked last.
    """

    request: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class OwnersMissing:
    """Where the owners of a push group's partitions are shown, some that had been written are not any more.

    Who owns those is stopped and started again: a rebalance is necessary. Source: spec 4.7, condition 1.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsFound:
    """A `FindOffsets` is done. `failure`: why some are missing, else None."""

    group_id: str
    member_id: str
    ticket: int
    positions: tuple[Position, ...]
    failure: str | None = None


NO_CONNECTION = -1


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request: the header's client id and the socket's peer as Kafka prints it ("/127.0.0.1").

    `process` is the client's own word of which process it is, "" where there is none.
    """

    id: str
    host: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """JoinGroup 0-9.

    Attributes:
        member_id: empty on a first join.
        new_member_id: a fresh id, for use when `member_id` is empty; the shell makes it (client id, "-", a uuid).
        requires_known_id: version 4 and up: a first join of a dynamic member is answered MEMBER_ID_REQUIRED (KIP-394).
        can_skip_assignment: version 9 and up: a returning static leader may be told not to assign (KIP-814).
        rebalance_timeout_ms: version 0 has none: the shell passes the session timeout.
        connection: a number for the connection it came on, so that `ConnectionLost` finds its members.
    """

    request: int
    group_id: str
    member_id: str
    new_member_id: str
    client: Client
    protocol_type: str
    protocols: tuple[ClassicProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    reason: str | None = None
    requires_known_id: bool = True
    can_skip_assignment: bool = False
    connection: int = NO_CONNECTION


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """SyncGroup 0-5. `assignments` (member id, bytes) come from the leader only."""

    request: int
    group_id: str
    generation: int
    member_id: str
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    connection: int = NO_CONNECTION


class Heartbeat(NamedTuple):
    """Heartbeat 0-4.

    Attributes:
        hold_ms: how long the client bears to wait for the reply; 0: answer now.
        interval_ms: at which the client is known to send its heartbeats; 0: not known.
    """

    request: int
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    hold_ms: int = 0
    connection: int = NO_CONNECTION
    interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member of a LeaveGroup. An administrator removes a static member by instance id alone (member id empty)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """LeaveGroup 0-5; versions 0-2 name one member."""

    request: int
    group_id: str
    members: tuple[LeavingMember, ...]


class OffsetToCommit(NamedTuple):
    """One partition's new position. `topic_id` is what the request named (version 10), else zero."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """OffsetCommit 2-10, of a member or (generation -1, empty member id) of anyone.

    Attributes:
        generation: generation or member epoch.
        offsets: of known topics only; the shell answers the others itself.
        retention_ms: versions 2-4; -1: as configured.
        knows_stale_epoch: version 9 and up: STALE_MEMBER_EPOCH may be answered.
    """

    request: int
    group_id: str
    member_id: str
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    instance_id: str | None = None
    retention_ms: int = -1
    knows_stale_epoch: bool = True
    connection: int = NO_CONNECTION


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """TxnOffsetCommit 0-6: offsets that count when the producer's transaction commits."""

    request: int
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    transactional_id: str = ""
    knows_stale_epoch: bool = True


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """One group of an OffsetFetch 1-10.

    Attributes:
        partitions: None: all that have an offset.
        require_stable: UNSTABLE_OFFSET_COMMIT where a transactional offset is pending (KIP-447).
        member_id: None unless the request names a member (version 9 and up), which is then checked.
    """

    request: int
    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetDelete:
    """OffsetDelete 0 (KIP-496). `partitions` are those of known topics."""

    request: int
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroups:
    """DeleteGroups 0-3, for the groups of this shard."""

    request: int
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroups:
    """DescribeGroups 0-6, for the groups of this shard. `knows_missing`: version 6 answers GROUP_ID_NOT_FOUND."""

    request: int
    group_ids: tuple[str, ...]
    knows_missing: bool = True


@dataclass(frozen=True, slots=True)
class ListGroups:
    """ListGroups 0-5. Filters are compared without regard to case; empty: all."""

    request: int
    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat:
    """ConsumerGroupHeartbeat 0-1 (KIP-848). None: unchanged since the last heartbeat.

    Attributes:
        member_id: made by the member (version 1), or empty on a first join of version 0.
        new_member_id: a fresh id from the shell, used when `member_id` is empty.
        member_epoch: 0 joins, -1 leaves, -2 a static member leaves for a while.
        rebalance_timeout_ms: -1: unchanged.
        owned: what the member has; None: unchanged.
        hold_ms: as in `Heartbeat`.
        short_interval: as in `notify.Patience`.
    """

    request: int
    group_id: str
    member_id: str
    new_member_id: str
    member_epoch: int
    client: Client
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[TopicPartitions, ...] | None = None
    hold_ms: int = 0
    short_interval: bool = False
    connection: int = NO_CONNECTION


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribe:
    """ConsumerGroupDescribe 0-1, for the groups of this shard."""

    request: int
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the coordinator sees it. `racks`: per partition, the racks of its replicas; empty when unknown."""

    name: str
    id: TopicId
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    """All topics at one moment. `version` grows with each change.

    Attributes:
        sure: what is not in it is not there, and no topic is made again unseen. Where topics are kept elsewhere it is
            not: positions keep the ids of their topics, and what is missing is looked for (`LookForTopics`).
    """

    version: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    sure: bool = True


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics were made, deleted or grew. Offsets of deleted ones go by `TopicsDeleted`."""

    image: TopicImage


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """These topics are gone, and their offsets go with them.

    Where the image is not `sure`, one may be there again under its name: offsets that name its id stay.
    """

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A producer's transaction reached this shard's journal partition with its end marker.

    Attributes:
        request: the token to answer (`TransactionEndedReply`), None when no one waits.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    request: int | None = None


@dataclass(frozen=True, slots=True)
class AssignmentComputed:
    """A `ComputeAssignment` is done; ignored when the group has moved on.

    Attributes:
        assignment: member id to partitions.
        failure: why there is none, else None.
    """

    group_id: str
    ticket: int
    epoch: int
    assignment: Mapping[str, tuple[TopicPartitions, ...]]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class RegexesResolved:
    """A `ResolveRegexes` is done: regular expression to sorted topic names."""

    group_id: str
    ticket: int
    version: int
    topics: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GroupImported:
    """An `ImportGroup` is done; ignored when another was asked since.

    Attributes:
        offsets: what the earlier coordinator has committed for the group, which has no members there; none: there is
            nothing to import.
        error: NONE; COORDINATOR_LOAD_IN_PROGRESS: there was no answer; else what refuses the group.
        text: why, and what to do.
    """

    group_id: str
    ticket: int
    offsets: tuple[OffsetToCommit, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    text: str = ""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group's own settings (KIP-848 group configs); None: the broker's."""

    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSettingsChanged:
    """A group's configuration resource was altered. The shell checks its limits."""

    group_id: str
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection ended without a leave. A hint of death, not death.

    Attributes:
        noticed: its members are evicted unless they come back soon; False: their sessions run on.
        lease_ms: the lease that the client on it keeps, 0: none. See `lost`.
        ended: the client's process if that is known to have ended, else "".
    """

    connection: int
    noticed: bool = False
    lease_ms: int = 0
    ended: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Answer these held heartbeats now: another request came on their connection, or the shard moves away."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegisterConsumer:
    """A consumer of the push protocol asks to be pinged, stopped and started on its connection. Source: spec 4.4.

    Attributes:
        member_id: the consumer's own id.
        topics: streams by topic; empty with a regular expression.
        regex: for topic names, None: `topics` says them.
        excluding: it reads the topics that the expression does not match.
        streams: of every topic that the expression finds.
        auto_commit: its answers to pings carry its positions.
        from_begin: where a partition without a position is read from: its begin, or else its end. None: the consumer
            finds that itself, and is started with NO_POSITION.
    """

    request: int
    group_id: str
    member_id: str
    client: Client
    topics: Mapping[str, int]
    regex: str | None
    excluding: bool
    streams: int
    auto_commit: bool
    from_begin: bool | None
    session_timeout_ms: int
    connection: int = NO_CONNECTION


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline_ms` has passed."""


Request: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | OffsetFetch
    | OffsetDelete
    | DeleteGroups
    | DescribeGroups
    | ListGroups
    | ConsumerGroupHeartbeat
    | ConsumerGroupDescribe
    | RegisterConsumer
    | ShowPushGroups
)

Event: TypeAlias = (
    Request
    | TopicsChanged
    | TopicsDeleted
    | TransactionEnded
    | AssignmentComputed
    | RegexesResolved
    | GroupImported
    | GroupSettingsChanged
    | ConnectionLost
    | ReleaseHeld
    | ConsumerAnswered
    | PartitionsDivided
    | OffsetsFound
    | OwnersMissing
    | Tick
)
