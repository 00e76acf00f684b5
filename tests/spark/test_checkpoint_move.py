"""`kohort spark checkpoint` as files; and both sources in turn on one checkpoint, by a real Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import maven
from tests.support.waiting import LAST_RESORT

from kohort import Broker
from kohort.errors import InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.spark.checkpoint_move import BEFORE, CheckpointLog
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.kafka_offsets import encode_initial_offsets, parse_initial_offsets

pytestmark = LAST_RESORT
HEAD = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n'
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def write(
    folder: Path, batches: Mapping[int, Any], done: int, initial: Mapping[TopicPartition, int] | None = None
) -> Path:
    """A checkpoint with one Kafka source behind a file source; batches up to `done` are done."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, offset in batches.items():
        text = offset if isinstance(offset, str) else json.dumps(offset)
        (folder / "offsets" / str(number)).write_text(f'{HEAD}{{"logOffset":{number}}}\n{text}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
        if number <= done:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    if initial is not None:
        (folder / "sources" / "1").mkdir(parents=True)
        (folder / "sources" / "1" / "0").write_bytes(encode_initial_offsets(initial))
    return folder


def ours(batch: int, spans: Mapping[TopicPartition, tuple[int, int]], **more: Any) -> dict[str, Any]:
    found = {partition: OffsetRange(*span) for partition, span in spans.items()}
    return BatchOffset("q", batch, spans=found, **{"group": "", **more}).to_json()


def no_group(group: str) -> dict[TopicPartition, int]:
    raise AssertionError(f"nothing is to be asked of group {group!r}")


def source_lines(folder: Path, batch: int) -> list[str]:
    return (folder / "offsets" / str(batch)).read_text().split("\n")


def test_batches_of_sparks_source_are_shown_with_their_beginnings(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: {"t": {"0": 3}}, 1: {"t": {"0": 5, "1": 2}}}, 0, {T0: 1})
    first, second = (list(CheckpointLog(folder).ranges_of_batch(batch)) for batch in (0, 1))
    assert [(seen.done, seen.source, seen.kind, seen.starts, seen.ends) for seen in (*first, *second)] == [
        (True, "1", "kafka", {T0: 1}, {T0: 3}),
        (False, "1", "kafka", {T0: 3}, {T0: 5, T1: 2}),
    ]
    assert second[0].starting_offsets == '{"t": {"0": 5, "1": 2}}'


def test_batches_of_kohort_are_shown_with_their_group(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (1, 3)}, group="etl")}, 0)
    (seen,) = CheckpointLog(folder).ranges_of_batch(0)
    assert (seen.kind, seen.group, seen.starts, seen.ends) == ("kohort", "etl", {T0: 1}, {T0: 3})


def test_a_finished_batch_is_converted_by_its_ends_and_nothing_else_changes(tmp_path: Path) -> None:
    folder = write(tmp_path, {4: ours(4, {T0: (0, 2)}), 5: ours(5, {T0: (2, 7), T1: (0, 0)})}, 5)
    before = source_lines(folder, 5)
    planned = CheckpointLog(folder).plan_conversion("kafka", no_group)
    assert list(planned.files) == [folder / "offsets" / "5"]
    assert source_lines(folder, 5) == before, "planning writes nothing"
    planned.write()
    assert source_lines(folder, 5) == [*before[:-1], '{"t":{"0":7,"1":0}}']
    assert (folder / "offsets" / f".5{BEFORE}").read_text().split("\n") == before
    assert not (folder / "offsets" / ".5.crc").exists(), "Hadoop would refuse the new content by the old checksum"
    assert sorted(path.name for path in folder.iterdir()) == ["commits", "offsets"]


def test_an_unfinished_batch_is_converted_with_its_beginning(tmp_path: Path) -> None:
    folder = write(tmp_path, {4: ours(4, {T0: (0, 2)}), 5: ours(5, {T0: (2, 7), T1: (1, 4)})}, 4)
    CheckpointLog(folder).plan_conversion("kafka", no_group).write()
    assert source_lines(folder, 4)[-1] == '{"t":{"0":2,"1":1}}'
    assert source_lines(folder, 5)[-1] == '{"t":{"0":7,"1":4}}'


