"""Commits in order: each starts when the one before it has its response, whatever started it.

Source: spec 2.5; scenario 16 (a close waits for the commit in flight).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kohort.client.consumer.subscription import FetchPosition, Partitions
from kohort.client.group.membership import Membership
from kohort.client.net.cluster import Cluster
from kohort.client.net.runtime import Promise, Runtime, Task, logged_kafka_error
from kohort.client.offsets import GroupIdentity, OffsetAndMetadata, commit_offsets, topic_ids_for_offsets
from kohort.client.settings import ConsumerConfig
from kohort.errors import (
    CommitFailedError,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    RetriableError,
    TimedOutError,
)
from kohort.ids import TopicPartition

# -- Time limits of the steps of a close

LAST_COMMIT_MS = 5_000
"""Limit for the last commit of partitions that are given up."""
GOODBYE_MS = 200
"""Limit for closing the fetch sessions."""
KEPT_TO_LEAVE = 0.25
"""Share of a close's time that the last commit may not use. A coordinator that does not answer the commit may still
answer the leave."""


class CloseDeadline:
    """The time limit of `close`, from which each of its steps gets its own limit or the time that is left."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._until_ms = float("inf")

    def begin(self, timeout_ms: float | None) -> None:
        """Start the time limit of a close; None: only the steps' own limits apply."""
        if timeout_ms is not None:
            self._until_ms = self._runtime.now_ms + timeout_ms

    def extend_by_time_since(self, since_ms: float) -> None:
        """Extend the close's time limit by the time since `since_ms`, which the application's callback used."""
        self._until_ms += self._runtime.now_ms - since_ms

    def step_limit_ms(self, limit_ms: float, keep: float = 0.0) -> float:
        """Return the time limit for one step of the close, in milliseconds.

        Args:
            limit_ms: The step's own limit.
            keep: The share of the remaining time that later steps need.
        """
        return max(0.0, min(limit_ms, (self._until_ms - self._runtime.now_ms) * (1 - keep)))


log = logging.getLogger("kohort.client")
RECOMMIT_MS = 3_600_000
"""Interval at which auto commit repeats an offset that has not moved: a group without members, as of partitions that
were assigned by hand, loses offsets that were not committed for `offsets.retention.minutes` (KIP-211)."""
OnCommit = Callable[[dict[TopicPartition, OffsetAndMetadata], KafkaError | None], None]


@dataclass(slots=True)
class _QueuedCommit:
    """A commit in the consumer's queue: commits are sent one after the other.

    Attributes:
        before: The task of the commit before this one; None: there is none.
        ends_ms: The monotonic time in ms at which this commit times out.
        over: Whether its caller has stopped waiting, after a timeout: it is not sent any more.
        given_up: Whether its partitions were revoked while it waited for earlier commits: it is not sent any more.
    """

    before: Task[None] | None
    ends_ms: float
    over: bool = False
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """The last offset committed for a partition.

    Attributes:
        offset: The offset.
        version: The version of the partition's position when the commit began.
        at_ms: When the coordinator had answered.
    """

    offset: OffsetAndMetadata
    version: int
    at_ms: float


