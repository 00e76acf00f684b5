"""The Spark source where coordinators are apart from the brokers: its group is there, its records are Kafka's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.literal_consumer import coordinator
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import Place
from tests.spark.conftest import PARTITIONS, SESSION_MS, Sink, Stage
from tests.spark.test_push import PUSH, Member
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import LAST_RESORT

from kohort import Admin
from kohort.client.admin.values import NewTopic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def two(apache_kafka: ApacheKafka) -> Iterator[list[CoordinatorProcess]]:
    """Coordinators, which share the groups."""
    place = Place(apache_kafka)
    with place.start() as one, place.start() as other:
        yield [one, other]


@pytest.fixture
def stage(two: list[CoordinatorProcess], tmp_path: Path) -> Iterator[Stage]:
    """At the coordinators: groups are theirs, topics Kafka's."""
    name = uuid.uuid4().hex[:8]
    servers = ",".join(entry.address for entry in two)
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(f"t-{name}", PARTITIONS)]).all()
        yield Stage(servers, admin, tmp_path, f"t-{name}", f"g-{name}")


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


@LAST_RESORT
@pytest.mark.filterwarnings("default")
def test_a_query_and_a_python_member_push_through_the_deaths_of_their_coordinator_and_of_the_member(
    run: Callable[..., Any], stage: Stage, two: list[CoordinatorProcess]
) -> None:
    """Every record is read, before and after; those of the hand-over once."""
    sink = Sink()
    query = run(sink, "spark", **PUSH)
    stage.produce(200)
    stage.until(lambda: len(sink.values()) == 200, "the query reads all")
    member = Member(stage.servers, stage.group, stage.topic, SESSION_MS)
    stage.signs["read by the member"] = lambda: len(member.read)

    def covered() -> bool:
        mine = {(row[1], row[2]) for rows in sink.batches.values() for row in rows}
        return mine | set(member.read) == {(p, offset) for p in range(PARTITIONS) for offset in range(stage.sent // 4)}

    def share() -> bool:
        return sorted(map(len, stage.members().values())) == [2, 2]

    try:
        stage.until(share, "both share the group")
        stage.produce(200)
        stage.until(covered, "both read")
        assert (len(sink.values()), len(member.read)) == (300, 100)
        host, _, port = two[0].address.rpartition(":")
        _, place = coordinator(host, int(port), stage.group)
        assert place is not None
        next(entry for entry in two if entry.address == f"{place[0]}:{place[1]}").kill()
        stage.produce(200)
        stage.until(lambda: covered() and share(), "both read on, and are members of the other coordinator")
        member.kill()
        stage.produce(200)
        stage.until(covered, "the query reads all")
        stage.until(lambda: stage.lag() == 0, "all is committed")
        assert query.isActive
        assert stage.members() == {"spark": (0, 1, 2, 3)}
    finally:
        member.kill()
