"""Undelivered records of a producer: batches, partition queues, and the futures for callers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kohort.client.producer.appender import BatchFill, DeliveryPlace, QueueOpening
from kohort.columns.encode import Chunk, restamp
from kohort.errors import KafkaError, RecordsRefusedError, TimedOutError
from kohort.ids import TopicPartition
from kohort.settings.arguments import checks_arguments

log = logging.getLogger("kohort.client")
SEQUENCES = 2**31
"""Sequence numbers of a producer wrap at this number."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The partition and offset of a written record.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        offset: The offset; -1 with acks=0, or when the broker has it from an earlier attempt and no longer knows where.
        timestamp: Milliseconds: the broker's for a topic with log append time, else the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchOwner(Protocol):
    """The producer that owns batches until they are delivered or have failed."""

    lock: threading.Condition
    """Guards the batches, and is notified when some are done."""

    unseen: UnseenFailures
    """Failed records whose error the application has not read."""

    def undelivered_reason(self, batch: Batch) -> str:
        """Return why a batch is not done yet, for error texts. From any thread, without the lock."""


class UnseenFailures:
    """The number of failed records whose error the application has not read, for an error when the producer closes.

    Attributes:
        count: The number of records.
        first: The error of the first one.
    """

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: KafkaError | None = None

    def add(self, batch: Batch) -> None:
        """Count a failed batch's records as errors that nobody has read, except records with a callback."""
        at, failed = 0, set[int]()
        for leaf in split_parts_of(batch):
            if leaf.error is not None:
                failed.update(range(at, at + leaf.count))
                self.first = self.first or leaf.error
            at += leaf.count
        batch.unseen = failed.difference(index for index, timestamp, _ in batch.callbacks if timestamp >= 0)
        self.count += len(batch.unseen)

    def mark_error_read(self, batch: Batch, index: int | None = None) -> None:
        """Uncount records whose error the application has read: one record, or all of a batch."""
        seen = batch.unseen if index is None else batch.unseen & {index}
        self.count -= len(seen)
        batch.unseen = batch.unseen - seen


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """The producer id and epoch; -1 until the broker has assigned them."""

    producer_id: int = -1
    epoch: int = -1


