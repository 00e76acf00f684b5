"""One broker's state, put together: what the handlers see."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kohort.broker.config.group_settings import GroupSettingsFile
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.quotas import Quotas
from kohort.broker.config.settings import BrokerConfig
from kohort.broker.config.users import Users
from kohort.broker.endpoints import OnePlace
from kohort.broker.fetch_sessions import FetchSessions
from kohort.broker.host import GroupHost
from kohort.broker.purgatory import Waits
from kohort.broker.server.connection import ClientSession
from kohort.broker.shards import GroupShards
from kohort.broker.slices import Turns
from kohort.broker.topics import OFFSETS_TOPIC, Topics
from kohort.broker.transactions.coordinator import ProducerIds, TransactionHost, Transactions
from kohort.errors import CorruptDataError, KafkaError
from kohort.groups.effects import FindOffsets
from kohort.groups.events import Event, GroupSettings, OffsetsFound, Position
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.log import LogConfig, LogStore, PartitionLog, prepared
from kohort.wire.discovery import ApiVersionsResponse

# -- Produced batches of topics with a `compression.type` of their own: compressed beside the loop, appended in order
#
# Kafka compresses in the thread of the request. Here the loop serves everyone, so that a thread does, and what comes
# for the same partition meanwhile waits behind it: sequences of producers keep their order.

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


MAINTAIN_S = 1.0
STANDSTILL_S = 1.0
"""So late nothing fires on a loop that runs: the process was stopped or starved, or something held the loop up."""
MAINTAIN_BUSY_S = 0.05
"""Pause between slices of work while a compaction is under way."""


class Node(GroupHost):
    """The broker behind its sockets: a host of groups whose topics and journals are its own."""

    topics: Topics
    transactions: Transactions

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        store: LogStore,
        live: LiveSettings,
        api_keys: Sequence[ApiVersionsResponse.ApiVersion],
        address: tuple[str, int],
    ) -> None:
        """`address`: where it listens."""
        self.data_dir = data_dir
        self.store = store
        self.live = live
        live.listeners.append(self._settings_changed)
        self.host, self.port = address
        self.waits = Waits(loop)
        places = OnePlace(live, store, self.port)
        super().__init__(loop, live.groups, self._make_topics, places, self._open_journal, api_keys)
        self.id = self.config.node_id
        self.sessions = FetchSessions(self.config.fetch_sessions_max)
        self.producer_ids = ProducerIds(data_dir)
        self.turns = Turns(loop)
        self.recompression = Recompression(loop)
        self.group_settings = GroupSettingsFile(
            data_dir, self.group_config, lambda event: self.groups.tell(event.group_id, event)
        )
        self.users = Users(data_dir)
        self.quotas = Quotas(data_dir)
        self.transactions = Transactions(
            TransactionHost(
                loop, store, self.config, self.topics, self.groups, self.waits, self.producer_ids.take, self.token
            )
        )
        self.described_partitions_max = self.config.described_partitions_max
        self._maintenance: asyncio.TimerHandle | None = None
        self._maintenance_due = math.inf

    @property
    def config(self) -> BrokerConfig:
        """The broker's own settings, as they are now."""
        return self.live.broker

    def _settings_changed(self) -> None:
        self.store.set_defaults(self.live.log, self.config.producer_id_expiration_ms)

    def start(self) -> None:
        """Make the internal topics and begin to load the coordinators."""
        if OFFSETS_TOPIC not in self.store.topics:
            size = str(self.config.offsets_segment_bytes)
            configs = {"cleanup.policy": "compact", "segment.bytes": size, "compression.type": "producer"}
            self.topics.create(OFFSETS_TOPIC, self.config.offsets_partitions, configs)
        self.groups.count = self.store.topics[OFFSETS_TOPIC].partitions
        for index in range(self.groups.count):
            self.groups.begin(index, self._journal_log(index).leader_epoch + 1)
        self.transactions.start()
        self._maintain()

    def _open_journal(self, index: int) -> LogJournal:
        return LogJournal(self._journal_log(index), older_values=self.config.older_values)

    def _journal_log(self, index: int) -> PartitionLog:
        part = self.store.get(OFFSETS_TOPIC, index)
        assert part is not None
        return part

    def _make_topics(self, groups: GroupShards) -> Topics:
        return Topics(self.store, self.config.num_partitions, self.waits, groups)

    def unseen_topics(self, index: int) -> list[str]:
        """Topics made since a shard's journal was last loaded."""
        return self.store.unseen(index)

    def shard_loaded(self, index: int) -> None:
        """Note that what a shard's journal held of earlier topics is gone."""
        self.store.seen(index)
        super().shard_loaded(index)

    def find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Begin or end of partitions, as their logs have them."""
        found, missing = [], []
        for topic, partition in work.partitions:
            log = self.store.get(topic, partition)
            if log is None:
                missing.append(f"{topic}-{partition}")
            else:
                found.append(Position(topic, partition, log.log_start_offset if work.from_begin else log.end_offset))
        failure = f"there is no {missing[0]}" if missing else None
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, tuple(found), failure))

    def own_settings(self, index: int) -> dict[str, GroupSettings]:
        """What groups of a shard have set for themselves."""
        return self.group_settings.usable(lambda group: self.groups.index_of(group) == index)

    def client_lost(self, client: ClientSession) -> None:
        """Forget what a client waited for, and tell the coordinators that it is gone."""
        for wait in client.waits:
            self.waits.cancel(wait)
        client.waits.clear()
        super().client_lost(client)

    def _maintain(self) -> None:
        late_s = self.loop.time() - self._maintenance_due
        if late_s >= STANDSTILL_S:
            log.warning("this broker stood still for %.1f s or longer: clients may have given up waiting", late_s)
        busy = False
        try:
            busy = self.store.maintain(time.time_ns() // 1_000_000)
        except OSError as error:
            log.error("maintenance of the data folder failed: %s", error)
        finally:
            self._maintenance_due = self.loop.time() + (
                MAINTAIN_BUSY_S if busy else min(MAINTAIN_S, self.store.round_ms / 1000)
            )
            self._maintenance = self.loop.call_at(self._maintenance_due, self._maintain)

    def stop_waiting(self) -> None:
        """Answer everyone who waits: the broker ends."""
        self.waits.end_all()
        super().stop_waiting()
        self.transactions.close()

    def close(self) -> None:
        """Let go of the threads and the data folder."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        super().close()
        self.turns.close()
        self.recompression.close()
        self.store.close()
