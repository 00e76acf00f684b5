"""Checkpoints of Spark's own Kafka source, taken over by `format("kohort")`: each row is read once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.queries import Checkpoint, Place, Run, own_signals, place
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort import Consumer
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import CorruptDataError, InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.checkpoint_move import CheckpointLog as Moved
from kohort.spark.source.checkpoint_lines import OffsetLogFile
from kohort.spark.source.kafka_offsets import (
    encode_initial_offsets,
    format_kafka_offset,
    is_kafka_offset,
    parse_initial_offsets,
    parse_kafka_offset,
)

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

POSITIONS = st.dictionaries(
    st.builds(TopicPartition, st.text("abc.-_", min_size=1, max_size=5), st.integers(0, 200)),
    st.integers(0, 2**63 - 1),
    min_size=1,
    max_size=8,
)
GROUPED = pytest.mark.parametrize("grouped", [False, True], ids=["without a group", "in a group"])
LEFT = sorted([*range(6, 20, 2), *range(11, 20, 2)])
"""The records behind offset 3 of partition 0 and offset 5 of partition 1."""


def offset(place: Place, *offsets: int) -> str:
    """An offset of Spark's source: the next offset to read of each partition."""
    return json.dumps({place.topic(): {str(number): at for number, at in enumerate(offsets)}})


def filled(place: Place) -> None:
    """Two partitions with ten records each: the even numbers up to 18, and the odd ones up to 19."""
    place.make()
    place.produce(range(20))


def options(place: Place, grouped: bool = True, **more: object) -> dict[str, str]:
    return place.options(**(more if grouped else {"group.id": None, **more}))


@GROUPED
def test_a_query_continues_where_sparks_source_ended(
    place: Place, grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(place)
    checkpoint = Checkpoint([offset(place, 2, 2), offset(place, 3, 5)], finished=2)
    with Run(options(place, grouped), checkpoint) as run:
        assert run.read(12) == LEFT
    assert caplog.text.count("written by Spark's Kafka source") == 1
    if grouped:
        assert place.committed() == {0: 10, 1: 10}
    place.produce(range(20, 24))
    with Run(options(place, grouped), checkpoint) as run:
        assert run.read(4) == [20, 21, 22, 23]


@GROUPED
def test_an_unfinished_batch_of_sparks_source_is_read_in_its_own_ranges(place: Place, grouped: bool) -> None:
    filled(place)
    checkpoint = Checkpoint([offset(place, 2, 2), offset(place, 3, 5)], finished=1)
    with Run(options(place, grouped), checkpoint) as run:
        planned = run.plan()
        assert planned is not None
        assert run.finish(planned) == [4, 5, 7, 9]
        assert run.read(12) == LEFT


def test_a_run_that_dies_before_it_has_planned_a_batch_of_its_own_repeats_nothing(place: Place) -> None:
    """The commit of the batch that Spark's source had planned is lost: the checkpoint says that the batch is done."""
    filled(place)
    checkpoint = Checkpoint([offset(place, 2, 2), offset(place, 3, 5)], finished=1)
    with Run(options(place), checkpoint) as run:
        planned = run.plan()
        assert planned is not None
        assert run.finish(planned) == [4, 5, 7, 9]
    assert place.committed() == {0: 2, 1: 2}
    with Run(options(place), checkpoint) as run:
        assert run.read(12) == LEFT


def test_a_group_that_is_behind_does_not_have_rows_read_again(place: Place) -> None:
    filled(place)
    behind = {partition: OffsetAndMetadata(1) for partition in place.partitions()}
    place.admin.alter_consumer_group_offsets(place.group, behind).all()
    with Run(options(place), Checkpoint([offset(place, 3, 5)], finished=1)) as run:
        assert run.read(12) == LEFT


def test_a_group_that_is_ahead_is_refused_with_both_offsets(place: Place) -> None:
    filled(place)
    place.admin.alter_consumer_group_offsets(place.group, {place.partitions()[1]: OffsetAndMetadata(8)}).all()
    with (
        Run(options(place), Checkpoint([offset(place, 3, 5)], finished=1)) as run,
        pytest.raises(InvalidInputError, match=rf"at offset 5 of {place.topic()}-1.* at 8: "),
    ):
        run.read(1)


def test_partitions_of_other_members_continue_where_the_checkpoint_is(place: Place) -> None:
    """The other member knows nothing of the checkpoint: without a commit it would begin where its own options say."""
    filled(place)
    stop = threading.Event()
    with Consumer(place.servers, group_id=place.group, auto_offset_reset="latest", enable_auto_commit=False) as other:
        other.subscribe([place.topic()])

        def poll() -> None:
            while not stop.is_set():
                other.poll(timeout_ms=50)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            until(lambda: len(other.assignment()) == 2, "the other member has all", STILL_S)
            with Run(options(place), Checkpoint([offset(place, 3, 5)], finished=1)) as run:
                planned = run.plan()
                assert planned is not None
                assert place.committed() == {0: 3, 1: 5}
        finally:
            stop.set()
            thread.join()


def test_an_empty_range_of_a_converted_first_batch_is_not_read_again(place: Place, tmp_path: Path) -> None:
    filled(place)
    for folder in ("offsets", "sources/0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sources/0/0").write_bytes(encode_initial_offsets(dict(zip(place.partitions(), (3, 5), strict=True))))
    (tmp_path / "offsets/0").write_text("v1\n{}\n" + offset(place, 10, 5))
    Moved(tmp_path).plan_conversion("kohort", lambda group: {}).write()
    converted = (tmp_path / "offsets/0").read_text().split("\n")[-1]
    with Run(options(place), Checkpoint([converted])) as run:
        assert run.read(12) == LEFT


@GROUPED
def test_a_partition_that_the_checkpoint_does_not_name_is_read_from_its_beginning(place: Place, grouped: bool) -> None:
    filled(place)
    checkpoint = Checkpoint([offset(place, 3)], finished=1)
    with Run(options(place, grouped, startingOffsets="latest"), checkpoint) as run:
        assert run.read(17) == sorted([*range(6, 20, 2), *range(1, 20, 2)])


@pytest.mark.parametrize("choice", ["subscribe", "assign", "subscribePattern"])
def test_a_checkpoint_of_other_topics_is_refused_with_both_sides(place: Place, choice: str) -> None:
    filled(place)
    chosen = {"subscribe": "others", "subscribePattern": "o.*s", "assign": json.dumps({place.topic(): [0]})}[choice]
    with (
        Run(
            options(place, **{"subscribe": None, choice: chosen}), Checkpoint([offset(place, 3, 5)], finished=1)
        ) as run,
        pytest.raises(InvalidInputError, match=rf"has read {place.topic()}-0, {place.topic()}-1; .*{choice}="),
    ):
        run.read(1)


def test_a_first_batch_without_its_beginning_names_the_command_that_helps(place: Place) -> None:
    """No application is there to ask: the query of this test was not started by Spark."""
    filled(place)
    with (
        Run(options(place), Checkpoint([offset(place, 3, 5)])) as run,
        pytest.raises(InvalidInputError, match="kohort spark checkpoint convert CHECKPOINT --to kohort --execute"),
    ):
        run.plan()


def test_assigned_partitions_are_taken_over(place: Place) -> None:
    filled(place)
    assign = json.dumps({place.topic(): [0, 1]})
    with Run(options(place, subscribe=None, assign=assign), Checkpoint([offset(place, 3, 5)], finished=1)) as run:
        assert run.read(12) == LEFT
    until(lambda: place.committed() == {0: 10, 1: 10}, "the group knows", STILL_S)


# -- the forms


@given(POSITIONS)
def test_the_form_of_sparks_source_round_trips(positions: dict[TopicPartition, int]) -> None:
    assert is_kafka_offset(format_kafka_offset(positions))
    assert parse_kafka_offset(format_kafka_offset(positions)) == positions
    assert parse_initial_offsets(encode_initial_offsets(positions)) == positions


def test_a_topic_may_be_named_kohort_and_a_pattern_may_have_matched_nothing() -> None:
    assert is_kafka_offset({"kohort": {"0": 5}})
    assert is_kafka_offset({})


def test_initial_offsets_of_spark_2_have_no_version() -> None:
    assert parse_initial_offsets(b'{"t":{"0":7}}') == {TopicPartition("t", 0): 7}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00v1\n", id="a version alone"),
        pytest.param(b"\x00v1\n[1]", id="a list"),
        pytest.param(b'\x00v1\n{"t":{"0":-1}}', id="a negative offset"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"\x00v1\n" + b"[" * 100_000, id="deep"),
        pytest.param(b'\x00v1\n{"t":{"' + b"9" * 5_000 + b'":1}}', id="a long number"),
    ],
)
def test_initial_offsets_that_are_something_else_are_refused(raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match="initial offsets of Spark's Kafka source"):
        parse_initial_offsets(raw)


