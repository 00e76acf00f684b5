"""Two queries of a region through days of chance: partitions move at cuts, batches are cut off, all go back.

The region here is a model of what a checkpoint relies on: each query contributes its last finished batch. For each
partition that is the batch's end, if it was planned under the query's current assignment version, else the given start.
Each record must be published once, whatever happened in between.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.spark.queries import Place, place
from tests.spark.region.desk import Desk
from tests.spark.region.faults import always_at_the_start, ignores_assignment_versions, no_assignment_versions
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort.client.producer.producer import Producer
from kohort.ids import TopicPartition
from kohort.spark.driver_channel import ChannelClient, ChannelServer
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.query import SourceQuery
from kohort.spark.source.region_offsets import RegionOffsets
from kohort.spark.source_sessions import SourceSessions

__all__ = ["place"]
pytestmark = [pytest.mark.filterwarnings("default"), LAST_RESORT]

QUERIES, PARTITIONS, STEPS = 2, 4, 100
SEEDS = 6


class Runner:
    """One query of the region, run by run: what Spark, its checkpoint and its staging would be."""

    def __init__(self, days: Days, name: str) -> None:
        self.days, self.name = days, name
        self.kept = BatchOffset(name)
        """The last batch of the last sequence: a new run's checkpoint ends with it."""
        self.begin({})

    def begin(self, starts: dict[int, int]) -> None:
        """A new run, with these partitions."""
        self.finished, self.planned = self.kept, None
        self.new: list[BatchOffset] = []  # finished since the last cut
        self.held: dict[int, tuple[int, int]] = {}  # by partition, assignment version and start
        self.desk = Desk(self.days.topic, self.days.topic_id)
        self.desk.epoch = self.days.epoch
        self.hand(starts)
        session = uuid.uuid4().hex
        self.days.sessions.add(session, self.desk)
        self.line = ChannelClient(self.days.board.address, {})
        self.line.announce_query(self.name)
        options = parse_options(self.days.place.options(regionSeat=session, maxOffsetsPerTrigger=7))
        self.query = SourceQuery(options, self.name, partial(RegionOffsets, line=self.line, session=session))
        self.line.start()

    planned: BatchOffset | None

    def hand(self, starts: dict[int, int]) -> None:
        for number, start in starts.items():
            self.desk.hand({number: start})
            self.held[number] = (max(self.desk.starts), start)

    def plan(self) -> None:
        """A trigger; the batch before has to be finished."""
        if self.planned is None:
            self.query.commit_completed_batch(self.finished)
            self.planned = self.query.plan_batch(self.finished, limited=True)

    def finish(self, *, reported: bool) -> None:
        """The batch is in the checkpoint, of which the application may tell before Spark does."""
        if self.planned is not None:
            self.finished, self.planned = self.planned, None
            self.new.append(self.finished)
            if reported:
                assert self.query.sink_done(self.finished)

    def settle(self) -> None:
        """No batch runs, and the seat knows it."""
        self.finish(reported=False)
        self.query.commit_completed_batch(self.finished)
        until(lambda: self.desk._running is None, "the end is told", STILL_S)

    def contribution(self) -> dict[int, int]:
        """Where each partition has got to, by the last batch in the checkpoint."""
        last, found = self.finished, {}
        for number, (assignment_version, start) in self.held.items():
            tp = TopicPartition(self.days.topic, number)
            same = last.epoch == self.days.epoch and last.assignment_versions.get(tp) == assignment_version
            found[number] = last.spans[tp].end if same else start
        return found

    def close(self) -> None:
        self.line.close()
        self.query.close()


