"""`spark.readStream.format("kohort")`: a query alone in its group."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Sink, Stage
from tests.support.waiting import LAST_RESORT

from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.client.offsets import OffsetAndMetadata

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
NOW = {"availableNow": True}


def source_processes() -> list[int]:
    """The driver-side processes of queries under this test run."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return [int(pid) for pid, _, args in rows if "python_streaming_source_runner" in args and ours(int(pid))]


def test_available_now_reads_all_once_in_fair_batches_and_commits_the_last(
    run: Callable[..., Any], stage: Stage
) -> None:
    stage.produce(1000)
    sink = Sink()
    stage.finished(run(sink, trigger=NOW, maxOffsetsPerTrigger=300))
    assert sink.values() == list(range(1000))
    assert sink.sizes() == [300, 300, 300, 100]
    by_partition = [row[1] for row in sink.batches[min(n for n in sink.batches if sink.batches[n])]]
    assert [by_partition.count(number) for number in range(4)] == [75] * 4
    assert {offset for offset, _ in stage.committed().values()} == {250}
    assert stage.lag() == 0
    stage.produce(200)
    again = Sink()
    stage.finished(run(again, trigger=NOW))
    assert again.values() == list(range(1000, 1200))
    assert stage.lag() == 0
    assert {json.loads(text)["batch"] for _, text in stage.committed().values()} == {5}


