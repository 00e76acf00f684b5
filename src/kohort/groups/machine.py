"""The group coordinator of one shard.

    machine = GroupMachine(config)
    for record in journal: machine.apply(record)
    outcome = machine.on_loaded(now, image, settings)
    outcome = machine.step(event, now)

`step` applies the records it returns before it returns them; the shell appends them and only then releases the
replies. When the append fails, the shell throws the machine away and replays: nothing else puts the two in step again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kohort.groups import admin, classic, consumer, expiry, gathering, leader, lost, mixed, offsets, rebalance, targets
from kohort.groups.config import GroupConfig
from kohort.groups.deadlines import Deadline, Timer
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DeleteGroups,
    DescribeGroups,
    Event,
    GroupSettings,
    GroupSettingsChanged,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    RegexesResolved,
    ReleaseHeld,
    SyncGroup,
    Tick,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.kernel import Kernel
from kohort.groups.outcome import GroupState, Now, Outcome
from kohort.groups.records import Record
from kohort.groups.state import Group

Handler = Callable[[Kernel, Any], None]


def on_topics_changed(kernel: Kernel, event: TopicsChanged) -> None:
    """Take over the new image and look at the groups that read what changed."""
    before, kernel.image = kernel.image, event.image
    targets.on_image(kernel, before)
    leader.on_image(kernel)


def on_join(kernel: Kernel, event: JoinGroup) -> None:
    """To the classic protocol, or to a consumer group's classic side; an empty consumer group turns classic."""
    group = kernel.find(event.group_id)
    if group is not None and group.consumer is not None:
        if group.consumer.members:
            mixed.join(kernel, group, group.consumer, event)
            return
        if event.member_id == "" and event.protocol_type and event.protocols:
            expiry.remove(kernel, group)
    classic.join(kernel, event)


def on_sync(kernel: Kernel, event: SyncGroup) -> None:
    """As `on_join`."""
    group = kernel.find(event.group_id)
    if group is not None and group.consumer is not None:
        mixed.sync(kernel, group.consumer, event)
    else:
        classic.sync(kernel, event)


def on_heartbeat(kernel: Kernel, event: Heartbeat) -> None:
    """As `on_join`."""
    group = kernel.ledger.groups.get(event.group_id)
    if group is not None and group.consumer is not None:
        mixed.heartbeat(kernel, group.consumer, event)
    else:
        classic.heartbeat(kernel, event)


def on_leave(kernel: Kernel, event: LeaveGroup) -> None:
    """As `on_join`."""
    group = kernel.find(event.group_id)
    if group is not None and group.consumer is not None:
        mixed.leave(kernel, group, group.consumer, event)
    else:
        classic.leave(kernel, event)


def on_release(kernel: Kernel, event: ReleaseHeld) -> None:
    """Answer held heartbeats now."""
    for request in event.requests:
        group_id, member_id = kernel.held.get(request, ("", ""))
        group = kernel.find(group_id)
        if group is None:
            continue
        if group.consumer is None:
            gathering.on_hold_end(kernel, group, member_id)
        else:
            consumer.on_hold_end(kernel, group, member_id)


HANDLERS: dict[type, Handler] = {
    Heartbeat: on_heartbeat,
    OffsetCommit: offsets.commit,
    OffsetFetch: offsets.fetch,
    JoinGroup: on_join,
    SyncGroup: on_sync,
    LeaveGroup: on_leave,
    TxnOffsetCommit: offsets.commit_transactional,
    TransactionEnded: offsets.end_transaction,
    OffsetDelete: offsets.delete,
    DeleteGroups: admin.delete,
    DescribeGroups: admin.describe,
    ListGroups: admin.list_groups,
    TopicsChanged: on_topics_changed,
    TopicsDeleted: offsets.on_topics_deleted,
    ConnectionLost: lost.on_connection_lost,
    ConsumerGroupHeartbeat: consumer.heartbeat,
    ConsumerGroupDescribe: admin.describe_consumer_groups,
    AssignmentComputed: consumer.on_computed,
    RegexesResolved: targets.on_resolved,
    GroupSettingsChanged: consumer.on_settings,
    ReleaseHeld: on_release,
}


