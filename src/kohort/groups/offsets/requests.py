"""Committed offsets: who may commit, fetch and delete them, and what transactions hold back.

Source: spec 1.1-1.4, KIP-447 (require stable), KIP-496 (deletion), KIP-211 (expire timestamps of old versions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.classic import gathering, rebalance
from kohort.groups.classic.requests import is_current, validate
from kohort.groups.classic.state import ClassicGroup
from kohort.groups.consumer import members
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.context import Context
from kohort.groups.events import (
    NO_CONNECTION,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.group import Group, Partition
from kohort.groups.outcome import (
    FetchedOffset,
    GroupState,
    Meter,
    OffsetCommitReply,
    OffsetDeleteReply,
    OffsetFetchReply,
    TransactionEndedReply,
)
from kohort.groups.records import Kind, OffsetCommitted, Tombstone, TransactionMarked
from kohort.ids import TopicPartition

METADATA: Final = itemgetter(4)
"""The metadata of an `OffsetToCommit`."""
NEW_RECORD: Final[Callable[[Iterable[Any]], OffsetCommitted]] = partial(tuple.__new__, OffsetCommitted)
"""`OffsetCommitted._make` without its step of Python."""


def commit(context: Context, event: OffsetCommit) -> None:
    """Positions of a member, or of someone who assigns partitions to itself."""
    error, group = committing_group(context, event)
    if group is None:
        context.reply(event.request, OffsetCommitReply((error,) * len(event.offsets)))
        return
    classic = group.classic
    if event.member_id in classic.members and classic.state is not GroupState.COMPLETING_REBALANCE:
        rebalance.alive(context, classic.members[event.member_id])
    elif group.consumer is not None:
        members.committed(context, event.group_id, group.consumer, event.member_id)
    expire_ms = -1 if event.retention_ms < 0 else context.now.wall_ms + event.retention_ms
    limit = context.config.offset_metadata_bytes_max
    taken = event.offsets
    if max(map(len, map(METADATA, taken)), default=0) > sizes.metadata_bound(limit):
        taken = tuple(offset for offset in taken if sizes.metadata_fits(offset.metadata, limit))
    records = offsets_committed(event.group_id, taken, context.now.wall_ms, expire_ms)
    context.ledger.take_commit(group, records)
    context.out.records.extend(records)
    context.count(Meter.OFFSET_COMMITS, len(records))
    if len(records) == len(event.offsets):
        errors = (ErrorCode.NONE,) * len(records)
    else:
        errors = tuple(
            ErrorCode.NONE if sizes.metadata_fits(offset.metadata, limit) else ErrorCode.OFFSET_METADATA_TOO_LARGE
            for offset in event.offsets
        )
    context.reply(event.request, OffsetCommitReply(errors))


def offsets_committed(
    group_id: str, offsets: Sequence[OffsetToCommit], wall_ms: int, expire_ms: int
) -> list[OffsetCommitted]:
    """The records of a commit, a column at a time: commits name hundreds of partitions."""
    if not offsets:
        return []
    topics, partitions, positions, epochs, metadata, ids = zip(*offsets, strict=True)
    times, nobody = (repeat(wall_ms), repeat(expire_ms)), (repeat(-1), repeat(-1))
    columns = (repeat(group_id), topics, partitions, positions, epochs, metadata, *times, ids, *nobody)
    return list(map(NEW_RECORD, zip(*columns, strict=False)))


def committing_group(context: Context, event: OffsetCommit) -> tuple[ErrorCode, Group | None]:
    """The group that takes this commit, or why none does. A commit without generation makes its group."""
    if not sizes.commit_fits(event.group_id, event.offsets):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE, None
    group = context.find(event.group_id)
    if group is None:
        if not sizes.fits(event.group_id):
            return ErrorCode.INVALID_GROUP_ID, None
        if event.generation >= 0:
            return (ErrorCode.GROUP_ID_NOT_FOUND if event.knows_stale_epoch else ErrorCode.ILLEGAL_GENERATION), None
        group = context.create(event.group_id)
        if group is None:
            return ErrorCode.POLICY_VIOLATION, None
    if group.consumer is not None:
        error = may_commit_consumer(context, group.consumer, event, event.knows_stale_epoch)
    else:
        error = may_commit(group, event.member_id, event.instance_id, event.generation, transactional=False)
        if error is ErrorCode.NONE and has_given_up(group.classic, event):
            error = ErrorCode.REBALANCE_IN_PROGRESS
    return error, (group if error is ErrorCode.NONE else None)


def may_commit(
    group: Group, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
) -> ErrorCode:
    """Whether a member, or someone without group management, may commit now."""
    classic = group.classic
    if generation < 0 and classic.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation >= 0 or member_id or instance_id is not None:
        error = validate(classic, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if not is_current(group, generation):
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional and classic.state is not GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and classic.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def has_given_up(classic: ClassicGroup, event: OffsetCommit) -> bool:
    """Whether a commit comes behind its member's JoinGroup, before which an eager one gives up what it had.

    Kafka takes the requests of a connection one after the other, so that it looks at such a commit when the round is over,
    and refuses it. A process that slept while it waited to join can't commit here what others may have had since.
    """
    member = classic.members.get(event.member_id)
    if member is None or member.join_request is None or event.connection == NO_CONNECTION:
        return False
    return event.connection == member.connection and gathering.COOPERATIVE not in (classic.protocol or "")


def may_commit_consumer(
    context: Context, consumer: ConsumerGroup, event: OffsetCommit | TxnOffsetCommit, knows_stale_epoch: bool = True
) -> ErrorCode:
    """Whether a member of a consumer group, or when it is empty anyone, may commit now.

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
    if member.classic_protocols is None and not knows_stale_epoch:
        return ErrorCode.UNSUPPORTED_VERSION
    standing, topics = consumer.standing(member_id), context.image.topics
    if epoch == standing.member_epoch or all(
        offset.topic in topics and standing.covers(epoch, (topics[offset.topic].id, offset.partition))
        for offset in event.offsets
    ):
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic_protocols is None else ErrorCode.ILLEGAL_GENERATION