def test_the_end_of_a_query_is_noticed_by_its_group_at_once(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(10)
    sink = Sink()
    query = run(sink)
    stage.until(lambda: sink.values() == list(range(10)), "the records arrive")
    stage.until(lambda: stage.lag() == 0, "the finished batch is committed")
    assert list(stage.members().values()) == [(0, 1, 2, 3)]

    def reported() -> Any:
        progress = query.lastProgress
        return progress and progress["sources"][0]["metrics"].get("lag")

    stage.until(lambda: reported() == "0", "the query reports that there is no lag")
    query.stop()
    stage.until(lambda: not stage.members(), "the member leaves, long before its session would end")
    stage.until(lambda: not source_processes(), "its process ends")


def test_an_unfinished_batch_is_read_again_exactly(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(400)
    sink = Sink()

    def fail_once(number: int, rows: int) -> None:
        if rows and sink.batches and any(sink.batches.values()):
            raise RuntimeError("the sink failed on purpose")

    sink.before = fail_once
    query = run(sink, maxOffsetsPerTrigger=100, trigger=NOW)
    with pytest.raises(Exception, match="failed on purpose"):
        stage.finished(query)
    failed_number, failed_rows = sink.every[-1]
    stage.until(lambda: not stage.members(), "the member leaves")
    assert sum(offset for offset, _ in stage.committed().values()) == 100
    stage.produce(100)
    sink.before = None
    stage.finished(run(sink, maxOffsetsPerTrigger=150, trigger=NOW))
    assert sink.batches[failed_number] == failed_rows
    assert sink.values() == list(range(500))
    assert stage.lag() == 0


def take_over(stage: Stage, offsets: dict[int, int]) -> None:
    """Another member of the group reads on: it commits these offsets, with no stamp of a query."""
    with GroupMember(stage.servers, stage.group, topics=[stage.topic]) as other:
        stage.assigned(other, PARTITIONS)
        other.commit({stage.partitions[n]: OffsetAndMetadata(offset) for n, offset in offsets.items()})


@pytest.mark.parametrize(("planned", "again"), [("owned", 75), ("all", 100), ("none", 0)])
def test_ranges_that_another_member_has_read_meanwhile_are_left_to_it(
    run: Callable[..., Any], stage: Stage, planned: str, again: int
) -> None:
    """A query fails in a batch, partition 0 is read on by another member, the query comes back: no crash loop."""
    stage.produce(200)
    sink = Sink()

    def fail(number: int, rows: int) -> None:
        if rows:
            raise RuntimeError("the sink failed on purpose")

    sink.before = fail
    query = run(sink, maxOffsetsPerTrigger=100, trigger=NOW)
    with pytest.raises(Exception, match="failed on purpose"):
        stage.finished(query)
    stage.until(lambda: not stage.members(), "the member leaves")
    number = sink.every[-1][0]
    take_over(stage, {0: 40})
    sink.before = None
    stage.finished(run(sink, trigger=NOW, plannedRanges=planned))
    assert len(sink.batches[number]) == again
    rest = [row for n, rows in sink.batches.items() if n > number for row in rows]
    first = {0: min((row[2] for row in rest if row[1] == 0), default=None)}
    assert first[0] == 40
    everything = {(row[1], row[2]) for rows in sink.batches.values() for row in rows}
    assert everything >= {(p, o) for p in (1, 2, 3) for o in range(50)}
    assert stage.lag() == 0


def test_the_checkpoint_raises_only_its_own_commits(run: Callable[..., Any], stage: Stage) -> None:
    """The group's offset wins over the checkpoint as soon as someone else has committed.

    Partition 1 looks as it does when the last batch's commit was cut off.
    """
    stage.produce(80)
    sink = Sink()
    stage.finished(run(sink, trigger=NOW))
    stage.until(lambda: not stage.members(), "the member leaves")
    own = json.loads(stage.committed()[1][1])
    take_over(stage, {0: 5})
    with GroupMember(stage.servers, stage.group, topics=[stage.topic]) as cut_off:
        stage.assigned(cut_off, PARTITIONS)
        earlier = json.dumps({**own, "batch": own["batch"] - 1})
        cut_off.commit({stage.partitions[1]: OffsetAndMetadata(5, earlier)})
    again = Sink()
    stage.finished(run(again, trigger=NOW))
    assert sorted((row[1], row[2]) for rows in again.batches.values() for row in rows) == [
        (0, offset) for offset in range(5, 20)
    ]
    assert stage.lag() == 0


def test_without_a_group_the_checkpoint_alone_counts(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(40)
    options = {"group.id": None, "startingOffsets": "latest"}
    sink = Sink()
    stage.finished(run(sink, trigger=NOW, **options))
    assert sink.values() == []
    stage.produce(40)
    stage.finished(run(sink, trigger=NOW, **options))
    assert sink.values() == list(range(40, 80))
    assert stage.members() == {}
    assert stage.committed() == {}


def test_assigned_partitions_are_read_without_membership_and_committed(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(40)
    sink = Sink()
    assign = json.dumps({stage.topic: [1, 3]})
    stage.finished(run(sink, trigger=NOW, subscribe=None, assign=assign))
    assert sink.values() == [number for number in range(40) if number % 2]
    assert {number: offset for number, (offset, _) in stage.committed().items()} == {1: 10, 3: 10}
    assert stage.members() == {}


def test_few_records_wait_until_there_are_enough_but_not_at_first(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(5)
    sink = Sink()
    run(sink, minOffsetsPerTrigger=20, maxTriggerDelay="1h")
    stage.until(lambda: len(sink.values()) == 5, "the first trigger waits for no more")
    stage.produce(5)
    stage.produce(20)
    stage.until(lambda: len(sink.values()) == 30, "there are enough")
    assert sink.sizes() in ([5, 25], [5, 20, 5], [5, 21, 4], [5, 22, 3], [5, 23, 2], [5, 24, 1]), "never few"


def test_a_byte_limit_is_kept_by_the_size_of_records_seen(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(1000)
    sink = Sink()
    stage.finished(run(sink, trigger=NOW, maxBytesPerTrigger=1500))
    assert sink.values() == list(range(1000))
    assert len(sink.sizes()) >= 3
    assert max(sink.sizes()) < 1000


def test_lost_records_end_a_query_or_are_passed_over(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(40)
    sink = Sink()
    stage.finished(run(sink, trigger=NOW))
    stage.produce(40)
    stage.admin.delete_records(dict.fromkeys(stage.partitions, 15)).all()
    query = run(sink, trigger=NOW)
    with pytest.raises(Exception, match="records are gone"):
        stage.finished(query)
    stage.finished(run(sink, trigger=NOW, failOnDataLoss="false"))
    assert sink.values() == [*range(40), *range(60, 80)]


def test_a_topic_made_again_ends_a_query_or_is_read_from_its_beginning(run: Callable[..., Any], stage: Stage) -> None:
    stage.produce(200)
    sink = Sink()
    stage.finished(run(sink, trigger=NOW))
    assert sink.values() == list(range(200))
    stage.admin.delete_topics([stage.topic]).all()
    stage.admin.create_topics([NewTopic(stage.topic, PARTITIONS)]).all()
    stage.produce(500)
    query = run(sink, trigger=NOW)
    with pytest.raises(Exception, match="deleted and made again"):
        stage.finished(query)
    stage.finished(run(sink, trigger=NOW, failOnDataLoss="false"))
    assert sink.values() == list(range(700))
    assert stage.lag() == 0


def test_an_unknown_topic_fails_the_query_with_its_name(run: Callable[..., Any], stage: Stage) -> None:
    query = run(Sink(), trigger=NOW, subscribe="no-such-topic")
    with pytest.raises(Exception, match="no topic no-such-topic"):
        stage.finished(query)


def test_a_second_sink_of_one_data_frame_is_refused_and_the_first_continues(spark: Any, stage: Stage) -> None:
    stage.produce(40)
    frame = spark.readStream.format("kohort").options(**stage.options()).load()
    sinks, queries = (Sink(), Sink()), []
    stage.signs["batches"] = lambda: [len(sink.every) for sink in sinks]
    try:
        for number, sink in enumerate(sinks):
            writer = frame.writeStream.foreachBatch(sink).trigger(processingTime="200 milliseconds")
            queries.append(writer.option("checkpointLocation", str(stage.folder / f"checkpoint-{number}")).start())
            if number == 0:
                stage.until(lambda: stage.lag() == 0, "the first has read all")
        with pytest.raises(Exception, match=r"another query reads this same load\(\) already"):
            stage.finished(queries[1])
        stage.produce(40)
        stage.until(lambda: sinks[0].values() == list(range(80)), "the first reads on, alone")
        assert sinks[1].every == []
    finally:
        for query in queries:
            query.stop()
