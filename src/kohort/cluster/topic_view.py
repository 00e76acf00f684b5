"""The topics of the Kafka cluster, polled continually for the group shards and for Metadata responses.

Each poll goes to another broker, because agreement of two brokers is better evidence than one broker's answer twice
(`TopicView`).
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
from kohort.groups.effects import FindDeletedTopics
from kohort.groups.events import Topic, TopicImage, TopicsChanged, TopicsDeleted
from kohort.ids import NO_TOPIC_ID, TopicId
from kohort.log.catalog import TopicNames
from kohort.wire.discovery import MetadataRequest, MetadataResponse

# -- The topic view: Metadata responses of several brokers merged into one. Pure: responses in, changes out
#
# The offsets of a deleted topic are dropped and cannot be restored. A topic therefore counts as deleted only on
# evidence. Absence from a list is no evidence: a broker that has just started lags behind the controller, and a revoked
# permission hides a topic. The evidence:
#
# | a broker's answer about a topic | conclusion |
# |---|---|
# | the known id | it exists; fewer partitions or an older leader epoch mean a stale answer |
# | a new id, of a name that is not known | it exists |
# | another id, or by name that it does not exist | after two answers, if possible of two nodes: recreated or deleted |
# | an id that was replaced | none: the broker lags |
# | by name that it is not authorized, or another error | none: the topic is kept as it was |
# | no answer | none: it is requested by name |
#
# A shard that loads contributes too: its offsets carry the ids of their topics (`FindDeletedTopics`). A topic that was
# deleted while no coordinator ran is detected in the same way.

ANSWERS_WANTED = 2
"""Answers that must agree that a topic was deleted or recreated before its offsets are dropped."""
ASKED_MAX = 1_000
"""Topics requested by name at a time: bounds one request. The other topics follow in turn."""
REQUESTS_MAX = 10
"""Requests by name that one look-up of unknown topics may take. For more names, the list of all topics is requested."""
FORMER_IDS_MAX = 100_000
"""Ids of earlier topics to remember, newest first: brokers lag for seconds, so this is far more than needed."""


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic as the newest accepted answer describes it.

    Attributes:
        name: its name.
        id: its topic id.
        partitions: the number of partitions.
        leaders: the leader of each partition.
        image: the topic as the group coordinator sees it.
        is_internal: Kafka's flag of an internal topic.
    """

    name: str
    id: TopicId
    partitions: int
    leaders: tuple[Leader, ...]
    image: Topic
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """One broker's answer about one topic.

    Attributes:
        name: the topic's name.
        id: its topic id.
        leaders: the leader of each partition, by number.
        is_internal: Kafka's flag of an internal topic.
        error: NONE, or the reason why the other fields say nothing.
    """

    name: str
    id: TopicId = NO_TOPIC_ID
    leaders: Sequence[Leader] = ()
    is_internal: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class DoubtfulTopic:
    """The answers about one topic that contradict the view, counted until enough of them agree.

    After a shard has looked for the topic, answers that agree with the view are counted too.

    Attributes:
        says: the topic id in the last counted answer; None: in that answer the topic does not exist.
        nodes: the brokers that gave this answer.
        answers: the number of times that this answer was given.
        alone: whether each of these brokers knew of no other node.
        recorded: ids of the topic in a shard's offsets; NO_TOPIC_ID stands for any.
    """

    says: TopicId | None = None
    nodes: set[int] = field(default_factory=set)
    answers: int = 0
    alone: bool = True
    recorded: set[TopicId] = field(default_factory=set)

    def count_contradicting_answer(self, says: TopicId | None, node: int, *, alone: bool) -> bool:
        """Record one contradicting answer, and return whether enough of them agree now."""
        if self.answers and says != self.says:
            self.clear_contradicting_answers()
        self.says = says
        self.nodes.add(node)
        self.answers += 1
        self.alone = self.alone and alone
        return len(self.nodes) >= ANSWERS_WANTED or (self.alone and self.answers >= ANSWERS_WANTED)

    def clear_contradicting_answers(self) -> None:
        """Discard the contradicting answers about the topic so far."""
        self.nodes.clear()
        self.answers, self.alone = 0, True


