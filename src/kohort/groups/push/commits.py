"""Who may commit in a push group by hand: a member, of partitions that it owns, until its Stop is answered."""

from __future__ import annotations

from collections.abc import Mapping

from kohort.errors import ErrorCode
from kohort.groups.context import Context
from kohort.groups.events import OffsetCommit, TxnOffsetCommit
from kohort.groups.group import Partition
from kohort.groups.push.state import PushGroup


def may_commit(context: Context, push: PushGroup, event: OffsetCommit) -> ErrorCode:
    """A member commits what it owns; when nobody is in the group, anyone commits anything."""
    if not push.members and event.generation < 0:
        return ErrorCode.NONE
    return ErrorCode.NONE if event.member_id in push.members else ErrorCode.UNKNOWN_MEMBER_ID


def refused_offsets(context: Context, push: PushGroup, event: OffsetCommit) -> Mapping[Partition, ErrorCode]:
    """The partitions that the member does not own by the coordinator's word, or has given up."""
    member = push.present.get(event.member_id)
    if member is None:
        return {}
    topics, holders = context.image.topics, push.holders
    owned = set()
    if not member.ending:
        for offset in event.offsets:
            topic = topics.get(offset.topic)
            if topic is not None and holders.get((topic.id, offset.partition)) == event.member_id:
                owned.add((offset.topic, offset.partition))
    named = ((offset.topic, offset.partition) for offset in event.offsets)
    return {part: ErrorCode.ILLEGAL_GENERATION for part in named if part not in owned}


def may_commit_in_transaction(context: Context, push: PushGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Members have no epoch that a transaction could be checked against: with members, none is taken."""
    return ErrorCode.NONE if not push.members else ErrorCode.ILLEGAL_GENERATION
