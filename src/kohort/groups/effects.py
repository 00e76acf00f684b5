"""The effects of a step: records to append, replies, pushed frames, background tasks, log lines and metrics."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from kohort.errors import ErrorCode
from kohort.groups.events import PushPosition, Topic
from kohort.groups.records import MemberSaved, OffsetCommitted, PushMemberSaved, Record, TopicPartitions
from kohort.groups.topics import TopicIdPartitions
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition

# -- Requests to push consumers, and replies about push groups alone; the other effects stand below


class RegisterConsumerReply(NamedTuple):
    """The reply to `RegisterConsumer`; after an error the broker closes the connection."""

    error: ErrorCode


class MirroredPushGroup(Struct, frozen=True):
    """A push group's owners and offsets as the ZooKeeper mirror publishes them.

    Attributes:
        settled: no rebalance is under way.
        owners: the owner of each partition, as consumer and stream.
        offsets: the group's committed offsets.
        loaded: the group existed when its shard was loaded, so an earlier process may have published it.
    """

    group_id: str
    settled: bool
    owners: Mapping[TopicPartition, str]
    offsets: Mapping[tuple[str, int], OffsetCommitted]
    loaded: bool


class DescribePushGroupsReply(Struct, frozen=True):
    """The owners and offsets of a shard's push groups, for the ZooKeeper mirror.

    Attributes:
        whole: `groups` holds every push group: the caller asked for all, or this is the first call since the load.
        gone: in a partial reply, the groups that changed and are no push groups any more.
    """

    groups: tuple[MirroredPushGroup, ...]
    whole: bool = True
    gone: tuple[str, ...] = ()


class PingConsumer(NamedTuple):
    """An effect: send a Ping, which asks a push consumer whether it is alive and for its positions.

    Attributes:
        auto_commit: the consumer commits by the positions in its answers.
        retries: 0 if the consumer has answered every earlier request, else the number of this attempt.
    """

    group_id: str
    member_id: str
    auto_commit: bool
    retries: int = 0


class StopConsumer(NamedTuple):
    """An effect: send a Stop, after which a push consumer reads nothing more."""

    group_id: str
    member_id: str


class StartConsumer(NamedTuple):
    """An effect: send a Start, after which a push consumer reads exactly these partitions, from these positions."""

    group_id: str
    member_id: str
    positions: tuple[PushPosition, ...]


class DisconnectConsumer(NamedTuple):
    """An effect: close a push consumer's connection, and log why.

    The consumer was removed from its group, or has another connection now.
    """

    group_id: str
    member_id: str
    why: str


Pushed: TypeAlias = PingConsumer | StopConsumer | StartConsumer | DisconnectConsumer


class ComputePushAssignment(Struct, frozen=True):
    """A background task: compute the assignment of a push group. Its result is the event `PushAssignmentComputed`.

    The tasks of a group run one after the other. They wait only for tasks of groups in the same queue.

    Attributes:
        ticket: a number that the result repeats; a result with another number is stale.
        assignor: "sticky" or "range".
        members: each member's registration, by member id.
        current: each member's partitions, so that the assignor can leave them where they are.
        topics: all existing topics.
    """

    group_id: str
    ticket: int
    assignor: str
    members: Mapping[str, PushMemberSaved]
    current: Mapping[str, TopicIdPartitions]
    topics: Mapping[str, Topic]


class FindOffsets(Struct, frozen=True):
    """A background task: look up the start or end offsets of partitions without a committed offset.

    Its result is `OffsetsFound`.
    """

    group_id: str
    member_id: str
    ticket: int
    partitions: tuple[TopicPartition, ...]
    from_begin: bool


class Now(NamedTuple):
    """The time of a step. Sessions use the monotonic clock; records hold only wall clock times."""

    mono_ms: int
    wall_ms: int


class GroupState(enum.StrEnum):
    """A group's state under the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    DEAD = "Dead"


