"""Committed offsets: permission to commit, fetch and delete them, and offsets that wait for a transaction.

Source: spec 1.1-1.4, KIP-447 (require stable), KIP-496 (deletion), KIP-211 (expire timestamps of old versions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from kohort.errors import NO_ERROR, ErrorCode
from kohort.groups import sizes
from kohort.groups.context import Context
from kohort.groups.effects import (
    CoordinatorMeter,
    FetchedOffset,
    FindDeletedTopics,
    GroupState,
    OffsetCommitReply,
    OffsetDeleteReply,
    OffsetFetchReply,
    TransactionEndedReply,
)
from kohort.groups.events import (
    GroupImported,
    OffsetColumns,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
    TopicsDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from kohort.groups.group import Group, Partition
from kohort.groups.records import OffsetCommitted, OffsetsImported, RecordKind, Tombstone, TransactionMarked
from kohort.ids import NO_TOPIC_ID, TopicId, TopicPartition

NEW_RECORD: Final[Callable[[Iterable[Any]], OffsetCommitted]] = partial(tuple.__new__, OffsetCommitted)
"""`OffsetCommitted._make` without its Python frame."""
NEW_FETCHED: Final[Callable[[Iterable[Any]], FetchedOffset]] = partial(tuple.__new__, FetchedOffset)
"""`FetchedOffset._make` without its Python frame."""
_SHOWN: Final = itemgetter(1, 2, 3, 4, 5)
"""The fields of an `OffsetCommitted` from its topic to its metadata, with which a `FetchedOffset` begins."""


_NO_PRODUCER: Final = repeat(-1)
"""Producer ids, or epochs, of offsets outside transactions."""
ACCEPTED_KEPT_MAX: Final = 256
"""The most positions of a commit whose reply is cached. The reply to a commit of a million positions takes 8 MB."""
OFFSETS_MAX = 100_000
"""The limit of imported offsets for one group, because they are one append."""
EXPIRE_MS_MAX: Final = 2**63 - 1
"""The last time that a record can hold: old clients may ask for the longest retention that a request can hold."""
OFFSETS_A_STEP = 5_000
"""The number of positions that one step examines, so that no heartbeat waits long behind an expiration."""


class CommittedOffsets:
    """The committed offsets of a shard's groups: requests for them, their import, and their expiration."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def commit(self, event: OffsetCommit) -> None:
        """Commit the offsets of a member, or of a client that assigns partitions to itself."""
        context = self.context
        group = context.ledger.groups.get(event.group_id)
        error = NO_ERROR
        if not sizes.commit_fits(context.config, event.group_id, event.offsets):
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        elif group is None:
            error = self.create_group_for_commit(event)
            group = context.find(event.group_id)
        if group is not None and error is NO_ERROR:
            error = group.membership.commit_error(context, event)
        if group is None or error is not NO_ERROR:
            context.reply(event.request, OffsetCommitReply((error,) * len(event.offsets)))
            return
        group.membership.on_offsets_committed(context, event)
        expire_ms = -1 if event.retention_ms < 0 else min(context.now.wall_ms + event.retention_ms, EXPIRE_MS_MAX)
        limit = context.config.offset_metadata_bytes_max
        taken = offsets = OffsetColumns.of(event.offsets)
        refused = group.membership.refused_offsets(context, event)
        if refused:
            taken = OffsetColumns.of([offset for offset in taken if (offset.topic, offset.partition) not in refused])
        metadata = taken.metadata
        if any(metadata) and max(map(len, metadata)) > sizes.always_fitting_chars(limit):
            taken = OffsetColumns.of([offset for offset in taken if sizes.metadata_fits(offset.metadata, limit)])
        records = self.write_offsets(group, taken, expire_ms)
        size = len(records)
        context.count_meter(CoordinatorMeter.OFFSET_COMMITS, size)
        if taken is offsets or size == len(offsets):
            reply = all_accepted_reply(size)
        else:
            reply = OffsetCommitReply(
                tuple(
                    (refused or {}).get((offset.topic, offset.partition)) or metadata_size_error(offset.metadata, limit)
                    for offset in event.offsets
                )
            )
        context.reply(event.request, reply)

    def write_offsets(self, group: Group, offsets: OffsetColumns, expire_ms: int) -> list[OffsetCommitted]:
        """Write the offsets of a commit that belongs to no transaction; return their records."""
        context = self.context
        records = committed_offset_records(group.group_id, offsets, context.now.wall_ms, expire_ms)
        context.ledger.apply_commit(group, offsets.places, records)
        context.effects.records += records
        return records

    def create_group_for_commit(self, event: OffsetCommit) -> ErrorCode:
        """Create the missing group of a commit without a generation; refuse a commit that names one."""
        if not sizes.names_fit_record(event.group_id):
            return ErrorCode.INVALID_GROUP_ID
        if event.generation >= 0:
            return ErrorCode.GROUP_ID_NOT_FOUND if event.knows_stale_epoch else ErrorCode.ILLEGAL_GENERATION
        refused = self.context.missing_group_verdict(event.group_id).error
        if refused is not ErrorCode.NONE:
            return refused
        return ErrorCode.POLICY_VIOLATION if self.context.create_group(event.group_id) is None else ErrorCode.NONE

    def commit_transactional(self, event: TxnOffsetCommit) -> None:
        """Store the offsets of a TxnOffsetCommit, which take effect when the producer's transaction commits."""
        context = self.context
        group = context.find(event.group_id)
        error = ErrorCode.NONE
        if not sizes.commit_fits(context.config, event.group_id, event.offsets):
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        elif group is None and not sizes.names_fit_record(event.group_id):
            error = ErrorCode.INVALID_GROUP_ID
        elif group is None and event.generation >= 0:
            error = ErrorCode.GROUP_ID_NOT_FOUND if event.knows_stale_epoch else ErrorCode.ILLEGAL_GENERATION
        elif group is None:
            error = context.missing_group_verdict(event.group_id).error
            if error is ErrorCode.NONE and context.create_group(event.group_id) is None:
                error = ErrorCode.POLICY_VIOLATION
        else:
            error = group.membership.transactional_commit_error(context, event)
        if error is not ErrorCode.NONE:
            context.reply(event.request, OffsetCommitReply((error,) * len(event.offsets)))
            return
        errors = tuple(self.write_pending_offset(event, offset) for offset in event.offsets)
        context.count_meter(CoordinatorMeter.OFFSET_COMMITS, errors.count(ErrorCode.NONE))
        context.reply(event.request, OffsetCommitReply(errors))

    def write_pending_offset(self, event: TxnOffsetCommit, offset: OffsetToCommit) -> ErrorCode:
        """Write one pending offset of a transaction."""
        if not sizes.metadata_fits(offset.metadata, self.context.config.offset_metadata_bytes_max):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        self.context.emit(
            OffsetCommitted(
                event.group_id,
                offset.topic,
                offset.partition,
                offset.offset,
                offset.leader_epoch,
                offset.metadata,
                self.context.now.wall_ms,
                -1,
                offset.topic_id,
                event.producer_id,
                event.producer_epoch,
            )
        )
        return ErrorCode.NONE

    def end_transaction(self, event: TransactionEnded) -> None:
        """Apply a transaction's end marker: its pending offsets are committed or dropped."""
        self.context.emit(TransactionMarked(event.producer_id, event.producer_epoch, event.commit))
        if event.request is not None:
            self.context.reply(event.request, TransactionEndedReply(ErrorCode.NONE))

    def fetch(self, event: OffsetFetch) -> None:
        """Return committed offsets. A group or a partition without any is no error."""
        context = self.context
        group = context.find(event.group_id)
        wanted: tuple[Partition, ...]
        if group is None and (refused := context.missing_group_verdict(event.group_id).error) is not ErrorCode.NONE:
            context.reply(event.request, OffsetFetchReply(refused))
            return
        if group is None:
            wanted = event.partitions or ()
            found = tuple(FetchedOffset(topic, partition) for topic, partition in wanted)
        elif (error := group.membership.fetch_error(context, event)) is not NO_ERROR:
            context.reply(event.request, OffsetFetchReply(error))
            return
        else:
            wanted = tuple(group.offsets) if event.partitions is None else event.partitions
            found = fetch_partition_offsets(group, wanted, event.require_stable)
            if not context.image.sure:
                found = tuple(self.hide_if_topic_in_doubt(offset) for offset in found)
        context.reply(event.request, OffsetFetchReply(NO_ERROR, found))

    def hide_if_topic_in_doubt(self, found: FetchedOffset) -> FetchedOffset:
        """Return a committed offset, or UNSTABLE_OFFSET_COMMIT while it may belong to an earlier topic of that name.

        The error stands until `FindDeletedTopics` has found out. Clients retry after it and reset nothing meanwhile.
        """
        topic = self.context.image.topics.get(found.topic)
        if topic is None or found.topic_id in (NO_TOPIC_ID, topic.id):
            return found
        return FetchedOffset(found.topic, found.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)

    def delete(self, event: OffsetDelete) -> None:
        """Delete committed offsets of topics that no member is subscribed to. Source: spec 1.2, KIP-496."""
        context = self.context
        group = context.find(event.group_id)
        if group is None:
            context.reply(event.request, OffsetDeleteReply(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if not group.membership.knows_subscribed_topics():
            context.reply(event.request, OffsetDeleteReply(ErrorCode.NON_EMPTY_GROUP))
            return
        subscribed = group.membership.subscribed_topics()
        errors = tuple(self.delete_partition_offset(group, partition, subscribed) for partition in event.partitions)
        context.reply(event.request, OffsetDeleteReply(ErrorCode.NONE, errors))

    def delete_partition_offset(
        self, group: Group, partition: TopicPartition, subscribed: frozenset[str] | None
    ) -> ErrorCode:
        """Delete one partition's committed and pending offsets; having none is no error.

        Args:
            group: the group.
            partition: the partition.
            subscribed: the topics that members read; None: they may read any.
        """
        if subscribed is None or partition.topic in subscribed:
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        key = (partition.topic, partition.partition)
        if key in group.offsets or group.has_pending_offset(key):
            self.write_tombstone(group.group_id, key)
            self.context.count_meter(CoordinatorMeter.OFFSET_DELETIONS)
        return ErrorCode.NONE

    def write_tombstone(self, group_id: str, partition: Partition) -> None:
        """Write the tombstone of a partition's committed offset."""
        self.context.emit(Tombstone((RecordKind.OFFSET, group_id, *partition)))

    def on_topics_deleted(self, event: TopicsDeleted) -> None:
        """Delete the committed offsets of deleted topics. Source: scenario 14."""
        topics = {} if self.context.image.sure else self.context.image.topics
        ids = {name: topics[name].id if name in topics else NO_TOPIC_ID for name in event.topics}
        self.delete_offsets_where(
            lambda topic, topic_id: topic in ids and (topic_id == NO_TOPIC_ID or topic_id != ids[topic])
        )

    def on_loaded(self) -> None:
        """Delete the offsets of topics that were deleted while no coordinator ran; skip this if no topics are known.

        If the topic image is not sure, only request a check (`remove_unregistered`).
        """
        topics = self.context.image.topics
        if not self.context.image.sure:
            self.remove_unregistered()
        elif topics:
            self.delete_offsets_where(lambda topic, topic_id: topic not in topics)

    def remove_unregistered(self) -> None:
        """Request a check of topics with committed offsets that the topic image lacks, or has under another id.

        Absence from the image alone deletes nothing.
        """
        topics = self.context.image.topics
        missing: dict[str, set[TopicId]] = {}
        for group in self.context.ledger.groups.values():
            for (name, _), record in group.offsets.items():
                known = topics.get(name)
                if known is None or (record.topic_id not in (NO_TOPIC_ID, known.id)):
                    missing.setdefault(name, set()).add(record.topic_id)
        if missing:
            self.context.effects.work.append(FindDeletedTopics({name: frozenset(ids) for name, ids in missing.items()}))

    def delete_offsets_where(self, is_gone: Callable[[str, TopicId], bool]) -> None:
        """Delete the committed offsets for which `is_gone` returns True, given topic name and topic id."""
        for group in list(self.context.ledger.groups.values()):
            for partition in group.all_partitions():
                record = group.offsets.get(partition)
                if is_gone(partition[0], NO_TOPIC_ID if record is None else record.topic_id):
                    self.write_tombstone(group.group_id, partition)

    # -- Import of the offsets that an earlier coordinator has kept; `admission.GroupImports` has the protocol

    def on_imported(self, event: GroupImported) -> None:
        """Handle the result of a group's import; ignore it if this import was started before the shard's last load."""
        context = self.context
        if context.imports.under_way.get(event.group_id) != event.ticket:
            return
        del context.imports.under_way[event.group_id]
        if event.error is not ErrorCode.NONE or not event.offsets:
            context.imports.store_refusal(context, event)
        elif len(event.offsets) > OFFSETS_MAX:
            text = f"its earlier coordinator has {len(event.offsets)} offsets of it, at most {OFFSETS_MAX} are imported"
            context.imports.store_refusal(
                context, GroupImported(event.group_id, event.ticket, (), ErrorCode.POLICY_VIOLATION, text)
            )
        else:
            self.write_imported(event)

    def write_imported(self, event: GroupImported) -> None:
        """Write an imported group: the import record and the offsets, in one append."""
        context = self.context
        group = context.find(event.group_id) or context.create_group(event.group_id)
        if group is None:
            text = f"there are {context.config.groups_max} groups already"
            context.imports.store_refusal(
                context, GroupImported(event.group_id, event.ticket, (), ErrorCode.POLICY_VIOLATION, text)
            )
            return
        context.imports.forget_verdict(event.group_id)
        context.emit(OffsetsImported(event.group_id, context.now.wall_ms, len(event.offsets)))
        offsets = tuple(self.with_topic_id(offset) for offset in event.offsets)
        records = self.write_offsets(group, OffsetColumns.of(offsets), -1)
        context.count_meter(CoordinatorMeter.GROUP_IMPORTS)
        context.log(event.group_id, f"imported with {len(records)} offsets from its earlier coordinator")

    def with_topic_id(self, offset: OffsetToCommit) -> OffsetToCommit:
        """Return an offset to commit, completed by the id of its topic if that is known."""
        topic = self.context.image.topics.get(offset.topic)
        return offset if topic is None or self.context.image.sure else offset._replace(topic_id=topic.id)

    # -- Expiration: unread positions are deleted after the retention, and empty groups without positions with them
    #
    # | group | which positions | their time starts |
    # |---|---|---|
    # | empty | all | when it became empty, or at a later commit |
    # | stable, protocol type "consumer", subscription readable | of topics not subscribed | at the commit |
    # | under KIP-848, with members | of topics not subscribed | at the commit |
    # | without protocol type (assign and commit) | all | at the commit |
    # | any other, also while a classic group rebalances | none | |
    #
    # A position with its own expire timestamp (OffsetCommit 2-4) follows that timestamp. A position that a transaction
    # may still replace stays. Source: spec 1.5, 1.6, KIP-211, KIP-496, scenario 13.

    def schedule_expiration(self) -> None:
        """Schedule the next expiration of committed offsets, after `offsets.retention.check.interval.ms`."""
        self.context.start_timer(self.context.expiry, self.context.config.offsets_retention_check_ms)

    def on_expiration_timer(self) -> None:
        """Expire the committed offsets of some groups; the rest follow in the next steps."""
        context = self.context
        if not context.expiring:
            context.expiring = list(reversed(context.ledger.groups))
        looked = 0
        while context.expiring and looked < OFFSETS_A_STEP:
            group = context.find(context.expiring.pop())
            if group is not None:
                looked += 1 + len(group.offsets)
                self.expire_group_offsets(group)
        if context.expiring:
            context.start_timer(context.expiry, 0)
        else:
            self.schedule_expiration()

    def expire_group_offsets(self, group: Group) -> None:
        """Remove a group's expired offsets, and the group itself if no offsets and no members are left."""
        membership = group.membership
        if not membership.may_expire_offsets():
            return
        subscribed = membership.subscribed_topics()
        gone = [
            partition
            for partition, record in group.offsets.items()
            if subscribed is not None
            and partition[0] not in subscribed
            and not group.has_pending_offset(partition)
            and self.is_expired(group, record)
        ]
        for partition in gone:
            self.write_tombstone(group.group_id, partition)
        self.context.count_meter(CoordinatorMeter.OFFSET_EXPIRATIONS, len(gone))
        if gone:
            self.context.log(group.group_id, "1 offset expired" if len(gone) == 1 else f"{len(gone)} offsets expired")
        if group.listed_state() is GroupState.EMPTY and not (
            group.offsets or group.pending or membership.has_unused_member_ids()
        ):
            self.context.remove_membership(group)

    def is_expired(self, group: Group, record: OffsetCommitted) -> bool:
        """Return whether a committed offset's retention is over."""
        now_ms = self.context.ages.now_ms(self.context.now.wall_ms, self.context.now.mono_ms)
        if record.expire_ms >= 0:
            return now_ms >= record.expire_ms
        start_ms = max(record.commit_ms, group.membership.empty_since_ms())
        return now_ms - start_ms >= self.context.config.offsets_retention_ms


def all_accepted_reply(size: int) -> OffsetCommitReply:
    """Return the reply to a commit of this many partitions, all of which were accepted."""
    return _small_accepted(size) if size <= ACCEPTED_KEPT_MAX else OffsetCommitReply((NO_ERROR,) * size)


@cache
def _small_accepted(size: int) -> OffsetCommitReply:
    return OffsetCommitReply((NO_ERROR,) * size)


def metadata_size_error(metadata: str, limit: int) -> ErrorCode:
    """Return OFFSET_METADATA_TOO_LARGE if the metadata of a committed offset exceeds the limit, else NONE."""
    return ErrorCode.NONE if sizes.metadata_fits(metadata, limit) else ErrorCode.OFFSET_METADATA_TOO_LARGE


def committed_offset_records(
    group_id: str, offsets: OffsetColumns, wall_ms: int, expire_ms: int
) -> list[OffsetCommitted]:
    """Build the records of a commit column by column, because commits name hundreds of partitions."""
    names, parts, positions, epochs, metadata, ids = offsets.columns
    group, written, expires = repeat(group_id), repeat(wall_ms), repeat(expire_ms)
    rows = zip(
        group,
        names,
        parts,
        positions,
        epochs,
        metadata,
        written,
        expires,
        ids,
        _NO_PRODUCER,
        _NO_PRODUCER,
        strict=False,
    )
    return list(map(NEW_RECORD, rows))


def fetch_partition_offsets(
    group: Group, partitions: Sequence[Partition], require_stable: bool
) -> tuple[FetchedOffset, ...]:
    """Return the committed offsets of these partitions for OffsetFetch.

    With `require_stable`, a partition with an open transaction gets UNSTABLE_OFFSET_COMMIT.
    """
    found = zip(partitions, map(group.offsets.get, partitions), strict=True)
    if require_stable and group.pending:
        return tuple([fetched_offset(part, record, unstable=group.has_pending_offset(part)) for part, record in found])
    return tuple([fetched_offset(part, record) for part, record in found])


def fetched_offset(partition: Partition, record: OffsetCommitted | None, *, unstable: bool = False) -> FetchedOffset:
    """Return a partition of an OffsetFetch response: its committed offset, -1 if there is none, or an error."""
    if unstable:
        return FetchedOffset(*partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if record is None:
        return FetchedOffset(*partition)
    return NEW_FETCHED((*_SHOWN(record), NO_ERROR, record.topic_id))
