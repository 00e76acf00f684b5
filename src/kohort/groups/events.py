"""The coordinator's events: one immutable class for each kind of request, and the shard's own events.

A class covers all wire versions of its request.

Every request carries `request`, an id that the caller chose and that the reply names. The caller itself answers what
the core cannot know: unknown topics, authorization, and the shard of a group. Absent strings are None; an empty member
id is "". Byte strings are `bytes`, copied out of the frame.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, overload

from msgspec import Struct

from kohort.errors import ErrorCode
from kohort.groups.records import OfferedProtocol, TopicPartitions
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition

# -- Answers of push consumers, and other events of push groups alone; the other events stand below


class PushRequestKind(enum.Enum):
    """The kind of request that a push consumer answers: Ping, Stop or Start."""

    PING = enum.auto()
    STOP = enum.auto()
    START = enum.auto()


class PushPosition(NamedTuple):
    """A partition and the next offset to read, in requests to push consumers and in their answers."""

    topic: str
    partition: int
    offset: int


class PushConsumerAnswered(Struct, frozen=True):
    """A push consumer's answer to the oldest outstanding request on this connection.

    Attributes:
        asked: the kind of that request.
        error: the result of a Stop or a Start.
        positions: the result of a Ping.
    """

    group_id: str
    member_id: str
    connection: int
    asked: PushRequestKind
    error: ErrorCode = ErrorCode.NONE
    positions: tuple[PushPosition, ...] = ()


class PushAssignmentComputed(Struct, frozen=True):
    """The result of a `ComputePushAssignment`; ignored if another one was requested since.

    Attributes:
        assignment: partitions by member id.
        matched: the matching topics by regular expression and whether the expression excludes.
        failure: why there is no assignment, else None.
    """

    group_id: str
    ticket: int
    assignment: Mapping[str, tuple[TopicPartitions, ...]]
    matched: Mapping[tuple[str, bool], frozenset[str]]
    failure: str | None = None


class DescribePushGroups(Struct, frozen=True):
    """A request for the owners and offsets of this shard's push groups, to publish them. Source: spec 4.7.

    Attributes:
        whole: include all groups, not only those that have changed since the last request.
    """

    request: int
    whole: bool = True


class OwnerNodesDeleted(Struct, frozen=True):
    """The report that owner nodes of a push group's partitions were deleted in ZooKeeper.

    The group rebalances: the owners of these partitions are stopped and started again. Source: spec 4.7, condition 1.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...]


class OffsetsFound(Struct, frozen=True):
    """The result of a `FindOffsets`: start or end offsets. `failure` says why some are missing, else None."""

    group_id: str
    member_id: str
    ticket: int
    positions: tuple[PushPosition, ...]
    failure: str | None = None


NO_CONNECTION = -1


class Client(NamedTuple):
    """The sender of a request: the header's client id and the socket's peer as Kafka prints it ("/127.0.0.1").

    `process` is the id that the client reports for its process, "" if there is none.
    """

    id: str
    host: str
    process: str = ""


class JoinGroup(Struct, frozen=True):
    """A JoinGroup request, versions 0-9.

    Attributes:
        member_id: empty on a first join.
        new_member_id: a fresh id for an empty `member_id`; the caller makes it (client id, "-", a uuid).
        requires_known_id: answer a dynamic member's first join with MEMBER_ID_REQUIRED (version 4 and up, KIP-394).
        can_skip_assignment: a returning static leader may be told to skip the assignment (version 9 and up, KIP-814).
        rebalance_timeout_ms: version 0 has none, so the caller passes the session timeout.
        connection: the number of the connection, by which `ConnectionLost` finds its members.
    """

    request: int
    group_id: str
    member_id: str
    new_member_id: str
    client: Client
    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    reason: str | None = None
    requires_known_id: bool = True
    can_skip_assignment: bool = False
    connection: int = NO_CONNECTION


class SyncGroup(Struct, frozen=True):
    """A SyncGroup request, versions 0-5. `assignments` (member id, bytes) come from the leader only."""

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
    """A Heartbeat request, versions 0-4.

    Attributes:
        delay_ms: how long the client tolerates a delayed reply; 0: reply immediately.
        interval_ms: the client's known heartbeat interval; 0: unknown.
    """

    request: int
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    delay_ms: int = 0
    connection: int = NO_CONNECTION
    interval_ms: int = 0


class LeavingMember(Struct, frozen=True):
    """A member in a LeaveGroup. An administrator removes a static member by instance id alone (empty member id)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroup(Struct, frozen=True):
    """A LeaveGroup request, versions 0-5; versions 0-2 name one member."""

    request: int
    group_id: str
    members: tuple[LeavingMember, ...]


class OffsetToCommit(NamedTuple):
    """An offset to commit for one partition.

    `topic_id` is the id in the request (version 10), else zero.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID


_NEW_OFFSET: Final[Callable[[Iterable[Any]], OffsetToCommit]] = partial(tuple.__new__, OffsetToCommit)
"""`OffsetToCommit._make` without its overhead in Python."""


