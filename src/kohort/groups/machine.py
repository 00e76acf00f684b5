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

from kohort.groups import admin
from kohort.groups.classic import gathering, leader, rebalance
from kohort.groups.classic import requests as classic
from kohort.groups.config import GroupConfig
from kohort.groups.consumer import heartbeat as consumer
from kohort.groups.consumer import targets
from kohort.groups.context import Context
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
from kohort.groups.group import Group
from kohort.groups.liveness import lost
from kohort.groups.liveness.deadlines import Deadline, Timer
from kohort.groups.migration import classic_members
from kohort.groups.offsets import expiry
from kohort.groups.offsets import requests as offset_requests
from kohort.groups.outcome import GroupState, Now, Outcome
from kohort.groups.records import Record

Handler = Callable[[Context, Any], None]


def on_topics_changed(context: Context, event: TopicsChanged) -> None:
    """Take over the new image and look at the groups that read what changed."""
    before, context.image = context.image, event.image
    targets.on_image(context, before)
    leader.on_image(context)


def on_join(context: Context, event: JoinGroup) -> None:
    """To the classic protocol, or to a consumer group's classic side; an empty consumer group turns classic."""
    group = context.find(event.group_id)
    if group is not None and group.consumer is not None:
        if group.consumer.members:
            classic_members.join(context, group, group.consumer, event)
            return
        if event.member_id == "" and event.protocol_type and event.protocols:
            expiry.remove(context, group)
    classic.join(context, event)


def on_sync(context: Context, event: SyncGroup) -> None:
    """As `on_join`."""
    group = context.find(event.group_id)
    if group is not None and group.consumer is not None:
        classic_members.sync(context, group.consumer, event)
    else:
        classic.sync(context, event)


def on_heartbeat(context: Context, event: Heartbeat) -> None:
    """As `on_join`."""
    group = context.ledger.groups.get(event.group_id)
    if group is not None and group.consumer is not None:
        classic_members.heartbeat(context, group.consumer, event)
    else:
        classic.heartbeat(context, event)


def on_leave(context: Context, event: LeaveGroup) -> None:
    """As `on_join`."""
    group = context.find(event.group_id)
    if group is not None and group.consumer is not None:
        classic_members.leave(context, group, group.consumer, event)
    else:
        classic.leave(context, event)


def on_release(context: Context, event: ReleaseHeld) -> None:
    """Answer held heartbeats now."""
    for request in event.requests:
        group_id, member_id = context.held.get(request, ("", ""))
        group = context.find(group_id)
        if group is None:
            continue
        if group.consumer is None:
            gathering.on_hold_end(context, group, member_id)
        else:
            consumer.on_hold_end(context, group, member_id)


HANDLERS: dict[type, Handler] = {
    Heartbeat: on_heartbeat,
    OffsetCommit: offset_requests.commit,
    OffsetFetch: offset_requests.fetch,
    JoinGroup: on_join,
    SyncGroup: on_sync,
    LeaveGroup: on_leave,
    TxnOffsetCommit: offset_requests.commit_transactional,
    TransactionEnded: offset_requests.end_transaction,
    OffsetDelete: offset_requests.delete,
    DeleteGroups: admin.delete,
    DescribeGroups: admin.describe,
    ListGroups: admin.list_groups,
    TopicsChanged: on_topics_changed,
    TopicsDeleted: offset_requests.on_topics_deleted,
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
        self.context = Context(config)
        self._handlers: dict[type, Handler] = {**HANDLERS, Tick: lambda context, event: self._tick()}

    def apply(self, record: Record) -> None:
        """Change the hard state by one durable record. Replay calls nothing else."""
        self.context.ledger.apply(record)

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
        context = self.context
        context.begin(now)
        context.image = image
        context.settings = dict(settings)
        offset_requests.on_loaded(context)
        for group in list(context.ledger.groups.values()):
            if group.consumer is None:
                classic.load(context, group)
            else:
                consumer.load(context, group)
        expiry.schedule(context)
        return context.out

    def step(self, event: Event, now: Now) -> Outcome:
        """Take in one event. `now` never goes back."""
        context = self.context
        context.begin(now)
        self._handlers[type(event)](context, event)
        return context.out

    def next_deadline_ms(self) -> int | None:
        """A monotonic time at which a `Tick` is due, perhaps for nothing; None: not before another event."""
        return self.context.deadlines.next_ms()

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Protocol ("classic" or "consumer") and state of every group."""
        for group in self.context.ledger.groups.values():
            yield "classic" if group.consumer is None else "consumer", group.state()

    def snapshot(self) -> Iterator[Record]:
        """Every record of the hard state, in an order that replays: what compaction keeps."""
        return self.context.ledger.snapshot()

    def _tick(self) -> None:
        context = self.context
        while (timer := context.deadlines.pop_due(context.now.mono_ms)) is not None:
            if timer.kind is Deadline.EXPIRY:
                expiry.on_deadline(context)
                if context.expiring:
                    return
                continue
            group = context.find(timer.group_id)
            if group is not None:
                self._due(group, timer)

    def _due(self, group: Group, timer: Timer) -> None:
        if group.consumer is None:
            self._due_classic(group, timer)
        else:
            self._due_consumer(group, timer)

    def _due_consumer(self, group: Group, timer: Timer) -> None:
        context, member_id = self.context, timer.subject
        if timer.kind is Deadline.SESSION:
            consumer.on_session_end(context, group, member_id)
        elif timer.kind is Deadline.PENDING_MEMBER and group.consumer is not None:
            group.consumer.given_ids.pop(member_id, None)
        elif timer.kind is Deadline.REVOCATION:
            consumer.on_move_end(context, group, member_id, "revoke")
        elif timer.kind is Deadline.HELD:
            consumer.on_hold_end(context, group, member_id)
        elif timer.kind is Deadline.SILENCE:
            consumer.on_watch(context, group)
        elif timer.kind in (Deadline.JOIN_PHASE, Deadline.SYNC_PHASE):
            consumer.on_move_end(context, group, member_id, "join or sync")

    def _due_classic(self, group: Group, timer: Timer) -> None:
        context = self.context
        if timer.kind is Deadline.SESSION:
            rebalance.on_session_end(context, group, timer.subject)
        elif timer.kind is Deadline.PENDING_MEMBER:
            classic.on_pending_deadline(context, group, timer.subject)
        elif timer.kind is Deadline.JOIN_PHASE:
            rebalance.on_join_deadline(context, group)
        elif timer.kind is Deadline.SYNC_PHASE:
            rebalance.on_sync_deadline(context, group)
        elif timer.kind is Deadline.HELD:
            gathering.on_hold_end(context, group, timer.subject)
        elif timer.kind is Deadline.GATHERING:
            gathering.on_deadline(context, group)
