"""What a producer holds until it is delivered: batches, partition queues, and what callers get back for a record."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kohort.columns.encode import Chunk, restamp
from kohort.errors import KafkaError, RecordsRefusedError, TimedOutError
from kohort.ids import TopicPartition
from kohort.settings.arguments import checked

log = logging.getLogger("kohort.client")
SEQUENCES = 2**31
"""Sequence numbers of a producer wrap there."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record was written.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        offset: Its offset; -1 with acks=0, or when the broker had it from an earlier attempt and no longer knows where.
        timestamp: Milliseconds: the broker's for a topic with log append time, else the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Deliverer(Protocol):
    """Whose the batches are, until they are done."""

    lock: threading.Condition
    """Guards them, and is notified when some are done."""

    unseen: UnseenFailures
    """Records that failed and that the application has not asked about."""

    def explain(self, batch: Batch) -> str:
        """For error texts: why a batch is not done yet. From any thread, without the lock."""


class UnseenFailures:
    """How many records failed without anyone looking at why. Guarded by the producer's lock.

    Attributes:
        count: Records.
        first: Why the first of them failed.
    """

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: KafkaError | None = None

    def add(self, batch: Batch) -> None:
        """A batch that callers know is done: count its records that failed, but for those that have a callback."""
        at, failed = 0, set[int]()
        for leaf in leaves_of(batch):
            if leaf.error is not None:
                failed.update(range(at, at + leaf.count))
                self.first = self.first or leaf.error
            at += leaf.count
        batch.unseen = failed.difference(index for index, timestamp, _ in batch.callbacks if timestamp >= 0)
        self.count += len(batch.unseen)

    def see(self, batch: Batch, index: int | None = None) -> None:
        """The application looks at one record, or at all of a batch."""
        seen = batch.unseen if index is None else batch.unseen & {index}
        self.count -= len(seen)
        batch.unseen = batch.unseen - seen


@dataclass(frozen=True, slots=True)
class Identity:
    """The producer id and epoch that the broker gave; -1 before."""

    producer_id: int = -1
    epoch: int = -1


class Batch:
    """Records of one partition that travel together.

    Attributes:
        partition: Where to.
        chunk: The records, until the batch is sealed.
        sealed: The batch as it is sent.
        count: Records.
        size: Bytes taken from the producer's memory.
        created_ms: On the monotonic clock, when the first record came.
        attempts: How often it was sent.
        left: A request with it was given to a connection.
        unseen: Indices of records that failed and that nobody asked about.
        unsure: An attempt ended so that nobody knows whether it was written.
        not_before_ms: When it may be sent again.
        sequence: The sequence number of its first record; -1 until one is given.
        base_offset: Once delivered.
        append_time_ms: The broker's log append time; -1 if the records keep theirs.
        owner: Who delivers it.
        error: Why it was not delivered; before it is done, why the broker did not take it the last time.
        done: Delivered or failed.
        callbacks: (index of the record, its timestamp, function) of those who want to be told.
        parts: The batches that stand for this one, where it was too large for the broker.
        whole: The batch that this one is a part of.
    """

    __slots__ = (
        "append_time_ms",
        "attempts",
        "base_offset",
        "callbacks",
        "chunk",
        "count",
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
        "size",
        "unseen",
        "unsure",
        "whole",
    )

    def __init__(self, partition: TopicPartition, chunk: Chunk, owner: Deliverer, created_ms: float) -> None:
        self.partition = partition
        self.chunk: Chunk | None = chunk
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

    def become(self, parts: list[Batch]) -> None:
        """Let these batches stand for this one."""
        self.parts = parts
        for part in parts:
            part.whole = self

    def failure(self, index: int) -> KafkaError | None:
        """Why the record with this index was not delivered."""
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
        """Where the record with this index in the batch was written."""
        if self.parts:
            part, at = self._part(index)
            return part.metadata(at, timestamp)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = timestamp if self.append_time_ms < 0 else self.append_time_ms
        return RecordMetadata(self.partition.topic, self.partition.partition, offset, stamp)

    def tell(self) -> None:
        """Call those who want to know; outside the producer's lock.

        What a callback raises is logged: others want to know too.
        """
        callbacks, self.callbacks = self.callbacks, []
        for index, timestamp, callback in callbacks:
            error = self.failure(index)
            try:
                callback(error, None if error is not None else self.metadata(index, timestamp))
            except Exception:
                log.exception("a delivery callback failed")


