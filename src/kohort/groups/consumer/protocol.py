"""The row of the protocol of KIP-848, whose groups also have classic members."""

from __future__ import annotations

from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.groups.consumer import commits, heartbeat, invariants, lost, silence, targets
from kohort.groups.consumer.members import heartbeat_interval_ms, preferred_assignor, session_timeout_ms
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.events import AssignmentComputed, GroupSettingsChanged, RegexesResolved
from kohort.groups.liveness.deadlines import Deadline
from kohort.groups.migration import classic_members, conversion
from kohort.groups.outcome import DescribedConsumer, DescribedConsumerGroup, GroupType, NamedPartitions
from kohort.groups.pairs import Pairs, pack
from kohort.groups.protocol import Protocol
from kohort.ids import TopicId


def describe(context: Context, consumer: ConsumerGroup) -> DescribedConsumerGroup:
    """A group with its members, epochs, assignments and targets."""
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
    """Partitions by topic id and name; those of deleted topics are left out."""
    return tuple(
        NamedPartitions(entry.topic_id, names[entry.topic_id], entry.partitions)
        for entry in pack(pairs)
        if entry.topic_id in names
    )


CONSUMER: Final = Protocol(
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
    connection_lost=lost.on_connection_lost,
    member=lambda consumer, member_id: consumer.presences.get(member_id),
    pace=silence.PACE,
    usual_ms=heartbeat_interval_ms,
    session_ms=lambda context, consumer, presence: session_timeout_ms(context, consumer, presence.session.subject),
    answer_held=heartbeat.answer_held,
    refuse_held=heartbeat.refuse_held,
    topics_changed=targets.on_image,
    may_commit=commits.may_commit,
    may_commit_in_transaction=commits.may_commit_in_transaction,
    committed=commits.committed,
    may_fetch=commits.may_fetch,
    describe_consumer=describe,
    broken=invariants.broken_in,
    join=classic_members.join,
    sync=classic_members.sync,
    heartbeat=classic_members.heartbeat,
    leave=classic_members.leave,
    consumer_heartbeat=heartbeat.heartbeat,
    results={
        AssignmentComputed: heartbeat.on_computed,
        RegexesResolved: targets.on_resolved,
        GroupSettingsChanged: heartbeat.on_settings,
    },
)
