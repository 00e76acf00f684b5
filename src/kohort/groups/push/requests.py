"""What a consumer is asked, one thing at a time: Ping, Stop, Start; and what its answers mean. Source: spec 4.5, 4.6.

Answers have no number, so that one request is unanswered at a time and only a Ping is ever repeated. A request that
repeats nothing tells the consumer that all its answers have come, and its lease counts from the last of them; so each
is one that the consumer may go on for.

What is asked next, `advance` decides, whenever nothing is unanswered:

| the consumer | is asked |
|---|---|
| has a rival for its id | Ping: if it answers, the rival is refused |
| has answered a Stop | Ping, which brings its last positions; then it owns nothing |
| has registered again | Ping, which brings its positions |
| is to be started with other partitions, and its fetchers may run | Stop |
| is to be started, has stopped, and nobody else owns the partitions | Start, once their offsets are known |
| has registered again, and nothing else is to be done | Start of what it owns |
| else | Ping, a third of its session after its last answer |
"""

from __future__ import annotations

import zlib

from kohort.errors import ErrorCode
from kohort.groups.effects import (
    DismissConsumer,
    FindOffsets,
    Level,
    Meter,
    PingConsumer,
    Push,
    StartConsumer,
    StopConsumer,
)
from kohort.groups.events import Asking, ConsumerAnswered, OffsetsFound, Position
from kohort.groups.pairs import Pair, Pairs, pack
from kohort.groups.push import rebalance, registration
from kohort.groups.push.group import PushGroup, PushMember
from kohort.groups.records import Kind, OffsetCommitted, PushMemberSaved, PushOwned, Tombstone
from kohort.groups.step import Context
from kohort.ids import NO_POSITION, TopicPartition

PARTS = 3
"""A consumer is asked something so often in its session."""
SPREAD = 1_000
"""Pings that follow a Start are spread over so many moments of half an interval, by the members' ids."""


