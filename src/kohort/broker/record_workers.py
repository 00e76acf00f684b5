"""Worker threads for work on records that would block the event loop: decompression, checks and recompression.

The loop serves all clients, and a batch of some kilobytes can stand for a hundred megabytes of records. A request
decompresses a little on the loop (`log.validator.LoopBudget`), and hands the rest to these threads. Produced batches of
one partition stay in order. Codecs and the walk over records release the interpreter lock, so threads run in parallel.

Everything in a broker that decompresses or walks records, and what bounds it:

| what | where | off the loop |
|---|---|---|
| Produce | `log/validator.py` | beyond the budget of its request |
| recompression (`compression.type`) | `log/recompress.py` | always |
| ListOffsets by time | `log/segment.py` (`find_by_time_in_batch`) | batches beyond 256 KiB |
| compaction | `log/compaction.py` | batches beyond 128 KiB |
| loading groups and transactions | `journal/`, `transactions/log.py` | no: such topics take at most 1 MiB a batch |
| loading groups from Kafka | `cluster/journal/reading.py` | no: at most 32 MiB a batch |
| markers in recovery and appends | `log/markers.py` | no: at most 64 KiB |

Fetch, recovery, `kohort log check` and repair read headers and checksums only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kohort.errors import CorruptDataError, KafkaError
from kohort.ids import TopicPartition
from kohort.io.thread_pools import run_in_pool
from kohort.log import CheckedBatches, PartitionLog, Search, validate_and_recompress

T = TypeVar("T")

log = logging.getLogger("kohort.broker")

THREADS: Final = 2
"""Threads for produced batches: more would take processor time from the loop."""


class ProducedBatches(NamedTuple):
    """Batches that a client produced to one partition.

    Attributes:
        partition: the partition.
        target: its log.
        records: the batches, as a copy of the request's bytes.
        now_ms: when they arrived.
    """

    partition: TopicPartition
    target: PartitionLog
    records: bytes
    now_ms: int


_Done: TypeAlias = Callable[[CheckedBatches | KafkaError], None]


class RecordWorkers:
    """The worker threads that check produced batches, with a queue for each partition. All methods run on the loop.

    Searches have a thread of their own, and compaction has another, so that they don't delay producers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._producing = ThreadPoolExecutor(THREADS, "kohort-records")
        self._reading = ThreadPoolExecutor(1, "kohort-record-search")
        self._compacting = ThreadPoolExecutor(1, "kohort-compaction")
        self._queues: dict[TopicPartition, deque[tuple[ProducedBatches, _Done]]] = {}

    def is_busy(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition are being checked, so that later ones have to wait."""
        return partition in self._queues

    def check_produced(self, batches: ProducedBatches, done: _Done) -> None:
        """Check produced batches in a thread, and recompress them if their topic requires it.

        Batches of one partition are handled in order.

        Args:
            batches: the batches.
            done: called with the batches to append, or with the error that rejects them.
        """
        queue = self._queues.setdefault(batches.partition, deque())
        queue.append((batches, done))
        if len(queue) == 1:
            self._begin_check(batches, done)

    def _begin_check(self, batches: ProducedBatches, done: _Done) -> None:
        validator, config = batches.target.validator, batches.target.config

        def check_batches() -> CheckedBatches | KafkaError:
            try:
                return validate_and_recompress(validator, batches.records, config, batches.now_ms)
            except KafkaError as error:
                return error.with_traceback(None)

        def deliver_result(finished: asyncio.Future[CheckedBatches | KafkaError]) -> None:
            if not finished.cancelled():
                self._finish_check(batches.partition, done, finished)

        run_in_pool(self._loop, self._producing, check_batches).add_done_callback(deliver_result)

    def _finish_check(
        self, partition: TopicPartition, done: _Done, finished: asyncio.Future[CheckedBatches | KafkaError]
    ) -> None:
        queue = self._queues[partition]
        queue.popleft()
        try:
            try:
                result = finished.result()
            except Exception as error:  # noqa: BLE001 - the producer must get an answer
                log.error(
                    "[partition %s] produced batches rejected: unexpected error while checking them: %s",
                    partition,
                    error,
                )
                result = CorruptDataError(f"{partition}: the batches could not be checked: {error}")
            done(result)
        finally:
            if queue:
                self._begin_check(*queue[0])
            else:
                del self._queues[partition]

    def search(self, search: Search[T], done: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Run a search for an offset by time: its steps on the loop, its large batches in a thread.

        Args:
            search: the search.
            done: called with the result, perhaps before this method returns.
            failed: called if the search raises, which is a bug in the broker.
        """
        self._resume_search(search, partial(search.send, None), (done, failed))

    def _resume_search(
        self,
        search: Search[T],
        proceed: Callable[[], Callable[[], Any]],
        outcome: tuple[Callable[[T], None], Callable[[], None]],
    ) -> None:
        done, failed = outcome
        try:
            job = proceed()
        except StopIteration as end:
            done(end.value)
            return
        except BaseException:
            failed()
            raise

        def deliver_result(finished: asyncio.Future[Any]) -> None:
            if finished.cancelled():
                return
            error = finished.exception()
            following = partial(search.send, finished.result()) if error is None else partial(search.throw, error)
            self._resume_search(search, following, outcome)

        run_in_pool(self._loop, self._reading, job).add_done_callback(deliver_result)

    def run_compaction_step(self, job: Callable[[], None]) -> Future[None]:
        """Run one step of a compaction in the thread for compactions."""
        return self._compacting.submit(job)

    def close(self) -> None:
        """Stop the threads and discard queued work."""
        for threads in (self._producing, self._reading, self._compacting):
            threads.shutdown(wait=False, cancel_futures=True)
