"""Tables: the rows are what the brokers say, of the types that were promised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.conftest import Stage
from tests.spark.queries import declared
from tests.support.waiting import LAST_RESORT

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import InvalidInputError, NotFoundError
from kohort.spark.data_source import KohortDataSource
from kohort.spark.tables import GROUPS_A_TASK, TABLES, TableReader, parse_table_options

GROUP, OTHER = "tables-readers", "tables-others"
READ, ELSE = "tables-flights", "tables-trains"
BOTH = {"group.id": f"{GROUP},{OTHER}"}
OLD_MS = 3_600_000


@pytest.fixture(scope="module", params=["our_broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Two topics; a member of one group that read some of the first; another group that has only offsets."""
    servers = request.getfixturevalue(request.param).bootstrap_servers
    old = int(time.time() * 1000) - OLD_MS
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(READ, 2), NewTopic(ELSE, 1)]).all()
        for number in range(10):
            producer.send(READ, b"%d" % number, partition=0, timestamp_ms=old + number)
        producer.send(ELSE, b"x")
        producer.flush()
        admin.alter_consumer_group_offsets(OTHER, {TopicPartition(ELSE, 0): OffsetAndMetadata(0, "a")}).all()
        admin.alter_consumer_group_offsets(OTHER, {TopicPartition(ELSE, 0): OffsetAndMetadata(1, "b")}).all()
        with Consumer(servers, group_id=GROUP, client_id="reader", enable_auto_commit=False) as consumer:
            consumer.subscribe([READ])
            while len(consumer.assignment()) < 2:
                consumer.poll(timeout_ms=100)
            consumer.commit(
                {
                    TopicPartition(READ, 0): OffsetAndMetadata(4, "four"),
                    TopicPartition(READ, 1): OffsetAndMetadata(0),
                }
            )
            yield servers


def table(servers: str, name: str, **more: str) -> list[dict[str, Any]]:
    """All rows, as Spark would ask for them."""
    reader = TableReader(parse_table_options({"table": name, "kafka.bootstrap.servers": servers, **more}))
    rows: list[dict[str, Any]] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            assert batch.schema.equals(TABLES[name].arrow)
            rows += batch.to_pylist()
    return rows


def test_groups(servers: str) -> None:
    rows = {row["group"]: row for row in table(servers, "groups")}
    assert {OTHER, GROUP} <= set(rows)
    assert (rows[GROUP]["state"], rows[GROUP]["type"], rows[GROUP]["members"]) == ("Stable", "Classic", 1)
    assert (rows[OTHER]["state"], rows[OTHER]["members"]) == ("Empty", 0)
    assert [row["group"] for row in table(servers, "groups", **{"group.id": GROUP})] == [GROUP]


def test_members(servers: str) -> None:
    (row,) = table(servers, "members", **{"group.id": GROUP})
    assert (row["group"], row["clientId"], row["topics"]) == (GROUP, "reader", [READ])
    assert row["partitions"] == [{"topic": READ, "partition": 0}, {"topic": READ, "partition": 1}]


def test_offsets(servers: str) -> None:
    rows = [
        (r["group"], r["topic"], r["partition"], r["offset"], r["metadata"]) for r in table(servers, "offsets", **BOTH)
    ]
    assert sorted(rows) == [
        (OTHER, ELSE, 0, 1, "b"),
        (GROUP, READ, 0, 4, "four"),
        (GROUP, READ, 1, 0, ""),
    ]
    assert {row["topic"] for row in table(servers, "offsets", subscribe=ELSE)} == {ELSE}


def test_lag_is_shown_in_records_and_in_time(servers: str) -> None:
    rows = {(row["group"], row["topic"], row["partition"]): row for row in table(servers, "lag", **BOTH)}
    behind = rows[GROUP, READ, 0]
    assert (behind["committed"], behind["logStart"], behind["logEnd"], behind["lag"]) == (4, 0, 10, 6)
    assert OLD_MS - 4 <= behind["timeLagMs"] < OLD_MS + 600_000
    assert (behind["clientId"], behind["metadata"], behind["error"]) == ("reader", "four", None)
    done = rows[OTHER, ELSE, 0]
    assert (done["lag"], done["timeLagMs"], done["memberId"]) == (0, 0, None)
    assert rows[GROUP, READ, 1]["timeLagMs"] == 0
    assert {(row["lost"], row["status"]) for row in rows.values()} == {(None, None)}


