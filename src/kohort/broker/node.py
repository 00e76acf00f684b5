"""The state of one broker: the object that request handlers work with."""

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

from kohort.broker.audit import FILE as AUDIT_FILE
from kohort.broker.audit import AuditLog
from kohort.broker.authorization import StandardAuthorizer
from kohort.broker.config.acl_store import AclStore
from kohort.broker.config.group_settings import GroupSettingsFile
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.quotas import Quotas
from kohort.broker.config.settings import BrokerConfig, super_users
from kohort.broker.config.users import Users
from kohort.broker.endpoints import SingleBrokerEndpoints
from kohort.broker.fetch_sessions import FetchSessions
from kohort.broker.host import GroupHost
from kohort.broker.purgatory import Purgatory
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.server.connection import ClientSession
from kohort.broker.shards import GroupShards
from kohort.broker.slices import SliceQueue
from kohort.broker.topics import OFFSETS_TOPIC, Topics
from kohort.broker.transactions.coordinator import ProducerIds, TransactionHost, Transactions
from kohort.errors import CorruptDataError, KafkaError
from kohort.groups.effects import FindOffsets
from kohort.groups.events import Event, GroupSettings, OffsetsFound, Position
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.log import LogConfig, LogStore, PartitionLog, prepared
from kohort.wire.discovery import ApiVersionsResponse

# -- Recompression of produced batches for topics with their own `compression.type`
#
# Kafka compresses in the request thread. Here the event loop serves all clients, so a worker thread compresses. Later
# batches of the same partition wait, so that producer sequences stay in order.

log = logging.getLogger("kohort.broker")

THREADS = 2
"""Threads that compress. The codecs release the interpreter lock, so threads run in parallel."""


@dataclass(slots=True)
class _Job:
    records: bytes
    config: LogConfig
    now_ms: int
    done: Callable[[bytes | KafkaError], None]