class Batch(BatchFill):
    """Records of one partition that are sent together.

    Attributes:
        partition: The partition.
        chunk: The records, until the batch is sealed.
        sealed: The encoded batch.
        count: The number of records.
        size: Bytes taken from the producer's memory.
        created_ms: On the monotonic clock, when the first record was added.
        attempts: How often it was sent.
        left: Whether a request with it was given to a connection.
        unseen: Indices of failed records whose error nobody has read.
        unsure: Whether an attempt ended without knowledge whether it was written.
        not_before_ms: When it may be sent again.
        sequence: The sequence number of its first record; -1 until one is given.
        base_offset: The offset of its first record, once delivered.
        append_time_ms: The broker's log append time; -1 if the records keep theirs.
        owner: The producer that delivers it.
        error: Why it was not delivered; before it is done, why the last attempt failed.
        done: Delivered or failed.
        callbacks: (index of the record, its timestamp, function) for each record with a callback.
        parts: The batches that replace this one, if it was too large for the broker.
        whole: The batch that this one is a part of.
    """

    __slots__ = (
        "append_time_ms",
        "attempts",
        "base_offset",
        "callbacks",
        "created_ms",
        "done",
        "error",
        "left",
        "not_before_ms",
        "owner",
        "partition",
        "parts",
        "sealed",
        "sequence",
        "unseen",
        "unsure",
        "whole",
    )

    def __init__(self, partition: TopicPartition, chunk: Chunk, owner: BatchOwner, created_ms: float) -> None:
        self.partition = partition
        self.chunk = chunk
        self.sealed: memoryview | None = None
        self.count = chunk.count
        self.size = 0
        self.created_ms = created_ms
        self.attempts = 0
        self.left = False
        self.unsure = False
        self.unseen: set[int] = set()
        self.not_before_ms = 0.0
        self.sequence = -1
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: KafkaError | None = None
        self.done = False
        self.callbacks: list[tuple[int, int, Callable[[KafkaError | None, RecordMetadata | None], None]]] = []
        self.owner = owner
        self.parts: list[Batch] = []
        self.whole: Batch | None = None

    def replace_by_parts(self, parts: list[Batch]) -> None:
        """Replace this batch, which is too large for the broker, by smaller ones."""
        self.parts = parts
        for part in parts:
            part.whole = self

    def failure(self, index: int) -> KafkaError | None:
        """Return why the record with this index was not delivered."""
        if not self.parts:
            return self.error.of(index) if isinstance(self.error, RecordsRefusedError) else self.error
        part, at = self._part(index)
        return part.failure(at)

    def _part(self, index: int) -> tuple[Batch, int]:
        for part in self.parts:
            if index < part.count:
                return part, index
            index -= part.count
        raise IndexError(index)

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Return the partition and offset of the record with this index in the batch."""
        if self.parts:
            part, at = self._part(index)
            return part.metadata(at, timestamp)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = timestamp if self.append_time_ms < 0 else self.append_time_ms
        return RecordMetadata(self.partition.topic, self.partition.partition, offset, stamp)

    def run_callbacks(self) -> None:
        """Run the callbacks; outside the producer's lock.

        An exception of a callback is logged: it must not prevent the others.
        """
        callbacks, self.callbacks = self.callbacks, []
        for index, timestamp, callback in callbacks:
            error = self.failure(index)
            try:
                callback(error, None if error is not None else self.metadata(index, timestamp))
            except Exception:
                log.exception("the application's delivery callback raised an exception, which is ignored")


@checks_arguments
class Delivery(DeliveryPlace):
    """The future of one record that was sent. Also awaitable in asyncio."""

    __slots__ = ()
    _batch: Batch

    def done(self) -> bool:
        """Return whether the record is delivered or failed."""
        return self._batch.done

    def result(self, *, timeout_ms: float | None = None) -> RecordMetadata:
        """Return the partition and offset of the record.

        Raises:
            TimedOutError: Not known within `timeout_ms`; the record may still be delivered.
            KafkaError: Why the record was not delivered.
        """
        return self._result(timeout_ms)

    def exception(self, *, timeout_ms: float | None = None) -> KafkaError | None:
        """Return why the record was not delivered, or None; waits like `result`."""
        return self._exception(timeout_ms)

    def _result(self, timeout_ms: float | None) -> RecordMetadata:
        error = self._exception(timeout_ms)
        if error is not None:
            raise error.with_traceback(None)  # many records share it
        return self._batch.metadata(self._index, self._timestamp)

    def _exception(self, timeout_ms: float | None) -> KafkaError | None:
        batch = self._batch
        if not batch.done:
            lock = batch.owner.lock
            with lock:
                in_time = lock.wait_for(lambda: batch.done, _seconds(timeout_ms))
            if not in_time:
                why = batch.owner.undelivered_reason(batch)
                raise TimedOutError(f"{batch.partition}: not delivered yet after {timeout_ms or 0:g} ms: {why}")
        if batch.unseen:
            with batch.owner.lock:
                batch.owner.unseen.mark_error_read(batch, self._index)
        return batch.failure(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call `callback` with this delivery when it is done, on the producer's thread; at once if it is."""
        with self._batch.owner.lock:
            if not self._batch.done:
                self._batch.callbacks.append((self._index, self._timestamp, lambda *_: callback(self)))
                return
        callback(self)

    def __await__(self) -> Generator[asyncio.Future[None], None, RecordMetadata]:
        yield from _awaited([self._batch])
        return self._result(0)


