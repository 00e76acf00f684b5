"""Options of Spark's own Kafka source mean here what they mean there: both sources over the same topics."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.documentation.spec_page import ROOT, cells
from tests.spark.both_sources import outcomes_of
from tests.support import maven
from tests.support.long_runs import IS_LONG
from tests.support.waiting import LAST_RESORT

from kohort import Broker
from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.client.producer.producer import Producer
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.options import parse_options
from kohort.spark.sink_options import parse_sink_options

pytestmark = [pytest.mark.spark, pytest.mark.kafka, LAST_RESORT]

PAGE = ROOT / "docs" / "from-spark-kafka.md"
MIDDLE_MS, FUTURE_MS = 1_010_000, 9_999_999_999
BY_PARTITION = '{"n-a":{"0":1005000,"1":1012000}}'
ALIKE: dict[str, dict[str, Any]] = {
    "all columns": {"includeHeaders": "true"},
    "several topics": {"subscribe": " n-a , n-B,"},
    "a pattern of a prefix": {"subscribePattern": "^n-a"},
    "a pattern of an end": {"subscribePattern": "-a$"},
    "a pattern in quotes": {"subscribePattern": r"\Q-a\E"},
    "a pattern with an intersection": {"subscribePattern": "n-[a-z&&[^t]]"},
    "a pattern without case": {"subscribePattern": "(?i)n-b"},
    "partitions": {"assign": '{"n-a":[1]}'},
    "offsets by partition": {
        "startingOffsets": '{"n-a":{"0":3,"1":-2}}',
        "endingOffsets": '{"n-a":{"0":-1,"1":7}}',
    },
    "a word in capitals": {"startingOffsets": "EARLIEST", "endingOffsets": "Latest"},
    "a timestamp": {"startingTimestamp": MIDDLE_MS, "endingTimestamp": FUTURE_MS},
    "a timestamp at the end": {"endingTimestamp": MIDDLE_MS},
    "timestamps by partition": {
        "startingOffsetsByTimestamp": BY_PARTITION,
        "endingOffsetsByTimestamp": '{"n-a":{"0":1015000,"1":9999999999}}',
    },
    "a timestamp before offsets": {"startingTimestamp": MIDDLE_MS, "startingOffsets": "earliest"},
    "a timestamp before timestamps": {"startingTimestamp": MIDDLE_MS, "startingOffsetsByTimestamp": BY_PARTITION},
    "a timestamp that no record has": {
        "startingTimestamp": FUTURE_MS,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "tasks": {"minPartitions": 5, "maxRecordsPerPartition": 3},
    "limits of a stream in a batch": {"maxOffsetsPerTrigger": 3, "minOffsetsPerTrigger": 2, "maxTriggerDelay": "1s"},
    "aborted transactions": {"subscribe": "n-B", "kafka.isolation.level": "read_committed"},
    "the same, uncommitted": {"subscribe": "n-B"},
    "a group that is only named": {"kafka.group.id": "g", "group.id": "h", "failOnDataLoss": "false"},
    "options of others": {
        "truncate": "x",
        "path": "/x",
        "kafka.unheard.of": "x",
        "kafka.client.dns.lookup": "use_all_dns_ips",
    },
    "what retention has left": {
        "subscribe": "n-old",
        "startingOffsets": '{"n-old":{"0":0,"1":0}}',
        "endingOffsets": '{"n-old":{"0":2,"1":4}}',
        "failOnDataLoss": "false",
    },
    "a stream": {"stream": True, "startingOffsets": "earliest"},
    "a stream in parts": {"stream": True, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7},
    "a stream from a time": {"stream": True, "startingTimestamp": MIDDLE_MS},
}
"""Reads that give the same rows by both sources."""
REFUSED: dict[str, dict[str, Any]] = {
    "two ways to choose": {"subscribe": "n-a", "assign": '{"n-a":[1]}'},
    "no way to choose": {"subscribe": None},
    "no topic": {"subscribe": " "},
    "text for partitions": {"assign": "n-a"},
    "no brokers": {"kafka.bootstrap.servers": None},
    "a batch from the end": {"startingOffsets": "latest"},
    "a batch from an end": {"startingOffsets": '{"n-a":{"0":-1,"1":0}}'},
    "a batch to the beginning": {"endingOffsets": "earliest"},
    "a batch to a beginning": {"endingOffsets": '{"n-a":{"0":-2,"1":0}}'},
    "offsets without a partition": {"startingOffsets": '{"n-a":{"0":3}}'},
    "offsets of another partition": {"startingOffsets": '{"n-a":{"0":3,"1":4,"5":1}}'},
    "timestamps without a partition": {"startingOffsetsByTimestamp": '{"n-a":{"0":1005000}}'},
    "no offsets": {"startingOffsets": "nonsense"},
    "a time that no record has": {"startingTimestamp": FUTURE_MS},
    "no tasks": {"minPartitions": 0},
    "tasks by an empty text": {"minPartitions": ""},
    "tasks with a blank": {"minPartitions": " 5"},
    "headers with a blank": {"includeHeaders": " true"},
    "losses with a blank": {"failOnDataLoss": "false "},
    "offsets as text": {"startingOffsets": '{"n-a":{"0":"3","1":"-2"}}'},
    "offsets by an empty text": {"startingOffsets": ""},
    "partitions as text": {"assign": '{"n-a":["0"]}'},
    "a reset": {"kafka.auto.offset.reset": "earliest"},
    "commits by the client": {"kafka.enable.auto.commit": "true"},
    "a deserializer of keys": {"kafka.key.deserializer": "x.Y"},
    "a deserializer of values": {"kafka.value.deserializer": "x.Y"},
    "interceptors": {"kafka.interceptor.classes": "x.Y"},
    "an end of a stream": {"stream": True, "endingOffsets": "latest"},
    "a time behind its end": {"startingTimestamp": MIDDLE_MS, "endingTimestamp": 1_005_000},
    "offsets behind a time": {"startingOffsets": '{"n-a":{"0":9,"1":9}}', "endingTimestamp": 1_000_000},
    "records that retention has removed": {
        "subscribe": "n-old",
        "startingOffsets": '{"n-old":{"0":0,"1":0}}',
        "endingOffsets": '{"n-old":{"0":2,"1":2}}',
    },
}
"""Reads that both sources refuse."""
SHORT = (
    "all columns",
    "several topics",
    "a pattern of a prefix",
    "partitions",
    "offsets by partition",
    "a timestamp",
    "timestamps by partition",
    "a timestamp that no record has",
    "tasks",
    "aborted transactions",
    "a stream in parts",
    "a stream from a time",
    "two ways to choose",
    "no topic",
    "a batch from the end",
    "offsets of another partition",
    "a time that no record has",
    "a reset",
    "what retention has left",
    "records that retention has removed",
    "a time behind its end",
    "offsets as text",
)
"""The reads that `make test` makes, one or two of each kind; `make test-long` makes all."""
ALIKE_NOW, REFUSED_NOW = (
    {name: read for name, read in reads.items() if IS_LONG or name in SHORT} for reads in (ALIKE, REFUSED)
)
FINDS_NOTHING = {
    "a pattern that finds nothing": ({"subscribePattern": "^nosuch"}, "matches subscribePattern=^nosuch"),
    "a partition that is not there": ({"assign": '{"n-a":[9]}'}, "partitions that do not exist: n-a-9"),
}
"""Batch reads that give no rows with Spark's source, and an error with these words here."""
OF_SOURCE: dict[str, str] = {
    "subscribe": "t",
    "subscribePattern": "t",
    "assign": '{"t":[0]}',
    "startingOffsets": "earliest",
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"t":{"0":1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"t":{"0":1}}',
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxOffsetsPerTrigger": "1",
    "minOffsetsPerTrigger": "1",
    "maxTriggerDelay": "1s",
    "minPartitions": "1",
    "maxRecordsPerPartition": "1",
    "kafka.group.id": "g",
    "group.id": "g",
    "kafka.auto.offset.reset": "earliest",
    "kafka.isolation.level": "read_committed",
    "kafka.max.partition.fetch.bytes": "1",
    "kafka.fetch.max.bytes": "1",
}
"""A value for each option of the source; options that are not named take any."""