class GroupType(enum.StrEnum):
    """A group's protocol under the name that ListGroups shows."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class JoinedMember(Struct, frozen=True):
    """A member in the JoinGroup response that the group's leader gets."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupReply(Struct, frozen=True):
    """The reply to a JoinGroup.

    Beside an error, `generation` is -1 and the texts are empty. Before version 7 no `protocol_name` is sent as "".
    """

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroupReply(Struct, frozen=True):
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class HeartbeatReply(NamedTuple):
    error: ErrorCode


class LeftMember(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveGroupReply(Struct, frozen=True):
    """The reply to a LeaveGroup. Before version 3 it has one error: `error`, or else that of the single member."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


class OffsetCommitReply(NamedTuple):
    """The reply to an OffsetCommit or TxnOffsetCommit: one error for each offset of the event, in its order."""

    errors: tuple[ErrorCode, ...]


class FetchedOffset(NamedTuple):
    """The committed offset of one partition, in an OffsetFetch reply.

    `offset` is -1 and `metadata` is empty if nothing is committed or `error` is set.
    """

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE
    topic_id: TopicId = NO_TOPIC_ID


class OffsetFetchReply(Struct, frozen=True):
    error: ErrorCode
    offsets: tuple[FetchedOffset, ...] = ()


class OffsetDeleteReply(Struct, frozen=True):
    """The reply to an OffsetDelete: one error for the group, or an error for each partition in the event's order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


class DeleteGroupsReply(Struct, frozen=True):
    """The reply to a DeleteGroups: one error for each group of the event, in its order."""

    errors: tuple[ErrorCode, ...]


class DescribedMember(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(Struct, frozen=True):
    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DescribeGroupsReply(Struct, frozen=True):
    groups: tuple[DescribedGroup, ...]


class ListedGroup(Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: str
    type: str


class ListGroupsReply(Struct, frozen=True):
    groups: tuple[ListedGroup, ...]


class ConsumerGroupHeartbeatReply(NamedTuple):
    """The reply to a ConsumerGroupHeartbeat. `assignment` is None if it is unchanged since the last reply."""

    error: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None


class PartitionsOfTopic(Struct, frozen=True):
    """Some partitions of one topic, with the topic's id and its name."""

    topic_id: TopicId
    topic: str
    partitions: tuple[int, ...]


class DescribedConsumer(Struct, frozen=True):
    """A member in a ConsumerGroupDescribe reply.

    `member_type` is 0 for the classic protocol, 1 for the consumer protocol, and -1 if it is unknown.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[PartitionsOfTopic, ...]
    target: tuple[PartitionsOfTopic, ...]
    member_type: int


class DescribedConsumerGroup(Struct, frozen=True):
    group_id: str
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class ConsumerGroupDescribeReply(Struct, frozen=True):
    groups: tuple[DescribedConsumerGroup, ...]


class TransactionEndedReply(Struct, frozen=True):
    error: ErrorCode


ReplyValue: TypeAlias = (
    JoinGroupReply
    | SyncGroupReply
    | HeartbeatReply
    | LeaveGroupReply
    | OffsetCommitReply
    | OffsetFetchReply
    | OffsetDeleteReply
    | DeleteGroupsReply
    | DescribeGroupsReply
    | ListGroupsReply
    | ConsumerGroupHeartbeatReply
    | ConsumerGroupDescribeReply
    | TransactionEndedReply
    | RegisterConsumerReply
    | DescribePushGroupsReply
)


class Reply(NamedTuple):
    """A reply to the event that carried this request id."""

    request: int
    value: ReplyValue


class Push(NamedTuple):
    """A frame that the coordinator sends to a push member by itself, and not in answer to a request."""

    connection: int
    value: Pushed


class ComputeAssignment(Struct, frozen=True):
    """A background task: run the assignor outside the event loop. Its result is the event `AssignmentComputed`.

    Attributes:
        ticket: a number that the result repeats; a result with another number is stale.
        epoch: the group's epoch.
        assignor: "uniform" or "range".
        members: each member's metadata, by member id, sorted.
        subscribed: the subscribed topic names by member id, with regular expressions resolved.
        current: the previous target by member id, so that the assignor can leave partitions where they are.
        excluded: the partitions of members that keep what they have and take no part.
        topics: all subscribed topics that exist.
    """

    group_id: str
    ticket: int
    epoch: int
    assignor: str
    members: Mapping[str, MemberSaved]
    subscribed: Mapping[str, tuple[str, ...]]
    current: Mapping[str, TopicIdPartitions]
    topics: Mapping[str, Topic]
    excluded: Mapping[str, tuple[TopicPartitions, ...]]


class ResolveRegexes(Struct, frozen=True):
    """A background task: match RE2 patterns with all topic names. Its result is the event `RegexesResolved`.

    Attributes:
        ticket: a number that the result repeats; a result with another number is stale.
        version: the version of the topic image.
    """

    group_id: str
    ticket: int
    version: int
    regexes: tuple[str, ...]
    topics: tuple[str, ...]


class FindDeletedTopics(Struct, frozen=True):
    """A background task: find out which topics were deleted if the topic image cannot tell.

    The event `TopicsDeleted` names them some time later.

    Attributes:
        topics: names that the image lacks or has under another id, with the topic ids in committed offsets.
    """

    topics: Mapping[str, frozenset[TopicId]]


class ImportGroupOffsets(Struct, frozen=True):
    """A background task: ask the group's earlier coordinator, Kafka's own, for its committed offsets.

    Its result is `GroupImported`.

    Attributes:
        ticket: a number that the result repeats; a result with another number is stale.
    """

    group_id: str
    ticket: int


Computation: TypeAlias = ComputeAssignment | ResolveRegexes | ComputePushAssignment
"""A background task that needs nothing but CPU time."""
Lookup: TypeAlias = FindDeletedTopics | ImportGroupOffsets
"""A background task that asks the keeper of the topics, or the earlier coordinator of a group."""
BackgroundTask: TypeAlias = Computation | FindOffsets | Lookup


class CoordinatorMeter(enum.StrEnum):
    """Counters of the coordinator, the first four under Kafka's released names. Source: spec 1.7.

    - `HELD_TOLD`: delayed heartbeats whose response announced a rebalance.
    - `HELD_DISCONNECTS`: delayed heartbeats whose connection ended meanwhile.
    - `HELD_LATE`: delayed heartbeats after which a classic member was so late that it gets no more delays.
    - `GROUP_IMPORTS`: groups imported from an earlier coordinator.
    - `MEMBERS_ELSEWHERE`: groups that exist here and were found to have members at their earlier coordinator.
    - `PUSH_FAILED`: abandoned rebalances of push groups.
    """

    OFFSET_COMMITS = "offset-commit"
    OFFSET_EXPIRATIONS = "offset-expiration"
    OFFSET_DELETIONS = "offset-deletion"
    COMPLETED_REBALANCES = "group-completed-rebalance"
    HELD_TOLD = "heartbeat-held-told"
    HELD_DISCONNECTS = "heartbeat-held-disconnect"
    HELD_LATE = "heartbeat-held-late"
    GROUP_IMPORTS = "group-imports"
    MEMBERS_ELSEWHERE = "group-members-elsewhere"
    PUSH_FAILED = "push-rebalance-failed"


class CounterIncreased(NamedTuple):
    """An effect: a counter of the coordinator increases by `amount`."""

    meter: CoordinatorMeter
    amount: int


class RebalanceReason(enum.StrEnum):
    """Why a group rebalances, in a word: few enough for a label of a metric.

    - `JOINED`: a new member. `REJOINED`: a known one joined again with the same subscription.
    - `LEFT`: a member left, or an administrator removed it.
    - `SESSION_EXPIRED`: a member was silent for its session timeout. `DISCONNECTED`: its connection ended.
    - `EVICTED`: a member did not join, sync or revoke in time, or there is no room for it.
    - `SUBSCRIPTION_CHANGED`, `TOPICS_CHANGED`, `ASSIGNOR_CHANGED`: what is assigned, or how, is different now.
    - `SUSPECTED`: a member is silent, and the others continue without it. `RETURNED`: it was heard again.
    - `COORDINATOR`: a restart, another coordinator or a change of protocol interrupted the group.
    """

    JOINED = "joined"
    REJOINED = "rejoined"
    LEFT = "left"
    SESSION_EXPIRED = "session-expired"
    DISCONNECTED = "disconnected"
    EVICTED = "evicted"
    SUBSCRIPTION_CHANGED = "subscription-changed"
    TOPICS_CHANGED = "topics-changed"
    ASSIGNOR_CHANGED = "assignor-changed"
    SUSPECTED = "suspected"
    RETURNED = "returned"
    COORDINATOR = "coordinator"


class Cause(NamedTuple):
    """A cause of a rebalance: its kind, in words, and the member that it is about.

    Attributes:
        reason: the kind of cause.
        text: the cause in words, as in the log.
        member_id: the member that it is about; empty if there is none, or several.
        topics: the topics that the text names after its first colon.
    """

    reason: RebalanceReason
    text: str
    member_id: str = ""
    topics: tuple[str, ...] = ()


class RebalanceCaused(NamedTuple):
    """A cause of the rebalance that begins now, or that is under way. `at_ms` is wall clock time."""

    group_id: str
    cause: Cause
    at_ms: int


class RebalanceLeftNoMembers(NamedTuple):
    """A note for the history of rebalances: one has ended and left no members. `at_ms` is wall clock time."""

    group_id: str
    generation: int
    at_ms: int


class Downtime(NamedTuple):
    """An item of `Rebalanced.longest`: how long a member, or one of its partitions, was idle in a rebalance."""

    member_id: str
    downtime_ms: int


class Rebalanced(NamedTuple):
    """An effect: report a finished rebalance, after which the group is stable.

    Attributes:
        protocol: "classic", "consumer" or "push".
        duration_ms: the time since the first change that led to the rebalance.
        downtime_ms: the mean downtime. For classic members it runs from their join to their assignment, and under
            KIP-848 from a partition's revocation to its next assignment.
        downtime_max_ms: the longest downtime.
        members: the number of members now.
        at_ms: the wall clock time.
        generation: the generation, or the epoch; -1 for push groups.
        longest: the longest downtimes of members, the longest first.
    """

    group_id: str
    protocol: str
    duration_ms: int
    downtime_ms: float
    downtime_max_ms: int
    members: int
    at_ms: int = 0
    generation: int = -1
    longest: tuple[Downtime, ...] = ()


class Level(enum.IntEnum):
    """A log line's level, in the numbers of the logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogLine(NamedTuple):
    """A log line: what happened to a group, and why."""

    level: Level
    group_id: str
    text: str


MetricNote: TypeAlias = CounterIncreased | Rebalanced | RebalanceCaused | RebalanceLeftNoMembers
"""Measurements and records of groups."""
Note: TypeAlias = MetricNote | LogLine


class Effects:
    """The effects of one step, which the caller carries out.

    A plain class, because every event gets one: a dataclass takes twice as long to make its lists.

    Attributes:
        records: to append in order, all or none, before the replies are sent; the machine has applied them already.
        replies: in order; each names its request, which is often an earlier one.
        pushes: frames for members' connections, sent after the replies.
        work: background tasks to run outside the event loop.
        notes: log lines and metrics.
    """

    __slots__ = ("notes", "pushes", "records", "replies", "work")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.replies: list[Reply] = []
        self.pushes: list[Push] = []
        self.work: list[BackgroundTask] = []
        self.notes: list[Note] = []
