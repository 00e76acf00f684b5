"""Requests to push consumers, one at a time: Ping, Stop, Start; and the effect of their answers. Source: spec 4.5, 4.6.

Answers have no number. So only one request is unanswered at a time, and only a Ping is ever repeated. A request that is
not a repetition tells the consumer that all its answers have arrived. The consumer's lease counts from the last of
them, so every such request permits it to go on.

If nothing is unanswered, `advance` chooses the next request:

| the consumer | request |
|---|---|
| has a conflicting registration of its id | Ping: an answer refuses the registration |
| has answered a Stop | Ping, for its last positions; then it owns nothing |
| has registered again | Ping, for its positions |
| has to be started with other partitions, and may still fetch | Stop |
| has to be started, has stopped, and nobody else owns the partitions | Start, once their offsets are known |
| has registered again, and nothing else is due | Start with its own partitions |
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
from kohort.groups.events import ConsumerAnswered, OffsetsFound, Position, PushRequestKind
from kohort.groups.pairs import Pair, Pairs, pack
from kohort.groups.push import rebalance, registration
from kohort.groups.push.group import PushGroup, PushMember
from kohort.groups.records import Kind, OffsetCommitted, PushMemberSaved, PushOwned, Tombstone
from kohort.groups.step import Context
from kohort.ids import NO_POSITION, TopicPartition

PARTS = 3
"""The number of requests to a consumer in one session."""
SPREAD = 1_000
"""The number of moments, within half an interval, over which the Pings after a Start are spread by member id."""


def interval_ms(saved: PushMemberSaved) -> int:
    """Return the time from an answer to the next Ping, which is also the time limit of an answer."""
    return max(1, saved.session_timeout_ms // PARTS)


def bound_ms(context: Context, saved: PushMemberSaved) -> int:
    """Return the silence after which a consumer is evicted: its session, or the limit of failed requests if longer."""
    return max(saved.session_timeout_ms, context.config.push_failed_requests_max * interval_ms(saved))


def first_ping_ms(saved: PushMemberSaved) -> int:
    """Return the delay of the first Ping after a Start, which many other members may have got at the same time."""
    interval = interval_ms(saved)
    return interval - interval * (zlib.crc32(saved.member_id.encode()) % SPREAD) // (2 * SPREAD)


# -- requests


def advance(context: Context, push: PushGroup, member_id: str) -> None:
    """Send the next request if nothing is unanswered and the consumer is connected."""
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
    asking: PushRequestKind,
    value: PingConsumer | StopConsumer | StartConsumer,
) -> None:
    """Send a request, and set the timer for its answer."""
    member.asked = asking
    member.out += 1
    context.out.pushes.append(Push(member.connection, value))
    context.run(member.ping, interval_ms(push.members[member.session.subject]))


def ping(context: Context, push: PushGroup, member: PushMember, retries: int = 0) -> None:
    """Send a Ping, which asks whether a consumer is alive and for its positions."""
    saved = push.members[member.session.subject]
    value = PingConsumer(push.group_id, saved.member_id, saved.auto_commit, retries)
    member.proves = member.claim is not None
    send(context, push, member, PushRequestKind.PING, value)


def stop(context: Context, push: PushGroup, member: PushMember) -> None:
    """Send a Stop, after which the consumer reads nothing more."""
    send(context, push, member, PushRequestKind.STOP, StopConsumer(push.group_id, member.session.subject))


def start(context: Context, push: PushGroup, member: PushMember, want: Pairs) -> None:
    """Send a Start with partitions; the ownership is durable before the consumer learns of it.

    First all partitions need a position, unless the consumer finds missing ones itself.
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
    send(context, push, member, PushRequestKind.START, StartConsumer(push.group_id, member_id, positions))


def named_pairs(context: Context, pairs: Pairs) -> dict[TopicPartition, Pair]:
    """Return partitions by name and number, ascending, without those of deleted topics."""
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
    """Request the begin or end of partitions, unless that is under way."""
    if member.finding >= 0:
        return
    member.finding = context.ticket()
    member_id = member.session.subject
    context.out.work.append(FindOffsets(push.group_id, member_id, member.finding, tuple(missing), from_begin))


