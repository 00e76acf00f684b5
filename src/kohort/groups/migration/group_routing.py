"""Group routing: requests on their way to a group of any protocol, or to one that does not exist yet.

JoinGroup and ConsumerGroupHeartbeat create groups. An empty group takes the protocol of the first member that joins it.
Everything else is up to the handlers of the group's protocol.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.consumer.members import LEFT_FOR_A_WHILE
from kohort.groups.consumer.membership import Refusal
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
from kohort.groups.migration import conversion
from kohort.groups.push.group import PushGroup
from kohort.groups.records import PushGroupSaved


def join(context: Context, event: JoinGroup) -> None:
    """Route a JoinGroup: create a missing group, and turn an empty one of another protocol into a classic group."""
    group = context.find(event.group_id)
    if group is None:
        join_first(context, event)
        return
    membership = group.membership
    if isinstance(membership, ClassicGroup) or membership.group_state() is not GroupState.EMPTY:
        context.react(group, JoinGroup, event)
    else:
        join_empty(context, group, event)


def join_first(context: Context, event: JoinGroup) -> None:
    """Join a group that does not exist: create it if an empty group would accept the member."""
    error = check_first(context, event) or context.admit_group(event.group_id).error
    if error is ErrorCode.NONE and context.create(event.group_id) is None:
        error = ErrorCode.POLICY_VIOLATION
    if error is ErrorCode.NONE:
        context.react(context.ledger.groups[event.group_id], JoinGroup, event)
    else:
        context.reply(event.request, JoinGroupReply(error, member_id=event.member_id))


def check_first(context: Context, event: JoinGroup) -> ErrorCode:
    """Return whether an empty group, which knows no member ids, would accept a member."""
    error = sizes.check_join(context.config, event)
    if error is ErrorCode.NONE and event.member_id:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    return error or ClassicGroup(event.group_id).protocol_error(context, event)


def join_empty(context: Context, group: Group, event: JoinGroup) -> None:
    """Join an empty group of another protocol, which turns classic if an empty classic group would take the member."""
    error = check_first(context, event)
    if error is ErrorCode.NONE:
        conversion.release_protocol(context, group)
        join(context, event)
    else:
        context.reply(event.request, JoinGroupReply(error, member_id=event.member_id))


def sync(context: Context, event: SyncGroup) -> None:
    """Route a SyncGroup to its group, if there is one."""
    group = context.find(event.group_id)
    if group is None or not event.group_id:
        context.reply(event.request, SyncGroupReply(missing(event.group_id)))
    else:
        context.react(group, SyncGroup, event)


def heartbeat(context: Context, event: Heartbeat) -> None:
    """Route a Heartbeat to its group, if there is one."""
    group = context.ledger.groups.get(event.group_id)
    if group is None:
        context.reply(event.request, HeartbeatReply(missing(event.group_id)))
    else:
        context.react(group, Heartbeat, event)


def leave(context: Context, event: LeaveGroup) -> None:
    """Route a LeaveGroup to its group, if there is one."""
    group = context.find(event.group_id)
    if not event.group_id:
        context.reply(event.request, LeaveGroupReply(ErrorCode.INVALID_GROUP_ID))
    elif group is None:
        strangers = (
            LeftMember(left.member_id, left.instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for left in event.members
        )
        context.reply(event.request, LeaveGroupReply(ErrorCode.NONE, tuple(strangers)))
    else:
        context.react(group, LeaveGroup, event)


def missing(group_id: str) -> ErrorCode:
    """Return the error for requests to a group that does not exist."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def consumer_heartbeat(context: Context, event: ConsumerGroupHeartbeat) -> None:
    """Route a ConsumerGroupHeartbeat; a join creates the group or, if permitted, converts it to a consumer group."""
    refusal = check_heartbeat(context, event)
    if refusal is None and event.member_epoch == 0 and event.group_id not in context.ledger.groups:
        verdict = context.admit_group(event.group_id)
        refusal = None if verdict.error is ErrorCode.NONE else Refusal(verdict.error, verdict.text)
    if refusal is None and event.member_epoch == 0 and not conversion.make_consumer_group(context, event.group_id):
        refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {event.group_id} is not a consumer group.")
    group = context.ledger.groups.get(event.group_id)
    if refusal is None and group is None:
        what = "Group" if event.member_epoch < 0 else "Consumer group"
        refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{what} {event.group_id} not found.")
    if refusal is not None:
        refusal.answer(context, event)
    elif group is not None:
        context.react(group, ConsumerGroupHeartbeat, event)