class TopicView:
    """The topics of a Kafka cluster, as the Metadata answers of several brokers together show them.

    Attributes:
        by_name: all topics by name.
        by_id: all topics by id.
        hidden: names of topics that the coordinator may not describe any more; they are kept as they were.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, DescribedTopic] = {}
        self.by_id: dict[TopicId, DescribedTopic] = {}
        self.hidden: set[str] = set()
        self._doubts: dict[str, DoubtfulTopic] = {}
        self._former: OrderedDict[TopicId, bool] = OrderedDict()
        self._racks: dict[int, str] = {}
        self._moved = False
        self._unlisted: list[str] = []
        self._lists = 0
        self._deleted: dict[str, None] = {}
        self._image: TopicImage | None = None
        self._version = 0

    # -- the result

    def topic_image(self) -> TopicImage:
        """Return all topics as the group coordinator sees them; a new object whenever any of them has changed."""
        if self._image is None:
            self._version += 1
            topics = {name: topic.image for name, topic in self.by_name.items()}
            self._image = TopicImage(self._version, topics, sure=False)
        return self._image

    def take_deleted_topics(self) -> tuple[str, ...]:
        """Return the names of topics that were found deleted or recreated since the last call."""
        deleted, self._deleted = self._deleted, {}
        return tuple(deleted)

    # -- answers of brokers

    def record_racks(self, racks: Mapping[int, str | None]) -> None:
        """Record the racks of the nodes in an answer. Other nodes keep theirs: a node that is down has not moved."""
        new = {node: rack for node, rack in racks.items() if rack and self._racks.get(node) != rack}
        self._racks.update(new)
        self._moved = bool(new)

    def merge_topic_list(self, node: int, topics: Iterable[TopicAnswer], *, alone: bool) -> None:
        """Merge a node's list of all topics. `alone`: the node knows of no other node."""
        named: set[str] = set()
        for topic in topics:
            named.add(topic.name)
            self._apply_answer(topic, node, alone=alone)
        left_out = {*self.by_name, *self._doubts} - named
        self._unlisted = sorted(left_out)
        self._lists += 1

    def topics_to_request(self) -> list[str]:
        """Return the topics that the last list left out, to be requested by name at the node that sent the list.

        When there are more than `ASKED_MAX`, they take turns. A turn lasts for `ANSWERS_WANTED` lists, so that
        different nodes are asked for the same topics.
        """
        turns = -(-len(self._unlisted) // ASKED_MAX) or 1
        first = ((self._lists - 1) // ANSWERS_WANTED) % turns * ASKED_MAX
        return self._unlisted[first : first + ASKED_MAX]

    def merge_topic_answers(self, node: int, topics: Iterable[TopicAnswer], *, alone: bool) -> None:
        """Merge a node's answers about topics that were requested by name."""
        for topic in topics:
            self._apply_answer(topic, node, alone=alone)

    def find_deleted_topics(self, recorded: Mapping[str, Iterable[TopicId]]) -> None:
        """Find out which topics were deleted, of those that a shard's offsets name and the view does not have."""
        for name, ids in recorded.items():
            doubt = self._doubts.setdefault(name, DoubtfulTopic())
            doubt.clear_contradicting_answers()
            doubt.recorded.update(ids)

    # -- conclusions

    def _apply_answer(self, answer: TopicAnswer, node: int, *, alone: bool) -> None:
        if answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            says = None
        elif answer.error is ErrorCode.NONE and answer.id != NO_TOPIC_ID:
            if self._is_replaced(answer.id):
                return
            says = answer.id
        else:
            self._unsaid(answer)
            return
        self.hidden.discard(answer.name)
        known = self.by_name.get(answer.name)
        if known is not None and says == known.id:
            self._update(known, answer)
        elif known is None and says is not None and says not in self._former:
            self._put(answer)
        doubt = self._doubts.get(answer.name)
        agrees = says == self._id_of(answer.name)
        if doubt is None:
            if agrees:
                return
            doubt = self._doubts[answer.name] = DoubtfulTopic()
        elif agrees and not doubt.recorded:
            del self._doubts[answer.name]
            return
        if doubt.count_contradicting_answer(says, node, alone=alone):
            self._conclude(answer, says, doubt)

    def _unsaid(self, answer: TopicAnswer) -> None:
        """Handle an error about a topic, such as a missing permission: no evidence that it exists or was deleted."""
        if answer.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED and answer.name in self.by_name:
            self.hidden.add(answer.name)
        doubt = self._doubts.get(answer.name)
        if doubt is not None:
            doubt.clear_contradicting_answers()

    def _conclude(self, answer: TopicAnswer, says: TopicId | None, doubt: DoubtfulTopic) -> None:
        name = answer.name
        del self._doubts[name]
        known = self.by_name.get(name)
        if known is not None and known.id != says:
            self._remove(known, replaced=says is not None)
            self._deleted[name] = None
        if says is not None and name not in self.by_name:
            self._former.pop(says, None)
            self._put(answer)
        if (says is None and doubt.recorded) or doubt.recorded - {says, NO_TOPIC_ID}:
            self._deleted[name] = None

    def _id_of(self, name: str) -> TopicId | None:
        known = self.by_name.get(name)
        return None if known is None else known.id

    def _is_replaced(self, topic_id: TopicId) -> bool:
        """Return whether a topic id belongs to an earlier topic, whose name another topic has now.

        A topic that was only deleted comes back when enough answers agree.
        """
        return self._former.get(topic_id, False)

    # -- changes of the view

    def _put(self, answer: TopicAnswer) -> None:
        topic = self._made(answer, tuple(answer.leaders))
        before = self.by_name.get(answer.name)
        self.by_name[answer.name] = self.by_id[answer.id] = topic
        if before is None or before.image != topic.image:
            self._image = None

    def _update(self, known: DescribedTopic, answer: TopicAnswer) -> None:
        """Merge an answer about a known topic: the newer leader epoch wins, and partitions never become fewer."""
        newer = (
            known.leaders[number]
            if number >= len(answer.leaders)
            or (number < len(known.leaders) and 0 <= answer.leaders[number][1] < known.leaders[number][1])
            else answer.leaders[number]
            for number in range(max(len(answer.leaders), len(known.leaders)))
        )
        leaders = tuple(newer)
        if leaders != known.leaders or self._moved:
            topic = self._made(answer, leaders)
            self.by_name[answer.name] = self.by_id[answer.id] = topic
            if topic.image != known.image:
                self._image = None

    def _made(self, answer: TopicAnswer, leaders: tuple[Leader, ...]) -> DescribedTopic:
        racks: tuple[tuple[str, ...], ...] = ()
        if self._racks:
            racks = tuple(
                tuple(sorted({self._racks[node] for node in leader[2] if node in self._racks})) for leader in leaders
            )
        image = Topic(answer.name, answer.id, len(leaders), racks)
        return DescribedTopic(answer.name, answer.id, len(leaders), leaders, image, answer.is_internal)

    def _remove(self, known: DescribedTopic, *, replaced: bool) -> None:
        del self.by_name[known.name], self.by_id[known.id]
        self.hidden.discard(known.name)
        self._former[known.id] = replaced
        if len(self._former) > FORMER_IDS_MAX:
            self._former.popitem(last=False)
        self._image = None


log = logging.getLogger("kohort.cluster")

POLL_S = 1.0
"""Poll interval: the delay until a created, grown or deleted topic is noticed."""
POLL_SHARE = 20
"""Polling takes at most 1/20 of the time: with very many topics the interval grows."""
FIND_AGAIN_S = 0.5
"""Do not request a missing topic again within this time: made-up names then cost Kafka no more than that."""
ANSWER_MS = 3_000
"""Request timeout; a broker that does not answer within it is skipped."""
IDS_SINCE = 10
"""The first Metadata version that has topic ids."""
_NAMES_TOLD = 10
"""Names in a log line; there may be thousands."""
_VALID_NAMES = TopicNames(())


class KafkaTopics:
    """The topics and leaders of the Kafka cluster, polled from its brokers: the `KnownTopics` of a host.

    Attributes:
        brokers: Kafka's brokers, from the last answer.
        cluster_id: the id of the Kafka cluster; empty until a broker has answered.
        controller_id: the controller in the last answer; -1 until then.
        polls: the number of answers so far; nothing is known before the first.
    """

    sure = False

    def __init__(self, client: AsyncClient, groups: GroupShards) -> None:
        """Poll through `client`, bootstrapped at Kafka's brokers; send changes to the shards of `groups`."""
        self._client = client
        self._groups = groups
        self._announced = TopicView()
        self._image = self._announced.topic_image()
        self._hidden: frozenset[str] = frozenset()
        self._asking = asyncio.Lock()
        self._soon = asyncio.Event()
        self._last_node = -1
        self._unanswered = False
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

    # -- known topics

    @property
    def by_name(self) -> Mapping[str, DescribedTopic]:
        """All topics by name."""
        return self._announced.by_name

    @property
    def by_id(self) -> Mapping[UUID, DescribedTopic]:
        """All topics by id."""
        return self._announced.by_id

    def topic_image(self) -> TopicImage:
        """Return all topics as the group coordinator sees them."""
        return self._image

    def invalid_name_error(self, name: str) -> KafkaError | None:
        """Return why a topic name is invalid; None: it is valid."""
        try:
            _VALID_NAMES.check(name)
        except KafkaError as refused:
            return refused.with_traceback(None)
        return None

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Return the leaders of partitions of an existing topic."""
        leaders = self._announced.by_name[topic].leaders
        return [leaders[number] for number in partitions]

    # -- requests to brokers

    async def request_all_topics(self) -> None:
        """Request all topics from one broker, and send the changes to the shards.

        Raises:
            KafkaError: no broker answers, or the cluster can't be used; the text says why.
        """
        async with self._asking:
            node, answer = await self._client.call(self._next(None))
            alone = len(answer.brokers) <= 1
            self._announced.record_racks({broker.node_id: broker.rack for broker in answer.brokers})
            self._announced.merge_topic_list(node, topic_answers(answer), alone=alone)
            self.brokers = tuple(
                Endpoint(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers
            )
            self.cluster_id = answer.cluster_id or self.cluster_id
            self.controller_id = answer.controller_id
            self.polls += 1
            self._listed_at = asyncio.get_running_loop().time()
            self._notify_shards()
            if names := self._announced.topics_to_request():
                named = await self._client.call(self._request_metadata(node, names))
                self._announced.merge_topic_answers(node, topic_answers(named), alone=alone)
                self._notify_shards()
            self._refresh_brokers()

    async def poll_topics(self) -> None:
        """Poll until cancelled. Log once when the brokers stop answering, and once when they answer again."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.request_all_topics()
            except KafkaError as error:
                if not self._unanswered:
                    log.warning(
                        "metadata of Kafka's topics cannot be refreshed; the last known topics are used: %s", error
                    )
                self._unanswered = True
            else:
                if self._unanswered:
                    log.info("metadata of Kafka's topics can be refreshed again")
                self._unanswered = False
            pause = max(POLL_S, POLL_SHARE * (loop.time() - began)) if not self._unanswered else POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for loses a cancel in the turn in which it is set
                    await self._soon.wait()
            self._soon.clear()

    def poll_topics_now(self) -> None:
        """Make `poll_topics` poll now, because something is known to have changed."""
        self._soon.set()

    def find_deleted_topics(self, question: FindDeletedTopics) -> None:
        """Find out whether topics were deleted: a shard holds offsets of topics that the view does not have."""
        self._announced.find_deleted_topics(question.topics)
        self.poll_topics_now()

    def request_topics(self, names: Collection[str], ids: Collection[UUID], then: Callable[[], None]) -> None:
        """Request unknown topics now: they may have been created since the last poll.

        Args:
            names: topic names; those that were found missing a moment ago are not requested again.
            ids: topic ids; for these all topics are requested.
            then: called once, whatever the result; at once when nothing has to be requested.
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
            self._finder = loop.create_task(self._find_topics(), name="topics that are not known")

    async def _find_topics(self) -> None:
        """Request the wanted topics until none are left; those added meanwhile share the next request."""
        loop = asyncio.get_running_loop()
        while self._finding:
            names, everything, waiting = sorted(self._wanted), self._wants_all, self._finding
            self._wanted, self._wants_all, self._finding = set(), False, []
            try:
                if everything or len(names) > REQUESTS_MAX * ASKED_MAX:
                    await self.request_all_topics()
                else:
                    for first in range(0, len(names), ASKED_MAX):
                        await self._poll_names(names[first : first + ASKED_MAX])
            except KafkaError as error:
                log.info("topics that clients named could not be looked up at Kafka, and count as unknown: %s", error)
            now = loop.time()
            self._missing = {name: until for name, until in self._missing.items() if until > now}
            self._missing.update((name, now + FIND_AGAIN_S) for name in names if name not in self.by_name)
            for then in waiting:
                then()
        self._finder = None

    async def close(self) -> None:
        """Cancel the Metadata requests under way."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.cancel()
            await asyncio.gather(finder, return_exceptions=True)

    async def _poll_names(self, names: Sequence[str]) -> None:
        async with self._asking:
            node, answer = await self._client.call(self._next(names))
            self._announced.merge_topic_answers(node, topic_answers(answer), alone=len(answer.brokers) <= 1)
            self._notify_shards()

    async def _next(self, names: Sequence[str] | None) -> tuple[int, MetadataResponse]:
        """Request Metadata for these topics (None: all) from the brokers in turn until one answers.

        Return the broker's id and its response.
        """
        cluster = self._client.cluster
        if not cluster.metadata.brokers:
            await self._find_brokers()
        nodes = sorted(cluster.metadata.brokers)
        later = [node for node in nodes if node > self._last_node]
        failure: KafkaError | None = None
        for node in [*later, *(node for node in nodes if node <= self._last_node)]:
            try:
                answer = await self._request_metadata(node, names)
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
        """Refresh the brokers' addresses from any reachable broker, the bootstrap servers included."""
        cluster = self._client.cluster
        try:
            await cluster.runtime.run_within(cluster.request_brokers_once(), ANSWER_MS, "brokers")
        except TimedOutError as error:
            raise TimedOutError(f"Kafka does not answer: {cluster.unreachable_text() or error}") from error

    async def _request_metadata(self, node: int, names: Sequence[str] | None) -> MetadataResponse:
        """Send a Metadata request, without auto-creation of topics, to one broker."""
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        cluster: Cluster = self._client.cluster
        return await cluster.send(
            Between(request, lowest=IDS_SINCE), BrokerById(node), timeout_ms=ANSWER_MS, channel="topics"
        )

    def _refresh_brokers(self) -> None:
        """Refresh the client's metadata if the brokers in the last answer differ from it."""
        cluster = self._client.cluster
        known = {(broker.id, broker.address.host, broker.address.port) for broker in cluster.metadata.brokers.values()}
        if known != {(place.node_id, place.host, place.port) for place in self.brokers}:
            cluster.request_metadata()
            self._client.wake()

    def _notify_shards(self) -> None:
        """Send the changes to the shards: first the existing topics, then those whose offsets are dropped."""
        before, self._image = self._image, self._announced.topic_image()
        deleted = self._announced.take_deleted_topics()
        if self._image is not before:
            self._groups.queue_for_all_shards(TopicsChanged(self._image))
        if deleted:
            for name in deleted:
                change = "recreated" if name in self._image.topics else "deleted"
                log.info("topic %s was %s: its committed offsets are dropped", name, change)
            self._groups.queue_for_all_shards(TopicsDeleted(deleted))
        hidden = frozenset(self._announced.hidden)
        if more := sorted(hidden - self._hidden):
            log.warning(
                "%d topics are hidden from this coordinator now, which keeps its last view of them (%s): it needs "
                "DESCRIBE",
                len(more),
                ", ".join(more[:_NAMES_TOLD]) + (", …" if len(more) > _NAMES_TOLD else ""),
            )
        self._hidden = hidden


def is_up(node: int, answer: MetadataResponse) -> bool:
    """Return whether a broker lists itself among the cluster's brokers.

    A broker that does not has not caught up with the controller yet, so its answers are no evidence.
    """
    return any(broker.node_id == node for broker in answer.brokers)


def topic_answers(answer: MetadataResponse) -> list[TopicAnswer]:
    """Convert a Metadata response to one answer for each topic that it names."""
    return [
        TopicAnswer(
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
    """Return the leaders by partition number; a missing partition gets no leader and the oldest possible epoch."""
    count = max((partition.partition_index for partition in partitions), default=-1) + 1
    leaders: list[Leader] = [(-1, -1, [], [])] * count
    for part in partitions:
        leaders[part.partition_index] = part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes
    return leaders
