"""`python -m kohort.spark job.py`: a job that says "kafka" runs unchanged, without Spark's Kafka source."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from tests.support.waiting import LAST_RESORT

from kohort import Admin, Broker, InvalidInputError, Producer
from kohort.client.admin.values import NewTopic
from kohort.spark import register
from kohort.spark.in_place_of_kafka import (
    CHANGES,
    replace_kafka_everywhere,
    replace_kafka_in_sql,
    without_source_packages,
)
from kohort.spark.registration import require_pyspark

pytestmark = LAST_RESORT
JOB = Path(__file__).parent / "in_place" / "job.py"


def run_module(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kohort.spark", *args], capture_output=True, text=True, check=False)


def test_a_job_for_sparks_kafka_source_runs_unchanged_and_has_an_account_at_its_end(tmp_path: Path) -> None:
    assert "kohort" not in JOB.read_text().split('"""', 2)[2]
    with Broker(config={"num.partitions": 2}) as broker:
        done = run_module(str(JOB), broker.bootstrap_servers, str(tmp_path))
        assert done.returncode == 0, done.stderr[-4000:]
        with Admin(broker.bootstrap_servers) as admin:
            offsets = admin.list_consumer_group_offsets("etl").all()
    assert done.stdout.splitlines()[-1] == str([(str(key), "25") for key in range(4)])
    assert sum(offset.offset for offset in offsets.values() if offset is not None) == 100
    account = done.stderr[done.stderr.index("kohort ran this job in place of") :]
    assert '2 x DataFrameWriter.format("kafka")' not in account, "a writer of another format is left alone"
    for line in (
        '1 x DataFrameWriter.format("kafka") became format("kohort")',
        '1 x DataStreamWriter.format("kafka") became format("kohort")',
        "1 x a batch write without a mode appends",
        "1 x update mode writes each batch by foreachBatch",
        "1 x left out the package of Spark's own Kafka source",
        "streaming queries read 100 records",
        "group etl: orders-0 at ",
    ):
        assert line in account


def test_a_program_that_is_not_there_is_wrong_use() -> None:
    done = run_module("/nowhere/job.py")
    assert (done.returncode, done.stderr) == (2, "kohort: /nowhere/job.py: there is no such program\n")
    assert run_module().returncode == 2


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_job_without_standard_error_keeps_its_exit_code(tmp_path: Path, stderr: str) -> None:
    (tmp_path / "job.py").write_text("print('done')")
    command = f"{shlex.join([sys.executable, '-m', 'kohort.spark', str(tmp_path / 'job.py')])} {stderr}"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_missing_pyspark_is_named_with_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('runs')\n")
    without = "import sys, runpy; sys.modules['pyspark'] = None; runpy.run_module('kohort.spark', run_name='__main__')"
    command = [sys.executable, "-c", without, str(tmp_path / "job.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kohort: PySpark is not installed in this Python: pip install 'kohort[spark]'\n"
    register = "import sys; sys.modules['pyspark'] = None; from kohort.spark import register; register(None)"
    done = subprocess.run([sys.executable, "-c", register], capture_output=True, text=True, check=False)
    assert "InvalidInputError: PySpark is not installed in this Python: pip install 'kohort[spark]'" in done.stderr


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("3.5.9", False), ("4.1.2", False), ("4.2.0", True), ("5.0.0.dev1", True), ("platform", True)],
    ids=["3.5", "4.1", "4.2", "5.0", "a-platform-s-own"],
)
def test_pyspark_that_is_too_old_is_named_with_the_one_that_is_needed(
    version: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was "No module named 'pyspark.sql.streaming.datasource'"."""
    monkeypatch.setattr("pyspark.__version__", version)
    if is_enough:
        require_pyspark()
        return
    with pytest.raises(InvalidInputError, match=f"needs PySpark 4.2 or newer, and this Python has {version}: pip"):
        register(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=version):
        replace_kafka_everywhere()


def test_a_job_that_fails_ends_as_it_would_alone(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys\nprint(sys.argv, __name__)\nsys.exit(7)\n")
    done = run_module(str(tmp_path / "job.py"), "a", "--b")
    assert done.returncode == 7
    assert done.stdout == f"[{str(tmp_path / 'job.py')!r}, 'a', '--b'] __main__\n"
    assert 'the job used no format("kafka")' in done.stderr


def test_in_a_notebook_one_session_is_covered_and_another_is_not(spark: Any) -> None:
    with Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)]).all()
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("t", b"1")
        session = spark.newSession()
        register(session, in_place_of_kafka=True)
        try:
            for name in ("kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider"):
                read = session.read.format(name).option("kafka.bootstrap.servers", broker.bootstrap_servers)
                assert [row.value for row in read.option("subscribe", "t").load().collect()] == [b"1"]
            options = f"`kafka.bootstrap.servers` '{broker.bootstrap_servers}', subscribe 't'"
            session.sql(f"CREATE TEMPORARY VIEW in_place USING kafka OPTIONS ({options})")
            assert [row.value for row in session.sql("SELECT value FROM in_place").collect()] == [b"1"]
            session.sql(sqlQuery="DROP VIEW in_place")
            with contextlib.suppress(AnalysisException):  # Spark's own source can't be had here
                other = spark.read.format("kafka").option("kafka.bootstrap.servers", "x").option("subscribe", "t")
                assert "KafkaRelation(" in other.load()._jdf.queryExecution().analyzed().toString()
        finally:
            CHANGES.sessions.discard(session)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.0", ""),
        ("a:b:1,org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,c:d:2", "a:b:1,c:d:2"),
        ("--packages org.apache.spark:spark-streaming-kafka-0-10_2.12:3.5.0 pyspark-shell", "pyspark-shell"),
        ("--packages a:b:1 --master local[2] pyspark-shell", "--packages a:b:1 --master local[2] pyspark-shell"),
    ],
)
def test_packages_of_sparks_kafka_source_are_left_out(given: str, left: str) -> None:
    assert without_source_packages(given) == left


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("CREATE TEMPORARY VIEW v USING kafka OPTIONS (a 'b')", "CREATE TEMPORARY VIEW v USING kohort OPTIONS (a 'b')"),
        (
            "-- orders\n create or replace temp view v\nusing `KAFKA`",
            "-- orders\n create or replace temp view v\nusing kohort",
        ),
        ("/* a 'b' */CREATE TABLE t (a INT) USING Kafka;", "/* a 'b' */CREATE TABLE t (a INT) USING kohort;"),
        ("CREATE TABLE t USING org.apache.spark.sql.kafka010.KafkaSourceProvider", "CREATE TABLE t USING kohort"),
        ("CREATE TABLE t USING kafkaesque", None),
        ("CREATE TABLE t COMMENT 'x USING kafka' AS SELECT 1", None),
        ("CREATE TABLE t USING parquet COMMENT ' USING kafka '", None),
        ("SELECT 'CREATE TABLE t USING kafka'", None),
        ("INSERT INTO kafka SELECT 1", None),
    ],
    ids=["view", "comment", "table", "class", "longer", "text", "comment of a table", "select", "insert"],
)
def test_statement_that_creates_a_view_of_kafka_is_kohorts_and_others_stay(given: str, run: str | None) -> None:
    assert replace_kafka_in_sql(given) == (given if run is None else run)
