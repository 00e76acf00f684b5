"""A small Spark for a module's tests, and what they all do: fill topics, run queries, ask the group, wait.

No wait of these tests has a bound in seconds from its start. Starting a JVM or a Python process takes one second or a
minute, depending on the load. `Stage.until` gives up when nothing has moved for long, and says what moved last.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support import maven
from tests.support.waiting import ATTEMPTS, STILL_S, TOO_SLOW, until

from kohort import Broker
from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.client.offsets import Assignment
from kohort.client.producer.producer import Producer
from kohort.errors import RetriableError
from kohort.ids import TopicPartition

PARTITIONS = 4
SESSION_MS = 1_000_000
"""Beyond every wait: a member that a busy machine holds up stays one, and one that ended is not missed by its session
alone."""
SPAN_COLUMNS = "value,partition,offset,generation,rangeStart,rangeEnd"


@pytest.fixture(scope="session", autouse=True)
def _as_a_user_has_it() -> Iterator[None]:
    """Spark on loopback, its workers' Python left to `register`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYSPARK_PYTHON", raising=False)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _python_processes_are_forks(spark_forks: dict[str, str]) -> Iterator[None]:
    """Spare Spark's Python processes their imports, in the tests' session and in applications of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_forks.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for all tests, with Spark's own Kafka source beside ours where that can be had.

    Starting a session takes seconds.
    """
    from pyspark.sql import SparkSession

    from kohort.spark import register

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("kohort tests")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with contextlib.suppress(maven.MavenUnavailable):
        builder = builder.config("spark.jars", maven.spark_kafka_source())
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


@dataclass
class Stage:
    """A topic and a group of their own on the shared broker."""

    servers: str
    admin: Admin
    folder: Path
    topic: str
    group: str
    sent: int = 0
    signs: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """What moves besides the group: queries, sinks and applications add theirs."""

    def moves(self) -> dict[str, Any]:
        """Everything that can be seen to move."""
        signs = {name: sign() for name, sign in self.signs.items()}
        try:
            return signs | {"members": self.members(), "committed": self.committed(), "ends": self.ends()}
        except RetriableError as error:
            return signs | {"not to be asked": str(error)}

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for as long as anything moves; that the broker is too busy to answer is no answer."""

        def holds() -> bool:
            try:
                return bool(condition())
            except RetriableError:
                return False

        until(holds, what, STILL_S, self.moves)

    def finished(self, query: Any) -> None:
        """Waits for the end of a query; what it failed of is raised."""
        self.until(lambda: not query.isActive, "the query ends")
        query.awaitTermination()

    def assigned(self, member: GroupMember, count: int) -> Assignment:
        """Return a member's partitions once it has this many for good; it releases what the group asks for."""

        def holds() -> bool:
            if member.revocation() is not None:
                member.release()
            return member.owns() and len(member.assignment().partitions) == count

        self.until(holds, f"the member holds {count} partitions")
        return member.wait_assignment(STILL_S * 1000)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def produce(self, count: int, partitions: Sequence[int] = range(PARTITIONS)) -> None:
        """Records with the values 0, 1, 2 …, going on where the last call ended, dealt to the partitions in turn."""
        with Producer(self.servers) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topic, b"%d" % number, partition=partitions[number % len(partitions)])
        self.sent += count

    def committed(self) -> dict[int, tuple[int, str]]:
        """Offset and metadata by partition, where the group has one."""
        found = self.admin.list_consumer_group_offsets(self.group, self.partitions).all()
        return {
            tp.partition: (position.offset, position.metadata) for tp, position in found.items() if position is not None
        }

    def ends(self) -> dict[int, int]:
        found = self.admin.list_offsets(dict.fromkeys(self.partitions, "latest")).all()
        return {tp.partition: position.offset for tp, position in found.items()}

    def lag(self) -> int:
        committed = self.committed()
        return sum(end - committed.get(number, (0, ""))[0] for number, end in self.ends().items())

    def members(self) -> dict[str, tuple[int, ...]]:
        """Partitions of each member, by client id."""
        described = self.admin.describe_consumer_groups([self.group]).values.get(self.group)
        return {
            member.client_id: tuple(sorted(tp.partition for tp in member.assignment or ()))
            for member in (described.members if described is not None else ())
        }

    def options(self, **more: Any) -> dict[str, str]:
        """Options of a query that is a member."""
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "group.id": self.group,
            "startingOffsets": "earliest",
            "kafka.session.timeout.ms": str(SESSION_MS),
            "kafka.heartbeat.interval.ms": "200",
            "columns": SPAN_COLUMNS,
        }
        return {key: str(value) for key, value in (given | more).items() if value is not None}