def test_rebalances_are_those_that_our_coordinators_keep(servers: str, our_broker: Broker) -> None:
    rows = table(servers, "rebalances", **{"group.id": GROUP})
    if servers != our_broker.bootstrap_servers:
        assert rows == []
        return
    assert rows[0]["reasons"] == ["joined"] and rows[0]["began"] <= rows[0]["ended"]
    assert (rows[-1]["members"], rows[-1]["group"]) == (1, GROUP) and "reader" in rows[0]["why"]


def test_topics(servers: str) -> None:
    rows = {(row["topic"], row["partition"]): row for row in table(servers, "topics")}
    assert {READ, ELSE, "__consumer_offsets"} <= {name for name, _ in rows}
    first = rows[READ, 0]
    assert (first["logStart"], first["logEnd"], first["internal"]) == (0, 10, False)
    assert first["replicas"] == first["inSync"] == [first["leader"]]
    assert rows["__consumer_offsets", 0]["internal"] is True
    assert {row["topic"] for row in table(servers, "topics", subscribe=ELSE)} == {ELSE}


def test_commits_are_those_that_the_journal_still_holds(servers: str) -> None:
    rows = sorted(table(servers, "commits", **{"group.id": OTHER}), key=lambda row: row["journalOffset"])
    assert [(row["offset"], row["metadata"], row["deleted"]) for row in rows] == [(0, "a", False), (1, "b", False)]
    assert abs(rows[0]["committedAt"].timestamp() - time.time()) < 600
    with Admin(servers) as admin:
        trains = TopicPartition(ELSE, 0)
        admin.alter_consumer_group_offsets("tables-passing", {trains: OffsetAndMetadata(1)}).all()
        admin.delete_consumer_group_offsets("tables-passing", [trains]).all()
    gone = table(servers, "commits", **{"group.id": "tables-passing"})
    assert [(row["offset"], row["deleted"]) for row in sorted(gone, key=lambda row: row["journalOffset"])] == [
        (1, False),
        (None, True),
    ]


def test_many_groups_are_shared_out_among_tasks(servers: str) -> None:
    with Admin(servers) as admin:
        place = TopicPartition(ELSE, 0)
        names = [f"tables-many-{number:02}" for number in range(GROUPS_A_TASK + 5)]
        for name in names:
            admin.alter_consumer_group_offsets(name, {place: OffsetAndMetadata(0)}).all()
        given = {"table": "lag", "kafka.bootstrap.servers": servers, "group.id": ",".join(names)}
        assert len(TableReader(parse_table_options(given)).partitions()) == 2
        assert sorted(row["group"] for row in table(servers, "lag", **{"group.id": ",".join(names)})) == names
        admin.delete_consumer_groups(names).all()


def test_a_group_or_topic_that_is_not_there_is_named_with_the_nearest(servers: str) -> None:
    with pytest.raises(NotFoundError, match="no group tables-reader; did you mean tables-readers"):
        table(servers, "lag", **{"group.id": "tables-reader"})
    with pytest.raises(NotFoundError, match="no topic tables-train; did you mean tables-trains"):
        table(servers, "topics", subscribe="tables-train")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"table": "group"}, "groups"),
        ({"table": "topics", "group.id": "x"}, "leave the option group.id out"),
        ({"table": "members", "subscribe": "x"}, "leave the option subscribe out"),
        ({"table": "rebalances", "subscribe": "x"}, "leave the option subscribe out"),
        ({"table": "lag", "startingOffsets": "earliest"}, "unknown option startingOffsets"),
    ],
)
def test_options_that_can_not_be(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_table_options({"kafka.bootstrap.servers": "127.0.0.1:1", **more})


def test_a_stream_of_a_table_is_refused() -> None:
    source = KohortDataSource({"table": "lag", "kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(InvalidInputError, match=r"use spark\.read"):
        source.streamReader(declared(source)).initialOffset()


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@LAST_RESORT
def test_spark_reads_every_table(spark: Any, stage: Stage) -> None:
    stage.produce(8)
    with Admin(stage.servers) as admin:
        admin.alter_consumer_group_offsets(stage.group, {tp: OffsetAndMetadata(1) for tp in stage.partitions}).all()

    def frame(name: str) -> Any:
        return spark.read.format("kohort").options(**{"kafka.bootstrap.servers": stage.servers, "table": name}).load()

    for name, value in TABLES.items():
        assert frame(name).columns == [column for column, _ in value.columns]
        assert frame(name).count() > 0 or name in ("members", "rebalances")
    lag = frame("lag").where(f"group = '{stage.group}'").selectExpr("sum(lag) AS lag").first()
    assert lag["lag"] == 4
