"""A job as many are written for Spark Connect and Kafka; SPARK_REMOTE is set. Arguments: SERVERS FOLDER."""

import json
import sys

from pyspark.sql import DataFrame, SparkSession

servers, folder = sys.argv[1:3]
spark = SparkSession.builder.appName("orders").getOrCreate()
orders = spark.range(12).selectExpr("CAST(id % 4 AS STRING) AS key", "CAST(id AS STRING) AS value")
orders.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "orders").save()


def routed(batch: DataFrame, number: int) -> None:
    """Write a batch to a topic, and what is in the topic by then to a folder."""
    batch.select("key", "value").write.format("kafka").option("kafka.bootstrap.servers", servers).option(
        "topic", "routed"
    ).save()
    there = batch.sparkSession.read.format("kafka").option("kafka.bootstrap.servers", servers)
    there.option("subscribe", "routed").load().select("value").write.mode("overwrite").parquet(folder + "/routed")


query = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .writeStream.foreachBatch(routed)
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
(source,) = query.lastProgress["sources"]
print(json.dumps([source["description"], spark.read.parquet(folder + "/routed").count()]))
spark.stop()
