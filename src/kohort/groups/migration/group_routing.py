"""Group routing: requests on their way to a group of any protocol, or to one that does not exist yet.

JoinGroup and ConsumerGroupHeartbeat create groups. An empty group takes the protocol of the first member that joins it.
Everything else is up to the handlers of the group's protocol.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.admission import Refusal
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.context import Context
from kohort.groups.effects import (
    GroupState,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    LeftMember,
    RegisterConsumerReply,
    SyncGroupReply,
)
from kohort.groups.events import ConsumerGroupHeartbeat, Heartbeat, JoinGroup, LeaveGroup, RegisterConsumer, SyncGroup
from kohort.groups.group import Group
from kohort.groups.migration.conversion import GroupConversion
from kohort.groups.push.group import PushGroup
from kohort.groups.records import PushGroupSaved


class GroupRouting:
    """The routing of requests to the groups of a shard; some requests create a group, or convert it."""

    def __init__(self, context: Context, conversion: GroupConversion) -> None:
        self.context, self.conversion = context, conversion

    def join(self, event: JoinGroup) -> None:
        """Route a JoinGroup: create a missing group, and turn an empty one of another protocol into a classic group."""
        group = self.context.find(event.group_id)
        if group is None:
            self.join_missing_group(event)
            return
        membership = group.membership
        if isinstance(membership, ClassicGroup) or membership.group_state() is not GroupState.EMPTY:
            self.context.handle_event(group, JoinGroup, event)
        else:
            self.join_empty_group(group, event)

    def join_missing_group(self, event: JoinGroup) -> None:
        """Join a group that does not exist: create it if an empty group would accept the member."""
        context = self.context
        error = self.missing_group_join_error(event) or context.missing_group_verdict(event.group_id).error
        if error is ErrorCode.NONE and context.create_group(event.group_id) is None:
            error = ErrorCode.POLICY_VIOLATION
        if error is ErrorCode.NONE:
            context.handle_event(context.ledger.groups[event.group_id], JoinGroup, event)
        else:
            context.reply(event.request, JoinGroupReply(error, member_id=event.member_id))

    def missing_group_join_error(self, event: JoinGroup) -> ErrorCode:
        """Return the error with which an empty group, which knows no member ids, would refuse a JoinGroup."""
        error = admission.join_request_error(self.context.config, event)
        if error is ErrorCode.NONE and event.member_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        return error or ClassicGroup(event.group_id).joining_protocol_error(self.context, event)

    def join_empty_group(self, group: Group, event: JoinGroup) -> None:
        """Join an empty group of another protocol: it becomes classic if a new group would accept the member."""
        error = self.missing_group_join_error(event)
        if error is ErrorCode.NONE:
            self.conversion.drop_empty_group_protocol(group)
            self.join(event)
        else:
            self.context.reply(event.request, JoinGroupReply(error, member_id=event.member_id))

    def sync(self, event: SyncGroup) -> None:
        """Route a SyncGroup to its group, if there is one."""
        group = self.context.find(event.group_id)
        if group is None or not event.group_id:
            self.context.reply(event.request, SyncGroupReply(missing_group_error(event.group_id)))
        else:
            self.context.handle_event(group, SyncGroup, event)

    def heartbeat(self, event: Heartbeat) -> None:
        """Route a Heartbeat to its group, if there is one."""
        group = self.context.ledger.groups.get(event.group_id)
        if group is None:
            self.context.reply(event.request, HeartbeatReply(missing_group_error(event.group_id)))
        else:
            self.context.handle_event(group, Heartbeat, event)

    def leave(self, event: LeaveGroup) -> None:
        """Route a LeaveGroup to its group, if there is one."""
        context = self.context
        group = context.find(event.group_id)
        if not event.group_id:
            context.reply(event.request, LeaveGroupReply(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            strangers = (
                LeftMember(left.member_id, left.instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for left in event.members
            )
            context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(strangers)))
        else:
            context.handle_event(group, LeaveGroup, event)

    def consumer_heartbeat(self, event: ConsumerGroupHeartbeat) -> None:
        """Route a ConsumerGroupHeartbeat; a join creates the group or, if permitted, converts it."""
        context = self.context
        refusal = admission.heartbeat_refusal(context.config, event)
        if refusal is None and event.member_epoch == 0 and event.group_id not in context.ledger.groups:
            refusal = self.missing_consumer_group_refusal(event.group_id)
        if refusal is None and event.member_epoch == 0 and not self.conversion.make_consumer_group(event.group_id):
            refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {event.group_id} is not a consumer group.")
        group = context.ledger.groups.get(event.group_id)
        if refusal is None and group is None:
            what = "Group" if event.member_epoch < 0 else "Consumer group"
            refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{what} {event.group_id} not found.")
        if refusal is not None:
            refusal.refuse_heartbeat(context, event)
        elif group is not None:
            context.handle_event(group, ConsumerGroupHeartbeat, event)

    def missing_consumer_group_refusal(self, group_id: str) -> Refusal | None:
        """Return why a missing group can't be created for a member under KIP-848; None if it can."""
        verdict = self.context.missing_group_verdict(group_id)
        if verdict.error is not ErrorCode.NONE:
            return Refusal(verdict.error, verdict.text)
        if self.context.has_room():
            return None
        limit = self.context.config.groups_max
        text = f"The shard has {limit} groups already (group.coordinator.max.groups)."
        return Refusal(ErrorCode.POLICY_VIOLATION, text)

    def register(self, event: RegisterConsumer) -> None:
        """Route a push consumer's registration, which creates the group or takes an empty one of another protocol."""
        context = self.context
        error = admission.registration_error(context.config, event) or self.make_push_group(event.group_id)
        if error is ErrorCode.NONE:
            context.handle_event(context.ledger.groups[event.group_id], RegisterConsumer, event)
        else:
            context.reply(event.request, RegisterConsumerReply(error))

    def make_push_group(self, group_id: str) -> ErrorCode:
        """Create the push group of this name if necessary; return the error that prevents it.

        A missing group is first looked up at its earlier coordinator, as for the other protocols.
        """
        context = self.context
        group = context.find(group_id)
        if group is not None:
            membership = group.membership
            if isinstance(membership, PushGroup):
                return ErrorCode.NONE
            if membership.group_state() is not GroupState.EMPTY:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            self.conversion.drop_empty_group_protocol(group)
        elif (refused := context.missing_group_verdict(group_id).error) is not ErrorCode.NONE:
            return refused
        elif not context.has_room():
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        context.emit(PushGroupSaved(group_id, context.now.wall_ms))
        return ErrorCode.NONE


def missing_group_error(group_id: str) -> ErrorCode:
    """Return the error for requests of members to a group that does not exist."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
