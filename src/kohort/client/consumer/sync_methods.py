"""What a consumer is told, and tells, without waiting: the same methods of both faces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from kohort.client.consumer.commits import OnCommit
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.metrics import ConsumerFigures
from kohort.client.consumer.subscription import Position
from kohort.client.offsets import GroupMetadata, OffsetAndMetadata, RebalanceListener, committed_offsets
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.settings.arguments import checked

# -- Calls about offsets that wait for brokers: one function for both faces of a consumer (`client.net.faces`)


async def commit(
    core: ConsumerCore,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
    *,
    timeout_ms: float | None = None,
) -> None:
    """Commit and wait; None commits the positions: everything that was returned.

    Raises:
        CommitFailedError: this consumer is no member any more, its partitions may belong to another.
    """
    await core.commits.commit(core.to_commit(offsets), timeout_ms)


async def committed(
    core: ConsumerCore, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """The group's committed offsets, None where there is none."""
    group = core.config.group_id
    if group is None:
        raise InvalidInputError("committed needs group.id")
    return await committed_offsets(core.cluster, group, partitions, timeout_ms=timeout_ms)


T = TypeVar("T")


@checked
class Steering:
    """What to read and from where, and what is known of it."""

    @abstractmethod
    def _do(self, action: Callable[[ConsumerCore], T]) -> T:
        """Something that needs no waiting, done to the core."""

    def _look(self, question: Callable[[ConsumerCore], T]) -> T:
        """Something that changes nothing."""
        return self._do(question)

    def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, or to those that a regular expression finds; replaces the subscription before."""
        self._do(lambda core: core.subscribe(topics, pattern, listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions without a group's say; replaces what was assigned before."""
        self._do(lambda core: core.assign(partitions))

    def subscription(self) -> set[str]:
        """Topics subscribed to."""
        return self._look(lambda core: set(core.subscription()))

    def assignment(self) -> set[TopicPartition]:
        """Partitions read now."""
        return self._look(lambda core: set(core.partitions))

    def wanted(self) -> set[TopicPartition]:
        """What the group wants back and a `HoldingListener` has not released yet; part of `assignment()`."""
        return self._look(lambda core: set(core.partitions.wanted()))

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The next record of every partition whose position is known, without asking for others."""
        return self._look(lambda core: core.to_commit(None))

    def topic_ids(self) -> dict[str, UUID]:
        """Ids of the topics read now, as far as the broker tells them. Source: KIP-516."""
        return self._look(lambda core: dict(core.partitions.ids))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit in the background, in order with the others.

        `callback(offsets, error or None)` runs on the client's thread; with asyncio, on the loop.
        """
        self._do(lambda core: core.commit_async(offsets, callback))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on from an offset."""
        position = (
            Position(offset.offset, offset.leader_epoch) if isinstance(offset, OffsetAndMetadata) else Position(offset)
        )
        self._do(lambda core: core.seek(partition, position))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first offset; without arguments, of all partitions."""
        self._do(lambda core: core.seek_to(partitions, "earliest"))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on after the last offset; without arguments, of all partitions."""
        self._do(lambda core: core.seek_to(partitions, "latest"))

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the partition's end, as the last fetch told it; None before that."""
        return self._look(lambda core: core.lag(partition))

    @property
    def figures(self) -> ConsumerFigures:
        """Counters."""
        return self._do(lambda core: core.figures())

    def group_metadata(self) -> GroupMetadata:
        """This consumer's place in its group, for `Producer.send_offsets_to_transaction`."""
        return self._do(lambda core: core.group_metadata())

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these until `resume`; what was fetched is kept."""
        self._do(lambda core: core.pause(partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these again."""
        self._do(lambda core: core.resume(partitions))

    def paused(self) -> set[TopicPartition]:
        """Partitions that are paused."""
        return self._look(lambda core: set(core.partitions.paused))
