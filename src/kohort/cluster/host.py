"""A coordinator over an Apache Kafka cluster: a host of groups whose topics, data and journals are Kafka's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol
from uuid import UUID

from kohort.broker.driver import LoopDriver
from kohort.broker.endpoints import Coordinated, Endpoint, Leader
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
from kohort.cluster.coordination.service import Door
from kohort.cluster.journal.kafka_journal import KafkaJournal, fitting
from kohort.cluster.journal.place import JournalSettings, JournalTopic
from kohort.cluster.shard_ownership import Tenures
from kohort.cluster.topic_view import KafkaTopics
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, KafkaError, RetriableError
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Counted, FindOffsets, ImportGroup, LookForTopics, Meter, Question
from kohort.groups.events import Event, GroupImported, OffsetsFound, OffsetToCommit, Position
from kohort.ids import TopicPartition
from kohort.wire.discovery import ApiVersionsResponse

# -- Where things are, as a coordinator over Kafka tells its clients
#
# | asked for | answer |
# |---|---|
# | nodes, leaders, the controller | Kafka's, with the addresses that its brokers advertise |
# | a group's coordinator | whom the map gives the group's shard |
# | a transactional id's coordinator | not here: Kafka's brokers are asked |
#
# Other clients than kohort's own ask any broker for a group's coordinator, and would end at Kafka's own. They are told
# of one node, this one, and refused when they ask it.

log = logging.getLogger("kohort.cluster")

TOLD_AGAIN_S = 60.0
"""A client that is refused asks again and again; the log says so this often."""


class Here(Protocol):
    """What is needed of the host."""

    me: Candidate
    door: Door
    topics: KafkaTopics
    groups: GroupShards


class ClusterPlaces:
    """See the module's text, and `broker.places.Places`."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._told_at = float("-inf")

    @property
    def cluster_id(self) -> str:
        """Kafka's."""
        return self._here.topics.cluster_id

    @property
    def controller_id(self) -> int:
        """Kafka's: what it alone may change is asked there."""
        return self._here.topics.controller_id

    def is_here(self, cluster_id: str, node_id: int) -> bool:
        """Whether this is the coordinator of this id, over Kafka's cluster of this id."""
        return (cluster_id, node_id) == (self.cluster_id, self._here.me.id)

    def nodes(self, connection: Connection) -> Sequence[Endpoint]:
        """Kafka's brokers; for clients that are not kohort's, this coordinator alone."""
        return self._here.topics.brokers if connection.client.is_own else (_place(self._here.me),)

    def coordinator(self, kind: Coordinated, key: str, connection: Connection) -> Endpoint | ErrorCode:
        """Whom the map gives a group's shard."""
        if not connection.client.is_own:
            self._tell_of(connection)
            return ErrorCode.INVALID_REQUEST
        placement = self._here.door.placement
        if kind is not Coordinated.GROUP or placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = self._here.groups.index_of(key)
        owner = placement.candidate(placement.owners[index]) if index < len(placement.owners) else None
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if owner is None else _place(owner)

    def pushing(self, group: str | None, connection: Connection) -> tuple[Endpoint | ErrorCode, Sequence[Endpoint]]:
        """Whom the map gives a group's shard, who asks for none the elected one; all coordinators. Source: spec 4.3."""
        placement = self._here.door.placement
        if placement is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        number = placement.elected
        if group is not None:
            index = self._here.groups.index_of(group)
            number = placement.owners[index] if index < len(placement.owners) else NOBODY
        found = placement.candidate(number)
        place = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else _place(found)
        return place, [_place(each) for each in placement.candidates]

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Kafka's."""
        return self._here.topics.leaders(topic, partitions)

    def _tell_of(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_AGAIN_S:
            self._told_at = now
            software = connection.client.software
            log.warning(
                "a client at %s (%s) was refused: only kohort's own clients can use coordinators that are apart from "
                "Kafka's brokers; others would ask a broker, and end at Kafka's own coordinator. Have it connect to "
                "Kafka, or use kohort's",
                connection.client.host,
                "of a name it does not tell" if software is None else " ".join(software),
            )


def _place(candidate: Candidate) -> Endpoint:
    return Endpoint(candidate.id, candidate.host, candidate.port, candidate.rack)


# -- Kafka's own groups, as the coordinators over it ask for them: what a group has there, and who is in it
#
# Nothing is changed at Kafka. A group's members are looked for before its offsets are read: what a member commits as it
# leaves is then among them.

ANSWER_MS = 5_000
"""Kafka's coordinator is given so long; then who asks is told to come back, and it is asked again later."""
ASKED_AT_A_TIME = 16
"""Groups that are asked for at a time: enough to hide the way there, and no storm when all come over at once."""
LOOK_S = 60.0
"""How often is looked whether groups that are here have members at Kafka."""
CLIENTS_TOLD = 3
"""Clients that are named of those that are at Kafka; there may be thousands."""
HOW_TO_GO_ON = (
    "stop them, or point them at this coordinator too: the group is taken over with its offsets when the last has left"
)
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class KafkaGroups:
    """What Kafka's own coordinator has of groups."""

    def __init__(self, client: AsyncClient, reserved: Collection[str] = ()) -> None:
        """`client`: bootstrapped at Kafka's brokers. `reserved`: groups by which the coordinators find each other."""
        self._client = client
        self._reserved = frozenset(reserved)
        self._room = asyncio.Semaphore(ASKED_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubled: frozenset[str] = frozenset()

    def ask(self, question: ImportGroup, done: Callable[[Event], None]) -> None:
        """Find out what there is of a group; `done` is called once, later, on the loop."""
        self._start(self._answer(question, done))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: ImportGroup, done: Callable[[Event], None]) -> None:
        if question.group_id in self._reserved:
            text = "the coordinators find each other by this group: choose another name"
            done(_refused(question, ErrorCode.INVALID_GROUP_ID, text))
            return
        async with self._room:
            cluster = self._client.cluster
            try:
                answer = await self._client.call(found_at_kafka(cluster, question))
            except KafkaError as error:
                answer = _failed(question, error)
            cluster.forget_coordinator(Coordinator(question.group_id))
        done(answer)

    async def watch(self, groups: GroupShards, note: Callable[[Counted], None]) -> None:
        """Look again and again whether groups that are here have members at Kafka too, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(groups, note)
            except KafkaError as error:
                log.info("it can't be seen whether groups have members at Kafka's own coordinator: %s", error)

    async def look(self, groups: GroupShards, note: Callable[[Counted], None]) -> None:
        """Warn of groups that are here and have members at Kafka: two coordinators give out the same partitions.

        Raises:
            KafkaError: Kafka does not answer.
        """
        listed = await self._client.call(list_groups(self._client.cluster, timeout_ms=ANSWER_MS))
        active = {each.group_id for each in listed if each.state not in _WITHOUT_MEMBERS}
        doubled = {group for group in active if groups.knows(group)}
        for group in sorted(doubled - self._doubled - self._reserved):
            log.warning(
                "group %s is here and has members at Kafka's own coordinator too: both give out the same partitions, "
                "and commits there are not seen here. Point all its members at this coordinator",
                group,
            )
            note(Counted(Meter.MEMBERS_ELSEWHERE, 1))
        self._doubled = frozenset(doubled)

    async def close(self) -> None:
        """What is being asked is not answered any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def found_at_kafka(cluster: Cluster, question: ImportGroup) -> GroupImported:
    """What Kafka's coordinator has of a group.

    Raises:
        KafkaError: it does not answer, or refuses.
    """
    group = question.group_id
    described = await describe_consumer_groups(cluster, [group], timeout_ms=ANSWER_MS)
    error = described.errors.get(group)
    if error is not None and error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise error
    if error is None and (members := described.values[group]).state not in _WITHOUT_MEMBERS:
        return _refused(question, ErrorCode.NON_EMPTY_GROUP, _members_there(members))
    found = await list_consumer_group_offsets(cluster, group, require_stable=True, timeout_ms=ANSWER_MS)
    for partition, unstable in sorted(found.errors.items()):
        text = f"Kafka's own coordinator does not tell the offset of {partition} yet: {unstable}"
        return GroupImported(group, question.ticket, (), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
    offsets = tuple(
        OffsetToCommit(partition.topic, partition.partition, each.offset, each.leader_epoch, each.metadata)
        for partition, each in found.values.items()
        if each is not None
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


def _refused(question: ImportGroup, code: ErrorCode, text: str) -> GroupImported:
    return GroupImported(question.group_id, question.ticket, (), code, text)


def _failed(question: ImportGroup, error: KafkaError) -> GroupImported:
    """No answer is no answer; a right that is missing is told to who asks, since waiting does not cure it."""
    if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        text = (
            "Kafka does not let the coordinator look at its own group of this name: give it READ and DESCRIBE on "
            "groups, or set group.import=off, with which groups begin without Kafka's offsets"
        )
        return _refused(question, error.code, text)
    waits = "" if isinstance(error, RetriableError) else ", which may need somebody"
    text = f"Kafka's own coordinator does not tell what it has of it{waits}: {error}"
    return _refused(question, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


FIND_MS = 10_000
"""For begin and end of partitions: a leader that moves is found again within this."""


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
