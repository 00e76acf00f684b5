"""An application's end of a region, for tests: hands out what it is told to, and holds the source to its promises."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from tests.spark.queries import Place
from tests.support.waiting import STILL_S, until

from kohort.errors import InvalidInputError
from kohort.ids import TopicId, TopicPartition
from kohort.spark.driver_channel import ChannelClient, ChannelServer
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.query import SourceQuery
from kohort.spark.source.region_offsets import RegionOffsets
from kohort.spark.source_sessions import AssignmentReply, AssignmentReplyPart, IdleState, LostRecords, SourceSessions

EPOCH, GENERATION = 5, 3


class Desk:
    """A seat whose partitions a test hands out and takes away, and never while a batch runs.

    Attributes:
        holds: nothing may be planned now.
        keeps: and Spark is not to be told so.
        silent: cleared, no question is answered before it is set.
        refusal: what a question is refused with; empty: not at all.
        begun: the batches that were let begin.
        ended: those that are over.
        lost: what it was told of records that are gone.
        waits: what each question of `held` was let wait, in ms.
        idle: what each of them said of a look that found nothing; it is answered at once.
    """

    def __init__(self, topic: str, topic_id: TopicId) -> None:
        self.topic, self.topic_id, self.epoch = topic, topic_id, EPOCH
        self.holds, self.keeps, self.refusal = False, False, ""
        self.silent = threading.Event()
        self.silent.set()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.lost_parts: list[LostRecords] = []
        self.waits: list[int] = []
        self.idle: list[IdleState | None] = []
        self.before_begin: Callable[[], None] = lambda: None
        self.starts: dict[int, int] = {}  # by assignment version
        self._changed = threading.Condition()
        self._parts: dict[TopicPartition, AssignmentReplyPart] = {}
        self._version = self._assignment_version = 0
        self._running: int | None = None

    def hand(self, starts: dict[int, int], topic: str | None = None, topic_id: TopicId | None = None) -> None:
        """Hand out partitions, each under a new number."""
        with self._changed:
            for number, start in starts.items():
                self._assignment_version += 1
                self._version += 1
                self.starts[self._assignment_version] = start
                part = AssignmentReplyPart(
                    topic or self.topic, topic_id or self.topic_id, number, start, self._assignment_version
                )
                self._parts[TopicPartition(part.topic, number)] = part
            self._changed.notify_all()

    def take(self, *numbers: int) -> None:
        """Take partitions away, once no batch runs."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._running is None, STILL_S)
            self._version += 1
            for number in numbers:
                del self._parts[TopicPartition(self.topic, number)]

    def hold(self, holds: bool) -> None:
        """Let nothing be planned, or again."""
        with self._changed:
            self.holds = holds
            self._changed.notify_all()

    def wait_partitions(self, wait_ms: int, idle: IdleState | None = None) -> AssignmentReply | None:
        self._heed()
        with self._changed:
            self.waits.append(wait_ms)
            self.idle.append(idle)
            if not self._changed.wait_for(lambda: not self.holds, wait_ms / 1000):
                return None
            return AssignmentReply(self._version, self.epoch, GENERATION, tuple(self._parts.values()))

    def keeps_trigger_waiting(self) -> bool:
        return self.keeps

    def begin_batch(self, version: int, batch: int) -> bool:
        self._heed()
        self.before_begin()
        with self._changed:
            if version != self._version or self.holds:
                return False
            assert self._running is None, f"batch {batch} begins inside batch {self._running}"
            self._running = batch
            self.begun.append(batch)
            return True

    def complete_batch(self, batch: int) -> None:
        with self._changed:
            if self._running == batch:
                self._running = None
                self.ended.append(batch)
                self._changed.notify_all()

    def report_lost(self, lost: LostRecords) -> None:
        self.lost_parts.append(lost)

    def _heed(self) -> None:
        self.silent.wait()
        if self.refusal:
            raise InvalidInputError(self.refusal)


def check_chains(batches: list[BatchOffset], starts: dict[int, int], moved: dict[int, int] | None = None) -> None:
    """Each assignment is read from its start, without a gap or a record twice: what a cut relies on.

    Args:
        batches: in the order of planning.
        starts: by assignment version.
        moved: by assignment version, where it went on instead because records are gone.
    """
    at = starts | (moved or {})
    for batch in batches:
        assert batch.epoch == EPOCH, batch
        assert set(batch.assignment_versions) == set(batch.spans), batch
        for tp, span in batch.spans.items():
            assignment_version = batch.assignment_versions[tp]
            assert span.start == at[assignment_version], (
                f"{tp} under {assignment_version} begins at {span.start}, was at {at[assignment_version]}"
            )
            at[assignment_version] = span.end


@dataclass
class Region:
    """A source's `SourceQuery` in a region of one, over a real channel."""

    place: Place
    desk: Desk
    sessions: SourceSessions
    board: ChannelServer
    made: list[tuple[SourceQuery, ChannelClient]] = field(default_factory=list)
    batches: list[BatchOffset] = field(default_factory=list)
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    def query(self, identity: str = "q1", **more: object) -> SourceQuery:
        """A query of the region."""
        options = parse_options(self.place.options(regionSeat=self.session, **more), streaming=True)
        handlers = {"done": lambda message: None}
        line = ChannelClient(self.board.address, handlers)
        line.announce_query(identity)
        query = SourceQuery(options, identity, partial(_region_place, line=line, session=self.session))
        self.made.append((query, line))
        line.start()
        return query

    def trigger(self, query: SourceQuery, start: BatchOffset) -> BatchOffset | None:
        """A trigger as Spark makes it: `latestOffset`, then `partitions`."""
        query.commit_completed_batch(start)
        planned = query.plan_batch(start, limited=True)
        if planned is None:
            return None
        assert query.ranges_to_replay(start, planned) == planned
        self.batches.append(planned)
        return planned

    def batch(self, query: SourceQuery, start: BatchOffset) -> BatchOffset:
        """Triggers until there is a batch."""
        found: list[BatchOffset] = []

        def planned() -> bool:
            batch = self.trigger(query, start)
            if batch is not None:
                found.append(batch)
            return bool(found)

        until(planned, "a batch is planned", STILL_S)
        return found[0]

    def spans(self, batch: BatchOffset) -> dict[int, tuple[int, int]]:
        """Start and end by partition."""
        return {tp.partition: (span.start, span.end) for tp, span in batch.spans.items()}

    def check(self) -> None:
        """Check that all plans so far are in order, and that nothing is committed to the group."""
        moved = {part.assignment_version: part.next for lost in self.desk.lost_parts for part in lost.parts}
        check_chains(self.batches, self.desk.starts, moved)
        assert self.place.committed() == {}


def _region_place(options: object, catalog: object, line: ChannelClient, session: str) -> RegionOffsets:
    return RegionOffsets(options, catalog, line, session)  # type: ignore[arg-type]


@pytest.fixture
def region(place: Place) -> Iterator[Region]:
    """A topic with two partitions of ten records each, none of them handed out."""
    topic_id = place.make()
    place.produce(range(20))
    sessions = SourceSessions()
    desk = Desk(place.topic(), uuid.UUID(topic_id))
    board = ChannelServer(handlers={"lost": sessions.report_lost}, answers={"ask": sessions.answer_request})
    region = Region(place, desk, sessions, board)
    sessions.add(region.session, desk)
    yield region
    desk.silent.set()
    for query, line in region.made:
        line.close()
        query.close()
    board.close()