class Days:
    """The region: its offsets of the last sequence, and what is published."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.chance = place, random.Random(seed)
        self.topic = place.topic()
        self.topic_id = uuid.UUID(place.make(count=PARTITIONS))
        self.sessions = SourceSessions()
        self.board = ChannelServer(answers={"ask": self.sessions.answer_request})
        self.epoch = 0
        self.at = dict.fromkeys(range(PARTITIONS), 0)
        self.sent = dict.fromkeys(range(PARTITIONS), 0)
        self.published: list[tuple[int, int]] = []
        self.moves = self.resets = 0
        self.runners = [Runner(self, f"q{number}") for number in range(QUERIES)]
        self.produce()
        for number in range(PARTITIONS):
            self.chance.choice(self.runners).hand({number: 0})

    def produce(self) -> None:
        with Producer(self.place.servers) as producer:
            for number in self.sent:
                more = self.chance.randrange(6)
                for _ in range(more):
                    producer.send(self.topic, b"1", partition=number)
                self.sent[number] += more

    def cut(self) -> None:
        """A sequence: what was finished since the last is published, and begins where that ended."""
        for runner in self.runners:
            found = runner.contribution()
            for batch in runner.new:
                for tp, span in batch.spans.items():
                    assert span.start == self.at[tp.partition], f"{tp} of {runner.name} begins at {span.start}"
                    self.at[tp.partition] = span.end
                    self.published += [(tp.partition, offset) for offset in range(span.start, span.end)]
            for number, end in found.items():
                assert end == self.at[number], f"{runner.name} contributes {end} of {number}, staged {self.at[number]}"
            runner.new, runner.kept = [], runner.finished

    def move(self) -> None:
        """A partition goes to another query, or, for a while, to nobody: what runs is finished, then the cut."""
        number = self.chance.randrange(PARTITIONS)
        for runner in [runner for runner in self.runners if number in runner.held]:
            runner.settle()
            self.cut()
            runner.desk.take(number)
            del runner.held[number]
        self.chance.choice(self.runners).hand({number: self.at[number]})
        self.moves += 1

    def reset(self) -> None:
        """All go back to the last sequence, as runs of a new epoch."""
        self.epoch += 1
        self.resets += 1
        homes = {number: self.chance.randrange(QUERIES) for number in range(PARTITIONS)}
        for place_, runner in enumerate(self.runners):
            runner.close()
            runner.begin({number: self.at[number] for number, home in homes.items() if home == place_})

    def live(self) -> None:
        """Every step by chance; in the end everything is read."""
        calls: list[Callable[[Runner], None]] = [
            Runner.plan,
            Runner.plan,
            partial(Runner.finish, reported=True),
            partial(Runner.finish, reported=False),
        ]
        for _ in range(STEPS):
            what = self.chance.random()
            if what < 0.7:
                self.chance.choice(calls)(self.chance.choice(self.runners))
            elif what < 0.8:
                self.cut()
            elif what < 0.85:
                self.produce()
            elif what < 0.98:
                self.move()
            else:
                self.reset()
        for _ in range(100):
            for runner in self.runners:
                runner.plan()
                runner.finish(reported=False)
            self.cut()
            if self.at == self.sent:
                break
        assert sorted(self.published) == [(p, offset) for p, end in self.sent.items() for offset in range(end)]

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        self.board.close()


@pytest.fixture
def days(place: Place) -> Iterator[Callable[[int], Days]]:
    made: list[Days] = []

    def make(seed: int) -> Days:
        made.append(Days(Place(place.servers, place.admin), seed))
        return made[-1]

    yield make
    for member in made:
        member.close()


def test_whatever_happens_every_record_is_published_once(days: Callable[[int], Days]) -> None:
    every = [days(seed) for seed in range(SEEDS)]
    for member in every:
        member.live()
        assert member.place.committed(count=PARTITIONS) == {}
    assert sum(query.moves for query in every) > 20 and sum(query.resets for query in every) > 5


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_keep_positions", ignores_assignment_versions),
        ("_keep_positions", always_at_the_start),
        ("wait_assigned_partitions", no_assignment_versions),
    ],
)
def test_faults_are_seen(
    days: Callable[[int], Days], monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(RegionOffsets, name, fault)

    def live() -> None:
        for seed in range(SEEDS):
            days(seed).live()

    with pytest.raises(AssertionError, match=r"begins at|contributes"):
        live()
