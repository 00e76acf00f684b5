"""What the coordinator wants done: records to append, replies to release, work to run, notes to log and count."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.events import Position, Topic
from kohort.groups.records import MemberSaved, OffsetCommitted, PushMemberSaved, Record, TopicPartitions
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition

# -- What the coordinator wants of push consumers, and says of push groups alone; see `outcome`


class RegisterConsumerReply(NamedTuple):
    """An error closes the connection."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ShownPushGroup:
    """A push group as it is shown elsewhere.

    Attributes:
        settled: no rebalance is under way.
        owners: who owns which partition, as consumer and stream.
        offsets: its positions.
        loaded: it was there when its shard was loaded: an earlier process may have shown it.
    """

    group_id: str
    settled: bool
    owners: Mapping[TopicPartition, str]
    offsets: Mapping[tuple[str, int], OffsetCommitted]
    loaded: bool


@dataclass(frozen=True, slots=True)
class ShowPushGroupsReply:
    """Push groups as they are now.

    Attributes:
        whole: these are all that there are; that was asked for, or nobody has asked since the shard was loaded.
        gone: else, those that have changed and are push groups no more.
    """

    groups: tuple[ShownPushGroup, ...]
    whole: bool = True
    gone: tuple[str, ...] = ()


class PingConsumer(NamedTuple):
    """Is it alive, and where is it? `retries`: 0: all its answers have come; n: the nth time that this is asked."""

    group_id: str
    member_id: str
    auto_commit: bool
    retries: int = 0


class StopConsumer(NamedTuple):
    """Read nothing more."""

    group_id: str
    member_id: str


class StartConsumer(NamedTuple):
    """Read these partitions from there; all that it has."""

    group_id: str
    member_id: str
    positions: tuple[Position, ...]


class DismissConsumer(NamedTuple):
    """It is no member any more, or another connection is its: this one ends, which is said in the log."""

    group_id: str
    member_id: str
    why: str


Pushed: TypeAlias = PingConsumer | StopConsumer | StartConsumer | DismissConsumer


@dataclass(frozen=True, slots=True)
class DividePartitions:
    """Long work: who of a push group is to have what; feed `PartitionsDivided` back.

    A group's works run one after the other, and wait for those of groups of the same queue only.

    Attributes:
        ticket: the answer names it; one that names another is stale.
        assignor: "sticky" or "range".
        members: what each said, by member id.
        current: what each has, so that partitions stay.
        topics: all that there are.
    """

    group_id: str
    ticket: int
    assignor: str
    members: Mapping[str, PushMemberSaved]
    current: Mapping[str, tuple[TopicPartitions, ...]]
    topics: Mapping[str, Topic]


@dataclass(frozen=True, slots=True)
class FindOffsets:
    """Begin or end of partitions that have no position; feed `OffsetsFound` back."""

    group_id: str
    member_id: str
    ticket: int
    partitions: tuple[TopicPartition, ...]
    from_begin: bool


class Now(NamedTuple):
    """The time of a step. Sessions run on the monotonic clock; only wall time enters records."""

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


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupReply:
    """`generation` is -1 and the texts are empty beside an error; `protocol_name` None becomes "" before version 7."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupReply:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class HeartbeatReply(NamedTuple):
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupReply:
    """Before version 3 the wire has one error: `error`, or else that of the single member."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetCommitReply:
    """One error per offset of the event, in its order (also of TxnOffsetCommit)."""

    errors: tuple[ErrorCode, ...]


class FetchedOffset(NamedTuple):
    """`offset` is -1 and `metadata` empty where none is committed or `error` is set."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetFetchReply:
    error: ErrorCode
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDeleteReply:
    """`error` concerns the whole group; else one error per partition of the event, in its order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsReply:
    """One error per group of the event, in its order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeGroupsReply:
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatReply:
    """`assignment` None: unchanged since it was last told."""

    error: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    """Partitions of one topic by id and name."""

    topic_id: TopicId
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    """`member_type`: 0 speaks the classic protocol, 1 the consumer protocol, -1 unknown."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]
    member_type: int


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    group_id: str
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeReply:
    groups: tuple[DescribedConsumerGroup, ...]


