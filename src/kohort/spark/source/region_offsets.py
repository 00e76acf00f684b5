"""The place of a query in a region: its application says what it reads and from where, and only the region commits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import NO_TOPIC_ID, TopicPartition
from kohort.io.channel import GREETING_S
from kohort.spark.driver_channel import Message
from kohort.spark.options import SourceOptions
from kohort.spark.region.sessions import IDLE_MS, WAIT_MS_MAX, Handed, HandedPart, Idle, Lost, LostPart, topic_ids
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.catalog import Catalog, Present
from kohort.spark.source.data_loss import lose
from kohort.spark.source.offset_coordinator import Held, Replay
from kohort.spark.source.progress import Standing
from kohort.spark.source.topic_pattern import INTERNAL_TOPICS

ANSWER_S = 4.0
"""How long the application may leave a question unanswered, what it was asked to wait included. A query without its
application is to end within five seconds."""
LOOK_S = 1.0
"""How often it is looked whether the topics held are there."""
NOBODY_WAITS = 0
"""The number of a question whose answer is not waited for; others begin at 1."""
GONE = (
    "a query in a region does nothing without the application that started it, and ends: SparkRegion starts it again, "
    "from the last sequence"
)


class Asking(Protocol):
    """The connection to the application, as `kohort.spark.driver_channel.Line`."""

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Ask, and wait for the answer."""

    def send(self, message: Message) -> bool:
        """Say something; False: the application can't be reached."""