def test_a_first_batch_that_is_not_finished_gets_its_initial_offsets(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (2, 7)})}, -1)
    CheckpointLog(folder).plan_conversion("kafka", no_group).write()
    assert source_lines(folder, 0)[-1] == '{"t":{"0":7}}'
    assert parse_initial_offsets((folder / "sources" / "1" / "0").read_bytes()) == {T0: 2}


@pytest.mark.parametrize("done", [5, 4], ids=["finished", "unfinished"])
def test_partitions_that_others_have_read_continue_where_the_group_is(tmp_path: Path, done: int) -> None:
    folder = write(tmp_path, {4: ours(4, {}, group="etl"), 5: ours(5, {T0: (2, 7)}, group="etl")}, done)
    asked: list[str] = []

    def committed(group: str) -> dict[TopicPartition, int]:
        asked.append(group)
        return {T0: 9, T1: 6}

    CheckpointLog(folder).plan_conversion("kafka", committed).write()
    assert asked == ["etl"]
    assert source_lines(folder, 5)[-1] == '{"t":{"0":9,"1":6}}'
    if done == 4:
        assert source_lines(folder, 4)[-1] == '{"t":{"0":9,"1":6}}', "others have read the batch"


def test_an_unfinished_batch_of_a_group_that_has_not_moved_keeps_its_ranges(tmp_path: Path) -> None:
    folder = write(tmp_path, {4: ours(4, {}, group="etl"), 5: ours(5, {T0: (2, 7)}, group="etl")}, 4)
    CheckpointLog(folder).plan_conversion("kafka", lambda group: {T0: 2}).write()
    assert source_lines(folder, 4)[-1] == '{"t":{"0":2}}'
    assert source_lines(folder, 5)[-1] == '{"t":{"0":7}}'


def test_topics_of_the_group_that_no_batch_names_have_to_be_named(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (2, 7)}, group="etl")}, 0)
    offsets = {T0: 7, TopicPartition("u", 0): 900, TopicPartition("others", 0): 1}
    with pytest.raises(InvalidInputError, match="has offsets of others, u too.*--topic"):
        CheckpointLog(folder).plan_conversion("kafka", lambda group: offsets)
    CheckpointLog(folder, ["t", "u"]).plan_conversion("kafka", lambda group: offsets).write()
    assert source_lines(folder, 0)[-1] == '{"t":{"0":7},"u":{"0":900}}'


def test_topics_of_earlier_batches_count(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {0: ours(1, {TopicPartition("u", 0): (0, 5)}, group="etl"), 1: ours(2, {T0: (2, 7)}, group="etl")}, 1
    )
    CheckpointLog(folder).plan_conversion("kafka", lambda group: {T0: 7, TopicPartition("u", 0): 9}).write()
    assert source_lines(folder, 1)[-1] == '{"t":{"0":7},"u":{"0":9}}'


def test_a_source_that_has_read_nothing_is_not_converted(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: BatchOffset("q").to_json()}, 0)
    with pytest.raises(InvalidInputError, match="has not read anything yet"):
        CheckpointLog(folder).plan_conversion("kafka", no_group)


def test_a_source_whose_first_batch_is_a_later_one_of_the_query(tmp_path: Path) -> None:
    """The other source had data before: this one has no offset in the entries before."""
    folder = write(tmp_path, {0: "-", 1: {"t": {"0": 5}}}, 0, {T0: 2})
    (seen,) = CheckpointLog(folder).ranges_of_batch(1)
    assert (seen.starts, seen.ends) == ({T0: 2}, {T0: 5})
    CheckpointLog(folder).plan_conversion("kohort", no_group).write()
    assert BatchOffset.from_json(json.loads(source_lines(folder, 1)[-1])).spans == {T0: OffsetRange(2, 5)}