@dataclass(frozen=True, slots=True)
class TransactionEndedReply:
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
    | ShowPushGroupsReply
)


class Reply(NamedTuple):
    """The answer to the event that carried this token."""

    request: int
    value: ReplyValue


class Push(NamedTuple):
    """A frame that no request asked for, to a member's connection."""

    connection: int
    value: Pushed


@dataclass(frozen=True, slots=True)
class ComputeAssignment:
    """Long work: run the assignor off the loop and feed `AssignmentComputed` back.

    Attributes:
        ticket: the answer names it; one that names another is stale.
        epoch: the group's epoch.
        assignor: "uniform" or "range".
        members: what each member said, by member id, sorted.
        subscribed: member id to the topic names it is subscribed to (regular expressions resolved).
        current: member id to the previous target, so that partitions stay.
        excluded: member id to what it has and keeps: these take no part.
        topics: of all subscribed names that exist.
    """

    group_id: str
    ticket: int
    epoch: int
    assignor: str
    members: Mapping[str, MemberSaved]
    subscribed: Mapping[str, tuple[str, ...]]
    current: Mapping[str, tuple[TopicPartitions, ...]]
    topics: Mapping[str, Topic]
    excluded: Mapping[str, tuple[TopicPartitions, ...]]


@dataclass(frozen=True, slots=True)
class ResolveRegexes:
    """Long work: match RE2 patterns with all topic names and feed `RegexesResolved` back.

    Attributes:
        ticket: the answer names it; one that names another is stale.
        version: of the topic image.
    """

    group_id: str
    ticket: int
    version: int
    regexes: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookForTopics:
    """Find out which of these topics are gone, where the image can't tell. `TopicsDeleted` names them, some time later.

    Attributes:
        topics: names that the image lacks, or has under another id, with the ids that positions have of them.
    """

    topics: Mapping[str, frozenset[TopicId]]


@dataclass(frozen=True, slots=True)
class ImportGroup:
    """Ask the coordinator that has kept this group before for its offsets, and feed `GroupImported` back.

    Attributes:
        ticket: the answer names it; one that names another is stale.
    """

    group_id: str
    ticket: int


Computation: TypeAlias = ComputeAssignment | ResolveRegexes | DividePartitions
"""Work that takes nothing but time."""
Question: TypeAlias = LookForTopics | ImportGroup
"""Work that asks whoever keeps the topics, or has kept the groups."""
Work: TypeAlias = Computation | FindOffsets | Question


class Meter(enum.StrEnum):
    """What is counted, the first four under Kafka's released names. Source: spec 1.7.

    Then come heartbeats whose replies were held: those that told their members of a rebalance; those whose connection
    ended meanwhile; and those whose classic member then was so late that it is not held again. Then groups that were
    imported, those here that were found to have members at their earlier coordinator, and rebalances of push groups
    that were given up.
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


class Counted(NamedTuple):
    """A meter moved on by `amount`."""

    meter: Meter
    amount: int


class Rebalanced(NamedTuple):
    """A group is whole again.

    Attributes:
        protocol: "classic", "consumer" or "push".
        whole_ms: since the first change that led to it.
        standstill_ms: how long who stood still did so, in the mean: classic members from their join to their
            assignment, under KIP-848 partitions from being taken away to being given again.
        standstill_max_ms: the longest.
        members: in the group now.
    """

    group_id: str
    protocol: str
    whole_ms: int
    standstill_ms: float
    standstill_max_ms: int
    members: int


class Level(enum.IntEnum):
    """How much a line for the log matters, in the numbers of the logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Told(NamedTuple):
    """A line for the log: what happened and why, for people."""

    level: Level
    group_id: str
    text: str


Note: TypeAlias = Counted | Rebalanced | Told


@dataclass(slots=True)
class Outcome:
    """What one step asks the shell to do.

    Attributes:
        records: to append, in order, all or none, before the replies go out; already applied to the machine.
        replies: in order; each names the request it answers, often an earlier one.
        pushes: frames for members' connections, after the replies.
        work: to run off the loop.
        notes: log lines and counts.
    """

    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    pushes: list[Push] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
