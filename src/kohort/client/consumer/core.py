"""The consumer without I/O: subscription, group, positions, fetches and commits. Both facades drive it.

A method that can wait is a coroutine (stepped by the runtime) or a script (`kohort.client.consumer.effects`); the
others return at once. Source: spec 2.1–2.7, 3.4, 3.11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kohort.client.consumer.commits import (
    GOODBYE_MS,
    KEPT_TO_LEAVE,
    LAST_COMMIT_MS,
    CloseDeadline,
    Commits,
    OnCommit,
    run_commit_callback,
)
from kohort.client.consumer.effects import AwaitCoroutine, CallApplication, DecodeRecordSets, Script, WaitUntil
from kohort.client.consumer.fetch_buffer import FetchBuffer, RowSlice, position_before_row
from kohort.client.consumer.fetching import CompletedFetch, Fetcher
from kohort.client.consumer.positions import PositionFinder
from kohort.client.consumer.records import apply_deserializers
from kohort.client.consumer.subscription import FetchPosition, Partitions
from kohort.client.group import join_group
from kohort.client.group.membership import LEAVE_MS, Membership, Subscription
from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import NO_TOPIC_ID, Metadata
from kohort.client.net.topic_existence import MissingTopicWarnings, check_topic_names
from kohort.client.offsets import GroupMetadata, HoldingListener, OffsetAndMetadata, RebalanceListener, Revocation
from kohort.client.settings import ConsumerConfig
from kohort.columns import Record
from kohort.columns.decoded import Decoded
from kohort.columns.shapes import DECODED_BYTES, DecodeOptions
from kohort.errors import CommitFailedError, ErrorCode, InvalidInputError, KafkaError, TimedOutError
from kohort.ids import TopicPartition

# -- Metrics of a consumer


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """Counters of a consumer since it was made, and the records it holds now.

    Attributes:
        lapses: How often polls returned nothing because the coordinator had not answered within its lease.
    """

    polls: int
    records: int
    fetches: int
    fetched_bytes: int
    commits: int
    rebalances: int
    lapses: int
    requests: int
    received_bytes: int
    kept_records: int
    kept_bytes: int


# -- Iteration over a consumer: records one by one, with positions that follow each. Pure
#
# Source: spec 2.5, 2.7.


@dataclass(slots=True)
class _HandedOut:
    """The records of one partition that the last `poll` returned and the application may still be processing.

    Attributes:
        start: The position of the first record.
        end: The offset after the last record.
        version: The partition's `position_version` when the records were returned.
    """

    start: FetchPosition
    end: int
    version: int


class RecordIterator:
    """The state of an application's loop `for record in consumer`: the records of one poll not yielded yet.

    Attributes:
        open: The partitions with records not yielded yet, each with its `position_version` at the poll.
        giving: Whether the loop's body is processing a record.
        halted: Whether other members may own the partitions by now: the rest is not yielded, but fetched again.
    """

    def __init__(self, partitions: Partitions, config: ConsumerConfig) -> None:
        self.open: dict[TopicPartition, int] = {}
        self.giving = False
        self._record: Record | None = None
        self._record_of: TopicPartition | None = None
        self._record_version = 0
        self._returned: dict[TopicPartition, _HandedOut] = {}
        self.halted = False
        self._partitions = partitions
        self._config = config

    def iterate(self, slices: Sequence[RowSlice]) -> Iterator[Record]:
        """Yield records one by one; the position follows each.

        A partition ends early when the application seeks or pauses it meanwhile, and all end when it polls. The records
        that were not yielded are fetched again.
        """
        self.open, self._returned, self._record = {}, {}, None
        for part in slices:
            state = self._partitions.get(part.partition)
            if state is not None and state.position is not None and part.partition not in self.open:
                self.open[part.partition] = state.position_version
                state.position = _position_in(part, part.start)
        try:
            for part in slices:
                yield from self._yield_records(part)
        finally:
            self.giving = False
        self.open = {}

    def record_returned_slices(self, slices: Sequence[RowSlice]) -> None:
        """Remember what a poll returns; if nothing, the last poll's records count as processed."""
        self._record, self._returned = None, {}
        for part in slices:
            end = _position_in(part, part.stop).offset
            handed_out = self._returned.get(part.partition)
            if handed_out is not None:
                handed_out.end = end
            elif (state := self._partitions.get(part.partition)) is not None:
                start = _position_in(part, part.start)
                self._returned[part.partition] = _HandedOut(start, end, state.position_version)

    def rewind_unfinished_records(self, committed: Callable[[TopicPartition, int], OffsetAndMetadata | None]) -> None:
        """Set positions back to the current record of the application's loop, else to the start of the last poll.

        Records before an offset that the application has committed since then are finished, and stay so.

        Args:
            committed: Returns a partition's last committed offset, ignoring commits before a `position_version`.
        """
        unfinished = self._returned
        if self._record is not None and self._record_of is not None:
            start = FetchPosition(self._record.offset)
            unfinished = {self._record_of: _HandedOut(start, start.offset + 1, self._record_version)}
        for partition, handed_out in unfinished.items():
            state, position = self._partitions.get(partition), handed_out.start
            known = committed(partition, handed_out.version)
            if known is not None and known.offset > position.offset:
                if known.offset >= handed_out.end:
                    continue
                position = FetchPosition(known.offset, known.leader_epoch)
            if state is not None and state.position is not None and state.position.offset > position.offset:
                state.position = position

    def _yield_records(self, part: RowSlice) -> Iterator[Record]:
        partition = part.partition
        position_version = self.open.get(partition)
        if position_version is None:
            return
        rows = part.block.ranges[part.index]
        epoch = rows.leader_epoch if rows.one_epoch else -1
        self._record_of, self._record_version = partition, position_version
        for record in part.block.iter_records(part.start, part.stop):
            state = self._partitions.get(partition)
            if state is None or state.position_version != position_version:
                self.open.pop(partition, None)
                return
            if state.paused or self.halted:
                self._take_back(partition, position_version)
                return
            self._record, self.giving = (
                record,
                True,
            )  # before anything that may raise: the application has not got it yet
            state.position = FetchPosition(record.offset + 1, epoch)
            apply_deserializers(record, self._config.key_deserializer, self._config.value_deserializer)
            yield record
            self._record = None
        self.giving = False
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version:
            state.position = _position_in(part, part.stop)

    def _take_back(self, partition: TopicPartition, position_version: int) -> None:
        """End the application's loop over one partition's records; those that were not yielded are fetched again."""
        self.open.pop(partition, None)
        state = self._partitions.get(partition)
        if state is not None and state.position_version == position_version and state.position is not None:
            self._partitions.set_position(partition, state.position)

    def refetch_unread_records(self) -> None:
        """End the records of the application's loop `for record in consumer`; those not yielded are fetched again."""
        for partition, position_version in list(self.open.items()):
            self._take_back(partition, position_version)


