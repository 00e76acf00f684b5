"""The group coordinator of one shard.

    machine = GroupMachine(config)
    for record in journal: machine.apply(record)
    outcome = machine.on_loaded(now, image)
    outcome = machine.step(event, now)

`step` applies the records it returns before it returns them; the shell appends them and only then releases the
replies. When the append fails, the shell throws the machine away and replays: nothing else puts the two in step again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kohort.groups import admin, classic, expiry, offsets, rebalance
from kohort.groups.config import GroupConfig
from kohort.groups.deadlines import Deadline, Timer
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    DeleteGroups,
    DescribeGroups,
    Event,
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
from kohort.groups.outcome import Now, Outcome
from kohort.groups.records import Record
from kohort.groups.state import Group

Handler = Callable[[Kernel, Any], None]


def on_topics_changed(kernel: Kernel, event: TopicsChanged) -> None:
    """Take over the new image."""
    kernel.image = event.image


def ignore(kernel: Kernel, event: Event) -> None:
    """Nothing to do."""


HANDLERS: dict[type, Handler] = {
    Heartbeat: classic.heartbeat,
    OffsetCommit: offsets.commit,
    OffsetFetch: offsets.fetch,
    JoinGroup: classic.join,
    SyncGroup: classic.sync,
    LeaveGroup: classic.leave,
    TxnOffsetCommit: offsets.commit_transactional,
    TransactionEnded: offsets.end_transaction,
    OffsetDelete: offsets.delete,
    DeleteGroups: admin.delete,
    DescribeGroups: admin.describe,
    ListGroups: admin.list_groups,
    TopicsChanged: on_topics_changed,
    TopicsDeleted: offsets.on_topics_deleted,
    ConnectionLost: classic.on_connection_lost,
    AssignmentComputed: ignore,
    RegexesResolved: ignore,
    GroupSettingsChanged: ignore,
    ReleaseHeld: ignore,
}


class GroupMachine:
    """All groups of one shard, as a deterministic state machine."""

    def __init__(self, config: GroupConfig) -> None:
        self.kernel = Kernel(config)
        self._handlers: dict[type, Handler] = {**HANDLERS, Tick: lambda kernel, event: self._tick()}

    def apply(self, record: Record) -> None:
        """Change the hard state by one durable record. Replay calls nothing else."""
        self.kernel.ledger.apply(record)

    def on_loaded(self, now: Now, image: TopicImage) -> Outcome:
        """Build the soft state after a replay: sessions start anew, unfinished rounds are over.

        Its outcome may hold records.
        """
        kernel = self.kernel
        kernel.begin(now)
        kernel.image = image
        for group in list(kernel.ledger.groups.values()):
            classic.load(kernel, group)
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
        kernel = self.kernel
        if timer.kind is Deadline.SESSION:
            rebalance.on_session_end(kernel, group, timer.subject)
        elif timer.kind is Deadline.PENDING_MEMBER:
            classic.on_pending_deadline(kernel, group, timer.subject)
        elif timer.kind is Deadline.JOIN_PHASE:
            rebalance.on_join_deadline(kernel, group)
        elif timer.kind is Deadline.SYNC_PHASE:
            rebalance.on_sync_deadline(kernel, group)