def commit_transactional(context: Context, event: TxnOffsetCommit) -> None:
    """Positions that count when the producer's transaction commits."""
    group = context.find(event.group_id)
    error = ErrorCode.NONE
    if not sizes.commit_fits(event.group_id, event.offsets):
        error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    elif group is None and not sizes.fits(event.group_id):
        error = ErrorCode.INVALID_GROUP_ID
    elif group is None and event.generation >= 0:
        error = ErrorCode.ILLEGAL_GENERATION
    elif group is None:
        error = ErrorCode.NONE if context.create(event.group_id) else ErrorCode.POLICY_VIOLATION
    elif group.consumer is not None:
        if event.generation >= 0 or event.member_id:
            error = may_commit_consumer(context, group.consumer, event)
        if error is ErrorCode.STALE_MEMBER_EPOCH:
            error = ErrorCode.ILLEGAL_GENERATION
    else:
        error = may_commit(group, event.member_id, event.instance_id, event.generation, transactional=True)
    if error is not ErrorCode.NONE:
        context.reply(event.request, OffsetCommitReply((error,) * len(event.offsets)))
        return
    errors = tuple(commit_pending(context, event, offset) for offset in event.offsets)
    context.count(Meter.OFFSET_COMMITS, errors.count(ErrorCode.NONE))
    context.reply(event.request, OffsetCommitReply(errors))


def commit_pending(context: Context, event: TxnOffsetCommit, offset: OffsetToCommit) -> ErrorCode:
    """One position of a transaction."""
    if not sizes.metadata_fits(offset.metadata, context.config.offset_metadata_bytes_max):
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    context.emit(
        OffsetCommitted(
            event.group_id,
            offset.topic,
            offset.partition,
            offset.offset,
            offset.leader_epoch,
            offset.metadata,
            context.now.wall_ms,
            -1,
            offset.topic_id,
            event.producer_id,
            event.producer_epoch,
        )
    )
    return ErrorCode.NONE


def end_transaction(context: Context, event: TransactionEnded) -> None:
    """A transaction's end marker: its pending positions count now, or are gone."""
    context.emit(TransactionMarked(event.producer_id, event.producer_epoch, event.commit))
    if event.request is not None:
        context.reply(event.request, TransactionEndedReply(ErrorCode.NONE))