class Recompression:
    """A queue per partition of batches to recompress in worker threads. All methods run on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, "kohort-compress")
        self._queues: dict[TopicPartition, deque[_Job]] = {}

    def is_busy(self, partition: TopicPartition) -> bool:
        """Return whether batches of a partition are being recompressed, so that later ones have to wait."""
        return partition in self._queues

    def take(
        self,
        partition: TopicPartition,
        records: bytes,
        config: LogConfig,
        now_ms: int,
        done: Callable[[bytes | KafkaError], None],
    ) -> None:
        """Check and recompress batches after all earlier batches of the partition.

        Args:
            partition: the partition that the batches are for.
            records: the batches, as a copy of the request's bytes.
            config: the topic's configuration.
            now_ms: when the batches arrived.
            done: called with the batches to append, or with the error that rejects them.
        """
        queue = self._queues.setdefault(partition, deque())
        queue.append(_Job(records, config, now_ms, done))
        if len(queue) == 1:
            self._begin(partition, queue[0])

    def _begin(self, partition: TopicPartition, job: _Job) -> None:
        def recompress() -> bytes | KafkaError:
            try:
                return prepared(str(partition), job.records, job.config, job.now_ms)
            except KafkaError as error:
                return error.with_traceback(None)

        def finish(finished: asyncio.Future[bytes | KafkaError]) -> None:
            if not finished.cancelled():
                self._finish(partition, job, finished)

        self._loop.run_in_executor(self._threads, recompress).add_done_callback(finish)

    def _finish(self, partition: TopicPartition, job: _Job, finished: asyncio.Future[bytes | KafkaError]) -> None:
        queue = self._queues[partition]
        queue.popleft()
        try:
            try:
                result = finished.result()
            except Exception as error:  # noqa: BLE001 - the producer must get an answer
                log.error("%s: batches could not be compressed: %s", partition, error)
                result = CorruptDataError(f"{partition}: the batches could not be compressed: {error}")
            job.done(result)
        finally:
            if queue:
                self._begin(partition, queue[0])
            else:
                del self._queues[partition]

    def close(self) -> None:
        """Stop the threads and discard queued batches."""
        self._threads.shutdown(wait=False, cancel_futures=True)


MAINTAIN_S = 1.0
STANDSTILL_S = 1.0
"""A maintenance timer this late means that the loop did not run: the process was stopped or starved, or a callback
blocked the loop.
"""
MAINTAIN_BUSY_S = 0.05
"""Pause between slices of work while a compaction is in progress."""


class Node(GroupHost):
    """A broker behind its sockets: a group host that stores its own topics and journals."""

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
        """Create the state. `address` is the listening address."""
        self.data_dir = data_dir
        self.store = store
        self.live = live
        live.listeners.append(self._settings_changed)
        self.host, self.port = address
        self.listeners: Sequence[ListenerSocket] = ()
        self.waits = Purgatory(loop)
        places = SingleBrokerEndpoints(live, store, self.port)
        super().__init__(loop, live.groups, self._make_topics, places, self._open_journal, api_keys)
        self.id = self.config.node_id
        self.sessions = FetchSessions(self.config.fetch_sessions_max)
        self.producer_ids = ProducerIds(data_dir)
        self.slices = SliceQueue(loop)
        self.recompression = Recompression(loop)
        self.group_settings = GroupSettingsFile(
            data_dir, self.group_config, lambda event: self.groups.tell(event.group_id, event)
        )
        self.users = Users(data_dir)
        self.quotas = Quotas(data_dir)
        self.acls: AclStore | None = None
        if self.config.authorizer_class:
            self.acls = AclStore(data_dir)
            users = super_users(self.config.super_users)
            self.authorizer = StandardAuthorizer(self.acls.index, users, self.config.allow_if_no_acl)
        if self.config.is_audited:
            self.audit = AuditLog(data_dir / AUDIT_FILE, self.config.audit_file_bytes, self.config.audit_files)
            if isinstance(self.authorizer, StandardAuthorizer):
                self.authorizer.on_refused = self.audit.refused
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
        """The broker's current settings."""
        return self.live.broker

    def _settings_changed(self) -> None:
        self.store.set_defaults(self.live.log, self.config.producer_id_expiration_ms)

    def start(self) -> None:
        """Create the internal topics and start loading the coordinators."""
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
        """Return the topics created since a shard's journal was last loaded."""
        return self.store.unseen(index)

    def shard_loaded(self, index: int) -> None:
        """Record that a shard's journal holds no positions of earlier topics any more."""
        self.store.seen(index)
        super().shard_loaded(index)

    def find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Look up the start or end offsets of partitions in their logs."""
        positions, missing = [], []
        for topic, partition in work.partitions:
            log = self.store.get(topic, partition)
            if log is None:
                missing.append(f"{topic}-{partition}")
            else:
                positions.append(
                    Position(topic, partition, log.log_start_offset if work.from_begin else log.end_offset)
                )
        failure = f"there is no {missing[0]}" if missing else None
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, tuple(positions), failure))

    def own_settings(self, index: int) -> dict[str, GroupSettings]:
        """Return the group configurations of a shard's groups."""
        return self.group_settings.usable(lambda group: self.groups.index_of(group) == index)

    def client_lost(self, client: ClientSession) -> None:
        """Cancel a client's waiting requests, and tell the coordinators that its connection is closed."""
        for wait in client.waits:
            self.waits.cancel(wait)
        client.waits.clear()
        super().client_lost(client)

    def _maintain(self) -> None:
        late_s = self.loop.time() - self._maintenance_due
        if late_s >= STANDSTILL_S:
            log.warning("event loop blocked for at least %.1f s: clients may have timed out", late_s)
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
        """Answer all waiting requests, because the broker is shutting down."""
        self.waits.end_all()
        super().stop_waiting()
        self.transactions.close()

    def close(self) -> None:
        """Stop the threads and close the data folder."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        super().close()
        self.slices.close()
        self.recompression.close()
        self.store.close()
