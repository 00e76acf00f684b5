"""The main job, from end to end on fewer flights, and the account it rests on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import LAST_RESORT

from kohort.demo.account import BatchRange, settle
from kohort.demo.flights import ALL, flights

ROWS = 20_000


def test_the_flights_are_all_there_and_what_is_unknown_is_null() -> None:
    every = list(flights())
    assert len(every) == ALL == 336_776
    assert sum(flight.tail is None for flight in every) == 2_512
    assert sum(b'"dep_delay":null' in flight.value for flight in every) == 8_255
    assert sum(b'"arr_delay":null' in flight.value for flight in every) == 9_430
    days = [json.loads(flight.value)["day"] for flight in every[:: ALL // 50]]
    assert days == sorted(days)


def written(partition: int, start: int, end: int, generation: int, member: str = "a") -> BatchRange:
    return BatchRange(partition, start, end, generation, member, 0, end - start)


def test_of_two_writers_of_an_offset_the_later_generation_counts() -> None:
    account = settle(
        [
            written(0, 0, 100, 1, "b"),
            written(0, 100, 250, 1, "b"),
            written(0, 100, 180, 2),
            written(0, 180, 300, 2),
            written(1, 0, 50, 1),
        ],
        {0: 300, 1: 50},
    )
    assert account.faults == ()
    assert (account.written, account.repeated, account.dropped, account.counted) == (500, 150, 150, 350)
    assert [(thread.start, thread.end) for thread in account.left_out] == [(100, 250)]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([written(0, 0, 90, 1)], "read up to 90 of 100"),
        ([written(0, 0, 40, 1), written(0, 50, 100, 1)], "offsets 40 to 49 are missing"),
        ([written(0, 0, 60, 1), written(0, 50, 100, 2)], "offsets 50 to 59 are twice"),
        ([BatchRange(0, 0, 100, 1, "a", 0, 99)], "holds 99 rows"),
    ],
)
def test_what_is_missing_twice_or_short_is_a_fault(ranges: list[BatchRange], words: str) -> None:
    assert words in " ".join(settle(ranges, {0: 100}).faults)


def run_demo(folder: Path, *more: str) -> dict[str, Any]:
    kohort = str(Path(sys.executable).with_name("kohort"))
    command = [kohort, "demo", "--json", "--output", str(folder), "--rows", str(ROWS)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "replaying" in done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def check(outcome: dict[str, Any]) -> None:
    account = outcome["account"]
    assert account["faults"] == []
    assert outcome["exact"]
    assert account["counted"] == outcome["flights"] == ROWS
    assert account["written"] == ROWS + account["repeated"]
    assert account["dropped"] == account["repeated"]
    assert outcome["group"]["state"] == "Stable"
    assert outcome["group"]["lag"] == 0
    assert {partition["owner"] for partition in outcome["group"]["partitions"]} == {"anna"}
    assert outcome["killed"]["member"] == "bela"
    assert outcome["killed"]["processes"] >= 3
    delays = [airport["dep_mean"] for airport in outcome["worst"]]
    assert delays == sorted(delays, reverse=True)
    assert delays
    picture = Path(outcome["picture"]).read_bytes()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.spark
@pytest.mark.slow
@LAST_RESORT
def test_a_member_is_killed_and_every_flight_counts_once(tmp_path: Path) -> None:
    check(run_demo(tmp_path))


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
@LAST_RESORT
def test_the_same_on_a_real_apache_kafka(tmp_path: Path, apache_kafka: Any) -> None:
    check(run_demo(tmp_path, "--bootstrap-server", apache_kafka.bootstrap_servers))
