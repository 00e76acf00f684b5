"""What a group does under one protocol: a row of functions by protocol, all rows of one shape.

The machine, the offsets and the administrators' requests find a group's row by its membership (`Context.protocol`) and
ask nothing else about its protocol. The rows stand in `classic.protocol`, `consumer.protocol` and `push.protocol`, the
table in `protocols`. Another protocol is a room with its membership, its handlers and its row. What a row leaves out is
refused, or does not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.effects import (
    ConsumerGroupHeartbeatReply,
    DescribedConsumerGroup,
    DescribedGroup,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    LeftMember,
    SyncGroupReply,
)
from kohort.groups.events import (
    ConnectionLost,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    TxnOffsetCommit,
)
from kohort.groups.failure_detector import CAREFUL, Pace, Pacing
from kohort.groups.group import M, Membership, Partition
from kohort.groups.long_polling import Release
from kohort.groups.step import Context
from kohort.groups.timers import Deadline
from kohort.groups.topics import ImageChange


def refuse_join(context: Context, membership: Membership, event: JoinGroup) -> None:
    """A group with members takes none of another protocol."""
    context.reply(event.request, JoinGroupReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=event.member_id))


def refuse_sync(context: Context, membership: Membership, event: SyncGroup) -> None:
    """No member speaks like this."""
    context.reply(event.request, SyncGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))


def refuse_heartbeat(context: Context, membership: Membership, event: Heartbeat) -> None:
    """As `refuse_sync`."""
    context.reply(event.request, HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID))


def refuse_leave(context: Context, membership: Membership, event: LeaveGroup) -> None:
    """As `refuse_sync`."""
    strangers = (LeftMember(one.member_id, one.instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for one in event.members)
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(strangers)))


def refuse_consumer_heartbeat(context: Context, membership: Membership, event: ConsumerGroupHeartbeat) -> None:
    """It is another kind of group."""
    text = f"Group {event.group_id} is not a consumer group."
    context.reply(event.request, ConsumerGroupHeartbeatReply(ErrorCode.GROUP_ID_NOT_FOUND, text))


def nothing(*asked: object) -> None:
    """It has nothing to do, or to say."""


def no_error(*asked: object) -> ErrorCode:
    """Nothing speaks against it."""
    return ErrorCode.NONE


def unknown_interval(*asked: object) -> int:
    """Only what a member was told, or what its heartbeats show, tells its interval."""
    return 0


def none_broken(*asked: object) -> Iterator[str]:
    """Nothing is checked."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Protocol(Generic[M]):
    """What the groups of one protocol do.

    Attributes:
        name: of the protocol; also the type that ListGroups shows, unless
        listed_as: says another.
        membership: the class of its groups' members.
        protocol_type: of a group, as ListGroups shows it.
        load: builds the soft state of a group after a replay; its sessions start anew.
        due: what follows when a timer ends, by what it is for; the text is the timer's subject.
        connection_lost: the connection on which this member was heard last has ended.
        member: of this id as it is heard, None when there is no such.
        pace: how members are heard: when they are silent, and whether they are held again after a disconnect.
        usual_ms: the interval at which a member is taken to be heard of whom none is known, 0: none.
        session_ms: how long this member's session is.
        answer_held: answers a held heartbeat as it would be answered now (`liveness.held`).
        refuse_held: answers a held heartbeat with this error, and a message where the protocol has one.
        topics_changed: `Context.image` is another.
        may_commit: whether this commit is taken, or its error.
        refused_offsets: of a commit that is taken, the partitions that are not, with their errors; None: none.
        may_commit_in_transaction: the same for positions that wait on a transaction's end.
        committed: a commit was taken: perhaps a sign of life.
        may_fetch: whether a fetch that names a member is answered, or its error.
        describe: the answer of DescribeGroups, None where that does not tell of such groups.
        describe_consumer: the answer of ConsumerGroupDescribe, likewise.
        broken: what is wrong with a group, for `invariants`.
        join, sync, heartbeat, leave, consumer_heartbeat: requests that name a group. An empty group may have changed
            its protocol for the first or the last of them before (`migration.arrivals`).
        results: other events that name a group of this protocol, by their class; those that find none are dropped.
        events: events of its own, which find their groups themselves, by their class.
    """

    name: str
    membership: type[M]
    protocol_type: Callable[[M], str]
    load: Callable[[Context, M], None]
    may_commit: Callable[[Context, M, OffsetCommit], ErrorCode]
    may_commit_in_transaction: Callable[[Context, M, TxnOffsetCommit], ErrorCode]
    listed_as: str = ""
    due: Mapping[Deadline, Callable[[Context, M, str], None]] = field(default_factory=dict)
    connection_lost: Callable[[Context, M, str, ConnectionLost], None] = nothing
    member: Callable[[M, str], Pacing | None] = nothing
    pace: Pace = CAREFUL
    usual_ms: Callable[[Context, M], int] = unknown_interval
    session_ms: Callable[[Context, M, Any], int] = unknown_interval
    answer_held: Callable[[Context, M, Any, Any, Release], None] = nothing
    refuse_held: Callable[[Context, Any, ErrorCode, str | None], None] = nothing
    topics_changed: Callable[[Context, M, ImageChange], None] = nothing
    committed: Callable[[Context, M, OffsetCommit], None] = nothing
    refused_offsets: Callable[[Context, M, OffsetCommit], Mapping[Partition, ErrorCode] | None] = nothing
    may_fetch: Callable[[Context, M, OffsetFetch], ErrorCode] = no_error
    describe: Callable[[Context, M], DescribedGroup | None] = nothing
    describe_consumer: Callable[[Context, M], DescribedConsumerGroup | None] = nothing
    broken: Callable[[M], Iterator[str]] = none_broken
    join: Callable[[Context, M, JoinGroup], None] = refuse_join
    sync: Callable[[Context, M, SyncGroup], None] = refuse_sync
    heartbeat: Callable[[Context, M, Heartbeat], None] = refuse_heartbeat
    leave: Callable[[Context, M, LeaveGroup], None] = refuse_leave
    consumer_heartbeat: Callable[[Context, M, ConsumerGroupHeartbeat], None] = refuse_consumer_heartbeat
    results: Mapping[type, Callable[[Context, M, Any], None]] = field(default_factory=dict)
    events: Mapping[type, Callable[[Context, Any], None]] = field(default_factory=dict)


Row: TypeAlias = Protocol[Any]
"""The row of whichever protocol, whose functions take the membership that it was found by."""
