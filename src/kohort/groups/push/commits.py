"""Who may commit in a push group by hand: a member, of partitions that it owns, until its Stop is answered."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.context import Context
from kohort.groups.events import OffsetCommit, TxnOffsetCommit
from kohort.groups.push.state import PushGroup


def may_commit(context: Context, push: PushGroup, event: OffsetCommit) -> ErrorCode:
    """A member commits what it owns; when nobody is in the group, anyone commits anything."""
    if not push.members and event.generation < 0:
        return ErrorCode.NONE
    member = push.present.get(event.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    topics = context.image.topics
    for offset in event.offsets:
        topic = topics.get(offset.topic)
        if topic is None or push.holders.get((topic.id, offset.partition)) != event.member_id or member.ending:
            return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def may_commit_in_transaction(context: Context, push: PushGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Members have no epoch that a transaction could be checked against: with members, none is taken."""
    return ErrorCode.NONE if not push.members else ErrorCode.ILLEGAL_GENERATION
