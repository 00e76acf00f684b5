"""A coordinator over an Apache Kafka cluster: a host of groups whose topics, data and journals are Kafka's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from kohort.broker.driver import LoopDriver
from kohort.broker.host import GroupHost
from kohort.broker.metrics import Histogram, Metrics
from kohort.broker.shards import GroupShards
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.topic_offsets import beginning_offsets, end_offsets
from kohort.cluster.doors.door import Door
from kohort.cluster.doors.placement import Candidate
from kohort.cluster.imports import KafkaGroups
from kohort.cluster.journal.kafka_journal import KafkaJournal, fitting
from kohort.cluster.journal.place import JournalSettings, JournalTopic
from kohort.cluster.kafka_topics import KafkaTopics
from kohort.cluster.places import ClusterPlaces
from kohort.cluster.tenures import Tenures
from kohort.coordinator.shard import Shard
from kohort.errors import KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, OffsetsFound, Position
from kohort.groups.outcome import FindOffsets, LookForTopics, Question
from kohort.ids import TopicPartition
from kohort.wire.cluster import ApiVersionsResponse

FIND_MS = 10_000
"""For begin and end of partitions: a leader that moves is found again within this."""
log = logging.getLogger("kohort.cluster")


class CoordinatorHost(GroupHost):
    """See the module's text.

    Attributes:
        me: this process among the coordinators; there once it has begun.
        door: where they find each other.
        tenures: the shards that are here.
        imports: what Kafka's own coordinator has of groups.
    """

    topics: KafkaTopics
    me: Candidate

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        client: AsyncClient,
        door: Door,
        reserved: Collection[str],
        keys: Sequence[ApiVersionsResponse.ApiVersion],
    ) -> None:
        """Args say what it stands on.

        Args:
            client: at Kafka's brokers.
            reserved: groups that are no clients'.
            keys: what ApiVersions names.
        """
        self.door = door
        self._client = client
        self._finding: set[asyncio.Task[None]] = set()
        self._journal: tuple[JournalTopic, JournalSettings] | None = None
        super().__init__(loop, fitting(config), self._make_topics, ClusterPlaces(self), self._shard_journal, keys)
        self.features = {}
        self.tenures = Tenures(loop, self.groups, door, self._open)
        self.imports = KafkaGroups(client, reserved)

    def begin(self, me: Candidate, topic: JournalTopic, settings: JournalSettings) -> None:
        """Say who this is and where the groups are. Shards begin with `tenures.begin`."""
        self.me = me
        self.coordinator_id = me.id
        self._journal = topic, settings
        self.groups.count = topic.partitions

    def _make_topics(self, groups: GroupShards) -> KafkaTopics:
        return KafkaTopics(self._client, groups)

    def _shard_journal(self, index: int) -> KafkaJournal:
        return self.tenures.open_journal(index)

    def _open(self, index: int) -> KafkaJournal:
        assert self._journal is not None
        topic, settings = self._journal
        return KafkaJournal(self._client, topic, index, settings)

    def _make_shard(self, index: int, term: int) -> Shard:
        driver = LoopDriver(self.loop, self)
        times = self.tenures.append.setdefault(index, Histogram())
        driver.metrics = _OfShard(self.metrics, times)
        return Shard(index, self._open_journal(index), term, self.group_config, driver)

    def shard_loaded(self, index: int) -> None:
        """See `Tenures`."""
        super().shard_loaded(index)
        self.tenures.loaded(index)

    def shard_ended(self, index: int, error: Exception) -> None:
        """See `Tenures`."""
        super().shard_ended(index, error)
        self.tenures.lost(index, error)

    def find_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """Ask Kafka for topics that may have been made a moment ago."""
        self.topics.find(names, ids, then)

    def ask_outside(self, question: Question, done: Callable[[Event], None]) -> None:
        """Ask Kafka."""
        if isinstance(question, LookForTopics):
            self.topics.look_for(question)
        else:
            self.imports.ask(question, done)

    def find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Ask Kafka; what it does not tell within the time is asked for again after the group's backoff."""
        task = self.loop.create_task(self._find_offsets(work, done))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)

    async def _find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        ask = beginning_offsets if work.from_begin else end_offsets
        failure, found = None, dict[TopicPartition, int]()
        try:
            found = await self._client.call(ask(self._client.cluster, work.partitions, FIND_MS))
        except KafkaError as error:
            failure = error.message
        positions = tuple(Position(part.topic, part.partition, offset) for part, offset in found.items())
        done(OffsetsFound(work.group_id, work.member_id, work.ticket, positions, failure))

    def stop_waiting(self) -> None:
        """Answer everyone who waits, and end all shards: the process ends."""
        super().stop_waiting()
        for task in self._finding:
            task.cancel()
        self.tenures.close()


class _Both:
    """Takes durations for all shards and for one of them."""

    def __init__(self, everywhere: Histogram, here: Histogram) -> None:
        self._everywhere = everywhere
        self._here = here

    def observe(self, seconds: float) -> None:
        """One more."""
        self._everywhere.observe(seconds)
        self._here.observe(seconds)


class _OfShard:
    """Where one shard's times go: to those of all, its appends to its own too. See `ShardMetrics`."""

    def __init__(self, everywhere: Metrics, append: Histogram) -> None:
        self._everywhere = everywhere
        self.queue = everywhere.queue
        self.step = everywhere.step
        self.append = _Both(everywhere.append, append)

    @property
    def events(self) -> int:
        """Stepped by all shards."""
        return self._everywhere.events

    @events.setter
    def events(self, count: int) -> None:
        self._everywhere.events = count
