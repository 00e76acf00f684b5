"""Dead letters: rows that a sink can't take go to a place of their own exactly once, and the others into the sink."""

from __future__ import annotations

import json
import logging
import os
import random
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kohort.errors import InvalidInputError
from kohort.region import DeltaTable, ParquetFolder, Region, RowRefusedError, Sink, SqlTable, messages
from kohort.region.agreement import AdoptionHistory, records_after_adoption
from kohort.region.consuming.staging import RowStager
from kohort.region.control_plane import events
from kohort.region.records import Contribution, EpochBegun, Manifest, staged_keys_by_sink
from kohort.region.sinks.dead_letters import (
    LETTERS,
    check_dead_letters,
    make_dead_letters,
    make_undecoded_dead_letters,
    split_refused_rows,
)
from kohort.region.staged import StagedKey
from kohort.region.states import RegionState
from tests.region.conftest import fill, make_topic
from tests.region.member_forks import MEMBER, start_module
from tests.region.test_plane import P0, P1, REGION_ID, Driven, span
from tests.support.waiting import until

ID = UUID(int=3)
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False)])


def rows(*values: tuple[int | None, str | None]) -> pa.Table:
    ids, days = [value[0] for value in values], [value[1] for value in values]
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), pa.array(days, pa.string())], schema=ROWS)


