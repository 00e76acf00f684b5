"""The handlers of the classic protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kohort.errors import ErrorCode
from kohort.groups.classic import deferred_notification, rebalance, requests
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.classic.requests import is_current, validate
from kohort.groups.effects import DescribedGroup, DescribedMember, GroupState, GroupType
from kohort.groups.events import NO_CONNECTION, ConnectionLost, OffsetCommit, TxnOffsetCommit
from kohort.groups.handlers import ProtocolHandlers
from kohort.groups.migration import group_routing
from kohort.groups.context import Context
from kohort.groups.timers import Deadline

# -- Classic members whose connection ended without a leave; `failure_detector` defines their grace period


def on_connection_lost(context: Context, classic: ClassicGroup, member_id: str, event: ConnectionLost) -> None:
    """Evict a new member that no reply has told its id; start the grace period of any other."""
    drop_untold(context, classic, member_id)
    member = classic.members.get(member_id)
    if member is None or member.connection != event.connection:
        return
    member.lose(
        context,
        classic,
        event,
        is_static=member.instance_id is not None,
        process=member.client.process,
        interval_ms=member.session_timeout_ms // 3,
    )


def drop_untold(context: Context, classic: ClassicGroup, member_id: str) -> None:
    """Evict a new member whose connection ended before a reply told its id."""
    member = classic.members.get(member_id)
    if member_id in classic.pending or (member is not None and not member.told):
        rebalance.evict(context, classic, member_id, f"the connection of new member {member_id} ended")


# -- Invariants of a classic group between any two steps


def broken_in(classic: ClassicGroup) -> Iterator[str]:
    """Yield the violated invariants of a classic group."""
    members = classic.members.values()
    if classic.awaiting_join != sum(member.join_request is not None for member in members):
        yield f"awaiting_join is {classic.awaiting_join}"
    if classic.size != sum(member.size for member in members):
        yield f"size is {classic.size}"
    votes: dict[str, int] = {}
    for member in members:
        for name in dict.fromkeys([protocol.name for protocol in member.protocols]):
            votes[name] = votes.get(name, 0) + 1
    if {name: count for name, count in classic.votes.items() if count} != votes:
        yield f"votes are {classic.votes}"
    statics = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
    if classic.static_ids != statics:
        yield f"static_ids are {classic.static_ids}"
    if classic.pending.keys() & classic.members.keys():
        yield "a member is pending too"
    if classic.members and classic.leader not in classic.members:
        yield f"the leader is {classic.leader}"
    if classic.state is GroupState.EMPTY and classic.members:
        yield "it is Empty with members"
    if classic.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE) and classic.protocol is None:
        yield f"it is {classic.state} without a protocol"
    if not classic.pending_sync.keys() <= classic.members.keys():
        yield "a stranger is awaited to sync"
    if classic.state is GroupState.STABLE and (classic.saved is None or classic.saved.generation != classic.generation):
        yield f"generation {classic.generation} is Stable without its record"
    deferral = classic.deferral
    if deferral is not None:
        if classic.state is not GroupState.PREPARING_REBALANCE or not deferral.awaited:
            yield f"its notification is deferred while it is {classic.state} and awaits {list(deferral.awaited)}"
        for name in deferral.awaited:
            awaited = classic.members.get(name)
            if awaited is None or awaited.held is not None or awaited.join_request is not None:
                yield f"its notification waits for {name}, which is held, has joined or is gone"
    holds = [member.member_id for member in members if member.held is not None]
    if holds and classic.state is not GroupState.STABLE and deferral is None:
        yield f"{holds} are held while it is {classic.state} and all were notified"
    unwatched = [
        member.member_id
        for member in members
        if member.session.due_ms is None and member.join_request is None and member.sync_request is None
    ]
    if unwatched:
        yield f"no sessions of {unwatched} run"
    if classic.state is GroupState.PREPARING_REBALANCE and classic.join_phase.due_ms is None:
        yield "nothing ends its join phase"
    if classic.state is GroupState.COMPLETING_REBALANCE and classic.sync_phase.due_ms is None and classic.pending_sync:
        yield "nothing ends its sync phase"
    waiting = [member.member_id for member in members if member.sync_request is not None]
    if waiting and classic.state is not GroupState.COMPLETING_REBALANCE:
        yield f"{waiting} wait for a sync while it is {classic.state}"


# -- Permission to commit in a classic group. Source: spec 1.1, KIP-447


def may_commit(context: Context, classic: ClassicGroup, event: OffsetCommit) -> ErrorCode:
    """Return whether a member, or a client without group management, may commit now."""
    generation, is_empty = event.generation, classic.state is GroupState.EMPTY
    if generation < 0 and is_empty:
        return ErrorCode.NONE
    if generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.member_id not in classic.members or event.instance_id is not None:
        error = validate(classic, event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
    if not is_current(classic, generation):
        return ErrorCode.ILLEGAL_GENERATION
    if classic.state is GroupState.COMPLETING_REBALANCE or (classic.awaiting_join and has_given_up(classic, event)):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def may_commit_in_transaction(context: Context, classic: ClassicGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Return whether a transactional commit is accepted: a producer may omit the member, and no rebalance delays it."""
    if event.generation < 0 and classic.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if event.generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.NONE
    error = validate(classic, event.member_id, event.instance_id)
    if error is ErrorCode.NONE and not is_current(classic, event.generation):
        error = ErrorCode.ILLEGAL_GENERATION
    return error


