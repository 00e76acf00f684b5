"""What the handlers of group requests work with, and the shards behind them: a broker, or a process without a store.

| a host has | for |
|---|---|
| topics, by name and id | commits and fetches of offsets; the coordinator's image |
| places | Metadata, DescribeCluster, FindCoordinator |
| groups, with their settings | everything that is asked of a group |
| transactions | offsets within them; None: none are taken here |
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from uuid import UUID

from kohort.broker.driver import LoopDriver
from kohort.broker.metrics import Metrics
from kohort.broker.net.faults import Faults
from kohort.broker.net.session import ClientSession
from kohort.broker.places import Places
from kohort.broker.pushing import Dividers, PushedConsumers
from kohort.broker.shards import GroupShards
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Event, GroupSettings, OffsetsFound, TopicImage
from kohort.groups.outcome import (
    Computation,
    Counted,
    DividePartitions,
    FindOffsets,
    Push,
    Question,
    Rebalanced,
    Work,
)
from kohort.ids import TopicPartition
from kohort.journal.protocol import Journal
from kohort.processes import ENDING_LOOKS_S, has_ended
from kohort.wire.cluster import ApiVersionsResponse

log = logging.getLogger("kohort.broker")

FEATURES = {"group.version": (0, 1), "metadata.version": (7, 33), "transaction.version": (0, 2)}
"""Features with their lowest and highest levels, the highest being in effect, as of Apache Kafka 4.4."""
WORKERS = 2
"""Threads for long work of the coordinator: it is bound by the interpreter lock, so more would gain nothing."""


class KnownTopic(Protocol):
    """A topic, as far as groups are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> UUID: ...
    @property
    def partitions(self) -> int: ...


class KnownTopics(Protocol):
    """The topics that there are, wherever they are kept.

    Attributes:
        sure: see `TopicImage`.
    """

    @property
    def sure(self) -> bool: ...
    @property
    def by_name(self) -> Mapping[str, KnownTopic]: ...
    @property
    def by_id(self) -> Mapping[UUID, KnownTopic]: ...

    def image(self) -> TopicImage:
        """All topics as the group coordinator sees them."""

    def refusal(self, name: str) -> KafkaError | None:
        """Why there can't be a topic of this name."""


class OffsetTransactions(Protocol):
    """Transactions, as far as they take in offsets of groups."""

    def add(self, transactional_id: str, producer: tuple[int, int], partitions: Sequence[TopicPartition]) -> ErrorCode:
        """Take partitions into a transaction."""

    def check_member(self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition) -> ErrorCode:
        """Whether a transaction has taken a partition in."""


