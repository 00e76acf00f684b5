"""The region's demo, from end to end on fewer flights, and what its account rests on."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from rich.console import Console
from tests.demo.test_demo import ROWS, run_demo
from tests.support.waiting import LAST_RESORT

from kohort.demo.account import worst_connections
from kohort.demo.history import History, Step
from kohort.demo.picture import draw, draw_sequences
from kohort.demo.places import KINDS, Faltering, omen, summed
from kohort.demo.region_account import counted_by_hour, settle_places
from kohort.demo.region_report import RegionOutcome
from kohort.demo.report import Share
from kohort.demo.watching import Look, parts_seen
from kohort.ids import TopicPartition
from kohort.lag import PartitionLag
from kohort.region.record_codec import key_of, value_of
from kohort.region.records import Contribution, Epoch, Fact, Manifest, Span, Term
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
    whole = tuple(Span("g", "t", ID, partition, begin, end) for partition, begin, end in spans)
    return Contribution("r", sequence, 1, 1, member, ("a", "b"), "g", member, 1, None, whole, (), b"", "parquet:x")


STEPS = [
    Step(1, 0, (given(1, "a", (0, 0, 2)), given(1, "b", (1, 0, 0)))),
    Step(2, 0, (given(2, "a", (0, 2, 3)), given(2, "b", (1, 0, 2)))),
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


def test_rows_that_are_missing_twice_or_of_no_record_are_counted() -> None:
    ends = {0: 3, 1: 2}
    exact = settle_places({"parquet": FIRST, "other": rows((0, 2), (1, 0), (1, 1))}, ends)
    assert (exact.published, exact.twice, exact.missing, exact.unknown) == (5, 0, 0, 0)
    twice = settle_places({"parquet": BOTH, "other": FIRST}, ends)
    assert (twice.twice, twice.missing, twice.unknown) == (2, 0, 0)
    wrong = settle_places({"parquet": rows((0, 0), (1, 0), (1, 1), (1, 2))}, ends)
    assert (wrong.twice, wrong.missing, wrong.unknown) == (0, 2, 1)


def test_flights_are_summed_by_connection_and_hour() -> None:
    [row] = counted_by_hour({"parquet": FIRST, "other": rows((1, 0), late=None)}).to_pylist()
    assert (row["flights"], row["dep_known"], row["dep_minutes"]) == (3, 2, 10)
    assert (row["arr_known"], row["arr_minutes"]) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_fails_once_for_each_sign_and_not_for_an_empty_table(tmp_path: Path, kind: str) -> None:
    place, sign = KINDS[kind](tmp_path), omen(tmp_path)
    assert place.sums() == frozenset() and place.rows().num_rows == 0
    sink = Faltering(place.sink(), sign).bind("r", ID)
    sink.check(FIRST.schema)
    sign.touch()
    sink.stage(StagedKey(ID, 1, "a", 0), rows())
    with pytest.raises(OSError, match="as the demo has it"):
        sink.stage(StagedKey(ID, 1, "a", 1), FIRST)
    sink.stage(StagedKey(ID, 1, "a", 1), FIRST)
    assert place.sums() == frozenset() and place.rows().num_rows == 0, "staged is not published"
    sink.publish(1, [StagedKey(ID, 1, "a", 0), StagedKey(ID, 1, "a", 1)])
    assert place.sums() == summed(FIRST) == {(0, 2, 1)}
    assert place.rows().sort_by("offset").equals(FIRST.select(place.rows().column_names))


def test_of_what_a_region_writes_down_sequences_and_resets_are_told() -> None:
    history = History("r", "", {})
    facts: list[Fact] = [
        Term("r", 1, "127.0.0.1", 1, b"", 0),
        Epoch("r", 1, 1, 1, 0, "a has started", 10),
        given(1, "a", (0, 0, 2)),
        given(1, "b"),
        Manifest("r", ID, 1, 1, 1, 20, ("a", "b"), ("a", "b"), ()),
        Epoch("r", 2, 1, 1, 0, "b has started", 30),
        Epoch("r", 3, 1, 3, 1, "a has failed", 40),
        Epoch("other", 4, 1, 4, 1, "another region's", 50),
    ]
    for fact in facts:
        history._take(key_of(fact), value_of(fact))
    assert [(step.number, step.rows) for step in history.sequences] == [(1, 2)]
    assert [(reset.to, reset.epoch, reset.cause) for reset in history.resets] == [(1, 3, "a has failed")]
    assert len(history.terms) == 1


def outcome(folder: Path, tables: dict[str, pa.Table], *faults: str) -> RegionOutcome:
    """Return the result of five flights of two partitions."""
    history = History("r", "", {}, sequences=list(STEPS))
    lags = [PartitionLag(TopicPartition("t", at), end, "", 0, end) for at, end in ((0, 3), (1, 2))]
    shares = tuple(Share(lag, "a") for lag in lags)
    account = settle_places(tables, {share_of_group.partition: share_of_group.log_end for share_of_group in shares})
    counted = counted_by_hour(tables)
    pictures = folder / "delay.png", folder / "sequences.png"
    draw(counted, pictures[0], "as told")
    draw_sequences(history.sequences, [(0, 0), (1_000, 5)], [(500, "reset"), (600, "SIGKILL")], pictures[1])
    worst = tuple(worst_connections(counted, 1))
    return RegionOutcome(
        5, "r", "g", "Stable", shares, account, history, 9, 2, worst, 1, pictures, "b", 4, 1.5, 60.0, faults
    )


def test_the_outcome_is_shown_and_is_exact_only_if_every_flight_is_there_once(tmp_path: Path) -> None:
    good = outcome(tmp_path, {"parquet": BOTH})
    assert good.exact and good.to_json()["exact"]
    assert all(share_of_group.read_bytes().startswith(b"\x89PNG") for share_of_group in good.pictures)
    console = Console(file=StringIO(), width=120)
    good.show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "every flight published once" in shown and "UA" in shown and "1.5 s" in shown
    assert not outcome(tmp_path, {"parquet": BOTH, "other": rows((0, 0))}).exact, "one is there twice"
    assert not outcome(tmp_path, {"parquet": rows((0, 0), (0, 1), (0, 2), (1, 0))}).exact, "one is missing"
    assert not outcome(tmp_path, {"parquet": BOTH}, "a reader saw a part").exact


@pytest.mark.spark
@pytest.mark.slow
@LAST_RESORT
def test_an_application_is_killed_and_every_flight_is_published_once(tmp_path: Path) -> None:
    outcome = run_demo(tmp_path, "--region")
    account, region = outcome["account"], outcome["region"]
    assert outcome["exact"] and account["faults"] == []
    assert account["published"] == outcome["flights"] == ROWS
    assert (account["twice"], account["missing"], account["unknown"]) == (0, 0, 0)
    assert outcome["group"]["state"] == "Stable" and outcome["group"]["lag"] == 0
    causes = " ".join(reset["cause"] for reset in region["resets"])
    assert causes.count("anna-2 has failed") >= 2 and "bela-1" in causes
    assert "Permission denied" in causes
    assert region["with_rows"] > 3 and outcome["reader"]["different"] > 2
    assert outcome["killed"]["application"] == "bela" and outcome["killed"]["takeover_s"] > 0
    assert {share_of_group["owner"] for share_of_group in outcome["group"]["partitions"]} == {
        "anna-1",
        "anna-2",
        "bela-1",
    }
    assert all(Path(share_of_group).read_bytes().startswith(b"\x89PNG") for share_of_group in outcome["pictures"])
