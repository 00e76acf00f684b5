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

from kohort.groups.consumer_state import ConsumerGroup
from kohort.groups.kernel import Kernel
from kohort.groups.offsets import tombstone
from kohort.groups.outcome import GroupState, Meter
from kohort.groups.records import Kind, OffsetCommitted, Tombstone
from kohort.groups.state import Group
from kohort.groups.subscription import CONSUMER_PROTOCOL_TYPE

OFFSETS_A_STEP = 5_000
"""How many positions one step looks at, so that no heartbeat waits long behind an expiration."""


def schedule(kernel: Kernel) -> None:
    """Look again after the configured interval."""
    kernel.run(kernel.expiry, kernel.config.offsets_retention_check_ms)


def on_deadline(kernel: Kernel) -> None:
    """Look at some groups' positions; the rest follow in the next steps."""
    if not kernel.expiring:
        kernel.expiring = list(reversed(kernel.ledger.groups))
    looked = 0
    while kernel.expiring and looked < OFFSETS_A_STEP:
        group = kernel.find(kernel.expiring.pop())
        if group is not None:
            looked += 1 + len(group.offsets)
            expire_group(kernel, group)
    if kernel.expiring:
        kernel.run(kernel.expiry, 0)
    else:
        schedule(kernel)


def expire_group(kernel: Kernel, group: Group) -> None:
    """Remove a group's expired positions, and the group when it holds nothing and no one."""
    if not is_subject(group):
        return
    gone = [
        partition
        for partition, record in group.offsets.items()
        if not group.is_subscribed(partition[0])
        and not (group.pending and group.has_pending(partition))
        and is_expired(kernel, group, record)
    ]
    for partition in gone:
        tombstone(kernel, group.group_id, partition)
    kernel.count(Meter.OFFSET_EXPIRATIONS, len(gone))
    if gone:
        kernel.tell(group.group_id, f"{len(gone)} offsets expired")
    if group.state() is GroupState.EMPTY and not (group.offsets or group.pending or group.classic.pending):
        remove(kernel, group)


def is_subject(group: Group) -> bool:
    """Whether any of a group's positions may expire in its present state."""
    classic = group.classic
    if group.consumer is not None or classic.state is GroupState.EMPTY:
        return True
    readable = classic.protocol_type == CONSUMER_PROTOCOL_TYPE and classic.subscribed is not None
    return readable and classic.state is GroupState.STABLE


def is_expired(kernel: Kernel, group: Group, record: OffsetCommitted) -> bool:
    """Whether a position's time is over."""
    wall_ms = kernel.now.wall_ms
    if record.expire_ms >= 0:
        return wall_ms >= record.expire_ms
    start_ms = record.commit_ms
    saved, consumer = group.saved, group.consumer
    if consumer is not None and not consumer.members:
        start_ms = max(start_ms, consumer.assigned_ms)
    elif group.classic.state is GroupState.EMPTY and saved is not None and saved.protocol_type:
        start_ms = max(start_ms, saved.state_ms)
    return wall_ms - start_ms >= kernel.config.offsets_retention_ms


def remove(kernel: Kernel, group: Group) -> None:
    """Write that a group is gone."""
    if group.consumer is not None:
        write_tombstones(kernel, group.group_id, group.consumer)
        return
    if group.started:
        kernel.emit(Tombstone((Kind.GENERATION, group.group_id)))
    kernel.emit(Tombstone((Kind.GROUP, group.group_id)))


def write_tombstones(kernel: Kernel, group_id: str, consumer: ConsumerGroup) -> None:
    """Write that a consumer group is gone."""
    kinds: list[tuple[Kind, list[str]]] = [
        (Kind.CURRENT, list(consumer.current)),
        (Kind.TARGET, list(consumer.targets)),
        (Kind.MEMBER, list(consumer.members)),
        (Kind.REGEX, list(consumer.regexes)),
    ]
    for kind, names in kinds:
        for name in names:
            kernel.emit(Tombstone((kind, group_id, name)))
    if consumer.target_epoch:
        kernel.emit(Tombstone((Kind.TARGET_EPOCH, group_id)))
    kernel.emit(Tombstone((Kind.EPOCH, group_id)))
