"""The protocol between a source of a region and its driver program: requests, answers, and the sessions that answer.

A region's member lives in the driver program, and the source in a separate process. The source has a session there (a
*seat* in code), which assigns partitions and receives reports of batches and lost records. Everything goes over
`kohort.spark.driver_channel`, as messages whose `what` is "held", "begin" or "end". Only this file writes and reads
their format.
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
"""Longest wait of a source while no batch may be planned; stopping the query waits for it."""
IDLE_MS = 100
"""Interval between the checks of an idle source, and so the longest delay of a new record.

Spark triggers an idle query 70 times a second, which took a fifth of a core: in the source, the JVM, here and in the
broker.
"""
UNKNOWN = "the option regionSeat is set by SparkRegion alone, for the run that it starts: leave it out"
ANOTHER = (
    "another query reads this same load(), or this query does on the other side of a join with itself: a region's "
    "source is read by one query, once; write to several sinks from one foreachBatch, or give the region a query for "
    "each"
)


@dataclass(frozen=True, slots=True)
class AssignmentReplyPart:
    """A partition that is assigned to a query's source.

    Attributes:
        topic: the topic's name.
        topic_id: the topic's id; NO_TOPIC_ID if the brokers have none.
        partition: the partition's number.
        start: the offset to start from in a new assignment; in a known one reading continues at the last batch's end.
        assignment_version: the number of this assignment, unique in the run.
    """

    topic: str
    topic_id: TopicId
    partition: int
    start: int
    assignment_version: int


@dataclass(frozen=True, slots=True)
class AssignmentReply:
    """The driver program's answer: the partitions that a query may read now.

    Attributes:
        version: the version of the assignment, which changes with every assigned or revoked partition.
        epoch: the epoch of the run, different in each run.
        generation: the group's generation.
        parts: all partitions of the query's source, in any order.
    """

    version: int
    epoch: int
    generation: int
    parts: tuple[AssignmentReplyPart, ...]

    def to_message(self) -> Message:
        parts = [
            [part.topic, str(part.topic_id), part.partition, part.start, part.assignment_version] for part in self.parts
        ]
        return {"version": self.version, "epoch": self.epoch, "generation": self.generation, "parts": parts}

    @classmethod
    def from_message(cls, message: Mapping[str, object]) -> AssignmentReply:
        """Decode the message of `to_message`.

        Raises:
            ValueError: the message has another form.
        """
        try:
            version, epoch, generation = (int(message[name]) for name in ("version", "epoch", "generation"))  # type: ignore[call-overload]
            parts = tuple(
                AssignmentReplyPart(
                    str(topic), uuid.UUID(topic_id), int(partition), int(start), int(assignment_version)
                )
                for topic, topic_id, partition, start, assignment_version in message["parts"]  # type: ignore[attr-defined]
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no answer to what is held: {message!r:.200}") from error
        return cls(version, epoch, generation, parts)


@dataclass(frozen=True, slots=True)
class IdleState:
    """The state of a source that has found nothing to read and need not check again at once.

    Attributes:
        version: the assignment that the source knows, as in `AssignmentReply.version`.
        ms: the milliseconds until the source checks again, unless the assignment changes; at most `IDLE_MS`.
    """

    version: int
    ms: int

    def to_message(self) -> Message:
        return {"known": self.version, "idle_ms": self.ms}

    @classmethod
    def from_message(cls, message: Message) -> IdleState | None:
        """Decode the message of `to_message`; return None if the request has none and is answered at once.

        Raises:
            InvalidInputError: only a part of it is there.
        """
        if "known" not in message:
            return None
        return cls(_integer_of(message, "known"), _integer_of(message, "idle_ms", IDLE_MS))


@dataclass(frozen=True, slots=True)
class LostRange:
    """The records of one partition that were lost, as the source found in the log.

    Attributes:
        topic: the topic's name.
        topic_id: the topic's id.
        partition: the partition's number.
        assignment_version: the number of the assignment under which the loss was found.
        at: the offset at which the query should have continued.
        next: the offset at which it continues instead; -1: none, the topic was deleted or re-created.
    """

    topic: str
    topic_id: TopicId
    partition: int
    assignment_version: int
    at: int
    next: int


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records that the query was to read, and which are lost.

    Attributes:
        text: a description of the loss.
        fatal: whether the loss ends the query (failOnDataLoss); otherwise its next batch begins at `next`.
        parts: the partitions concerned.
    """

    text: str
    fatal: bool
    parts: tuple[LostRange, ...]

    def to_message(self, session: str) -> Message:
        parts = [[p.topic, str(p.topic_id), p.partition, p.assignment_version, p.at, p.next] for p in self.parts]
        return {"kind": "lost", "seat": session, "text": self.text, "fatal": self.fatal, "parts": parts}

    @classmethod
    def from_message(cls, message: Message) -> LostRecords:
        """Decode the message of `to_message`.

        Raises:
            ValueError: the message has another form.
        """
        try:
            parts = tuple(
                LostRange(str(topic), uuid.UUID(topic_id), int(partition), int(assignment_version), int(at), int(next_))
                for topic, topic_id, partition, assignment_version, at, next_ in message["parts"]
            )
            return cls(str(message["text"]), bool(message["fatal"]), parts)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no word of lost records: {message!r:.200}") from error


