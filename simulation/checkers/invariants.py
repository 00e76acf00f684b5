"""Invariants that hold between any two steps, whatever the input. A violation is a bug of the coordinator.

The checks cost as much as the state is large. The simulation therefore runs them on samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.classic.group import ClassicGroup
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import MemberSoftState
from kohort.groups.context import Context
from kohort.groups.effects import GroupState
from kohort.groups.events import NO_CONNECTION, PushRequestKind
from kohort.groups.group import Group
from kohort.groups.push.group import PushGroup
from kohort.groups.push.members import PushMember
from kohort.groups.records import ReconciliationState
from kohort.groups.topics import TopicIdPartition


class BrokenInvariantError(Exception):
    """A violated invariant: the state contradicts itself."""


def check(context: Context) -> None:
    """Check the invariants of every group.

    Raises:
        BrokenInvariantError: with the group's name and every violation in it.
    """
    for group in context.ledger.groups.values():
        broken = [*broken_in(context, group), *unbound_in(context, group)]
        if broken:
            raise BrokenInvariantError(f"{group.group_id}: {'; '.join(broken)}")
    broken = [*broken_holds(context)]
    if broken:
        raise BrokenInvariantError("; ".join(broken))
    for producer_id, group_ids in context.ledger.open_transactions.items():
        for group_id in group_ids:
            if producer_id not in context.ledger.groups[group_id].pending:
                raise BrokenInvariantError(f"{group_id}: transaction of {producer_id} is open without offsets")


def broken_in(context: Context, group: Group) -> Iterator[str]:
    """Yield the violations in one group."""
    if group.has_no_records():
        yield "it has no record"
    pairs = [(producer_id, partition) for producer_id, slots in group.pending.items() for partition in slots]
    if sorted(pairs) != sorted((producer, at) for at, producers in group.pending_of.items() for producer in producers):
        yield "its transactional offsets by producer and by partition differ"
    if group.membership.group_id != group.group_id:
        yield f"it has the members of {group.membership.group_id}"
    membership = group.membership
    if isinstance(membership, ClassicGroup):
        yield from broken_classic(membership)
    elif isinstance(membership, ConsumerGroup):
        yield from broken_consumer(membership)
    elif isinstance(membership, PushGroup):
        yield from broken_push(membership)


def broken_holds(context: Context) -> Iterator[str]:
    """Yield long-polled heartbeats whose member does not exist, or that have no running time limit."""
    for request, timer in context.long_polls.items():
        group_id, member_id = timer.group_id, timer.subject
        group = context.find(group_id)
        member = None if group is None else group.membership.find_member(member_id)
        if member is None or member.long_poll_timer is not timer:
            yield f"{group_id}: request {request} is held for {member_id}, who is not in it"
        elif member.long_poll is None or member.long_poll.request != request:
            yield f"{group_id}: request {request} is held for {member_id}, who knows nothing of it"
        elif timer.due_ms is None:
            yield f"{group_id}: nothing ends the hold of request {request} for {member_id}"


def unbound_in(context: Context, group: Group) -> Iterator[str]:
    """Yield members that are not registered on their open connection, so that its end would go unnoticed."""
    for member_id, connection, is_gone in group.membership.member_connections():
        bound = connection == NO_CONNECTION or (group.group_id, member_id) in context.connections.get(connection, ())
        if not is_gone and not bound:
            yield f"{member_id} is not bound to its connection {connection}"


# -- Classic groups


def broken_classic(classic: ClassicGroup) -> Iterator[str]:
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
            if awaited is None or awaited.long_poll is not None or awaited.join_request is not None:
                yield f"its notification waits for {name}, which is held, has joined or is gone"
    holds = [member.member_id for member in members if member.long_poll is not None]
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


# -- Groups under KIP-848


def broken_consumer(consumer: ConsumerGroup) -> Iterator[str]:
    """Yield the violated invariants of a group under KIP-848."""
    if consumer.target_epoch > consumer.epoch:
        yield f"target epoch {consumer.target_epoch} is beyond epoch {consumer.epoch}"
    for what, names in (
        ("target", consumer.targets),
        ("current assignment", consumer.current),
        ("presence", consumer.presences),
    ):
        if not names.keys() <= consumer.members.keys():
            yield f"a stranger has a {what}"
    statics = {m.instance_id: m.member_id for m in consumer.members.values() if m.instance_id is not None}
    if consumer.static_ids != statics:
        yield f"static_ids are {consumer.static_ids}"
    for member_id in consumer.members:
        presence = consumer.presences.get(member_id)
        if presence is None or presence.session.due_ms is None:
            yield f"no session of {member_id} runs"
        else:
            yield from broken_waits(consumer, member_id, presence)
            yield from broken_moves(consumer, member_id, presence)
    holders: dict[TopicIdPartition, str] = {}
    for member_id, current in consumer.current.items():
        if current.member_epoch > consumer.epoch:
            yield f"{member_id} is at epoch {current.member_epoch}, beyond {consumer.epoch}"
        for pair in current.assigned | current.pending:
            if pair in holders:
                yield f"{pair} is held by {holders[pair]} and {member_id}"
            holders[pair] = member_id
    if holders != consumer.holders:
        yield "holders differ from what members stand for"
    moving = {
        member_id
        for member_id in consumer.members
        if not consumer.current_assignment(member_id).is_reconciled_to(consumer.target_epoch)
    }
    if moving != consumer.moving_members():
        yield f"the members that move are {moving}"


def broken_waits(consumer: ConsumerGroup, member_id: str, presence: MemberSoftState) -> Iterator[str]:
    """Yield pending requests that a member's protocol does not allow, or that it may not have while it is away."""
    member = consumer.members.get(member_id)
    if member is None:
        return
    beats, joins = presence.waiting is not None or presence.long_poll is not None, presence.joining is not None
    if beats and member.classic_protocols is not None:
        yield f"{member_id} speaks the classic protocol and waits for the answer to a heartbeat of the other"
    if joins and member.classic_protocols is None:
        yield f"{member_id} speaks the consumer protocol and waits for the answer to a JoinGroup"
    if (beats or joins) and consumer.current_assignment(member_id).has_left_temporarily:
        yield f"{member_id} is away and waits for an answer"


