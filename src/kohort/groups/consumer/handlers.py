"""The handlers of the KIP-848 protocol, whose groups may also have classic members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups.consumer import assignment, heartbeat, members, suspicion
from kohort.groups.consumer.group import ConsumerGroup, Presence
from kohort.groups.consumer.members import heartbeat_interval_ms, preferred_assignor, session_timeout_ms
from kohort.groups.context import Context
from kohort.groups.effects import DescribedConsumer, DescribedConsumerGroup, GroupType, NamedPartitions
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    GroupSettingsChanged,
    OffsetCommit,
    OffsetFetch,
    RegexesResolved,
    TxnOffsetCommit,
)
from kohort.groups.handlers import ProtocolHandlers
from kohort.groups.migration import classic_members, conversion
from kohort.groups.pairs import Pair, Pairs, pack
from kohort.groups.records import MemberState
from kohort.groups.timers import Deadline
from kohort.ids import TopicId

# -- Members of a consumer group whose connection ended without a leave; `failure_detector` defines their grace period


def on_connection_lost(context: Context, consumer: ConsumerGroup, member_id: str, event: ConnectionLost) -> None:
    """Evict a new member that no reply has told its id; start the grace period of any other."""
    drop_untold(context, consumer, member_id)
    presence, member = consumer.presences.get(member_id), consumer.members.get(member_id)
    if presence is None or presence.connection != event.connection or member is None:
        return
    presence.lose(
        context,
        consumer,
        event,
        is_static=member.instance_id is not None,
        process=presence.process,
        interval_ms=0 if member.classic_protocols is None else member.classic_session_timeout_ms // 3,
    )


def drop_untold(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Evict a new member whose connection ended before a reply told its id."""
    presence = consumer.presences.get(member_id)
    if presence is None:
        return
    first, joining = presence.waiting, presence.joining
    untold = joining is not None and not joining.member_id and joining.instance_id is None
    if untold or (first is not None and not first.member_id):
        heartbeat.evict(context, consumer, member_id, f"the connection of new member {member_id} ended")


# -- Invariants of a group under KIP-848 between any two steps


def broken_in(consumer: ConsumerGroup) -> Iterator[str]:
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
    """Yield requests that a member must not wait for under its protocol, or while it is away."""
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
    """Yield a revocation timer that does not run although the member has to revoke, or runs without need."""
    runs = presence.revocation.due_ms is not None
    gives_up = consumer.current_assignment(member_id).state is MemberState.UNREVOKED_PARTITIONS
    must = gives_up and consumer.members[member_id].classic_protocols is None and not presence.overdue
    if runs is not must:
        yield (
            f"{member_id} {'has' if gives_up else 'has not'} to give up "
            f"and its deadline {'runs' if runs else 'does not'}"
        )


# -- Permission to commit in a consumer group, and to fetch as a member. Source: KIP-848, KIP-1251


