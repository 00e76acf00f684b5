"""The main job, from end to end on fewer flights, in a group and in a region, and the account it rests on."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from tests.support.waiting import LAST_RESORT

from kohort.cli.app import run
from kohort.demo.account import (
    SCHEMA,
    compare_with_topic,
    draw_delays,
    duckdb_query_of,
    print_result,
    sum_by_columns,
    sum_differences,
    worst_connections,
)
from kohort.demo.flights import ALL, flights_table, recorded_flights
from kohort.demo.play import DemoApplication, DemoOptions
from kohort.errors import InvalidInputError, KafkaError

ROWS = 20_000


def test_flights_are_all_there_and_unknown_values_are_null() -> None:
    every = list(recorded_flights())
    assert len(every) == ALL == 336_776
    assert sum(flight.tail is None for flight in every) == 2_512
    assert sum(b'"dep_delay":null' in flight.value for flight in every) == 8_255
    assert sum(b'"arr_delay":null' in flight.value for flight in every) == 9_430
    days = [json.loads(flight.value)["day"] for flight in every[:: ALL // 50]]
    assert days == sorted(days)


@pytest.mark.parametrize(
    ("missing", "reported"),
    [
        ("pyspark", "the demo needs the package pyspark: pip install 'kohort[demo]'"),
        ("matplotlib", "the demo needs the package matplotlib: pip install 'kohort[demo]'"),
        ("pyiceberg", "the demo needs the package pyiceberg: pip install 'kohort[demo]'"),
        ("java", "no Java found; install Java 17 or newer, or set JAVA_HOME"),
    ],
)
def test_demo_names_what_is_missing_before_it_begins(
    missing: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing == "java":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    assert run(["demo", "--region", "--rows", "1000", "--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"kohort: {reported} [RESOURCE_NOT_FOUND]"
    assert not (tmp_path / "out").exists()


def test_demo_at_a_broker_that_is_away_gives_up_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = ["demo", "--rows", "1000", "--output", str(tmp_path / "out"), "--bootstrap-server", "127.0.0.1:1"]
    assert run([*demo, "--timeout", "200"]) == 1
    assert "no broker can be reached (127.0.0.1:1: connection refused)" in capsys.readouterr().err


def test_ended_application_is_reported_with_its_last_line_and_what_to_look_at(tmp_path: Path) -> None:
    application = DemoApplication("anna", tmp_path, ["no.such.module"])
    application.process.wait()
    with pytest.raises(KafkaError) as ended:
        application.check()
    assert f"(all of it is in {tmp_path / 'application-anna.log'}; `kohort doctor` looks for" in ended.value.message
    assert "the application anna ended with exit code 1: " in ended.value.message
    assert "No module named 'no'" in ended.value.message and "\n" not in ended.value.message


def written(*places: tuple[int, int], late: int | None = 5) -> pa.Table:
    """Rows of flights whose records have these partitions and offsets."""
    flight = {"carrier": "UA", "origin": "EWR", "dest": "IAH", "hour": 6, "dep_delay": late, "arr_delay": None}
    return pa.Table.from_pylist([{"partition": at, "offset": offset} | flight for at, offset in places], SCHEMA)


@pytest.mark.parametrize(
    ("places", "repeated", "missing", "unknown"),
    [
        ([(0, 0), (0, 1), (1, 0)], 0, 0, 0),
        ([(0, 0), (0, 1), (1, 0), (0, 1), (0, 1)], 2, 0, 0),
        ([(0, 0), (1, 0)], 0, 1, 0),
        ([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)], 0, 0, 2),
        ([], 0, 3, 0),
    ],
)
def test_account_counts_repeated_missing_and_unknown_rows(
    places: list[tuple[int, int]], repeated: int, missing: int, unknown: int
) -> None:
    account = compare_with_topic(written(*places), {0: 2, 1: 1})
    assert (account.repeated, account.missing, account.unknown) == (repeated, missing, unknown)
    assert account.written == len(places) == account.once.num_rows + repeated


def test_account_takes_two_different_rows_of_one_offset_for_a_fault() -> None:
    rows = pa.concat_tables([written((0, 0), (0, 1), (1, 0)), written((0, 1), late=6)])
    assert compare_with_topic(rows, {0: 2, 1: 1}).unknown == 1


def test_flights_are_summed_by_connection_and_hour() -> None:
    rows = pa.concat_tables([written((0, 0), (0, 1)), written((0, 2), late=None)])
    [row] = sum_by_columns(rows, ["carrier", "hour"]).to_pylist()
    assert row == {
        "carrier": "UA", "hour": 6, "flights": 3, "dep_known": 2, "dep_minutes": 10, "arr_known": 0, "arr_minutes": 0,
    }  # fmt: skip


def test_differences_name_the_connections_that_are_not_the_data() -> None:
    every = flights_table(1_000)
    assert list(sum_differences(every, 1_000)) == []
    short = list(sum_differences(every.slice(1), 1_000))
    assert len(short) == 1 and short[0].startswith("UA EWR IAH 5:00: ")


def test_result_is_shown_with_its_faults_and_the_picture_is_drawn(tmp_path: Path) -> None:
    once = flights_table(3_000)
    draw_delays(once, tmp_path / "late.png", "each counted once")
    assert (tmp_path / "late.png").read_bytes().startswith(b"\x89PNG")
    worst = worst_connections(once, 20)
    means = [row["dep_mean"] for row in worst]
    assert means == sorted(means, reverse=True) and min(row["flights"] for row in worst) >= 20
    share = {"partition": 0, "committed": 3_000, "log_end": 3_000, "lag": 0, "owner": "anna"}
    outcome: dict[str, Any] = {
        "exact": True,
        "flights": 3_000,
        "account": {"written": 3_010, "repeated": 10, "missing": 0, "unknown": 0, "counted": 3_000, "faults": []},
        "group": {"id": "g", "state": "Stable", "lag": 0, "partitions": [share]},
        "region": {},
        "killed": {"member": "bela", "processes": 4, "takeover_s": 1.5},
        "worst": worst,
        "picture": "late.png",
        "query": "",
    }
    text = shown(outcome)
    assert "every flight counted once" in text and "3,010" in text and "1.5 s" in text and "Stable, lag 0" in text
    assert "DuckDB" not in text
    outcome |= {
        "exact": False,
        "region": {"name": "r", "sequence": 7, "epoch": 2},
        "query": duckdb_query_of("/[x]/m.json"),
    }
    outcome["account"]["faults"] = ["UA is short"]
    text = shown(outcome)
    assert "the account is not right" in text and "wrong: UA is short" in text and "r: sequence 7, epoch 2" in text
    assert "FROM iceberg_scan('/[x]/m.json') GROUP BY origin" in text


def shown(outcome: dict[str, Any]) -> str:
    out = StringIO()
    print_result(outcome, Console(file=out, width=120))
    return out.getvalue()


@pytest.mark.parametrize("options", [{"rows": 999}, {"rows": ALL + 1}, {"replay_s": 0.0}, {"replay_s": 3_601.0}])
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(options))} must be from"):
        DemoOptions(**options)


def run_demo(folder: Path, *more: str) -> dict[str, Any]:
    kohort = str(Path(sys.executable).with_name("kohort"))
    command = [kohort, "demo", "--json", "--output", str(folder), "--rows", str(ROWS)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "replaying" in done.stderr and "SIGKILL to bela" in done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((folder / "outcome.json").read_text()) == outcome
    return outcome


def check(outcome: dict[str, Any]) -> None:
    account = outcome["account"]
    assert outcome["exact"]
    assert account["counted"] == outcome["flights"] == ROWS
    assert account["written"] == ROWS + account["repeated"]
    assert (account["missing"], account["unknown"], account["faults"]) == (0, 0, [])
    assert outcome["group"]["state"] == "Stable"
    assert outcome["group"]["lag"] == 0
    assert {share["owner"] for share in outcome["group"]["partitions"]} == {"anna"}
    assert outcome["killed"]["member"] == "bela"
    assert outcome["killed"]["processes"] >= 3
    assert outcome["killed"]["takeover_s"] > 0
    delays = [connection["dep_mean"] for connection in outcome["worst"]]
    assert delays == sorted(delays, reverse=True)
    assert delays
    assert Path(outcome["picture"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("forked_spark")
@pytest.mark.spark
@pytest.mark.slow
@LAST_RESORT
def test_a_member_is_killed_and_every_flight_counts_once(tmp_path: Path) -> None:
    outcome = run_demo(tmp_path)
    check(outcome)
    assert outcome["region"] == {}


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
@LAST_RESORT
def test_the_same_on_a_real_apache_kafka(tmp_path: Path, apache_kafka: Any) -> None:
    check(run_demo(tmp_path, "--bootstrap-server", apache_kafka.bootstrap_servers))


@pytest.mark.spark
@pytest.mark.slow
@LAST_RESORT
def test_a_member_of_a_region_is_killed_and_every_flight_is_published_once(tmp_path: Path) -> None:
    outcome = run_demo(tmp_path, "--region")
    check(outcome)
    assert outcome["account"]["repeated"] == 0
    assert outcome["region"]["sequence"] > 1 and outcome["region"]["epoch"] > 1
    assert not list(tmp_path.rglob("checkpoints")), "the applications share no folder but the table's"
    duckdb = pytest.importorskip("duckdb", reason="DuckDB and its extension package read the table")
    extensions = pytest.importorskip("duckdb_extensions", reason="duckdb-extensions with iceberg and avro")
    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        found = connection.execute(outcome["query"]).fetchall()
    assert sum(flights for _, flights, _ in found) == ROWS and {origin for origin, *_ in found} == {"EWR", "JFK", "LGA"}