def has_given_up(classic: ClassicGroup, event: OffsetCommit) -> bool:
    """Return whether a commit follows its member's JoinGroup, before which an eager member revokes its partitions.

    Kafka processes a connection's requests one after the other, so it sees such a commit after the rebalance and
    refuses it. A process that was paused while it waited to join cannot commit here what others may have
    read since.
    """
    member = classic.members.get(event.member_id)
    if member is None or member.join_request is None or event.connection == NO_CONNECTION:
        return False
    return event.connection == member.connection and deferred_notification.COOPERATIVE not in (classic.protocol or "")


def committed(context: Context, classic: ClassicGroup, event: OffsetCommit) -> None:
    """Count a member's commit as a sign of life."""
    member = classic.members.get(event.member_id)
    if member is not None and classic.state is not GroupState.COMPLETING_REBALANCE:
        member.restart_session(context)


def describe(context: Context, classic: ClassicGroup) -> DescribedGroup:
    """Describe a group with its members; their metadata only while it is stable."""
    protocol = classic.protocol if classic.state is GroupState.STABLE else None
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client.id,
            member.client.host,
            member.metadata(protocol),
            member.assignment,
        )
        for member in classic.members.values()
    )
    return DescribedGroup(classic.group_id, classic.state, classic.protocol_type or "", protocol or "", members)


CLASSIC: Final = ProtocolHandlers(
    name=GroupType.CLASSIC,
    membership=ClassicGroup,
    protocol_type=lambda classic: classic.protocol_type or "",
    load=requests.load,
    due={
        Deadline.SESSION: rebalance.on_session_end,
        Deadline.PENDING_MEMBER: requests.not_awaited,
        Deadline.JOIN_PHASE: rebalance.on_join_deadline,
        Deadline.SYNC_PHASE: rebalance.on_sync_deadline,
        Deadline.NOTIFICATION: deferred_notification.on_deadline,
    },
    connection_lost=on_connection_lost,
    member=lambda classic, member_id: classic.members.get(member_id),
    detector=deferred_notification.DETECTOR_SETTINGS,
    session_ms=lambda context, classic, member: member.session_timeout_ms,
    answer_held=deferred_notification.answer_held,
    refuse_held=deferred_notification.refuse_held,
    topics_changed=rebalance.on_image,
    may_commit=may_commit,
    may_commit_in_transaction=may_commit_in_transaction,
    committed=committed,
    describe=describe,
    broken=broken_in,
    join=requests.join,
    sync=requests.sync,
    heartbeat=requests.heartbeat,
    leave=requests.leave,
    consumer_heartbeat=group_routing.refuse_consumer,
)
