"""Lookup of unknown positions: the group's committed offset, else the reset policy."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from kohort.client.consumer.subscription import FetchPosition, Partitions
from kohort.client.net.cluster import Cluster
from kohort.client.net.metadata import NO_TOPIC_ID, Metadata, PartitionInfo
from kohort.client.net.runtime import Promise, Task, logged_kafka_error
from kohort.client.offsets import (
    EARLIEST,
    LATEST,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    committed_offsets_once,
    gather_results,
    is_retriable,
    list_offsets_once,
)
from kohort.client.settings import ConsumerConfig, duration_ms
from kohort.errors import ErrorCode, KafkaError, OffsetError, error_for
from kohort.ids import TopicPartition

# -- Verification of a missing offset
#
# A stalled leader still answers as leader for a moment after it wakes, when another has led for long. It lacks what the
# new leader has taken, and a reset would start the partition over. The leader epoch tells the two apart where both the
# position and the metadata have one (KIP-320). A later epoch in the position shows that the metadata is outdated. Where
# a position has no epoch, the claim has to last.

INT32_MAX: Final = 2**31 - 1
CONFIRM_MS: Final = 1_000
"""Within this time a broker that wakes learns that it is no longer the leader."""
BEHIND_MS: Final = 10_000
"""All brokers name an earlier epoch than the position's for this long: the position belongs to another log of this
name."""


def missing_position_wait_ms(position: FetchPosition, info: PartitionInfo | None) -> int:
    """Return for how many ms brokers must report that a fetch position does not exist before it is reset.

    A leader that was paused may report that by mistake. The time is 0 if no such leader can have answered.

    Args:
        position: The position of the fetch.
        info: The metadata of its partition.
    """
    named = -1 if info is None else info.leader_epoch
    if position.leader_epoch < 0 or named < 0:
        return CONFIRM_MS
    return 0 if position.leader_epoch <= named else BEHIND_MS


log = logging.getLogger("kohort.client")


class FirstSeenTopics:
    """The topic ids and partition counts when this consumer first saw its topics: later partitions are newer.

    With `latest`, a consumer reads the records written since its subscription. All records of a newer partition are.
    Started at its end offset, it would skip those written before the consumer knew the partition: KAFKA-20539.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[UUID, int]] = {}
        self._cluster_id: str | None = None

    def record_first_seen(self, metadata: Metadata, topics: Iterable[str]) -> None:
        """Record the id and partition count of topics that new metadata shows for the first time; forget other topics.

        What is recorded stays while a topic is missing for a while. If the metadata is another cluster's, all topics
        are recorded anew.
        """
        before, self._cluster_id = self._cluster_id, metadata.cluster_id or self._cluster_id
        seen = self._seen if before in (None, self._cluster_id) else {}
        self._seen = {}
        for topic in topics:
            info = metadata.topics.get(topic)
            if topic in seen:
                self._seen[topic] = seen[topic]
            elif info is not None and info.partitions:
                self._seen[topic] = (info.topic_id, len(info.partitions))

    def is_newer(self, partition: TopicPartition, metadata: Metadata) -> bool:
        """Return whether a partition was added, or its topic recreated, since the consumer first saw the topic."""
        topic_id, count = self._seen.get(partition.topic, (NO_TOPIC_ID, INT32_MAX))
        known = metadata.topic_id(partition.topic)
        return partition.partition >= count or (topic_id != known and NO_TOPIC_ID not in (topic_id, known))


