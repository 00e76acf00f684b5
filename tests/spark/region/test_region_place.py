"""A query in a region by Spark's calls, without a JVM: its application is a seat in this process, on a real channel."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from tests.spark.queries import Run, own_signals, place
from tests.spark.region.desk import EPOCH, GENERATION, Region, region
from tests.spark.region.faults import FAULTS
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import InvalidInputError, KafkaError, OffsetError
from kohort.ids import TopicPartition
from kohort.spark import source_sessions as sessions
from kohort.spark.source import region_offsets
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.catalog import PresentTopics
from kohort.spark.source.query import SourceQuery
from kohort.spark.source.region_offsets import RegionOffsets

__all__ = ["own_signals", "place", "region"]
pytestmark = [pytest.mark.filterwarnings("default"), LAST_RESORT]

FIRST = BatchOffset("q1")
PATIENCE_S = STILL_S
"""How long a day's waits may take; less where they are to fail."""


def test_partitions_start_where_they_are_handed_out_and_only_the_region_commits(region: Region) -> None:
    region.desk.hand({0: 4, 1: 0})
    query = region.query(startingOffsets="latest")
    batch = region.batch(query, FIRST)
    assert region.spans(batch) == {0: (4, 10), 1: (0, 10)}
    assert (batch.epoch, batch.generation, batch.batch) == (EPOCH, GENERATION, 1)
    assert set(batch.assignment_versions.values()) == {1, 2} and batch.ids == {region.desk.topic: region.desk.topic_id}
    assert BatchOffset.from_json(batch.to_json()) == batch
    assert region.desk.begun == [1] and region.desk.ended == []
    assert region.trigger(query, batch) is None
    until(lambda: region.desk.ended == [1], "the end is told")
    region.check()


def test_a_pattern_reads_none_of_kafkas_own_topics(region: Region) -> None:
    """A KIP-848 coordinator assigns them where their names match."""
    region.desk.hand({0: 0})
    region.desk.hand({0: 0}, topic="__consumer_offsets", topic_id=uuid.uuid4())
    query = region.query(subscribe=None, subscribePattern=f"{region.desk.topic}|__consumer")
    batch = region.batch(query, FIRST)
    assert [part.topic for part in batch.spans] == [region.desk.topic]
    assert region.desk.lost_parts == []


def a_day(region: Region) -> None:
    """Partitions go and come back, a batch ends by the application's word, looks miss what is there; all is checked."""
    desk = region.desk
    desk.hand({0: 0, 1: 0})
    query = region.query(maxOffsetsPerTrigger=6)
    one = region.batch(query, FIRST)
    two = region.batch(query, one)
    assert query.sink_done(two)
    until(lambda: desk.ended == [1, 2], "the ends are told", PATIENCE_S)
    desk.take(1)
    three = region.batch(query, two)
    assert set(region.spans(three)) == {0}
    assert query.sink_done(three)
    until(lambda: desk.ended == [1, 2, 3], "the end is told", PATIENCE_S)
    desk.hand({1: 2})
    four = region.batch(query, three)
    assert region.spans(four)[1][0] == 2
    query.commit_completed_batch(four)
    present, looked = query._catalog.describe_existing, []

    def short(topics: Any) -> PresentTopics:
        """A broker that does not know all partitions yet, once."""
        there = present(topics)
        looked.append(there)
        return replace(there, partitions=there.partitions - {TopicPartition(desk.topic, 1)})

    query._coordinator._looked_at = float("-inf")  # type: ignore[attr-defined]
    with mock.patch.object(query._catalog, "describe_existing", short):
        region.trigger(query, four)
    assert looked
    query._coordinator._looked_at = float("-inf")  # type: ignore[attr-defined]
    last = region.batches[-1]
    region.place.produce(range(20, 30))
    for _ in range(5):
        last = region.trigger(query, last) or last
    until(lambda: desk.ended == desk.begun, "the ends are told", PATIENCE_S)
    region.check()
    reached = [batch for batch in region.batches if TopicPartition(desk.topic, 1) in batch.spans]
    assert reached[-1].end_offsets()[TopicPartition(desk.topic, 1)] == 15, "all is read"


