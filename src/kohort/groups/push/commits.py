"""Who may commit in a push group by hand: a member, of partitions that it owns, until its Stop is answered.

Of other partitions it may say again where they are, with metadata of its own, and of one that nobody owns a first
offset: that moves nobody.
"""

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
    """The partitions that the member would move, and does not own by the coordinator's word, or has given up."""
    member = push.present.get(event.member_id)
    if member is None:
        return {}
    topics, holders = context.image.topics, push.holders
    known = context.ledger.groups[push.group_id].offsets
    refused = {}
    for offset in event.offsets:
        part = (offset.topic, offset.partition)
        topic, at = topics.get(offset.topic), known.get(part)
        if topic is None or offset.partition >= topic.partitions:
            refused[part] = ErrorCode.ILLEGAL_GENERATION
            continue
        holder = holders.get((topic.id, offset.partition))
        moves = holder is not None if at is None else at.offset != offset.offset
        if moves and (member.ending or holder != event.member_id):
            refused[part] = ErrorCode.ILLEGAL_GENERATION
    return refused


def may_commit_in_transaction(context: Context, push: PushGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Members have no epoch that a transaction could be checked against: with members, none is taken."""
    return ErrorCode.NONE if not push.members else ErrorCode.ILLEGAL_GENERATION