def _position_in(part: RowSlice, row: int) -> FetchPosition:
    return position_before_row(part.block, part.index, row)


# -- The core

LEAST_WAIT_MS = 100.0
"""The least time between two commits of a poll that waits, however short auto.commit.interval.ms is."""
log = logging.getLogger("kohort.client")


class WakeupError(KafkaError):
    """Error of the poll that `wakeup()` interrupted; that poll returned nothing and moved no position.

    Remedy: none is needed: end the loop that polls, or poll again.
    """


class ConsumerCore:
    """The consumer without I/O: subscription, group, positions, fetches and commits.

    Attributes:
        taken: The records that the running poll is about to return.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.partitions = Partitions()
        self.buffer = FetchBuffer(self.partitions)
        self.fetcher = Fetcher(cluster, config, self.partitions, self.buffer, self._changed)
        at = self.positions = PositionFinder(cluster, config, self.partitions, self.send_due_fetches, self._changed)
        self.fetcher.set_lost_position_callbacks(at.handle_offset_out_of_range, at.reset_to_common_position)
        self.membership: Membership | None = None
        self.commits = Commits(cluster, config, lambda: self.membership, self.partitions)
        self.listener = RebalanceListener()
        self.polls = self.returned = self.news = 0
        self.taken: list[RowSlice] = []
        self._options = DecodeOptions(
            columns=tuple(config.columns),
            read_committed=config.isolation_level == "read_committed",
            check_crcs=config.check_crcs,
            max_bytes=min(DECODED_BYTES, config.queued_max_bytes),
            max_batch_bytes=config.max_decompressed_batch_bytes,
        )
        self.record_iterator = RecordIterator(self.partitions, config)
        self._seen = self._rebalances_seen = 0
        self._rebalances_before = self._lapses_before = 0
        self._manual = False
        self._woken = False
        self._closed = False
        self._close_deadline = CloseDeadline(cluster.runtime)
        self._missing = MissingTopicWarnings(cluster.runtime)
        cluster.auto_create_topics = config.allow_auto_create_topics
        cluster.add_metadata_listener(self._follow_metadata)

    # Subscription and assignment.

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Join the group for these topics.

        Raises:
            InvalidInputError: No group id, partitions were assigned by hand, or a topic name is not allowed.
        """
        if self.config.group_id is None:
            raise InvalidInputError(
                "subscribe needs group.id; use assign to read without a group", ErrorCode.INVALID_GROUP_ID
            )
        if self._manual:
            raise InvalidInputError("partitions were assigned by hand: unsubscribe before subscribing")
        subscription = Subscription(tuple(topics), pattern)
        self.listener = RebalanceListener() if listener is None else listener
        if self.membership is None:
            self.membership = join_group(self.cluster, self.config, changed=self._changed)
        # A topic that a pattern matches is named by requests only: they would bring it back when it is deleted.
        self.cluster.auto_create_topics = self.config.allow_auto_create_topics and pattern is None
        self.membership.record_poll()
        self.membership.subscribe(subscription)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions without a group's assignment.

        Raises:
            InvalidInputError: A subscription exists, or a topic name is not allowed.
        """
        if self.membership is not None:
            raise InvalidInputError("a subscription exists: unsubscribe before assigning by hand")
        wanted = list(partitions)
        check_topic_names(part.topic for part in wanted)
        self._manual = bool(wanted)
        kept = set(wanted)
        released = {part: at for part, at in self.partitions.positions().items() if part not in kept}
        self.commits.auto_commit_released(released)
        self.partitions.set_assigned(wanted)
        self.partitions.store_topic_ids(self.cluster.metadata.topic_id)
        self.cluster.auto_create_topics = self.config.allow_auto_create_topics
        self.cluster.set_wanted_topics(self, {part.topic for part in wanted})
        self._moved()

    def unsubscribe(self) -> Script[None]:
        """Leave the group, or drop the partitions assigned by hand."""
        if self.membership is not None:
            yield from self._leave("the application unsubscribed")
        elif self._manual and self.config.group_id is not None and self.config.enable_auto_commit:
            yield from self._last_commit(self.partitions.positions())
        self._manual = False
        self.partitions.set_assigned(())
        self.positions.record_topics_seen(())  # a later subscription begins with what there is then
        self.cluster.drop_wanted_topics(self)
        self._moved()

    def subscription(self) -> tuple[str, ...]:
        """Return the subscribed topics, as far as they are in the metadata."""
        return () if self.membership is None else self.membership.topics()

    # Polling.

    def poll_without_waiting(self, limit: int) -> list[RowSlice]:
        """Return `limit` decoded records, or none if fewer are ready or an error, rebalance or wakeup comes first."""
        if self.record_iterator.open or self._closed or self._woken or self._group_news():
            return []
        if self.buffer.unpaused_records() < limit:
            return []
        failing = self.positions.error is not None or self.fetcher.error is not None
        if failing or self.partitions.unreadable_partitions() or not self._owns():
            return []
        self._begin_poll(limit)
        taken = self.buffer.take_records(limit, proportional=self.config.poll_share == "proportional")
        self._return(taken)
        self.fetcher.send_fetches_if_free()
        return taken

    def _return(self, taken: list[RowSlice]) -> None:
        self.taken = taken
        self.returned += sum(map(len, taken))
        self.record_iterator.record_returned_slices(taken if self.config.enable_auto_commit else ())

    def refetch_unread_records(self) -> None:
        """Fetch the records of a poll again that a signal handler's exception ended before the application got them."""
        taken, self.taken = self.taken, []
        if taken:
            self.record_iterator.record_returned_slices(())
            for part in reversed(taken):  # the first rows of each partition last
                if self.partitions.get(part.partition) is not None:
                    self.partitions.set_position(part.partition, _position_in(part, part.start))
            self._moved()

    def _begin_poll(self, limit: int | None) -> None:
        self.polls += 1
        self.fetcher.unbounded = limit is None
        self.record_iterator.record_returned_slices(())
        if self.membership is not None:
            self.membership.record_poll()
        if self.config.enable_auto_commit:
            self.commits.auto_commit_if_due(self.partitions.positions)

    def poll(self, limit: int | None, deadline_ms: float) -> Script[list[RowSlice]]:
        """Return records as soon as there are any, at most `limit`; None: those of one fetch.

        Raises:
            KafkaError: The group can't be joined, or a partition can't be read.
            WakeupError: `wakeup` was called.
        """
        self._check_usable()
        self.record_iterator.refetch_unread_records()
        self._begin_poll(limit)
        while True:
            self._raise_errors()
            yield from self._follow_group()
            while self._wants_more(limit) and (fetched := self.fetcher.take_next_response()) is not None:
                self.fetcher.send_fetches_if_free()
                try:
                    decoded = yield DecodeRecordSets(fetched.sets, self._options)
                except BaseException:  # Ctrl-C or a cancelled task: the next poll decodes them
                    self.fetcher.ready.appendleft(fetched)
                    raise
                self._keep(fetched, decoded)
            share = self.config.poll_share == "proportional"
            taken = self.buffer.take_records(limit, proportional=share) if self._owns() else []
            self.fetcher.send_fetches_if_free()
            if taken:
                self._return(taken)
                return taken
            until_ms = min(deadline_ms, self._next_duty_ms())
            if not (yield WaitUntil(self._newer_than(self.news), until_ms)):
                if until_ms >= deadline_ms:
                    return []
                self._while_polling()

    def _next_duty_ms(self) -> float:
        """Return when a waiting poll has to record again that the application polls, or to auto commit.

        The application is in `poll`, and so has finished the records before, however long none arrive.
        """
        duties = [float("inf")]
        soonest_ms = self.cluster.runtime.now_ms + LEAST_WAIT_MS
        if self.membership is not None:
            duties.append(self.membership.next_record_poll_ms())
        if self.config.enable_auto_commit:
            duties.append(self.commits.next_auto_commit_ms())
        return max(soonest_ms, min(duties))

    def _while_polling(self) -> None:
        """Record for `max.poll.interval.ms` that the application polls, and auto commit if that is due."""
        if self.membership is not None:
            self.membership.record_poll()
        if self.config.enable_auto_commit:
            self.commits.auto_commit_if_due(self.partitions.positions)

    def wakeup(self) -> None:
        """Make the running poll, or the next one, raise WakeupError."""
        self._woken = True
        self._changed()

    def _follow_metadata(self, metadata: Metadata) -> None:
        """React to new metadata: log missing topics, forget positions in recreated ones, and send due fetches."""
        subscribed = self.subscription()
        self.positions.record_topics_seen({*subscribed, *(part.topic for part in self.partitions)})
        self._missing.check_topics(metadata, subscribed, self.partitions)
        held = self.partitions.ids.items()
        again = {topic for topic, known in held if metadata.topic_id(topic) not in (NO_TOPIC_ID, known)}
        for partition in [part for part in self.partitions if part.topic in again]:
            log.warning(
                "[partition %s] the topic was deleted and recreated: the consumer's position is reset", partition
            )
            self.partitions.forget_position(partition, None)
        self.partitions.store_topic_ids(metadata.topic_id, again)
        self.partitions.withhold_positions_of(set() if self.membership is None else self.membership.recreated_topics())
        if again:
            self._moved()
        self.send_due_fetches()

    def send_due_fetches(self) -> None:
        """Send the fetches that are due."""
        self.fetcher.send_fetches()

    def _wants_more(self, limit: int | None) -> bool:
        """Return whether a poll decodes another fetch response.

        With a record limit, it does until enough records are decoded or `queued_max_bytes` is reached. Otherwise it
        does only while no record is ready: 40 kilobytes of zstd can stand for 500 records of 100 MB.
        """
        if limit is not None and self.buffer.nbytes < self.config.queued_max_bytes:
            return self.buffer.unpaused_records() < limit
        return not self.buffer.has_ready_records()

    def _newer_than(self, seen: int) -> Callable[[], bool]:
        return lambda: self.news != seen or self._has_news()

    def _has_news(self) -> bool:
        return (
            self._woken
            or self._group_news()
            or self.positions.error is not None
            or self.fetcher.error is not None
            or ((bool(self.fetcher.ready) or self.buffer.has_ready_records()) and self._owns())
        )

    def _owns(self) -> bool:
        return self.membership is None or self.membership.owns

    def _keep(self, fetched: CompletedFetch, decoded: Decoded) -> None:
        self.fetcher.subtract_decoded_records(fetched)
        for index, given in enumerate(decoded.sets):
            partition = TopicPartition(given.topic, given.partition)
            rows = decoded.ranges[index]
            if rows.finished:
                self.buffer.add(partition, decoded, index, fetched.versions[index])
                state = self.partitions.get(partition)
                if rows.incomplete and state is not None and not len(rows) and rows.damage is None:
                    self._too_small(partition, rows.next_offset, given.first_offset)
        if not decoded.finished:
            self._keep_rest(fetched, decoded)
        decoded.release_fetched_bytes()

    def _keep_rest(self, fetched: CompletedFetch, decoded: Decoded) -> None:
        """Buffer the decoded part of a response, and queue the part after the decoder's limit to be decoded next."""
        rest = CompletedFetch(fetched.node, [], [], [], 0)
        for index, given in enumerate(decoded.remaining()):
            where = [i for i, rows in enumerate(decoded.ranges) if not rows.finished][index]
            self.buffer.add(TopicPartition(given.topic, given.partition), decoded, where, fetched.versions[where])
            rest.sets.append(given)
            rest.versions.append(fetched.versions[where])
            rest.counts.append(fetched.counts[where])
            rest.bytes += len(given.buffer)
        self.fetcher.put_back(rest)

    def _too_small(self, partition: TopicPartition, next_offset: int, first_offset: int) -> None:
        if next_offset == first_offset:
            text = (
                f"{partition}: the batch at offset {first_offset} is larger than max.partition.fetch.bytes "
                f"({self.config.max_partition_fetch_bytes}) and the broker sends no whole one"
            )
            self.partitions.mark_unreadable(partition, KafkaError(text, ErrorCode.RECORD_LIST_TOO_LARGE))

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidInputError("the consumer is closed")
        if self.membership is None and not self._manual:
            raise InvalidInputError("nothing to poll: subscribe or assign first")

    def _raise_errors(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("poll was woken up")
        error = None if self.membership is None else self.membership.take_error()
        error = error or self.positions.take_error() or self.fetcher.take_error()
        if error is not None:
            raise error
        for partition, failure in self.partitions.unreadable_partitions():
            if self.buffer.buffered_records(partition) or self.fetcher.has_ready_response(partition):
                continue  # what was fetched before comes first
            if not self.partitions.state_of(partition).paused:
                if self.partitions.clear_error(partition):
                    self.send_due_fetches()
                raise failure

    # The group.

    def _group_news(self) -> bool:
        member = self.membership
        return member is not None and (member.sequence != self._seen or member.error is not None)

    def _follow_group(self) -> Script[None]:
        """Apply the group's decisions since the last call: revoke and assign partitions, and call the listener."""
        member = self.membership
        while member is not None and member.sequence != self._seen:
            self._seen = member.sequence
            revocation = member.revocation
            if revocation is not None:
                gone = [part for part in revocation.partitions if part in self.partitions]
                if isinstance(self.listener, HoldingListener) and not revocation.lost and gone:
                    self.partitions.mark_revoking(gone)
                    yield CallApplication(self.listener.on_revocation_requested, gone)
                    continue
                yield from self._revoke_and_acknowledge(gone, revocation, member)
                continue
            if set(member.assignment.partitions) != set(self.partitions) or member.rebalances != self._rebalances_seen:
                self._rebalances_seen = member.rebalances
                added, _ = self.partitions.set_assigned(member.assignment.partitions)
                for part in [part for part in added if part in member.starts]:
                    self.partitions.set_position(part, FetchPosition(member.starts[part]))
                self.partitions.store_topic_ids(self.cluster.metadata.topic_id)
                self.cluster.set_wanted_topics(self, {part.topic for part in member.assignment.partitions})
                self._moved()
                if added or member.holds_assignment:  # a member that already rejoins has its assignment nevertheless
                    yield CallApplication(self.listener.on_partitions_assigned, added)

    def release(self) -> Script[bool]:
        """Release the revoked partitions that a `HoldingListener` holds; return False if none, or if they are lost."""
        member = self.membership
        held = self.partitions.revoking_partitions()
        if member is None or member.revocation is None or member.revocation.lost or not held:
            return False
        yield from self._revoke_and_acknowledge(held, member.revocation, member)
        return True

    def _revoke_and_acknowledge(
        self, gone: list[TopicPartition], revocation: Revocation, member: Membership
    ) -> Script[None]:
        """Revoke partitions (commit, call the listener), wait for commits in flight, then acknowledge to the group.

        If the caller is cancelled in between: when the partitions were revoked already, acknowledge at once, so that
        the group does not wait. Otherwise the next poll begins the revocation again.
        """
        try:
            yield from self._revoke_partitions(gone, revocation.lost, member)
            if revocation.lost:
                self.commits.fail_queued_commits()
            else:
                yield from self._await_commits(revocation.deadline_ms - self.cluster.runtime.now_ms)
        except BaseException:
            if any(part in self.partitions for part in gone):
                self._seen = member.sequence - 1
            else:
                self._acknowledge(revocation, member)
            raise
        self._acknowledge(revocation, member)

    def _acknowledge(self, revocation: Revocation, member: Membership) -> None:
        if member.revocation is revocation:  # a loss of all partitions may have taken its place meanwhile
            member.release()

    def _revoke_partitions(
        self, gone: list[TopicPartition], lost: bool, staying: Membership | None = None
    ) -> Script[None]:
        """Revoke partitions: with auto commit, commit their positions; then call the listener, and drop them.

        If `lost`, others may own them already, and nothing is committed. `staying` is the membership; in the push
        protocol, it reports the last positions to the coordinator instead.
        """
        positions = self.partitions.positions()
        if staying is not None and staying.carries_positions:
            staying.set_positions_to_report({part: positions[part].offset for part in gone if part in positions})
        elif not lost and self.config.enable_auto_commit:
            kept = yield from self._last_commit({part: positions[part] for part in gone if part in positions})
            lost = not kept
        began_ms = self.cluster.runtime.now_ms
        try:
            if gone:  # the application may not have been told of the assignment yet
                callback = self.listener.on_partitions_lost if lost else self.listener.on_partitions_revoked
                yield CallApplication(callback, gone)
        finally:
            self._close_deadline.extend_by_time_since(began_ms)
            self.partitions.remove(gone)
            self._moved()

    def _await_commits(self, limit_ms: float = LAST_COMMIT_MS) -> Script[None]:
        """Wait for commits in flight: the coordinator refuses them once this member has given the partitions up."""
        step_ms = self._close_deadline.step_limit_ms(max(0.0, min(limit_ms, LAST_COMMIT_MS)), keep=KEPT_TO_LEAVE)
        yield AwaitCoroutine(self.commits.drain_commits(step_ms))

    def _last_commit(self, positions: Mapping[TopicPartition, FetchPosition]) -> Script[bool]:
        """Commit positions before partitions are revoked; return False if other members may own them already."""
        limit_ms = min(
            self.config.default_api_timeout_ms, self._close_deadline.step_limit_ms(LAST_COMMIT_MS, keep=KEPT_TO_LEAVE)
        )
        try:
            yield AwaitCoroutine(self.commits.commit(offsets_of(positions), limit_ms))
        except KafkaError as error:
            group = self.config.group_id
            log.warning(
                "[group %s] offsets could not be committed before partitions were revoked, so their next owners may "
                "read records again: %s",
                group,
                error,
            )
            return not isinstance(error, CommitFailedError) or error.code is ErrorCode.REBALANCE_IN_PROGRESS
        return True

    def _leave(self, reason: str) -> Script[None]:
        member = self.membership
        if member is None:
            return
        held = list(self.partitions)
        lost = member.revocation is not None and member.revocation.lost
        try:
            try:
                if held:
                    yield from self._revoke_partitions(held, lost)
            finally:
                yield from self._await_commits()
        finally:
            self._rebalances_before += member.rebalances
            self._lapses_before += member.lapses
            self.membership = None
            self._seen = self._rebalances_seen = 0
            yield AwaitCoroutine(member.leave(reason, self._close_deadline.step_limit_ms(LEAVE_MS)))

    def close(self, timeout_ms: float | None, *, unfinished: bool = False) -> Script[None]:
        """Commit (with auto commit), call the listener, leave the group; `unfinished` leaves out a poll's records."""
        if self._closed:
            return
        self._closed = True
        if unfinished:
            self.record_iterator.rewind_unfinished_records(self.commits.last_committed)
        self._close_deadline.begin(timeout_ms)
        self.fetcher.close()
        try:
            if self.membership is not None:
                yield from self._leave("the consumer is closed")
            else:
                if self._manual and self.config.group_id is not None and self.config.enable_auto_commit:
                    yield from self._last_commit(self.partitions.positions())
                yield AwaitCoroutine(self.commits.drain_commits(self._close_deadline.step_limit_ms(LAST_COMMIT_MS)))
            yield AwaitCoroutine(self.fetcher.close_fetch_sessions(self._close_deadline.step_limit_ms(GOODBYE_MS)))
        finally:
            self.record_iterator.refetch_unread_records()
            self.buffer.clear()
            self.positions.close()

    async def leave_without_commit(self) -> None:
        """Leave the group without a commit and without calling the listener."""
        self._closed = True
        self.fetcher.close()
        self.positions.close()
        if self.membership is not None:
            await self.membership.leave("the consumer was abandoned")

    def unclosed_warning(self) -> str:
        """Return, for the log, that a consumer that nobody closed still holds partitions in its group."""
        if self.membership is None or not self.membership.is_joined:
            return ""
        return f"its partitions of group {self.membership.group!r} wait for the end of its session"

    # Offsets.

    def seek(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Continue from a position; fetched records are dropped."""
        if position.offset < 0:
            raise InvalidInputError(f"{partition}: offset {position.offset} is negative")
        self.partitions.set_position(partition, position)
        self._moved()

    def seek_to(self, partitions: Iterable[TopicPartition], policy: str) -> None:
        """Continue from the `earliest` or `latest` offset, looked up when first needed; no partitions: all."""
        for partition in list(partitions) or list(self.partitions):
            self.partitions.forget_position(partition, policy)
        self._moved()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.partitions.pause(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.partitions.resume(partition)
        self._moved()

    def position(self, partition: TopicPartition, deadline_ms: float) -> Script[int]:
        """Return the offset of the next record, waiting until it is known."""
        state = self.partitions.state_of(partition)
        if not (
            yield WaitUntil(
                lambda: state.position is not None or state.broken is not None or self.positions.error is not None,
                deadline_ms,
            )
        ):
            raise self._unknown_position(partition)
        if state.position is None:
            raise state.broken or self.positions.take_error() or self._unknown_position(partition)
        return state.position.offset

    def _unknown_position(self, partition: TopicPartition) -> TimedOutError:
        why = self.cluster.unreachable_text() or "the broker has not told it"
        return TimedOutError(f"the position of {partition} is not known yet: {why}")

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the end, as of the last fetch; None before that."""
        state = self.partitions.state_of(partition)
        end = state.last_stable if self._options.read_committed and state.last_stable >= 0 else state.high_watermark
        return None if end < 0 or state.position is None else max(0, end - state.position.offset)

    def offsets_to_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets for a commit call; None: all positions."""
        if offsets is None:
            return offsets_of(self.partitions.positions())
        return {
            part: value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            for part, value in offsets.items()
        }

    def metrics(self) -> ConsumerMetrics:
        """Return the metrics."""
        links, member = self.cluster.connections, self.membership
        return ConsumerMetrics(
            polls=self.polls,
            records=self.returned,
            fetches=self.fetcher.fetches,
            fetched_bytes=self.fetcher.fetched_bytes,
            commits=self.commits.count,
            rebalances=self._rebalances_before + (0 if member is None else member.rebalances),
            lapses=self._lapses_before + (0 if member is None else member.lapses),
            requests=links.requests_sent,
            received_bytes=links.bytes_received,
            kept_records=self.fetcher.kept_records(),
            kept_bytes=self.fetcher.queued_bytes,
        )

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's group metadata.

        Raises:
            InvalidInputError: No group id.
        """
        group = self.config.group_id
        if group is None:
            raise InvalidInputError("there is no group without group.id")
        return GroupMetadata(group) if self.membership is None else self.membership.metadata()

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None, callback: OnCommit | None
    ) -> None:
        """Commit in the background, in order with the other commits."""
        values = self.offsets_to_commit(offsets)
        task = self.commits.start_commit(values)
        if callback is not None:
            task.on_done(partial(run_commit_callback, callback, values))

    # Internals.

    def _moved(self) -> None:
        """React to changed assignments or positions: drop outdated records, look up positions, send fetches."""
        self.buffer.drop_invalid_records()
        self.positions.request_lookup()
        self.send_due_fetches()
        self._changed()

    def _changed(self) -> None:
        self.news += 1
        self.record_iterator.halted = self.membership is not None and self.membership.lapsed


def offsets_of(positions: Mapping[TopicPartition, FetchPosition]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions as offsets to commit."""
    return {part: OffsetAndMetadata(position.offset, "", position.leader_epoch) for part, position in positions.items()}