class GroupMachine:
    """All groups of one shard, as a deterministic state machine."""

    def __init__(self, config: GroupConfig) -> None:
        self.kernel = Kernel(config)
        self._handlers: dict[type, Handler] = {**HANDLERS, Tick: lambda kernel, event: self._tick()}

    def apply(self, record: Record) -> None:
        """Change the hard state by one durable record. Replay calls nothing else."""
        self.kernel.ledger.apply(record)

    def on_loaded(
        self, now: Now, image: TopicImage, settings: Mapping[str, GroupSettings] = MappingProxyType({})
    ) -> Outcome:
        """Build the soft state after a replay: sessions start anew, unfinished rounds are over.

        Its outcome may hold records.

        Args:
            now: the clocks.
            image: all topics.
            settings: groups' own, by group; no record holds them, and sessions that start here have their lengths.
        """
        kernel = self.kernel
        kernel.begin(now)
        kernel.image = image
        kernel.settings = dict(settings)
        offsets.on_loaded(kernel)
        for group in list(kernel.ledger.groups.values()):
            if group.consumer is None:
                classic.load(kernel, group)
            else:
                consumer.load(kernel, group)
        expiry.schedule(kernel)
        return kernel.out

    def step(self, event: Event, now: Now) -> Outcome:
        """Take in one event. `now` never goes back."""
        kernel = self.kernel
        kernel.begin(now)
        self._handlers[type(event)](kernel, event)
        return kernel.out

    def next_deadline_ms(self) -> int | None:
        """A monotonic time at which a `Tick` is due, perhaps for nothing; None: not before another event."""
        return self.kernel.deadlines.next_ms()

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Protocol ("classic" or "consumer") and state of every group."""
        for group in self.kernel.ledger.groups.values():
            yield "classic" if group.consumer is None else "consumer", group.state()

    def snapshot(self) -> Iterator[Record]:
        """Every record of the hard state, in an order that replays: what compaction keeps."""
        return self.kernel.ledger.snapshot()

    def _tick(self) -> None:
        kernel = self.kernel
        while (timer := kernel.deadlines.pop_due(kernel.now.mono_ms)) is not None:
            if timer.kind is Deadline.EXPIRY:
                expiry.on_deadline(kernel)
                if kernel.expiring:
                    return
                continue
            group = kernel.find(timer.group_id)
            if group is not None:
                self._due(group, timer)

    def _due(self, group: Group, timer: Timer) -> None:
        if group.consumer is None:
            self._due_classic(group, timer)
        else:
            self._due_consumer(group, timer)

    def _due_consumer(self, group: Group, timer: Timer) -> None:
        kernel, member_id = self.kernel, timer.subject
        if timer.kind is Deadline.SESSION:
            consumer.on_session_end(kernel, group, member_id)
        elif timer.kind is Deadline.PENDING_MEMBER and group.consumer is not None:
            group.consumer.given_ids.pop(member_id, None)
        elif timer.kind is Deadline.REVOCATION:
            consumer.on_move_end(kernel, group, member_id, "revoke")
        elif timer.kind is Deadline.HELD:
            consumer.on_hold_end(kernel, group, member_id)
        elif timer.kind is Deadline.SILENCE:
            consumer.on_watch(kernel, group)
        elif timer.kind in (Deadline.JOIN_PHASE, Deadline.SYNC_PHASE):
            consumer.on_move_end(kernel, group, member_id, "join or sync")

    def _due_classic(self, group: Group, timer: Timer) -> None:
        kernel = self.kernel
        if timer.kind is Deadline.SESSION:
            rebalance.on_session_end(kernel, group, timer.subject)
        elif timer.kind is Deadline.PENDING_MEMBER:
            classic.on_pending_deadline(kernel, group, timer.subject)
        elif timer.kind is Deadline.JOIN_PHASE:
            rebalance.on_join_deadline(kernel, group)
        elif timer.kind is Deadline.SYNC_PHASE:
            rebalance.on_sync_deadline(kernel, group)
        elif timer.kind is Deadline.HELD:
            gathering.on_hold_end(kernel, group, timer.subject)
        elif timer.kind is Deadline.GATHERING:
            gathering.on_deadline(kernel, group)
