"""A real query whose application hands its partitions out, takes one away, gives it back and holds it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Sink, Stage
from tests.spark.region.desk import EPOCH, Desk, check_chains
from tests.support.waiting import LAST_RESORT

from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source_sessions import SOURCE_SESSIONS

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]

AT_ONCE = {"processingTime": "0 seconds"}


@pytest.fixture
def desk(stage: Stage) -> Iterator[Desk]:
    topic = stage.admin.describe_topics([stage.topic]).result(stage.topic)
    desk = Desk(stage.topic, topic.topic_id)
    stage.signs["desk"] = lambda: (len(desk.begun), len(desk.ended), len(desk.waits) // 100)
    yield desk
    desk.hold(False)


@pytest.fixture
def session(desk: Desk) -> Iterator[str]:
    session = uuid.uuid4().hex
    SOURCE_SESSIONS.add(session, desk)
    yield session
    SOURCE_SESSIONS.remove_session(session)


def planned(checkpoint: Path) -> list[BatchOffset]:
    """The offsets of the batches in a checkpoint, in order."""
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=lambda f: int(f.name)
    )
    return [BatchOffset.from_json(json.loads(file.read_text().splitlines()[-1])) for file in files]


def rows(sink: Sink) -> list[tuple[int, int]]:
    """Partition and offset of each row that the sink has."""
    with sink.lock:
        return sorted((row[1], row[2]) for batch in sink.batches.values() for row in batch)


def test_a_query_reads_what_its_session_assigns(
    run: Callable[..., Any], stage: Stage, desk: Desk, session: str
) -> None:
    stage.produce(80)  # twenty in each of four partitions
    desk.hand({0: 0, 1: 5})
    sink = Sink()
    query = run(sink, trigger=AT_ONCE, regionSeat=session, maxOffsetsPerTrigger=8)
    stage.until(lambda: len(sink.every) >= 2, "it reads")
    desk.take(1)
    stage.until(lambda: [row for row in rows(sink) if row[0] == 0] == [(0, n) for n in range(20)], "it reads on")
    reached = max((offset for number, offset in rows(sink) if number == 1), default=4) + 1
    assert [row for row in rows(sink) if row[0] == 1] == [(1, n) for n in range(5, reached)]
    desk.hand({1: 12})
    stage.until(lambda: (1, 19) in rows(sink), "it has the partition again, from where the region says")
    again = sorted([(1, n) for n in range(5, reached)] + [(1, n) for n in range(12, 20)])
    assert [row for row in rows(sink) if row[0] == 1] == again
    assert query.isActive and stage.committed() == {} and stage.members() == {}

    desk.hold(True)
    stage.produce(8, partitions=[0, 1])
    asked = len(desk.waits)
    until_s = time.monotonic() + 3.0
    stage.until(lambda: time.monotonic() >= until_s and len(desk.waits) >= asked + 3, "it is held for three seconds")
    assert [row for row in rows(sink) if row[1] >= 20] == []
    desk.hold(False)
    stage.until(lambda: {(0, 23), (1, 23)} <= set(rows(sink)), "it goes on")

    desk.hold(True)
    asked = len(desk.waits)
    stage.until(lambda: len(desk.waits) >= asked + 2, "it is held")
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30 and query.exception() is None
    batches = planned(stage.folder / "checkpoint-q")
    check_chains(batches, desk.starts)
    assert {batch.epoch for batch in batches} == {EPOCH}
    assert desk.ended == desk.begun == [batch.batch for batch in batches]
    assert rows(sink) == sorted([(0, n) for n in range(24)] + again + [(1, n) for n in range(20, 24)])


def test_what_can_not_be_ends_the_query_with_its_reason(run: Callable[..., Any], stage: Stage, session: str) -> None:
    for trigger, options, words in (
        (AT_ONCE, {"regionSeat": "of nobody"}, "regionSeat is set by SparkRegion alone"),
        ({"availableNow": True}, {"regionSeat": session}, "runs without a trigger"),
    ):
        query = run(Sink(), words[:4], trigger, **options)
        with pytest.raises(Exception, match=words):
            stage.finished(query)