def may_commit(context: Context, consumer: ConsumerGroup, event: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
    """Return whether a member may commit now, or anyone if the group is empty.

    A member's epoch may advance while its commit is under way. An older epoch is accepted for partitions that the
    member had then and has had ever since. Source: KIP-1251.
    """
    member_id, instance_id, epoch = event.member_id, event.instance_id, event.generation
    if epoch < 0 and not consumer.members:
        return ErrorCode.NONE
    if instance_id is not None and consumer.static_ids.get(instance_id, member_id) != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    member = consumer.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic_protocols is None and isinstance(event, OffsetCommit) and not event.knows_stale_epoch:
        return ErrorCode.UNSUPPORTED_VERSION
    current, topics = consumer.current_assignment(member_id), context.image.topics
    if epoch == current.member_epoch or all(
        offset.topic in topics and current.covers(epoch, (topics[offset.topic].id, offset.partition))
        for offset in event.offsets
    ):
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic_protocols is None else ErrorCode.ILLEGAL_GENERATION


def may_commit_in_transaction(context: Context, consumer: ConsumerGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Return whether a transactional commit is accepted; a producer need not name a member."""
    error = ErrorCode.NONE
    if event.generation >= 0 or event.member_id:
        error = may_commit(context, consumer, event)
    is_unknown = error is ErrorCode.STALE_MEMBER_EPOCH and not event.knows_stale_epoch
    return ErrorCode.ILLEGAL_GENERATION if is_unknown else error


def committed(context: Context, consumer: ConsumerGroup, event: OffsetCommit) -> None:
    """Count a classic member's commit as a sign of life, as in a classic group, for clients that cannot tell."""
    member = consumer.members.get(event.member_id)
    if member is not None and member.classic_protocols is not None:
        presence = consumer.presence(event.member_id)
        if not presence.overdue:
            members.alive(context, consumer, presence, event.member_id)


def may_fetch(context: Context, consumer: ConsumerGroup, event: OffsetFetch) -> ErrorCode:
    """Return whether a fetch with a member names a known one with its epoch; a fetch without one is open to all."""
    if event.member_id is None and event.member_epoch < 0:
        return ErrorCode.NONE
    member_id = event.member_id or ""
    if member_id not in consumer.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.member_epoch == consumer.current_assignment(member_id).member_epoch:
        return ErrorCode.NONE
    is_classic = consumer.members[member_id].classic_protocols is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def describe(context: Context, consumer: ConsumerGroup) -> DescribedConsumerGroup:
    """Describe a group with its members, epochs, assignments and targets."""
    names = conversion.topic_names(context)
    members = []
    for member_id, member in consumer.members.items():
        current = consumer.current_assignment(member_id)
        members.append(
            DescribedConsumer(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=current.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topics=member.subscribed_topics,
                subscribed_regex=member.subscribed_regex,
                assignment=named(current.assigned | current.pending, names),
                target=named(consumer.targets.get(member_id, frozenset()), names),
                member_type=1 if member.classic_protocols is None else 0,
            )
        )
    return DescribedConsumerGroup(
        consumer.group_id,
        consumer.group_state(),
        consumer.epoch,
        consumer.target_epoch,
        preferred_assignor(context, consumer),
        tuple(members),
    )


def named(pairs: Pairs, names: dict[TopicId, str]) -> tuple[NamedPartitions, ...]:
    """Return partitions by topic id and name, without those of deleted topics."""
    return tuple(
        NamedPartitions(entry.topic_id, names[entry.topic_id], entry.partitions)
        for entry in pack(pairs)
        if entry.topic_id in names
    )


CONSUMER: Final = ProtocolHandlers(
    name=GroupType.CONSUMER,
    membership=ConsumerGroup,
    protocol_type=lambda consumer: CONSUMER_PROTOCOL_TYPE,
    load=heartbeat.load,
    due={
        Deadline.SESSION: heartbeat.on_session_end,
        Deadline.PENDING_MEMBER: heartbeat.on_given_id_end,
        Deadline.REVOCATION: heartbeat.on_revocation_end,
        Deadline.JOIN_PHASE: heartbeat.on_phase_end,
        Deadline.SYNC_PHASE: heartbeat.on_phase_end,
        Deadline.SILENCE: heartbeat.on_watch,
    },
    connection_lost=on_connection_lost,
    member=lambda consumer, member_id: consumer.presences.get(member_id),
    detector=suspicion.DETECTOR_SETTINGS,
    usual_ms=heartbeat_interval_ms,
    session_ms=lambda context, consumer, presence: session_timeout_ms(context, consumer, presence.session.subject),
    answer_held=heartbeat.answer_held,
    refuse_held=heartbeat.refuse_held,
    topics_changed=assignment.on_image,
    may_commit=may_commit,
    may_commit_in_transaction=may_commit_in_transaction,
    committed=committed,
    may_fetch=may_fetch,
    describe_consumer=describe,
    broken=broken_in,
    join=classic_members.join,
    sync=classic_members.sync,
    heartbeat=classic_members.heartbeat,
    leave=classic_members.leave,
    consumer_heartbeat=heartbeat.heartbeat,
    results={
        AssignmentComputed: heartbeat.on_computed,
        RegexesResolved: assignment.on_resolved,
        GroupSettingsChanged: heartbeat.on_settings,
    },
)