class RegionPlace:
    """Asks the seat in the application, commits nothing, and reads no batch of an earlier run again.

    A partition starts where it was handed out, and goes on where the last planned batch ended for as long as it is
    under the same handing-out.
    """

    def __init__(self, options: SourceOptions, catalog: Catalog, line: Asking, seat: str) -> None:
        """Nothing is asked yet.

        Args:
            options: of the source.
            catalog: asks the brokers.
            line: to the application.
            seat: its id.
        """
        self._options, self._catalog, self._line, self._seat = options, catalog, line, seat
        self._asked = False
        self._epoch: int | None = None
        self._parts: dict[TopicPartition, HandedPart] = {}  # what was held by the last answer
        self._reached: dict[int, int] = {}  # by handing, where it goes on
        self._checked: set[int] = set()  # handings whose starts have been looked for in the log
        self._gone: set[int] = set()  # handings of topics that are gone, which has been told
        self._known: tuple[int, float] | None = None  # the version of which no batch has been tried, and since when
        self._present, self._looked_at, self._looked_for = Present(), float("-inf"), frozenset[str]()

    def resume(self, start: BatchOffset) -> None:
        """Nothing is taken over: what the checkpoint names is another run's, and the seat knows where to start."""

    def hold(self, start: BatchOffset, at: Mapping[TopicPartition, int]) -> Held | None:
        """What the seat hands out, of topics that are there; None while nothing may be planned.

        A query that is too far ahead of its region waits here, however long: told that there is nothing to read, Spark
        would go on with batches without records, if the query has timers. Each question is a second at most, so that a
        run that is stopped is refused with the next one; SIGTERM and the application's end are heard at once.
        """
        del start
        answer = self._ask("held", wait_ms=WAIT_MS_MAX, **self._idle())
        while answer.get("stay"):
            answer = self._ask("held", wait_ms=WAIT_MS_MAX)
        if answer.get("hold"):
            return None
        handed = Handed.from_message(answer)
        self._known = handed.version, time.monotonic()
        self._run_of(handed.epoch)
        self._go_on(handed, at)
        parts = self._parts = self._there(handed.parts)
        return Held(
            tuple(parts),
            handed.generation,
            {tp: self._reached[one.handing] for tp, one in parts.items()},
            topic_ids(parts.values()),
            handed.epoch,
            {tp: one.handing for tp, one in parts.items()},
            handed.version,
        )

    def _idle(self) -> Message:
        """What a question carries after a look that found nothing: the next one is due `IDLE_MS` after that look.

        Looks are so far apart, and no wait is so long: Spark asks the sources of a join one after the other, and a busy
        one is not to wait for an idle one. A source's own batch is followed by a look at once.
        """
        if self._known is None:
            return {}
        version, since_s = self._known
        left_ms = round(IDLE_MS - (time.monotonic() - since_s) * 1000)
        return Idle(version, left_ms).to_message() if left_ms > 0 else {}

    def _go_on(self, handed: Handed, at: Mapping[TopicPartition, int]) -> None:
        """Note where each part goes on; also for one that is left out of a look and comes back under its handing."""
        reached = self._reached | {one.handing: at[tp] for tp, one in self._parts.items() if tp in at}
        self._reached = {one.handing: reached.get(one.handing, one.start) for one in handed.parts}
        self._checked &= self._reached.keys()
        self._gone &= self._reached.keys()

    def _run_of(self, epoch: int) -> None:
        """Every run has an epoch of its own.

        Raises:
            InvalidInputError: the seat has gone on to another one.
        """
        self._epoch = epoch if self._epoch is None else self._epoch
        if epoch != self._epoch:
            raise InvalidInputError(
                f"the region has gone on to epoch {epoch}, this run is of epoch {self._epoch}: it ends, and "
                "SparkRegion starts another"
            )

    def _there(self, parts: tuple[HandedPart, ...]) -> dict[TopicPartition, HandedPart]:
        """The parts that there is something of, in order; what has gone with its topic is told once.

        Raises:
            OffsetError: a topic is gone, or another has its name, and that is to end the query.
        """
        if self._options.subscribe_pattern is not None:  # a coordinator finds Kafka's own topics by a pattern too
            parts = tuple(part for part in parts if part.topic not in INTERNAL_TOPICS)
        present = self._look(frozenset(one.topic for one in parts))
        there: dict[TopicPartition, HandedPart] = {}
        gone: list[HandedPart] = []
        for one in sorted(parts, key=lambda one: (one.topic, one.partition)):
            now = present.ids.get(one.topic, one.topic_id)
            if one.topic not in present.topics or (now != one.topic_id and one.topic_id != NO_TOPIC_ID):
                gone.append(one)
            elif TopicPartition(one.topic, one.partition) in present.partitions:  # else brokers do not know it yet
                there[TopicPartition(one.topic, one.partition)] = one
        self._tell_gone([one for one in gone if one.handing not in self._gone], present)
        return there

    def _look(self, topics: frozenset[str]) -> Present:
        now = time.monotonic()
        if topics and (now - self._looked_at >= LOOK_S or not topics <= self._looked_for):
            self._present, self._looked_at, self._looked_for = self._catalog.present(topics), now, topics
        return self._present

    def _tell_gone(self, gone: list[HandedPart], present: Present) -> None:
        if not gone:
            return
        was = []
        for topic, of in sorted({(one.topic, one.topic_id) for one in gone}):
            again = f" and made again, as id {present.ids.get(topic)}" if topic in present.topics else ""
            was.append(f"topic {topic} (id {of}) was deleted{again}")
        lost = [
            LostPart(one.topic, one.topic_id, one.partition, one.handing, self._reached[one.handing], -1)
            for one in gone
        ]
        text = f"{'; '.join(was)}: what the region had not read of it is lost"
        self._tell_lost(text, lost, "goes on without it")
        self._gone.update(one.handing for one in gone)

    def _tell_lost(self, text: str, parts: list[LostPart], remedy: str) -> None:
        strict = self._options.fail_on_data_loss
        self._say(Lost(text, strict, tuple(parts)).to_message(self._seat))
        lose(text, remedy, strict=strict)

    def settle(
        self, held: Held, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to go on: behind what is gone, of which the application is told.

        Raises:
            OffsetError: records are gone, and that is to end the query.
        """
        fresh = [tp for tp in held.partitions if held.handings[tp] not in self._checked]
        beginnings = self._catalog.beginnings(fresh) if fresh else {}
        outside = [tp for tp in held.partitions if not beginnings.get(tp, 0) <= at[tp] <= ends[tp]]
        beginnings |= self._catalog.beginnings(tp for tp in outside if tp not in beginnings)
        outside = [tp for tp in outside if tp in beginnings]  # else it has gone meanwhile; the next look tells
        settled = dict(at)
        lost: list[LostPart] = []
        for tp in outside:
            one = self._parts[tp]
            settled[tp] = beginnings[tp]
            lost.append(LostPart(tp.topic, one.topic_id, tp.partition, one.handing, at[tp], settled[tp]))
        if lost:
            tp = outside[0]
            more = f" (and so in {len(lost) - 1} more partitions)" if len(lost) > 1 else ""
            text = f"{tp} holds offsets {settled[tp]} to {ends[tp]}, the region was at {at[tp]}: records are gone{more}"
            self._tell_lost(text, lost, f"goes on at {settled[tp]}")
        self._checked.update(held.handings[tp] for tp in fresh if tp in beginnings)
        return settled

    def notes_start(self) -> bool:
        """The region keeps where its queries start."""
        return False

    def still(self, held: Held) -> bool:
        """Whether a look still counts: what changed meanwhile is in the next answer, and a region's query goes on."""
        return True

    def read(self) -> bool:
        """Spark asks for the tasks of the batch that has begun: the seat lets none go."""
        return True

    def begin(self, held: Held, batch: int) -> bool:
        """Ask whether the batch may begin: from then on nothing is given up until it ends."""
        self._known = None  # there is something to read: also when that may not begin, the next look is due at once
        return bool(self._ask("begin", version=held.version, batch=batch).get("ok"))

    def finish(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """Tell that a batch is over; only the region commits.

        The answer is not waited for: this may be called by the thread that takes answers in, and what is said first is
        heard first.
        """
        del timeout_ms
        self._say(self._question("end", batch=batch.batch) | {"number": NOBODY_WAITS})

    def replay(self, start: BatchOffset, planned: BatchOffset) -> Replay:
        """There is nothing to read again: a run of a region begins with a checkpoint folder of finished batches.

        Raises:
            InvalidInputError: always.
        """
        del start
        raise InvalidInputError(
            f"batch {planned.batch} was planned by an earlier run, in epoch {planned.epoch}, and not finished: a "
            "region's query begins with a checkpoint folder that ends with a finished batch. Let SparkRegion derive "
            "it, and change nothing in it by hand"
        )

    def standing(self) -> Standing:
        """The member is in the application; the progress says nothing of it."""
        return Standing()

    def close(self) -> None:
        """There is nothing to leave: the member stays."""

    def _question(self, what: str, **facts: Any) -> Message:
        return {"kind": "ask", "seat": self._seat, "what": what, **facts}

    def _ask(self, what: str, **facts: Any) -> Message:
        """What the application answers.

        Raises:
            KafkaError: it is gone, or silent.
            InvalidInputError: it refuses.
        """
        timeout_s = ANSWER_S if self._asked else max(ANSWER_S, GREETING_S)
        try:
            answer = self._line.ask(self._question(what, **facts), timeout_s)
        except (ConnectionError, TimeoutError) as error:
            raise KafkaError(f"{error}; {GONE}") from error
        self._asked = True
        refused = answer.get("refused")
        if refused is not None:
            raise InvalidInputError(str(refused))
        return answer

    def _say(self, message: Message) -> None:
        if not self._line.send(message):
            raise KafkaError(f"the application is gone; {GONE}")
