"""The group host of a coordinator over an Apache Kafka cluster: its topics, data and journals are in Kafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol
from uuid import UUID

from kohort.broker.driver import LoopDriver
from kohort.broker.endpoints import CoordinatorKind, Endpoint, Leader
from kohort.broker.host import GroupHost
from kohort.broker.metrics import Histogram, Metrics
from kohort.broker.server.connection import Connection
from kohort.broker.shards import GroupShards
from kohort.client.admin.group_offsets import list_consumer_group_offsets
from kohort.client.admin.groups import describe_consumer_groups, list_groups
from kohort.client.admin.values import GroupDescription
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import Cluster, Coordinator
from kohort.client.offsets import beginning_offsets, end_offsets
from kohort.cluster.coordination.placement import NOBODY, Candidate
from kohort.cluster.coordination.service import CoordinationService
from kohort.cluster.journal.journal_partition import JournalSettings, JournalTopic
from kohort.cluster.journal.kafka_journal import KafkaJournal, cap_to_journal_limits
from kohort.cluster.shard_ownership import ShardOwnership
from kohort.cluster.topic_view import KafkaTopics
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, KafkaError, RetriableError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import (
    CoordinatorMeter,
    CounterIncreased,
    FindDeletedTopics,
    FindOffsets,
    ImportGroupOffsets,
    Lookup,
)
from kohort.groups.events import Event, GroupImported, OffsetsFound, OffsetToCommit, PushPosition
from kohort.ids import TopicPartition
from kohort.wire.discovery import ApiVersionsResponse

# -- Endpoints of the cluster in responses to clients
#
# The answers:
#
# | a client looks up | answer |
# |---|---|
# | nodes, leaders, the controller | Kafka's, with the addresses that its brokers advertise |
# | a group's coordinator | the coordinator that owns the group's shard in the placement |
# | a transactional id's coordinator | not available here: clients look it up at Kafka's brokers |
#
# Clients other than kohort's own never get these answers: `other_clients.py` refuses them.

log = logging.getLogger("kohort.cluster")


class CoordinatorView(Protocol):
    """The interface to a coordinator's host that `ClusterEndpoints` reads: identity, placement and brokers."""

    me: Candidate
    coordination: CoordinationService
    topics: KafkaTopics
    groups: GroupShards