def on_found(context: Context, event: OffsetsFound) -> None:
    """Write found offsets as positions, so that every later consumer starts from the same ones."""
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
        context.log(push.group_id, f"member {event.member_id} cannot be started: {event.failure}", Level.WARNING)
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
    """Process the answer to a consumer's oldest request; ignore one from a former connection."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    member = None if push is None else push.present.get(event.member_id)
    if push is None or member is None or member.connection != event.connection or not member.out:
        return
    member.out -= 1
    saved = push.members[event.member_id]
    member.alive(context, bound_ms(context, saved))
    if event.asked is PushRequestKind.PING and saved.auto_commit:
        take_positions(context, push, event)
    if member.out:
        return  # a Ping was repeated: the next request waits for all its answers
    member.asked = None
    context.run(member.ping, interval_ms(saved) if event.asked is PushRequestKind.PING else first_ping_ms(saved))
    if event.error is not ErrorCode.NONE:
        refused(context, push, member, event)
    elif event.asked is PushRequestKind.PING:
        pinged(context, push, member)
    elif event.asked is PushRequestKind.STOP:
        member.refusals, member.stopped, member.ending, member.told = 0, True, True, None
        member.still_ms = context.now.mono_ms if push.owned_by(event.member_id) else None
    else:
        started(context, push, member)
    if push.present.get(event.member_id) is member:
        advance(context, push, event.member_id)


def take_positions(context: Context, push: PushGroup, event: ConsumerAnswered) -> None:
    """Auto commit the positions of partitions that the coordinator assigned to the consumer, if they have changed."""
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
    """Handle an error in the answer to a Stop or a Start: stop the consumer again.

    A consumer that repeats the error is disconnected, and its session timeout evicts it.
    """
    member.refusals += 1
    member.stopped = False
    answer = f"answered {event.asked.name.capitalize()} with {event.error.name}"
    if member.refusals < context.config.push_failed_requests_max:
        context.log(push.group_id, f"member {event.member_id} {answer}; stopping it again", Level.WARNING)
        if event.member_id not in push.moving:
            rebalance.start_again(context, push, event.member_id)
    else:
        text = f"member {event.member_id} disconnected: {answer}, {member.refusals} times in a row"
        registration.lose(context, push, member, text)


def pinged(context: Context, push: PushGroup, member: PushMember) -> None:
    """Handle a Ping's answer: refuse a conflicting registration, and free the partitions of a stopped member."""
    member_id = member.session.subject
    member.back = False
    if member.proves:
        registration.refuse_conflicting(context, member)
    if member.ending:
        member.ending = False
        release(context, push, member_id)


def release(context: Context, push: PushGroup, member_id: str) -> None:
    """Free a member's partitions, and advance the members that wait for them."""
    pairs = push.owned_by(member_id)
    if not pairs:
        return
    context.emit(Tombstone((Kind.PUSH_OWNED, push.group_id, member_id)))
    for taker in push.waiting_for(pairs):
        if taker != member_id and taker in push.present:
            advance(context, push, taker)


def started(context: Context, push: PushGroup, member: PushMember) -> None:
    """Record that a member reads the partitions of its Start."""
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
    """Ping a member that had no request for an interval, or repeat a late Ping; nothing else is repeated."""
    member = push.present.get(member_id)
    if member is None or member.is_gone:
        return
    saved = push.members[member_id]
    if member.asked is None:
        ping(context, push, member)
    elif member.claim is not None:
        registration.replace(context, push, member)
    elif member.asked is PushRequestKind.PING and member.out <= context.config.push_failed_requests_max:
        ping(context, push, member, member.out)
    else:
        context.run(member.ping, interval_ms(saved))


def dismiss(context: Context, push: PushGroup, member: PushMember, why: str) -> None:
    """End a member's connection, if it has one."""
    if not member.is_gone:
        value = DismissConsumer(push.group_id, member.session.subject, why)
        context.out.pushes.append(Push(member.connection, value))
