"""A batch in the checkpoint, and the rule which offset wins after a restart."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import (
    BatchOffset,
    CheckpointPosition,
    CommitStamp,
    CommittedPosition,
    OffsetRange,
    choose_start_offset,
)

A0, A10, B1 = TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("b", 1)


def test_the_text_does_not_depend_on_the_order_of_making() -> None:
    ids = {"b": UUID(int=2), "a": UUID(int=1)}
    one = BatchOffset("q", 3, 7, {B1: OffsetRange(1, 2), A10: OffsetRange(3, 3), A0: OffsetRange(0, 9)}, ids)
    other = BatchOffset(
        "q", 3, 7, {A0: OffsetRange(0, 9), A10: OffsetRange(3, 3), B1: OffsetRange(1, 2)}, dict(sorted(ids.items()))
    )
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert BatchOffset.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fresh checkpointLocation"):
        BatchOffset.from_json({"flights": {"0": 5}})


def test_the_first_form_and_fields_of_later_ones_are_read() -> None:
    first = {"kohort": 1, "query": "q", "batch": 3, "generation": 7, "topics": {"a": {"0": {"start": 0, "end": 9}}}}
    known = BatchOffset("q", 3, 7, {A0: OffsetRange(0, 9)})
    assert BatchOffset.from_json(first) == known
    later = first | {"kohort": 2, "ids": {"a": str(UUID(int=1))}, "more": [1]}
    assert BatchOffset.from_json(later) == BatchOffset("q", 3, 7, known.spans, {"a": UUID(int=1)})


def test_outside_a_region_an_earlier_kohort_reads_what_is_written() -> None:
    reported = BatchOffset("q", 3, 7, {A0: OffsetRange(0, 9)}, {}, "g").to_json()
    assert reported["kohort"] == 2 and reported["topics"] == {"a": {"0": {"start": 0, "end": 9}}}
    assert not {"epoch", "handings"} & reported.keys()


def test_in_a_region_a_batch_keeps_its_epoch_and_the_assignment_versions_of_its_partitions() -> None:
    spans, assignment_versions = {A0: OffsetRange(0, 9), A10: OffsetRange(3, 3)}, {A0: 12, A10: 4}
    one = BatchOffset("q", 3, 7, spans, {}, "g", 0, assignment_versions)
    reported = json.loads(json.dumps(one.to_json()))
    assert (reported["kohort"], reported["epoch"], reported["topics"]["a"]["10"]) == (
        3,
        0,
        {"start": 3, "end": 3, "handing": 4},
    )
    assert BatchOffset.from_json(reported) == one
    for other in (replace(one, epoch=1), replace(one, assignment_versions=assignment_versions | {A0: 13})):
        assert other.to_json() != one.to_json() and BatchOffset.from_json(other.to_json()) == other


def test_a_later_form_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="later kohort.*form 4.*up to 3"):
        BatchOffset.from_json({"kohort": 4})


def test_stamps_survive_metadata_and_strangers_have_none() -> None:
    stamp = CommitStamp("q", 12)
    assert CommitStamp.from_metadata(stamp.to_metadata()) == stamp
    assert CommitStamp.from_metadata('{"query":"q","batch":12}') == stamp
    of_a_topic = CommitStamp("q", 12, UUID(int=1))
    assert CommitStamp.from_metadata(of_a_topic.to_metadata()) == of_a_topic
    for stranger in (None, "", "text", "[1]", "{}", '{"query":"q"}', "5", '{"query":"q","batch":1,"topic":5}'):
        assert CommitStamp.from_metadata(stranger) is None


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param('{"query":"q","batch":1e999}', id="infinite"),
        pytest.param('{"query":"q","batch":NaN}', id="no number"),
        pytest.param("[" * 4_096, id="deep"),
    ],
)
def test_hostile_metadata_of_a_commit_is_no_stamp(metadata: str) -> None:
    assert CommitStamp.from_metadata(metadata) is None


@pytest.mark.parametrize(
    ("committed", "checkpoint", "start"),
    [
        (None, None, None),
        (None, 40, 40),
        (CommittedPosition(30), None, 30),
        (CommittedPosition(30, CommitStamp("mine", 4)), 40, 40),
        (CommittedPosition(29, CommitStamp("mine", 4)), 40, 29),
        (CommittedPosition(50, CommitStamp("mine", 4)), 40, 50),
        (CommittedPosition(30, CommitStamp("mine", 5)), 40, 30),
        (CommittedPosition(30, CommitStamp("mine", 6)), 40, 30),
        (CommittedPosition(30, CommitStamp("other", 4)), 40, 30),
        (CommittedPosition(50, CommitStamp("other", 4)), 40, 50),
        (CommittedPosition(30), 40, 30),
    ],
)
def test_the_checkpoint_counts_only_above_a_commit_of_an_earlier_batch_of_its_own_query(
    committed: CommittedPosition | None, checkpoint: int | None, start: int | None
) -> None:
    assert (
        choose_start_offset("mine", committed, None if checkpoint is None else CheckpointPosition(30, checkpoint, 5))
        == start
    )
