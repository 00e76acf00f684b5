"""A query's calls as Spark makes them, in this process and without a JVM: for what does not depend on Spark itself."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tests.support.waiting import STILL_S, until

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.client.producer.producer import Producer
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.spark.data_source import KohortDataSource
from kohort.spark.options import asks_for_table, parse_options
from kohort.spark.schema import arrow_schema, column_names_of
from kohort.spark.tables import TABLES, parse_table_options


@dataclass
class Place:
    """Topics and a group of a test's own on a broker that others use too."""

    servers: str
    admin: Admin
    protocol: str = "classic"
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def group(self) -> str:
        return f"g-{self.name}"

    def topic(self, letter: str = "a") -> str:
        return f"t-{self.name}-{letter}"

    def partitions(self, letter: str = "a", count: int = 2) -> list[TopicPartition]:
        return [TopicPartition(self.topic(letter), number) for number in range(count)]

    def make(self, letter: str = "a", count: int = 2) -> str:
        """Make a topic, as soon as one that was deleted lets it; gives its id."""
        made: list[Any] = []

        def done() -> bool:
            result = self.admin.create_topics([NewTopic(self.topic(letter), count)])
            try:
                made.extend(result.all().values())
            except KafkaError:
                return False
            return True

        until(done, "the topic is made", STILL_S)
        return str(made[0].topic_id)

    def delete(self, letter: str = "a") -> None:
        self.admin.delete_topics([self.topic(letter)]).all()
        until(
            lambda: self.topic(letter) not in {topic.name for topic in self.admin.list_topics()}, "it is gone", STILL_S
        )

    def produce(self, values: Sequence[int], letter: str = "a", count: int = 2) -> None:
        """The values, dealt to the partitions in turn."""
        with Producer(self.servers) as producer:
            for place, value in enumerate(values):
                producer.send(self.topic(letter), b"%d" % value, partition=place % count)

    def committed(self, letter: str = "a", count: int = 2) -> dict[int, int]:
        found = self.admin.list_consumer_group_offsets(self.group, self.partitions(letter, count)).all()
        return {tp.partition: position.offset for tp, position in found.items() if position is not None}

    def options(self, **more: Any) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic(),
            "group.id": self.group,
            "group.protocol": self.protocol,
            "startingOffsets": "earliest",
            "columns": "value,topic,partition,offset",
            "kafka.metadata.max.age.ms": 500,
            "kafka.heartbeat.interval.ms": 200,
        }
        return {key: str(value) for key, value in (given | more).items() if value is not None}


@pytest.fixture
def place(servers: str) -> Iterator[Place]:
    with Admin(servers) as admin:
        yield Place(servers, admin)


@pytest.fixture
def own_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' process keeps its own answer to SIGTERM."""
    monkeypatch.setattr("kohort.spark.source.readers.SigtermHandler.install_handler", lambda ending: None)


def declared(source: KohortDataSource) -> StructType:
    """The schema that Spark hands to a reader, parsed from what the source declares."""
    raw = source._raw
    if asks_for_table(raw):
        return from_arrow_schema(TABLES[parse_table_options(raw).table].arrow)
    return from_arrow_schema(arrow_schema(column_names_of(parse_options(raw))))


@dataclass
class Checkpoint:
    """The state that outlives a query: the offsets of its batches, and the number of finished ones."""

    offsets: list[str] = field(default_factory=list)
    finished: int = 0

    def end_of(self, batch: int) -> str | None:
        return self.offsets[batch] if 0 <= batch < len(self.offsets) else None


class Run:
    """One run of a query, from its start to `stop`; stops with the `with` statement.

    With `now` it reads what is there when it starts, as AvailableNow.
    """

    def __init__(self, options: dict[str, str], checkpoint: Checkpoint | None = None, *, now: bool = False) -> None:
        source = KohortDataSource(options)
        self.reader: Any = source.streamReader(declared(source))
        self.checkpoint = Checkpoint() if checkpoint is None else checkpoint
        self._initial = ""
        if now:
            self.reader.prepareForTriggerAvailableNow()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self) -> tuple[Any, list[Any]] | None:
        """Plan the next trigger: return a worker's reader and the tasks; None: nothing to read now."""
        log = self.checkpoint
        start = log.end_of(log.finished - 1) or self._first()
        end = log.end_of(log.finished)
        if end is None:
            end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
            if end == start:
                return None
            log.offsets.append(end)
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        return pickle.loads(pickle.dumps((self.reader, tasks)))  # type: ignore[no-any-return]

    def _first(self) -> str:
        self._initial = self._initial or json.dumps(self.reader.initialOffset())
        return self._initial

    def finish(self, planned: tuple[Any, list[Any]]) -> list[int]:
        """Read what was planned, and note in the checkpoint that the sink has it."""
        values = values_of(*planned)
        self.checkpoint.finished += 1
        return sorted(values)

    def read(self, count: int) -> list[int]:
        """Triggers until so many records are read and nothing more comes, so that they are committed too."""
        values: list[int] = []

        def done() -> bool:
            planned = self.plan()
            if planned is not None:
                values.extend(self.finish(planned))
            return planned is None and len(values) >= count

        until(done, f"{count} records are read", STILL_S)
        return sorted(values)


def values_of(reader: Any, tasks: list[Any]) -> list[int]:
    """The values that a task's worker hands to Spark."""
    return [int(value) for task in tasks for batch in reader.read(task) for value in batch.column("value").to_pylist()]


def batch_reader(options: dict[str, str]) -> Any:
    source = KohortDataSource(options)
    return source.reader(declared(source))