class PositionFinder:
    """The task that finds a consumer's unknown positions: by committed offsets, else by `auto.offset.reset`.

    `request_lookup` wakes it.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        found: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._error: KafkaError | None = None
        self._asked: dict[TopicPartition, int] = {}
        self._moved: set[str] = set()
        self._cluster = cluster
        self._config = config
        self._partitions = partitions
        self._found = found
        self._changed = changed
        self._at_first = FirstSeenTopics()
        self._task: Task[None] | None = None
        self._looked: Promise[None] = Promise()

    def record_topics_seen(self, topics: Iterable[str]) -> None:
        """Record when the topics that are read were first seen, from new metadata."""
        self._at_first.record_first_seen(self._cluster.metadata, topics)

    def request_lookup(self) -> None:
        """Start or wake the task that looks positions up, because some may be unknown now."""
        if self._task is None:
            self._task = self._cluster.spawn_essential_task(self._run(), "positions")
        looked, self._looked = self._looked, Promise()
        looked.resolve(None)

    @property
    def error(self) -> KafkaError | None:
        """The error of the last look-up of positions; None if there is none.

        Also None if the application has since sought, or no longer reads, all partitions that were looked up.
        """
        if self._error is None:
            return None
        moot = self._asked and not any(self._still_asked(partition, self._asked) for partition in self._asked)
        return None if moot else self._error

    def _still_asked(self, partition: TopicPartition, asked: Mapping[TopicPartition, int]) -> bool:
        state = self._partitions.get(partition)
        return state is not None and state.position_version == asked[partition] and state.position is None

    def take_error(self) -> KafkaError | None:
        """Return `error` once; the positions are then looked up again."""
        error, self._error = self.error, None
        if error is not None:
            self.request_lookup()
        return error

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def handle_offset_out_of_range(self, partition: TopicPartition) -> None:
        """Handle OFFSET_OUT_OF_RANGE: reset the position by `auto.offset.reset`; with `none`, fail the partition."""
        state = self._partitions.state_of(partition)
        offset = state.fetch_position.offset if state.fetch_position is not None else -1
        if self._config.auto_offset_reset == "none":
            held = f"{state.log_start} to {state.high_watermark}" if state.high_watermark >= 0 else "other offsets"
            self._partitions.mark_unreadable(
                partition,
                OffsetError(
                    f"{partition}: offset {offset} is out of range (the partition holds {held}) "
                    "and auto.offset.reset is none; seek to go on",
                    partition=partition,
                ),
            )
        else:
            log.warning(
                "[partition %s] fetch offset %d is out of range: reset to %s (auto.offset.reset)",
                partition,
                offset,
                self._config.auto_offset_reset,
            )
            self._partitions.forget_position(partition, self._config.auto_offset_reset)
        self._changed()
        self.request_lookup()

    def reset_to_common_position(self, partition: TopicPartition, common: FetchPosition) -> None:
        """Handle a truncated log: continue at the last position that the new leader has too, and log lost records.

        With auto.offset.reset=none, fail the partition. Source: KIP-320, "Truncation detection".
        """
        state = self._partitions.state_of(partition)
        at = state.fetch_position.offset if state.fetch_position is not None else -1
        text = (
            f"{partition}: the log was truncated: the leader's history ends at {common.offset} "
            f"where this consumer read to {at}"
        )
        if self._config.auto_offset_reset == "none":
            self._partitions.mark_unreadable(partition, OffsetError(f"{text}; seek to go on", partition=partition))
        else:
            log.warning("records lost: %s; continuing at offset %d", text, common.offset)
            self._partitions.set_position(partition, common)
        self._changed()
        self._found()

    async def _run(self) -> None:
        failures = 0
        while True:
            looked = self._looked
            try:
                failed = await self._committed()
                try:
                    again = await self._reset(looked, failed)
                except KafkaError as unread:
                    raise min([failed or unread, unread], key=is_retriable) from None
                if failed is not None:
                    raise failed
                failures = 0
                if again:
                    continue
            except Exception as fault:  # noqa: BLE001 - the application gets any error
                error = logged_kafka_error("positions", fault)
                if is_retriable(error):
                    failures += 1
                    log.debug("committed or reset positions of partitions could not be looked up, retrying: %s", error)
                    wait = self._cluster.backoff_ms(failures)
                    await self._cluster.runtime.wait_first(looked, timeout_ms=wait)
                    continue
                self._error = error
                self._changed()
            await looked

    async def _committed(self) -> KafkaError | None:
        """Set unknown positions to the committed offsets, or begin their reset where nothing was committed.

        Return the error of a failed look-up, if any: partitions that it does not concern need not wait for a retry.
        """
        missing = self._partitions.partitions_without_position()
        if not missing:
            return None
        asked = {part: self._partitions.state_of(part).position_version for part in missing}
        known: dict[TopicPartition, OffsetAndMetadata | None] = {}
        failed: KafkaError | None = None
        if self._config.group_id is None:
            known = dict.fromkeys(missing)
        else:
            self._asked = asked
            try:
                await committed_offsets_once(self._cluster, self._config.group_id, missing, known)
            except KafkaError as error:
                failed = error
        for part in [part for part in missing if part in known]:
            if not self._still_asked(part, asked):
                continue
            state = self._partitions.state_of(part)
            value = known[part]
            if value is not None:
                self._partitions.set_position(part, FetchPosition(value.offset, value.leader_epoch))
            elif self._config.auto_offset_reset == "none":
                self._partitions.mark_unreadable(
                    part,
                    OffsetError(
                        f"{part}: group {self._config.group_id!r} has committed no offset "
                        "and auto.offset.reset is none; seek to go on",
                        partition=part,
                    ),
                )
            else:
                state.reset = self._first_policy(part)
        self._changed()
        self._found()
        return failed

    def _first_policy(self, partition: TopicPartition) -> str:
        """Return the reset policy for a partition without a committed offset: `auto.offset.reset`.

        Instead of `latest`, it is `earliest` for a partition that is newer than the subscription.
        """
        policy = self._config.auto_offset_reset
        if policy == "latest" and self._at_first.is_newer(partition, self._cluster.metadata):
            log.info("%s: the partition is newer than this consumer's subscription: read from its start", partition)
            return "earliest"
        return policy

    async def _reset(self, looked: Promise[None], failed: KafkaError | None) -> bool:
        """Look up the offsets of partitions whose position a reset policy determines.

        Args:
            looked: Resolves with the next `request_lookup`, which ends the wait for partitions without a leader.
            failed: The error of the look-up of committed offsets, if any.

        Returns:
            False if there were no such partitions; True: call again, since others may need a reset now.

        Raises:
            KafkaError: Offsets could not be looked up, or a partition has no leader.
        """
        wanted = self._partitions.partitions_to_reset()
        if not wanted:
            return False
        asked = {part: self._partitions.state_of(part).position_version for part in wanted}
        self._asked = asked if failed is None else self._asked | asked
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for part, policy in wanted.items():
            by_leader[self._cluster.metadata.leader(part)][part] = self._time_of(policy)
        leaderless = by_leader.pop(-1, {})
        await gather_results(
            [self._cluster.runtime.spawn(self._reset_at(times, asked), "positions") for times in by_leader.values()]
        )
        if leaderless:  # they may not exist: other partitions must not wait for them
            await self._cluster.runtime.wait_first(self._cluster.request_metadata(), looked)
            if any(self._cluster.metadata.leader(part) >= 0 for part in leaderless):
                return True
            for part in leaderless:
                info = self._cluster.metadata.topics.get(part.topic)
                if info is not None and info.error and not info.error.retriable:
                    raise error_for(info.error, f"topic {part.topic!r}: {info.error.text}")
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader of {', '.join(map(str, leaderless))} is known")
        return True

    async def _reset_at(self, times: Mapping[TopicPartition, int], asked: Mapping[TopicPartition, int]) -> None:
        """Look up the offsets for a reset of one leader's partitions, and set the positions of those that do not fail.

        A partition without a record at or after its time is set to the end offset.
        """
        committed_only = self._config.isolation_level == "read_committed"
        look_up = partial(list_offsets_once, self._cluster, moved=self._moved, read_committed=committed_only)
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}
        failed: KafkaError | None = None
        try:
            await look_up(times, offsets)
        except KafkaError as error:
            failed = error
        late = {part: LATEST for part, value in offsets.items() if value.offset < 0}
        try:
            if late:
                await look_up(late, offsets)
        except KafkaError as error:
            failed = failed or error
        for part, value in offsets.items():
            if value.offset >= 0 and self._still_asked(part, asked):
                self._partitions.set_position(part, FetchPosition(value.offset))
        self._changed()
        self._found()
        if failed is not None:
            raise failed

    def _time_of(self, policy: str | int) -> int:
        if isinstance(policy, int):
            return policy
        if policy == "earliest":
            return EARLIEST
        if policy == "latest":
            return LATEST
        wanted_ms = round(time.time() * 1000 - duration_ms(policy.removeprefix("by_duration:")))
        return EARLIEST if wanted_ms < 0 else wanted_ms  # brokers take negative times for names of offsets
