"""An archive of Spark's classes, which Java maps at each start: `python -m tests.support.class_archive`.

A Spark of a test lives for seconds, and loads twelve thousand classes in them. From the archive that takes seven of its
seventeen seconds of processor time less. Java leaves an archive aside that does not fit, as that of other jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kohort.errors import NotFoundError
from kohort.io.java import java_path

OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of a Spark that lives for seconds: compiling it well costs more than it saves."""
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "classes"
_MADE_WITHIN_S = 300
_TRAINING = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from kohort import Broker, Producer
from kohort.spark import register

folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "768m")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)
register(spark)
with Broker() as broker:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t", "startingOffsets": "earliest"}
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
    read = spark.readStream.format("kohort").options(**options).load()
    counted = read.groupBy("value").count().writeStream.foreachBatch(lambda frame, number: frame.collect())
    texts = read.selectExpr("CAST(value AS STRING) AS v")
    written = texts.writeStream.format("parquet").option("path", f"{folder}/out")
    for number, writer in enumerate((counted.outputMode("update"), written)):
        query = writer.option("checkpointLocation", f"{folder}/{number}").trigger(availableNow=True).start()
        query.awaitTermination()
    assert spark.read.parquet(f"{folder}/out").join(spark.range(10), how="cross").distinct().count() == 100
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def spark_options() -> str:
    """Options of Java for the Spark of tests, with the archive where it has been made."""
    archive = _archive()
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive is not None and archive.is_file() else OPTIONS


def _archive() -> Path | None:
    """Where the archive of this environment lies; None without PySpark, or a Java that can make one."""
    try:
        java, pyspark = java_path().resolve(), version("pyspark")
    except (NotFoundError, PackageNotFoundError):
        return None
    parts = (str(java), str(java.stat().st_mtime_ns), sys.prefix, pyspark)
    return _CACHE / f"spark-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:12]}.jsa"


def make() -> None:
    """Make the archive where there is none. What goes wrong is told, and costs time alone."""
    archive = _archive()
    if archive is None or archive.is_file():
        return
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=_CACHE) as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        print("» an archive of Spark's classes, for the tests", flush=True)
        made = Path(work) / "spark.jsa"
        environment = dict(os.environ, SPARK_LAUNCHER_OPTS=OPTIONS, SPARK_LOCAL_IP="127.0.0.1")
        environment["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
        try:
            ran = subprocess.run(
                [sys.executable, "-c", _TRAINING, work],
                env=environment,
                cwd=work,
                capture_output=True,
                text=True,
                timeout=_MADE_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print("  it was not made in time: the tests take longer without it")
            return
        if ran.returncode or not made.is_file():
            print(f"  it can't be made here, and the tests take longer without it: {ran.stderr[-500:]}")
            return
        made.rename(archive)


if __name__ == "__main__":
    make()
