"""Where records gather into batches: called by whoever sends, emptied by the sender on the client's thread or loop."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from kohort.client.net.cluster import Cluster
from kohort.client.net.runtime import Promise, Work
from kohort.client.net.thread_driver import ClientClosed
from kohort.client.producer.batches import Batch, Delivery, PartitionQueue, RecordMetadata, UnseenFailures, leaves_of
from kohort.client.producer.settings import ProducerConfig
from kohort.columns.encode import Chunk
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.ids import TopicPartition

T = TypeVar("T")
OVERHEAD = 96
"""Generous bytes that a record takes beyond key, value and headers, for checks before it is encoded."""
_BATCH_LEAST = 128
"""No batch is limited to less; a larger record is a batch of its own."""


class NotYet(Exception, Generic[T]):
    """Something that must be there first is not: wait for it, then go on.

    Keep it without its traceback, which leads back to it.

    Attributes:
        wait: A coroutine of the core, given the time (milliseconds, monotonic) at which it gives up with TimedOutError.
        again: What was asked for, once more; may raise NotYet again.
        moved: Whether something was done since the last NotYet, so that time starts anew.
    """

    def __init__(self, wait: Callable[[float], Work[None]], again: Callable[[], T], *, moved: bool = False) -> None:
        super().__init__()
        self.wait = wait
        self.again = again
        self.moved = moved


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class Accumulator:
    """Open batches by partition within a bound of memory. `lock` guards everything in here.

    Attributes:
        lock: A condition too: notified when batches are done.
        queues: By partition, those that have anything and those that had.
        used: Bytes that undelivered batches take.
        incomplete: Batches not done.
        flushing: While positive, batches go out at once.
        waiting: Callers that wait for memory; batches go out at once then too.
        failure: Why nothing can be sent any more.
        hindrance: Why nothing can be sent yet, empty when it can: there is no producer id.
        refusal: Called before each record is taken, under the lock; raises when it can't be (transactions).
        unseen: Records that failed and that the application has not asked about; aborted transactions are not counted.
        wake_ms: When the sender looks next by itself.
        clock_ms: Tells the time, in milliseconds of the clock that the core's runtime is stepped by.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        wake: Callable[[Callable[[], None]], None],
        kicked: Callable[[], None],
        condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self.config = config
        self.clock_ms = clock_ms
        self.cluster = cluster
        self.runtime = cluster.runtime
        self._mutex = threading.Lock()
        self.lock = condition(self._mutex)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.used = 0
        self.incomplete: set[Batch] = set()
        self.flushing = 0
        self.waiting = 0
        self.failure: KafkaError | None = None
        self.hindrance = ""
        self.refusal: Callable[[TopicPartition], None] | None = None
        self.unseen = UnseenFailures()
        self.wake_ms = float("inf")
        self._wake = wake
        self._kick = partial(wake, kicked)
        self._progress: Promise[None] = Promise()
        self._memory = config.buffer_memory
        self._limit = min(config.batch_size, config.max_request_size)
        self._limits: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        self._sticky_queues: dict[str, PartitionQueue] = {}
        _OF_THIS_PROCESS.add(self)

    def batch_limit(self, topic: str) -> int:
        """Bytes of a batch for this topic, header and all, before compression."""
        return self._limits.get(topic, self._limit)

    def too_large(self, batch: Batch) -> None:
        """The broker takes no batch as large as this: the next ones of its topic are half as large."""
        topic = batch.partition.topic
        self._limits[topic] = max(_BATCH_LEAST, min(self.batch_limit(topic), batch.size // 2))

    # Senders.

    def append(
        self,
        partition: TopicPartition,
        record: tuple[int, Any, Any, Any],
        size: int,
        on_delivery: Callable[[KafkaError | None, RecordMetadata | None], None] | None,
    ) -> Delivery:
        """Put a record (timestamp, key, value, headers) into its partition's open batch.

        Args:
            partition: Where to.
            record: Timestamp in milliseconds, key, value, headers.
            size: An upper bound of its bytes.
            on_delivery: Called when it is delivered or failed.

        Raises:
            NotYet: the memory is full.
        """
        kick = False
        with self._mutex:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if self.refusal is not None:
                self.refusal(partition)
            if self.used + size > self._memory:
                self._full(size, partial(self.append, partition, record, size, on_delivery))
            queue = self.queues.get(partition) or self._queue(partition)
            batch = queue.open
            if batch is not None:
                chunk = batch.chunk
                assert chunk is not None
                before = chunk.size
                if not chunk.append(*record):
                    queue.close_open()
                    batch, kick = None, True
            if batch is None:
                batch, late = self._open_batch(queue)
                kick = kick or late
                chunk = batch.chunk
                assert chunk is not None
                before = 0
                try:
                    chunk.append(*record)
                except BaseException:
                    queue.open = None
                    self.incomplete.discard(batch)
                    raise
            assert chunk is not None
            after = chunk.size
            batch.size = after
            self.used += after - before
            index = batch.count
            batch.count = index + 1
            if on_delivery is not None:
                batch.callbacks.append((index, record[0], on_delivery))
        if kick:
            self._kick()
        return Delivery(batch, index, record[0])

    def add(self, partition: TopicPartition, chunk: Chunk) -> Batch:
        """Put a filled batch behind what its partition has.

        Raises:
            NotYet: the memory is full.
        """
        with self.lock:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if self.refusal is not None:
                self.refusal(partition)
            if self.used and self.used + chunk.size > self.config.buffer_memory:
                self._full(chunk.size, partial(self.add, partition, chunk))
            queue = self._queue(partition)
            queue.close_open()
            batch = Batch(partition, chunk, self, self.clock_ms())
            batch.size = chunk.size
            self.used += chunk.size
            self.incomplete.add(batch)
            queue.waiting.append(batch)
        self._kick()
        return batch

    def explain(self, batch: Batch) -> str:
        """For error texts: why a batch is not done yet. From any thread, without the lock."""
        told: list[str] = []
        with contextlib.suppress(ClientClosed):
            self._wake(lambda: told.append(self.why_late(batch)))
        return told[0] if told else "the producer is closed"

    def why_late(self, batch: Batch) -> str:
        """The same, on the client's thread or loop or under its lock."""
        metadata = self.cluster.metadata
        with self.lock:
            late = next((leaf for leaf in leaves_of(batch) if not leaf.done), batch)
            queue = self.queues.get(late.partition)
            is_sent = queue is not None and late in queue.in_flight
        leader = metadata.brokers.get(metadata.leader(late.partition))
        if reason := self.cluster.unreachable() or self.hindrance:
            return reason
        if late.error is not None:
            taken = "" if late.unsure else " and not taken"
            return f"it was sent {late.attempts} times{taken}: {late.error}"
        if leader is None:
            return "the partition has no leader"
        if is_sent:
            return f"broker {leader.id} ({leader.address}) has it and has not answered yet"
        return f"it was not sent yet to broker {leader.id} ({leader.address})"

    def sticky(self, topic: str, choices: list[int]) -> int:
        """The partition of records without a key: the same one until its batch is closed, then another."""
        queue = self._sticky_queues.get(topic)
        if queue is not None and queue.open is not None:
            return queue.partition.partition
        chosen = self.next_sticky(topic, choices)
        with self._mutex:
            self._sticky_queues[topic] = self._queue(TopicPartition(topic, chosen))
        return chosen

    def next_sticky(self, topic: str, choices: list[int]) -> int:
        """Another partition than the last, at random."""
        current = self._sticky.get(topic)
        others = [one for one in choices if one != current] or choices
        chosen = self._sticky[topic] = random.choice(others)
        return chosen

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        """Under the lock."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def _open_batch(self, queue: PartitionQueue) -> tuple[Batch, bool]:
        """A new open batch, and whether the sender would look too late for it."""
        now = self.clock_ms()
        batch = queue.open = Batch(queue.partition, Chunk(self.batch_limit(queue.partition.topic)), self, now)
        self.incomplete.add(batch)
        return batch, now + self.config.linger_ms < self.wake_ms

    def _full(self, size: int, again: Callable[[], T]) -> None:
        """Always raises."""
        if size > self.config.buffer_memory:
            raise error_for(
                ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes are more than buffer.memory ({self.config.buffer_memory})"
            )
        raise NotYet(lambda until_ms: self._room(size, until_ms), again)

    # Coroutines of the core.

    async def _room(self, size: int, until_ms: float) -> None:
        """Wait until there is memory."""
        self.waiting += 1
        self._kick()
        try:
            if not await self._until(
                lambda: self.failure is not None or not self.used or self.used + size <= self.config.buffer_memory,
                until_ms,
            ):
                raise TimedOutError(
                    f"buffer.memory ({self.config.buffer_memory} bytes) stayed full for max.block.ms "
                    f"({self.config.max_block_ms} ms): {self.cluster.unreachable() or 'brokers take less than is sent'}"
                )
        finally:
            self.waiting -= 1

    async def flush(self, timeout_ms: float | None) -> bool:
        """Wait until all that was taken so far is delivered or failed; False when time is over."""
        with self.lock:
            for queue in self.queues.values():
                queue.close_open()
            now = set(self.incomplete)
        if not now:
            return True
        self.flushing += 1
        self._kick()
        try:
            return await self._until(
                lambda: now.isdisjoint(self.incomplete),
                None if timeout_ms is None else self.runtime.now_ms + timeout_ms,
            )
        finally:
            self.flushing -= 1

    async def _until(self, ready: Callable[[], bool], until_ms: float | None) -> bool:
        """Wait for batches to be done until `ready()`, which is asked under the lock; False when time is over."""
        while True:
            with self.lock:
                if ready():
                    return True
                self._progress = progress = self._progress if not self._progress.done else Promise()
            left = None if until_ms is None else until_ms - self.runtime.now_ms
            if left is not None and left <= 0:
                return False
            await self.runtime.first(progress, timeout_ms=left)

    # The sender.

    def finish(self, batch: Batch, error: KafkaError | None) -> list[Batch]:
        """A batch is delivered or failed.

        Under the lock; the caller notifies, and tells the batches that are given back.
        """
        batch.error = error
        batch.done = True
        batch.chunk = batch.sealed = None
        self.used -= batch.size
        self.incomplete.discard(batch)
        whole = batch.whole
        if whole is None and self.config.transactional_id is None:
            self.unseen.add(batch)
        if whole is not None and all(part.done for part in whole.parts):
            return [batch, *self.finish(whole, None)]
        return [batch]

    def notify(self) -> None:
        """Wake those who wait for batches. On the client's thread or loop."""
        self._progress.resolve(None)
        with self.lock:
            self.lock.notify_all()

    def fail(self, error: KafkaError) -> list[Batch]:
        """Nothing can be sent any more: fail what waits; gives the batches to tell."""
        with self.lock:
            self.failure = error
        return self.drop_all(error)

    def drop_all(self, error: KafkaError) -> list[Batch]:
        """Fail everything that is not on its way; gives the batches to tell."""
        dropped: list[Batch] = []
        with self.lock:
            for queue in self.queues.values():
                queue.close_open()
                dropped += queue.waiting
                queue.waiting.clear()
            told = [one for batch in dropped for one in self.finish(batch, error)]
        self.notify()
        return told

    def orphan(self) -> None:
        """In a forked child: nothing that was taken is delivered from here, and nothing more is taken."""
        error = ClientClosed("this producer was made before a fork and belongs to the parent process: make a new one")
        self._mutex = threading.Lock()  # another thread may have held the old one, and there are no other threads here
        self.lock = threading.Condition(self._mutex)
        self.failure = error
        for batch in self.incomplete:
            batch.error, batch.done = error, True
        self.incomplete = set()


_OF_THIS_PROCESS: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def _after_fork() -> None:
    for accumulator in list(_OF_THIS_PROCESS):
        accumulator.orphan()


os.register_at_fork(after_in_child=_after_fork)


def sized(content: Any, what: str) -> int:
    """Bytes of a key or value.

    Raises:
        InvalidInputError: it is no bytes.
    """
    if content is None:
        return 0
    if type(content) is bytes or isinstance(content, bytearray):
        return len(content)
    if isinstance(content, memoryview):
        return content.nbytes
    raise InvalidInputError(f"a {what} is bytes, str or None, not {type(content).__name__}: give a {what}_serializer")
