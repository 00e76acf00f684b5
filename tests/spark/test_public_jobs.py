"""Public PySpark jobs on Kafka move by one word: 172 of them under Spark's own source and ours, in one session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.documentation.spec_page import ROOT
from tests.spark.ports import exchanges, pipelines
from tests.spark.ports.__main__ import listed
from tests.support import maven
from tests.support.long_runs import IS_LONG
from tests.support.waiting import LAST_RESORT

from kohort import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, LAST_RESORT]

ALL_JOBS = listed()
SHORT = (
    "bronze_with_headers",
    "clicks_joined_with_impressions",
    "an_hour_by_timestamps",
    "alerts_by_foreach_batch",
    "a_nightly_run_from_now_on",
    "a_frame_looked_at_again",
    "progress_sent_on_as_json",
    "settings_of_security_left_empty",
    "a_query_under_other_names",
    "headers_as_a_map",
)
"""The jobs that `make test` runs, one of most chapters; `make test-long` runs all."""
JOBS = {name: job for name, job in ALL_JOBS.items() if IS_LONG or name in SHORT}
AS_WRITTEN = [name for name, job in JOBS.items() if job.mended is None]
REFUSED = [name for name, job in JOBS.items() if job.refused is not None]
DIFFERENT = [name for name, job in JOBS.items() if job.differs]
RUN_S = 2_700
"""Far longer than all jobs take on a busy machine."""
JARS = (*maven.SPARK_KAFKA_SOURCE, "org.apache.spark:spark-avro_2.13:4.2.0")
CHANGE_OF = {
    pipelines.UPDATE_REFUSED: "update mode writes each batch",
    pipelines.MODE_REFUSED: "without a mode appends",
    exchanges.ASYNCHRONOUS_REFUSED: "not asynchronously",
}
"""The change that a job refused with these words needs, as `in_place_of_kafka` counts it."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows or errors of every job under both formats; a refused job also mended, and in place of Spark's own source."""
    folder = tmp_path_factory.mktemp("jobs")
    jars = maven.jars("spark-kafka-avro", JARS, transitive=False).glob("*.jar")
    env = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    with Broker(folder / "data", {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1}) as broker:
        program = [sys.executable, "-m", "tests.spark.ports", str(folder), broker.bootstrap_servers]
        subprocess.run(
            [*program, ",".join(map(str, jars)), *JOBS],
            env={**env, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=ROOT,
            timeout=RUN_S,
            check=True,
        )
    found: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    print(table(found))
    return found


def table(outcomes: dict[str, Any]) -> str:
    """A line for each job: how it ended, its rows, the seconds under each format, its kind."""
    lines = []
    for name, ends in outcomes.items():
        spark, ours = ends["kafka"], ends["kohort"]
        same = "rows" in ours and ours["rows"] == spark.get("rows")
        end = "as written" if same else "refused" if "error" in ours else "OTHER ROWS"
        seconds = " ".join(f"{found['seconds']:5.1f}" for found in ends.values())
        lines.append(f"{end:10} {len(spark.get('rows', ())):3} rows {seconds:17} s  {name}: {JOBS[name].kind}")
    count = sum(line.startswith("as written") for line in lines)
    return "\n".join([f"{count} of {len(lines)} jobs ran as written with equal rows", *lines])


def test_the_list_has_more_than_a_hundred_jobs_of_which_all_but_eight_run_as_written() -> None:
    assert (len(ALL_JOBS), sum(job.mended is None for job in ALL_JOBS.values())) == (172, 164)
    assert sum(job.refused is not None for job in ALL_JOBS.values()) == 6
    assert all(job.kind.endswith(".") for job in ALL_JOBS.values()) and set(SHORT) <= set(ALL_JOBS)


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_a_job_gives_the_rows_that_it_gives_with_sparks_own_source(outcomes: dict[str, Any], name: str) -> None:
    spark, ours = outcomes[name]["kafka"], outcomes[name]["kohort"]
    assert "error" not in spark and "error" not in ours
    assert spark["rows"] and ours["rows"] == spark["rows"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_spark_refuses_says_what_to_write_and_runs_so(outcomes: dict[str, Any], name: str) -> None:
    found, refused = outcomes[name], JOBS[name].refused
    assert refused is not None and refused in found["kohort"]["error"]
    assert found["kafka"]["rows"] and found["mended"]["rows"] == found["kafka"]["rows"]


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_job_whose_rows_differ_gives_the_same_rows_when_it_is_mended(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert found["kafka"]["rows"] and found["kohort"]["rows"] != found["kafka"]["rows"]
    assert found["mended"]["rows"] == found["kafka"]["rows"]


@pytest.mark.parametrize("name", [name for name in REFUSED if JOBS[name].refused in CHANGE_OF])
def test_a_refused_job_runs_unchanged_in_place_of_sparks_own_source(outcomes: dict[str, Any], name: str) -> None:
    found, refused = outcomes[name], JOBS[name].refused
    assert found["unchanged"]["rows"] == found["kafka"]["rows"]
    assert any(CHANGE_OF[str(refused)] in change for change in found["unchanged"]["changes"])
