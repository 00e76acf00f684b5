"""The Spark source where coordinators are apart from the brokers: its group is there, its records are Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.test_coordinator import Place
from tests.support.apache_kafka import ApacheKafka

from kohort import Admin

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_a_query_is_a_member_at_the_coordinators(spark: Any, apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    place = Place(apache_kafka)
    place.produce(40)
    with place.start() as one:
        source = (
            spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", one.address)
            .option("subscribe", place.topic)
            .option("group.id", place.group)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            source.writeStream.format("memory")
            .queryName("at_coordinators")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert spark.table("at_coordinators").count() == 40
        tables = spark.read.format("kohort").option("kafka.bootstrap.servers", one.address)
        rows = tables.option("table", "lag").option("group.id", place.group).load().collect()
        assert sum(row["lag"] for row in rows if row["topic"] == place.topic) == 0
    with Admin(apache_kafka.bootstrap_servers) as admin:
        assert place.group not in {group.group_id for group in admin.list_groups()}
