"""The topics of the Kafka cluster, asked for again and again, for the coordinators and for Metadata.

Each question goes to one broker, the next one each time: what two of them say is worth more than what one says twice
(`ToldTopics`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from kohort.broker.endpoints import Endpoint, Leader
from kohort.broker.shards import GroupShards
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.cluster import Between, BrokerById, Cluster
from kohort.errors import ErrorCode, KafkaError, TimedOutError, error_for
from kohort.groups.effects import LookForTopics
from kohort.groups.events import Topic, TopicImage, TopicsChanged, TopicsDeleted
from kohort.ids import NO_TOPIC_ID, TopicId
from kohort.log.catalog import Names
from kohort.wire.discovery import MetadataRequest, MetadataResponse

# -- Which topics there are, by what brokers of Kafka tell one after the other. Pure: answers in, changes out
#
# Offsets of a deleted topic go, and come back from nowhere, so that a topic counts as deleted only on evidence. A list
# that leaves it out is none: a broker that has just started lags behind the controller, and a right that was taken away
# hides a topic.
#
# | a broker says of a topic | what is concluded |
# |---|---|
# | the id that is known | it is there; fewer partitions or an older leader epoch are an old answer |
# | an id that nobody has told before, of a name that is not known | it is there |
# | another id, or by name that it has none | two answers, of different nodes where there are: made again, or deleted |
# | an id that was replaced | nothing: the broker lags |
# | by name that it may not be seen, or another error | nothing: it is kept as it was |
# | nothing | nothing: it is asked for by name |
#
# A shard that loads asks too: its positions name the ids of their topics (`LookForTopics`), and what was deleted while
# no coordinator looked is concluded in the same way.

ANSWERS_WANTED = 2
"""So many answers must say that a topic is gone, or another one, before its offsets go."""
ASKED_MAX = 1_000
"""Topics that are asked for by name at a time: bounds one request. The others have their turn after them."""
FORMER_IDS_MAX = 100_000
"""Ids of earlier topics that are remembered, the newest: brokers lag for seconds, so this is far more than needed."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic as it was told last.

    Attributes:
        partitions: how many.
        leaders: of each partition.
        image: the topic as the group coordinator sees it.
    """

    name: str
    id: TopicId
    partitions: int
    leaders: tuple[Leader, ...]
    image: Topic
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What one answer says of one topic.

    Attributes:
        error: NONE, or why there is nothing to say.
        leaders: of each partition, by number.
    """

    name: str
    id: TopicId = NO_TOPIC_ID
    leaders: Sequence[Leader] = ()
    is_internal: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class Doubt:
    """What was told against what is known of a topic, or since a shard has asked for it.

    Attributes:
        says: the id that was told last, None: that there is no such topic.
        nodes: who has told that.
        answers: how often.
        alone: each of them knew of no other node.
        recorded: ids of the topic in a shard's positions; NO_TOPIC_ID stands for any.
    """

    says: TopicId | None = None
    nodes: set[int] = field(default_factory=set)
    answers: int = 0
    alone: bool = True
    recorded: set[TopicId] = field(default_factory=set)

    def take(self, says: TopicId | None, node: int, *, alone: bool) -> bool:
        """One answer; whether enough agree now."""
        if self.answers and says != self.says:
            self.forget()
        self.says = says
        self.nodes.add(node)
        self.answers += 1
        self.alone = self.alone and alone
        return len(self.nodes) >= ANSWERS_WANTED or (self.alone and self.answers >= ANSWERS_WANTED)

    def forget(self) -> None:
        """Nothing was told."""
        self.nodes.clear()
        self.answers, self.alone = 0, True


