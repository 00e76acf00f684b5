"""A machine so busy that Spark gives up waiting for a Python process: the query tries again, and nobody goes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import LAST_RESORT

LATE = """
import os, sys, time
from pathlib import Path

late = Path(os.environ["LATE"])
if "python_streaming_source_runner" in " ".join(sys.orig_argv) and late.exists():
    late.unlink()
    time.sleep(12)  # Spark waits for ten seconds
"""
PROGRAM = """
import logging, sys
from pathlib import Path
from pyspark.sql import SparkSession
from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.region import ParquetFolder
from kohort.spark import SparkRegion

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        servers = broker.bootstrap_servers
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topics([NewTopic("t", 2)]).all()
            for number in range(100):
                producer.send("t", str(number))
        spark = (
            SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR").config("spark.driver.memory", "768m").getOrCreate()
        )
        region = SparkRegion(spark, "r", servers, folder="regions", checkpoint_every="500ms")
        region.query("q", lambda t: t.selectExpr("CAST(value AS STRING) AS v"),
                     source={"subscribe": "t", "group.id": "g"}, into=ParquetFolder("out"), start="beginning")
        region.run(until="caught-up")
        assert spark.read.parquet("out").count() == 100
"""


@pytest.mark.spark
@pytest.mark.slow
@LAST_RESORT
def test_a_python_process_that_starts_late_takes_nobody_back(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LATE)
    (tmp_path / "late").touch()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(tmp_path), "LATE": str(tmp_path / "late")}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert not (tmp_path / "late").exists() and "is started again" in done.stderr
    assert "goes back" not in done.stderr
