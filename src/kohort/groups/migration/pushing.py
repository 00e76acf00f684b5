"""Creation of push groups: a new one, or an empty group of another protocol."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.effects import GroupState
from kohort.groups.migration import conversion
from kohort.groups.push.group import PushGroup
from kohort.groups.records import PushGroupSaved
from kohort.groups.step import Context


def make_push_group(context: Context, group_id: str) -> PushGroup | ErrorCode:
    """Return the push group of this name, created if necessary, or the error that prevents it."""
    group = context.find(group_id)
    if group is not None:
        membership = group.membership
        if isinstance(membership, PushGroup):
            return membership
        if membership.group_state() is not GroupState.EMPTY:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        conversion.release_protocol(context, group)
    elif context.ledger.is_full(context.config.groups_max):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    context.emit(PushGroupSaved(group_id, context.now.wall_ms))
    return context.ledger.membership(group_id, PushGroup)
