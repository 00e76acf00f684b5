"""The first trigger of a query reads what there is, whichever trigger it is, with the defaults of broker and source.

A broker has the first members of a group wait for 3 s, and until then no member knows what it will hold.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import ATTEMPTS, LAST_RESORT, STILL_S, TOO_SLOW, until

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), LAST_RESORT]
ROWS = 10


@dataclass
class Reads:
    """A query on a topic and in a group of its own, and the rows that its sink has."""

    spark: Any
    servers: str
    folder: Path
    protocol: str
    trigger: dict[str, Any]
    rows: list[int] = field(default_factory=list)

    def start(self) -> Any:
        """Start it, as a user does."""
        self.name = uuid.uuid4().hex[:8]
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(f"t-{self.name}", 2)]).all()
        with Producer(self.servers) as producer:
            for number in range(ROWS):
                producer.send(f"t-{self.name}", b"%d" % number, partition=number % 2)
        reader = (
            self.spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", f"t-{self.name}")
            .option("group.id", f"g-{self.name}")
            .option("startingOffsets", "earliest")
        )
        if self.protocol != "classic":
            reader = reader.option("group.protocol", self.protocol)
        writer = (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: self.rows.extend(int(row.value) for row in frame.collect()))
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self.name}"))
        )
        return (writer.trigger(**self.trigger) if self.trigger else writer).start()

    def started(self) -> Any:
        """Start it, again where the machine was too busy for Spark's ten seconds."""
        for _ in range(ATTEMPTS):
            query = self.start()
            until(lambda query=query: not query.isActive or "Initializing" not in query.status["message"], "", STILL_S)
            if TOO_SLOW not in str(query.exception()):
                return query
        raise AssertionError("Spark's Python process did not come up")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(tmp_path_factory.mktemp("defaults")) as broker:
        yield broker.bootstrap_servers


def ends(query: Any) -> None:
    until(lambda: not query.isActive, "the query ends", STILL_S)
    query.awaitTermination()


def proceed(query: Any) -> None:
    query.processAllAvailable()
    query.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer", "push"])
@pytest.mark.parametrize(
    ("trigger", "finish"),
    [
        pytest.param({"once": True}, ends, id="once"),
        pytest.param({"availableNow": True}, ends, id="availableNow"),
        pytest.param({}, proceed, id="processAllAvailable"),
    ],
)
def test_a_trigger_reads_what_there_is_before_it_says_that_there_is_nothing(
    spark: Any,
    servers: str,
    tmp_path: Path,
    protocol: str,
    trigger: dict[str, Any],
    finish: Callable[[Any], None],
) -> None:
    reads = Reads(spark, servers, tmp_path, protocol, trigger)
    finish(reads.started())
    assert sorted(reads.rows) == list(range(ROWS))


@pytest.mark.parametrize("protocol", ["classic", "consumer", "push"])
def test_a_trigger_of_ten_minutes_reads_before_its_first_ten_minutes_are_over(
    spark: Any, servers: str, tmp_path: Path, protocol: str
) -> None:
    reads = Reads(spark, servers, tmp_path, protocol, {"processingTime": "10 minutes"})
    query = reads.started()
    try:
        until(lambda: sorted(reads.rows) == list(range(ROWS)), "the first trigger reads", STILL_S)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        pytest.param({"continuous": "1 second"}, "(?i)continuous", id="continuous"),
        pytest.param({"realTime": "5 minutes"}, "(?i)real-?time", id="realTime"),
    ],
)
def test_a_trigger_that_python_sources_do_not_have_is_refused(
    spark: Any, servers: str, tmp_path: Path, trigger: dict[str, Any], words: str
) -> None:
    reads = Reads(spark, servers, tmp_path, "classic", trigger)

    def whole() -> None:
        ends(reads.started())

    with pytest.raises(Exception, match=words):
        whole()
    assert reads.rows == []
