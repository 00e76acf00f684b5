"""One of several Spark applications that share a topic: `python spark_shared_topic.py SERVERS NAME`.

Start it three times, with a name each. The three queries are members of the group "shared", and each partition of the
topic is read by one of them. Stop one, by Ctrl-C or kill, and the others take its partitions over.

The topic: `kohort topics create events --partitions 6`. Records for it: `seq 1000 | kohort produce events`.
"""

import signal
import sys
import time

from pyspark.sql import DataFrame, SparkSession

from kohort.spark import register

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
name = sys.argv[2] if len(sys.argv) > 2 else "app-1"


def show(batch: DataFrame, _number: int) -> None:
    """Prints how many records of each partition the batch has."""
    for partition, count in sorted(batch.groupBy("partition").count().collect()):
        print(f"{time.strftime('%H:%M:%S')} {name}: partition {partition}: {count} records", flush=True)


spark = SparkSession.builder.master("local[1]").appName(name).getOrCreate()
register(spark)
query = (
    spark.readStream.format("kohort")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "events")
    .option("group.id", "shared")
    .option("startingOffsets", "earliest")
    .option("columns", "partition,offset")
    .load()
    .writeStream.foreachBatch(show)
    .option("checkpointLocation", f"checkpoint-{name}")  # one for each application
    .start()
)
signal.signal(signal.SIGTERM, lambda *_: query.stop())
query.awaitTermination()
spark.stop()