def broken_moves(consumer: ConsumerGroup, member_id: str, presence: MemberSoftState) -> Iterator[str]:
    """Yield missing timers of members that have to revoke partitions, and timers of members that need not."""
    runs = presence.revocation.due_ms is not None
    gives_up = consumer.current_assignment(member_id).state is ReconciliationState.UNREVOKED_PARTITIONS
    must = gives_up and consumer.members[member_id].classic_protocols is None and not presence.overdue
    if runs is not must:
        yield (
            f"{member_id} {'has' if gives_up else 'has not'} to give up "
            f"and its deadline {'runs' if runs else 'does not'}"
        )


# -- Push groups


def broken_push(push: PushGroup) -> Iterator[str]:
    """Yield the violated invariants of a push group."""
    if push.members.keys() != push.present.keys():
        yield "members are not those that are heard"
    for what, names in (("owns", push.owned.keys()), ("is to be started", push.moving.keys())):
        if not names <= push.members.keys():
            yield f"a stranger {what}"
    holders: dict[TopicIdPartition, str] = {}
    for member_id, pairs in push.owned.items():
        for pair in pairs:
            if pair in holders:
                yield f"{pair} is owned by {holders[pair]} and {member_id}"
            holders[pair] = member_id
    if holders != push.holders:
        yield "holders differ from what members own"
    runs = push.attempts.due_ms is not None or push.backoff.due_ms is not None or push.dividing >= 0
    if push.rebalancing and not runs:
        yield "a rebalance is under way, and nothing ends it"
    if not push.rebalancing and (push.moving or push.dividing >= 0):
        yield "members are moved, and no rebalance is under way"
    if push.again and not push.rebalancing and push.backoff.due_ms is None:
        yield "it is marked to be looked at again, and nothing will"
    for member_id, member in push.present.items():
        yield from broken_asking(member_id, member)


def broken_asking(member_id: str, member: PushMember) -> Iterator[str]:
    """Yield contradictions between a member's unanswered requests and its timers."""
    if member.session.due_ms is None:
        yield f"no session of {member_id} runs"
    if (member.asked is None) != (member.out == 0):
        yield f"{member_id} was asked {member.asked}, and owes {member.out} answers"
    if member.out > 1 and member.asked is not PushRequestKind.PING:
        yield f"{member.asked} of {member_id} was repeated"
    if member.is_gone and (member.asked is not None or member.ping.due_ms is not None or member.claim is not None):
        yield f"{member_id} can't be reached, and is asked"
    if not member.is_gone and member.ping.due_ms is None:
        yield f"{member_id} is never asked again"