def interval_ms(saved: PushMemberSaved) -> int:
    """From an answer to the next Ping, and how long an answer may take."""
    return max(1, saved.session_timeout_ms // PARTS)


def bound_ms(context: Context, saved: PushMemberSaved) -> int:
    """A consumer is out when it has answered nothing for so long: its session, and so many requests."""
    return max(saved.session_timeout_ms, context.config.push_failed_requests_max * interval_ms(saved))


def first_ping_ms(saved: PushMemberSaved) -> int:
    """When a member is pinged that was started now, with many others perhaps."""
    interval = interval_ms(saved)
    return interval - interval * (zlib.crc32(saved.member_id.encode()) % SPREAD) // (2 * SPREAD)


# -- asking


def advance(context: Context, push: PushGroup, member_id: str) -> None:
    """Ask what is to be asked next, if nothing is unanswered and the consumer can be reached."""
    member = push.present[member_id]
    if member.asked is not None or member.is_gone:
        return
    if member.claim is not None or member.ending or member.back:
        ping(context, push, member)
        return
    want = push.moving.get(member_id)
    if want is not None:
        if not member.stopped:
            stop(context, push, member)
        elif push.is_free_for(member_id, want):
            start(context, push, member, want)
    elif member.told is None and not member.stopped:
        start(context, push, member, push.owned_by(member_id))


def send(
    context: Context,
    push: PushGroup,
    member: PushMember,
    asking: Asking,
    value: PingConsumer | StopConsumer | StartConsumer,
) -> None:
    """Ask, and look after an interval whether it was answered."""
    member.asked = asking
    member.out += 1
    context.out.pushes.append(Push(member.connection, value))
    context.run(member.ping, interval_ms(push.members[member.session.subject]))


def ping(context: Context, push: PushGroup, member: PushMember, retries: int = 0) -> None:
    """Is it alive, and where is it?"""
    saved = push.members[member.session.subject]
    value = PingConsumer(push.group_id, saved.member_id, saved.auto_commit, retries)
    member.proves = member.claim is not None
    send(context, push, member, Asking.PING, value)


def stop(context: Context, push: PushGroup, member: PushMember) -> None:
    """It is to read nothing more."""
    send(context, push, member, Asking.STOP, StopConsumer(push.group_id, member.session.subject))


def start(context: Context, push: PushGroup, member: PushMember, want: Pairs) -> None:
    """It is to read these; what it owns is durable before it hears of it.

    First all of them need a position, unless the member finds it itself where there is none.
    """
    member_id = member.session.subject
    saved = push.members[member_id]
    named = named_pairs(context, want)
    offsets = context.ledger.groups[push.group_id].offsets
    missing = [part for part in named if part not in offsets]
    if missing and saved.from_begin is not None:
        find(context, push, member, missing, from_begin=saved.from_begin)
        return
    if push.owned_by(member_id) != frozenset(named.values()):
        context.emit(PushOwned(push.group_id, member_id, pack(named.values())))
    at = {part: offsets[part].offset if part in offsets else NO_POSITION for part in named}
    positions = tuple(Position(part.topic, part.partition, offset) for part, offset in at.items())
    send(context, push, member, Asking.START, StartConsumer(push.group_id, member_id, positions))


def named_pairs(context: Context, pairs: Pairs) -> dict[TopicPartition, Pair]:
    """Partitions by name and number, ascending; those of topics that are gone are left out."""
    names = context.topics_by_id()
    found = {
        TopicPartition(names[topic_id].name, number): (topic_id, number)
        for topic_id, number in pairs
        if topic_id in names and number < names[topic_id].partitions
    }
    return dict(sorted(found.items()))


def find(
    context: Context, push: PushGroup, member: PushMember, missing: list[TopicPartition], *, from_begin: bool
) -> None:
    """Have begin or end of these found, if that is not under way."""
    if member.finding >= 0:
        return
    member.finding = context.ticket()
    member_id = member.session.subject
    context.out.work.append(FindOffsets(push.group_id, member_id, member.finding, tuple(missing), from_begin))


def on_found(context: Context, event: OffsetsFound) -> None:
    """Begin or end of partitions: written as their positions, so that they are the same for whoever is started next."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    member = None if push is None else push.present.get(event.member_id)
    if group is None or push is None or member is None or member.finding != event.ticket:
        return
    member.finding = -1
    for topic, partition, offset in event.positions:
        if (topic, partition) not in group.offsets and topic in context.image.topics:
            commit(context, push, Position(topic, partition, offset))
    if event.failure is not None:
        context.tell(push.group_id, f"{event.member_id} can't be started: {event.failure}", Level.WARNING)
        rebalance.pause(context, push)
    else:
        advance(context, push, event.member_id)


def commit(context: Context, push: PushGroup, position: Position) -> None:
    """Write a position."""
    topic, partition, offset = position
    context.emit(OffsetCommitted(push.group_id, topic, partition, offset, -1, "", context.now.wall_ms))
    context.count(Meter.OFFSET_COMMITS)


# -- answers


def on_answered(context: Context, event: ConsumerAnswered) -> None:
    """The oldest of what a consumer was asked is answered. One that came on another connection says nothing."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    member = None if push is None else push.present.get(event.member_id)
    if push is None or member is None or member.connection != event.connection or not member.out:
        return
    member.out -= 1
    saved = push.members[event.member_id]
    member.alive(context, bound_ms(context, saved))
    if event.asked is Asking.PING and saved.auto_commit:
        take_positions(context, push, event)
    if member.out:
        return  # a Ping was repeated: what follows waits for all its answers
    member.asked = None
    context.run(member.ping, interval_ms(saved) if event.asked is Asking.PING else first_ping_ms(saved))
    if event.error is not ErrorCode.NONE:
        refused(context, push, member, event)
    elif event.asked is Asking.PING:
        pinged(context, push, member)
    elif event.asked is Asking.STOP:
        member.refusals, member.stopped, member.ending, member.told = 0, True, True, None
        member.still_ms = context.now.mono_ms if push.owned_by(event.member_id) else None
    else:
        started(context, push, member)
    if push.present.get(event.member_id) is member:
        advance(context, push, event.member_id)


def take_positions(context: Context, push: PushGroup, event: ConsumerAnswered) -> None:
    """Auto commit: of what the consumer owns by the coordinator's word, where it has moved on or back."""
    topics, offsets = context.image.topics, context.ledger.groups[push.group_id].offsets
    for position in event.positions:
        topic = topics.get(position.topic)
        if topic is None or position.offset < 0:
            continue
        if push.holders.get((topic.id, position.partition)) != event.member_id:
            continue
        known = offsets.get((position.topic, position.partition))
        if known is None or known.offset != position.offset:
            commit(context, push, position)


def refused(context: Context, push: PushGroup, member: PushMember, event: ConsumerAnswered) -> None:
    """A Stop or a Start was answered with an error: as if the Stop had not been answered.

    A consumer that goes on so is not asked any more: its session ends it.
    """
    member.refusals += 1
    member.stopped = False
    what = f"{event.member_id} answers {event.asked.name.capitalize()} with {event.error.name}"
    if member.refusals < context.config.push_failed_requests_max:
        context.tell(push.group_id, f"{what}: it is stopped again", Level.WARNING)
        if event.member_id not in push.moving:
            rebalance.start_again(context, push, event.member_id)
    else:
        registration.lose(context, push, member, f"{what} for the {member.refusals}th time")


def pinged(context: Context, push: PushGroup, member: PushMember) -> None:
    """It is alive: a rival that came before it was asked is refused; what it had is free if it has stopped."""
    member_id = member.session.subject
    member.back = False
    if member.proves:
        registration.refuse_claim(context, member)
    if member.ending:
        member.ending = False
        release(context, push, member_id)


def release(context: Context, push: PushGroup, member_id: str) -> None:
    """What a member had is nobody's: whoever waits for it may be started."""
    pairs = push.owned_by(member_id)
    if not pairs:
        return
    context.emit(Tombstone((Kind.PUSH_OWNED, push.group_id, member_id)))
    for taker in push.waiting_for(pairs):
        if taker != member_id and taker in push.present:
            advance(context, push, taker)


def started(context: Context, push: PushGroup, member: PushMember) -> None:
    """It reads what it was started with."""
    member_id = member.session.subject
    member.refusals, member.stopped = 0, False
    owned = member.told = push.owned_by(member_id)
    if member.still_ms is not None:
        push.still.append(context.now.mono_ms - member.still_ms)
        member.still_ms = None
    want = push.moving.get(member_id)
    if want is not None and frozenset(named_pairs(context, want).values()) == owned:
        push.moved(member_id)
        rebalance.look_whether_done(context, push)


def on_ping_due(context: Context, push: PushGroup, member_id: str) -> None:
    """Nothing was unanswered for an interval, or the answer is late: only a Ping is repeated."""
    member = push.present.get(member_id)
    if member is None or member.is_gone:
        return
    saved = push.members[member_id]
    if member.asked is None:
        ping(context, push, member)
    elif member.claim is not None:
        registration.replace(context, push, member)
    elif member.asked is Asking.PING and member.out <= context.config.push_failed_requests_max:
        ping(context, push, member, member.out)
    else:
        context.run(member.ping, interval_ms(saved))


def dismiss(context: Context, push: PushGroup, member: PushMember, why: str) -> None:
    """End its connection, if it has one."""
    if not member.is_gone:
        value = DismissConsumer(push.group_id, member.session.subject, why)
        context.out.pushes.append(Push(member.connection, value))