def test_the_copy_of_the_original_outlives_a_second_conversion(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (2, 7)})}, 0)
    before = source_lines(folder, 0)
    CheckpointLog(folder).plan_conversion("kafka", no_group).write()
    CheckpointLog(folder).plan_conversion("kohort", no_group).write()
    assert (folder / "offsets" / f".0{BEFORE}").read_text().split("\n") == before


@pytest.mark.parametrize("done", [1, 0, -1], ids=["finished", "unfinished", "a first batch"])
def test_a_checkpoint_of_sparks_source_is_written_as_kohorts(tmp_path: Path, done: int) -> None:
    batches = {0: {"t": {"0": 3}}, 1: {"t": {"0": 5}}} if done >= 0 else {0: {"t": {"0": 5}}}
    folder = write(tmp_path, batches, done, {T0: 3 if done < 0 else 1})
    last = max(batches)
    CheckpointLog(folder).plan_conversion("kohort", no_group).write()
    converted = BatchOffset.from_json(json.loads(source_lines(folder, last)[-1]))
    assert converted.spans == {T0: OffsetRange(5, 5) if done == 1 else OffsetRange(3, 5)}
    assert converted.from_kafka_source
    with pytest.raises(NotFoundError, match="no source to convert to kohort"):
        CheckpointLog(folder).plan_conversion("kohort", no_group)


def test_an_unfinished_batch_without_a_beginning_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: {"t": {"0": 5}}}, -1)
    with pytest.raises(InvalidInputError, match="sources/1/0, which says where it begins, is missing"):
        CheckpointLog(folder).plan_conversion("kohort", no_group)


def test_a_regions_checkpoint_is_not_converted_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: ours(1, {T0: (2, 7)}, epoch=3)}, 0)
    with pytest.raises(InvalidInputError, match="belongs to a region"):
        CheckpointLog(folder).plan_conversion("kafka", no_group)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="checkpointLocation"):
        CheckpointLog(tmp_path)


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Start the program that runs two queries under both sources, with a broker."""
    try:
        folder = maven.jars("spark-kafka", maven.SPARK_KAFKA_SOURCE, transitive=False)
    except maven.MavenUnavailable as error:
        pytest.skip(f"Spark's own Kafka source can't be had: {error}")
    jars = ",".join(map(str, sorted(folder.glob("*.jar"))))
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        program = [
            sys.executable,
            "-m",
            "tests.spark.moving.application",
            broker.bootstrap_servers,
            str(tmp_path),
            jars,
        ]

        def run(*step: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([*program, *step], capture_output=True, text=True, check=False)

        yield run


def check_that_each_row_was_read_once(output: str) -> None:
    """Hold the sinks of both queries to what was sent."""
    reported = json.loads(output.splitlines()[-1])
    assert reported["taken"] == list(range(reported["sent"]))
    counts = [sum(number % 10 == digit for number in range(reported["sent"])) for digit in range(10)]
    assert reported["counts"] == {str(digit): count for digit, count in enumerate(counts)}


def test_a_checkpoint_goes_over_and_back_three_times_and_each_row_is_read_once(
    moving: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Stateless with two sources in groups, and stateful; every second run dies inside a batch."""
    run = moving()
    assert run.returncode == 0, run.stderr[-4000:]
    check_that_each_row_was_read_once(run.stdout)


@pytest.mark.parametrize(("killed", "other"), [("kafka", "kohort"), ("kohort", "kafka")])
def test_a_process_that_is_killed_inside_a_batch_leaves_it_to_the_other_source(
    moving: Callable[..., subprocess.CompletedProcess[str]], killed: str, other: str
) -> None:
    run = moving(f"{killed}-killed")
    assert run.returncode == -signal.SIGKILL, run.stderr[-4000:]
    run = moving(other)
    assert run.returncode == 0, run.stderr[-4000:]
    check_that_each_row_was_read_once(run.stdout)