@pytest.mark.parametrize(
    "other",
    [
        None,
        "-",
        5,
        [],
        {"kohort": 2, "topics": {}},
        {"logOffset": 3},
        {"t": {"x": 1}},
        {"t": {"0": 1.5}},
        {"t": {"0": True}},
        {"t": {"0": {"start": 1, "end": 2}}},
    ],
)
def test_offsets_of_other_sources_are_not_taken_for_kafkas(other: object) -> None:
    assert not is_kafka_offset(other)


LOG = b'v1\n{"batchWatermarkMs":7,"conf":{"a":"b\\n"}}\n{"t":{"0":3}}\n-\n{"logOffset":3}'
NAMED = b'v2\n{"batchWatermarkMs":7}\n0:{"t":{"0":3}}\nflights:{"u":{"1":4}}'


@pytest.mark.parametrize("raw", [LOG, NAMED], ids=["version 1", "version 2"])
def test_a_log_file_is_written_as_it_was_read(raw: bytes) -> None:
    assert OffsetLogFile.parse("offsets/0", raw).to_bytes() == raw


def test_one_source_of_a_log_file_is_changed_and_the_rest_stays() -> None:
    assert list(OffsetLogFile.parse("offsets/0", LOG).kafka_sources()) == [("0", {"t": {"0": 3}})]
    changed = OffsetLogFile.parse("offsets/0", LOG).with_offset("0", {"t": {"0": 9}})
    assert changed.to_bytes() == LOG.replace(b'{"0":3}', b'{"0":9}')
    named = OffsetLogFile.parse("offsets/0", NAMED)
    assert [name for name, _ in named.kafka_sources()] == ["0", "flights"]
    assert named.with_offset("flights", {"u": {"1": 9}}).to_bytes() == NAMED.replace(b'{"1":4}', b'{"1":9}')


def test_a_log_file_of_a_later_spark_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a later Spark"):
        OffsetLogFile.parse("offsets/0", b"v3\n{}\n-")
