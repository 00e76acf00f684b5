"""Methods that both consumer facades share: commit and committed, and all that do not wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from kohort.client.consumer.commits import OnCommit
from kohort.client.consumer.core import ConsumerCore, ConsumerMetrics
from kohort.client.consumer.subscription import FetchPosition
from kohort.client.offsets import GroupMetadata, OffsetAndMetadata, RebalanceListener, committed_offsets
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.io.closing import NotPicklable
from kohort.settings.arguments import checks_arguments

CALLED_WITHIN = (
    "this call is made within another call of this consumer, by its rebalance listener or a signal handler: "
    "make it when that call has returned"
)
"""The error of a call that would change what the interrupted one works on."""

OTHER_CALLER_S, OTHER_CALLER_LEAST_S = 10.0, 0.1
"""Limit for a close to wait until another thread or task returns from a call of this consumer; and its minimum."""

# -- Calls about offsets that wait for brokers: one function for both facades of a consumer (`client.net.facades`)


async def commit(
    core: ConsumerCore,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
    *,
    timeout_ms: float | None = None,
) -> None:
    """Commit and wait; None commits the positions of all returned records.

    Raises:
        CommitFailedError: This consumer is no longer a member; its partitions may belong to another.
    """
    await core.commits.commit(core.offsets_to_commit(offsets), timeout_ms)


async def committed(
    core: ConsumerCore, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the group's committed offsets; None for a partition that has none."""
    group = core.config.group_id
    if group is None:
        raise InvalidInputError("committed needs group.id")
    return await committed_offsets(core.cluster, group, partitions, timeout_ms=timeout_ms)


T = TypeVar("T")


@checks_arguments
class NonWaitingMethods(NotPicklable):
    """Methods for subscription, assignment and positions that both consumer facades share."""

    @abstractmethod
    def _run_action(self, action: Callable[[ConsumerCore], T]) -> T:
        """Run a function of the consumer's core that never waits, and return its value.

        The facades implement this: under the client's lock, or on the event loop.
        """

    def _query(self, question: Callable[[ConsumerCore], T]) -> T:
        """Run a function of the consumer's core that never waits and changes nothing, and return its value."""
        return self._run_action(question)

    def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, or to those that match a pattern, and begin to join the group in the background.

        The pattern is a regular expression. A call replaces the previous subscription.
        """
        self._run_action(lambda core: core.subscribe(topics, pattern, listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions without a group's assignment; replaces the previous assignment."""
        self._run_action(lambda core: core.assign(partitions))

    def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return self._query(lambda core: set(core.subscription()))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions read now."""
        return self._query(lambda core: set(core.partitions))

    def wanted(self) -> set[TopicPartition]:
        """Return the revoked partitions that a `HoldingListener` has not released; part of `assignment()`."""
        return self._query(lambda core: set(core.partitions.revoking_partitions()))

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the next offset of every partition whose position is known, without looking others up."""
        return self._query(lambda core: core.offsets_to_commit(None))

    def topic_ids(self) -> dict[str, UUID]:
        """Return the ids of the topics read now, as far as the broker has topic ids. Source: KIP-516."""
        return self._query(lambda core: dict(core.partitions.ids))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit in the background, in order with the other commits.

        A rebalance, `unsubscribe` and `close` wait up to 5 s for it before they give the partitions up.

        `callback(offsets, error or None)` runs on the client's thread; with asyncio, on the loop.
        """
        self._run_action(lambda core: core.commit_async(offsets, callback))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from an offset."""
        position = (
            FetchPosition(offset.offset, offset.leader_epoch)
            if isinstance(offset, OffsetAndMetadata)
            else FetchPosition(offset)
        )
        self._run_action(lambda core: core.seek(partition, position))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first offset; without arguments, of all partitions."""
        self._run_action(lambda core: core.seek_to(partitions, "earliest"))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue after the last offset; without arguments, of all partitions."""
        self._run_action(lambda core: core.seek_to(partitions, "latest"))

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the partition's end, as of the last fetch; None before that."""
        return self._query(lambda core: core.lag(partition))

    @property
    def metrics(self) -> ConsumerMetrics:
        """Return the metrics."""
        return self._run_action(lambda core: core.metrics())

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's group metadata, for `Producer.send_offsets_to_transaction`."""
        return self._run_action(lambda core: core.group_metadata())

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`; fetched records are kept."""
        self._run_action(lambda core: core.pause(partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._run_action(lambda core: core.resume(partitions))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._query(lambda core: set(core.partitions.paused))
