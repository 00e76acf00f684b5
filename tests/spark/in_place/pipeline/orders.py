"""Definitions of a pipeline as they are written for Spark's Kafka source, with one line before them."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as such definitions are written)

from kohort.spark import register

spark = SparkSession.active()
register(spark, in_place_of_kafka=True)
servers = os.environ["KAFKA_SERVERS"]


@dp.table
def bronze() -> DataFrame:
    """All orders."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition", "offset")
    )


@dp.materialized_view
def silver() -> DataFrame:
    """How many orders a customer has."""
    return spark.read.table("bronze").groupBy("key").agg(F.count("*").alias("orders"))


dp.create_sink(name="out", format="kafka", options={"kafka.bootstrap.servers": servers, "topic": "copies"})


@dp.append_flow(target="out")
def copies() -> DataFrame:
    """Each order into another topic."""
    return spark.readStream.table("bronze").select("key", "value")