class Commits:
    """The commits of one consumer, one after the other, and the last offset committed for each partition.

    Attributes:
        count: Successful commits.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        membership: Callable[[], Membership | None],
        partitions: Partitions,
    ) -> None:
        self.count = 0
        self._committed: dict[TopicPartition, _LastCommit] = {}
        self._cluster = cluster
        self._config = config
        self._membership = membership
        self._partitions = partitions
        self._tail: Task[None] | None = None
        self._queued: list[_QueuedCommit] = []
        self._running: set[Task[None]] = set()
        cluster.add_fault_listener(lambda _: self._abandon())
        self._auto_due_ms = cluster.runtime.now_ms + config.auto_commit_interval_ms
        self._auto: Task[None] | None = None

    def last_committed(self, partition: TopicPartition, since: int) -> OffsetAndMetadata | None:
        """Return the last offset that this consumer committed for a partition since its position version `since`.

        None: there is no such commit. Commits before that version do not count: a seek or a new assignment, which
        changes the version, may have moved the position back since.
        """
        last = self._committed.get(partition)
        return last.offset if last is not None and last.version >= since else None

    def _is_due(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether auto commit has to commit this offset.

        True if the last commit was of another offset, or is at least `RECOMMIT_MS` old.
        """
        known = self.last_committed(partition, self._version(partition))
        if known is None or known.offset != offset:
            return True
        return self._cluster.runtime.now_ms - self._committed[partition].at_ms >= RECOMMIT_MS

    def _version(self, partition: TopicPartition) -> int:
        state = self._partitions.get(partition)
        return -1 if state is None else state.position_version

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Commit these offsets after all earlier commits, and wait for the result.

        Raises:
            CommitFailedError: This consumer is not a member (any more).
            KafkaError: The coordinator refused.
        """
        await self.start_commit(offsets, timeout_ms)

    def start_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> Task[None]:
        """Begin a commit in the background, after all earlier ones."""
        ids = topic_ids_for_offsets(self._cluster, offsets, self._partitions.ids)
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        turn = _QueuedCommit(self._tail, self._cluster.runtime.now_ms + limit_ms)
        self._queued.append(turn)
        versions = {partition: self._version(partition) for partition in offsets}
        self._tail = self._cluster.runtime.spawn(self._commit_in_turn(turn, dict(offsets), ids, versions), "commit")
        commit = self._cluster.runtime.spawn(self._in_time(turn, self._tail, limit_ms), "commit")
        self._running.add(commit)
        commit.on_done(lambda _: self._running.discard(commit))
        return commit

    def auto_commit_if_due(self, positions: Callable[[], Mapping[TopicPartition, FetchPosition]]) -> None:
        """Commit positions in the background, if the auto commit interval is over.

        The positions must have moved or `RECOMMIT_MS` have passed, and the last auto commit must be complete.
        """
        now = self._cluster.runtime.now_ms
        if now < self._auto_due_ms or self._config.group_id is None or (self._auto is not None and not self._auto.done):
            return
        self._auto_due_ms = now + self._config.auto_commit_interval_ms
        member = self._membership()
        if member is not None and member.carries_positions:
            member.set_positions_to_report({part: position.offset for part, position in positions().items()})
            return
        self._auto = self._commit_due(positions()) or self._auto

    def next_auto_commit_ms(self) -> float:
        """Return the time of the next auto commit, in ms; while one is in flight, an interval from now."""
        if self._config.group_id is None:
            return float("inf")
        under_way = self._auto is not None and not self._auto.done
        return self._cluster.runtime.now_ms + self._config.auto_commit_interval_ms if under_way else self._auto_due_ms

    def auto_commit_released(self, positions: Mapping[TopicPartition, FetchPosition]) -> None:
        """Commit in the background, with auto commit, the uncommitted positions of partitions no longer assigned."""
        if self._config.enable_auto_commit and self._config.group_id is not None:
            self._commit_due(positions)

    def _commit_due(self, positions: Mapping[TopicPartition, FetchPosition]) -> Task[None] | None:
        due = {
            part: OffsetAndMetadata(position.offset, "", position.leader_epoch)
            for part, position in positions.items()
            if self._is_due(part, position.offset)
        }
        if not due:
            return None
        commit = self.start_commit(due)
        commit.on_done(_auto_done)
        return commit

    async def drain_commits(self, timeout_ms: float) -> None:
        """Wait for all queued commits; after the time limit, fail those that have not been sent.

        If they were sent later, they would carry the member's next generation, when others may own the partitions.
        """
        if self._tail is not None and await self._cluster.runtime.wait_first(self._tail, timeout_ms=timeout_ms) is None:
            self.fail_queued_commits()

    def fail_queued_commits(self) -> None:
        """Fail the commits that were not sent yet, because their partitions are revoked."""
        for turn in self._queued:
            turn.given_up = True

    def _abandon(self) -> None:
        """Cancel all commits: an unexpected error has ended the client."""
        for commit in list(self._running):
            commit.cancel()

    async def _in_time(self, turn: _QueuedCommit, commit: Task[None], limit_ms: float) -> None:
        """Wait for a queued commit; raise TimedOutError if the commits before it are not answered in its time limit."""
        if turn.before is not None and await self._cluster.runtime.wait_first(turn.before, timeout_ms=limit_ms) is None:
            turn.over = True
            why = self._cluster.unreachable_text() or "an earlier commit has no answer yet"
            raise TimedOutError(f"nothing was committed within {limit_ms:g} ms: {why}")
        await commit

    async def _commit_in_turn(
        self,
        turn: _QueuedCommit,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        ids: dict[str, UUID],
        versions: Mapping[TopicPartition, int],
    ) -> None:
        """Commit after the commits before it: a retried commit must not undo a later one."""
        runtime = self._cluster.runtime
        if turn.before is not None:
            await runtime.wait_first(turn.before)
        self._queued.remove(turn)
        if turn.given_up and not turn.over:
            raise CommitFailedError(
                "nothing was committed: the partitions were given up before the earlier commits had an answer; "
                "their next owner reads on from the last committed offsets"
            )
        if turn.over or not offsets:
            return
        group = self._config.group_id
        if group is None:
            raise InvalidInputError("a commit needs group.id", ErrorCode.INVALID_GROUP_ID)
        left_ms = max(1.0, turn.ends_ms - runtime.now_ms)
        member = self._joined_member(group)
        if member is None:
            await commit_offsets(self._cluster, group, offsets, GroupIdentity(), left_ms, ids)
        else:
            await member.commit(offsets, left_ms, ids)
        now_ms = runtime.now_ms
        self._committed.update({part: _LastCommit(offsets[part], versions[part], now_ms) for part in offsets})
        self.count += 1

    def _joined_member(self, group: str) -> Membership | None:
        """Return the membership to commit with; None if there is none: the partitions were assigned by `assign`.

        Raises:
            CommitFailedError: This consumer is not a member of the group now.
        """
        member = self._membership()
        if member is not None and not member.is_joined:
            why = self._cluster.unreachable_text()
            text = f"group {group!r}: this consumer is not a member now, nothing was committed"
            raise CommitFailedError(f"{text}: {why}" if why else text)
        return member


def run_commit_callback(
    callback: OnCommit, offsets: dict[TopicPartition, OffsetAndMetadata], done: Promise[None]
) -> None:
    """Call the application's commit callback; log its exception, which must not end the client's thread."""
    error = done.error
    failure = logged_kafka_error("commit", error) if isinstance(error, Exception) else None
    if error is not None and failure is None:
        failure = RetriableError("the consumer was closed before the commit was answered: it may have been made or not")
    try:
        callback(offsets, failure)
    except Exception:
        log.exception("the application's commit callback raised an exception, which is ignored")


def _auto_done(done: Promise[None]) -> None:
    if isinstance(done.error, Exception):
        log.warning(
            "auto commit of offsets failed, the next one follows after auto.commit.interval.ms: %s",
            logged_kafka_error("auto commit", done.error),
        )