def records(*offsets: int) -> pa.Table:
    """Tables of records as `tables()` gives them."""
    return pa.table(
        {
            "key": pa.array([f"k{offset}".encode() for offset in offsets], pa.binary()),
            "value": pa.array([f"v{offset}".encode() for offset in offsets], pa.binary()),
            "topic": ["t"] * len(offsets),
            "partition": pa.array([3] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([AT] * len(offsets), pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture(params=["parquet", "sql", "delta"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    made: dict[str, Sink] = {
        "parquet": ParquetFolder(tmp_path / "out"),
        "sql": SqlTable(f"sqlite:///{tmp_path}/out.db", "flights"),
        "delta": DeltaTable(tmp_path / "out", partition_by=["day"]),
    }
    bound = made[request.param].bind("r", ID)
    bound.check(ROWS)
    return bound


def test_all_bad_rows_of_a_table_are_separated_from_the_good_ones(sink: Sink) -> None:
    """Whatever the columns that refuse them, and though a check names those of one column alone."""
    given = rows((1, "mon"), (None, "mon"), (2, None), (None, None), (3, "tue"), (None, "wed"))
    good, reasons = split_refused_rows(sink, given)
    assert good.to_pylist() == [{"id": 1, "day": "mon"}, {"id": 3, "day": "tue"}]
    assert list(reasons) == [1, 2, 3, 5] and all("Null in columns" in why for why in reasons.values())
    assert split_refused_rows(sink, good) == (good, {})
    assert split_refused_rows(sink, rows((None, "mon")))[0].num_rows == 0


def test_an_empty_text_that_parts_a_delta_table_is_a_bad_row(tmp_path: Path) -> None:
    bound = DeltaTable(tmp_path / "out", partition_by=["day"]).bind("r", ID)
    bound.check(ROWS)
    good, reasons = split_refused_rows(bound, rows((1, ""), (2, "mon"), (3, "")))
    assert good.column("id").to_pylist() == [2] and list(reasons) == [0, 2]


def test_a_thousand_values_that_a_column_can_not_keep_have_a_reason_each(tmp_path: Path) -> None:
    bound = DeltaTable(tmp_path / "out").bind("r", ID)
    bound.check(pa.schema([pa.field("at", pa.timestamp("ms"))]))
    moments = [1_000 if number % 2 else 2**60 + number for number in range(2_000)]
    good, reasons = split_refused_rows(bound, pa.table({"at": pa.array(moments, pa.timestamp("ms"))}))
    assert good.num_rows == 1_000 and list(reasons) == list(range(0, 2_000, 2))


class Picky:
    """A sink of a user's own, which names one row at a time."""

    def check_rows(self, table: pa.Table) -> None:
        for row, value in enumerate(table.column("id").to_pylist()):
            if value < 0:
                raise RowRefusedError(f"{value} is negative", row)


def test_a_sink_of_ones_own_may_name_one_row_at_a_time() -> None:
    good, reasons = split_refused_rows(Picky(), pa.table({"id": [1, -2, 3, -4]}))  # type: ignore[arg-type]
    assert good.column("id").to_pylist() == [1, 3]
    assert reasons == {1: "-2 is negative", 3: "-4 is negative"}


def test_a_letter_has_the_record_that_a_row_says() -> None:
    """Key, value and timestamp come from the table in hand, by topic, partition and offset."""
    given = pa.table({"id": [None, 1], "topic": ["t", "t"], "partition": [3, 3], "offset": [8, 9]})
    [letter] = make_dead_letters(given, {0: "null"}, "m1", read=records(7, 8, 9)).to_pylist()
    assert letter == {
        "topic": "t", "partition": 3, "offset": 8, "timestamp": AT, "key": b"k8", "value": b"v8",
        "row": json.dumps({"id": None, "topic": "t", "partition": 3, "offset": 8}), "reason": "null", "member": "m1",
    }  # fmt: skip
    [elsewhere] = make_dead_letters(given, {0: "null"}, "m1", read=records(1, 2)).to_pylist()
    assert (elsewhere["offset"], elsewhere["value"]) == (8, None), "a record of an earlier table"


def test_a_letter_has_the_record_that_it_was_made_of() -> None:
    letters = make_dead_letters(rows((None, "mon"), (2, None)), {1: "null"}, "m1", records=records(7, 8))
    [letter] = letters.to_pylist()
    assert (letter["topic"], letter["partition"], letter["offset"], letter["value"]) == ("t", 3, 8, b"v8")
    assert json.loads(letter["row"]) == {"id": 2, "day": None}


def test_a_letter_of_a_row_that_says_no_record_has_the_row() -> None:
    odd = {"at": [AT], "raw": [b"\xff1"], "x": [float("nan")], "part": [{"n": [1]}]}
    [letter] = make_dead_letters(pa.table(odd), {0: "odd"}, "m1").to_pylist()
    assert [letter[name] for name in LETTERS.names[:6]] == [None] * 6
    assert json.loads(letter["row"]) == {
        "at": AT.isoformat(), "raw": r"\xff1", "x": "nan", "part": {"n": [1]},
    }  # fmt: skip


def test_a_record_as_it_came_is_no_row_beside() -> None:
    [letter] = make_dead_letters(records(7), {0: "no JSON"}, "m1").to_pylist()
    assert (letter["offset"], letter["value"], letter["row"], letter["reason"]) == (7, b"v7", None, "no JSON")


def test_a_reason_that_quotes_a_zero_byte_is_one_that_every_place_keeps() -> None:
    given = pa.table({"id": ["a\0b"]})
    [letter] = make_dead_letters(given, {0: "'a\0b' is none"}, "m1").to_pylist()
    assert letter["reason"] == r"'a\0b' is none" and "\0" not in letter["row"]
    record = pa.chunked_array([[dict.fromkeys(LETTERS.names[:6]) | {"reason": "\0"}]], pa.struct(
        [pa.field(name, LETTERS.field(name).type) for name in (*LETTERS.names[:6], "reason")]
    ))  # fmt: skip
    assert make_undecoded_dead_letters(record, "q").column("reason").to_pylist() == [r"\0"]


def test_a_record_of_a_far_year_is_a_letter_that_every_place_keeps() -> None:
    """Producers that stamp in microseconds give records of the year 55,000."""
    far = pa.array([2**60, 0], pa.timestamp("us", "UTC"))
    given = records(7, 8)
    given = given.set_column(given.column_names.index("timestamp"), "timestamp", far)
    assert make_dead_letters(given, {0: "a", 1: "b"}, "m1").column("timestamp").is_null().to_pylist() == [True, False]
    fields = [LETTERS.field(name) for name in (*LETTERS.names[:6], "reason")]
    columns = [far if field.name == "timestamp" else pa.nulls(2, field.type) for field in fields]
    record = pa.chunked_array([pa.StructArray.from_arrays(columns, fields=fields)])
    assert make_undecoded_dead_letters(record, "q").column("timestamp").is_null().to_pylist() == [True, False]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another word": ({"on_bad_record": "skip"}, "'fail' or 'dead-letter'"),
    "no place": ({"on_bad_record": "dead-letter"}, r"dead_letters=.*ParquetFolder\(path\)"),
    "no sink": ({"on_bad_record": "dead-letter", "dead_letters": "/bad"}, "no sink of a region"),
    "the place of the rows": ({"dead_letters": ParquetFolder("/out")}, "a place of its own"),
    "keys": ({"dead_letters": SqlTable("sqlite:////bad.db", "bad", mode="update", keys=["offset"])}, "adds rows"),
    "no sink of the rows": ({"into": None, "dead_letters": ParquetFolder("/bad")}, "into="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_is_refused(case: str) -> None:
    given, told_so = REFUSED[case]
    with pytest.raises(InvalidInputError, match=told_so):
        check_dead_letters(**{"on_bad_record": "fail", "into": ParquetFolder("/out"), "dead_letters": None} | given)


def test_a_member_that_can_not_be_so_claims_nothing(own_servers: str, name: str) -> None:
    with Region(name, own_servers) as region, pytest.raises(InvalidInputError, match="dead_letters="):
        region.consumer("m1", group_id=name, topics=[name], into=ParquetFolder("out"), on_bad_record="dead-letter")


# -- staging


def assert_a_table_that_is_given_again_has_its_letters_once(folder: Path) -> None:
    """The sink is away when a table comes: nothing of it is taken in, and it comes again whole."""
    places = ParquetFolder(folder / "out").bind("r", ID), ParquetFolder(folder / "bad").bind("r", ID)
    places[1].check(LETTERS)
    stager = RowStager(places[0], ID, "m1", unit_bytes=1, letters=places[1], divides=True)
    stager.begin_epoch(1)
    stager.add(rows((1, "mon")))
    os.rename(folder / "out/_staging", folder / "out/_away")
    with pytest.raises(FileNotFoundError):
        stager.add(rows((None, "tue"), (2, "tue")))
    os.rename(folder / "out/_away", folder / "out/_staging")
    stager.add(rows((None, "tue"), (2, "tue")))
    keys, count = stager.stage_dead_letters()
    assert count == len(keys) == 1
    places[0].publish(1, stager.stage_rest())
    places[1].publish(1, keys)
    assert values_in(folder / "out", "id") == Counter([1, 2])
    assert stager.forget_contribution() == 1 and stager.stage_dead_letters() == ((), 0)


def values_in(folder: Path, column: str) -> Counter[Any]:
    files = folder.glob("sequence=*/*.parquet")
    return Counter(value for file in files for value in pq.ParquetFile(file).read().column(column).to_pylist())


def test_a_table_that_is_given_again_has_its_letters_once(tmp_path: Path) -> None:
    assert_a_table_that_is_given_again_has_its_letters_once(tmp_path)


def test_letters_of_a_table_that_is_left_undone_are_forgotten(tmp_path: Path) -> None:
    places = ParquetFolder(tmp_path / "out").bind("r", ID), ParquetFolder(tmp_path / "bad").bind("r", ID)
    places[1].check(LETTERS)
    for unit_bytes in (1, 1 << 20):
        stager = RowStager(places[0], ID, "m1", unit_bytes, letters=places[1], divides=True)
        stager.begin_epoch(unit_bytes)
        stager.add(rows((None, "mon"), (1, "mon")))
        stager.finish_table()
        for day in ("tue", "wed"):
            stager.add(rows((None, day), (2, day)))
        stager.drop_unfinished_table()
        keys, count = stager.stage_dead_letters()
        assert (len(keys), count) == (1, 1)


# -- the control plane


def with_letters(driven: Driven, *names: str, place: str = "bad") -> None:
    for number, member in enumerate(names, 1):
        driven.join(number, member, sink=f"s{number}", letters=place, letters_show=-1)


def stage_dead_letters(driven: Driven, name: str, *spans: Any, letters: int, sink: str) -> Any:
    member = driven.machine.plane.members[name]
    keys = (StagedKey(REGION_ID, member.epoch, name, 9),) if letters else ()
    return driven.give(name, *spans, sink=sink, letters="bad", letter_keys=keys, dead_letters=letters)


@pytest.fixture
def driven() -> tuple[Driven, tuple[Any, Any]]:
    """Two members with a sink each and one place of dead letters; both have contributed some."""
    made = Driven()
    with_letters(made, "m1", "m2")
    made.ask(1, P0)
    made.ask(2, P1)
    cut = made.cut()
    for connection in (1, 2):
        made.say(connection, messages.MemberDrained(cut))
    start = {part: made.machine.plane.saved_position(part).offset for part in (P0, P1)}  # type: ignore[union-attr]
    given = (
        stage_dead_letters(made, "m1", span(P0, start[P0], start[P0] + 1), letters=2, sink="s1"),
        stage_dead_letters(made, "m2", span(P1, start[P1], start[P1] + 1), letters=3, sink="s2"),
    )
    for connection, contribution in enumerate(given, 1):
        made.say(connection, messages.ContributionReport(cut, contribution))
    made.do(events.CommitEnded(cut))
    return made, given


def test_a_shared_place_is_published_once_with_the_letters_of_all(driven: tuple[Driven, tuple[Any, Any]]) -> None:
    made, given = driven
    plane = made.machine.plane
    orders = {
        connection: {order.place: order.keys for order in made.orders(connection, messages.PublishOrder)}
        for connection in (1, 2)
    }
    assert orders == {
        1: {"s1": given[0].keys, "bad": given[0].letter_keys + given[1].letter_keys},
        2: {"s2": given[1].keys},
    }
    assert staged_keys_by_sink(given) == plane.unpublished
    for connection, place in ((1, "s1"), (2, "s2")):
        made.say(connection, messages.CheckpointPublished(plane.sequence, place))
    assert set(plane.unpublished) == {"bad"} and plane.describe_region().published == plane.sequence - 1
    made.say(1, messages.CheckpointPublished(plane.sequence, "bad"))
    assert not plane.unpublished and plane.describe_region().published == plane.sequence
    assert [member.dead_letters for member in plane.describe_region().members] == [2, 3]
    assert [(sink.place, sink.publisher) for sink in plane.describe_region().sinks if sink.publisher] == [
        ("bad", "m1"), ("s1", "m1"), ("s2", "m2"),
    ]  # fmt: skip


def test_another_member_publishes_the_letters_of_one_that_is_gone(driven: tuple[Driven, tuple[Any, Any]]) -> None:
    """A publisher died between its sink and the place of the dead letters."""
    made, given = driven
    made.say(1, messages.CheckpointPublished(made.machine.plane.sequence, "s1"))
    made.do(events.ConnectionEnded(1))
    made.say(
        2, messages.RegistrationRequest("m2", UUID(int=2), "etl", messages.Identity("m2", 1), sink="s2", letters="bad")
    )
    order = [order for order in made.orders(2, messages.PublishOrder) if order.place == "bad"][-1]
    assert order.keys == given[0].letter_keys + given[1].letter_keys


def test_letters_that_nothing_staged_are_no_contribution(driven: tuple[Driven, tuple[Any, Any]]) -> None:
    made, _ = driven
    sequence = made.machine.plane.sequence
    for connection, place in ((1, "s1"), (2, "s2"), (1, "bad")):
        made.say(connection, messages.CheckpointPublished(sequence, place))
    cut = made.cut()
    for connection in (1, 2):
        made.say(connection, messages.MemberDrained(cut))
    part = made.machine.plane.saved_position(P0)
    assert part is not None
    lost = stage_dead_letters(made, "m1", span(P0, part.offset, part.offset), letters=0, sink="s1")
    made.say(1, messages.ContributionReport(cut, replace(lost, dead_letters=4)))
    assert made.stands(RegionState.RESETTING)


def test_letters_stay_owed_when_their_place_moves_and_not_when_it_is_ahead(
    driven: tuple[Driven, tuple[Any, Any]],
) -> None:
    """A person adopts the place of the dead letters; what is staged for the sinks is not touched."""
    made, given = driven
    plane = made.machine.plane
    last = Manifest("r", REGION_ID, plane.sequence, 3, 0, 0, ("m1", "m2"), (), (), places=("bad", "s1", "s2"))
    history = AdoptionHistory(last, given, plane.unpublished, {}, EpochBegun("r", 1, 3, 0, 0, "", 0))
    moved = [fact for fact in records_after_adoption(history, "new", "bad", 0, 1) if isinstance(fact, Contribution)]
    assert [(fact.letters, fact.letter_keys) for fact in moved] == [("new", before.letter_keys) for before in given]
    ahead = [fact for fact in records_after_adoption(history, "bad", "", 40, 1) if isinstance(fact, Contribution)]
    assert [(fact.letter_keys, fact.keys, fact.sequence) for fact in ahead] == [
        ((), before.keys, 40) for before in given
    ]


# -- in a region


@pytest.fixture
def region(own_servers: str, name: str) -> Iterator[Region]:
    make_topic(own_servers, name, 1)
    with Region(name, own_servers, checkpoint_every="200ms") as made:
        yield made


def letters_in(folder: Path) -> list[dict[str, Any]]:
    files = folder.glob("sequence=*/*.parquet")
    found = [letter for file in files for letter in pq.ParquetFile(file).read().to_pylist()]
    return sorted(found, key=lambda letter: (letter["offset"] is None, letter["offset"]))


def test_bad_rows_go_aside_with_their_records_and_the_others_into_the_sink(
    region: Region, own_servers: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every tenth row has no key; every tenth value is none that the application can use."""
    fill(own_servers, name, range(40), 1)
    into = SqlTable(f"sqlite:///{tmp_path}/out.db", "flights", mode="update", keys=["id"])
    seen_rows = 0
    with caplog.at_level(logging.WARNING, "kohort.region"), region.consumer(
        "m1", group_id=name, topics=[name], start="beginning", into=into, on_bad_record="dead-letter",
        dead_letters=ParquetFolder(tmp_path / "bad"),
    ) as consumer:  # fmt: skip
        for table in consumer.tables():
            unusable = pc.ends_with(table.column("value").cast(pa.string()), "5")
            consumer.dead_letter(table.filter(unusable), "ends with 5")
            usable = table.filter(pc.invert(unusable))
            ids = [None if value.endswith(b"0") else int(value) for value in usable.column("value").to_pylist()]
            consumer.submit(pa.table({"id": pa.array(ids, pa.int64())}), records=usable)
            seen_rows += table.num_rows
            if seen_rows == 40:
                consumer.close()
    with sqlite3.connect(tmp_path / "out.db") as database:
        found = [row[0] for row in database.execute("SELECT id FROM flights ORDER BY id")]
    assert found == [number for number in range(40) if number % 5]
    letters = letters_in(tmp_path / "bad")
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in letters] == [
        (name, 0, number) for number in range(0, 40, 5)
    ]
    assert [letter["value"] for letter in letters] == [str(number).encode() for number in range(0, 40, 5)]
    assert {(letter["offset"] % 10, letter["reason"], letter["row"]) for letter in letters} == {
        (0, "Null in columns that may not be: id", '{"id": null}'), (5, "ends with 5", None),
    }  # fmt: skip
    assert {letter["member"] for letter in letters} == {"m1"} and all(letter["timestamp"] for letter in letters)
    assert consumer.metrics.dead_letters == 8
    assert sum("refused rows become dead letters in" in record.message for record in caplog.records) == 1


def test_a_row_that_says_no_record_is_kept_with_the_offsets_of_its_table(
    region: Region, own_servers: str, name: str, tmp_path: Path
) -> None:
    fill(own_servers, name, range(10), 1)
    into = SqlTable(f"sqlite:///{tmp_path}/out.db", "flights", mode="update", keys=["id"])
    bad = ParquetFolder(tmp_path / "bad")
    with region.consumer(
        "m1", group_id=name, topics=[name], start="beginning", into=into, on_bad_record="dead-letter", dead_letters=bad
    ) as consumer:
        for _ in consumer.tables():
            consumer.submit(pa.table({"id": pa.array([None, 7], pa.int64())}))
            consumer.close()
    [letter] = letters_in(tmp_path / "bad")
    assert letter["offset"] is letter["value"] is None and letter["row"] == '{"id": null}'
    assert f"the table in hand has offsets of {name}-0 0 to" in letter["reason"]


def test_dead_letters_are_turned_on_and_off_between_runs(
    region: Region, own_servers: str, name: str, tmp_path: Path
) -> None:
    """Off again, a bad row is refused once more; and whoever names the place still publishes what waits there."""
    into = ParquetFolder(tmp_path / "out")

    def run(values: range, *, bad: bool, **options: Any) -> None:
        fill(own_servers, name, values, 1)
        left = len(values)
        with region.consumer("m1", group_id=name, topics=[name], start="beginning", into=into, **options) as consumer:
            for table in consumer.tables():
                ids = [int(value) for value in table.column("value").to_pylist()]
                given = rows(*((None if bad and number % 2 else number, "mon") for number in ids))
                consumer.submit(given, records=table)
                left -= table.num_rows
                if not left:
                    consumer.close()

    run(range(2), bad=False)
    run(range(2, 4), bad=True, on_bad_record="dead-letter", dead_letters=ParquetFolder(tmp_path / "bad"))
    with pytest.raises(RowRefusedError, match=rf"id: row . of .* \(topic {name}, partition 0, offset 5\)"):
        run(range(4, 6), bad=True, dead_letters=ParquetFolder(tmp_path / "bad"))
    assert values_in(tmp_path / "out", "id") == Counter([0, 1, 2])
    assert [letter["offset"] for letter in letters_in(tmp_path / "bad")] == [3]


# -- kills

MEMBERS, BAD_OF, COUNT, KILLS = ("m1", "m2"), 7, 1_200, 4


def start(servers: str, name: str, member: str, folder: Path) -> subprocess.Popen[bytes]:
    words = [servers, name, member, name, str(folder / "out"), "consumer", "checkpoint", "--most", "20"]
    words += ["--letters", str(folder / "bad"), "--bad-of", str(BAD_OF)]
    with Path(os.devnull).open("w") as nothing:
        return start_module(MEMBER, words, stdout=subprocess.PIPE, stderr=nothing)


@pytest.mark.timeout(180)
def test_whoever_is_killed_each_row_is_in_one_of_both_places_once(own_servers: str, name: str, tmp_path: Path) -> None:
    make_topic(own_servers, name)
    chance = random.Random(name)
    running = {member: start(own_servers, name, member, tmp_path) for member in MEMBERS}
    try:
        for kill in range(KILLS):
            fill(own_servers, name, range(kill * COUNT // KILLS, (kill + 1) * COUNT // KILLS))
            before = values_in(tmp_path / "bad", "offset").total()
            until(lambda before=before: values_in(tmp_path / "bad", "offset").total() > before, "letters come")
            member = MEMBERS[kill % len(MEMBERS)]
            time.sleep(chance.random() / 2)  # at any moment of a checkpoint
            with running[member] as killed:  # waits for its end, and closes its output
                killed.kill()
            running[member] = start(own_servers, name, member, tmp_path)

        def total() -> int:
            return values_in(tmp_path / "out", "offset").total() + values_in(tmp_path / "bad", "offset").total()

        until(lambda: total() >= COUNT, "all is there", moves=lambda: {"rows": total()})
        for process in running.values():
            assert process.stdout is not None and process.stdout.readline() == b"ready\n", "it hears of SIGTERM"
    finally:
        for process in running.values():
            process.terminate()
        codes = [ended(process) for process in running.values()]
    assert codes == [0, 0]
    good = places_in(tmp_path / "out")
    bad = places_in(tmp_path / "bad")
    assert good + bad == Counter((part, offset) for part in range(4) for offset in range(COUNT // 4))
    assert all(offset % BAD_OF == 0 for _, offset in bad) and all(offset % BAD_OF for _, offset in good)


def ended(process: subprocess.Popen[bytes]) -> int:
    with process:
        return process.wait(60)


def places_in(folder: Path) -> Counter[tuple[int, int]]:
    """Partitions and offsets of all rows."""
    found: Counter[tuple[int, int]] = Counter()
    for file in folder.glob("sequence=*/*.parquet"):
        table: Any = pq.ParquetFile(file).read()
        found.update(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    return found
