"""A framework under test: what it needs, the command of its members, how records go in and come out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frameworks.account import Numbered
from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.errors import KafkaError

INPUT, OUTPUT = "numbers-in", "numbers-out"
PARTITIONS = 4
KEYS = 16
READ_MS = 200.0


@dataclass(frozen=True, slots=True)
class Site:
    """The place of one run.

    Attributes:
        servers: address of the broker.
        folder: an empty folder of the run; `member-N` below it belongs to one member.
    """

    servers: str
    folder: Path

    def member_folder(self, member: int) -> Path:
        """Return the folder of a member, which outlives its processes."""
        folder = self.folder / f"member-{member}"
        folder.mkdir(exist_ok=True)
        return folder


class RecordInput(Protocol):
    """Takes the numbered records of a run."""

    def write(self, records: Sequence[Numbered]) -> None:
        """Hand over records."""

    def flush(self) -> None:
        """Wait until all records are stored."""

    def close(self) -> None: ...


class RecordOutput(Protocol):
    """Reads what a framework has made of the records."""

    def read_more(self) -> list[Numbered]:
        """Return the records that have come since the last call; empty when nothing came for a moment."""

    def close(self) -> None: ...


class TopicOutput:
    """Reads the output topic from its beginning, without a group, committed records alone."""

    def __init__(self, servers: str, topic: str = OUTPUT, partitions: int = PARTITIONS) -> None:
        self._consumer = Consumer(servers, isolation_level="read_committed", auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(topic, number) for number in range(partitions)])

    def read_more(self) -> list[Numbered]:
        """Return the records that have come since the last call; empty when nothing came for a moment."""
        records = self._consumer.poll(timeout_ms=READ_MS)
        return [self.parse_record((record.key or b"").decode(), (record.value or b"").decode()) for record in records]

    def parse_record(self, key: str, value: str) -> Numbered:
        """Return the record that a key and a value stand for."""
        return Numbered.parse(key, value)

    def close(self) -> None:
        self._consumer.close()


class TopicInput:
    """Writes numbered records into the input topic."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(servers)

    def write(self, records: Sequence[Numbered]) -> None:
        """Hand records to the producer, which sends them when it can."""
        for record in records:
            self._producer.send(INPUT, value=self.encode_value(record), key=record.key)

    def encode_value(self, record: Numbered) -> str:
        """Return the value under which a record is produced."""
        return str(record.number)

    def flush(self) -> None:
        """Wait until the broker has acknowledged all records."""
        self._producer.flush()

    def close(self) -> None:
        """Close the producer. A run that failed has records left, and its own error to show."""
        with suppress(KafkaError):
            self._producer.close(timeout_ms=1000)


class Framework:
    """A framework: subclasses say how its members are started. By default records go through topics.

    Attributes:
        name: as the command line knows it.
        title: as the page shows it.
        version: of the package that runs.
        exactly_once: whether a repeated record breaks its promise.
        story: what the program does, as the page shows it.
        settings: which settings differ from the framework's defaults, as the page shows them.
        members: how many processes share the work.
    """

    name: str
    title: str
    version: str
    exactly_once: bool
    story: str
    settings: str
    members = 2

    def prepare(self, site: Site) -> None:
        """Build what the members need, and create the topics.

        Raises:
            FrameworkUnavailable: it can't be had here.
        """
        with Admin(site.servers) as admin:
            admin.create_topics([NewTopic(INPUT, PARTITIONS), NewTopic(OUTPUT, PARTITIONS)]).all()

    def command(self, site: Site, member: int) -> list[str]:
        """Return the command that runs a member, first and after each kill."""
        raise NotImplementedError

    def begin(self, site: Site) -> None:
        """Do what is left once the members run."""

    def close(self) -> None:
        """End what `prepare` has started."""

    def open_input(self, site: Site) -> RecordInput:
        return TopicInput(site.servers)

    def open_output(self, site: Site) -> RecordOutput:
        return TopicOutput(site.servers)