@checks_arguments
class TableDelivery:
    """The future of the rows of one `send_arrow`, with one range of offsets for each batch."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        """Return whether all rows are delivered or failed."""
        return all(batch.done for batch in self._batches)

    def result(self, *, timeout_ms: float | None = None) -> list[tuple[RecordMetadata, int]]:
        """Return (metadata of the first row, count of rows) for each batch.

        Raises:
            TimedOutError: Not known within `timeout_ms`.
            KafkaError: Why the first failed batch was not delivered; others may have been.
        """
        if self._batches and not self.done():
            owner = self._batches[0].owner
            with owner.lock:
                owner.lock.wait_for(self.done, _seconds(timeout_ms))
                late = next((batch for batch in self._batches if not batch.done), None)
            if late is not None:
                text = f"{late.partition}: not all rows are delivered yet after {timeout_ms or 0:g} ms"
                raise TimedOutError(f"{text}: {owner.undelivered_reason(late)}")
        for batch in self._batches:
            if batch.unseen:
                with batch.owner.lock:
                    batch.owner.unseen.mark_error_read(batch)
        leaves = [leaf for batch in self._batches for leaf in split_parts_of(batch)]
        for leaf in leaves:
            if leaf.error is not None:
                raise leaf.error.with_traceback(None)
        return [(leaf.metadata(0, -1), leaf.count) for leaf in leaves]

    def __await__(self) -> Generator[asyncio.Future[None], None, list[tuple[RecordMetadata, int]]]:
        yield from _awaited(self._batches)
        return self.result(timeout_ms=0)


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000


def _awaited(batches: list[Batch]) -> Generator[asyncio.Future[None], None, None]:
    """Wait in asyncio until the batches are delivered or failed."""
    loop = asyncio.get_running_loop()
    for batch in batches:
        waiter: asyncio.Future[None] = loop.create_future()
        wake = partial(loop.call_soon_threadsafe, _wake, waiter)
        with batch.owner.lock:
            if batch.done:
                continue
            batch.callbacks.append((0, -1, lambda *_, wake=wake: wake()))
        yield from waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def split_parts_of(batch: Batch) -> list[Batch]:
    """Return the batches into which a batch was split, also repeatedly, as too large for the broker; else itself."""
    return [leaf for part in batch.parts for leaf in split_parts_of(part)] if batch.parts else [batch]


class PartitionQueue(QueueOpening):
    """The batches of one partition, in order: waiting and in flight.

    Attributes:
        open: The batch that still takes records; behind all of `waiting`.
        waiting: Closed batches and, at the front, those to be sent again.
        in_flight: Batches sent without a response yet, in order.
        next_sequence: The sequence number of the next record that gets one.
        mended: True while a batch has to be sent again: nothing else is sent until all of `in_flight` has a response.
        begun: Whether the broker has appended a batch of this producer id. Until then it accepts any sequence number
            as the first, so only one batch is in flight.
        identity: The producer id and epoch of its sequence numbers.
        lost_place: Whether the broker refuses its sequences: nothing is sent until there is a new identity.
    """

    __slots__ = (
        "begun",
        "identity",
        "in_flight",
        "lost_place",
        "mended",
        "next_sequence",
        "partition",
        "waiting",
    )

    open: Batch | None

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.mended = False
        self.begun = False
        self.identity = ProducerIdAndEpoch()
        self.lost_place = False

    @property
    def idle(self) -> bool:
        return self.open is None and not self.waiting and not self.in_flight

    def assign_sequence(self, batch: Batch) -> None:
        """Give a batch the next sequence numbers."""
        batch.sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) % SEQUENCES

    def adopt_identity(self, identity: ProducerIdAndEpoch) -> bool:
        """Adopt the producer's current id and epoch: number the waiting batches from 0 again.

        A queue keeps its old identity while a batch sent with it may have been appended: a batch with new numbers could
        be appended twice.

        Returns:
            False if the broker refuses the old sequence numbers, so that nothing can be sent before the switch.
        """
        if self.identity is identity or self.identity == identity or self.in_flight:
            return not self.lost_place
        if self.has_retried_batch and not self.lost_place:
            return True  # a batch that may have been written keeps its numbers, or is written twice
        self.begun = self.begun and self.identity.producer_id == identity.producer_id
        self.identity, self.lost_place, self.next_sequence = identity, False, 0
        for batch in self.waiting:
            if batch.sequence >= 0:
                self.assign_sequence(batch)
            if batch.sealed is not None:
                restamp(batch.sealed, identity.producer_id, identity.epoch, batch.sequence)
        return True

    @property
    def has_retried_batch(self) -> bool:
        """Return whether a waiting batch was sent before, and may have been written."""
        return any(batch.attempts for batch in self.waiting)

    def close_open_batch(self) -> None:
        """Close the open batch."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def is_first(self, batch: Batch) -> bool:
        """Return whether this batch has the lowest sequence numbers of all that are in flight or wait for a retry."""
        sent = [other for other in (*self.in_flight, *self.waiting) if other is not batch and other.attempts]
        return not any(_before(other, batch) for other in sent)

    def put_back(self, batch: Batch) -> None:
        """Put a batch back into the queue for a retry: after retries with lower sequences, before all others."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].attempts and _before(self.waiting[at], batch):
            at += 1
        self.waiting.insert(at, batch)


def _before(one: Batch, other: Batch) -> bool:
    """Return whether a batch was sequenced before another; sequences wrap at 2^31."""
    if one.sequence < 0 or other.sequence < 0:
        return one.created_ms <= other.created_ms
    return (other.sequence - one.sequence) % SEQUENCES < SEQUENCES // 2
