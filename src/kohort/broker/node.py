"""The state of one broker: the object that request handlers work with."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kohort.broker.audit import FILE as AUDIT_FILE
from kohort.broker.audit import AuditLog
from kohort.broker.authorization import StandardAuthorizer
from kohort.broker.config.acl_store import AclStore
from kohort.broker.config.group_settings import GroupSettingsFile
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.quotas import StoredQuotas
from kohort.broker.config.settings import BrokerConfig, super_users
from kohort.broker.config.users import Users
from kohort.broker.driver import clock_with_sleep_ms
from kohort.broker.endpoints import SingleBrokerEndpoints
from kohort.broker.fetch_sessions import FetchSessions
from kohort.broker.host import GroupHost
from kohort.broker.purgatory import Purgatory
from kohort.broker.record_workers import RecordWorkers
from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.server.connection import ClientSession
from kohort.broker.server.throttling import Throttling
from kohort.broker.shards import GroupShards
from kohort.broker.slices import SliceQueue
from kohort.broker.topics import OFFSETS_TOPIC, Topics
from kohort.broker.transactions.coordinator import ProducerIds, TransactionHost, Transactions
from kohort.groups.effects import FindOffsets
from kohort.groups.events import Event, GroupSettings, OffsetsFound, PushPosition
from kohort.io.age_clock import PATIENCE_MS, AgeClock
from kohort.io.log_throttle import IntervalThrottle
from kohort.journal.local import LogJournal
from kohort.log import LogStore, PartitionLog
from kohort.wire.discovery import ApiVersionsResponse

log = logging.getLogger("kohort.broker")

MAINTAIN_S = 1.0
LOOP_PAUSE_S = 1.0
"""A maintenance timer this late means that the loop did not run: the process was stopped or starved, or a callback
blocked the loop.
"""
STREAMS_REFUSAL_LINE_S = 3600.0
"""The shortest time between two lines about the same group: Kafka Streams may replace its threads without end."""
MAINTAIN_BUSY_S = 0.05
"""Pause between slices of work while a compaction is in progress."""


def _clocks_ms() -> tuple[int, int]:
    return time.time_ns() // 1_000_000, clock_with_sleep_ms()


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
        """Open the data folder and create the broker's state. `address` is the listening address."""
        self.data_dir = data_dir
        self.store = store
        self.live = live
        live.listeners.append(self._settings_changed)
        self.host, self.port = address
        self.listeners: Sequence[ListenerSocket] = ()
        self.waits = Purgatory(loop)
        endpoints = SingleBrokerEndpoints(live, store, self.port)
        super().__init__(loop, live.groups, self._make_topics, endpoints, self._open_journal, api_keys)
        self.id = self.config.node_id
        self._ages = AgeClock(*_clocks_ms())
        self.sessions = FetchSessions(self.config.fetch_sessions_max)
        self.producer_ids = ProducerIds(data_dir)
        self.slices = SliceQueue(loop)
        self.records = RecordWorkers(loop)
        store.compact_in = self.records.run_compaction_step
        self.group_settings = GroupSettingsFile(
            data_dir, self.group_config, lambda event: self.groups.queue_event(event.group_id, event)
        )
        self.users = Users(data_dir)
        self.quotas = StoredQuotas(data_dir)
        window_ms = 1000 * self.config.quota_window_s
        burst_s = self.config.mutation_windows * self.config.mutation_window_s
        self.throttling: Throttling = Throttling(
            self.quotas, self.config.quota_windows, window_ms, mutation_burst_s=burst_s
        )
        self.consumers.throttling = self.throttling
        self.acls: AclStore | None = None
        if self.config.authorizer_class:
            self.acls = AclStore(data_dir)
            users = super_users(self.config.super_users)
            self.authorizer = StandardAuthorizer(self.acls.index, users, self.config.allow_if_no_acl)
        if self.config.is_audited:
            self.open_audit_log()
        self.transactions = Transactions(
            TransactionHost(
                loop,
                store,
                self.config,
                self.topics,
                self.groups,
                self.waits,
                self.producer_ids.allocate,
                self.next_request_id,
                self.age_ms,
            )
        )
        self.streams_refusals = IntervalThrottle(STREAMS_REFUSAL_LINE_S)
        self.described_partitions_max = self.config.described_partitions_max
        self._maintenance: asyncio.TimerHandle | None = None
        self._maintenance_due = math.inf

    def open_audit_log(self) -> None:
        """Write an audit log from now on, if there is none yet."""
        if self.audit is not None:
            return
        self.audit = AuditLog(self.data_dir / AUDIT_FILE, self.config.audit_file_bytes, self.config.audit_files)
        if isinstance(self.authorizer, StandardAuthorizer):
            self.authorizer.on_refused = self.audit.record_refusal

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
            self.groups.take_over_shard(index, self._journal_log(index).leader_epoch + 1)
        self.transactions.start()
        self._maintain()

    def _open_journal(self, index: int) -> LogJournal:
        serves_older_values = self.config.serves_older_values
        return LogJournal(
            self._journal_log(index), serves_older_values=serves_older_values, on_append=self.waits.on_append_after_step
        )

    def _journal_log(self, index: int) -> PartitionLog:
        part = self.store.get(OFFSETS_TOPIC, index)
        assert part is not None
        return part

    def _make_topics(self, groups: GroupShards) -> Topics:
        return Topics(self.store, self.config.num_partitions, self.waits, groups)

    def topics_since_load(self, index: int) -> list[str]:
        """Return the topics created since a shard's journal was last loaded, from the catalog."""
        return self.store.topics_created_since_load(index)

    def handle_shard_loaded(self, index: int) -> None:
        """Record durably that a shard's journal has no offsets of earlier topics with the names of existing ones."""
        self.store.record_topics_cleaned(index)
        super().handle_shard_loaded(index)

    def lookup_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Look up the start or end offsets of partitions in their logs."""
        positions, missing = [], []
        for topic, partition in work.partitions:
            log = self.store.get(topic, partition)
            if log is None:
                missing.append(f"{topic}-{partition}")
            else:
                positions.append(
                    PushPosition(topic, partition, log.log_start_offset if work.from_begin else log.end_offset)
                )
        failure = f"there is no {missing[0]}" if missing else None
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, tuple(positions), failure))

    def group_settings_of_shard(self, index: int) -> dict[str, GroupSettings]:
        """Return the settings of single groups (not the broker's defaults) for a shard's groups, by group id."""
        return self.group_settings.valid_group_settings(lambda group: self.groups.shard_index_of(group) == index)

    def on_client_disconnected(self, client: ClientSession) -> None:
        """Cancel a client's waiting requests, and tell the coordinators that its connection is closed."""
        for wait in client.waits:
            self.waits.cancel(wait)
        client.waits.clear()
        super().on_client_disconnected(client)

    def age_ms(self) -> int:
        """Return the time, in ms, by which records, offsets and transactional ids expire.

        It follows a wall clock that was set forward only after a while (`kohort.io.age_clock`).
        """
        held_back = self._ages.held_back_ms
        now_ms = self._ages.now_ms(*_clocks_ms())
        if self._ages.held_back_ms and not held_back:
            log.warning(
                "the clock was set forward by %.1f h: for %d minutes nothing is deleted by its new time; set it right "
                "if it is wrong",
                self._ages.held_back_ms / 3_600_000,
                PATIENCE_MS // 60_000,
            )
        return now_ms

    def _maintain(self) -> None:
        late_s = self.loop.time() - self._maintenance_due
        if late_s >= LOOP_PAUSE_S:
            log.warning("the broker's event loop was blocked for at least %.1f s: clients may have timed out", late_s)
        busy = False
        try:
            busy = self.store.run_maintenance_slice(self.age_ms())
        except OSError as error:
            log.error(
                "retention, compaction or flushing in the data folder failed, the next round tries again: %s", error
            )
        finally:
            self._maintenance_due = self.loop.time() + (
                MAINTAIN_BUSY_S if busy else min(MAINTAIN_S, self.store.maintenance_interval_ms / 1000)
            )
            self._maintenance = self.loop.call_at(self._maintenance_due, self._maintain)

    def answer_waiting_requests(self) -> None:
        """Answer all waiting requests, because the broker is shutting down."""
        self.waits.end_all()
        super().answer_waiting_requests()
        self.transactions.close()

    def close(self) -> None:
        """Stop the threads and close the data folder."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        super().close()
        self.slices.close()
        self.records.close()
        self.store.close()