@pytest.fixture(scope="session")
def spark_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for all tests.

    Groups start at once: each test has its own, which would wait three seconds for more members. Records stay, also
    those that a test stamps long ago: the broker looks for what is too old every five minutes.
    """
    config = {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1}
    with Broker(tmp_path_factory.mktemp("spark-broker"), config) as broker:
        yield broker


@pytest.fixture
def stage(spark_broker: Broker, tmp_path: Path) -> Iterator[Stage]:
    name = uuid.uuid4().hex[:8]
    servers = spark_broker.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(f"t-{name}", PARTITIONS)]).all()
        yield Stage(servers, admin, tmp_path, f"t-{name}", f"g-{name}")


@dataclass
class Sink:
    """Collects what a query hands to its sink, by batch; a batch that comes again replaces itself."""

    batches: dict[int, list[tuple[int, int, int, int, int]]] = field(default_factory=dict)
    every: list[tuple[int, list[tuple[int, int, int, int, int]]]] = field(default_factory=list)
    before: Callable[[int, int], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, frame: Any, number: int) -> None:
        """Rows as (value, partition, offset, rangeStart, rangeEnd)."""
        rows = [
            (int(row["value"]), row["partition"], row["offset"], row["rangeStart"], row["rangeEnd"])
            for row in frame.collect()
        ]
        with self.lock:
            self.every.append((number, sorted(rows)))
        if self.before is not None:
            self.before(number, len(rows))
        with self.lock:
            self.batches[number] = sorted(rows)

    def values(self) -> list[int]:
        with self.lock:
            return sorted(row[0] for rows in self.batches.values() for row in rows)

    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.batches.items()) if rows]


def started(query: Any) -> bool:
    """Whether a query's Python process has come up, or has failed to."""
    return not query.isActive or not query.status["message"].startswith("Initializing")


def state_of(query: Any) -> tuple[str, int]:
    """Return a query's status or error, and its last reported batch."""
    if not query.isActive:
        return f"ended: {str(query.exception())[:300]}", -1
    progress = query.lastProgress
    return query.status["message"], progress["batchId"] if progress is not None else -1


@pytest.fixture
def run(spark: Any, stage: Stage) -> Iterator[Callable[..., Any]]:
    """Starts a query into a sink: run(sink, name, trigger, **options); all end with the test."""
    queries: list[Any] = []
    stage.signs["queries"] = lambda: [state_of(query) for query in queries[-2:]]

    def start(
        sink: Callable[[Any, int], None],
        name: str = "q",
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        options.setdefault("kafka.client.id", name)
        if isinstance(sink, Sink):
            stage.signs[f"batches of {name}"] = lambda: len(sink.every)
        writer = (
            spark.readStream.format("kohort")
            .options(**stage.options(**options))
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(stage.folder / f"checkpoint-{name}"))
            .trigger(**(trigger or {"processingTime": "200 milliseconds"}))
        )
        for _ in range(ATTEMPTS):
            queries.append(writer.start())
            stage.until(lambda: started(queries[-1]), "the query starts")
            if TOO_SLOW not in str(queries[-1].exception()):
                return queries[-1]
        raise AssertionError(f"Spark's Python process did not come up in {ATTEMPTS} attempts of ten seconds")

    yield start
    for query in queries:
        query.stop()