@checked
class Delivery:
    """The future of one record that was sent. Also awaitable in asyncio."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether it is delivered, or failed."""
        return self._batch.done

    def result(self, *, timeout_ms: float | None = None) -> RecordMetadata:
        """Where it was written.

        Raises:
            TimedOutError: not known within `timeout_ms`; the record may still be delivered.
            KafkaError: why it was not delivered.
        """
        return self._result(timeout_ms)

    def exception(self, *, timeout_ms: float | None = None) -> KafkaError | None:
        """Why it was not delivered, or None; waits like `result`."""
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
                why = batch.owner.explain(batch)
                raise TimedOutError(f"{batch.partition}: not delivered yet after {timeout_ms or 0:g} ms: {why}")
        if batch.unseen:
            with batch.owner.lock:
                batch.owner.unseen.see(batch, self._index)
        return batch.failure(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call back with this delivery when it is done, on the producer's thread; at once if it is."""
        with self._batch.owner.lock:
            if not self._batch.done:
                self._batch.callbacks.append((self._index, self._timestamp, lambda *_: callback(self)))
                return
        callback(self)

    def __await__(self) -> Generator[asyncio.Future[None], None, RecordMetadata]:
        yield from _awaited([self._batch])
        return self._result(0)


@checked
class TableDelivery:
    """The future of the rows that one `send_arrow` sent: one stretch of offsets for each batch they became."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        """Whether all rows are delivered or failed."""
        return all(batch.done for batch in self._batches)

    def result(self, *, timeout_ms: float | None = None) -> list[tuple[RecordMetadata, int]]:
        """(place of the first row, count of rows) for each batch.

        Raises:
            TimedOutError: not known within `timeout_ms`.
            KafkaError: why the first batch that failed was not delivered; others may have been.
        """
        if self._batches and not self.done():
            owner = self._batches[0].owner
            with owner.lock:
                owner.lock.wait_for(self.done, _seconds(timeout_ms))
                late = next((batch for batch in self._batches if not batch.done), None)
            if late is not None:
                text = f"{late.partition}: not all rows are delivered yet after {timeout_ms or 0:g} ms"
                raise TimedOutError(f"{text}: {owner.explain(late)}")
        for batch in self._batches:
            if batch.unseen:
                with batch.owner.lock:
                    batch.owner.unseen.see(batch)
        leaves = [leaf for batch in self._batches for leaf in leaves_of(batch)]
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
        tell = partial(loop.call_soon_threadsafe, _wake, waiter)
        with batch.owner.lock:
            if batch.done:
                continue
            batch.callbacks.append((0, -1, lambda *_, tell=tell: tell()))
        yield from waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def leaves_of(batch: Batch) -> list[Batch]:
    """The batches that were sent for this one."""
    return [leaf for part in batch.parts for leaf in leaves_of(part)] if batch.parts else [batch]


class PartitionQueue:
    """What waits for one partition, in order, and what is on its way there.

    Attributes:
        open: The batch that still takes records; behind all of `waiting`.
        waiting: Closed batches and, at the front, those to be sent again.
        in_flight: Sent and not answered, in order.
        next_sequence: Of the next record that gets one.
        mended: Set when a batch has to be sent again: until all of `in_flight` is answered nothing else is sent.
        begun: Whether the broker took a batch under this producer id. Before, it knows no sequences and would take any
            as the
            first one: a second batch that is on its way must not come before the first.
        identity: Under which its batches are numbered.
        lost_place: The broker takes none of its sequences any more: it sends nothing before it has another identity.
    """

    __slots__ = (
        "begun",
        "identity",
        "in_flight",
        "lost_place",
        "mended",
        "next_sequence",
        "open",
        "partition",
        "waiting",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.mended = False
        self.begun = False
        self.identity = Identity()
        self.lost_place = False

    @property
    def idle(self) -> bool:
        return self.open is None and not self.waiting and not self.in_flight

    def number(self, batch: Batch) -> None:
        """Give a batch the next sequences."""
        batch.sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) % SEQUENCES

    def take_on(self, identity: Identity) -> bool:
        """Go over to the producer's identity where that can be; False where nothing can be sent before it is."""
        if self.identity is identity or self.identity == identity or self.in_flight:
            return not self.lost_place
        if self.sent_before and not self.lost_place:
            return True  # what may be written under the old identity keeps its numbers, or it is written twice
        self.begun = self.begun and self.identity.producer_id == identity.producer_id
        self.identity, self.lost_place, self.next_sequence = identity, False, 0
        for batch in self.waiting:
            if batch.sequence >= 0:
                self.number(batch)
            if batch.sealed is not None:
                restamp(batch.sealed, identity.producer_id, identity.epoch, batch.sequence)
        return True

    @property
    def sent_before(self) -> bool:
        """Whether a batch that waits was sent before, so that it may have been written."""
        return any(batch.attempts for batch in self.waiting)

    def close_open(self) -> None:
        """Let the open batch go as it is."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def is_first(self, batch: Batch) -> bool:
        """Whether no batch that was sent before this one is still on its way or to be sent again."""
        sent = [one for one in (*self.in_flight, *self.waiting) if one is not batch and one.attempts]
        return not any(_before(one, batch) for one in sent)

    def put_back(self, batch: Batch) -> None:
        """A batch that has to be sent again goes before those with higher sequences (or sent later)."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].attempts and _before(self.waiting[at], batch):
            at += 1
        self.waiting.insert(at, batch)


def _before(one: Batch, other: Batch) -> bool:
    """Whether one was sequenced before the other; sequences wrap at 2^31."""
    if one.sequence < 0 or other.sequence < 0:
        return one.created_ms <= other.created_ms
    return (other.sequence - one.sequence) % SEQUENCES < SEQUENCES // 2
