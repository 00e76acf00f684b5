"""Who may commit in a consumer group, and fetch in a member's name. Source: KIP-848, KIP-1251."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.consumer import members
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.events import OffsetCommit, OffsetFetch, TxnOffsetCommit


def may_commit(context: Context, consumer: ConsumerGroup, event: OffsetCommit | TxnOffsetCommit) -> ErrorCode:
    """Whether a member, or when the group is empty anyone, may commit now.

    A member's epoch may move on while its commit is under way: an older one will do for partitions that it had then and
    has had ever since. Source: KIP-1251.
    """
    member_id, instance_id, epoch = event.member_id, event.instance_id, event.generation
    if epoch < 0 and not consumer.members:
        return ErrorCode.NONE
    if instance_id is not None and consumer.static_ids.get(instance_id, member_id) != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    member = consumer.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic_protocols is None and isinstance(event, OffsetCommit) and not event.knows_stale_epoch:
        return ErrorCode.UNSUPPORTED_VERSION
    current, topics = consumer.current_assignment(member_id), context.image.topics
    if epoch == current.member_epoch or all(
        offset.topic in topics and current.covers(epoch, (topics[offset.topic].id, offset.partition))
        for offset in event.offsets
    ):
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic_protocols is None else ErrorCode.ILLEGAL_GENERATION


def may_commit_in_transaction(context: Context, consumer: ConsumerGroup, event: TxnOffsetCommit) -> ErrorCode:
    """As `may_commit`; a producer that names no member is not asked for one."""
    error = ErrorCode.NONE
    if event.generation >= 0 or event.member_id:
        error = may_commit(context, consumer, event)
    is_unknown = error is ErrorCode.STALE_MEMBER_EPOCH and not event.knows_stale_epoch
    return ErrorCode.ILLEGAL_GENERATION if is_unknown else error


def committed(context: Context, consumer: ConsumerGroup, event: OffsetCommit) -> None:
    """A classic member's commit is a sign of life, as in a classic group: its client need not know where it is."""
    member = consumer.members.get(event.member_id)
    if member is not None and member.classic_protocols is not None:
        presence = consumer.presence(event.member_id)
        if not presence.overdue:
            members.alive(context, consumer, presence, event.member_id)


def may_fetch(context: Context, consumer: ConsumerGroup, event: OffsetFetch) -> ErrorCode:
    """Whether a fetch that names a member names one with its epoch; one that names none is anyone's."""
    if event.member_id is None and event.member_epoch < 0:
        return ErrorCode.NONE
    member_id = event.member_id or ""
    if member_id not in consumer.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.member_epoch == consumer.current_assignment(member_id).member_epoch:
        return ErrorCode.NONE
    is_classic = consumer.members[member_id].classic_protocols is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