class GroupHost:
    """The groups of one process, with what their handlers and shards need. All methods run on the loop.

    Attributes:
        api_keys: what ApiVersions names.
        consumers: those of the push protocol that are connected.
        on_rebalanced: called when a group has rebalanced, once that is durable; None: nobody asks.
        features: its features, with their lowest and highest levels.
        described_partitions_max: partitions that one answer describes (`max.request.partition.size.limit`).
        coordinator_id: what our own clients are told of where it has groups apart from the brokers, -1: it has not.
    """

    features: Mapping[str, tuple[int, int]] = FEATURES
    coordinator_id = -1
    described_partitions_max = 2_000

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        topics: Callable[[GroupShards], KnownTopics],
        places: Places,
        open_journal: Callable[[int], Journal],
        api_keys: Sequence[ApiVersionsResponse.ApiVersion],
    ) -> None:
        """`topics`: the topics, which tell these groups of changes. `open_journal`: where a shard's records are."""
        self.loop = loop
        self.group_config = config
        self.places = places
        self.api_keys = api_keys
        self._open_journal = open_journal
        self.transactions: OffsetTransactions | None = None
        self.metrics = Metrics()
        self.on_rebalanced: Callable[[Rebalanced], None] | None = None
        self.faults = Faults(loop)
        self._tokens = itertools.count(1)
        self.groups = GroupShards(self.token, self._make_shard)
        self.topics = topics(self.groups)
        self.consumers = PushedConsumers(self.groups, places, self.metrics, self.faults)
        self.groups.on_end = self.consumers.dismiss
        self._workers = ThreadPoolExecutor(WORKERS, "kohort-work")
        self._dividers = Dividers(config.push_rebalance_threads)
        self._work: set[asyncio.Future[Event]] = set()

    def token(self) -> int:
        """A number for one event, by which its reply finds its request."""
        return next(self._tokens)

    def _make_shard(self, index: int, term: int) -> Shard:
        return Shard(index, self._open_journal(index), term, self.group_config, LoopDriver(self.loop, self))

    # -- clients

    def lease_ms(self, client: ClientSession) -> int:
        """The lease that a client is told to keep; 0: none."""
        keeps_one = self.group_config.notice_disconnects != "off" and client.is_own
        return self.group_config.disconnect_lease_ms if keeps_one else 0

    def release(self, client: ClientSession) -> None:
        """Have a client's held heartbeats answered: another request came behind them."""
        self.groups.release(client)

    def client_lost(self, client: ClientSession) -> None:
        """Tell the coordinators that a client's connection is gone."""
        self.consumers.forget(client)
        if client.shards:
            noticed = client.lease_ms > 0 or self.group_config.notice_disconnects == "all"
            self._tell_lost(client, noticed, ENDING_LOOKS_S if noticed and client.process else ())

    def _tell_lost(self, client: ClientSession, noticed: bool, looks_s: tuple[float, ...]) -> None:
        """Tell the coordinators, once it is known whether the client's process has ended too or will not soon."""
        ended = bool(looks_s) and has_ended(client.process)
        if looks_s and not ended:
            self.loop.call_later(looks_s[0], self._tell_lost, client, noticed, looks_s[1:])
        else:
            self.groups.connection_lost(client, noticed=noticed, ended=ended)

    # -- what a shard needs

    def topic_image(self) -> TopicImage:
        """All topics now."""
        return self.topics.image()

    def unseen_topics(self, index: int) -> Sequence[str]:
        """Topics made since a shard's journal was last loaded; none where topics are told apart by their ids."""
        return ()

    def shard_loaded(self, index: int) -> None:
        """A shard has loaded: connections on which its consumers registered before say nothing any more."""
        self.consumers.dismiss(index)

    def shard_ended(self, index: int, error: Exception) -> None:
        """A shard was taken over, or can't be read: who registered there is told nothing any more."""
        self.consumers.dismiss(index)

    def own_settings(self, index: int) -> Mapping[str, GroupSettings]:
        """What groups of a shard have set for themselves."""
        return {}

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work in a thread, or ask; its event comes back on the loop."""
        if isinstance(work, FindOffsets):
            self.find_offsets(work, done)
            return
        if not isinstance(work, Computation):
            self.ask_outside(work, done)
            return
        from kohort.broker.work import run  # loads the assignors: only when first needed

        workers = self._dividers.of(work.group_id) if isinstance(work, DividePartitions) else self._workers
        future = self.loop.run_in_executor(workers, run, work)
        self._work.add(future)

        def finish(finished: asyncio.Future[Event]) -> None:
            self._work.discard(finished)
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(finish)

    def find_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """See whether topics that are not known are there by now; then go on. Where topics are `sure` they are not."""
        then()

    def ask_outside(self, question: Question, done: Callable[[Event], None]) -> None:
        """Ask whoever else knows of topics or groups. A host that has them all itself is never asked to."""
        log.error("there is nobody to ask: %s", question)

    def find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Begin or end of partitions, which a process without a store can't tell."""
        failure = "begin and end of partitions can't be told here: commit positions before consumers start"
        self.loop.call_soon(done, OffsetsFound(work.group_id, work.member_id, work.ticket, (), failure))

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""
        self.consumers.push(push)

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure of a group coordinator moved on."""
        self.metrics.take(note)
        if self.on_rebalanced is not None and isinstance(note, Rebalanced):
            self.on_rebalanced(note)

    # -- the end

    def stop_waiting(self) -> None:
        """Answer everyone who waits: the process ends."""
        for shard in self.groups:
            shard.close()

    def close(self) -> None:
        """Let go of the threads."""
        self.faults.clear()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._dividers.close()
