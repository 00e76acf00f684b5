"""A Spark application of a region that writes numbers into an Iceberg table: `SERVERS TOPIC WAREHOUSE QUERY FOLDER`."""

import sys

from pyspark.sql import SparkSession

from kohort.region import IcebergTable
from kohort.spark import SparkRegion

servers, topic, warehouse, query, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
region = SparkRegion(spark, "numbers", servers, folder=folder, checkpoint_every="2s")
region.query(
    query,
    lambda records: records.selectExpr("CAST(get_json_object(CAST(value AS STRING), '$.number') AS BIGINT) AS number"),
    source={"subscribe": topic, "group.id": "numbers"},
    into=IcebergTable("air.numbers", warehouse=warehouse),
    start="beginning",
)
region.run()
