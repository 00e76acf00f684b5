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
from kohort.groups import offsets
from kohort.groups import offsets as offset_requests
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.effects import (
    ConsumerGroupDescribeReply,
    DeleteGroupsReply,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsReply,
    Effects,
    GroupState,
    ListedGroup,
    ListGroupsReply,
    Meter,
    Now,
)
from kohort.groups.events import (
    AssignmentComputed,
    ConnectionLost,
    ConsumerAnswered,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DeleteGroups,
    DescribeGroups,
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
    OwnersMissing,
    PartitionsDivided,
    RegexesResolved,
    RegisterConsumer,
    ReleaseLongPolls,
    ShowPushGroups,
    SyncGroup,
    Tick,
    TopicImage,
    TopicsChanged,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.group import Group, GroupMembership
from kohort.groups.migration import conversion, group_routing
from kohort.groups.push.group import PushGroup
from kohort.groups.push.group import show as show_push_groups
from kohort.groups.records import Record
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import ImageChange

# -- What administrators ask: describe, list and delete groups


def describe(context: Context, event: DescribeGroups) -> None:
    """Answer a DescribeGroups with the groups' members, as far as that API covers them."""
    described = tuple(describe_one(context, group_id, event.knows_missing) for group_id in event.group_ids)
    context.reply(event.request, DescribeGroupsReply(described))


def describe_one(context: Context, group_id: str, knows_missing: bool) -> DescribedGroup:
    """Describe one group; a missing one is Dead, or GROUP_ID_NOT_FOUND for clients that know that code."""
    group = context.find(group_id)
    described = None if group is None else group.membership.describe(context)
    if described is not None:
        return described
    if not knows_missing:
        return DescribedGroup(group_id, GroupState.DEAD)
    message = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
    error = ErrorCode.GROUP_ID_NOT_FOUND
    return DescribedGroup(group_id, GroupState.DEAD, error=error, error_message=message)


def list_groups(context: Context, event: ListGroups) -> None:
    """Answer a ListGroups with every group that passes the filters."""
    states = {state.strip().lower() for state in event.states}
    types = {kind.strip().lower() for kind in event.types}
    found = tuple(
        listed
        for listed in (list_one(context, group) for group in context.ledger.groups.values())
        if (not states or listed.state.lower() in states) and (not types or listed.type.lower() in types)
    )
    context.reply(event.request, ListGroupsReply(found))


def list_one(context: Context, group: Group) -> ListedGroup:
    """Return one group's entry in the list."""
    membership = group.membership
    kind = membership.listed_as or membership.name
    return ListedGroup(group.group_id, membership.listed_protocol_type(), group.state(), kind)


def describe_consumer_groups(context: Context, event: ConsumerGroupDescribe) -> None:
    """Answer a ConsumerGroupDescribe with members, epochs, assignments and targets."""
    described = tuple(describe_consumer_group(context, group_id) for group_id in event.group_ids)
    context.reply(event.request, ConsumerGroupDescribeReply(described))


def describe_consumer_group(context: Context, group_id: str) -> DescribedConsumerGroup:
    """Describe one group under KIP-848; GROUP_ID_NOT_FOUND for one that is missing or classic."""
    group = context.find(group_id)
    described = None if group is None else group.membership.describe_consumer(context)
    if described is not None:
        return described
    message = f"Group {group_id} {'not found' if group is None else 'is not a consumer group'}."
    return DescribedConsumerGroup(group_id, error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)


def delete(context: Context, event: DeleteGroups) -> None:
    """Remove groups without members, and all their offsets."""
    context.reply(event.request, DeleteGroupsReply(tuple(delete_one(context, name) for name in event.group_ids)))


def delete_one(context: Context, group_id: str) -> ErrorCode:
    """Remove one group, or return the error that prevents it."""
    group = context.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state() is not GroupState.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    partitions = offset_requests.all_partitions(group)
    for partition in partitions:
        offset_requests.tombstone(context, group_id, partition)
    context.count(Meter.OFFSET_DELETIONS, len(partitions))
    context.remove(group)
    context.log(group_id, f"deleted with {len(partitions)} offsets")
    return ErrorCode.NONE


# -- The protocols that the coordinator speaks

PROTOCOLS: Final[tuple[type[GroupMembership], ...]] = (ClassicGroup, ConsumerGroup, PushGroup)
"""The classes of groups, by protocol. The first one serves groups that only hold offsets."""


Handler = Callable[[Context, Any], None]
GroupEvent: TypeAlias = (
    AssignmentComputed
    | RegexesResolved
    | GroupSettingsChanged
    | ConsumerAnswered
    | PartitionsDivided
    | OffsetsFound
    | OwnersMissing
)
"""An event that concerns one group, if that exists."""


def on_topics_changed(context: Context, event: TopicsChanged) -> None:
    """Take over the new topic image and notify the groups of the change."""
    before, context.image = context.image, event.image
    change = ImageChange.between(before, event.image)
    for group in list(context.ledger.groups.values()):
        context.react(group, TopicsChanged, change)


def on_release(context: Context, event: ReleaseLongPolls) -> None:
    """Answer delayed heartbeats because other requests follow; some may have been answered already."""
    for request in event.requests:
        timer = context.long_polls.get(request)
        group = None if timer is None else context.find(timer.group_id)
        if timer is not None and group is not None:
            context.react(group, ReleaseLongPolls, timer.subject)


def on_connection_lost(context: Context, event: ConnectionLost) -> None:
    """Tell the groups of the members that were heard on a connection that it has ended."""
    for group_id, member_id in context.connections.pop(event.connection, {}):
        group = context.find(group_id)
        if group is not None:
            context.react(group, ConnectionLost, member_id, event)


def on_settings(context: Context, event: GroupSettingsChanged) -> None:
    """Store a group's own settings, also those of a group that does not exist yet."""
    context.settings[event.group_id] = event.settings
    on_result(context, event)


def on_result(context: Context, event: GroupEvent) -> None:
    """Pass a result to its group, if that exists and its protocol handles it."""
    group = context.find(event.group_id)
    if group is not None:
        context.react(group, type(event), event)


HANDLERS: dict[type, Handler] = {
    Heartbeat: group_routing.heartbeat,
    OffsetCommit: offset_requests.commit,
    OffsetFetch: offset_requests.fetch,
    JoinGroup: group_routing.join,
    SyncGroup: group_routing.sync,
    LeaveGroup: group_routing.leave,
    TxnOffsetCommit: offset_requests.commit_transactional,
    TransactionEnded: offset_requests.end_transaction,
    OffsetDelete: offset_requests.delete,
    DeleteGroups: delete,
    DescribeGroups: describe,
    ListGroups: list_groups,
    TopicsChanged: on_topics_changed,
    TopicsDeleted: offset_requests.on_topics_deleted,
    ConnectionLost: on_connection_lost,
    ConsumerGroupHeartbeat: group_routing.consumer_heartbeat,
    ConsumerGroupDescribe: describe_consumer_groups,
    AssignmentComputed: on_result,
    GroupImported: offsets.on_imported,
    RegexesResolved: on_result,
    RegisterConsumer: group_routing.register,
    ConsumerAnswered: on_result,
    PartitionsDivided: on_result,
    OffsetsFound: on_result,
    OwnersMissing: on_result,
    GroupSettingsChanged: on_settings,
    ReleaseLongPolls: on_release,
    ShowPushGroups: show_push_groups,
}


class GroupMachine:
    """The state machine of all groups of one shard."""

    def __init__(self, config: GroupConfig, protocols: Sequence[type[GroupMembership]] = PROTOCOLS) -> None:
        self.context = Context(config, protocols, conversion.turn_classic)
        self._handlers: dict[type, Handler] = {**HANDLERS, Tick: lambda context, event: self._tick()}

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

        The outcome may hold records.

        Args:
            now: the time of the step.
            image: all topics.
            settings: the groups' own settings, by group. No record holds them, and they set the length of the sessions
                that restart here.
            ownership_proof_ms: how long an earlier owner may go on answering, and so may still hear members.
        """
        context = self.context
        context.begin(now)
        context.image = image
        context.settings = dict(settings)
        context.sessions_from_ms = now.mono_ms + ownership_proof_ms
        offset_requests.on_loaded(context)
        for group in list(context.ledger.groups.values()):
            group.membership.load(context)
        offsets.schedule(context)
        return context.effects

    def step(self, event: Event, now: Now) -> Effects:
        """Process one event. `now` never goes back."""
        context = self.context
        context.begin(now)
        self._handlers[type(event)](context, event)
        return context.effects

    def next_deadline_ms(self) -> int | None:
        """Return a monotonic time at which a `Tick` is due, perhaps too early; None: not before another event."""
        return self.context.deadlines.next_ms()

    def group_states(self) -> Iterator[tuple[str, GroupState]]:
        """Yield the protocol ("classic", "consumer" or "push") and state of every group."""
        for group in self.context.ledger.groups.values():
            yield group.membership.name, group.state()

    def knows(self, group_id: str) -> bool:
        """Return whether there is such a group."""
        return group_id in self.context.ledger.groups

    @property
    def has_unshown(self) -> bool:
        """Return whether push groups have changed since they were last published, or were never requested yet."""
        changed = self.context.ledger.changed
        return changed is None or bool(changed)

    def snapshot(self) -> Iterator[Record]:
        """Yield every record of the hard state, in an order that replays: the content after compaction."""
        return self.context.ledger.snapshot()

    def _tick(self) -> None:
        context = self.context
        while (timer := context.deadlines.pop_due(context.now.mono_ms)) is not None:
            if timer.kind is Deadline.EXPIRY:
                offsets.on_deadline(context)
                if context.expiring:
                    return
                continue
            group = context.find(timer.group_id)
            if group is not None:
                self._due(group, timer)

    def _due(self, group: Group, timer: Timer) -> None:
        if timer.kind is Deadline.SESSION and group.membership.extend_session(self.context, timer):
            return
        self.context.react(group, timer.kind, timer.subject)