_NO_OFFSETS: Final = ((),) * len(OffsetToCommit._fields)


class OffsetColumns(Sequence[OffsetToCommit]):
    """The offsets of a commit by column, since one commit may name hundreds of partitions.

    Attributes:
        columns: the fields of `OffsetToCommit` in its order, each of equal length.
        places: topic and partition of each offset.
    """

    __slots__ = ("columns", "places")

    def __init__(self, columns: Sequence[Sequence[Any]], places: Sequence[tuple[str, int]] | None = None) -> None:
        self.columns = columns
        self.places = tuple(zip(columns[0], columns[1], strict=True)) if places is None else places

    @classmethod
    def of(cls, offsets: Sequence[OffsetToCommit]) -> OffsetColumns:
        """Return offsets to commit by column, from either form in which an event has them."""
        if isinstance(offsets, OffsetColumns):
            return offsets
        return cls(list(zip(*offsets, strict=True)) or _NO_OFFSETS)

    @classmethod
    def joined(cls, parts: Sequence[Sequence[Sequence[Any]]]) -> OffsetColumns:
        """Return one `OffsetColumns` with the offsets of several parts, each given by column."""
        if len(parts) == 1:
            return cls(parts[0])
        return cls([list(chain.from_iterable(column)) for column in zip(*parts, strict=True)] or _NO_OFFSETS)

    def with_offsets(self, offsets: Sequence[int], leader_epochs: Sequence[int]) -> OffsetColumns:
        """Return a copy with other offsets and leader epochs for the same partitions; the commit metadata stays."""
        topics, partitions, _, _, metadata, topic_ids = self.columns
        return OffsetColumns((topics, partitions, offsets, leader_epochs, metadata, topic_ids), self.places)

    @property
    def metadata(self) -> Sequence[str]:
        """The commit metadata of each offset."""
        return self.columns[4]

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> OffsetToCommit: ...
    @overload
    def __getitem__(self, index: slice) -> OffsetColumns: ...
    def __getitem__(self, index: int | slice) -> OffsetToCommit | OffsetColumns:
        chosen = [column[index] for column in self.columns]
        return OffsetColumns(chosen) if isinstance(index, slice) else _NEW_OFFSET(chosen)

    def __iter__(self) -> Iterator[OffsetToCommit]:
        return map(_NEW_OFFSET, zip(*self.columns, strict=True))

    def __repr__(self) -> str:
        return repr(tuple(self))


class OffsetCommit(NamedTuple):
    """An OffsetCommit request, versions 2-10, of a member or, with generation -1 and an empty member id, of anyone.

    Attributes:
        generation: the generation or member epoch.
        offsets: offsets of known topics only; the caller answers the others itself.
        retention_ms: the requested retention (versions 2-4); -1: the configured one.
        knows_stale_epoch: the client understands STALE_MEMBER_EPOCH (version 9 and up).
    """

    request: int
    group_id: str
    member_id: str
    generation: int
    offsets: Sequence[OffsetToCommit]
    instance_id: str | None = None
    retention_ms: int = -1
    knows_stale_epoch: bool = True
    connection: int = NO_CONNECTION


class TxnOffsetCommit(Struct, frozen=True):
    """A TxnOffsetCommit request, versions 0-6: offsets that take effect when the producer's transaction commits."""

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


class OffsetFetch(Struct, frozen=True):
    """One group of an OffsetFetch request, versions 1-10.

    Attributes:
        partitions: None: all that have an offset.
        require_stable: answer UNSTABLE_OFFSET_COMMIT if a transactional offset is pending (KIP-447).
        member_id: a member to check (version 9 and up); None if the request names none.
    """

    request: int
    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class OffsetDelete(Struct, frozen=True):
    """An OffsetDelete request, version 0 (KIP-496). `partitions` holds only those of known topics."""

    request: int
    group_id: str
    partitions: tuple[TopicPartition, ...]


class DeleteGroups(Struct, frozen=True):
    """A DeleteGroups request, versions 0-3, for the groups of this shard."""

    request: int
    group_ids: tuple[str, ...]


class DescribeGroups(Struct, frozen=True):
    """A DescribeGroups request, versions 0-6, for the groups of this shard.

    `knows_missing`: the client understands GROUP_ID_NOT_FOUND (version 6).
    """

    request: int
    group_ids: tuple[str, ...]
    knows_missing: bool = True


class ListGroups(Struct, frozen=True):
    """A ListGroups request, versions 0-5. Filters ignore case; an empty filter lets everything pass."""

    request: int
    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ConsumerGroupHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat request, versions 0-1 (KIP-848). None means unchanged since the last heartbeat.

    Attributes:
        member_id: made by the member (version 1), or empty on a first join of version 0.
        new_member_id: a fresh id from the caller for an empty `member_id`.
        member_epoch: 0 joins, -1 leaves, -2 marks the temporary leave of a static member.
        rebalance_timeout_ms: -1: unchanged.
        owned: the member's partitions; None: unchanged.
        delay_ms: how long the client tolerates a delayed reply; 0: reply immediately.
        short_interval: the flag of `client_quirks.DelayTolerance`.
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
    delay_ms: int = 0
    short_interval: bool = False
    connection: int = NO_CONNECTION


