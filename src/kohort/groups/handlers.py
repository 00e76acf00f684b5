"""The interface between a group and its protocol: `ProtocolHandlers` is a registry row of functions.

The machine, the offsets and the administrators' requests find a group's handlers by the class of its membership
(`Context.protocol`). They need nothing else about its protocol. The rows are `classic.handlers.CLASSIC`,
`consumer.handlers.CONSUMER` and `push.handlers.PUSH`; `machine.PROTOCOLS` is the table. A new protocol is a folder with
a membership, handlers and a row. A handler that a row leaves out refuses the request or does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.context import Context
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
from kohort.groups.failure_detector import CAREFUL, DetectorSettings, MonitoredMember
from kohort.groups.group import GroupMembership, M, Partition
from kohort.groups.long_polling import Release
from kohort.groups.timers import Deadline
from kohort.groups.topics import ImageChange


def refuse_join(context: Context, membership: GroupMembership, event: JoinGroup) -> None:
    """Refuse a JoinGroup: a group with members takes none of another protocol."""
    context.reply(event.request, JoinGroupReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=event.member_id))


def refuse_sync(context: Context, membership: GroupMembership, event: SyncGroup) -> None:
    """Refuse a SyncGroup: the group has no members that use it."""
    context.reply(event.request, SyncGroupReply(ErrorCode.UNKNOWN_MEMBER_ID))


def refuse_heartbeat(context: Context, membership: GroupMembership, event: Heartbeat) -> None:
    """Refuse a Heartbeat: the group has no members that use it."""
    context.reply(event.request, HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID))


def refuse_leave(context: Context, membership: GroupMembership, event: LeaveGroup) -> None:
    """Refuse a LeaveGroup: the group has no members that use it."""
    strangers = (
        LeftMember(leaver.member_id, leaver.instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for leaver in event.members
    )
    context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(strangers)))


def refuse_consumer_heartbeat(context: Context, membership: GroupMembership, event: ConsumerGroupHeartbeat) -> None:
    """Refuse a ConsumerGroupHeartbeat: the group is of another kind."""
    text = f"Group {event.group_id} is not a consumer group."
    context.reply(event.request, ConsumerGroupHeartbeatReply(ErrorCode.GROUP_ID_NOT_FOUND, text))


def nothing(*arguments: object) -> None:
    """Do nothing: the default of handlers that a protocol does not need."""


def no_error(*arguments: object) -> ErrorCode:
    """Allow the request."""
    return ErrorCode.NONE


def unknown_interval(*arguments: object) -> int:
    """Return 0: the protocol has no usual interval. Only a reply or the heartbeats themselves show a member's."""
    return 0


def method(name: str) -> Callable[..., Any]:
    """Return a handler that calls the group's own method."""

    def call(step: Context, group: Any, *arguments: Any) -> Any:
        return getattr(group, name)(step, *arguments)

    return call


def none_broken(*arguments: object) -> Iterator[str]:
    """Check nothing."""
    return iter(())


@dataclass(frozen=True, slots=True)
class ProtocolHandlers(Generic[M]):
    """The handlers of one protocol.

    Attributes:
        name: the protocol's name, and the type that ListGroups shows unless `listed_as` is set.
        listed_as: another type for ListGroups.
        membership: the class of its groups' members.
        protocol_type: returns a group's protocol type for ListGroups.
        load: builds a group's soft state after a replay; its sessions restart.
        due: handlers of expired timers, by kind; the text is the timer's subject.
        connection_lost: handles the end of the connection on which a member was last heard.
        member: returns a member for the failure detector, None if the id is unknown.
        detector: the failure detector's parameters, and whether heartbeats are delayed again after a disconnect.
        usual_ms: the heartbeat interval to assume for a member without a known one, 0: none.
        session_ms: returns a member's session timeout.
        answer_held: answers a delayed heartbeat as it would be answered now (`long_polling`).
        refuse_held: answers a delayed heartbeat with an error, and a message if the protocol has one.
        topics_changed: handles a new `Context.image`.
        may_commit: returns whether a commit is accepted, or its error.
        refused_offsets: returns the partitions that an accepted commit must not touch, with their errors; None: none.
        may_commit_in_transaction: the counterpart of `may_commit` for transactional offsets.
        committed: handles an accepted commit, which may be a sign of life.
        may_fetch: returns whether a fetch that names a member is answered, or its error.
        describe: returns the answer to DescribeGroups, None if that API does not cover such groups.
        describe_consumer: returns the answer to ConsumerGroupDescribe, None likewise.
        broken: yields violated invariants of a group, for `invariants`.
        join, sync, heartbeat, leave, consumer_heartbeat: handlers of requests that name a group. Before a `join` or a
            `consumer_heartbeat`, an empty group may have changed its protocol (`migration.group_routing`).
        results: handlers of other events that name a group, by class; without a handler the event is dropped.
        events: handlers of the protocol's own events, by class; they find their groups themselves.
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
    member: Callable[[M, str], MonitoredMember | None] = nothing
    detector: DetectorSettings = CAREFUL
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


AnyProtocol: TypeAlias = ProtocolHandlers[Any]
"""The row of any protocol. Its functions take the membership by whose class the row was found."""
