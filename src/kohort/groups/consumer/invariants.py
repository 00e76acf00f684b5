"""What must hold in a group under KIP-848 between any two steps."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.consumer.state import ConsumerGroup, Presence
from kohort.groups.pairs import Pair
from kohort.groups.records import MemberState


def broken_in(consumer: ConsumerGroup) -> Iterator[str]:
    """What is wrong with a group under KIP-848."""
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
    if (beats or joins) and consumer.current_assignment(member_id).is_away:
        yield f"{member_id} is away and waits for an answer"


def broken_moves(consumer: ConsumerGroup, member_id: str, presence: Presence) -> Iterator[str]:
    """What bounds the time that a member takes to give partitions up: it runs as long as it has to, and no longer."""
    runs = presence.revocation.due_ms is not None
    gives_up = consumer.current_assignment(member_id).state is MemberState.UNREVOKED_PARTITIONS
    must = gives_up and consumer.members[member_id].classic_protocols is None and not presence.overdue
    if runs is not must:
        yield (
            f"{member_id} {'has' if gives_up else 'has not'} to give up "
            f"and its deadline {'runs' if runs else 'does not'}"
        )
