"""Accumulator of records in batches: filled by the application's threads, emptied by the sender."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from kohort.client.net.cluster import Cluster
from kohort.client.net.runtime import Promise, Work
from kohort.client.net.thread_driver import ClientClosedError
from kohort.client.producer.appender import Appender, Mutex
from kohort.client.producer.batches import (
    Batch,
    Delivery,
    PartitionQueue,
    RecordMetadata,
    UnseenFailures,
    split_parts_of,
)
from kohort.client.producer.settings import ProducerConfig
from kohort.columns.encode import Chunk
from kohort.columns.shapes import HeadersLike
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.ids import TopicPartition
from kohort.io.chance import CHANCE
from kohort.io.platforms import after_fork_in_child

T = TypeVar("T")
_BATCH_LEAST = 128
"""Minimum of a batch limit; a larger record is a batch of its own."""

NO_HEADERS: HeadersLike = ()
"""The headers of a record that was sent without any; compared by identity."""


class WouldBlock(Exception, Generic[T]):
    """Exception for control flow: `send` would have to wait for memory or metadata. The facade waits and retries.

    If you store it, remove its traceback, whose frames refer to it.

    Attributes:
        wait: A coroutine function to await before the retry. Its argument is the monotonic time in ms after which it
            raises TimedOutError.
        again: Retries the call; may raise WouldBlock again.
        moved: Whether the call has made progress since the last WouldBlock: its time limit starts anew.
    """

    def __init__(self, wait: Callable[[float], Work[None]], again: Callable[[], T], *, moved: bool = False) -> None:
        super().__init__()
        self.wait = wait
        self.again = again
        self.moved = moved


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class Accumulator(Appender[Delivery]):
    """Open batches by partition within a memory limit. `lock` guards all attributes, those of `Appender` too.

    Attributes:
        lock: `mutex` with a condition: notified when batches are done.
        incomplete: Batches that are not done.
        flushing: While positive, batches are sent at once.
        waiting: Callers that wait for memory; while positive, batches are sent at once.
        blocked_reason: Why sending is not possible yet (no producer id); empty when it is.
        unseen: Failed records whose error the application has not read; those of aborted transactions are left out.
        wake_ms: When the sender next runs by itself.
        clock_ms: Returns the milliseconds of the clock by which the core's runtime is stepped.
    """

    queues: dict[TopicPartition, PartitionQueue]
    sticky_queues: dict[str, PartitionQueue]

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        wake: Callable[[Callable[[], None]], None],
        kicked: Callable[[], None],
        condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        chosen = (config.key_serializer, config.value_serializer, config.partitioner)
        bytes_only = all(function is None for function in chosen)
        super().__init__(Delivery, config.buffer_memory, config.max_request_size, bytes_only)
        self.config = config
        self.clock_ms = clock_ms
        self.cluster = cluster
        self.runtime = cluster.runtime
        self.lock = condition(self.mutex)
        self.incomplete: set[Batch] = set()
        self.flushing = 0
        self.waiting = 0
        self.blocked_reason = ""
        self.unseen = UnseenFailures()
        self.wake_ms = float("inf")
        self._wake = wake
        self._kick = partial(wake, kicked)
        self._progress: Promise[None] = Promise()
        self._memory = config.buffer_memory
        self._limit = max(_BATCH_LEAST, min(config.batch_size, config.max_request_size))
        self._limits: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        _OF_THIS_PROCESS.add(self)

    def batch_limit(self, topic: str) -> int:
        """Return the maximum size of a batch for this topic, with its header, before compression."""
        return self._limits.get(topic, self._limit)

    def halve_batch_limit(self, batch: Batch) -> None:
        """Halve the batch size limit of a topic, because the broker refused a batch of this size as too large."""
        topic = batch.partition.topic
        self._limits[topic] = max(_BATCH_LEAST, min(self.batch_limit(topic), batch.size // 2))

    # Appending.

    def append_record(
        self,
        partition: TopicPartition,
        record: tuple[int, Any, Any, Any],
        size: int,
        on_delivery: Callable[[KafkaError | None, RecordMetadata | None], None] | None,
        choices: list[int] | None = None,
    ) -> Delivery:
        """Put a record (timestamp, key, value, headers) into its partition's open batch.

        Args:
            partition: The partition.
            record: Timestamp in milliseconds, key, value, headers.
            size: An upper bound of its bytes.
            on_delivery: Called when the record is delivered or failed.
            choices: For a record without a key: the partitions of which another one gets it when the open batch is
                full. Else a producer that is faster than its broker would fill one partition. Source: KAFKA-10888.

        Raises:
            WouldBlock: The memory is full.
        """
        with self.mutex:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if self.refusal is not None:
                self.refusal(partition)
            if self.used + size > self._memory:
                self._full(size, partial(self.append_record, partition, record, size, on_delivery, choices))
            queue = self.queues.get(partition) or self._queue(partition)
            batch, before, kick = self._fill_open_batch(queue, record)
            if kick and choices is not None:
                topic = partition.topic
                queue = self._queue(TopicPartition(topic, self.next_sticky_partition(topic, choices)))
                self.sticky_queues[topic] = queue
                batch, before, _ = self._fill_open_batch(queue, record)
            if batch is None:
                batch, late = self._open_batch(queue)
                kick = kick or late
                assert batch.chunk is not None
                try:
                    batch.chunk.append(*record)
                except BaseException:
                    queue.open = None
                    self.incomplete.discard(batch)
                    raise
            assert batch.chunk is not None
            after = batch.chunk.size
            batch.size = after
            self.used += after - before
            index = batch.count
            batch.count = index + 1
            if on_delivery is not None:
                batch.callbacks.append((index, record[0], on_delivery))
        if kick:
            self._kick()
        return Delivery(batch, index, record[0])

    def _fill_open_batch(
        self, queue: PartitionQueue, record: tuple[int, Any, Any, Any]
    ) -> tuple[Batch | None, int, bool]:
        """Append a record to a queue's open batch; close the batch if it has no room. Under the lock.

        Return the batch or None, its size before, and whether it was closed.
        """
        batch = queue.open
        if batch is None:
            return None, 0, False
        assert batch.chunk is not None
        before = batch.chunk.size
        if batch.chunk.append(*record):
            return batch, before, False
        queue.close_open_batch()
        return None, 0, True

    def add_chunk(self, partition: TopicPartition, chunk: Chunk) -> Batch:
        """Queue a chunk of encoded rows (`send_arrow`) as a batch of its own for a partition.

        A chunk larger than `buffer.memory` is taken when nothing else waits to be sent.

        Raises:
            WouldBlock: The memory is full.
        """
        with self.lock:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if self.refusal is not None:
                self.refusal(partition)
            if self.used and self.used + chunk.size > self.config.buffer_memory:
                raise self._would_block(chunk.size, partial(self.add_chunk, partition, chunk))
            queue = self._queue(partition)
            queue.close_open_batch()
            batch = Batch(partition, chunk, self, self.clock_ms())
            batch.size = chunk.size
            self.used += chunk.size
            self.incomplete.add(batch)
            queue.waiting.append(batch)
        self._kick()
        return batch

    def undelivered_reason(self, batch: Batch) -> str:
        """Return why a batch is not done yet, for error texts. From any thread, without the lock."""
        reasons: list[str] = []
        with contextlib.suppress(ClientClosedError):
            self._wake(lambda: reasons.append(self.undelivered_reason_locked(batch)))
        return reasons[0] if reasons else "the producer is closed"

    def undelivered_reason_locked(self, batch: Batch) -> str:
        """Return why a batch is not done yet; call this on the client's thread or loop, or under its lock."""
        metadata = self.cluster.metadata
        with self.lock:
            late = next((leaf for leaf in split_parts_of(batch) if not leaf.done), batch)
            queue = self.queues.get(late.partition)
            is_sent = queue is not None and late in queue.in_flight
        leader = metadata.brokers.get(metadata.leader(late.partition))
        if reason := self.cluster.unreachable_text() or self.blocked_reason:
            return reason
        if late.error is not None:
            taken = "" if late.unsure else " and not taken"
            return f"it was sent {late.attempts} times{taken}: {late.error}"
        if leader is None:
            return "the partition has no leader"
        if is_sent:
            return f"broker {leader.id} ({leader.address}) has it and has not answered yet"
        return f"it was not sent yet to broker {leader.id} ({leader.address})"

    def sticky_partition(self, topic: str, choices: list[int]) -> int:
        """Return the partition of records without a key: the same one until its batch is closed, then another."""
        queue = self.sticky_queues.get(topic)
        if queue is not None and queue.open is not None:
            return queue.partition.partition
        chosen = self.next_sticky_partition(topic, choices)
        with self.mutex:
            self.sticky_queues[topic] = self._queue(TopicPartition(topic, chosen))
        return chosen

    def drop_missing_sticky_partition(self, topic: str, count: int) -> None:
        """Drop a topic's sticky partition if the topic was recreated with only `count` partitions and lacks it."""
        with self.mutex:
            queue = self.sticky_queues.get(topic)
            if queue is not None and queue.partition.partition >= count:
                del self.sticky_queues[topic]

    def next_sticky_partition(self, topic: str, choices: list[int]) -> int:
        """Choose a random partition for a topic's records without a key, another one than the last."""
        current = self._sticky.get(topic)
        others = [choice for choice in choices if choice != current] or choices
        chosen = self._sticky[topic] = CHANCE.choice(others)
        return chosen

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        """Return a partition's queue of batches, made if needed. The caller holds the lock."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def _open_batch(self, queue: PartitionQueue) -> tuple[Batch, bool]:
        """Open a batch; also return whether the sender must be woken, since it would run after the linger time."""
        now = self.clock_ms()
        batch = queue.open = Batch(queue.partition, Chunk(self.batch_limit(queue.partition.topic)), self, now)
        self.incomplete.add(batch)
        return batch, now + self.config.linger_ms < self.wake_ms

    def _full(self, size: int, again: Callable[[], T]) -> None:
        """Raise WouldBlock for a `send` while memory is full; MESSAGE_TOO_LARGE if the record can never fit."""
        if size > self.config.buffer_memory:
            raise error_for(
                ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes are more than buffer.memory ({self.config.buffer_memory})"
            )
        raise self._would_block(size, again)

    def _would_block(self, size: int, again: Callable[[], T]) -> WouldBlock[T]:
        """Return the exception for a call that has to wait for memory: until `size` bytes fit, or nothing is used."""
        return WouldBlock(lambda until_ms: self._room(size, until_ms), again)

    # Coroutines of the core.

    async def _room(self, size: int, until_ms: float) -> None:
        """Wait until `buffer.memory` has room for a record of this size."""
        self.waiting += 1
        self._kick()
        try:
            if not await self._until(
                lambda: self.failure is not None or not self.used or self.used + size <= self.config.buffer_memory,
                until_ms,
            ):
                raise TimedOutError(
                    f"buffer.memory ({self.config.buffer_memory} bytes) stayed full for max.block.ms "
                    f"({self.config.max_block_ms} ms): "
                    f"{self.cluster.unreachable_text() or 'brokers take less than is sent'}"
                )
        finally:
            self.waiting -= 1

    async def flush(self, timeout_ms: float | None) -> bool:
        """Wait until all accepted records are delivered or failed; False on timeout."""
        with self.lock:
            for queue in self.queues.values():
                queue.close_open_batch()
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
        """Wait until `ready()` is true, checked under the lock whenever batches are done; False on timeout."""
        while True:
            with self.lock:
                if ready():
                    return True
                self._progress = progress = self._progress if not self._progress.done else Promise()
            left = None if until_ms is None else until_ms - self.runtime.now_ms
            if left is not None and left <= 0:
                return False
            await self.runtime.wait_first(progress, timeout_ms=left)

    # Completion of batches, for the sender.

    def finish_batch(self, batch: Batch, error: KafkaError | None) -> list[Batch]:
        """Mark a batch as delivered (no error) or failed, and release its memory.

        Under the lock. The caller notifies, and calls `run_callbacks` on the returned batches.
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
            return [batch, *self.finish_batch(whole, None)]
        return [batch]

    def wake_waiting_callers(self) -> None:
        """Wake callers that wait for deliveries. Call this on the client's thread or loop."""
        self._progress.resolve(None)
        with self.lock:
            self.lock.notify_all()

    def fail_batches(self, error: KafkaError) -> list[Batch]:
        """Refuse all further records, and fail all batches that are not in flight.

        Return the failed batches, whose callbacks the caller must run.
        """
        with self.lock:
            self.failure = error
        return self.fail_unsent_batches(error)

    def fail_unsent_batches(self, error: KafkaError) -> list[Batch]:
        """Fail all batches that are not in flight; return those whose callbacks the caller must run."""
        dropped: list[Batch] = []
        with self.lock:
            for queue in self.queues.values():
                queue.close_open_batch()
                dropped += queue.waiting
                queue.waiting.clear()
            failed = [done for batch in dropped for done in self.finish_batch(batch, error)]
        self.wake_waiting_callers()
        return failed

    def refuse_in_forked_child(self) -> None:
        """Refuse records and deliver none in a forked child."""
        error = ClientClosedError(
            "this producer was made before a fork and belongs to the parent process: make a new one"
        )
        self.mutex = Mutex()  # another thread may have held the old one, and does not exist here
        self.lock = threading.Condition(self.mutex)
        self.failure = error
        for batch in self.incomplete:
            batch.error, batch.done = error, True
        self.incomplete = set()


_OF_THIS_PROCESS: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def _after_fork() -> None:
    for accumulator in list(_OF_THIS_PROCESS):
        accumulator.refuse_in_forked_child()


after_fork_in_child(_after_fork)


def content_bytes(content: Any, what: str) -> int:
    """Return the size of a key or value, in bytes.

    Raises:
        InvalidInputError: The value is no bytes.
    """
    if content is None:
        return 0
    if type(content) is bytes or isinstance(content, bytearray):
        return len(content)
    if isinstance(content, memoryview):
        return content.nbytes
    raise InvalidInputError(f"a {what} is bytes, str or None, not {type(content).__name__}: give a {what}_serializer")
