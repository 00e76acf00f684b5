"""Which topics there are, by what brokers of Kafka tell one after the other. Pure: answers in, changes out.

Offsets of a deleted topic go, and come back from nowhere, so that a topic counts as deleted only on evidence. A list
that leaves it out is none: a broker that has just started lags behind the controller, and a right that was taken away
hides a topic.

| a broker says of a topic | what is concluded |
|---|---|
| the id that is known | it is there; fewer partitions or an older leader epoch are an old answer |
| an id that nobody has told before, of a name that is not known | it is there |
| another id, or by name that it has none | two answers, of different nodes where there are: made again, or deleted |
| an id that was replaced | nothing: the broker lags |
| by name that it may not be seen, or another error | nothing: it is kept as it was |
| nothing | nothing: it is asked for by name |

A shard that loads asks too: its positions name the ids of their topics (`LookForTopics`), and what was deleted while no
coordinator looked is concluded in the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kohort.broker.places import Leader
from kohort.errors import ErrorCode
from kohort.groups.events import Topic, TopicImage
from kohort.ids import NO_TOPIC_ID, TopicId

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
