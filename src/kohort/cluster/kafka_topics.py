"""The topics of the Kafka cluster, asked for again and again, for the coordinators and for Metadata.

Each question goes to one broker, the next one each time: what two of them say is worth more than what one says twice
(`ToldTopics`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

from kohort.broker.places import Leader, Place
from kohort.broker.shards import GroupShards
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import Between, Cluster, Node
from kohort.cluster.told_topics import ASKED_MAX, KafkaTopic, Told, ToldTopics
from kohort.errors import ErrorCode, KafkaError, TimedOutError, error_for
from kohort.groups.events import TopicImage, TopicsChanged, TopicsDeleted
from kohort.groups.outcome import LookForTopics
from kohort.ids import NO_TOPIC_ID
from kohort.log.catalog import Names
from kohort.wire.cluster import MetadataRequest, MetadataResponse

log = logging.getLogger("kohort.cluster")

POLL_S = 1.0
"""A topic that is made, grows or goes is noticed so much later, at most."""
POLL_SHARE = 20
"""Asking takes one part in so many of the time at most: where there are very many topics it is done less often."""
FIND_AGAIN_S = 0.5
"""A topic that was found missing is not asked for again so soon: names that somebody makes up cost Kafka no more."""
ANSWER_MS = 3_000
"""A broker that does not answer for so long is passed over."""
IDS_SINCE = 10
"""Metadata from here on has topic ids."""
_NAMES_TOLD = 10
"""Names in a line of the log; there may be thousands."""
_VALID_NAMES = Names(())


class KafkaTopics:
    """What Kafka's brokers tell of topics: `KnownTopics` of a host, and what its places say of leaders.

    Attributes:
        brokers: Kafka's, as the last answer names them.
        cluster_id: of the Kafka cluster; empty until a broker has answered.
        controller_id: of the last answer; -1 until then.
        polls: answers so far; nothing is known before the first.
    """

    sure = False

    def __init__(self, client: AsyncClient, groups: GroupShards) -> None:
        """`client`: bootstrapped at Kafka's brokers. `groups`: these shards are told of changes."""
        self._client = client
        self._groups = groups
        self._told = ToldTopics()
        self._image = self._told.image()
        self._hidden: frozenset[str] = frozenset()
        self._asking = asyncio.Lock()
        self._soon = asyncio.Event()
        self._last_node = -1
        self._silent = False
        self._listed_at = float("-inf")
        self._missing: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._wants_all = False
        self._finding: list[Callable[[], None]] = []
        self._finder: asyncio.Task[None] | None = None
        self.brokers: tuple[Place, ...] = ()
        self.cluster_id = ""
        self.controller_id = -1
        self.polls = 0

    # -- what is known

    @property
    def by_name(self) -> Mapping[str, KafkaTopic]:
        """All topics by name."""
        return self._told.by_name

    @property
    def by_id(self) -> Mapping[UUID, KafkaTopic]:
        """The same by id."""
        return self._told.by_id

    def image(self) -> TopicImage:
        """All topics as the group coordinator sees them."""
        return self._image

    def refusal(self, name: str) -> KafkaError | None:
        """Why there can't be a topic of this name."""
        try:
            _VALID_NAMES.check(name)
        except KafkaError as refused:
            return refused.with_traceback(None)
        return None

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Who leads these partitions of a topic that is there."""
        leaders = self._told.by_name[topic].leaders
        return [leaders[number] for number in partitions]

    # -- asking

    async def poll(self) -> None:
        """Ask one broker, and tell the shards what has changed.

        Raises:
            KafkaError: no broker answers, or the cluster can't be used; the text says why.
        """
        async with self._asking:
            node, answer = await self._client.call(self._next(None))
            alone = len(answer.brokers) <= 1
            self._told.racks({broker.node_id: broker.rack for broker in answer.brokers})
            self._told.listed(node, told_by(answer), alone=alone)
            self.brokers = tuple(Place(each.node_id, each.host, each.port, each.rack) for each in answer.brokers)
            self.cluster_id = answer.cluster_id or self.cluster_id
            self.controller_id = answer.controller_id
            self.polls += 1
            self._listed_at = asyncio.get_running_loop().time()
            self._tell()
            if names := self._told.to_ask():
                named = await self._client.call(self._ask(node, names))
                self._told.answered(node, told_by(named), alone=alone)
                self._tell()
            self._refresh_brokers()

    async def watch(self) -> None:
        """Ask again and again, until cancelled. Brokers that don't answer are told of in the log, once."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.poll()
            except KafkaError as error:
                if not self._silent:
                    log.warning("topics are as Kafka told them last: %s", error)
                self._silent = True
            else:
                if self._silent:
                    log.info("Kafka tells of its topics again")
                self._silent = False
            pause = max(POLL_S, POLL_SHARE * (loop.time() - began)) if not self._silent else POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for loses a cancel in the turn in which it is set
                    await self._soon.wait()
            self._soon.clear()

    def poll_soon(self) -> None:
        """Have `watch` ask now: something is known to have changed."""
        self._soon.set()

    def look_for(self, question: LookForTopics) -> None:
        """A shard holds positions of topics that are not there as they are named: find out whether they are gone."""
        self._told.look_for(question.topics)
        self.poll_soon()

    def find(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """Ask for topics that are not known, now: they may have been made since the last poll.

        Args:
            names: of topics; those that were found missing a moment ago are not asked for again.
            ids: of topics; for them everything is asked for.
            then: called once, however it went; at once where nothing is to be asked.
        """
        loop = asyncio.get_running_loop()
        wanted = {name for name in names if self._missing.get(name, 0.0) <= loop.time()}
        if not wanted and (not ids or self._listed_at + FIND_AGAIN_S > loop.time()):
            then()
            return
        self._wanted |= wanted
        self._wants_all = self._wants_all or bool(ids)
        self._finding.append(then)
        if self._finder is None:
            self._finder = loop.create_task(self._find(), name="topics that are not known")

    async def _find(self) -> None:
        """Ask for what is wanted, until nothing is; what is wanted meanwhile is asked for together."""
        loop = asyncio.get_running_loop()
        while self._finding:
            names, everything, waiting = sorted(self._wanted)[:ASKED_MAX], self._wants_all, self._finding
            self._wanted, self._wants_all, self._finding = set(), False, []
            try:
                if everything:
                    await self.poll()
                else:
                    await self._poll_names(names)
            except KafkaError as error:
                log.info("topics that are not known here could not be asked for: %s", error)
            now = loop.time()
            self._missing = {name: until for name, until in self._missing.items() if until > now}
            self._missing.update((name, now + FIND_AGAIN_S) for name in names if name not in self.by_name)
            for then in waiting:
                then()
        self._finder = None

    async def close(self) -> None:
        """Ask for nothing any more."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.cancel()
            await asyncio.gather(finder, return_exceptions=True)

    async def _poll_names(self, names: Sequence[str]) -> None:
        async with self._asking:
            node, answer = await self._client.call(self._next(names))
            self._told.answered(node, told_by(answer), alone=len(answer.brokers) <= 1)
            self._tell()

    async def _next(self, names: Sequence[str] | None) -> tuple[int, MetadataResponse]:
        """These topics, or all, as the next broker that answers knows them."""
        cluster = self._client.cluster
        if not cluster.metadata.brokers:
            await self._find_brokers()
        nodes = sorted(cluster.metadata.brokers)
        later = [node for node in nodes if node > self._last_node]
        failure: KafkaError | None = None
        for node in [*later, *(node for node in nodes if node <= self._last_node)]:
            try:
                answer = await self._ask(node, names)
            except KafkaError as error:
                if error.code is ErrorCode.UNSUPPORTED_VERSION:
                    raise error_for(
                        error.code, f"Kafka 2.8 or newer is needed, which gives topics ids: {error}"
                    ) from error
                failure = error
                continue
            if not is_up(node, answer):
                failure = error_for(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node} has only just started")
                continue
            if any(not topic.error_code and topic.topic_id == NO_TOPIC_ID for topic in answer.topics):
                text = "the cluster gives its topics no ids: inter.broker.protocol.version must be 2.8 or newer"
                raise error_for(ErrorCode.UNSUPPORTED_VERSION, text)
            self._last_node = node
            return node, answer
        await self._find_brokers()  # others may have taken their place
        assert failure is not None
        raise failure

    async def _find_brokers(self) -> None:
        """Ask any broker that can be reached, those that the client was given too, which brokers there are."""
        cluster = self._client.cluster
        try:
            await cluster.runtime.within(cluster.ask_for_brokers(), ANSWER_MS, "brokers")
        except TimedOutError as error:
            raise TimedOutError(f"Kafka does not answer: {cluster.unreachable() or error}") from error

    async def _ask(self, node: int, names: Sequence[str] | None) -> MetadataResponse:
        """Ask one broker, which makes no topic for it."""
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        cluster: Cluster = self._client.cluster
        return await cluster.send(Between(request, lowest=IDS_SINCE), Node(node), timeout_ms=ANSWER_MS, lane="topics")

    def _refresh_brokers(self) -> None:
        """Have the client know the brokers that were named."""
        cluster = self._client.cluster
        known = {(broker.id, broker.address.host, broker.address.port) for broker in cluster.metadata.brokers.values()}
        if known != {(place.node_id, place.host, place.port) for place in self.brokers}:
            cluster.request_metadata()
            self._client.wake()

    def _tell(self) -> None:
        """Tell the shards what has changed: first what there is, then whose positions go."""
        before, self._image = self._image, self._told.image()
        deleted = self._told.take_deleted()
        if self._image is not before:
            self._groups.tell_all(TopicsChanged(self._image))
        if deleted:
            for name in deleted:
                again = "made again" if name in self._image.topics else "deleted"
                log.info("topic %s was %s: the offsets of the earlier one go", name, again)
            self._groups.tell_all(TopicsDeleted(deleted))
        hidden = frozenset(self._told.hidden)
        if more := sorted(hidden - self._hidden):
            log.warning(
                "%d topics may not be seen any more and are kept as they were (%s): the coordinator needs DESCRIBE",
                len(more),
                ", ".join(more[:_NAMES_TOLD]) + (", …" if len(more) > _NAMES_TOLD else ""),
            )
        self._hidden = hidden


def is_up(node: int, answer: MetadataResponse) -> bool:
    """Whether a broker knows that it is one of the cluster's.

    One that does not has not caught up yet, and what it does not know says nothing of what there is.
    """
    return any(broker.node_id == node for broker in answer.brokers)


def told_by(answer: MetadataResponse) -> list[Told]:
    """What an answer says of each topic that it names."""
    return [
        Told(
            topic.name,
            topic.topic_id,
            _leaders(topic.partitions),
            topic.is_internal,
            ErrorCode.of(topic.error_code),
        )
        for topic in answer.topics
        if topic.name is not None
    ]


def _leaders(partitions: Sequence[MetadataResponse.MetadataResponseTopic.MetadataResponsePartition]) -> list[Leader]:
    """By number; one that is not named has no leader, and no epoch that would count for newer."""
    found: list[Leader] = [(-1, -1, [], [])] * (max((each.partition_index for each in partitions), default=-1) + 1)
    for each in partitions:
        found[each.partition_index] = each.leader_id, each.leader_epoch, each.replica_nodes, each.isr_nodes
    return found
