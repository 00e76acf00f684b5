"""Spark's own readers of tables, in an environment of their own: `spark_lake_reader.py JARS`.

It takes jobs as lines of JSON and answers each with a line: the rows, or what went wrong. It imports PySpark alone.
"""

import json
import sys
import traceback

from pyspark.sql import SparkSession

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def read(spark, job):
    """Return the table of a job."""
    spark = spark.newSession()  # with catalogs of its own
    for name, value in job["config"].items():
        spark.conf.set(name, value)
    reader = spark.read
    for name, value in job["options"].items():
        reader = reader.option(name, value)
    if job["format"] == "iceberg":
        return spark.table(job["paths"][0])
    return reader.format(job["format"]).load(job["paths"])


def main():
    """Answer one job after the other."""
    builder = SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1])
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            found = read(spark, job).selectExpr(*job["columns"]).collect()
            print(json.dumps({"rows": [list(row) for row in found]}), flush=True)
        except Exception:  # noqa: BLE001 - the test shows it
            said = traceback.format_exc().splitlines()
            print(
                json.dumps({"error": "\n".join(line for line in said if not line.startswith("\t"))[-3000:]}), flush=True
            )
    spark.stop()


if __name__ == "__main__":
    main()
