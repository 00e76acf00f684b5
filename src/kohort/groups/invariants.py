"""What must hold between any two steps, whatever came in. A broken one is a fault of ours: the shard stops.

The checks cost as much as the state is large, so that the simulation runs them on samples and a shell in debugging.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.classic.state import ClassicGroup
from kohort.groups.consumer.state import ConsumerGroup, Pair, Presence
from kohort.groups.context import Context
from kohort.groups.events import NO_CONNECTION
from kohort.groups.group import Group
from kohort.groups.outcome import GroupState
from kohort.groups.records import MemberState


class BrokenInvariantError(Exception):
    """The state contradicts itself."""


def check(context: Context) -> None:
    """Look at every group.

    Raises:
        BrokenInvariantError: naming the group and everything that is wrong with it.
    """
    for group in context.ledger.groups.values():
        broken = [*broken_in(group), *unbound_in(context, group)]
        if broken:
            raise BrokenInvariantError(f"{group.group_id}: {'; '.join(broken)}")
    for producer_id, group_ids in context.ledger.open_transactions.items():
        for group_id in group_ids:
            if producer_id not in context.ledger.groups[group_id].pending:
                raise BrokenInvariantError(f"{group_id}: transaction of {producer_id} is open without offsets")


def broken_in(group: Group) -> Iterator[str]:
    """What is wrong with one group."""
    if group.is_void():
        yield "it has no record"
    if group.consumer is not None:
        if group.saved is not None or group.classic.members or group.classic.pending:
            yield "it is of two kinds"
        yield from broken_in_consumer(group.consumer)
        return
    yield from broken_in_classic(group, group.classic)


def unbound_in(context: Context, group: Group) -> Iterator[str]:
    """Members whose connection may end unnoticed: it has not ended, and no one knows that they are on it."""
    places = [(member.member_id, member.connection, member.is_gone) for member in group.classic.members.values()]
    if group.consumer is not None:
        presences = group.consumer.presences.items()
        places = [(member_id, each.connection, each.gone_ms is not None) for member_id, each in presences]
    for member_id, connection, is_gone in places:
        bound = connection == NO_CONNECTION or (group.group_id, member_id) in context.connections.get(connection, ())
        if not is_gone and not bound:
            yield f"{member_id} is not bound to its connection {connection}"


def broken_in_classic(group: Group, classic: ClassicGroup) -> Iterator[str]:
    """What is wrong with a classic group."""
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
    if classic.state is GroupState.STABLE and (group.saved is None or group.saved.generation != group.generation):
        yield f"generation {group.generation} is Stable without its record"
    gathering = classic.gathering
    if gathering is not None:
        if classic.state is not GroupState.PREPARING_REBALANCE or not gathering.awaited:
            yield f"it gathers while it is {classic.state} and awaits {list(gathering.awaited)}"
        for name in gathering.awaited:
            awaited = classic.members.get(name)
            if awaited is None or awaited.held is not None or awaited.join_request is not None:
                yield f"it gathers for {name}, who is held, has joined or is gone"
    holds = [member.member_id for member in members if member.held is not None]
    if holds and classic.state is not GroupState.STABLE and gathering is None:
        yield f"{holds} are held while it is {classic.state} and all are told"
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


def broken_in_consumer(consumer: ConsumerGroup) -> Iterator[str]:
    """What is wrong with a group under KIP-848."""
    if consumer.target_epoch > consumer.epoch:
        yield f"target epoch {consumer.target_epoch} is beyond epoch {consumer.epoch}"
    for what, names in (("target", consumer.targets), ("standing", consumer.current), ("presence", consumer.presences)):
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
    holders: dict[Pair, str] = {}
    for member_id, current in consumer.current.items():
        if current.member_epoch > consumer.epoch:
            yield f"{member_id} is at epoch {current.member_epoch}, beyond {consumer.epoch}"
        for pair in current.assigned | current.pending:
            if pair in holders:
                yield f"{pair} is held by {holders[pair]} and {member_id}"
            holders[pair] = member_id
    if holders != consumer.holders:
        yield "holders differ from what members stand for"


def broken_waits(consumer: ConsumerGroup, member_id: str, presence: Presence) -> Iterator[str]:
    """What a member waits for that its protocol, or its being away, does not let it wait for."""
    member = consumer.members.get(member_id)
    if member is None:
        return
    beats, joins = presence.waiting is not None or presence.held is not None, presence.joining is not None
    if beats and member.classic_protocols is not None:
        yield f"{member_id} speaks the classic protocol and waits for the answer to a heartbeat of the other"
    if joins and member.classic_protocols is None:
        yield f"{member_id} speaks the consumer protocol and waits for the answer to a JoinGroup"
    if (beats or joins) and consumer.standing(member_id).is_away:
        yield f"{member_id} is away and waits for an answer"


def broken_moves(consumer: ConsumerGroup, member_id: str, presence: Presence) -> Iterator[str]:
    """What bounds the time that a member takes to give partitions up: it runs as long as it has to, and no longer."""
    runs = presence.revocation.due_ms is not None
    gives_up = consumer.standing(member_id).state is MemberState.UNREVOKED_PARTITIONS
    must = gives_up and consumer.members[member_id].classic_protocols is None and not presence.overdue
    if runs is not must:
        yield f"{member_id} {'has' if gives_up else 'has not'} to give up and its deadline {'runs' if runs else 'does not'}"
