"""A program that runs two queries under both sources in turn: `python -m … SERVERS FOLDER JAR[,JAR…] [RUN]`.

The first is stateless and reads two topics by two `load()`s, each a member of a group of its own. The second counts by
key and has no group. Every second run fails inside a batch, before the sink has taken it. The last line of the output
is JSON: the values that the sink of the first has taken, and the counts of the second.

With a RUN it is one step of such a story, whose sinks are a file. `kafka-killed` and `kohort-killed` end by SIGKILL
when both queries are inside a batch; `kafka` and `kohort` read to the end. A run of Kafka's source first converts what
kohort's has left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.waiting import TOO_SLOW

from kohort import Admin, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.spark import register
from kohort.spark.checkpoint_move import CheckpointLog

ROUNDS = 3
RECORDS = 6
"""Records that each run finds in each topic."""


class Killed(Exception):
    """Stands for the end of the process inside a batch: the sink has taken nothing of it."""


class Moving:
    """Both queries, their sinks, and what was sent so far."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self.spark, self.servers, self.folder = spark, servers, folder
        self.taken: list[int] = []
        self.counts: dict[str, int] = {}
        self.sent = 0
        self.dies = False

    def produce(self) -> None:
        """Numbered records: even numbers to topic a, odd ones to topic b, the last digit as their key."""
        with Producer(self.servers) as producer:
            for number in range(self.sent, self.sent + 2 * RECORDS):
                topic = "ab"[number % 2]
                producer.send(topic, b"%d" % number, key=b"%d" % (number % 10), partition=number // 2 % 2)
        self.sent += 2 * RECORDS

    def load(self, source: str, topics: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(source).option("kafka.bootstrap.servers", self.servers)
        return reader.option("subscribe", topics).option("startingOffsets", "earliest").options(**options).load()

    def union(self, source: str) -> DataFrame:
        a = self.load(source, "a", **{"group.id": "moved-a"})
        b = self.load(source, "b", **{"group.id": "moved-b"})
        return a.selectExpr("CAST(value AS STRING) AS value").union(b.selectExpr("CAST(value AS STRING) AS value"))

    def by_key(self, source: str) -> DataFrame:
        return self.load(source, "a,b").selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()

    def take_values(self, batch: DataFrame, _number: int) -> None:
        values = [int(row.value) for row in batch.collect()]
        self.die_perhaps()
        self.taken += values

    def take_counts(self, batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        self.die_perhaps()
        self.counts.update({row["key"]: row["count"] for row in rows})

    def die_perhaps(self) -> None:
        if self.dies:
            raise Killed("inside a batch")

    def run(self, name: str, rows: DataFrame, take: Callable[[DataFrame, int], None], mode: str) -> None:
        query = (
            rows.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.folder / name))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW in str(error):  # a busy machine: Spark gives its Python processes ten seconds to come up
                self.run(name, rows, take, mode)
            elif not self.dies or "inside a batch" not in str(error):
                raise
        else:
            assert not self.dies, f"{name} ended well, and was to die"

    def both(self, source: str) -> None:
        self.run("values", self.union(source), self.take_values, "append")
        self.run("counts", self.by_key(source), self.take_counts, "update")

    def back(self) -> None:
        """Convert both checkpoints, as `kohort spark checkpoint convert DIR --to kafka --execute` does."""
        with Admin(self.servers) as admin:

            def committed(group: str) -> dict[TopicPartition, int]:
                found = admin.list_consumer_group_offsets(group).all()
                return {part: at.offset for part, at in found.items() if at is not None}

            for name in ("values", "counts"):
                CheckpointLog(self.folder / name).plan_conversion("kafka", committed).write()

    def step(self, source: str, *, killed: bool) -> None:
        """One run of its own process, which goes on with what the file of the sinks has."""
        file = self.folder / "sinks.json"
        if file.exists():
            kept = json.loads(file.read_text())
            self.sent, self.taken, self.counts = kept["sent"], kept["taken"], kept["counts"]
            if source == "kafka":
                self.back()
        self.produce()
        file.write_text(self.reported())
        if killed:
            self.both_are_killed(source)
        self.both(source)
        file.write_text(self.reported())

    def both_are_killed(self, source: str) -> None:
        """End by SIGKILL when both queries are inside a batch, of which the sinks have taken nothing."""
        inside = threading.Barrier(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
        for name, rows, mode in (("values", self.union(source), "append"), ("counts", self.by_key(source), "update")):
            writer = rows.writeStream.foreachBatch(lambda batch, _number: (batch.collect(), inside.wait()))
            writer.option("checkpointLocation", str(self.folder / name)).outputMode(mode).start()
        self.spark.streams.awaitAnyTermination()

    def reported(self) -> str:
        return json.dumps({"sent": self.sent, "taken": sorted(self.taken), "counts": self.counts})

    def story(self) -> None:
        """Each source in turn; a run that dies leaves its batch to the other source."""
        for number in range(ROUNDS):
            for source in ("kafka", "kohort"):
                for self.dies in (False, True) if (number, source) != (0, "kafka") else (True,):
                    self.produce()
                    self.both(source)
                if source == "kohort":
                    self.back()
        self.dies = False
        self.both("kafka")
        self.both("kafka")


def main(servers: str, folder: str, jars: str, run: str = "") -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.jars", jars)
        .getOrCreate()
    )
    register(spark)
    moving = Moving(spark, servers, Path(folder))
    with Admin(servers) as admin:
        if "a" not in {topic.name for topic in admin.list_topics()}:
            admin.create_topics([NewTopic("a", 2), NewTopic("b", 2)]).all()
    if run:
        source, _, ending = run.partition("-")
        moving.step(source, killed=ending == "killed")
    else:
        moving.story()
    print(moving.reported())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