def fetch(context: Context, event: OffsetFetch) -> None:
    """What is committed. A group or a partition without any is no error."""
    group = context.find(event.group_id)
    wanted: tuple[Partition, ...]
    if group is None:
        wanted = event.partitions or ()
        found = tuple(FetchedOffset(topic, partition) for topic, partition in wanted)
    elif group.consumer is not None and (error := may_fetch(group.consumer, event)) is not ErrorCode.NONE:
        context.reply(event.request, OffsetFetchReply(error))
        return
    else:
        wanted = tuple(group.offsets) if event.partitions is None else event.partitions
        found = tuple(fetch_one(group, partition, event.require_stable) for partition in wanted)
    context.reply(event.request, OffsetFetchReply(ErrorCode.NONE, found))


def may_fetch(consumer: ConsumerGroup, event: OffsetFetch) -> ErrorCode:
    """Whether a fetch that names a member names one with its epoch; one that names none is anyone's."""
    if event.member_id is None and event.member_epoch < 0:
        return ErrorCode.NONE
    member_id = event.member_id or ""
    if member_id not in consumer.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.member_epoch == consumer.standing(member_id).member_epoch:
        return ErrorCode.NONE
    is_classic = consumer.members[member_id].classic_protocols is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def fetch_one(group: Group, partition: Partition, require_stable: bool) -> FetchedOffset:
    """One partition's position, or UNSTABLE_OFFSET_COMMIT while a transaction may change it."""
    topic, number = partition
    if require_stable and group.pending and group.has_pending(partition):
        return FetchedOffset(topic, number, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    record = group.offsets.get((topic, number))
    if record is None:
        return FetchedOffset(topic, number)
    return FetchedOffset(
        topic, number, record.offset, record.leader_epoch, record.metadata, ErrorCode.NONE, record.topic_id
    )


def delete(context: Context, event: OffsetDelete) -> None:
    """Delete positions of topics that no member is subscribed to. Source: spec 1.2, KIP-496."""
    group = context.find(event.group_id)
    if group is None:
        context.reply(event.request, OffsetDeleteReply(ErrorCode.GROUP_ID_NOT_FOUND))
        return
    classic = group.classic
    is_classic = group.consumer is None
    if is_classic and classic.state is not GroupState.EMPTY and classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        context.reply(event.request, OffsetDeleteReply(ErrorCode.NON_EMPTY_GROUP))
        return
    errors = tuple(delete_one(context, group, partition) for partition in event.partitions)
    context.reply(event.request, OffsetDeleteReply(ErrorCode.NONE, errors))


def delete_one(context: Context, group: Group, partition: TopicPartition) -> ErrorCode:
    """Delete one partition's position, and what transactions hold of it; none is no error."""
    if group.is_subscribed(partition.topic):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    key = (partition.topic, partition.partition)
    if key in group.offsets or group.has_pending(key):
        tombstone(context, group.group_id, key)
        context.count(Meter.OFFSET_DELETIONS)
    return ErrorCode.NONE


def tombstone(context: Context, group_id: str, partition: Partition) -> None:
    """Write that a partition has no position any more."""
    context.emit(Tombstone((Kind.OFFSET, group_id, *partition)))


def all_partitions(group: Group) -> list[Partition]:
    """Every partition with a committed or a pending position, each once."""
    found = dict.fromkeys(group.offsets)
    for offsets in group.pending.values():
        found.update(dict.fromkeys(offsets))
    return list(found)


def on_topics_deleted(context: Context, event: TopicsDeleted) -> None:
    """The positions of deleted topics go with them. Source: scenario 14."""
    drop_positions(context, frozenset(event.topics).__contains__)


def on_loaded(context: Context) -> None:
    """The positions of topics that were deleted while no coordinator looked go too; without any topic, none is known."""
    topics = context.image.topics
    if topics:
        drop_positions(context, lambda topic: topic not in topics)


def drop_positions(context: Context, is_gone: Callable[[str], bool]) -> None:
    """Delete the positions of these topics."""
    for group in list(context.ledger.groups.values()):
        for partition in all_partitions(group):
            if is_gone(partition[0]):
                tombstone(context, group.group_id, partition)
