"""Makes the archives of classes that the tests use: `python -m tests.support.class_training`."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kohort import Consumer, Producer
from kohort.errors import KafkaError
from tests.support.apache_kafka import BRIEF_OPTIONS, ApacheKafka, kafka_jars
from tests.support.class_archive import CACHE, OPTIONS, kafka_archive, spark_archive
from tests.support.maven import MavenUnavailable

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


def make() -> None:
    """Make the archives that are not there. What goes wrong is told, and costs time alone."""
    _make("Spark", spark_archive(), _train_spark)
    try:
        archive = kafka_archive(kafka_jars())
    except MavenUnavailable:
        return
    _make("Kafka", archive, _train_kafka)


def _make(name: str, archive: Path | None, train: Callable[[Path, Path], str]) -> None:
    if archive is None or archive.is_file():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        print(f"» an archive of {name}'s classes, for the tests", flush=True)
        made = Path(work) / "classes.jsa"
        fault = train(Path(work), made)
        if fault or not made.is_file():
            print(f"  it can't be made here, and the tests take longer without it: {fault[-500:]}")
            return
        made.rename(archive)


def _train_spark(work: Path, made: Path) -> str:
    """Run a Spark that writes its archive at its end; what went wrong, or nothing."""
    environment = dict(os.environ, SPARK_LAUNCHER_OPTS=OPTIONS, SPARK_LOCAL_IP="127.0.0.1")
    environment["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _TRAINING, str(work)],
            env=environment,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_MADE_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_MADE_WITHIN_S} s"
    return ran.stderr or f"code {ran.returncode}" if ran.returncode else ""


def _train_kafka(work: Path, made: Path) -> str:
    """Run a node of Kafka that writes its archive at its end; what went wrong, or nothing."""
    try:
        with ApacheKafka(options=(*BRIEF_OPTIONS, f"-XX:ArchiveClassesAtExit={made}")) as kafka:
            name = "classes"
            with Producer(kafka.bootstrap_servers) as producer:
                producer.send(name, b"1").result()
            with Consumer(kafka.bootstrap_servers, group_id=name, auto_offset_reset="earliest") as consumer:
                consumer.subscribe([name])
                consumer.poll(timeout_ms=30_000)
            kafka.stop(_MADE_WITHIN_S * 1000)
    except (KafkaError, MavenUnavailable) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    make()
