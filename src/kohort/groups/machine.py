"""The group coordinator of one shard, as a deterministic state machine.

    machine = GroupMachine(config)
    for record in journal: machine.apply(record)
    outcome = machine.on_loaded(now, image, settings, ownership_proof_ms)
    outcome = machine.step(event, now)

`step` applies its records before it returns them. The caller appends them to the journal and only then sends the
replies. If the append fails, the caller discards the machine and replays the journal: nothing else brings the two back
into agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.effects import (
    ConsumerGroupDescribeReply,
    CoordinatorMeter,
    DeleteGroupsReply,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsReply,
    DescribePushGroupsReply,
    Effects,
    GroupState,
    ListedGroup,
    ListGroupsReply,
    MirroredPushGroup,
    Now,
)
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DeleteGroups,
    DescribeGroups,
    DescribePushGroups,
    Event,
    GroupImported,
    GroupSettings,
    GroupSettingsChanged,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsFound,
    OwnerNodesDeleted,
    PushAssignmentComputed,
    PushConsumerAnswered,
    RegexesResolved,
    RegisterConsumer,
    ReleaseLongPolls,
    SyncGroup,
    TimersDue,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.group import Group, GroupMembership
from kohort.groups.migration.conversion import GroupConversion
from kohort.groups.migration.group_routing import GroupRouting
from kohort.groups.offsets import CommittedOffsets
from kohort.groups.push.group import PushGroup
from kohort.groups.records import Record
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import ImageChange
from kohort.io.age_clock import AgeClock

# -- What administrators ask: describe, list and delete groups


class Administration:
    """The requests of administrators to a shard: describe, list and delete groups, and show push groups."""

    def __init__(self, context: Context, offsets: CommittedOffsets) -> None:
        self.context, self.offsets = context, offsets

    def describe_groups(self, event: DescribeGroups) -> None:
        """Answer a DescribeGroups with the groups' members, as far as that API covers them."""
        described = tuple(self.describe_group_or_missing(group_id, event.knows_missing) for group_id in event.group_ids)
        self.context.reply(event.request, DescribeGroupsReply(described))

    def describe_group_or_missing(self, group_id: str, knows_missing: bool) -> DescribedGroup:
        """Describe one group; a missing one is Dead, or GROUP_ID_NOT_FOUND for clients that know that code."""
        group = self.context.find(group_id)
        described = None if group is None else group.membership.describe(self.context)
        if described is not None:
            return described
        if not knows_missing:
            return DescribedGroup(group_id, GroupState.DEAD)
        message = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
        error = ErrorCode.GROUP_ID_NOT_FOUND
        return DescribedGroup(group_id, GroupState.DEAD, error=error, error_message=message)

    def list_groups(self, event: ListGroups) -> None:
        """Answer a ListGroups with every group that passes the filters."""
        states = {state.strip().lower() for state in event.states}
        types = {kind.strip().lower() for kind in event.types}
        found = tuple(
            listed
            for listed in (self.listed_group_entry(group) for group in self.context.ledger.groups.values())
            if (not states or listed.state.lower() in states) and (not types or listed.type.lower() in types)
        )
        self.context.reply(event.request, ListGroupsReply(found))

    def listed_group_entry(self, group: Group) -> ListedGroup:
        """Return one group's entry in a ListGroups response."""
        membership = group.membership
        kind = membership.listed_as or membership.name
        return ListedGroup(group.group_id, membership.listed_protocol_type(), group.listed_state(), kind)

    def describe_consumer_groups(self, event: ConsumerGroupDescribe) -> None:
        """Answer a ConsumerGroupDescribe with members, epochs, assignments and targets."""
        described = tuple(self.describe_consumer_group(group_id) for group_id in event.group_ids)
        self.context.reply(event.request, ConsumerGroupDescribeReply(described))

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Describe one group under KIP-848; GROUP_ID_NOT_FOUND for one that is missing or classic."""
        group = self.context.find(group_id)
        described = None if group is None else group.membership.describe_consumer(self.context)
        if described is not None:
            return described
        message = f"Group {group_id} {'not found' if group is None else 'is not a consumer group'}."
        return DescribedConsumerGroup(group_id, error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)

    def delete_groups(self, event: DeleteGroups) -> None:
        """Remove groups without members, and all their offsets."""
        self.context.reply(event.request, DeleteGroupsReply(tuple(self.delete_group(name) for name in event.group_ids)))

    def delete_group(self, group_id: str) -> ErrorCode:
        """Remove one group, or return the error that prevents it."""
        context = self.context
        group = context.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.listed_state() is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        partitions = group.all_partitions()
        for partition in partitions:
            self.offsets.write_tombstone(group_id, partition)
        context.count_meter(CoordinatorMeter.OFFSET_DELETIONS, len(partitions))
        context.remove_membership(group)
        context.log(group_id, f"deleted with {len(partitions)} offsets")
        return ErrorCode.NONE

    def show_push_groups(self, event: DescribePushGroups) -> None:
        """Return the push groups of the shard, either all of them or those that have changed."""
        ledger = self.context.ledger
        changed, ledger.changed = ledger.changed, {}
        names = None if event.whole else changed
        found, gone = [], []
        for group_id in ledger.groups if names is None else names:
            group = ledger.groups.get(group_id)
            push = None if group is None else group.membership_as(PushGroup)
            if group is not None and push is not None:
                settled, offsets = not push.rebalancing, dict(group.offsets)
                owners = push.partition_owners(self.context)
                found.append(MirroredPushGroup(group_id, settled, owners, offsets, push.loaded))
            elif names is not None:
                gone.append(group_id)
        self.context.reply(event.request, DescribePushGroupsReply(tuple(found), names is None, tuple(gone)))


# -- The protocols that the coordinator speaks

PROTOCOLS: Final[tuple[type[GroupMembership], ...]] = (ClassicGroup, ConsumerGroup, PushGroup)
"""The classes of groups, by protocol. The first one serves groups that only hold offsets."""


GroupEvent: TypeAlias = (
    AssignmentComputed
    | RegexesResolved
    | GroupSettingsChanged
    | PushConsumerAnswered
    | PushAssignmentComputed
    | OffsetsFound
    | OwnerNodesDeleted
)
"""An event that concerns one group, if that exists."""


class GroupMachine:
    """The state machine of all groups of one shard."""

    def __init__(self, config: GroupConfig, protocols: Sequence[type[GroupMembership]] = PROTOCOLS) -> None:
        context = self.context = Context(config, protocols)
        conversion = GroupConversion(context)
        context.downgrade = conversion.convert_to_classic
        routing = GroupRouting(context, conversion)
        offsets = self._offsets = CommittedOffsets(context)
        administration = Administration(context, offsets)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Heartbeat: routing.heartbeat,
            OffsetCommit: offsets.commit,
            OffsetFetch: offsets.fetch,
            JoinGroup: routing.join,
            SyncGroup: routing.sync,
            LeaveGroup: routing.leave,
            TxnOffsetCommit: offsets.commit_transactional,
            TransactionEnded: offsets.end_transaction,
            OffsetDelete: offsets.delete,
            DeleteGroups: administration.delete_groups,
            DescribeGroups: administration.describe_groups,
            ListGroups: administration.list_groups,
            TopicsChanged: self._on_topics_changed,
            TopicsDeleted: offsets.on_topics_deleted,
            ConnectionLost: self._on_connection_lost,
            ConsumerGroupHeartbeat: routing.consumer_heartbeat,
            ConsumerGroupDescribe: administration.describe_consumer_groups,
            AssignmentComputed: self._on_result,
            GroupImported: offsets.on_imported,
            RegexesResolved: self._on_result,
            RegisterConsumer: routing.register,
            PushConsumerAnswered: self._on_result,
            PushAssignmentComputed: self._on_result,
            OffsetsFound: self._on_result,
            OwnerNodesDeleted: self._on_result,
            GroupSettingsChanged: self._on_settings,
            ReleaseLongPolls: self._on_release,
            DescribePushGroups: administration.show_push_groups,
            TimersDue: self._on_tick,
        }

    def apply(self, record: Record) -> None:
        """Apply one durable record to the hard state. Replay calls nothing else."""
        self.context.ledger.apply(record)

    def on_loaded(
        self,
        now: Now,
        image: TopicImage,
        settings: Mapping[str, GroupSettings] = MappingProxyType({}),
        ownership_proof_ms: int = 0,
    ) -> Effects:
        """Build the soft state after a replay: sessions restart, and unfinished rebalances are over.

        The returned effects may hold records to append.

        Args:
            now: the time of the step.
            image: all topics.
            settings: the groups' own settings, by group. No record holds them, and they set the length of the sessions
                that restart here.
            ownership_proof_ms: how long an earlier owner may go on answering, and so may still hear members.
        """
        context = self.context
        context.begin_step(now)
        context.ages = AgeClock(now.wall_ms, now.mono_ms)
        context.image = image
        context.settings = dict(settings)
        context.sessions_from_ms = now.mono_ms + ownership_proof_ms
        self._offsets.on_loaded()
        for group in list(context.ledger.groups.values()):
            group.membership.build_soft_state(context)
        self._offsets.schedule_expiration()
        return context.effects

    def step(self, event: Event, now: Now) -> Effects:
        """Process one event. `now` never goes back."""
        context = self.context
        context.begin_step(now)
        self._handlers[type(event)](event)
        return context.effects

    def next_deadline_ms(self) -> int | None:
        """Return a monotonic time at which a `TimersDue` is due, perhaps too early; None: not before another event."""
        return self.context.deadlines.next_ms()

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Yield the protocol ("classic", "consumer" or "push") and state of every group."""
        for group in self.context.ledger.groups.values():
            yield group.membership.name, group.listed_state()

    def has_group(self, group_id: str) -> bool:
        """Return whether there is such a group."""
        return group_id in self.context.ledger.groups

    @property
    def has_unpublished_push_groups(self) -> bool:
        """Return whether a push group has changed since ZooKeeper's mirror last asked, or it has never asked."""
        changed = self.context.ledger.changed
        return changed is None or bool(changed)

    def snapshot(self) -> Iterator[Record]:
        """Yield every record of the hard state, in an order that replays: the content after compaction."""
        return self.context.ledger.snapshot()

    # -- Events that concern several groups, and results that concern one

    def _on_topics_changed(self, event: TopicsChanged) -> None:
        """Take over the new topic image and notify the groups of the change."""
        context = self.context
        before, context.image = context.image, event.image
        change = ImageChange.between(before, event.image)
        for group in list(context.ledger.groups.values()):
            context.handle_event(group, TopicsChanged, change)

    def _on_release(self, event: ReleaseLongPolls) -> None:
        """Answer delayed heartbeats because other requests follow; some may have been answered already."""
        context = self.context
        for request in event.requests:
            timer = context.long_polls.get(request)
            group = None if timer is None else context.find(timer.group_id)
            if timer is not None and group is not None:
                context.handle_event(group, ReleaseLongPolls, timer.subject)

    def _on_connection_lost(self, event: ConnectionLost) -> None:
        """Notify each group whose members used a connection that it has ended."""
        context = self.context
        for group_id, member_id in context.connections.pop(event.connection, {}):
            group = context.find(group_id)
            if group is not None:
                context.handle_event(group, ConnectionLost, member_id, event)

    def _on_settings(self, event: GroupSettingsChanged) -> None:
        """Store a group's dynamic settings, also those of a group that does not exist yet."""
        self.context.settings[event.group_id] = event.settings
        self._on_result(event)

    def _on_result(self, event: GroupEvent) -> None:
        """Pass a background task's result to its group, if the group exists and its protocol handles the result."""
        group = self.context.find(event.group_id)
        if group is not None:
            self.context.handle_event(group, type(event), event)

    def _on_tick(self, event: TimersDue) -> None:
        """Call the handlers of all timers that are due, and expire offsets."""
        del event
        context = self.context
        while (timer := context.deadlines.pop_due(context.now.mono_ms)) is not None:
            if timer.kind is Deadline.EXPIRY:
                self._offsets.on_expiration_timer()
                if context.expiring:
                    return
                continue
            group = context.find(timer.group_id)
            if group is not None:
                self._due(group, timer)

    def _due(self, group: Group, timer: Timer) -> None:
        if timer.kind is Deadline.SESSION and group.membership.extend_session(self.context, timer):
            return
        self.context.handle_event(group, timer.kind, timer.subject)