class ToldTopics:
    """The topics, as far as brokers have told.

    Attributes:
        by_name: all by name.
        by_id: the same by id.
        hidden: those that may not be seen any more, and are kept as they were.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, KafkaTopic] = {}
        self.by_id: dict[TopicId, KafkaTopic] = {}
        self.hidden: set[str] = set()
        self._doubts: dict[str, Doubt] = {}
        self._former: OrderedDict[TopicId, bool] = OrderedDict()
        self._racks: dict[int, str] = {}
        self._moved = False
        self._unlisted: list[str] = []
        self._lists = 0
        self._deleted: dict[str, None] = {}
        self._image: TopicImage | None = None
        self._version = 0

    # -- what is known

    def image(self) -> TopicImage:
        """All topics as the group coordinator sees them; a new one whenever anything that it shows has changed."""
        if self._image is None:
            self._version += 1
            topics = {name: topic.image for name, topic in self.by_name.items()}
            self._image = TopicImage(self._version, topics, sure=False)
        return self._image

    def take_deleted(self) -> tuple[str, ...]:
        """Names of topics that were found to be deleted, or made again, since this was last called."""
        deleted, self._deleted = self._deleted, {}
        return tuple(deleted)

    # -- what is told

    def racks(self, racks: Mapping[int, str | None]) -> None:
        """The racks of the nodes that an answer names. Those of others stay: a node that is down has not moved."""
        new = {node: rack for node, rack in racks.items() if rack and self._racks.get(node) != rack}
        self._racks.update(new)
        self._moved = bool(new)

    def listed(self, node: int, topics: Iterable[Told], *, alone: bool) -> None:
        """All topics that a node has told of. `alone`: it knows of no other node."""
        named: set[str] = set()
        for told in topics:
            named.add(told.name)
            self._take(told, node, alone=alone)
        left_out = {*self.by_name, *self._doubts} - named
        self._unlisted = sorted(left_out)
        self._lists += 1

    def to_ask(self) -> list[str]:
        """What the last list said nothing of, to be asked for by name at the node that told it.

        Where there are too many they take turns, each time for as many lists as answers are wanted, so that different
        nodes are asked for the same.
        """
        turns = -(-len(self._unlisted) // ASKED_MAX) or 1
        first = ((self._lists - 1) // ANSWERS_WANTED) % turns * ASKED_MAX
        return self._unlisted[first : first + ASKED_MAX]

    def answered(self, node: int, topics: Iterable[Told], *, alone: bool) -> None:
        """What the node says of topics that it was asked for by name."""
        for told in topics:
            self._take(told, node, alone=alone)

    def look_for(self, recorded: Mapping[str, Iterable[TopicId]]) -> None:
        """Positions name topics that are not known here, or under other ids: find out which are gone."""
        for name, ids in recorded.items():
            doubt = self._doubts.setdefault(name, Doubt())
            doubt.forget()
            doubt.recorded.update(ids)

    # -- what follows

    def _take(self, told: Told, node: int, *, alone: bool) -> None:
        if told.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            says = None
        elif told.error is ErrorCode.NONE and told.id != NO_TOPIC_ID:
            if self._is_replaced(told.id):
                return
            says = told.id
        else:
            self._unsaid(told)
            return
        self.hidden.discard(told.name)
        known = self.by_name.get(told.name)
        if known is not None and says == known.id:
            self._update(known, told)
        elif known is None and says is not None and says not in self._former:
            self._put(told)
        doubt = self._doubts.get(told.name)
        agrees = says == self._id_of(told.name)
        if doubt is None:
            if agrees:
                return
            doubt = self._doubts[told.name] = Doubt()
        elif agrees and not doubt.recorded:
            del self._doubts[told.name]
            return
        if doubt.take(says, node, alone=alone):
            self._conclude(told, says, doubt)

    def _unsaid(self, told: Told) -> None:
        """An error says neither that the topic is there nor that it is not."""
        if told.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED and told.name in self.by_name:
            self.hidden.add(told.name)
        doubt = self._doubts.get(told.name)
        if doubt is not None:
            doubt.forget()

    def _conclude(self, told: Told, says: TopicId | None, doubt: Doubt) -> None:
        name = told.name
        del self._doubts[name]
        known = self.by_name.get(name)
        if known is not None and known.id != says:
            self._remove(known, replaced=says is not None)
            self._deleted[name] = None
        if says is not None and name not in self.by_name:
            self._former.pop(says, None)
            self._put(told)
        if (says is None and doubt.recorded) or doubt.recorded - {says, NO_TOPIC_ID}:
            self._deleted[name] = None

    def _id_of(self, name: str) -> TopicId | None:
        known = self.by_name.get(name)
        return None if known is None else known.id

    def _is_replaced(self, topic_id: TopicId) -> bool:
        """Whether another topic has the name since; one that was only deleted comes back when enough say so."""
        return self._former.get(topic_id, False)

    # -- changing

    def _put(self, told: Told) -> None:
        topic = self._made(told, tuple(told.leaders))
        before = self.by_name.get(told.name)
        self.by_name[told.name] = self.by_id[told.id] = topic
        if before is None or before.image != topic.image:
            self._image = None

    def _update(self, known: KafkaTopic, told: Told) -> None:
        """The same topic: what is newer counts. Partitions are never fewer, and leaders have epochs."""
        newer = (
            known.leaders[number]
            if number >= len(told.leaders)
            or (number < len(known.leaders) and 0 <= told.leaders[number][1] < known.leaders[number][1])
            else told.leaders[number]
            for number in range(max(len(told.leaders), len(known.leaders)))
        )
        leaders = tuple(newer)
        if leaders != known.leaders or self._moved:
            topic = self._made(told, leaders)
            self.by_name[told.name] = self.by_id[told.id] = topic
            if topic.image != known.image:
                self._image = None

    def _made(self, told: Told, leaders: tuple[Leader, ...]) -> KafkaTopic:
        racks: tuple[tuple[str, ...], ...] = ()
        if self._racks:
            racks = tuple(
                tuple(sorted({self._racks[node] for node in leader[2] if node in self._racks})) for leader in leaders
            )
        image = Topic(told.name, told.id, len(leaders), racks)
        return KafkaTopic(told.name, told.id, len(leaders), leaders, image, told.is_internal)

    def _remove(self, known: KafkaTopic, *, replaced: bool) -> None:
        del self.by_name[known.name], self.by_id[known.id]
        self.hidden.discard(known.name)
        self._former[known.id] = replaced
        if len(self._former) > FORMER_IDS_MAX:
            self._former.popitem(last=False)
        self._image = None


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
        self.brokers: tuple[Endpoint, ...] = ()
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
            self.brokers = tuple(Endpoint(each.node_id, each.host, each.port, each.rack) for each in answer.brokers)
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
        return await cluster.send(
            Between(request, lowest=IDS_SINCE), BrokerById(node), timeout_ms=ANSWER_MS, lane="topics"
        )

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
