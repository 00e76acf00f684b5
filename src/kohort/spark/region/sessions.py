"""What a source in a region asks its application, and what it is answered.

A region's member lives in the application, the source in a process of its own: it has a seat there, which hands out
partitions, hears of each batch, and is told of records that are gone. Everything goes over
`kohort.spark.driver_channel`, as messages whose `what` is "held", "begin" or "end"; the forms are written and read here
alone.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kohort.errors import InvalidInputError
from kohort.ids import NO_TOPIC_ID, TopicId
from kohort.spark.driver_channel import Message

log = logging.getLogger("kohort.spark")

WAIT_MS_MAX = 1_000
"""The longest that a source may have its application wait while nothing may be planned: a query that is stopped waits
for it."""
IDLE_MS = 100
"""How far apart the looks of a source are that finds nothing to read; at most so much later is a new record seen. Spark
triggers an idle query 70 times a second, which took a fifth of a core: in the source, the JVM, here and in the broker.
"""
UNKNOWN = "the option regionSeat is set by SparkRegion alone, for the run that it starts: leave it out"
ANOTHER = (
    "another query reads this same load(), or this query does on the other side of a join with itself: a region's "
    "source is read by one query, once; write to several sinks from one foreachBatch, or give the region a query for "
    "each"
)


@dataclass(frozen=True, slots=True)
class HandedPart:
    """A partition as it was handed to a query.

    Attributes:
        topic_id: NO_TOPIC_ID where brokers tell none.
        start: where it is read from, if it is a new handing-out; an old one goes on where the last batch ended.
        handing: number of this handing-out, unique in the run.
    """

    topic: str
    topic_id: TopicId
    partition: int
    start: int
    handing: int


@dataclass(frozen=True, slots=True)
class Handed:
    """What a query may read now.

    Attributes:
        version: another one as soon as anything else is handed out or asked back.
        epoch: of the run; another run has another one.
        generation: of the group.
        parts: all that the query has, in any order.
    """

    version: int
    epoch: int
    generation: int
    parts: tuple[HandedPart, ...]

    def to_message(self) -> Message:
        parts = [[one.topic, str(one.topic_id), one.partition, one.start, one.handing] for one in self.parts]
        return {"version": self.version, "epoch": self.epoch, "generation": self.generation, "parts": parts}

    @classmethod
    def from_message(cls, message: Mapping[str, object]) -> Handed:
        """Read what `to_message` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            version, epoch, generation = (int(message[name]) for name in ("version", "epoch", "generation"))  # type: ignore[call-overload]
            parts = tuple(
                HandedPart(str(topic), uuid.UUID(topic_id), int(partition), int(start), int(handing))
                for topic, topic_id, partition, start, handing in message["parts"]  # type: ignore[attr-defined]
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no answer to what is held: {message!r:.200}") from error
        return cls(version, epoch, generation, parts)


@dataclass(frozen=True, slots=True)
class Idle:
    """A source that has found nothing to read in what it knows: it need not look again at once.

    Attributes:
        version: what it knows, as `Handed.version`.
        ms: when it looks again, if that is still what counts; at most `IDLE_MS`.
    """

    version: int
    ms: int

    def to_message(self) -> Message:
        return {"known": self.version, "idle_ms": self.ms}

    @classmethod
    def from_message(cls, message: Message) -> Idle | None:
        """Read what `to_message` wrote; None: it is not in this question, which is answered at once.

        Raises:
            InvalidInputError: only a part of it is there.
        """
        if "known" not in message:
            return None
        return cls(_number(message, "known"), _number(message, "idle_ms", IDLE_MS))


@dataclass(frozen=True, slots=True)
class LostPart:
    """Where records of a partition are gone, by the source's own look at the log.

    Attributes:
        handing: the handing-out under which it was found.
        at: where the query was to go on.
        next: where it goes on instead; -1: nowhere, the topic is gone or another has its name.
    """

    topic: str
    topic_id: TopicId
    partition: int
    handing: int
    at: int
    next: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Records are gone that the query was to read.

    Attributes:
        text: what is gone, for people.
        fatal: whether the query ends of it (failOnDataLoss); else it goes on, and its next batch begins at `next`.
        parts: where.
    """

    text: str
    fatal: bool
    parts: tuple[LostPart, ...]

    def to_message(self, seat: str) -> Message:
        parts = [[p.topic, str(p.topic_id), p.partition, p.handing, p.at, p.next] for p in self.parts]
        return {"kind": "lost", "seat": seat, "text": self.text, "fatal": self.fatal, "parts": parts}

    @classmethod
    def from_message(cls, message: Message) -> Lost:
        """Read what `to_message` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            parts = tuple(
                LostPart(str(topic), uuid.UUID(topic_id), int(partition), int(handing), int(at), int(next_))
                for topic, topic_id, partition, handing, at, next_ in message["parts"]
            )
            return cls(str(message["text"]), bool(message["fatal"]), parts)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no word of lost records: {message!r:.200}") from error


class Seat(Protocol):
    """One source's place in the application, for one run of its query.

    Its methods are called by the thread of the source's connection. Each may raise InvalidInputError, which ends the
    query with its text.
    """

    def held(self, wait_ms: int, idle: Idle | None = None) -> Handed | None:
        """What the query may read now; None: nothing may be planned.

        Args:
            wait_ms: how long to wait until something may be planned.
            idle: how long to wait until that is something else than the source knows; None: not at all.
        """

    def stays(self) -> bool:
        """Of a query that may plan nothing: whether its source asks on, and Spark's trigger does not end meanwhile.

        Told that there is nothing to read now, Spark runs a batch without records if the query has timers, and another
        after that.
        """

    def begin(self, version: int, batch: int) -> bool:
        """A batch begins: from now on nothing is given up until it ends. False: what was handed out is another by now.

        Args:
            version: of what was handed out, which the batch was planned for.
            batch: as `BatchOffset` counts; no number of Spark's.
        """

    def end(self, batch: int) -> None:
        """A batch is over: its sink has it, and it is in `commits/`. One that is not running is passed over."""

    def lost(self, lost: Lost) -> None:
        """Records are gone; said before the batch that begins behind them, or before the query ends."""


class Seats:
    """The seats of a process, by their ids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        self._queries: dict[str, str] = {}  # by seat, who sits there

    def add(self, id: str, seat: Seat) -> None:
        """From now on a source with this id is answered by the seat; who sat there before does not any more."""
        with self._lock:
            self._seats[id] = seat
            self._queries.pop(id, None)

    def remove(self, id: str) -> None:
        """From now on a source with this id is refused."""
        with self._lock:
            self._seats.pop(id, None)
            self._queries.pop(id, None)

    def query_at(self, id: str) -> str | None:
        """Identity of the query whose source has asked from a seat, as its offsets carry it; None: nobody has yet."""
        with self._lock:
            return self._queries.get(id)

    def answer(self, query: str, message: Message) -> Message:
        """What to answer a source.

        Args:
            query: identity of the query that it drives.
            message: what it asks.
        """
        try:
            return self._answer(self._seat(query, message.get("seat")), message)
        except InvalidInputError as error:
            return {"refused": error.message}

    def lost(self, query: str, message: Message) -> None:
        """A source's word of records that are gone, to its seat; only logged when that is not there any more."""
        lost = Lost.from_message(message)
        log.warning("%s", lost.text)
        try:
            seat = self._seat(query, message.get("seat"))
        except InvalidInputError:
            return
        seat.lost(lost)

    def _seat(self, query: str, id: object) -> Seat:
        with self._lock:
            seat = self._seats.get(id) if isinstance(id, str) else None
            if seat is None or not isinstance(id, str):
                raise InvalidInputError(UNKNOWN)
            if self._queries.setdefault(id, query) != query:
                raise InvalidInputError(ANOTHER)
            return seat

    def _answer(self, seat: Seat, message: Message) -> Message:
        what = message.get("what")
        if what == "held":
            handed = seat.held(_number(message, "wait_ms", WAIT_MS_MAX), Idle.from_message(message))
            return {"hold": True, "stay": seat.stays()} if handed is None else handed.to_message()
        if what == "begin":
            return {"ok": seat.begin(_number(message, "version"), _number(message, "batch"))}
        if what == "end":
            seat.end(_number(message, "batch"))
            return {"ok": True}
        raise InvalidInputError(f"a source asked {what!r:.50}, which this kohort does not know: use one version of it")


def _number(message: Message, name: str, most: int | None = None) -> int:
    number = message.get(name)
    if not isinstance(number, int) or number < 0:
        raise InvalidInputError(f"a source asked without {name}: use one version of kohort on both sides")
    return number if most is None else min(number, most)


def topic_ids(parts: Iterable[HandedPart]) -> dict[str, TopicId]:
    """The ids of the parts' topics, as far as brokers tell them."""
    return {one.topic: one.topic_id for one in parts if one.topic_id != NO_TOPIC_ID}


SEATS = Seats()
"""Of this process."""
