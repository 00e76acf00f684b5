"""A job as many are written for Spark's Kafka source; it knows nothing of kohort. Arguments: SERVERS FOLDER."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as such jobs are written)

servers, folder = sys.argv[1:3]
spark = (
    SparkSession.builder.appName("orders")
    .master("local[2]")
    .config("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.0")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
orders = spark.range(100).selectExpr("CAST(id % 4 AS STRING) AS key", "CAST(id AS STRING) AS value")
orders.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "orders").save()

stream = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("failOnDataLoss", "false")
    .option("group.id", "etl")
    .load()
)
counts = (
    stream.selectExpr("CAST(key AS STRING) AS key")
    .groupBy("key")
    .count()
    .select("key", F.col("count").cast("string").alias("value"))
)
query = (
    counts.writeStream.queryName("counts")
    .format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", "counts")
    .option("checkpointLocation", folder + "/checkpoint")
    .outputMode("update")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

found = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "counts")
    .load()
    .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
)
print(sorted((row.key, row.value) for row in found.collect()))
spark.range(3).write.mode("overwrite").format("noop").save()
spark.stop()