class ConsumerGroupDescribe(Struct, frozen=True):
    """A ConsumerGroupDescribe request, versions 0-1, for the groups of this shard."""

    request: int
    group_ids: tuple[str, ...]


class Topic(Struct, frozen=True):
    """A topic. `racks` lists the racks of each partition's replicas; it is empty if they are unknown."""

    name: str
    id: TopicId
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class TopicImage(Struct, frozen=True):
    """All topics at one moment. `version` grows with each change.

    Attributes:
        sure: the image is complete: a missing topic does not exist, and no topic is recreated unnoticed. An image of
            topics that are kept elsewhere is not `sure`. Committed offsets then keep their topics' ids, and
            `FindDeletedTopics` checks missing topics.
    """

    version: int = 0
    topics: Mapping[str, Topic] = {}
    sure: bool = True


class TopicsChanged(Struct, frozen=True):
    """A change of the topics: some were created, deleted or extended. `TopicsDeleted` drops offsets of deleted ones."""

    image: TopicImage


class TopicsDeleted(Struct, frozen=True):
    """A deletion of topics together with their committed offsets.

    If the image is not `sure`, a topic of the same name may exist again. Offsets with its id are kept.
    """

    topics: tuple[str, ...]


class TransactionEnded(Struct, frozen=True):
    """The end of a producer's transaction, read from the end marker in this shard's journal partition.

    Attributes:
        request: the id of the request to answer (`TransactionEndedReply`), None if there is none.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    request: int | None = None


class AssignmentComputed(Struct, frozen=True):
    """The result of a `ComputeAssignment`; ignored if the group has a newer epoch.

    Attributes:
        assignment: partitions by member id.
        failure: why there is no assignment, else None.
    """

    group_id: str
    ticket: int
    epoch: int
    assignment: Mapping[str, tuple[TopicPartitions, ...]]
    failure: str | None = None


class RegexesResolved(Struct, frozen=True):
    """The result of a `ResolveRegexes`: sorted topic names by regular expression."""

    group_id: str
    ticket: int
    version: int
    topics: Mapping[str, tuple[str, ...]]


class GroupImported(Struct, frozen=True):
    """The result of an `ImportGroupOffsets`; ignored if another one was requested since.

    Attributes:
        offsets: the group's committed offsets at the earlier coordinator, where it has no members; empty if there is
            nothing to import.
        error: NONE, COORDINATOR_LOAD_IN_PROGRESS if there was no answer, or else the reason for a refusal.
        text: the reason and the remedy, in words.
    """

    group_id: str
    ticket: int
    offsets: tuple[OffsetToCommit, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    text: str = ""


class GroupSettings(Struct, frozen=True):
    """The settings of one group (KIP-848 group configs); None stands for the broker's default."""

    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None


class GroupSettingsChanged(Struct, frozen=True):
    """A change of a group's configuration resource. The caller has checked its limits."""

    group_id: str
    settings: GroupSettings


class ConnectionLost(Struct, frozen=True):
    """The end of a connection without a leave: a hint that its members are dead, but no proof.

    Attributes:
        noticed: evict the members unless they return soon; False: let their sessions run on.
        lease_ms: the client's disconnect lease in ms, 0: it has none (see `failure_detector`).
        ended: the client's process id if that process is known to have ended, else "".
    """

    connection: int
    noticed: bool = False
    lease_ms: int = 0
    ended: str = ""


class ReleaseLongPolls(Struct, frozen=True):
    """A request to answer delayed heartbeats now: another request follows on the connection, or the shard moves."""

    requests: tuple[int, ...]


class RegisterConsumer(Struct, frozen=True):
    """A push consumer's registration: its connection accepts Ping, Stop and Start requests. Source: spec 4.4.

    Attributes:
        member_id: the consumer's own id.
        topics: streams by topic; empty with a regular expression.
        regex: a pattern for topic names, or None if `topics` lists them.
        excluding: the consumer reads the topics that the expression does not match.
        streams: the number of streams for every matching topic.
        auto_commit: the consumer's answers to pings carry its positions.
        from_begin: where to start in a partition without a committed offset: True at its start, False at its end. None:
            the consumer finds the offset itself and is started with NO_POSITION.
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


class TimersDue(Struct, frozen=True):
    """The event that a timer may be due: the time of `GroupMachine.next_deadline_ms` has passed."""


OneGroupRequest: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | OffsetFetch
    | OffsetDelete
    | ConsumerGroupHeartbeat
    | RegisterConsumer
)
"""Requests that name one group."""
Request: TypeAlias = (
    OneGroupRequest | DeleteGroups | DescribeGroups | ListGroups | ConsumerGroupDescribe | DescribePushGroups
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
    | ReleaseLongPolls
    | PushConsumerAnswered
    | PushAssignmentComputed
    | OffsetsFound
    | OwnerNodesDeleted
    | TimersDue
)
