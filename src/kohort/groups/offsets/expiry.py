"""Expiration: positions that no member reads go after the retention, and groups that hold nothing go with them.

| group | which positions | their time starts |
|---|---|---|
| empty | all | when it became empty, or at a later commit |
| stable, protocol type "consumer", subscription readable | of topics not subscribed | at the commit |
| under KIP-848, with members | of topics not subscribed | at the commit |
| without protocol type (assign and commit) | all | at the commit |
| any other, also while a classic group rebalances | none | |

A position with an expire timestamp of its own (OffsetCommit 2-4) goes by that. One that a transaction is about to
replace stays. Source: spec 1.5, 1.6, KIP-211, KIP-496, scenario 13.
"""

from __future__ import annotations

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.group import Group
from kohort.groups.offsets.requests import tombstone
from kohort.groups.outcome import GroupState, Meter
from kohort.groups.records import Kind, OffsetCommitted, Tombstone

OFFSETS_A_STEP = 5_000
"""How many positions one step looks at, so that no heartbeat waits long behind an expiration."""


def schedule(context: Context) -> None:
    """Look again after the configured interval."""
    context.run(context.expiry, context.config.offsets_retention_check_ms)


def on_deadline(context: Context) -> None:
    """Look at some groups' positions; the rest follow in the next steps."""
    if not context.expiring:
        context.expiring = list(reversed(context.ledger.groups))
    looked = 0
    while context.expiring and looked < OFFSETS_A_STEP:
        group = context.find(context.expiring.pop())
        if group is not None:
            looked += 1 + len(group.offsets)
            expire_group(context, group)
    if context.expiring:
        context.run(context.expiry, 0)
    else:
        schedule(context)


def expire_group(context: Context, group: Group) -> None:
    """Remove a group's expired positions, and the group when it holds nothing and no one."""
    if not is_subject(group):
        return
    gone = [
        partition
        for partition, record in group.offsets.items()
        if not group.is_subscribed(partition[0])
        and not (group.pending and group.has_pending(partition))
        and is_expired(context, group, record)
    ]
    for partition in gone:
        tombstone(context, group.group_id, partition)
    context.count(Meter.OFFSET_EXPIRATIONS, len(gone))
    if gone:
        context.tell(group.group_id, f"{len(gone)} offsets expired")
    if group.state() is GroupState.EMPTY and not (group.offsets or group.pending or group.classic.pending):
        remove(context, group)


def is_subject(group: Group) -> bool:
    """Whether any of a group's positions may expire in its present state."""
    classic = group.classic
    if group.consumer is not None or classic.state is GroupState.EMPTY:
        return True
    readable = classic.protocol_type == CONSUMER_PROTOCOL_TYPE and classic.subscribed is not None
    return readable and classic.state is GroupState.STABLE


def is_expired(context: Context, group: Group, record: OffsetCommitted) -> bool:
    """Whether a position's time is over."""
    wall_ms = context.now.wall_ms
    if record.expire_ms >= 0:
        return wall_ms >= record.expire_ms
    start_ms = record.commit_ms
    saved, consumer = group.saved, group.consumer
    if consumer is not None and not consumer.members:
        start_ms = max(start_ms, consumer.assigned_ms)
    elif group.classic.state is GroupState.EMPTY and saved is not None and saved.protocol_type:
        start_ms = max(start_ms, saved.state_ms)
    return wall_ms - start_ms >= context.config.offsets_retention_ms


def remove(context: Context, group: Group) -> None:
    """Write that a group is gone."""
    if group.consumer is not None:
        write_tombstones(context, group.group_id, group.consumer)
        return
    if group.started:
        context.emit(Tombstone((Kind.GENERATION, group.group_id)))
    context.emit(Tombstone((Kind.GROUP, group.group_id)))


def write_tombstones(context: Context, group_id: str, consumer: ConsumerGroup) -> None:
    """Write that a consumer group is gone."""
    kinds: list[tuple[Kind, list[str]]] = [
        (Kind.CURRENT, list(consumer.current)),
        (Kind.TARGET, list(consumer.targets)),
        (Kind.MEMBER, list(consumer.members)),
        (Kind.REGEX, list(consumer.regexes)),
    ]
    for kind, names in kinds:
        for name in names:
            context.emit(Tombstone((kind, group_id, name)))
    if consumer.target_epoch:
        context.emit(Tombstone((Kind.TARGET_EPOCH, group_id)))
    context.emit(Tombstone((Kind.EPOCH, group_id)))