def register(context: Context, event: RegisterConsumer) -> None:
    """Route the registration of a push consumer, which creates the group or takes an empty one of another protocol."""
    error = check_registration(context, event) or make_push_group(context, event.group_id)
    if error is ErrorCode.NONE:
        context.react(context.ledger.groups[event.group_id], RegisterConsumer, event)
    else:
        context.reply(event.request, RegisterConsumerReply(error))


def check_registration(context: Context, event: RegisterConsumer) -> ErrorCode:
    """Return the error in a registration itself, whatever the group."""
    config = context.config
    if "push" not in config.rebalance_protocols:
        return ErrorCode.UNSUPPORTED_VERSION
    if not event.group_id or not sizes.fits(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not event.member_id or not sizes.fits(event.member_id, event.regex, *event.topics):
        return ErrorCode.INVALID_REQUEST
    if not config.push_min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def make_push_group(context: Context, group_id: str) -> ErrorCode:
    """Create the push group of this name if necessary; return the error that prevents it."""
    group = context.find(group_id)
    if group is not None:
        membership = group.membership
        if isinstance(membership, PushGroup):
            return ErrorCode.NONE
        if membership.group_state() is not GroupState.EMPTY:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        conversion.release_protocol(context, group)
    elif len(context.ledger.groups) >= context.config.groups_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    context.emit(PushGroupSaved(group_id, context.now.wall_ms))
    return ErrorCode.NONE


LEAVES = -1


def check_heartbeat(context: Context, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Return the error in a request itself, None if there is none."""
    message = None
    if "consumer" not in context.config.rebalance_protocols:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, "The consumer protocol is switched off.")
    if (event.member_epoch > 0 or event.member_epoch == LEAVES) and is_blank(event.member_id):
        message = "MemberId can't be empty."
    elif is_blank(event.group_id):
        message = "GroupId can't be empty."
    elif is_blank(event.instance_id):
        message = "InstanceId can't be empty."
    elif is_blank(event.rack_id):
        message = "RackId can't be empty."
    elif event.member_epoch == 0:
        message = check_join(event)
    elif event.member_epoch == LEFT_FOR_A_WHILE and event.instance_id is None:
        message = "InstanceId can't be null."
    elif event.member_epoch < LEFT_FOR_A_WHILE:
        message = "MemberEpoch is invalid."
    if message is None and (event.member_epoch == 0 or event.subscribed_topics or event.subscribed_regex):
        message = check_sizes(context, event)
    if message is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if event.server_assignor is not None and event.server_assignor not in context.config.consumer_assignors:
        offered = ", ".join(context.config.consumer_assignors)
        text = f"ServerAssignor {event.server_assignor} is not supported. Supported assignors: {offered}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    return None


def is_blank(name: str | None) -> bool:
    """Return whether a name is given but blank."""
    return name is not None and not name.strip()


def check_sizes(context: Context, event: ConsumerGroupHeartbeat) -> str | None:
    """Return why no record could hold the request's texts, None if one can."""
    if not sizes.fits(event.group_id):
        return f"GroupId can't be longer than {sizes.NAME_BYTES_MAX} bytes."
    if not sizes.fits(event.member_id, event.new_member_id, event.instance_id, event.rack_id, event.subscribed_regex):
        return f"No id, rack or regular expression can be longer than {sizes.NAME_BYTES_MAX} bytes."
    limit = context.config.group_record_bytes_max
    if event.subscribed_topics and sum(map(len, event.subscribed_topics)) > limit:
        return f"The subscription takes more than {limit} bytes (group.record.max.bytes)."
    return None


def check_join(event: ConsumerGroupHeartbeat) -> str | None:
    """Return why a join is incomplete, None if it is complete."""
    if event.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.subscribed_topics is None and event.subscribed_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None
