"""The Python of Spark's workers: this program's where they are on this machine, else the user is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.preloaded.sitecustomize import RUNNERS
from tests.support.waiting import LAST_RESORT

from kohort.spark.tasks.workers import InterpreterChoice, choose_interpreter, local_connect_warning

OWN = sys.executable
SCRIPT = """
import os, sys
from pyspark.sql import SparkSession
from kohort import Admin, Broker, Producer
from kohort.spark import register

with Broker() as broker:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("flights", value="one")
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    read = spark.read.format("kohort").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    rows = read.option("subscribe", "flights").load().collect()
    assert [bytes(row["value"]) for row in rows] == [b"one"]
    udf = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert udf == [sys.executable], udf
    spark.stop()
"""


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*,2]", "local-cluster[2,1,1024]"])
def test_workers_of_this_machine_run_this_interpreter(master: str) -> None:
    assert choose_interpreter(master, None, OWN) == InterpreterChoice(OWN)
    assert choose_interpreter(master, OWN, OWN) == InterpreterChoice()
    for other in ("/usr/bin/env", "no-such-python"):
        choice = choose_interpreter(master, other, OWN)
        assert choice.python == OWN
        assert choice.warning is not None
        assert other in choice.warning


def test_another_environment_of_the_same_program_is_another_interpreter(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(OWN)
    assert choose_interpreter("local", str(link), OWN).python == OWN
    folder = tmp_path / "linked"
    folder.symlink_to(Path(OWN).parent)
    assert choose_interpreter("local", str(folder / Path(OWN).name), OWN) == InterpreterChoice()


def test_connect_server_of_the_program_with_another_python_is_warned_about() -> None:
    """The server runs the python3 of its PATH, which may not have kohort: the read then fails far from here."""
    started = {"SPARK_LOCAL_REMOTE": "1"}
    for more in ({"PYSPARK_PYTHON": "/usr/bin/env"}, {"PYSPARK_DRIVER_PYTHON": "no-such-python"}):
        warning = local_connect_warning(started | more, OWN)
        assert warning is not None and next(iter(more.values())) in warning and f"PYSPARK_PYTHON={OWN}" in warning
        assert local_connect_warning(more, OWN) is None, "the server is elsewhere, and has chosen its Python"
    assert local_connect_warning(started | {"PYSPARK_PYTHON": OWN}, OWN) is None


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head:443"])
def test_workers_elsewhere_are_the_users_to_set_and_that_is_said(master: str) -> None:
    choice = choose_interpreter(master, None, OWN)
    assert choice.python is None
    assert choice.warning is not None
    assert "set PYSPARK_PYTHON" in choice.warning
    assert master in choice.warning
    assert choose_interpreter(master, "/opt/python/bin/python3", OWN) == InterpreterChoice()


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.parametrize("set_to", [None, "no-such-python"])
def test_a_program_that_sets_nothing_reads(set_to: str | None, tmp_path: Path) -> None:
    """The PATH's python3 is one that can import nothing, as where an environment was not activated."""
    wrong = tmp_path / "bin" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\necho 'not this python' >&2\nexit 1\n")
    wrong.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", RUNNERS))}
    environment |= {"PATH": f"{wrong.parent}{os.pathsep}{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    if set_to is not None:
        environment["PYSPARK_PYTHON"] = set_to
    done = subprocess.run(
        [OWN, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("PYSPARK_PYTHON is no-such-python" in done.stderr) == (set_to is not None)
