"""One broker's state, put together: what the handlers see."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kohort.broker.config.group_settings import GroupSettingsFile
from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.config.quotas import Quotas
from kohort.broker.config.settings import BrokerConfig
from kohort.broker.config.users import Users
from kohort.broker.fetch_sessions import FetchSessions
from kohort.broker.metrics import Metrics
from kohort.broker.net.connection import Connection
from kohort.broker.net.faults import Faults
from kohort.broker.net.request import Request
from kohort.broker.shards import GroupShards
from kohort.broker.topics import OFFSETS_TOPIC, Topics
from kohort.broker.transactions.coordinator import TransactionHost, Transactions
from kohort.broker.transactions.producer_ids import ProducerIds
from kohort.broker.turns import Turns
from kohort.broker.waits import Waits
from kohort.coordinator.shard import GroupShard
from kohort.groups.events import Event, GroupSettings, TopicImage
from kohort.groups.liveness.lost import beat_ms, hold_max_ms
from kohort.groups.liveness.patience import Patience, classic_hold_ms, patience
from kohort.groups.outcome import Counted, Push, Rebalanced, Work
from kohort.journal.local import LogJournal
from kohort.log import LogStore
from kohort.processes import has_ended
from kohort.wire.cluster import ApiVersionsResponse

log = logging.getLogger("kohort.broker")

ENDING_LOOKS_S = (0.001, 0.005, 0.02, 0.1)
"""When a connection has ended: pauses between looks at its client's process, which closes its sockets before it is gone."""
MAINTAIN_S = 1.0
STANDSTILL_S = 1.0
"""So late nothing fires on a loop that runs: the process was stopped or starved, or something held the loop up."""
MAINTAIN_BUSY_S = 0.05
"""Pause between slices of work while a compaction is under way."""
OWN_SOFTWARE = "kohort"
"""What our own clients name themselves in ApiVersions."""
FEATURES = {"group.version": (0, 1), "metadata.version": (7, 30), "transaction.version": (0, 2)}
"""Features with their lowest and highest levels, the highest being in effect, as of Apache Kafka 4.3."""
WORKERS = 2
"""Threads for long work of the coordinator: it is bound by the interpreter lock, so more would gain nothing."""
JOURNAL_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "4194304", "compression.type": "producer"}
"""As Kafka makes its own internal topics, with smaller segments (Kafka: 100 MiB): only closed ones are compacted, and a
restart reads the rest whole."""