def test_partitions_leave_and_return_between_batches(region: Region) -> None:
    a_day(region)


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_the_checks_of_a_day_see_faults(
    region: Region, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(RegionOffsets, name, fault)
    monkeypatch.setattr("tests.spark.region.desk.STILL_S", 2.0)
    monkeypatch.setitem(a_day.__globals__, "PATIENCE_S", 2.0)
    with pytest.raises((AssertionError, KafkaError)):
        a_day(region)


def test_what_changes_between_look_and_begin_is_planned_anew(region: Region) -> None:
    region.desk.hand({0: 0, 1: 0})
    query = region.query()

    def change() -> None:
        region.desk.before_begin = lambda: None
        region.desk.take(0)

    region.desk.before_begin = change
    batch = region.trigger(query, FIRST)
    assert batch is not None and region.spans(batch) == {1: (0, 10)}
    assert region.desk.begun == [1]
    region.check()


def test_while_nothing_may_be_planned_a_trigger_waits_for_a_second_and_no_longer(region: Region) -> None:
    region.desk.hand({0: 0, 1: 0})
    region.desk.hold(True)
    query = region.query()
    began = time.monotonic()
    for _ in range(2):
        assert region.trigger(query, FIRST) is None
    assert time.monotonic() - began >= 1.9
    assert region.desk.waits == [1_000, 1_000]
    region.desk.hold(False)
    assert region.spans(region.batch(query, FIRST)) == {0: (0, 10), 1: (0, 10)}


def test_a_query_that_has_nothing_plans_nothing(region: Region) -> None:
    query = region.query()
    assert region.trigger(query, FIRST) is None
    region.desk.hand({0: 10})
    assert region.trigger(query, FIRST) is None, "all is read"
    assert region.desk.begun == []


def test_looks_that_find_nothing_are_a_tenth_of_a_second_apart(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seat lets a source wait, and only for what is left of that: so the other source of a join goes on."""
    monkeypatch.setattr(region_offsets, "IDLE_MS", 1_000_000)
    region.desk.hand({0: 0})
    query = region.query()
    batch = region.batch(query, FIRST)
    assert region.trigger(query, batch) is None
    assert region.desk.idle == [None, None], "there may be more behind a batch"
    assert region.trigger(query, batch) is None
    idle = region.desk.idle[-1]
    assert idle is not None and idle.version == 1 and idle.ms <= sessions.IDLE_MS
    monkeypatch.setattr(region_offsets, "IDLE_MS", 0)
    assert region.trigger(query, batch) is None
    assert region.desk.idle[-1] is None, "it is time to look again"


def test_a_batch_that_may_not_begin_is_asked_for_again_at_once(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_offsets, "IDLE_MS", 1_000_000)
    region.desk.hand({0: 0})
    query = region.query()

    def hold() -> None:
        region.desk.before_begin = lambda: None
        region.desk.hold(True)

    region.desk.before_begin = hold
    assert region.trigger(query, FIRST) is None and region.desk.begun == []
    region.desk.hold(False)
    assert region.spans(region.batch(query, FIRST)) == {0: (0, 10)}
    assert region.desk.idle == [None, None, None], "twice in the first trigger"


def test_after_a_reset_the_sessions_starts_count_and_not_the_folders(region: Region) -> None:
    """A derived folder ends with a batch of the epoch before, which may name what others have now."""
    old = {tp: OffsetRange(0, 9) for tp in region.place.partitions()}
    start = BatchOffset("q1", 7, 2, old, {region.desk.topic: region.desk.topic_id}, region.place.group, EPOCH - 1, {})
    region.desk.hand({1: 3})
    query = region.query()
    batch = region.batch(query, start)
    assert region.spans(batch) == {1: (3, 10)} and batch.batch == 8
    region.check()


def test_a_batch_of_an_earlier_run_is_not_read_again(region: Region) -> None:
    region.desk.hand({0: 0})
    planned = region.batch(region.query(), FIRST)
    with pytest.raises(InvalidInputError, match=r"batch 1 was planned by an earlier run, in epoch 5.*SparkRegion"):
        region.query().ranges_to_replay(FIRST, planned)


def test_limits_of_a_batch_hold(region: Region) -> None:
    region.desk.hand({0: 0, 1: 0})
    batch = region.batch(region.query(maxOffsetsPerTrigger=5), FIRST)
    assert sorted(span.offset_count for span in batch.spans.values()) == [2, 3]
    region.desk.complete_batch(1)
    query = region.query(minOffsetsPerTrigger=21, maxTriggerDelay="1h")
    first = region.batch(query, FIRST)
    assert sum(span.offset_count for span in first.spans.values()) == 20, "a run's first trigger waits for no more"
    region.place.produce(range(20, 22))
    assert region.trigger(query, first) is None
    few = region.batch(region.query(maxBytesPerTrigger=1), FIRST)
    assert sum(span.offset_count for span in few.spans.values()) == 1


def test_a_run_does_not_outlive_its_epoch(region: Region) -> None:
    region.desk.hand({0: 0})
    query = region.query()
    batch = region.batch(query, FIRST)
    region.desk.epoch += 1
    with pytest.raises(InvalidInputError, match=r"gone on to epoch 6, this run is of epoch 5"):
        region.trigger(query, batch)


@pytest.mark.parametrize("how", ["gone", "silent", "refuses"])
def test_without_its_application_a_query_ends_within_five_seconds(region: Region, how: str) -> None:
    region.desk.hand({0: 0})
    query = region.query()
    batch = region.batch(query, FIRST)
    assert region_offsets.ANSWER_TIMEOUT_S <= 4.0
    if how == "gone":
        region.board.close()
        words = "application is gone; a query in a region does nothing without the application"
    elif how == "silent":
        region.desk.silent.clear()
        words = "did not answer within 4 s; a query in a region does nothing"
    else:
        region.sessions.remove_session(region.session)
        words = "the option regionSeat is set by SparkRegion alone"
    with pytest.raises(KafkaError, match=words):
        region.trigger(query, batch)
    region.check()


def test_the_word_that_a_sink_is_done_ends_nothing_when_nobody_hears_it(region: Region) -> None:
    region.desk.hand({0: 0})
    query = region.query()
    batch = region.batch(query, FIRST)
    region.board.close()
    until(lambda: not region.made[0][1].connected, "it is known")
    assert query.sink_done(batch)
    with pytest.raises(KafkaError, match="the application is gone"):
        query.commit_completed_batch(batch)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("where", ["below", "beyond"])
def test_records_that_are_gone_are_reported(region: Region, strict: bool, where: str) -> None:
    first = 0
    if where == "below":
        region.place.admin.delete_records(dict.fromkeys(region.place.partitions(), 4)).all()
        first = 4
    on = first if where == "below" else 10
    region.desk.hand({0: 2 if where == "below" else 12, 1: 5})
    query = region.query(failOnDataLoss=str(strict).lower())
    text = f"holds offsets {first} to 10, the region was at"
    if strict:
        with pytest.raises(OffsetError, match=text):
            region.batch(query, FIRST)
    else:
        assert region.spans(region.batch(query, FIRST)) == {0: (on, 10), 1: (5, 10)}
    until(lambda: region.desk.lost_parts, "it is told")
    (lost,) = region.desk.lost_parts
    (part,) = lost.parts
    assert lost.fatal is strict and text in lost.text
    assert (part.topic, part.topic_id, part.partition) == (region.desk.topic, region.desk.topic_id, 0)
    assert (part.assignment_version, part.at, part.next) == (1, region.desk.starts[1], on)
    region.check()


@pytest.mark.parametrize("strict", [True, False])
def test_a_leader_that_was_paused_takes_no_records_away(
    region: Region, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """The old leader wakes as if still leader, and its log ends before records read from its successor."""
    stale, real = iter(range(2)), RangeReader.current_offsets

    def asleep(self: RangeReader, wanted: Any) -> Any:
        found = real(self, wanted)
        if set(wanted.values()) == {"latest"} and next(stale, None) is not None:
            found = {tp: replace(at, offset=3) for tp, at in found.items()}
        return found

    region.desk.hand({0: 5, 1: 5})
    query = region.query(failOnDataLoss=str(strict).lower())
    monkeypatch.setattr(RangeReader, "current_offsets", asleep)
    until(lambda: region.trigger(query, FIRST) is not None, "there is a batch")
    assert region.spans(region.batches[-1]) == {0: (5, 10), 1: (5, 10)}
    assert next(stale, None) is None and region.desk.lost_parts == []
    region.check()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_gone_is_reported_and_another_of_its_name_is_not_read(
    region: Region, monkeypatch: pytest.MonkeyPatch, strict: bool, again: bool
) -> None:
    monkeypatch.setattr(region_offsets, "LOOK_S", 0.0)
    region.desk.hand({0: 0, 1: 3})
    query = region.query(failOnDataLoss=str(strict).lower())
    batch = region.batch(query, FIRST)
    region.place.delete()
    made = region.place.make() if again else None
    if again:
        region.place.produce(range(4))
    if strict:
        with pytest.raises(OffsetError, match="was deleted and made again" if again else "was deleted"):
            until(lambda: region.trigger(query, batch) is not None, "it is told")
    else:
        until(lambda: region.trigger(query, batch) is not None or region.desk.lost_parts, "it is told", STILL_S)
        assert region.trigger(query, batch) is None, "what is there now was not handed out"
    until(lambda: region.desk.lost_parts, "the application is told")
    (lost,) = region.desk.lost_parts
    assert lost.fatal is strict
    assert [(part.partition, part.at, part.next) for part in lost.parts] == [(0, 10, -1), (1, 10, -1)]
    if made is not None and not strict:
        region.desk.hand({0: 0, 1: 0}, topic_id=uuid.UUID(made))
        assert region.spans(region.batch(query, batch)) == {0: (0, 2), 1: (0, 2)}
        assert len(region.desk.lost_parts) == 1


def test_the_progress_names_generation_and_lag(region: Region) -> None:
    region.desk.hand({0: 4})
    query = region.query()
    assert query.progress_report() is None
    region.batch(query, FIRST)
    report = query.progress_report()
    assert report is not None and (report["generation"], report["lag"], report["member"]) == (GENERATION, 0, None)


@pytest.mark.usefixtures("own_signals")
def test_a_session_without_an_application_is_refused(region: Region) -> None:
    options = region.place.options(regionSeat=region.session)
    with Run(options) as run, pytest.raises(InvalidInputError, match="Spark Connect"):
        run.plan()
    with pytest.raises(InvalidInputError, match=r"AvailableNow.*caught-up"):
        Run(options, now=True)


def test_a_session_is_asked_before_anything_else_of_a_query(region: Region) -> None:
    """The application's refusal comes before brokers are asked for offsets."""
    region.desk.refusal = "the region has stopped"
    query: SourceQuery = region.query(subscribe="no-such-topic")
    with pytest.raises(InvalidInputError, match="the region has stopped"):
        region.trigger(query, FIRST)
