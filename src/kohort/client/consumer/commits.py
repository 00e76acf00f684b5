"""Commits in order: each starts when the one before it has its answer, whoever asked for it.

Source: spec 2.5; scenario 16 (a close waits for the commit in flight).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from kohort.client.consumer.subscription import Partitions, Position
from kohort.client.group.membership import Membership
from kohort.client.net.cluster import Cluster
from kohort.client.net.notices import fault
from kohort.client.net.runtime import Promise, Task
from kohort.client.offset_values import OffsetAndMetadata
from kohort.client.offsets import GroupIdentity, commit_offsets, known_ids
from kohort.client.settings import ConsumerConfig
from kohort.errors import CommitFailedError, ErrorCode, InvalidInputError, KafkaError
from kohort.ids import TopicPartition

log = logging.getLogger("kohort.client")
OnCommit = Callable[[dict[TopicPartition, OffsetAndMetadata], KafkaError | None], None]


class Commits:
    """Commits of one consumer.

    Attributes:
        committed: What was committed last through here, by partition.
        count: Successful commits.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        membership: Callable[[], Membership | None],
        partitions: Partitions,
    ) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.count = 0
        self._cluster = cluster
        self._config = config
        self._membership = membership
        self._partitions = partitions
        self._tail: Task[None] | None = None
        self._auto_due_ms = cluster.runtime.now_ms + config.auto_commit_interval_ms
        self._auto: Task[None] | None = None

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Commit after all earlier ones.

        Raises:
            CommitFailedError: this consumer is no member (any more).
            KafkaError: the coordinator refused.
        """
        await self.start(offsets, timeout_ms)

    def start(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None) -> Task[None]:
        """Begin a commit in the background, after all earlier ones."""
        ids = known_ids(self._cluster, offsets, self._partitions.ids)
        self._tail = self._cluster.runtime.spawn(self._one(self._tail, dict(offsets), ids, timeout_ms), "commit")
        return self._tail

    def auto(self, positions: Callable[[], Mapping[TopicPartition, Position]]) -> None:
        """Commit positions in the background when the interval is over, they have moved, and the last auto commit is done."""
        now = self._cluster.runtime.now_ms
        if now < self._auto_due_ms or self._config.group_id is None or (self._auto is not None and not self._auto.done):
            return
        self._auto_due_ms = now + self._config.auto_commit_interval_ms
        moved = {
            part: OffsetAndMetadata(position.offset, "", position.leader_epoch)
            for part, position in positions().items()
            if part not in self.committed or self.committed[part].offset != position.offset
        }
        if moved:
            self._auto = self.start(moved)
            self._auto.on_done(_auto_done)

    async def drain(self, timeout_ms: float) -> None:
        """Wait for the commits under way."""
        if self._tail is not None:
            await self._cluster.runtime.first(self._tail, timeout_ms=timeout_ms)

    async def _one(
        self,
        before: Task[None] | None,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        ids: dict[str, UUID],
        timeout_ms: float | None,
    ) -> None:
        if before is not None:
            await self._cluster.runtime.first(before)
        if not offsets:
            return
        group = self._config.group_id
        if group is None:
            raise InvalidInputError("a commit needs group.id", ErrorCode.INVALID_GROUP_ID)
        await commit_offsets(self._cluster, group, offsets, self._identity(group), timeout_ms, ids)
        self.committed.update(offsets)
        self.count += 1

    def _identity(self, group: str) -> GroupIdentity:
        member = self._membership()
        if member is None:
            return GroupIdentity()
        if not member.joined:
            why = self._cluster.unreachable()
            text = f"group {group!r}: this consumer is not a member now, nothing was committed"
            raise CommitFailedError(f"{text}: {why}" if why else text)
        return member.identity()


def tell(callback: OnCommit, offsets: dict[TopicPartition, OffsetAndMetadata], done: Promise[None]) -> None:
    """Call the application back. What it raises is logged: it must not end the client's thread."""
    error = done.error
    try:
        callback(offsets, fault("commit", error) if isinstance(error, Exception) else None)
    except Exception:
        log.exception("a commit callback failed")


def _auto_done(done: Promise[None]) -> None:
    if isinstance(done.error, Exception):
        log.warning("auto commit failed: %s", fault("auto commit", done.error))