@pytest.fixture(scope="module")
def outcomes(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last part of every read, by both sources."""
    maven.spark_kafka_source()
    folder = tmp_path_factory.mktemp("ports")
    with Broker(folder / "data", {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1}) as broker:
        fill(broker.bootstrap_servers)
        chosen = ALIKE_NOW | REFUSED_NOW | {name: read for name, (read, _) in FINDS_NOTHING.items()}
        reads = {name: read(broker.bootstrap_servers, more) for name, more in chosen.items()}
        return outcomes_of(spark, folder, reads)


def fill(servers: str) -> None:
    """Topics n-a, n-a-dlq, n-B and n-old, with keys, headers, a tombstone and an aborted transaction.

    The first three records of each partition of n-old are gone.
    """
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 2) for topic in ("n-a", "n-a-dlq", "n-B", "n-old")]).all()
    with Producer(servers) as producer:
        for topic, count in (("n-a", 20), ("n-a-dlq", 6), ("n-B", 6), ("n-old", 10)):
            for number in range(count):
                producer.send(
                    topic,
                    None if number == 7 else b"%d" % number,
                    key=b"k%d" % number if number % 4 else None,
                    partition=number % 2,
                    timestamp_ms=1_000_000 + number * 1_000,
                    headers=[("h", b"v"), ("h", b"")] if number % 3 else [],
                )
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition("n-old", number): 3 for number in range(2)}).all()
    with Producer(servers, transactional_id="aborts") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("n-B", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()


def read(servers: str, more: dict[str, Any]) -> dict[str, Any]:
    """A read as the program knows it: with the brokers, and topic n-a where the options choose none."""
    chosen = {"subscribe", "subscribePattern", "assign"} & more.keys()
    given = {"kafka.bootstrap.servers": servers} | ({} if chosen else {"subscribe": "n-a"}) | more
    stream = bool(given.pop("stream", False))
    return {"stream": stream, "options": {name: str(value) for name, value in given.items() if value is not None}}


@pytest.mark.parametrize("name", ALIKE_NOW)
def test_a_read_gives_the_rows_that_sparks_own_source_gives(outcomes: dict[str, Any], name: str) -> None:
    spark, ours = outcomes["reads"][name]["kafka"], outcomes["reads"][name]["kohort"]
    assert "error" not in spark and "error" not in ours
    assert ours["rows"] == spark["rows"]
    assert bool(ours["rows"]) is (name != "a timestamp that no record has")


@pytest.mark.parametrize("name", REFUSED_NOW)
def test_a_read_is_refused_that_sparks_own_source_refuses(outcomes: dict[str, Any], name: str) -> None:
    spark, ours = outcomes["reads"][name]["kafka"], outcomes["reads"][name]["kohort"]
    assert "error" in spark and "kohort.errors" in ours["error"]


@pytest.mark.parametrize("name", FINDS_NOTHING)
def test_a_batch_read_of_nothing_is_an_error_of_ours_alone(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes["reads"][name]
    assert found["kafka"] == {"rows": []} and FINDS_NOTHING[name][1] in found["kohort"]["error"]


def test_a_limit_is_exact_here_and_rounded_down_by_spark(outcomes: dict[str, Any]) -> None:
    found = outcomes["reads"]["a stream in parts"]
    assert found["kohort"]["batches"] == [7, 7, 6] and found["kafka"]["batches"][0] == 6


def rows_of_page(head: str) -> dict[str, tuple[str, str]]:
    """Options of the page's tables under a heading, with what each is here and the note."""
    section = PAGE.read_text().split(f"## {head}\n")[1].split("\n## ")[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("| `")]
    return {name.strip("`"): (row[1], row[2]) for row in rows for name in row[0].split(", ")}


def test_the_page_has_every_option_of_sparks_source_and_sink(outcomes: dict[str, Any]) -> None:
    named = {name.lower() for head in ("Options of the source", "Options of the sink") for name in rows_of_page(head)}
    options = {name for name in outcomes["options"] if re.fullmatch("[a-z.]+", name)}
    assert {"startingoffsets", "topic", "subscribepattern", "groupidprefix"} <= options <= named


SOURCE_ROWS = rows_of_page("Options of the source")
SINK_ROWS = rows_of_page("Options of the sink")


@pytest.mark.parametrize("name", SOURCE_ROWS)
def test_an_option_of_the_source_is_what_the_page_says(name: str) -> None:
    choice = {} if name in ("subscribe", "subscribePattern", "assign") else {"subscribe": "t"}
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **choice, name: OF_SOURCE.get(name, "x")}
    held(name, SOURCE_ROWS[name][0], lambda: parse_options(given).ignored)


@pytest.mark.parametrize("name", SINK_ROWS)
def test_an_option_of_the_sink_is_what_the_page_says(name: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", name: "x"}
    held(name, SINK_ROWS[name][0], lambda: parse_sink_options(given).ignored)


def held(name: str, kind: str, parse: Any) -> None:
    """Hold an option to its word in the table: same, another meaning, refused, ignored."""
    if kind == "refused":
        with pytest.raises(InvalidInputError, match=f"the option {name} "):
            parse()
        return
    ignored = any(name.lower() in text.lower() for text in parse())
    assert {"same": False, "another meaning": False, "ignored": True}[kind] is ignored
