"""Spark's own Kafka source with the Delta sink: `SERVERS TOPIC FOLDER JARS`."""

import sys

from pyspark.sql import SparkSession

servers, topic, folder, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
numbers = records.selectExpr("CAST(get_json_object(CAST(value AS STRING), '$.number') AS BIGINT) AS number")
query = (
    numbers.writeStream.format("delta")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(processingTime="2 seconds")
    .start(f"{folder}/table")
)
query.awaitTermination()
