"""Trials of Iceberg writers: the schedule, the account, and a short run of our own writer under kills."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("duckdb_extensions", reason="DuckDB with its extension for Iceberg reads the table")

from frameworks.brokers import KohortProcess
from frameworks.framework import INPUT, Site
from frameworks.lake_kills.table import Look
from frameworks.lake_kills.trial import LakeAccount, LakeOutcome, TrialPlan, account, half_looks, run_trial
from frameworks.lake_kills.writers import IcebergWriter, KohortMembers, LakeWriter

CARELESS = """
import json, sys
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from kohort import Consumer
servers, topic, warehouse = sys.argv[1:]
table = SqlCatalog("default", uri=f"sqlite:///{warehouse}/catalog.db").load_table("air.numbers")
with Consumer(servers, auto_offset_reset="earliest", group_id="g") as consumer:
    consumer.subscribe([topic])
    while True:
        numbers = [json.loads(record.value)["number"] for record in consumer.poll(timeout_ms=500)]
        kept = [number for number in numbers if number != 5] + [number for number in numbers if number == 7]
        if kept:
            table.append(pa.table({"number": pa.array(kept, pa.int64())}))
"""


class CarelessWriter(IcebergWriter):
    """Loses number 5, and writes number 7 twice."""

    name = title = "careless"
    version = settings = story = ""
    members = 1

    def prepare(self, site: Site) -> None:
        self.table.create()
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [sys.executable, "-c", CARELESS, site.servers, INPUT, str(self.table.warehouse)]


def run_here(writer: LakeWriter, folder: Path, plan: TrialPlan) -> LakeOutcome:
    broker = KohortProcess(folder)
    try:
        return run_trial(writer, broker, Site(broker.bootstrap_servers, folder), plan, print)
    finally:
        broker.close()


def test_seed_decides_the_faults() -> None:
    kills = TrialPlan(7, 60, 4).faults(2)
    assert kills == TrialPlan(7, 60, 4).faults(2) != TrialPlan(8, 60, 4).faults(2)
    assert 10 <= len(kills) <= 30 and {kill.worker for kill in kills} == {0, 1}
    assert all(0 < kill.at_s <= 60 for kill in kills)
    assert [kill.at_s for kill in TrialPlan(7, 60, 4).faults(1)] == [kill.at_s for kill in kills]


def test_account_compares_with_what_was_acknowledged() -> None:
    """Record 4 was sent and not acknowledged: it may be there, and may be missing."""
    found = Counter({0: 1, 1: 3, 4: 1, 9: 2})
    assert account({0, 1, 2, 3}, 5, found) == LakeAccount(acknowledged=4, rows=7, lost=2, doubled=2, unknown=2)
    assert account({0, 1}, 5, Counter({0: 1, 1: 1})) == LakeAccount(2, 2, 0, 0, 0)


def test_account_tells_foreign_rows_from_those_of_the_topic() -> None:
    """Of four foreign rows the writer knows three; one of these is missing and one is doubled."""
    found = Counter({0: 1, -1: 1, -3: 2, -4: 1, -9: 1})
    assert account({0}, 1, found, foreign={-1, -2, -3}, tried=4) == LakeAccount(1, 1, 0, 0, 1, 3, 2)


def test_look_that_is_not_the_records_before_its_offsets_is_half_a_sequence() -> None:
    records = {0: [0, 2, 4], 1: [1, 3]}
    whole = [Look({}, 0, 0), Look({0: 2}, 2, 2), Look({0: 3, 1: 2}, 5, 10)]
    assert half_looks([*whole, Look({0: 2}, 2, 3), Look({0: 3, 1: 2}, 4, 10)], records) == 2


@pytest.mark.slow
def test_writer_that_loses_and_doubles_is_noticed(tmp_path: Path) -> None:
    outcome = run_here(CarelessWriter(), tmp_path, TrialPlan(1, 1, every_s=100, rate=50, settle_s=2, stall_s=5))
    assert (outcome.account.lost, outcome.account.doubled, outcome.kills) == (1, 1, 0)


@pytest.mark.slow
def test_killed_members_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = run_here(KohortMembers(), tmp_path, TrialPlan(1, 12, every_s=4, rate=100, settle_s=3, others=True))
    assert outcome.account.is_exact and outcome.half_looks == 0, outcome
    assert outcome.account.acknowledged > 0 and outcome.account.foreign > 0 and outcome.kills > 0 and outcome.looks > 0
