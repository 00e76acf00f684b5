"""One who owns a journal on Kafka: begins terms, reads, appends, and keeps what it is told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import TRANSACTION, Coordinator
from kohort.client.settings import ConnectionConfig, client_config
from kohort.cluster.journal.journal_partition import JournalSettings, JournalTopic
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.cluster.journal.topic import journal_topic
from kohort.groups.records import OffsetCommitted, Record

PATIENCE_S = 60
NOW = 1_700_000_000_000


def committed(offset: int, group: str = "g", partition: int = 0, metadata: str = "") -> OffsetCommitted:
    return OffsetCommitted(group, "t", partition, offset, -1, metadata, NOW)


class Holder:
    """An `Owner` with its journal, on the running loop.

    Attributes:
        records: what its newest load gave.
        reasons: why terms ended.
    """

    def __init__(self, journal: KafkaJournal) -> None:
        self.journal = journal
        self.term = 0
        self.records: list[Record] = []
        self.durable_at: dict[int, int] = {}
        self.reasons: list[Exception] = []
        self._signal = asyncio.Event()

    def on_append_durable(self, token: int, sent_ms: int) -> None:
        self.durable_at[token] = sent_ms
        self._signal.set()

    def on_journal_lost(self, reason: Exception) -> None:
        self.reasons.append(reason)
        self._signal.set()

    def on_records_available(self) -> None:
        self._signal.set()

    async def reported(self) -> None:
        """Wait until the journal says anything."""
        await asyncio.wait_for(self._signal.wait(), PATIENCE_S)
        self._signal.clear()

    async def load(self) -> list[Record]:
        """Begin a term; gives all records."""
        self.term += 1
        self.records = []
        for records in self.journal.begin_term(self.term, self):
            if records is None:
                await self.reported()
            else:
                self.records += records
        return self.records

    def send(self, *records: Record) -> int:
        return self.journal.append(self.term, records, NOW)

    async def append(self, *records: Record) -> int:
        """Append, and wait for it; gives when it was sent, or raises why the term ended."""
        return await self.outcome(self.send(*records))

    async def outcome(self, token: int) -> int:
        known = len(self.reasons)
        while token not in self.durable_at:
            if len(self.reasons) > known:
                raise self.reasons[-1]
            await self.reported()
        return self.durable_at[token]


@asynccontextmanager
async def client(servers: str, **settings: object) -> AsyncIterator[AsyncClient]:
    """A client of the cluster."""
    made = await AsyncClient.open(client_config(ConnectionConfig, servers, settings))
    try:
        yield made
    finally:
        await made.close()


class Cluster:
    """Coordinators on one journal's topic, each with a client of its own."""

    def __init__(self, servers: str, settings: JournalSettings) -> None:
        self.servers = servers
        self.settings = settings
        self._clients: list[AsyncClient] = []

    async def client(self) -> AsyncClient:
        made = await AsyncClient.open(client_config(ConnectionConfig, self.servers, {"reconnect_backoff_max_ms": 250}))
        self._clients.append(made)
        return made

    async def topic(self, settings: JournalSettings | None = None) -> JournalTopic:
        """The topic, made where it is not there."""
        link = await self.client()
        return await link.call(journal_topic(link.cluster, settings or self.settings))

    async def holder(
        self, index: int = 0, settings: JournalSettings | None = None, topic: JournalTopic | None = None
    ) -> Holder:
        chosen = settings or self.settings
        link = await self.client()
        if topic is None:
            topic = await link.call(journal_topic(link.cluster, chosen))
        return Holder(KafkaJournal(link, topic, index, chosen))

    async def stranger(self, index: int = 0, settings: JournalSettings | None = None) -> Holder:
        """One whom Kafka gives another producer id, as when it has forgotten the transactional id."""
        holder = await self.holder(index, settings)
        place = holder.journal._place
        place.transactional_id = f"{uuid.uuid4().hex}-{index}"
        place.to_coordinator = Coordinator(place.transactional_id, TRANSACTION)
        return holder

    async def close(self) -> None:
        for made in self._clients:
            await made.close()


@asynccontextmanager
async def cluster(servers: str, settings: JournalSettings) -> AsyncIterator[Cluster]:
    opened = Cluster(servers, settings)
    try:
        yield opened
    finally:
        await opened.close()


def groups_of(records: Sequence[Record]) -> list[int]:
    """The committed offsets among records, in order."""
    return [record.offset for record in records if isinstance(record, OffsetCommitted)]
