"""Produced batches of topics with a `compression.type` of their own: compressed beside the loop, appended in order.

Kafka compresses in the thread of the request. Here the loop serves everyone, so that a thread does, and what comes for
the same partition meanwhile waits behind it: sequences of producers keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kohort.errors import CorruptDataError, KafkaError
from kohort.ids import TopicPartition
from kohort.log import LogConfig, prepared

log = logging.getLogger("kohort.broker")

THREADS = 2
"""The codecs work without the interpreter's lock."""


@dataclass(slots=True)
class _Job:
    records: bytes
    config: LogConfig
    now_ms: int
    done: Callable[[bytes | KafkaError], None]


class Recompression:
    """Compresses batches anew, one after the other for each partition. All methods run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, "kohort-compress")
        self._queues: dict[TopicPartition, deque[_Job]] = {}

    def is_busy(self, partition: TopicPartition) -> bool:
        """Whether batches for a partition are on their way, behind which others have to wait."""
        return partition in self._queues

    def take(
        self,
        partition: TopicPartition,
        records: bytes,
        config: LogConfig,
        now_ms: int,
        done: Callable[[bytes | KafkaError], None],
    ) -> None:
        """Check and compress batches behind what the partition was sent before.

        Args:
            partition: which they are for.
            records: the batches, a copy of the request's.
            config: the topic's.
            now_ms: when they came.
            done: called with what is to be appended, or why nothing is.
        """
        queue = self._queues.setdefault(partition, deque())
        queue.append(_Job(records, config, now_ms, done))
        if len(queue) == 1:
            self._begin(partition, queue[0])

    def _begin(self, partition: TopicPartition, job: _Job) -> None:
        def work() -> bytes | KafkaError:
            try:
                return prepared(str(partition), job.records, job.config, job.now_ms)
            except KafkaError as error:
                return error.with_traceback(None)

        def finish(finished: asyncio.Future[bytes | KafkaError]) -> None:
            if not finished.cancelled():
                self._finish(partition, job, finished)

        self._loop.run_in_executor(self._threads, work).add_done_callback(finish)

    def _finish(self, partition: TopicPartition, job: _Job, finished: asyncio.Future[bytes | KafkaError]) -> None:
        queue = self._queues[partition]
        queue.popleft()
        try:
            try:
                result = finished.result()
            except Exception as error:  # noqa: BLE001 - whoever produced must be told, whatever it is
                log.error("%s: batches could not be compressed: %s", partition, error)
                result = CorruptDataError(f"{partition}: the batches could not be compressed: {error}")
            job.done(result)
        finally:
            if queue:
                self._begin(partition, queue[0])
            else:
                del self._queues[partition]

    def close(self) -> None:
        """Leave undone what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
