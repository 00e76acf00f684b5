"""Each client, unmodified: produces, consumes as a group of two with a rebalance, commits, and is taken up again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import NewTopic
from tests.peers.peers import KOHORT, PEERS, Driver, Peer, PeerUnavailable
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import LAST_RESORT

PARTITIONS = 4
RECORDS = 400

pytestmark = [pytest.mark.peer, LAST_RESORT]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with Broker(tmp_path_factory.mktemp("peers"), config) as broker:
        yield broker


@pytest.mark.parametrize("peer", [*PEERS, KOHORT], ids=lambda peer: peer.name)
def test_against_our_broker(peer: Peer, broker: Broker, tmp_path: Path) -> None:
    group_of_two(peer, broker.bootstrap_servers, tmp_path)


@pytest.mark.kafka
def test_our_client_against_apache_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    group_of_two(KOHORT, apache_kafka.bootstrap_servers, tmp_path)


def group_of_two(peer: Peer, servers: str, folder: Path) -> None:
    """The whole story, from an empty topic to a member that goes on where others stopped."""
    topic = group = f"{peer.name}-{uuid.uuid4().hex[:8]}"
    try:
        command = peer.command()
    except PeerUnavailable as error:
        pytest.skip(f"{peer.name} can't run here: {error}")
    with ExitStack() as ended:
        admin = ended.enter_context(Admin(servers))
        admin.create_topics([NewTopic(topic, PARTITIONS)]).all()
        count = 0

        def start(mode: str, last: str) -> Driver:
            nonlocal count
            count += 1
            driver = Driver([*command, mode, servers, topic, last], folder / f"{mode}-{count}.log")
            ended.callback(driver.kill)
            return driver

        def produce() -> None:
            producer = start("produce", str(RECORDS))
            producer.wait(lambda: bool(producer.events("produced")), "producing")
            producer.finish()

        produce()
        first = start("consume", group)
        first.wait(lambda: first.assigned == list(range(PARTITIONS)), "the first member has every partition")
        first.wait(lambda: len(first.records) >= RECORDS, "the first member gets every record")

        second = start("consume", group)
        second.wait(lambda: len(second.assigned or ()) == PARTITIONS // 2, "the second member has its half")
        first.wait(lambda: len(first.assigned or ()) == PARTITIONS // 2, "the first member has its half")
        assert sorted([*(first.assigned or ()), *(second.assigned or ())]) == list(range(PARTITIONS))

        produce()
        got = _until(first, second, 2 * RECORDS)
        assert len(got) == len(set(got)), "a record came twice although nothing failed"

        first.finish()
        second.wait(lambda: second.assigned == list(range(PARTITIONS)), "the second member takes over all partitions")
        produce()
        second.wait(lambda: len(second.records) + len(first.records) >= 3 * RECORDS, "the third round arrives")
        second.finish()
        got = [*first.records, *second.records]
        assert len(got) == len(set(got)) == 3 * RECORDS

        committed = admin.list_consumer_group_offsets(group).all()
        assert sum(offset.offset for offset in committed.values() if offset) == 3 * RECORDS


def _until(first: Driver, second: Driver, count: int) -> list[tuple[int, int]]:
    """The records of both, once there are so many."""

    def enough() -> bool:
        return len(first.records) + len(second.records) >= count

    second.wait(lambda: bool(second.records), "the second member gets records")
    first.wait(enough, f"{count} records arrive")
    return [*first.records, *second.records]