class SourceSession(Protocol):
    """The session of one source in the driver program, for one run of its query.

    The thread of the source's connection calls its methods. Each may raise InvalidInputError, which ends the query with
    its text.
    """

    def wait_partitions(self, wait_ms: int, idle: IdleState | None = None) -> AssignmentReply | None:
        """Return the partitions that the query may read now; None if no batch may be planned.

        Args:
            wait_ms: the longest wait until a batch may be planned.
            idle: the longest wait for an assignment that the source does not know yet; None: no wait.
        """

    def keeps_trigger_waiting(self) -> bool:
        """Return whether a source that may plan no batch must keep Spark's trigger waiting, and not return at once.

        On "nothing to read", Spark would run batches without records if the query has timers.
        """

    def begin_batch(self, version: int, batch: int) -> bool:
        """Begin a batch: until it ends, no partition is released; return False if the assignment has changed.

        Args:
            version: the version of the assignment that the batch was planned for.
            batch: the number in `BatchOffset`, not Spark's.
        """

    def complete_batch(self, batch: int) -> None:
        """End a batch: its sink is done, and it is in `commits/`; a batch that is not running is ignored."""

    def report_lost(self, lost: LostRecords) -> None:
        """Report lost records, before a batch begins after the gap, or before the query ends."""


class SourceSessions:
    """The sessions of a process, by their ids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, SourceSession] = {}
        self._queries: dict[str, str] = {}  # by session, the query whose source has used it

    def add(self, id: str, session: SourceSession) -> None:
        """Add a session, in place of an earlier one with the same id.

        From now on it answers the source that presents this id.
        """
        with self._lock:
            self._sessions[id] = session
            self._queries.pop(id, None)

    def remove_session(self, id: str) -> None:
        """Remove a session: from now on sources with this id are refused."""
        with self._lock:
            self._sessions.pop(id, None)
            self._queries.pop(id, None)

    def query_of_session(self, id: str) -> str | None:
        """Return the identity of the query whose source has used a session; None if none has yet."""
        with self._lock:
            return self._queries.get(id)

    def answer_request(self, query: str, message: Message) -> Message:
        """Answer a source's request to the session that its message names.

        Args:
            query: the identity of the query that the source serves.
            message: the request.
        """
        try:
            return self._answer_source(self._session(query, message.get("seat")), message)
        except InvalidInputError as error:
            return {"refused": error.message}

    def report_lost(self, query: str, message: Message) -> None:
        """Pass a source's report of lost records to its session; if the session has ended, only log the report."""
        lost = LostRecords.from_message(message)
        goes_on = "ends (failOnDataLoss=true)" if lost.fatal else "goes on without them (failOnDataLoss=false)"
        log.warning("a source reports records that may be lost: %s; its query %s", lost.text, goes_on)
        try:
            seat = self._session(query, message.get("seat"))
        except InvalidInputError:
            return
        seat.report_lost(lost)

    def _session(self, query: str, id: object) -> SourceSession:
        with self._lock:
            seat = self._sessions.get(id) if isinstance(id, str) else None
            if seat is None or not isinstance(id, str):
                raise InvalidInputError(UNKNOWN)
            if self._queries.setdefault(id, query) != query:
                raise InvalidInputError(ANOTHER)
            return seat

    def _answer_source(self, session: SourceSession, message: Message) -> Message:
        what = message.get("what")
        if what == "held":
            handed = session.wait_partitions(
                _integer_of(message, "wait_ms", WAIT_MS_MAX), IdleState.from_message(message)
            )
            return {"hold": True, "stay": session.keeps_trigger_waiting()} if handed is None else handed.to_message()
        if what == "begin":
            return {"ok": session.begin_batch(_integer_of(message, "version"), _integer_of(message, "batch"))}
        if what == "end":
            session.complete_batch(_integer_of(message, "batch"))
            return {"ok": True}
        raise InvalidInputError(f"a source asked {what!r:.50}, which this kohort does not know: use one version of it")


def _integer_of(message: Message, name: str, most: int | None = None) -> int:
    number = message.get(name)
    if not isinstance(number, int) or number < 0:
        raise InvalidInputError(f"a source asked without {name}: use one version of kohort on both sides")
    return number if most is None else min(number, most)


def topic_ids_by_name(parts: Iterable[AssignmentReplyPart]) -> dict[str, TopicId]:
    """Return the ids of the partitions' topics, as far as the brokers have them."""
    return {part.topic: part.topic_id for part in parts if part.topic_id != NO_TOPIC_ID}


SOURCE_SESSIONS = SourceSessions()
"""The sessions of this process."""
