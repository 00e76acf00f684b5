"""The watcher of a region's story: the valid readings of a place, and the history from the region's topic."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from tests.spark.region.history import History, SequenceStep
from tests.spark.region.watching import KINDS, Look, parts_seen, summed

from kohort.region.records import Contribution, EpochBegun, Fact, Manifest, OffsetSpan, TermBegun
from kohort.region.staged import StagedKey

ID = UUID(int=7)
KIND_OF = {"a": "parquet", "b": "parquet"}


def rows(*where: tuple[int, int], late: int | None = 5) -> pa.Table:
    """Rows of flights whose records are there."""
    count = len(where)
    return pa.table(
        {
            "partition": pa.array([partition for partition, _ in where], pa.int32()),
            "offset": pa.array([offset for _, offset in where], pa.int64()),
            "carrier": pa.array(["UA"] * count, pa.string()),
            "origin": pa.array(["EWR"] * count, pa.string()),
            "dest": pa.array(["IAH"] * count, pa.string()),
            "hour": pa.array([6] * count, pa.int32()),
            "dep_delay": pa.array([late] * count, pa.int32()),
            "arr_delay": pa.array([None] * count, pa.int32()),
        }
    )


def given(sequence: int, member: str, *spans: tuple[int, int, int]) -> Contribution:
    whole = tuple(OffsetSpan("g", "t", ID, partition, begin, end) for partition, begin, end in spans)
    return Contribution("r", sequence, 1, 1, member, ("a", "b"), "g", member, 1, None, whole, (), b"", "parquet:x")


STEPS = [
    SequenceStep(1, 0, (given(1, "a", (0, 0, 2)), given(1, "b", (1, 0, 0)))),
    SequenceStep(2, 0, (given(2, "a", (0, 2, 3)), given(2, "b", (1, 0, 2)))),
]
FIRST = rows((0, 0), (0, 1))
BOTH = rows((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))


def looks(*tables: pa.Table) -> list[Look]:
    return [Look("parquet", summed(table)) for table in tables]


def test_a_reader_may_see_nothing_and_whole_sequences() -> None:
    assert list(parts_seen(looks(rows(), FIRST, BOTH), STEPS, KIND_OF)) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ((rows((0, 0)),), "saw 1 rows"),
        ((rows((0, 0), (0, 1), (0, 2)),), "saw 3 rows"),
        ((rows((0, 0), (0, 2)),), "saw 2 rows"),
        ((BOTH, FIRST), "saw 2 rows after 5"),
    ],
)
def test_a_part_of_a_sequence_another_row_and_less_than_before_are_seen(seen: tuple[pa.Table, ...], words: str) -> None:
    assert words in " ".join(parts_seen(looks(*seen), STEPS, KIND_OF))


@pytest.mark.parametrize("kind", KINDS)
def test_places_show_what_their_sinks_have_published(tmp_path: Path, kind: str) -> None:
    place = KINDS[kind](tmp_path)
    assert place.sums() == frozenset() and place.rows().num_rows == 0
    sink = place.sink().bind("r", ID)
    sink.check(FIRST.schema)
    sink.stage(StagedKey(ID, 1, "a", 1), FIRST)
    assert place.sums() == frozenset() and place.rows().num_rows == 0, "staged is not published"
    sink.publish(1, [StagedKey(ID, 1, "a", 1)])
    assert place.sums() == summed(FIRST) == {(0, 2, 1)}
    assert place.rows().sort_by("offset").equals(FIRST.select(place.rows().column_names))


def test_history_has_the_sequences_and_resets_of_the_region_alone() -> None:
    history = History("r", "", {})
    facts: list[Fact] = [
        TermBegun("r", 1, "127.0.0.1", 1, b"", 0),
        EpochBegun("r", 1, 1, 1, 0, "a has started", 10),
        given(1, "a", (0, 0, 2)),
        given(1, "b"),
        Manifest("r", ID, 1, 1, 1, 20, ("a", "b"), ("a", "b"), ()),
        EpochBegun("r", 2, 1, 1, 0, "b has started", 30),
        EpochBegun("r", 3, 1, 3, 1, "a has failed", 40),
        EpochBegun("other", 4, 1, 4, 1, "another region's", 50),
    ]
    for fact in facts:
        history._take(fact)
    assert [(step.number, step.rows) for step in history.sequences] == [(1, 2)]
    assert [(reset.to, reset.epoch, reset.cause) for reset in history.resets] == [(1, 3, "a has failed")]
    assert len(history.terms) == 1