class Node:
    """The broker behind its sockets."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        store: LogStore,
        live: LiveSettings,
        api_keys: list[ApiVersionsResponse.ApiVersion],
    ) -> None:
        self.loop = loop
        self.data_dir = data_dir
        self.store = store
        self.live = live
        live.listeners.append(self._settings_changed)
        self.group_config = live.groups
        self.id = self.config.node_id
        self.host, self.port = "", 0
        self.metrics = Metrics()
        self.faults = Faults(loop)
        self.waits = Waits(loop)
        self.sessions = FetchSessions(self.config.fetch_sessions_max)
        self.producer_ids = ProducerIds(data_dir)
        self._tokens = itertools.count(1)
        self.groups = GroupShards(self.token)
        self.topics = Topics(store, self.config.num_partitions, self.waits, self.groups)
        self.turns = Turns(loop)
        self.group_settings = GroupSettingsFile(
            data_dir, self.group_config, lambda event: self.groups.of(event.group_id).tell(event)
        )
        self.users = Users(data_dir)
        self.quotas = Quotas(data_dir)
        self.features = FEATURES
        self.api_keys = api_keys
        self.transactions = Transactions(
            TransactionHost(
                loop, store, self.config, self.topics, self.groups, self.waits, self.producer_ids.take, self.token
            )
        )
        self._workers = ThreadPoolExecutor(WORKERS, "kohort-work")
        self._work: set[asyncio.Future[Event]] = set()
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
            self.topics.create(OFFSETS_TOPIC, self.config.offsets_partitions, JOURNAL_CONFIGS)
        shards = []
        for index in range(self.store.topics[OFFSETS_TOPIC].partitions):
            part = self.store.get(OFFSETS_TOPIC, index)
            assert part is not None
            term = part.leader_epoch + 1
            journal = LogJournal(part, older_values=self.config.older_values)
            shards.append(GroupShard(index, self.loop, journal, term, self.group_config, self))
        self.groups.set(shards)
        for shard in shards:
            shard.load()
        self.transactions.start()
        self._maintain()

    def token(self) -> int:
        """A number for one event, by which its reply finds its request."""
        return next(self._tokens)

    def topic_image(self) -> TopicImage:
        """All topics now."""
        return self.topics.image()

    def address_for(self, connection: Connection) -> tuple[str, int]:
        """The address that metadata gives this client: as configured, else the one it reached us at."""
        host = self.config.advertised_host or connection.local[0]
        return host, self.config.advertised_port or self.port

    def hold_ms(self, request: Request) -> int:
        """How long this client bears to wait for the reply to a classic heartbeat; 0 while others are under way."""
        connection = request.connection
        if len(connection.pending) > 1 or is_first(connection):
            return 0
        software = connection.software
        hold_ms = classic_hold_ms(self.group_config.notify_at_once, None if software is None else software[0])
        return self._bearable_ms(connection, hold_ms)

    def interval_ms(self, request: Request) -> int:
        """At which interval this client is known to send classic heartbeats, 0: not known."""
        return beat_ms(request.connection.lease_ms)

    def patience(self, request: Request) -> Patience:
        """How this client bears to wait for the reply to the heartbeat of a consumer group's member."""
        connection = request.connection
        software = connection.software
        found = patience(self.group_config.notify_at_once, None if software is None else software[0])
        return found._replace(hold_ms=0 if is_first(connection) else self._bearable_ms(connection, found.hold_ms))

    def is_own(self, connection: Connection) -> bool:
        """Whether kohort's own client is at the other end."""
        return connection.software is not None and connection.software[0] == OWN_SOFTWARE

    def lease_ms(self, software: str) -> int:
        """The lease that a client of this name is told to keep; 0: none."""
        keeps_one = self.group_config.notice_disconnects != "off" and software == OWN_SOFTWARE
        return self.group_config.disconnect_lease_ms if keeps_one else 0

    def unseen_topics(self, index: int) -> list[str]:
        """Topics made since a shard's journal was last loaded."""
        return self.store.unseen(index)

    def shard_loaded(self, index: int) -> None:
        """Note that what a shard's journal held of earlier topics is gone."""
        self.store.seen(index)

    def own_settings(self, index: int) -> dict[str, GroupSettings]:
        """What groups of a shard have set for themselves."""
        return self.group_settings.usable(lambda group: self.groups.index_of(group) == index)

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work in a thread; its event comes back on the loop."""
        from kohort.broker.work import run  # loads the assignors: only when first needed

        future = self.loop.run_in_executor(self._workers, run, work)
        self._work.add(future)

        def finish(finished: asyncio.Future[Event]) -> None:
            self._work.discard(finished)
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(finish)

    def push(self, push: Push) -> None:
        """Send a frame no request asked for; the push protocol's frames come with it."""
        log.error("nothing can be pushed to connection %d: no protocol here pushes", push.connection)

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure of a group coordinator moved on."""
        self.metrics.take(note)

    def connection_lost(self, connection: Connection) -> None:
        """Forget what a connection waited for, and tell the coordinators that it is gone."""
        for wait in connection.waits:
            self.waits.cancel(wait)
        connection.waits.clear()
        if connection.shards:
            noticed = connection.lease_ms > 0 or self.group_config.notice_disconnects == "all"
            self._tell_lost(connection, noticed, ENDING_LOOKS_S if noticed and connection.process else ())

    def _tell_lost(self, connection: Connection, noticed: bool, looks_s: tuple[float, ...]) -> None:
        """Tell the coordinators, once it is known whether the client's process has ended too or will not soon."""
        ended = bool(looks_s) and has_ended(connection.process)
        if looks_s and not ended:
            self.loop.call_later(looks_s[0], self._tell_lost, connection, noticed, looks_s[1:])
        else:
            self.groups.connection_lost(connection, noticed=noticed, ended=ended)

    @staticmethod
    def _bearable_ms(connection: Connection, hold_ms: int) -> int:
        return min(hold_ms, hold_max_ms(connection.lease_ms)) if connection.lease_ms else hold_ms

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
            self._maintenance_due = self.loop.time() + (MAINTAIN_BUSY_S if busy else MAINTAIN_S)
            self._maintenance = self.loop.call_at(self._maintenance_due, self._maintain)

    def stop_waiting(self) -> None:
        """Answer everyone who waits: the broker ends."""
        self.waits.end_all()
        for shard in self.groups:
            shard.close()
        self.transactions.close()

    def close(self) -> None:
        """Let go of the threads and the data folder."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        self.faults.clear()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self.turns.close()
        self.store.close()


def is_first(connection: Connection) -> bool:
    """Whether nothing of a group has come on a connection yet: who comes back on a new one has waited for an answer already."""
    return not connection.shards
