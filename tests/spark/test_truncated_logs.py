"""A log that ends before a query's position: the query goes on at its end, and reads nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Run, own_signals
from tests.support.waiting import LAST_RESORT

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.errors import OffsetError
from kohort.zookeeper import free_port

__all__ = ["own_signals"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

TOPIC = "t"
COMMITTED = {"group.id": "g", "kafka.heartbeat.interval.ms": "200", "kafka.session.timeout.ms": "10000"}
"""The restored copy has the member of the run before: the next one waits for its session to end."""
GROUPED = pytest.mark.parametrize("more", [{}, COMMITTED], ids=["alone", "group"])


class Cluster:
    """A broker that starts again at its address, from an earlier copy of its data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.servers = folder, f"127.0.0.1:{free_port()}"

    @contextmanager
    def running(self) -> Iterator[None]:
        with Broker(self.folder, {"group.initial.rebalance.delay.ms": 0}, listen=self.servers):
            yield

    def make(self) -> None:
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(TOPIC, 1)]).all()

    def send(self, *values: int) -> None:
        with Producer(self.servers) as producer:
            for value in values:
                producer.send(TOPIC, b"%d" % value, partition=0)

    def copy(self) -> None:
        """Copy the data of a stopped broker."""
        shutil.copytree(self.folder, self.folder.with_name("copy"))

    def restore(self) -> None:
        """Put the copy in place of the data: the topics' ids are the same, and their logs end earlier."""
        shutil.rmtree(self.folder)
        self.folder.with_name("copy").rename(self.folder)

    def options(self, **more: str) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return given | {"columns": "value,topic,partition,offset", "failOnDataLoss": "false"} | more


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "data")


def read_ten_keep_six(cluster: Cluster, run: Run) -> None:
    """A query reads ten records, of which six are left afterwards."""
    with cluster.running():
        cluster.make()
        cluster.send(*range(6))
        assert run.read(6) == list(range(6))
    cluster.copy()
    with cluster.running():
        cluster.send(*range(6, 10))
        assert run.read(4) == list(range(6, 10))
    cluster.restore()


def stopped(cluster: Cluster, more: dict[str, str]) -> Checkpoint:
    """The checkpoint of such a query."""
    log = Checkpoint()
    with Run(cluster.options(**more), log) as run:
        read_ten_keep_six(cluster, run)
    return log


@GROUPED
def test_query_started_again_reads_nothing_twice(cluster: Cluster, more: dict[str, str]) -> None:
    log = stopped(cluster, more)
    with cluster.running(), Run(cluster.options(**more), log) as run:
        assert run.read(0) == []
        cluster.send(20, 21)
        assert run.read(2) == [20, 21]


@GROUPED
def test_running_query_reads_nothing_twice(cluster: Cluster, more: dict[str, str]) -> None:
    with Run(cluster.options(**more)) as run:
        read_ten_keep_six(cluster, run)
        with cluster.running():
            assert run.read(0) == []
            cluster.send(20, 21)
            assert run.read(2) == [20, 21]


def test_truncation_is_an_error_that_says_where_the_query_would_continue(cluster: Cluster) -> None:
    log = stopped(cluster, {})
    with cluster.running(), Run(cluster.options(failOnDataLoss="true"), log) as run:
        with pytest.raises(OffsetError, match=r"holds offsets 0 to 6, the query was at 10.*goes on at 6"):
            run.read(1)


def of_sparks_own(log: Checkpoint) -> Checkpoint:
    """The checkpoint as Spark's own source writes it, without the topic's id."""
    return Checkpoint([json.dumps({TOPIC: {"0": 10}})], 1)


def of_kohort(log: Checkpoint) -> Checkpoint:
    return log


@pytest.mark.parametrize("written", [of_sparks_own, of_kohort])
def test_only_a_checkpoint_without_the_topics_id_begins_anew(
    cluster: Cluster, written: Callable[[Checkpoint], Checkpoint]
) -> None:
    """Offsets without an id may be those of another topic of the same name, none of which has been read."""
    log = stopped(cluster, {})
    with cluster.running(), Run(cluster.options(), written(log)) as run:
        expected: list[Any] = list(range(6)) if written is of_sparks_own else []
        assert run.read(len(expected)) == expected
