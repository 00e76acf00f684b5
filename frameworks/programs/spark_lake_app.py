"""Spark's own Kafka source with the Delta and the Iceberg sink, in an environment of its own: `spark_lake_app.py JARS`.

It takes jobs as lines of JSON, one after the other in one session, as `bench.runners.lake_spark` does. It imports
PySpark alone.
"""

import json
import sys
import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

TABLE = "bench.lines"
_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.databricks.delta.snapshotPartitions": "2",  # by default 50 tasks read the log of a small table
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def send_line(**what):
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


class Progress(StreamingQueryListener):
    """Tells when the first batch with rows began, and how many rows all batches have had."""

    def __init__(self):
        self.rows = 0

    def begin(self):
        """Count from 0 again, for the next job."""
        self.rows = 0

    def onQueryStarted(self, event): ...  # noqa: N802 - Spark's names

    def onQueryIdle(self, event): ...  # noqa: N802

    def onQueryTerminated(self, event): ...  # noqa: N802

    def onQueryProgress(self, event):  # noqa: N802
        """Tell what a batch had."""
        progress = json.loads(event.progress.json)
        if progress["numInputRows"]:
            if not self.rows:
                send_line(began=time.monotonic() - progress["durationMs"]["triggerExecution"] / 1000)
            self.rows += progress["numInputRows"]
            send_line(rows=self.rows)


def session(jars):
    """Return a session of two cores that prints nothing."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    for name, value in _CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark, job):
    """Start the query of a job."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", job["servers"])
    reader = reader.option("subscribe", job["topic"]).option("startingOffsets", "earliest")
    lines = reader.load().selectExpr("partition", "offset", "timestamp", "CAST(value AS STRING) AS line")
    for name, value in job["hadoop"].items():
        spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
    writer = lines.writeStream.option("checkpointLocation", tempfile.mkdtemp(dir=job["folder"]))
    if job["every"]:
        writer = writer.trigger(processingTime=job["every"])
    if job["kind"] == "delta":
        return writer.format("delta").start(job["path"])
    catalog = f"spark.sql.catalog.{job['region']}"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in job["catalog"].items():
        spark.conf.set(f"{catalog}.{name}", value)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {job['region']}.bench")
    columns = "partition INT, offset BIGINT, timestamp TIMESTAMP, line STRING"
    spark.sql(f"CREATE TABLE {job['region']}.{TABLE} ({columns}) USING iceberg")
    return writer.format("iceberg").outputMode("append").toTable(f"{job['region']}.{TABLE}")


def main():
    """Do one job after the other."""
    spark, progress = session(sys.argv[1]), Progress()
    spark.streams.addListener(progress)
    send_line(ready=True)
    for line in sys.stdin:
        progress.begin()
        query = start(spark, json.loads(line))
        while sys.stdin.readline().strip() == "checkpoint":
            pass
        query.stop()
        send_line(stopped=True)
    spark.stop()


if __name__ == "__main__":
    main()
