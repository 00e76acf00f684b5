"""Clients with one known fault each, to show that the checker named beside it sees that fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.client import offsets
from kohort.client.consumer.commits import Commits
from kohort.client.consumer.fetching import Fetcher
from kohort.client.consumer.positions import PositionFinder
from kohort.client.producer import sender
from kohort.client.producer.accumulator import Accumulator
from kohort.client.producer.batches import Batch, PartitionQueue, ProducerIdAndEpoch
from kohort.client.producer.sender import Sender
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from simulation.clients.checkers import (
    ClientChecker,
    CommitChecker,
    DeliveryReportChecker,
    LivenessChecker,
    LogChecker,
    ReadingChecker,
    SequenceChecker,
    StartChecker,
    TransactionChecker,
)
from simulation.mutants.disk_mutants import DiskMutant


class ClientMutant(DiskMutant):
    """The client with one function replaced by `swap(real)` while a run lasts."""


class LateOffsetUndoesSeek(ClientMutant):
    """A committed offset that arrives after a seek overrides the seek."""

    where, name = PositionFinder, "_still_asked"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Accept every answer."""
        return lambda self, partition, *_: self._partitions.get(partition) is not None


class CommitsOvertake(ClientMutant):
    """A commit does not wait for the one before it."""

    where, name = Commits, "start_commit"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Forget the commit before."""

        def start(self: Commits, *args: Any, **more: Any) -> Any:
            self._tail = None
            return real(self, *args, **more)

        return start


class NumbersAnewWhileSending(ClientMutant):
    """A producer that abandons a batch renumbers all others, also those in flight or possibly written."""

    where, name = Sender, "_lose"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Raise the epoch of every partition."""

        def lose(self: Sender, batch: Batch, error: Any) -> None:
            real(self, batch, error)
            for queue in self.accumulator.queues.values():
                if not queue.lost_place:
                    self._raise_epoch(queue)

        return lose


class BeginsAtUnstableOffsets(ClientMutant):
    """A consumer begins at offsets that an open transaction is about to move."""

    where, name = offsets, "offset_fetch_request"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Ask for unstable offsets, too."""
        return lambda *args, require_stable=False, **more: real(*args, require_stable=False, **more)


class ReadsOnAfterSeek(ClientMutant):
    """A consumer returns, after a seek, records that it fetched before."""

    where, name = Fetcher, "_current"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Treat every answer as current."""

        def current(self: Fetcher, given: Any, position_version: int) -> bool:
            state = self.partitions.get(TopicPartition(given.topic, given.partition))
            if state is None:
                return False
            for fetched in self.ready:
                fetched.versions = [state.position_version for _ in fetched.versions]
            return True

        return current


class SendsAgainLast(ClientMutant):
    """A batch that is sent again goes to the end of the queue."""

    where, name = PartitionQueue, "put_back"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Append the batch."""

        def put_back(self: PartitionQueue, batch: Batch) -> None:
            self.waiting.append(batch)

        return put_back


class RaisesEpochWhenUnsure(ClientMutant):
    """A batch that may have been written gets a new sequence number when it is sent again."""

    where, name = Sender, "_batch_failed"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Raise the epoch at every failure."""

        def failed(self: Sender, batch: Batch, error: Any) -> None:
            real(self, batch, error)
            if not batch.done and self.config.transactional_id is None:
                self._raise_epoch(self.accumulator.queues[batch.partition])

        return failed


class SendsBehindTheFirst(ClientMutant):
    """Batches follow a partition's first batch before the broker has accepted it."""

    where, name = PartitionQueue, "adopt_identity"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Treat every partition as begun."""

        def take_on(self: PartitionQueue, identity: ProducerIdAndEpoch) -> bool:
            goes = bool(real(self, identity))
            self.begun = True
            return goes

        return take_on


class SaysNotDelivered(ClientMutant):
    """A delivery report denies a record whose fate is unknown."""

    where, name = sender, "_not_delivered"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Deny the delivery in any case."""
        return lambda batch, when, why: f"{batch.partition}: not delivered {when}: {why}"


class CommitsUnsent(ClientMutant):
    """A transaction is committed before all its records are delivered."""

    where, name = Accumulator, "flush"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return at once."""

        async def flush(self: Accumulator, timeout_ms: float | None) -> bool:
            return True

        return flush


class WaitsForLostAnswers(ClientMutant):
    """A broker whose answer to a fetch was lost is never asked again."""

    where, name = Fetcher, "_not_fetched"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the brokers marked as busy for ever."""

        def not_fetched(self: Fetcher, session: Any, asked: Any, error: Any) -> None:
            real(self, session, asked, error)
            if error.code is not ErrorCode.NONE:
                self._busy.update({1, 2})
                self._busy = _Stubborn(self._busy)

        return not_fetched


class _Stubborn(set[int]):
    def discard(self, element: object) -> None:
        """Discard nothing."""


CLIENT_MUTANTS: dict[type[ClientMutant], type[ClientChecker]] = {
    LateOffsetUndoesSeek: ReadingChecker,
    ReadsOnAfterSeek: ReadingChecker,
    CommitsOvertake: CommitChecker,
    NumbersAnewWhileSending: LogChecker,
    RaisesEpochWhenUnsure: LogChecker,
    SendsAgainLast: LogChecker,
    BeginsAtUnstableOffsets: StartChecker,
    SendsBehindTheFirst: SequenceChecker,
    SaysNotDelivered: DeliveryReportChecker,
    CommitsUnsent: TransactionChecker,
    WaitsForLostAnswers: LivenessChecker,
}
