"""A broker, and members of a region in threads."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa
import pytest

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.region.consumer import RegionConsumer
from kohort.region.region import Region
from kohort.region.sinks import Keep
from kohort.region.staged import StagedKey
from tests.region import s3_server
from tests.region.postgres import Server, programs, running
from tests.support.waiting import until


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder in memory, where there is one: for places that are killed at each call, and lose no power."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="kohort-places-", dir=memory)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def own_broker() -> Iterator[Broker]:
    """A broker for the whole run; tests use topics, groups and regions of their own names."""
    config = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.min.session.timeout.ms": "1000",
    }
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "own_broker" if request.param == "own" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap_servers)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    found = programs()
    if not found:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    with running(found) as server:
        yield server


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an object store with the bucket `lake`."""
    with s3_server.running(tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture
def own_servers(own_broker: Broker) -> str:
    return own_broker.bootstrap_servers


@pytest.fixture
def name() -> str:
    """Of a topic, a group and a region, new for each test."""
    return f"r-{uuid.uuid4().hex[:12]}"


def make_topic(servers: str, topic: str, partitions: int = 4) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, partitions)]).all()


def fill(servers: str, topic: str, numbers: range, partitions: int = 4) -> None:
    with Producer(servers) as producer:
        for number in numbers:
            producer.send(topic, str(number), partition=number % partitions)


class Collected:
    """A sink in memory, shared by all members of a test: what is published of it counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.staged: dict[StagedKey, pa.Table] = {}
        self.sequences: dict[int, tuple[StagedKey, ...]] = {}
        self.bound: tuple[str, UUID] = "", UUID(int=0)
        self.opened: set[tuple[str, UUID]] = set()
        self.fails = 0

    @property
    def place(self) -> str:
        return f"test:{id(self)}"

    def bind(self, region: str, region_id: UUID) -> Collected:
        self.bound = region, region_id
        return self

    def check(self, schema: pa.Schema) -> None:
        self.opened.add(self.bound)
        assert "value" in schema.names

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        with self.lock:
            assert key not in self.staged, f"{key} was staged twice"
            self.staged[key] = table

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        keys = tuple(keys)
        with self.lock:
            if self.fails:
                self.fails -= 1
                raise OSError("the disk is full")
            assert self.sequences.setdefault(sequence, keys) == keys

    def empty(self, sequence: int, floor: int) -> None:
        with self.lock:
            if self.published() <= sequence:
                self.sequences = {sequence: ()}

    def published(self) -> int:
        return max(self.sequences, default=0)

    def adopt(self) -> str:
        return self.place

    def sweep(self, keep: Keep) -> None:
        with self.lock:
            counts = {key for keys in self.sequences.values() for key in keys} | set(keep.keys)
            gone = [key for key in self.staged if key.epoch < keep.floor and key not in counts]
            for key in gone:
                del self.staged[key]

    def rows(self) -> Counter[int]:
        """How often each number was published."""
        with self.lock:
            tables = [self.staged[key] for keys in self.sequences.values() for key in keys]
        return Counter(int(_value) for table in tables if table.num_columns for _value in _values(table))


def _values(table: pa.Table) -> list[bytes]:
    return [bytes(value) for value in table.column("value").to_pylist() if value is not None]


class Worker:
    """A member in a thread of its own, which submits all that it reads."""

    columns: ClassVar[list[str]] = ["value"]

    def __init__(self, region: Region, name: str, sink: Any, topic: str | list[str], **options: Any) -> None:
        self.name, self.tables = name, 0
        self.error: BaseException | None = None
        self.fail_at: int | None = None
        self.consumer: RegionConsumer = region.consumer(
            name,
            topics=topic if isinstance(topic, list) else [topic],
            into=sink,
            **{"group_id": topic, "start": "beginning", **options},
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.consumer:
                for table in self.consumer.tables():
                    self.tables += 1
                    if self.fail_at is not None and self.tables >= self.fail_at:
                        raise ValueError("the application has a fault")
                    self.consumer.submit(self.rows_of(table))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def rows_of(self, table: pa.Table) -> pa.Table:
        """Return what is submitted."""
        return table.select(self.columns)

    def close(self) -> None:
        self.consumer.close()
        self.thread.join(60)


def check_exact_after_a_failure(servers: str, topic: str, sink: Any, read: Callable[[], list[int]], half: int) -> None:
    """Write numbers into a sink by two members, of which one fails: each is there once.

    Args:
        topic: with the first `half` numbers; as many follow once a sequence is complete.
        read: returns the numbers that a reader of the destination finds.
    """
    with Region(topic, servers, checkpoint_every="500ms") as region:
        workers = [Worker(region, f"worker-{number}", sink, topic) for number in range(2)]
        until(lambda: len(read()) > 0, "a sequence is complete")
        workers[0].fail_at = 0
        fill(servers, topic, range(half, 2 * half))
        workers[0].thread.join(60)
        assert isinstance(workers[0].error, ValueError)
        until(lambda: len(read()) >= 2 * half, "all is published")
        workers[1].close()
        workers[1].thread.join(60)
    assert Counter(read()) == Counter(range(2 * half))


@pytest.fixture
def regions() -> Iterator[list[Region]]:
    """Closed in the end, the latest first."""
    every: list[Region] = []
    yield every
    for member in reversed(every):
        member.close()