class ClusterEndpoints:
    """Endpoints of Kafka's brokers and of the coordinators, for responses to clients."""

    def __init__(self, here: CoordinatorView) -> None:
        self._here = here

    @property
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        return self._here.topics.cluster_id

    @property
    def controller_id(self) -> int:
        """The id of Kafka's controller: clients send it the requests that only the controller handles."""
        return self._here.topics.controller_id

    def is_this_node(self, cluster_id: str, node_id: int) -> bool:
        """Return whether this is the coordinator `node_id` over the Kafka cluster `cluster_id`."""
        return (cluster_id, node_id) == (self.cluster_id, self._here.me.id)

    def nodes(self, connection: Connection) -> Sequence[Endpoint]:
        """Return the brokers of the Kafka cluster. The coordinators are not among them."""
        return self._here.topics.brokers

    def coordinator(self, kind: CoordinatorKind, key: str, connection: Connection) -> Endpoint | ErrorCode:
        """Return the coordinator that owns a group's shard in the placement."""
        placement = self._here.coordination.placement
        if kind is not CoordinatorKind.GROUP or placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = self._here.groups.shard_index_of(key)
        owner = placement.candidate(placement.owners[index]) if index < len(placement.owners) else None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if owner is None else _place(owner)

    def push_coordinators(
        self, group: str | None, connection: Connection
    ) -> tuple[Endpoint | ErrorCode, Sequence[Endpoint]]:
        """Return the owner of a group's shard, or the leader where `group` is None; and all coordinators.

        Source: spec 4.3.
        """
        placement = self._here.coordination.placement
        if placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        number = placement.elected
        if group is not None:
            index = self._here.groups.shard_index_of(group)
            number = placement.owners[index] if index < len(placement.owners) else NOBODY
        owner = placement.candidate(number)
        place = ErrorCode.COORDINATOR_NOT_AVAILABLE if owner is None else _place(owner)
        return place, [_place(candidate) for candidate in placement.candidates]

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Return the leaders of partitions of a Kafka topic."""
        return self._here.topics.leaders(topic, partitions)


def _place(candidate: Candidate) -> Endpoint:
    return Endpoint(candidate.id, candidate.host, candidate.port, candidate.rack)


# -- Import of groups from Kafka's own coordinator: their members and committed offsets
#
# Nothing is changed in Kafka. The members are described before the offsets are read. Offsets that a member commits
# while it leaves are therefore included.

ANSWER_MS = 5_000
"""Request timeout for Kafka's coordinator. After it the client gets a retriable error, and the import is retried."""
ASKED_AT_A_TIME = 16
"""Groups imported concurrently: enough to hide the round trip, and no storm when all groups move at once."""
LOOK_S = 60.0
"""Interval between checks whether groups that are served here have members at Kafka's own coordinator."""
CLIENTS_TOLD = 3
"""Clients at Kafka's coordinator that a message names; there may be thousands."""
HOW_TO_GO_ON = (
    "stop them, or point them at this coordinator too: the group is taken over with its offsets when the last has left"
)
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class KafkaGroups:
    """Kafka's own group coordinator: groups' offsets are imported from it, and clients that still use it are logged."""

    def __init__(self, client: AsyncClient, reserved: Collection[str] = ()) -> None:
        """Use `client`, bootstrapped at Kafka's brokers; refuse the `reserved` groups, in which coordinators meet."""
        self._client = client
        self._reserved = frozenset(reserved)
        self._room = asyncio.Semaphore(ASKED_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubled: frozenset[str] = frozenset()

    def import_offsets(self, question: ImportGroupOffsets, done: Callable[[Event], None]) -> None:
        """Import a group's offsets from Kafka's own coordinator; `done` is called once, later, on the loop."""
        self._start(self._answer_import(question, done))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_import(self, question: ImportGroupOffsets, done: Callable[[Event], None]) -> None:
        if question.group_id in self._reserved:
            text = "the coordinators use this group to elect their leader: choose another name"
            done(_refused(question, ErrorCode.INVALID_GROUP_ID, text))
            return
        async with self._room:
            cluster = self._client.cluster
            try:
                answer = await self._client.call(read_group_at_kafka(cluster, question))
            except KafkaError as error:
                answer = _import_failed(question, error)
            cluster.forget_coordinator(Coordinator(question.group_id))
        done(answer)

    async def poll_imported_groups(self, groups: GroupShards, note: Callable[[CounterIncreased], None]) -> None:
        """Check once a minute whether groups that are served here have members at Kafka too, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.warn_of_other_members(groups, note)
            except KafkaError as error:
                log.info("can't check whether groups have members at Kafka's own coordinator, retrying: %s", error)

    async def warn_of_other_members(self, groups: GroupShards, note: Callable[[CounterIncreased], None]) -> None:
        """Log a warning for each group that is served here and has members at Kafka's own coordinator.

        Both coordinators assign the same partitions of such a group.

        Raises:
            KafkaError: Kafka does not answer.
        """
        listed = await self._client.call(list_groups(self._client.cluster, timeout_ms=ANSWER_MS))
        active = {listing.group_id for listing in listed if listing.state not in _WITHOUT_MEMBERS}
        doubled = {group for group in active if groups.has_group(group)}
        for group in sorted(doubled - self._doubled - self._reserved):
            log.warning(
                "[group %s] has members at Kafka's own coordinator too: both coordinators assign the same partitions, "
                "and offsets committed there are not seen here. Point all its members at this coordinator",
                group,
            )
            note(CounterIncreased(CoordinatorMeter.MEMBERS_ELSEWHERE, 1))
        self._doubled = frozenset(doubled)

    async def close(self) -> None:
        """Cancel the imports that are under way, without calling their `done`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def read_group_at_kafka(cluster: Cluster, question: ImportGroupOffsets) -> GroupImported:
    """Read a group's state and committed offsets from Kafka's own coordinator.

    Raises:
        KafkaError: Kafka's coordinator does not answer, or refuses.
    """
    group = question.group_id
    described = await describe_consumer_groups(cluster, [group], timeout_ms=ANSWER_MS)
    error = described.errors.get(group)
    if error is not None and error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise error
    if error is None and (members := described.values[group]).state not in _WITHOUT_MEMBERS:
        return _refused(question, ErrorCode.NON_EMPTY_GROUP, _members_there(members))
    committed = await list_consumer_group_offsets(cluster, group, require_stable=True, timeout_ms=ANSWER_MS)
    for partition, unstable in sorted(committed.errors.items()):
        text = f"Kafka's own coordinator does not return the offset of {partition} yet: {unstable}"
        return GroupImported(group, question.ticket, (), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
    offsets = tuple(
        OffsetToCommit(partition.topic, partition.partition, offset.offset, offset.leader_epoch, offset.metadata)
        for partition, offset in committed.values.items()
        if offset is not None
    )
    if offsets and error is not None:
        text = "Kafka's own coordinator has it as a group of another kind (streams), which is not served here"
        return _refused(question, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    return GroupImported(group, question.ticket, offsets)


def _members_there(group: GroupDescription) -> str:
    clients = sorted({f"{member.client_id} at {member.host.lstrip('/')}" for member in group.members})
    shown = ", ".join(clients[:CLIENTS_TOLD]) + (", …" if len(clients) > CLIENTS_TOLD else "")
    count = len(group.members)
    return f"it has {count} member{'s' * (count != 1)} at Kafka's own coordinator ({shown}): {HOW_TO_GO_ON}"


def _refused(question: ImportGroupOffsets, code: ErrorCode, text: str) -> GroupImported:
    return GroupImported(question.group_id, question.ticket, (), code, text)


def _import_failed(question: ImportGroupOffsets, error: KafkaError) -> GroupImported:
    """Return the event that an import failed; the error is retriable unless a permission is missing."""
    if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        text = (
            "Kafka does not let the coordinator look at its own group of this name: give it READ and DESCRIBE on "
            "groups, or set group.import=off, with which groups begin without Kafka's offsets"
        )
        return _refused(question, error.code, text)
    waits = "" if isinstance(error, RetriableError) else ", which may need an operator"
    text = f"the group cannot be read from Kafka's own coordinator{waits}: {error}"
    return _refused(question, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


FIND_MS = 10_000
"""Timeout for a look-up of partitions' start and end offsets: long enough to find a leader that moves."""


class CoordinatorHost(GroupHost):
    """The group host of one coordinator over Kafka.

    Attributes:
        me: this process as a candidate; set by `set_identity`.
        coordination: the service through which coordinators elect a leader and share the placement.
        ownership: the shards that this coordinator owns.
        imports: the groups of Kafka's own coordinator.
    """

    topics: KafkaTopics
    me: Candidate

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        client: AsyncClient,
        coordination: CoordinationService,
        reserved: Collection[str],
        keys: Sequence[ApiVersionsResponse.ApiVersion],
    ) -> None:
        """Create a host that has no shards yet.

        Args:
            loop: the event loop on which all of it runs.
            config: the settings of groups.
            client: a client of Kafka's brokers.
            coordination: the service through which coordinators elect a leader and share the placement.
            reserved: groups that clients may not use.
            keys: the APIs that the ApiVersions response lists.
        """
        self.coordination = coordination
        self._client = client
        self._finding: set[asyncio.Task[None]] = set()
        self._journal: tuple[JournalTopic, JournalSettings] | None = None
        super().__init__(
            loop, cap_to_journal_limits(config), self._make_topics, ClusterEndpoints(self), self._shard_journal, keys
        )
        self.features = {}
        self.ownership = ShardOwnership(loop, self.groups, coordination, self._open)
        self.imports = KafkaGroups(client, reserved)

    def set_identity(self, me: Candidate, topic: JournalTopic, settings: JournalSettings) -> None:
        """Set this coordinator's identity and the journal topic. Shards begin with `ownership.begin`."""
        self.me = me
        self.coordinator_id = me.id
        self._journal = topic, settings
        self.groups.count = topic.partitions

    def _make_topics(self, groups: GroupShards) -> KafkaTopics:
        return KafkaTopics(self._client, groups)

    def _shard_journal(self, index: int) -> KafkaJournal:
        return self.ownership.open_journal(index)

    def _open(self, index: int) -> KafkaJournal:
        assert self._journal is not None
        topic, settings = self._journal
        return KafkaJournal(self._client, topic, index, settings)

    def _make_shard(self, index: int, term: int) -> Shard:
        driver = LoopDriver(self.loop, self)
        times = self.ownership.append.setdefault(index, Histogram())
        driver.metrics = _OfShard(self.metrics, times)
        return Shard(index, self._open_journal(index), term, self.group_config, driver)

    def handle_shard_loaded(self, index: int) -> None:
        """Record that a shard has loaded."""
        super().handle_shard_loaded(index)
        self.ownership.record_shard_loaded(index)

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Record that a shard has ended by itself; after a fence it may begin again."""
        super().handle_shard_ended(index, error)
        self.ownership.record_ended_shard(index, error)

    def lookup_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """Request metadata from Kafka for topics that may have been created a moment ago."""
        self.topics.request_topics(names, ids, then)

    def lookup_in_kafka_cluster(self, question: Lookup, done: Callable[[Event], None]) -> None:
        """Look up topics in Kafka, or import a group's offsets from Kafka's own coordinator."""
        if isinstance(question, FindDeletedTopics):
            self.topics.find_deleted_topics(question)
        else:
            self.imports.import_offsets(question, done)

    def lookup_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        """Look up offsets with ListOffsets at Kafka's brokers; after a timeout the group asks again."""
        task = self.loop.create_task(self._find_offsets(work, done))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)

    async def _find_offsets(self, work: FindOffsets, done: Callable[[Event], None]) -> None:
        ask = beginning_offsets if work.from_begin else end_offsets
        failure, offsets = None, dict[TopicPartition, int]()
        try:
            offsets = await self._client.call(ask(self._client.cluster, work.partitions, FIND_MS))
        except KafkaError as error:
            failure = error.message
        positions = tuple(PushPosition(part.topic, part.partition, offset) for part, offset in offsets.items())
        done(OffsetsFound(work.group_id, work.member_id, work.ticket, positions, failure))

    def answer_waiting_requests(self) -> None:
        """Answer all waiting requests and end all shards, because the process ends."""
        super().answer_waiting_requests()
        for task in self._finding:
            task.cancel()
        self.ownership.close()


class _Both:
    """A histogram that records each duration in two others: that of all shards, and that of one shard."""

    def __init__(self, everywhere: Histogram, here: Histogram) -> None:
        self._everywhere = everywhere
        self._here = here

    def observe(self, seconds: float) -> None:
        """Record one duration in both histograms."""
        self._everywhere.observe(seconds)
        self._here.observe(seconds)


class _OfShard:
    """One shard's view of the process's metrics: its durations of appends are also recorded for the shard alone."""

    def __init__(self, everywhere: Metrics, append: Histogram) -> None:
        self._everywhere = everywhere
        self.queue = everywhere.queue
        self.step = everywhere.step
        self.append = _Both(everywhere.append, append)

    @property
    def events(self) -> int:
        """The number of events that all shards have processed."""
        return self._everywhere.events

    @events.setter
    def events(self, count: int) -> None:
        self._everywhere.events = count
