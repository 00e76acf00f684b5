r"""Keeps the latest price of each product in a SQLite table: `python foreach_batch_upsert.py SERVERS [TABLE.db]`.

Spark repeats a batch after a crash. An upsert by key makes the repetition harmless, as long as an older price never
replaces a newer one. The offset says which is newer, since a key always has the same partition.

Prices for it: `printf 'tea:2.50\nmilk:1.20\ntea:2.75\n' | kohort produce prices --key-separator :`.
"""

import sqlite3
import sys

from pyspark.sql import DataFrame, SparkSession

from kohort.spark import register

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
table = sys.argv[2] if len(sys.argv) > 2 else "prices.db"
UPSERT = """
    INSERT INTO prices VALUES (?, ?, ?)
    ON CONFLICT (product) DO UPDATE SET price = excluded.price, at = excluded.at WHERE excluded.at > at
"""


def upsert(batch: DataFrame, _number: int) -> None:
    """Writes one batch in one transaction of the table."""
    rows = batch.selectExpr("CAST(key AS STRING)", "CAST(CAST(value AS STRING) AS DOUBLE)", "offset").collect()
    with sqlite3.connect(table) as database:
        database.execute("CREATE TABLE IF NOT EXISTS prices (product TEXT PRIMARY KEY, price REAL, at INTEGER)")
        database.executemany(UPSERT, [tuple(row) for row in rows])


spark = SparkSession.builder.master("local[2]").getOrCreate()
register(spark)
prices = (
    spark.readStream.format("kohort")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "prices")
    .option("group.id", "price-table")
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    prices.writeStream.foreachBatch(upsert)
    .option("checkpointLocation", f"{table}-checkpoint")
    .trigger(availableNow=True)  # reads what is there, then ends; without it the query goes on
    .start()
)
query.awaitTermination()
spark.stop()
